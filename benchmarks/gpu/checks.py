"""All checks: what each looks at, when it passes, how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gpu import correctness, facts, job, power, serving, speed
from benchmarks.gpu.stand import Stand

Found = tuple[str, Mapping[str, Any]]
"""(what is wrong, empty where nothing is; numbers)."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: it looks at.
        passes: when it does.
        deadline_s: of its process.
        on_cpu: whether it is worth its time where there is no GPU; by name it is done there, too.
    """

    id: str
    what: str
    passes: str
    deadline_s: float
    look: Callable[[Stand], Found]
    on_cpu: bool = True


CHECKS: Final = (
    Check("A1", "versions, architectures, mode, limits", "the GPU is served by this torch", 15, facts.what_it_is),
    Check("A2", "each NVML call: does it answer, how long does it take", "told", 15, facts.calls),
    Check("A3", "what looking for devices opens", "no context", 10, power.no_context),
    Check("A4", "memory of a context, alone and beside others", "all within 5 % of one another", 40, facts.contexts),
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
        25,
        correctness.neighbours,
    ),
    Check("B3", "moves between two agents", "the same bits", 60, correctness.moves),
    Check(
        "B4",
        "sixteen lanes, moves and releases at once; blocks compacted",
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
        30,
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
    Check("C5", "copies of 0.4 to 8.4 MB", "told", 25, speed.copies),
    Check("E1", "`slimsched calibrate`, which leaves a profile", "the profile is whole", 110, job.calibrated),
    Check("C3", "orders of memory, precisions, graphs", "told", 40, speed.ways, on_cpu=False),
    Check("D1", "power before a context, with one, with three, after a load", "bare <= context", 60, power.idles),
    Check(
        "D2",
        "power of loops, by batch and duty: polled, counted",
        "within 3 % of each other where steady",
        60,
        power.loops,
    ),
    Check(
        "F1",
        "one server saturated beside a bare loop, with and without graphs",
        "none lost, labels as the CPU's",
        60,
        serving.saturated,
        on_cpu=False,
    ),
    Check(
        "F2",
        "two servers of the GPU, anybody's block anywhere",
        "none lost, labels as the CPU's",
        60,
        serving.two_servers,
        on_cpu=False,
    ),
    Check(
        "F3",
        "simulation with E1's profile beside executors: three routers at three loads",
        "none lost; errors told beside promises",
        120,
        job.validated,
        on_cpu=False,
    ),
    Check(
        "B6",
        "a server killed, one stopped, one whose device an image breaks",
        "all told, all come back",
        90,
        serving.broken_workers,
        on_cpu=False,
    ),
    Check(
        "G1", "the quickstart, trimmed, and its validation", "exit code 0, none lost", 120, job.quickstart, on_cpu=False
    ),
    Check(
        "G2",
        "training broken off and resumed; the table",
        "the same bits; 99.9 % as the CPU",
        45,
        job.trained,
        on_cpu=False,
    ),
)
