"""Runs of a real cluster on the null CUDA: what is captured when, and what device memory is held."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.nullcuda import cases
from tests.nullcuda.harness import NULLCUDA, run_case

pytestmark = [pytest.mark.workers, *NULLCUDA]

CAP_BYTES = 100_000_000  # less than all instances take with their captured passes, and far more than their weights


@cache
def runs() -> list[dict[str, Any]]:
    """Two of one cluster with room for everything; a pass takes a millisecond, so that instances are busy."""
    found: list[dict[str, Any]] = run_case(cases.served_runs, 2, 8 << 30, op_ns=50_000)
    return found


def test_a_preload_captures_every_size_at_every_previous_width() -> None:
    first = runs()[0]
    assert first["ready"]["captures"] - first["before"]["captures"] == cases.PASSES


def test_cluster_after_a_preload_of_all_captures_no_further_pass() -> None:
    for run in runs():
        assert (run["loads"], run["status"]) == (len(cases.ALL), ["completed"])
        assert run["after"]["captures"] == run["ready"]["captures"]


def test_the_next_run_of_a_cluster_loads_nothing() -> None:
    _, second = runs()
    assert second["ready"]["captures"] == second["before"]["captures"]


def test_reserved_memory_is_below_the_cap_after_the_preload() -> None:
    """Loads beyond it are undone: the preload is too large by what its captured passes take."""
    (run,) = run_case(cases.served_runs, 1, CAP_BYTES, 20.0)
    assert CAP_BYTES / 2 < run["ready"]["held_bytes"] <= CAP_BYTES


def test_a_move_ends_while_nothing_is_served() -> None:
    """Calibration times moves; nothing but the worker's own loop looks at their ends."""
    assert len(run_case(cases.measured_moves, 3)) == 3
