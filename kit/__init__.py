"""Tools: errors, files, strict documents, a user's own classes, compiled code, named random streams."""
