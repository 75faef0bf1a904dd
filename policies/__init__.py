"""Decisions, and the words they are made of: no clock, no I/O, torch in the PPO rooms alone."""
