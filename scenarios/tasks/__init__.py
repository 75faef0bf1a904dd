"""What a command does, without its flags and its words: so the command line and `import slimsched` do the same."""
