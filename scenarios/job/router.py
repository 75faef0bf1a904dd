"""The stages `train` and `train-KIND`: the routers that a scenario's own run makes, trained in simulation and scored.

PPO learns by gradients (`scenarios.learn.train`); Tide and other rules (`tuned:KIND`) by direct search over
whole runs (`scenarios.learn.tune`): all with the same settings, runs and floor of accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from kit.checkpoint import read
from kit.documents import read_json, write_json
from kit.parallel import Jobs
from policies.ppo.router import PPORouter
from policies.ppo.training import CHECKPOINT
from scenarios.files.made_routers import PPO, made_name, score_file, training_file
from scenarios.job.job import Job
from scenarios.learn.course import MOST_THREADS
from scenarios.learn.expected import announced
from scenarios.learn.kept_scores import KeptScores
from scenarios.learn.train import require_compiled, score_router, train_world
from scenarios.learn.tune import tune_world
from scenarios.learn.tuned_files import save_tuned, with_control
from scenarios.learn.tuning import knobs_of, train_command, tuned_text
from scenarios.metrics.result import Score, Simulator
from scenarios.show.result import format_score
from scenarios.terminal.progress import Progress
from scenarios.world.world import World
from sim.compiled import UnsupportedScenario

SCORES = "scores.jsonl"  # of a direct search, so far
ENGINE_WORDS: dict[Simulator, str] = {
    "compiled": "the compiled engine (`slimsched train --engine simpy` trains on the reference)",
    "simpy": "the reference, SimPy and torch",
}


def make_routers(
    job: Job,
    world: World,
    engine: Simulator | None,
    kinds: Sequence[str],
    *,
    control: bool = False,
    jobs: Jobs = MOST_THREADS,
) -> dict[str, Score]:
    """Make the routers of these kinds; what each was scored, by kind.

    Args:
        engine: see `make_ppo`; direct search runs on the compiled engine.
        control: rules keep the goals that the operator asks for in mid-run.
        jobs: where direct search runs.

    Raises:
        UnsupportedScenario: an engine can't do what the scenario asks for.
        FloorError: no setting of a kind keeps the accuracy that is asked for.
    """
    return {
        kind: make_ppo(job, world, engine) if kind == PPO else make_tuned(job, world, kind, control, jobs)
        for kind in kinds
    }


def make_tuned(job: Job, world: World, kind: str, control: bool = False, jobs: Jobs = MOST_THREADS) -> Score:
    """Tune a rule by direct search, and score it on both engines."""
    given, target, path = job.scenario, job.folder / score_file(kind), job.made(kind)
    length = (given.duration_s, given.warmup_s)
    tuning = given.tuning.model_dump(mode="json")
    fingerprint = job.fingerprint(*job.world_parts(is_training=True), tuning, length, given.seed, kind, control)

    def work() -> Sequence[Path]:
        require_compiled(world)
        knobs = knobs_of(world, seed=given.seed)
        kept = job.folder / "training" / fingerprint[:12] / SCORES
        with announced(world, kind, knobs, say=job.say, quiet=job.quiet) as tell:
            found = tune_world(world, kind, knobs, on_progress=tell, kept=KeptScores(kept), jobs=jobs)
        job.say(f"train: {tuned_text(found)}")
        if control:
            found = replace(found, winner=replace(found.winner, spec=with_control(found.winner.spec)))
        save_tuned(found, world, knobs, path, train_command(given.name, kind, knobs, control=control))
        name = made_name(kind)
        score = score_router(world, lambda: world.router(name, job.folder.path), name, given.seed, "compiled")
        history = [{"decisions": float(done), "objective": cost} for done, cost in found.history if isfinite(cost)]
        write_json(job.folder / training_file(kind), history)
        write_json(target, score)
        return [path, job.folder / training_file(kind), target]

    job.stage(f"train-{kind}", fingerprint, work)
    document: Score = job.folder.read_json(target.name)
    return document


def make_ppo(job: Job, world: World, engine: Simulator | None) -> Score:
    """Train PPO in simulation, and score it on the reference.

    Args:
        engine: None takes a router that is there already, or trains on the compiled engine; where that can't, on
            the reference, and says so.

    Raises:
        UnsupportedScenario: the engine was asked for, and can't.
    """
    seed, target, path = job.scenario.seed, job.folder / score_file(PPO), job.made(PPO)
    if engine == "compiled":
        require_compiled(world)
    if engine is None and job.folder.stage("train", _training_hash(job, "simpy")).is_done:
        chosen: Simulator = "simpy"
    else:
        chosen = engine or able_engine(job, world)
    fingerprint = _training_hash(job, chosen)

    def work() -> Sequence[Path]:
        job.say(f"train: on {ENGINE_WORDS[chosen]}")
        router, scalars = train_router(job, world, fingerprint, engine=chosen)
        score = score_router(world, lambda: router, PPO, seed, chosen)
        router.save(path)
        write_json(job.folder / training_file(PPO), scalars)
        write_json(target, score)
        if engine is None:  # who asked for one tells the score as the result
            job.say(f"train: {format_score(score)}")
        return [path, job.folder / training_file(PPO), target]

    job.stage("train", fingerprint, work)
    document: Score = job.folder.read_json(target.name)
    return document


def _training_hash(job: Job, engine: Simulator) -> str:
    given = job.scenario
    length = (given.duration_s, given.warmup_s)  # of what excerpts are taken from, and of the run that scores
    training = given.training.model_dump(mode="json")
    return job.fingerprint(*job.world_parts(is_training=True), training, length, given.seed, engine)


def able_engine(job: Job, world: World) -> Simulator:
    """The compiled engine, or the reference where that can't, which is said."""
    try:
        require_compiled(world)
    except UnsupportedScenario as error:
        job.say(f"train: the compiled engine can't do {error.feature}")
        return "simpy"
    return "compiled"


def train_router(
    job: Job, world: World, fingerprint: str, *, engine: Simulator
) -> tuple[PPORouter, list[dict[str, float]]]:
    """Train PPO for a world; returns the router and the scalars of every update."""
    folder = job.folder / "training" / fingerprint[:12]
    checkpoint, history = folder / CHECKPOINT, folder / "scalars.json"
    if job.folder.drop_damaged(checkpoint, read) or job.folder.drop_damaged(history, read_json):
        checkpoint.unlink(missing_ok=True)  # the one goes on from where the other is
        history.unlink(missing_ok=True)
    scalars: list[dict[str, float]] = read_json(history) if history.exists() else []
    decisions = world.scenario.training.decisions
    with Progress("train the router", decisions, unit="decision", quiet=job.quiet) as progress:

        def tell(done: int, found: Mapping[str, float]) -> None:
            while scalars and scalars[-1]["decisions"] >= done:
                scalars.pop()  # what was logged after the checkpoint that an interrupted training goes on from
            scalars.append({"decisions": float(done), **found})
            write_json(history, scalars)
            progress.set(done)

        router = train_world(world, folder, seed=job.scenario.seed, engine=engine, on_progress=tell)
    return router, scalars
