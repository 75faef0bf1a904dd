"""Groups a log's rows into jobs: attempts of a requeued job, parts of a heterogeneous one; and rows of no job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.logs.fields import Mask
from jobs.logs.rows import OPEN, REQUEUED, UNSTARTED, Tally

LONGEST_BETWEEN_S: Final = 30 * 86400.0  # a requeued job is back in the queue at once; ids repeat much later
LONGEST_SUBMIT_S: Final = 10.0  # of all parts of a heterogeneous job
NOT_ENDED: Final = "not yet ended"
NOT_STARTED: Final = "never started"
RAN_NOT: Final = "ran for 0 s"
TWINS: Final = "an attempt that an earlier row has"
AGAIN: Final = "an id that an earlier row has"
ATTEMPTS: Final = "further attempts of requeued jobs, joined with their first"
PARTS: Final = "further parts of heterogeneous jobs, joined with their first: GPUs are summed"
OTHERS: Final = "have the id of a job of another user, account, cluster or time: jobs of their own, named ID#2"
Indices = NDArray[np.int64]


@dataclass(slots=True)
class Log:
    """All remaining rows of a log, in its order.

    Attributes:
        words, numbers: their columns; joining replaces the values of the row that represents a job.
    """

    words: Any
    numbers: dict[str, NDArray[Any]]
    tally: Tally

    def jobs(self, *, joins: bool, sums: bool) -> Indices:
        """Return the rows that represent jobs, with distinct ids.

        Args:
            joins: rows of one id may be attempts of one job; otherwise only the first is kept.
            sums: a job's run time is the sum over its attempts; otherwise that of the last one.
        """
        ids = codes_of(self.words["job_id"].combine_chunks())
        if ids is None or not joins:
            order = np.arange(len(self.words))
            order, _ = self._ended(order, order + 1)
            has_run = self.numbers["run_s"][order] > 0
            self.tally.left_out.add(RAN_NOT, self.numbers["line"][order[~has_run]])
            return order[has_run] if ids is None else self._first_of_each(order[has_run], ids)
        for name, column in self.numbers.items():
            self.numbers[name] = column.copy()  # Arrow's memory is read-only
        keys = ids, self.words["whose"].combine_chunks().indices.to_numpy()
        submitted_s, start_s, part, line, kind = self._of("submitted_s", "start_s", "part", "line", "kind")
        # attempts last: of two exports, the later has the end of jobs that were open in the earlier
        order = np.lexsort((line, part, start_s, kind <= REQUEUED, submitted_s, *keys[::-1]))
        order = self._whole(self._without_twins(order, keys), keys)
        order = self._of_attempts(*self._ended(order, np.cumsum(self._begins(order, keys))), sums)
        self._name_apart(order, ids)
        return order

    def _of(self, *names: str, rows: Any = slice(None)) -> list[NDArray[Any]]:
        return [self.numbers[name][rows] for name in names]

    def _first_of_each(self, order: Indices, ids: Indices) -> Indices:
        order = order[np.argsort(ids[order], kind="stable")]
        is_first = is_next(ids[order])
        self.tally.left_out.add(AGAIN, self.numbers["line"][order[~is_first]])
        return order[is_first]

    def _without_twins(self, order: Indices, keys: Sequence[Indices]) -> Indices:
        """Drop duplicates: attempts of one id with the same submission and start."""
        is_attempt = self.numbers["kind"][order] <= REQUEUED
        times = self._of("submitted_s", "start_s", "part", rows=order)
        is_twin = ~is_next(*(key[order] for key in keys), *times) & is_attempt & np.roll(is_attempt, 1)
        self.tally.left_out.add(TWINS, self.numbers["line"][order[is_twin]])
        return order[~is_twin]

    def _whole(self, order: Indices, keys: Sequence[Indices]) -> Indices:
        """Merge parts of a heterogeneous job, submitted together, attempt by attempt: the first represents them."""
        if not len(rows := order[self.numbers["part"][order] >= 0]):
            return order
        part, submitted_s = self._of("part", "submitted_s", rows=rows)
        is_first = is_next(*(key[rows] for key in keys))
        is_first[1:] |= (np.diff(part) <= 0) | (np.diff(submitted_s) > LONGEST_SUBMIT_S)
        begins, first = np.flatnonzero(is_first), rows[is_first]
        for name, of_all in (("gpus", np.add), ("nodes", np.maximum), ("run_s", np.maximum), ("requested_s", np.fmax)):
            self.numbers[name][first] = of_all.reduceat(self.numbers[name][rows], begins)
        types = np.split(self.words["gpu_types"].take(pyarrow.array(rows)).to_numpy(), begins[1:])
        self._replace("gpu_types", first, ["|".join(sorted(set("|".join(each).split("|")) - {""})) for each in types])
        self.tally.noted.add(PARTS, self.numbers["line"][rows[~is_first]])
        return order[~np.isin(order, rows[~is_first])]

    def _begins(self, order: Indices, keys: Sequence[Indices]) -> Mask:
        """Return a mask of jobs' first rows: an attempt of the same job is submitted after the previous one's end."""
        submitted_s, start_s, run_s, kind = self._of("submitted_s", "start_s", "run_s", "kind", rows=order)
        after_s = submitted_s[1:] - np.where(kind <= REQUEUED, start_s + run_s, submitted_s)[:-1]
        begins = is_next(*(key[order] for key in keys))
        begins[1:] |= ~((after_s >= 0) & (after_s <= LONGEST_BETWEEN_S))
        return begins

    def _ended(self, order: Indices, jobs: Indices) -> tuple[Indices, Indices]:
        """Return attempts of ended jobs, and the job of each; a job with an open or requeued last row has not ended."""
        kind, line = self._of("kind", "line", rows=order)
        is_last = np.append(jobs[1:] != jobs[:-1], True)
        is_open = np.isin(kind[is_last], (REQUEUED, OPEN))[jobs - 1]
        self.tally.left_out.add(NOT_ENDED, line[(kind == OPEN) | (is_open & (kind != UNSTARTED))])
        self.tally.left_out.add(NOT_STARTED, line[kind == UNSTARTED])
        is_kept = ~is_open & (kind <= REQUEUED)
        return order[is_kept], jobs[is_kept]

    def _of_attempts(self, order: Indices, jobs: Indices, sums: bool) -> Indices:
        """Let the last attempt of each job represent it."""
        if not len(order):
            return order
        is_first = is_next(jobs)
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], len(order)) - 1
        first, last = order[begins], order[ends]
        run_s, start_s, line, attempts = self._of("run_s", "start_s", "line", "attempts", rows=order)
        ran_s = np.add.reduceat(run_s, begins)
        counted_s = ran_s if sums else run_s[ends]
        is_kept = np.repeat(counted_s > 0, ends - begins + 1)
        self.tally.left_out.add(RAN_NOT, line[~is_kept])
        self.tally.noted.add(ATTEMPTS, line[is_kept & ~is_first])
        if (is_kept & ~is_first).any():
            earlier_s = float(((ran_s - run_s[ends]) * self.numbers["gpus"][last])[counted_s > 0].sum())
            how = "counted in (--attempts last leaves them out)" if sums else "left out (--attempts sum counts them in)"
            self.tally.told.append(f"{earlier_s / 3600:,.0f} GPU-hours of attempts before the last are {how}")
        begun_s = np.where(run_s > 0, start_s, np.inf)  # an attempt of 0 s was not a start
        self.numbers["start_s"][last] = np.minimum.reduceat(begun_s, begins)
        self.numbers["attempts"][last] = np.add.reduceat(attempts, begins)
        self.numbers["run_s"][last] = counted_s
        for name in ("submit_s", "submitted_s"):
            self.numbers[name][last] = self.numbers[name][first]
        return np.asarray(last[counted_s > 0])

    def _name_apart(self, order: Indices, ids: Indices) -> None:
        """Give new ids to jobs whose id an earlier one has."""
        is_first, place = is_next(ids[order]), np.arange(len(order))
        number = place - np.maximum.accumulate(np.where(is_first, place, 0)) + 1
        if len(others := order[~is_first]):
            self.tally.noted.add(OTHERS, self.numbers["line"][others])
            texts = self.words["job_id"].take(pyarrow.array(others)).to_pylist()
            names = [f"{text}#{n}" for text, n in zip(texts, number[~is_first], strict=True)]
            self._replace("job_id", others, names)

    def _replace(self, name: str, rows: Indices, texts: list[str]) -> None:
        column = self.words[name].combine_chunks().cast(pyarrow.large_string())
        mask = np.zeros(len(column), bool)
        mask[rows] = True
        in_order = pyarrow.array(texts, pyarrow.large_string()).take(pyarrow.array(np.argsort(rows)))
        replaced = compute.replace_with_mask(column, pyarrow.array(mask), in_order)
        self.words = self.words.set_column(self.words.column_names.index(name), name, replaced)


def codes_of(job_id: Any) -> Indices | None:
    """Return a number per distinct id; None if all differ. Ids that are plain integers are their own numbers.

    A table of all texts would temporarily take some 140 bytes a job.
    """
    is_number = compute.match_substring_regex(job_id, r"^(0|[1-9]\d{0,17})$")  # 007 is not 7
    column = job_id.cast(pyarrow.int64()) if compute.all(is_number).as_py() else job_id.dictionary_encode().indices
    codes: Indices = column.to_numpy().astype(np.int64)
    in_order = np.sort(codes)
    return codes if (in_order[1:] == in_order[:-1]).any() else None


def is_next(*codes: NDArray[Any]) -> Mask:
    """Return whether each row differs from the one before it in any of the columns."""
    mask = np.zeros(len(codes[0]), bool)
    mask[:1] = True
    for each in codes:
        mask[1:] |= each[1:] != each[:-1]
    return mask
