"""Files of strangers, read without trust, and files that appear whole or not at all."""
