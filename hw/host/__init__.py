"""This machine, as every process of a run sees it: clock, waits, limits, and whether a peer answers."""
