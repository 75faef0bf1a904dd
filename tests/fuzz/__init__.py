"""Hostile input, torn state, kills and a failing host against the whole program: `python -m tests.fuzz`."""
