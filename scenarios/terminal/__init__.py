"""A command's output while it works, and its end: words, progress, exit codes."""
