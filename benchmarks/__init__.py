"""Measurements of this project: results of the shipped scenarios, speed, and what only a GPU can tell."""
