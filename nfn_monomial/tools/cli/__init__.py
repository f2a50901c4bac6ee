"""The command line. Nothing here imports torch before a command runs, so that help and completion come at once."""
