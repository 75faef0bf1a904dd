"""Which rows of a Slurm log are one job: attempts of a requeued one, parts of a heterogeneous one; and which are
none."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.logs.rows import ATTEMPT, OPEN, REQUEUED, UNSTARTED, Tally

LONGEST_BETWEEN_S: Final = 30 * 86400.0  # a requeued job is back in the queue at once; ids come again much later
LONGEST_SUBMIT_S: Final = 10.0  # of all parts of a heterogeneous job
NOT_ENDED: Final = "not yet ended"
NOT_STARTED: Final = "never started"
RAN_NOT: Final = "ran for 0 s"
ATTEMPTS: Final = "further attempts of requeued jobs, joined with their first"
PARTS: Final = "further parts of heterogeneous jobs, joined with their first: GPUs are summed"
OTHERS: Final = "have the id of a job of another user, account, cluster or time: jobs of their own, named ID#2"
_WRITTEN: Final = ("submit_s", "submitted_s", "start_s", "run_s", "requested_s", "gpus", "attempts")
Indices = NDArray[np.int64]


def joined(words: Any, numbers: dict[str, NDArray[Any]], tally: Tally, *, sums: bool) -> tuple[Any, Indices]:
    """The words, in which ids differ, and the row that stands for each job; its numbers become the whole job's.

    Args:
        words, numbers: all rows' columns, with those of `Attempts`.
        sums: a job's run time is that of all its attempts together; else that of the last one.
    """
    ids = codes_of(words["job_id"].combine_chunks())
    if ids is None:
        return words.drop_columns(["whose"]), _alone(numbers, tally)
    for name in _WRITTEN:
        numbers[name] = numbers[name].copy()  # Arrow's own can't be written
    whose = words["whose"].combine_chunks().indices.to_numpy()
    words = words.drop_columns(["whose"])
    submitted_s, start_s, part, line = (numbers[name] for name in ("submitted_s", "start_s", "part", "line"))
    is_attempt = numbers["kind"] <= REQUEUED  # of two exports the later one has the end of what was open in the former
    order = np.lexsort((line, part, start_s, is_attempt, submitted_s, whose, ids))
    order = _without_twins(order, (ids, whose), numbers, tally)
    words, order = _whole(order, (ids, whose), numbers, words, tally)
    order, jobs = _ended(order, np.cumsum(_begins(order, (ids, whose), numbers)) - 1, numbers, tally)
    order = _of_attempts(order, jobs, numbers, tally, sums)
    return _named_apart(words, ids, order, numbers, tally), order


def _alone(numbers: dict[str, NDArray[Any]], tally: Tally) -> Indices:
    """The rows that are jobs, where no two rows have one id."""
    kind, line, has_run = numbers["kind"], numbers["line"], numbers["run_s"] > 0
    tally.leave_out(NOT_ENDED, line[(kind == OPEN) | (kind == REQUEUED)])
    tally.leave_out(NOT_STARTED, line[kind == UNSTARTED])
    tally.leave_out(RAN_NOT, line[(kind == ATTEMPT) & ~has_run])
    return np.flatnonzero((kind == ATTEMPT) & has_run)


def codes_of(job_id: Any) -> Indices | None:
    """A number for each id that differs; None where all do. Ids that are plain integers are their own numbers.

    A table of all texts would take some 140 bytes a job for a moment.
    """
    is_number = compute.match_substring_regex(job_id, r"^(0|[1-9]\d{0,17})$")  # 007 is not 7
    column = job_id.cast(pyarrow.int64()) if compute.all(is_number).as_py() else job_id.dictionary_encode().indices
    codes: Indices = column.to_numpy().astype(np.int64)
    in_order = np.sort(codes)
    return codes if (in_order[1:] == in_order[:-1]).any() else None


def is_next(*codes: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each is another than the one before it, in any of the columns."""
    mask = np.zeros(len(codes[0]), bool)
    mask[:1] = True
    for each in codes:
        mask[1:] |= each[1:] != each[:-1]
    return mask


def _without_twins(
    order: Indices, keys: tuple[Indices, Indices], numbers: dict[str, NDArray[Any]], tally: Tally
) -> Indices:
    """Attempts of one id that came and began at one time are one, written twice."""
    times = (numbers[name][order] for name in ("submitted_s", "start_s", "part"))
    is_attempt = numbers["kind"][order] <= REQUEUED
    is_twin = ~is_next(*(key[order] for key in keys), *times) & is_attempt
    is_twin[1:] &= is_attempt[:-1]
    tally.leave_out("an attempt that an earlier row has", numbers["line"][order[is_twin]])
    return np.asarray(order[~is_twin], np.int64)


