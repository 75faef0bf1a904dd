"""The jobs of a run as columns, and what is done to them before it: load, order, limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jobs.policies.shares import is_share
from jobs.policies.vocabulary import JobArrived
from kit.errors import InputError
from kit.units import NS_PER_S

_LONGEST_S: Final = 1e9  # 31 years, so that sums of nanoseconds stay whole numbers of 64 bits
Numbers = NDArray[np.float64]
Words = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class JobList:
    """Jobs in the order of submission; job i of a run is row i.

    Attributes:
        submit_s: (n,) from the trace's start, ascending.
        run_s: (n,) at the reference type, alone; at least a nanosecond.
        gpus: (n,) each.
        gpu_types: (n,) those that it may run on, joined by `|`; empty for any.
        requested_s, recorded_wait_s, recorded_start_s: (n,) not-a-number where the log did not say.
        job_class: (n,) rows of a table of speeds.
        gpu_share: (n,) how much of its one GPU a job needs, in whole thousandths; 1 for all of it.

    Raises:
        InputError: for columns of unequal length, times out of order or out of range.
    """

    job_id: Words
    submit_s: Numbers
    run_s: Numbers
    gpus: NDArray[np.int64]
    user: Words
    vc: Words
    gpu_types: Words
    requested_s: Numbers
    recorded_wait_s: Numbers
    recorded_start_s: Numbers
    job_class: Words
    gpu_share: Numbers

    @staticmethod
    def of(submit_s: ArrayLike, run_s: ArrayLike, gpus: ArrayLike, **columns: Any) -> JobList:
        """From the columns that a job must have and any others; sorted by submission."""
        unsorted = np.asarray(submit_s, np.float64)
        many = len(unsorted)
        texts = {name: columns.pop(name, [""] * many) for name in ("user", "vc", "gpu_types", "job_class")}
        numbers = {
            name: columns.pop(name, [np.nan] * many) for name in ("requested_s", "recorded_wait_s", "recorded_start_s")
        }
        gpu_share = np.asarray(columns.pop("gpu_share", [1.0] * many), np.float64)
        job_id = columns.pop("job_id", [str(row) for row in range(many)])
        assert not columns, f"no such columns: {', '.join(columns)}"
        order = np.argsort(unsorted, kind="stable")
        return JobList(
            np.asarray(job_id, object)[order],
            unsorted[order],
            np.asarray(run_s, np.float64)[order],
            np.asarray(gpus, np.int64)[order],
            requested_s=np.asarray(numbers["requested_s"], np.float64)[order],
            recorded_wait_s=np.asarray(numbers["recorded_wait_s"], np.float64)[order],
            recorded_start_s=np.asarray(numbers["recorded_start_s"], np.float64)[order],
            gpu_share=gpu_share[order],
            **{name: np.asarray(values, object)[order] for name, values in texts.items()},
        )

    def __post_init__(self) -> None:
        if not len(self):
            raise InputError("trace", "", "has no jobs")
        for name in self.__slots__:
            if len(getattr(self, name)) != len(self):
                raise InputError("trace", name, f"has {len(getattr(self, name))} rows, submit_s has {len(self)}")
        if not np.all(np.diff(self.submit_s) >= 0):
            raise InputError("trace", "submit_s", "is not ascending: sort the jobs by submission")
        _require_range("submit_s", self.submit_s, 0.0)
        _require_range("run_s", self.run_s, 1e-9)
        are_shares = is_share(self.gpu_share, self.gpus)
        if not are_shares.all():
            row = int(are_shares.argmin())
            problem = f"job {row} has {self.gpu_share[row]} of each of {self.gpus[row]} GPUs"
            raise InputError("trace", "gpu_share", f"{problem}: allowed are 0.001 to 1, below 1 of one GPU")

    def __len__(self) -> int:
        return len(self.submit_s)

    def rows(self, which: Any) -> JobList:
        """Some of the jobs, in their order (a mask, a slice)."""
        return JobList(**{name: getattr(self, name)[which] for name in self.__slots__})

    @property
    def gpu_s(self) -> Numbers:
        """(n,) GPU time of each, at the reference type."""
        return np.asarray(self.run_s * self.gpus * self.gpu_share)

    @property
    def days(self) -> float:
        """From the first submission to the last."""
        return float(self.submit_s[-1] - self.submit_s[0]) / 86400

    @property
    def run_cv2(self) -> float:
        """C^2 of the run times: the variance over the squared mean."""
        return float(self.run_s.var() / self.run_s.mean() ** 2)

    def load_on(self, gpus: int) -> float:
        """GPU time asked for, over what so many GPUs have from the first to the last submission; infinite for none."""
        span_s = float(self.submit_s[-1] - self.submit_s[0])
        return float(self.gpu_s.sum()) / (gpus * span_s) if span_s > 0 else np.inf

    def at_load(self, load: float, gpus: int) -> JobList:
        """The same jobs, submitted faster or slower, so that they are this load to so many GPUs.

        Raises:
            InputError: for a load that is not above 0, or jobs that are all submitted at once.
        """
        if not 0 < load < np.inf:
            raise InputError("load", "", f"{load} is no load: give a number above 0")
        present = self.load_on(gpus)
        if present == np.inf:
            raise InputError("load", "", "all jobs are submitted at once: no rate of arrivals gives a load")
        return replace(self, submit_s=self.submit_s * (present / load))

    def arrivals(self) -> list[JobArrived]:
        """What a scheduler is told of each; how long it runs is not in it."""
        requested = np.round(self.requested_s * NS_PER_S)
        milli = np.round(self.gpu_share * 1000).astype(np.int64).tolist()
        return [
            JobArrived(
                row,
                int(self.gpus[row]),
                submit_ns,
                str(self.user[row]),
                str(self.vc[row]),
                tuple(self.gpu_types[row].split("|")) if self.gpu_types[row] else (),
                None if np.isnan(requested[row]) else int(requested[row]),
                str(self.job_class[row]),
                gpu_milli=milli[row],
            )
            for row, submit_ns in enumerate(self.submit_ns.tolist())
        ]

    @property
    def submit_ns(self) -> NDArray[np.int64]:
        """(n,) In whole nanoseconds."""
        return np.round(self.submit_s * NS_PER_S).astype(np.int64)

    @property
    def work_ns(self) -> NDArray[np.int64]:
        """(n,) Run times at the reference type in whole nanoseconds: what only the world knows."""
        return np.round(self.run_s * NS_PER_S).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a log found at a time: where a run begins that does not begin on an empty cluster.

    Attributes:
        jobs: those that ran, that waited, and that were submitted later.
        done_ns: (n,) work that each had done; above 0 for those that ran.
    """

    at_ns: int
    jobs: JobList
    done_ns: NDArray[np.int64]


