"""Measures devices through `hw` and fits the very formulas that `sim` replays."""
