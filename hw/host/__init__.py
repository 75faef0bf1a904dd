"""This machine, for every process of a run: clock, waits, limits, and whether a peer answers."""