def found_at(jobs: JobList, at_s: float) -> Found:
    """By recorded starts; jobs that had ended are left out. They are taken to have run at the reference type.

    Raises:
        InputError: for a trace without recorded starts, or without a job from then on.
    """
    start_s = jobs.recorded_start_s
    is_old = jobs.submit_s < at_s
    if np.isnan(start_s[is_old]).any():
        problem = f"job {int(np.isnan(start_s).argmax())} has none: begin on an empty cluster, or with a warm-up"
        raise InputError("trace", "recorded_start_s", problem)
    done_s = np.where(is_old, np.clip(at_s - np.nan_to_num(start_s), 0.0, None), 0.0)
    is_left = done_s < jobs.run_s
    if not is_left.any():
        raise InputError("trace", "", f"all jobs had ended at {at_s:g} s: begin earlier")
    done_ns = np.round(done_s[is_left] * NS_PER_S).astype(np.int64)
    return Found(round(at_s * NS_PER_S), jobs.rows(is_left), done_ns)


def _require_range(name: str, values: Numbers, least: float) -> None:
    outside = ~((values >= least) & (values <= _LONGEST_S))
    if outside.any():
        row = int(outside.argmax())
        problem = f"job {row} has {values[row]}: allowed are {least:g} to {_LONGEST_S:g} seconds"
        raise InputError("trace", name, problem)
