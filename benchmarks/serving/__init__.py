"""Measurements of `slimsched serve`: its goals as ratios in one run, and the same network behind rivals."""
