"""The stage `train`: the PPO router, trained in simulation and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from policies.ppo.checkpoint import read
from policies.ppo.router import PPORouter
from policies.ppo.training import CHECKPOINT
from scenarios.files.documents import read_checked
from scenarios.job.job import Job
from scenarios.learn.train import require_compiled, score_router, train_world
from scenarios.metrics.result import Score, Simulator
from scenarios.runs.effort import learning_warning
from scenarios.show.result import format_score
from scenarios.terminal.progress import Progress
from scenarios.world.world import World
from sim.compiled import UnsupportedScenario

ENGINE_WORDS: dict[Simulator, str] = {
    "compiled": "the compiled engine (`slimsched train --engine simpy` trains on the reference)",
    "simpy": "the reference, SimPy and torch",
}


def make_router(job: Job, world: World, engine: Simulator | None) -> Score:
    """Train PPO in simulation, and score it on the reference.

    Args:
        engine: None takes a router that is there already, or trains on the compiled engine; where that can't, on
            the reference, and says so.

    Raises:
        UnsupportedScenario: the engine was asked for, and can't.
    """
    seed, target = job.scenario.seed, job.folder / "score.json"
    if engine == "compiled":
        require_compiled(world)
    if engine is None and job.folder.stage("train", _training_hash(job, "simpy")).is_done:
        chosen: Simulator = "simpy"
    else:
        chosen = engine or able_engine(job, world)
    fingerprint = _training_hash(job, chosen)

    def work() -> Sequence[Path]:
        job.say(f"train: on {ENGINE_WORDS[chosen]}")
        if warning := learning_warning(job.scenario.training.decisions, job.scenario.name, chosen):
            job.say(warning)
        router, scalars = train_router(job, world, fingerprint, engine=chosen)
        score = score_router(world, router, seed, chosen)
        with job.folder.making(job.trained):
            router.save(job.trained)
        job.folder.write_json(job.folder / "training.json", scalars)
        job.folder.write_json(target, score)
        if engine is None:  # who asked for one tells the score as the result
            job.say(f"train: {format_score(score)}")
        return [job.trained, job.folder / "training.json", target]

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
    folder = job.folder.working(job.folder / "training" / fingerprint[:12])
    checkpoint, history = folder / CHECKPOINT, folder / "scalars.json"
    if job.folder.drop_damaged(checkpoint, read) or job.folder.drop_damaged(history, read_checked):
        checkpoint.unlink(missing_ok=True)  # the one goes on from where the other is
        history.unlink(missing_ok=True)
    scalars: list[dict[str, float]] = read_checked(history) if history.exists() else []
    decisions = world.scenario.training.decisions
    with Progress("train the router", decisions, unit="decision", quiet=job.quiet) as progress:

        def tell(done: int, found: Mapping[str, float]) -> None:
            while scalars and scalars[-1]["decisions"] >= done:
                scalars.pop()  # what was logged after the checkpoint that an interrupted training goes on from
            scalars.append({"decisions": float(done), **found})
            job.folder.write_partial(history, scalars)
            progress.set(done)

        router = train_world(world, folder, seed=job.scenario.seed, engine=engine, on_progress=tell)
    return router, scalars
