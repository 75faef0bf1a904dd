"""What the product asks of a GPU, by counts of the null CUDA: passes, captures, and what calibration measures."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.hw.test_capturable import READING
from tests.hw.tiny import TINY
from tests.nullcuda import cases
from tests.nullcuda.harness import NULLCUDA, run_case

pytestmark = NULLCUDA

CAPTURE_S = 0.01

run_once = cache(run_case)


def calibrated() -> dict[str, Any]:
    """See `cases.calibrated`."""
    found: dict[str, Any] = run_once(cases.calibrated, capture_ns=round(1e9 * CAPTURE_S))
    return found


@pytest.mark.parametrize("segment", [1, 2, 3])
@pytest.mark.parametrize("rows", ["in order", "apart"])
def test_a_pass_is_launched_without_a_wait_and_labels_are_copied_once_more(segment: int, rows: str) -> None:
    """No pageable copy either, which waits, too; the one thread polls for the end."""
    copies = "mm" if segment == TINY.segments else "m"
    assert re.fullmatch(f"m+g{copies}", run_once(cases.pass_traces)[f"{segment} {rows}"])


def test_sizes_are_measured_padded_to_and_warmed_alike() -> None:
    found = calibrated()
    assert found["measured"] == found["padded"] == found["warmed"]
    assert found["loaded"] == [len(found["warmed"])]


def test_passes_are_captured_before_their_first_timed_repeat() -> None:
    """A capture would be in the first repeats of every loop that is asked for so; a busy host is not."""
    assert max(calibrated()["first_s"].values()) < CAPTURE_S


def test_model_check_warns_of_exactly_the_passes_that_a_capture_refuses() -> None:
    found = run_once(cases.captured_ways)
    assert found == {how: not READING[how] for how in found}
