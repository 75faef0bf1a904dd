"""Training jobs from Python: the functions that `slimsched jobs` does, and `train` besides."""

from __future__ import annotations

from slimsched.jobs.verbs import advise, bound, capacity, compare, generate, import_log, init, inspect, train, whatif

__all__ = ["advise", "bound", "capacity", "compare", "generate", "import_log", "init", "inspect", "train", "whatif"]
