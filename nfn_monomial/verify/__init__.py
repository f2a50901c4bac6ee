"""What random points show of a network: that a group keeps its function, and which parameters do not matter to it."""
