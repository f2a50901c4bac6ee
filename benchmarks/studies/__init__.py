"""What the experiments run, and their tables and figures: a module for each, with its `Study`."""
