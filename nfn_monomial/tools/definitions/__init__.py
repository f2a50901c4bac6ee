"""Networks that a user names, and what their classes make of the tensors in a file."""
