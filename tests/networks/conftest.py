"""Files of networks have no tests, and each network enters the zoo once: `everything` imports them."""

collect_ignore_glob = ["zoo_*.py"]
