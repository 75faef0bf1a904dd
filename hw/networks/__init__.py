"""Slimmable networks: what they must be, how they learn, what they get right, and their images."""
