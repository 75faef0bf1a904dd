"""What was read, left out and changed on the way: a count and the first line of each reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.logs.fields import Cells, Numbers


@dataclass(slots=True)
class Count:
    """How many rows, and the line on which the first of them stands."""

    rows: int
    first_line: int


@dataclass(slots=True)
class Tally:
    """Counts by reason, in the order in which reasons came up.

    Attributes:
        rows: all that were read, whatever became of them.
        left_out: rows that made no job; noted: rows that were kept, and of which something is to be said.
        told: sentences about the file as a whole.
    """

    rows: int = 0
    left_out: dict[str, Count] = field(default_factory=dict)
    noted: dict[str, Count] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, lines: NDArray[np.int64]) -> None:
        """These rows make no job."""
        _add(self.left_out, reason, lines)

    def note(self, what: str, lines: NDArray[np.int64]) -> None:
        """These rows are kept, but something of them was changed or is doubtful."""
        _add(self.noted, what, lines)

    def tell(self, text: str) -> None:
        """A sentence, once."""
        if text not in self.told:
            self.told.append(text)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "rows": self.rows,
            "left_out": [{"reason": reason, **asdict(count)} for reason, count in self.left_out.items()],
            "noted": [{"reason": reason, **asdict(count)} for reason, count in self.noted.items()],
            "told": self.told,
        }


def _add(counts: dict[str, Count], reason: str, lines: NDArray[np.int64]) -> None:
    if not len(lines):
        return
    first = int(lines.min())
    count = counts.setdefault(reason, Count(0, first))
    count.rows, count.first_line = count.rows + len(lines), min(count.first_line, first)


# ----------------------------------------------------------------------------------------------------------------- rows
# What a format makes of a block of its log: the columns of the normal form, with times as the log has them.


UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
# A row is an attempt, one after which its job went back to the queue, or none.
ATTEMPT, REQUEUED, OPEN, UNSTARTED = range(4)


@dataclass(frozen=True, slots=True)
class Rows:
    """A block's jobs, or attempts of jobs; all columns have one length. Not-a-number is not known.

    Attributes:
        lines: on which line each stands.
        submit_s, start_s: Unix times, or seconds from whenever the log begins (`is_date`).
        run_s: how long it held its GPUs.
        gpu_share: how much of its one GPU; None for all of them.
        texts: `job_id`, and any of `user`, `vc`, `gpu_types`, `status`, `job_class`.
        refused: reasons of the format's own to leave rows out, each with the rows; the first that holds is told.
        noted: what is to be said of rows that are kept, each with the rows.
        needed: quantities without which a row makes no job, by what they are called; the forms of all times must agree.
        optional: others; where one can't be read, it is not known.
        kind: `ATTEMPT` and so on, of a log in which several rows may be one job; else None, and so are the next three.
        submitted_s: when this attempt came into the queue.
        whose: user, account and cluster; only their equality counts.
        part: of a heterogeneous job, from 0; -1 of any other.
    """

    lines: NDArray[np.int64]
    submit_s: Numbers
    run_s: Numbers
    gpus: Numbers
    texts: Mapping[str, Any]
    start_s: Numbers | None = None
    requested_s: Numbers | None = None
    attempts: NDArray[np.int32] | None = None
    gpu_share: Numbers | None = None
    is_date: NDArray[np.bool_] | bool = True
    refused: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    noted: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    needed: Mapping[str, Cells] = field(default_factory=dict)
    optional: Mapping[str, Cells] = field(default_factory=dict)
    kind: NDArray[np.int8] | None = None
    submitted_s: Numbers | None = None
    whose: Any = None
    part: NDArray[np.int16] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say of a log.

    Attributes:
        gpus_per_node: GPUs of a node, where the log names nodes alone.
        vc: which of a Slurm log's words is the group: `partition`, `account` or `qos`.
        timezone: of dates without one.
        columns: of a CSV file: its column for each of the normal form, and `END`.
        unit_s: of a CSV file: how many seconds 1 is.
        tasks: a second table that the format needs.
    """

    gpus_per_node: int | None = None
    vc: str = "partition"
    timezone: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    unit_s: float = 1.0
    tasks: Any = None
