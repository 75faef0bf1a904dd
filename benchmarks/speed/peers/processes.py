"""Processes that were started here end with everything that they started."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psutil

_GENTLY_S = 5.0


def end_tree(pid: int) -> None:
    """End a process and its descendants, gently, then by force."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        end_all([*root.children(recursive=True), root])


def end_all(processes: Sequence[psutil.Process]) -> None:
    """The same, for processes that are known already."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, _GENTLY_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
