"""Decisions, and the words they are made of: no clock, no I/O, no torch."""
