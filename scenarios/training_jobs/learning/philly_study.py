"""RLTune on Philly's trace, faithful and mended, against rivals: trained and judged by one call that resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policies.jobs_ppo.files import FAITHFUL, FIXED, Learned, LearnedSpec
from scenarios.runs.parallel import Jobs
from scenarios.training_jobs.learning.course import Course, Told, train
from scenarios.training_jobs.learning.explaining import ScoreTable, explain
from scenarios.training_jobs.learning.judging import BASELINES, judge, learned_choice, table_of
from scenarios.training_jobs.learning.windows import Windows, philly_cluster
from sim.jobs.jobs import JobList

TRAINING_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class PhillyStudy:
    """What is found.

    Attributes:
        tables: in Markdown, by what the windows are: `cold` (of the jobs that RLTune learns on), `whole` (cold, of the
            whole trace) and `warm` (later than what `rltune-fixed` learned on).
        explained: by policy, on the first 60 windows where it is judged.
    """

    tables: dict[str, str]
    explained: dict[str, ScoreTable | None]


def study(
    trace: JobList,
    folder: Path,
    epochs: tuple[int, int] = (65, 21),
    episodes: int = 100,
    windows: int = 200,
    processes: Jobs = 1,
    told: Told | None = None,
    on_table: Callable[[str, str], None] | None = None,
) -> PhillyStudy:
    """Train both for so many epochs of so many episodes, and judge them; what the folder has is not done again.

    Raises:
        InputError: the trace is too short, or a file there is of another training.
    """
    jobs, world = philly_cluster(trace)
    earlier, later = Windows.split(jobs, world)
    cold = Windows.as_run(jobs, world, TRAINING_JOBS)
    learned = {
        kind: train(
            Course(LearnedSpec(kind, trace="philly"), on, epochs=many, episodes=episodes),
            folder / f"{kind}.safetensors",
            processes,
            told=told,
        )
        for kind, on, many in ((FAITHFUL, cold, epochs[0]), (FIXED, earlier, epochs[1]))
    }
    tables = {}
    places = {"cold": (cold, FAITHFUL), "whole": (Windows.as_run(jobs, world), FAITHFUL), "warm": (later, FIXED)}
    for name, (where, against) in places.items():
        tables[name] = _table(learned, where, windows, against, folder / name, processes)
        if on_table is not None:
            on_table(name, tables[name])
    explained = {
        kind: explain(learned[kind], where, where.drawn(windows, 0, "judging")[:60])
        for kind, where in ((FAITHFUL, cold), (FIXED, later))
    }
    return PhillyStudy(tables, explained)


def _table(
    learned: dict[str, Learned], where: Windows, windows: int, against: str, folder: Path, processes: Jobs
) -> str:
    contenders = [*BASELINES, *(learned_choice(kind, each) for kind, each in learned.items())]
    judged = judge(contenders, where, where.drawn(windows, 0, "judging"), folder, jobs=processes)
    return table_of({contender.name: waits for contender, waits in judged}, against)
