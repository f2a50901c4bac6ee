"""The studies of experiments, with their tables and figures: a module for each, which has its `Study`."""
