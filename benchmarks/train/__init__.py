"""Training: configuration, loop, devices, checkpoints, runs."""
