"""Training jobs: what the commands of `slimsched jobs` do and say."""
