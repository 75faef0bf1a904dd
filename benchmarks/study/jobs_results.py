"""RLTune's page: it is trained, mended and taken apart on a trace, and set beside baselines that learn nothing.

    python -m benchmarks jobs --trace philly.parquet

Trained and judged is what the folder lacks; the page is written last. The trace is put on RLTune's Philly cluster. Its
clusters of Helios and Alibaba have drawn jobs: their GPUs and run times are of the trace's shape.
"""

from __future__ import annotations

import json
import sys
import time  # noqa: TID251 - how long an epoch took
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.study.explaining import explain
from benchmarks.study.jobs_page import APART, COLD, MAXIMA_OF, PROGRAMMES, Judged, Lesson, Study, make_pages
from jobs.generate import ARRIVALS, Drawing, Law, draw
from jobs.learning.judging import BASELINES, Numbers, judge
from jobs.learning.learned import FAITHFUL, FIXED, Learned, LearnedSpec, NamedPolicy, read_learned
from jobs.learning.learner import JobUpdateStats
from jobs.learning.training import LENGTH, TRAINING_JOBS, Told, TrainingConfig, Windows, train
from jobs.policies.cluster import NodeGroup
from jobs.sim.world import JobWorld
from jobs.trace import JobTrace, read_trace
from kit.chance import stream
from kit.documents import inputs_hash, read_checked, write_checked
from kit.errors import InputError

