"""From ties and equations to nodes' nests and gauges."""