def _whole(
    order: Indices, keys: tuple[Indices, Indices], numbers: dict[str, NDArray[Any]], words: Any, tally: Tally
) -> tuple[Any, Indices]:
    """Parts of a heterogeneous job come into the queue together, attempt by attempt: the first stands for them."""
    part, submitted_s = numbers["part"], numbers["submitted_s"]
    if not len(rows := order[part[order] >= 0]):
        return words, order
    is_first = is_next(*(key[rows] for key in keys))
    is_first[1:] |= (np.diff(part[rows]) <= 0) | (np.diff(submitted_s[rows]) > LONGEST_SUBMIT_S)
    begins, first = np.flatnonzero(is_first), rows[is_first]
    for name, of_all in (("gpus", np.add), ("run_s", np.maximum), ("requested_s", np.fmax)):
        numbers[name][first] = of_all.reduceat(numbers[name][rows], begins)
    kinds = [
        "|".join(sorted({kind for text in texts for kind in text.split("|") if kind}))
        for texts in np.split(words["gpu_types"].take(pyarrow.array(rows)).to_numpy(), begins[1:])
    ]
    words = _replaced(words, "gpu_types", first, kinds)
    tally.note(PARTS, numbers["line"][rows[~is_first]])
    return words, order[~np.isin(order, rows[~is_first])]


def _begins(order: Indices, keys: tuple[Indices, Indices], numbers: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Where another job begins: an attempt of the same one came into the queue when the former had ended."""
    submitted_s = numbers["submitted_s"][order]
    is_attempt = numbers["kind"][order] <= REQUEUED
    ended_s = np.where(is_attempt, (numbers["start_s"] + numbers["run_s"])[order], submitted_s)
    after_s = submitted_s[1:] - ended_s[:-1]
    begins = is_next(*(key[order] for key in keys))
    begins[1:] |= ~((after_s >= 0) & (after_s <= LONGEST_BETWEEN_S))
    return begins


def _ended(order: Indices, jobs: Indices, numbers: dict[str, NDArray[Any]], tally: Tally) -> tuple[Indices, Indices]:
    """The attempts of jobs that have ended, and the job of each; a job whose last row is open, or went back, has
    not."""
    kind, line = numbers["kind"][order], numbers["line"][order]
    is_last = np.append(jobs[1:] != jobs[:-1], True)
    is_open = np.isin(kind[is_last], (REQUEUED, OPEN))[jobs]
    tally.leave_out(NOT_ENDED, line[(kind == OPEN) | (is_open & (kind != UNSTARTED))])
    tally.leave_out(NOT_STARTED, line[kind == UNSTARTED])
    is_kept = ~is_open & (kind <= REQUEUED)
    return order[is_kept], jobs[is_kept]


def _of_attempts(order: Indices, jobs: Indices, numbers: dict[str, NDArray[Any]], tally: Tally, sums: bool) -> Indices:
    """The last attempt of each job stands for it."""
    if not len(order):
        return order
    begins = np.flatnonzero(is_next(jobs))
    ends = np.append(begins[1:], len(order)) - 1
    first, last = order[begins], order[ends]
    run_s = numbers["run_s"][order]
    ran_s = np.add.reduceat(run_s, begins)
    counted_s = ran_s if sums else run_s[ends]
    has_run = counted_s > 0
    is_kept = np.repeat(has_run, ends - begins + 1)
    tally.leave_out(RAN_NOT, numbers["line"][order[~is_kept]])
    is_again = is_kept & ~is_next(jobs)
    tally.note(ATTEMPTS, numbers["line"][order[is_again]])
    if is_again.any():
        earlier_s = float(((ran_s - run_s[ends]) * numbers["gpus"][last])[has_run].sum())
        how = "counted in (--attempts last leaves them out)" if sums else "left out (--attempts sum counts them in)"
        tally.tell(f"{earlier_s / 3600:,.0f} GPU-hours of attempts before the last are {how}")
    begun_s = np.where(run_s > 0, numbers["start_s"][order], np.inf)  # an attempt of 0 s was no begin
    numbers["start_s"][last] = np.minimum.reduceat(begun_s, begins)
    numbers["attempts"][last] = np.add.reduceat(numbers["attempts"][order], begins)
    numbers["run_s"][last] = counted_s
    for name in ("submit_s", "submitted_s"):
        numbers[name][last] = numbers[name][first]
    return np.asarray(last[has_run], np.int64)


def _named_apart(words: Any, ids: Indices, order: Indices, numbers: dict[str, NDArray[Any]], tally: Tally) -> Any:
    """With ids of their own for jobs whose id an earlier one has."""
    is_first = is_next(ids[order])
    count = np.arange(len(order))
    number = count - np.maximum.accumulate(np.where(is_first, count, 0))
    others = order[~is_first]
    if not len(others):
        return words
    tally.note(OTHERS, numbers["line"][others])
    texts = words["job_id"].take(pyarrow.array(others)).to_pylist()
    return _replaced(
        words, "job_id", others, [f"{text}#{n + 1}" for text, n in zip(texts, number[~is_first], strict=True)]
    )


def _replaced(words: Any, name: str, rows: Indices, texts: list[str]) -> Any:
    """With other texts in some rows of a column."""
    column = words[name].combine_chunks().cast(pyarrow.large_string())
    mask = np.zeros(len(column), bool)
    mask[rows] = True
    in_order = pyarrow.array(texts, pyarrow.large_string()).take(pyarrow.array(np.argsort(rows)))
    return words.set_column(
        words.column_names.index(name), name, compute.replace_with_mask(column, pyarrow.array(mask), in_order)
    )
