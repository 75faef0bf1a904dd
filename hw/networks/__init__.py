"""Slimmable networks: their requirements, training, accuracy and images."""
