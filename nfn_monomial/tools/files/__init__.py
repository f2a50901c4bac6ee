"""Files: untrusted ones, read within limits; checkpoints in every form; and files written whole or not at all."""
