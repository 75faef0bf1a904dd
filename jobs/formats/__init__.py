"""The logs that can be read, one module each: what it looks like, and how its columns become the normal form's."""
