"""All checks: what each looks at, when it passes, how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.gpu import correctness, facts, job, speed
from tests.gpu.stand import Stand

Found = tuple[str, Mapping[str, Any]]
"""(what is wrong, empty where nothing is; numbers)."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: it looks at.
        passes: when it does.
        deadline_s: of its process.
    """

    id: str
    what: str
    passes: str
    deadline_s: float
    look: Callable[[Stand], Found]


CHECKS: Final = (
    Check("A1", "versions, architectures, mode, limits", "the GPU is served by this torch", 15, facts.what_it_is),
    Check("A2", "each NVML call: does it answer, how long does it take", "told", 15, facts.calls),
    Check("A4", "memory of a context, alone and beside others", "all within 5 % of one another", 45, facts.contexts),
    Check(
        "B1",
        "every key at batches of 1, 3 and 32 against the CPU in float64",
        "relative error below 2e-3 (TF32), 1e-4 without",
        45,
        correctness.against_float64,
    ),
    Check(
        "B2",
        "padding, order of rows, neighbours, and the same batch twice",
        "the same labels; the same bits twice",
        20,
        correctness.neighbours,
    ),
    Check(
        "B3", "moves between two agents: as shipped, copies apart, mailboxes", "the same bits", 60, correctness.moves
    ),
    Check(
        "B4",
        "sixteen lanes, moves and releases at once, in three ways",
        "no label differs from the CPU's",
        75,
        correctness.races,
    ),
    Check(
        "B5", "a lack of memory, as each library says it", "out_of_memory, and it serves again", 20, correctness.memory
    ),
    Check(
        "C1",
        "the first pass of a fresh instance after warming, against the median",
        "below 1.5 times",
        40,
        speed.first_passes,
    ),
    Check(
        "C2",
        "a pass by the host's clock, by events and its launches' CPU time",
        "events at most the host's time",
        30,
        speed.clocks,
    ),
    Check(
        "C4",
        "1 to 16 instances at once; distinct streams",
        "throughput never falls by more than a tenth",
        30,
        speed.at_once,
    ),
    Check("C5", "copies of 0.4 to 8.4 MB: pageable, pinned, mailbox", "told", 25, speed.copies),
    Check("E1", "`slimsched calibrate`, which leaves a profile", "the profile is whole", 115, job.calibrated),
)