DRAWN_JOBS: Final = 20_000
BURSTS: Final = Law("mmpp", ARRIVALS["mmpp"])
EXPLAINED: Final = 60  # windows
PHILLY: Final = "philly"
HELIOS: Final = tuple(NodeGroup(nodes, 8, vc=f"vc{number}") for number, nodes in enumerate((6, 4, 3, 2, 2)))
ALIBABA: Final = tuple(
    NodeGroup(nodes, gpus, gpu_type)
    for gpu_type, nodes, gpus in (("t4", 8, 2), ("misc", 8, 8), ("p100", 15, 2), ("v100-16", 10, 8), ("v100-32", 8, 8))
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StudyEffort:
    """How much is done: of each training, and windows of each judgement; processes change no figure."""

    epochs: int = 25
    episodes: int = 100
    windows: int = 200
    processes: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class LearningCase:
    """A cluster with jobs, what is learned there, and the windows where it is judged, by their names."""

    name: str
    configs: Mapping[str, TrainingConfig]
    places: Mapping[str, Windows]


# --------------------------------------------------------------------------------------------------------------- plan


def cases_of(trace: JobTrace, effort: StudyEffort) -> tuple[LearningCase, ...]:
    """What is trained and judged.

    Raises:
        InputError: the trace is too short for windows.
    """
    jobs, world = philly_cluster(trace)
    philly = _case(PHILLY, jobs, world, effort)
    cold, (earlier, _) = philly.places["cold"], Windows.split(jobs, world)
    whole = Windows.as_run(jobs, world)
    philly = LearningCase(
        PHILLY,
        {**philly.configs, **ablation(philly.configs[FAITHFUL], earlier)},
        {"cold": cold, "whole": whole, "warm": philly.places["warm"]},
    )
    helios, alibaba = (_case(name, *drawn(name, trace, groups, cold.gpus), effort) for name, groups in DRAWN.items())
    return philly, helios, alibaba


DRAWN: Final[Mapping[str, tuple[NodeGroup, ...]]] = {"helios": HELIOS, "alibaba": ALIBABA}


def philly_cluster(jobs: JobTrace) -> tuple[JobTrace, JobWorld]:
    """RLTune's Philly: 16 nodes of 2 GPUs and 20 of 8; jobs of more than 4 GPUs on those of 8 alone, none on both.

    As kinds of nodes are told apart by their GPUs' type, that is what the jobs are bound to.
    """
    bound = np.where(jobs.gpus > 4, "p100x8", "").astype(object)
    world = JobWorld((NodeGroup(16, 2, "p100x2"), NodeGroup(20, 8, "p100x8")))
    return replace(jobs, gpu_types=bound), world


def _case(name: str, jobs: JobTrace, world: JobWorld, effort: StudyEffort) -> LearningCase:
    earlier, later = Windows.split(jobs, world)
    cold = Windows.as_run(jobs, world, TRAINING_JOBS)
    configs = {
        kind: TrainingConfig(LearnedSpec(kind, trace=name), on, epochs=effort.epochs, episodes=effort.episodes)
        for kind, on in ((FAITHFUL, cold), (FIXED, earlier))
    }
    return LearningCase(name, configs, {"cold": cold, "warm": later})


def ablation(config: TrainingConfig, earlier: Windows) -> dict[str, TrainingConfig]:
    """`rltune-faithful` with one thing changed at a time, one of them in two ways; with all it is `rltune-fixed`."""
    cold, waiting = config.windows, replace(config, spec=replace(config.spec, queueing="choice"))
    return {
        "waiting": waiting,
        "waiting-lam-1": replace(waiting, knobs=replace(config.knobs, lam=1.0)),
        "reward": replace(config, reward="steps"),
        "against": replace(config, against="first-fit"),
        "value": replace(config, value="means"),
        "warm": replace(config, windows=replace(cold, first=max(cold.first, LENGTH), warm=LENGTH)),
        "earlier": replace(config, windows=replace(earlier, warm=0)),
    }


def drawn(name: str, like: JobTrace, groups: tuple[NodeGroup, ...], like_gpus: int) -> tuple[JobTrace, JobWorld]:
    """Jobs with the GPUs of another list's, and mean and spread of their run times; each is bound to one group of
    nodes, as likely as that has GPUs. They come in bursts: steady arrivals leave most windows without a queue.

    Args:
        like_gpus: of the cluster on which the other list has the load that is drawn.

    Raises:
        InputError: no job of that list fits into the smallest group.
    """
    gpus = np.array([group.nodes * group.gpus for group in groups])
    like_s = like.run_s[like.gpus <= gpus.min()]
    if not len(like_s):
        raise InputError("trace", "gpus", f"no job has {gpus.min()} GPUs or fewer: no cluster can be drawn for them")
    sizes, counts = np.unique(like.gpus[like.gpus <= gpus.min()], return_counts=True)
    mean_s = float(like_s.mean())
    law = Law("lognormal", {"mean_s": mean_s, "cv2": float(like_s.var()) / mean_s**2})
    weights = dict(zip(sizes.tolist(), counts.astype(float).tolist(), strict=True))
    seed = list(DRAWN).index(name)
    load = like.load_on(like_gpus)
    drawing = Drawing(DRAWN_JOBS, int(gpus.sum()), load, law, BURSTS, weights, alike=0.0, seed=seed)
    jobs = draw(drawing)
    of = stream(seed, "jobs:groups").choice(len(groups), len(jobs), p=gpus / gpus.sum())
    vcs, types = (np.array([getattr(group, key) for group in groups], object)[of] for key in ("vc", "gpu_type"))
    return replace(jobs, vc=vcs, gpu_types=types), JobWorld(groups)


# --------------------------------------------------------------------------------------------------------------- work


def make_page(trace: Path, out: Path, docs: Path, effort: StudyEffort, say: Say | None = None) -> None:
    """Everything that the folder lacks, then the data, the page and its picture.

    Raises:
        InputError: the trace is no trace or too short, or the folder is of another trace or effort.
        WorkError: training diverged, or a process was killed.
    """
    say = say or _say
    jobs = read_trace(trace)
    with _of_file(trace):
        cases = cases_of(jobs, effort)
    _require_same(out, jobs)
    learned = _train(cases, out, effort, say)
    judged = _judge(cases, learned, out, effort, say)
    study = Study(
        trace=trace.name,
        jobs=jobs,
        sampled_jobs=DRAWN_JOBS,
        load=jobs.load_on(cases[0].places["cold"].gpus),
        gpus=cases[0].places["cold"].gpus,
        effort={key: value for key, value in asdict(effort).items() if key != "processes"},
        judged=judged,
        lessons=_lessons(cases, learned, out, effort, say),
    )
    make_pages(study, docs)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _of_file(trace: Path) -> Iterator[None]:
    """What is wrong with the jobs is told of their file."""
    try:
        yield
    except InputError as error:
        raise InputError(str(trace), error.key, error.problem) from None


def _require_same(out: Path, jobs: JobTrace) -> None:
    """A training's file does not know its jobs; so the folder does."""
    path = out / "trace.json"
    columns = [getattr(jobs, name).tolist() for name in ("submit_s", "run_s", "gpus")]
    state = inputs_hash(*columns, DRAWN_JOBS, asdict(BURSTS))
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_checked(path, state)
    elif read_checked(path) != state:
        raise InputError(str(out), "", "was begun with another trace: give another folder as --out")


def _train(cases: tuple[LearningCase, ...], out: Path, effort: StudyEffort, say: Say) -> dict[tuple[str, str], Learned]:
    configs = [(case.name, name, config) for case in cases for name, config in case.configs.items()]
    learned = {}
    for number, (case, name, config) in enumerate(configs, start=1):
        head = f"training {number} of {len(configs)}: {case}, {name}"
        say(head)
        clock = _Clock(_times(out, case, name), effort, head, say)
        learned[case, name] = _trained(config, _file(out, case, name), effort.processes, clock.told)
    return learned


def _trained(config: TrainingConfig, path: Path, processes: int, told: Told) -> Learned:
    """All epochs, or until it has fallen apart: its epochs take ever longer, and nothing would be learned in them."""
    for epochs in range(1, config.epochs + 1):
        learned = train(replace(config, epochs=epochs), path, processes, told=told)
        if has_fallen_apart(history_in(path)[:epochs]):
            break
    return learned


def history_in(path: Path) -> list[dict[str, float]]:
    """What each epoch of a training came to: `JobUpdateStats`' fields, `score` and `base_score`."""
    return list(json.loads(read_learned(path)[2]["training"])["history"])


def has_fallen_apart(history: Sequence[Mapping[str, float]]) -> bool:
    """Whether jobs waited `APART` times as long as under the base policy, and as in the first epoch, beside it; in each
    of the last three epochs. One who stalls is as far behind a base policy that does not from the beginning."""
    ratios = [epoch["score"] / max(epoch["base_score"], 1.0) for epoch in history]
    return len(ratios) > 3 and min(ratios[-3:]) > APART * max(ratios[0], 1.0)


def _file(out: Path, case: str, name: str) -> Path:
    return out / case / f"{name}.safetensors"


def _times(out: Path, case: str, name: str) -> Path:
    return _file(out, case, name).with_suffix(".times.json")


class _Clock:
    """Keeps how long each epoch took: a training's file has the same bytes wherever it was made, so it can't."""

    def __init__(self, path: Path, effort: StudyEffort, head: str, say: Say) -> None:
        self._path, self._effort, self._head, self._say = path, effort, head, say
        self._since_s = time.perf_counter()

    def told(self, epoch: int, stats: JobUpdateStats, own: float, base: float) -> None:
        now_s = time.perf_counter()
        taken = {"epoch": epoch, "wall_s": now_s - self._since_s, "processes": self._effort.processes}
        known: list[Any] = read_checked(self._path) if self._path.is_file() else []
        write_checked(self._path, [*(each for each in known if each["epoch"] < epoch), taken])
        self._since_s = now_s
        scores = f"mean wait {own:,.0f} s, of the base policy {base:,.0f} s"
        self._say(f"{self._head}, epoch {epoch + 1} of {self._effort.epochs}: {scores}")


def _judge(
    cases: tuple[LearningCase, ...],
    learned: Mapping[tuple[str, str], Learned],
    out: Path,
    effort: StudyEffort,
    say: Say,
) -> list[Judged]:
    wanted = [
        (case, place, score, candidate)
        for case in cases
        for place in case.places
        for score in ("wait", "utilisation")
        for candidate in _candidates(case, place, learned)
        if score == "wait" or (place in COLD and candidate.name in MAXIMA_OF)
    ]
    scores: dict[tuple[str, str, str], dict[str, Numbers]] = {}
    for number, (case, place, score, candidate) in enumerate(wanted, start=1):
        say(f"judging {number} of {len(wanted)}: {case.name}, {place}, {candidate.name} ({score})")
        where = case.places[place]
        path = out / case.name / place / score / f"{candidate.name}.json"
        judged = _kept(path, _judged_of(candidate, where, effort), partial(_judged, candidate, where, effort, score))
        scores.setdefault((case.name, place, score), {})[candidate.name] = np.array(judged)
    return [
        Judged(
            case.name,
            place,
            scores[case.name, place, "wait"],
            {name: -each for name, each in scores.get((case.name, place, "utilisation"), {}).items()},
            np.array([where.jobs.run_s[start : start + where.length].mean() for start in _starts(where, effort)]),
        )
        for case in cases
        for place, where in case.places.items()
    ]


def _judged(candidate: NamedPolicy, where: Windows, effort: StudyEffort, score: str) -> list[float]:
    ((_, scores),) = judge([candidate], where, _starts(where, effort), jobs=effort.processes, score=score)
    return scores.tolist()  # type: ignore[no-any-return]


def _judged_of(candidate: NamedPolicy, where: Windows, effort: StudyEffort) -> str:
    """A hash of all that scores rest on."""
    learned = None if candidate.learned is None else candidate.learned.content()
    columns = [getattr(where.jobs, name).tolist() for name in ("submit_s", "run_s", "gpus")]
    bounds = [where.length, where.warm, *_starts(where, effort)]
    return inputs_hash(asdict(candidate.policy), learned, bounds, repr(where.world), *columns)


def _kept(path: Path, made_of: str, work: Callable[[], Any]) -> Any:
    """What work finds, or found when it was made of the same."""
    if path.is_file() and (kept := read_checked(path))["inputs"] == made_of:
        return kept["found"]
    result = work()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checked(path, {"inputs": made_of, "found": result})
    return result


def _starts(where: Windows, effort: StudyEffort) -> list[int]:
    return [int(start) for start in where.drawn(effort.windows, 0, "judging")]


def _candidates(case: LearningCase, place: str, learned: Mapping[tuple[str, str], Learned]) -> list[NamedPolicy]:
    """What was taken apart is not run on the whole trace, and the programme, which takes long, only once."""
    names = [name for name in case.configs if place != "whole" or name in (FAITHFUL, FIXED)]
    programmes = PROGRAMMES if (case.name, place) == (PHILLY, "cold") else ()
    nets = {name: learned[case.name, name] for name in names}
    return [*BASELINES, *programmes, *(NamedPolicy(name, net.spec.policy, net) for name, net in nets.items())]


def _lessons(
    cases: tuple[LearningCase, ...],
    learned: Mapping[tuple[str, str], Learned],
    out: Path,
    effort: StudyEffort,
    say: Say,
) -> list[Lesson]:
    lessons = []
    for case in cases:
        for name, config in case.configs.items():
            where = case.places["warm" if name == FIXED else "cold"]
            say(f"explaining: {case.name}, {name}")
            path = _file(out, case.name, name)
            starts = _starts(where, effort)[:EXPLAINED]
            fitted = _explained(learned[case.name, name], where, starts, path.with_suffix(".table.json"))
            times_path = _times(out, case.name, name)
            times = read_checked(times_path) if times_path.is_file() else []
            lessons.append(Lesson(case.name, name, config.knobs.steps, history_in(path), times, fitted))
    return lessons


def _explained(learned: Learned, where: Windows, starts: list[int], path: Path) -> dict[str, float] | None:
    """How good a table of scores by age and GPUs is; None where nobody had a choice."""
    made_of = inputs_hash(learned.content(), starts, [where.first, where.last, where.length, where.warm])

    def work() -> dict[str, float] | None:
        table = explain(learned, where, starts)
        keys = ("r_squared", "same_choice", "decisions")
        return None if table is None else {key: float(getattr(table, key)) for key in keys}

    return _kept(path, made_of, work)  # type: ignore[no-any-return]
