"""What the user sees while a command works, and how it ends: words, progress, exit codes."""
