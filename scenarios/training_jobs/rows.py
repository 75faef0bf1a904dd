"""What a format makes of a block of its log: the columns of the normal form, with times as the log has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.training_jobs.fields import Numbers


@dataclass(frozen=True, slots=True)
class Rows:
    """A block's jobs, or lives of jobs; all columns have one length. Not-a-number is not known.

    Attributes:
        lines: on which line each stands.
        submit_s, start_s: Unix times, or seconds from whenever the log begins (`is_date`).
        run_s: how long it held its GPUs.
        gpu_share: how much of its one GPU; None for all of them.
        texts: `job_id`, and any of `user`, `vc`, `gpu_types`, `status`, `job_class`.
        refused: reasons of the format's own to leave rows out, each with the rows; the first that holds is told.
        noted: what is to be said of rows that are kept, each with the rows.
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


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say of a log.

    Attributes:
        gpus_per_node: GPUs of a node, where the log names nodes alone.
        vc: which of a Slurm log's words is the group: `partition`, `account` or `qos`.
        timezone: of dates without one.
        columns: of a CSV file: its column for each of the normal form.
        tasks: a second table that the format needs.
    """

    gpus_per_node: int | None = None
    vc: str = "partition"
    timezone: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    tasks: Any = None
