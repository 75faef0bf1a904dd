"""Measurements of this project: results of the bundled scenarios, speed, and checks that need a GPU."""
