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


@pytest.mark.xfail(strict=True, reason="F2: a wider instance captures passes of a narrower width")
def test_nothing_is_captured_after_a_preload_of_all() -> None:
    for run in runs():
        assert run["loads"] == len(cases.ALL)
        assert run["after"]["captures"] == run["ready"]["captures"]


@pytest.mark.xfail(strict=True, reason="F12: each run frees all instances and loads them again")
def test_the_next_run_of_a_cluster_loads_nothing() -> None:
    _, second = runs()
    assert second["ready"]["captures"] == second["before"]["captures"]


@pytest.mark.xfail(strict=True, reason="F3: only weights count in the device's budget")
def test_reserved_memory_is_below_the_cap_after_the_preload() -> None:
    (run,) = run_case(cases.served_runs, 1, CAP_BYTES)
    assert run["ready"]["held_bytes"] <= CAP_BYTES
