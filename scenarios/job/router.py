"""The stages `train` and `train-KIND`: the routers that a scenario's own run makes, trained in simulation and scored.

`ppo` learns by gradients (`scenarios.learn.ppo`); rules (`tuned:KIND`) by direct search over whole
runs (`scenarios.learn.tune`): all with the same settings, runs and floor of accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from kit.checkpoint import read
from kit.documents import read_json, write_json
from kit.memo import Memo
from policies.ppo.router import CHECKPOINT, PPORouter
from scenarios.files.made_routers import PPO, made_name, score_file, training_file
from scenarios.job.job import ScenarioJob
from scenarios.learn.train import require_one_class, require_trainable, score_router
from scenarios.learn.tune import knobs_of, tune_world
from scenarios.learn.tuned_files import announced, save_tuned, tuned_text
from scenarios.metrics.result import Score
from scenarios.show.result import format_score
from scenarios.terminal.progress import Progress
from scenarios.world.routers import MADE_WITH
from scenarios.world.world import World

SCORES = "scores.jsonl"  # of a direct search, so far


def make_routers(
    job: ScenarioJob, world: World, kinds: Sequence[str], *, says_scores: bool = False
) -> dict[str, Score]:
    """Make the routers of these kinds; returns what each was scored, by kind.

    Args:
        says_scores: print the score of what learned by gradients once it is trained; not if the caller has other
            results to show.

    Raises:
        InputError: the compiled engine, on which routers are trained, can't do what the scenario asks for.
        FloorError: no setting of a kind keeps the accuracy that is asked for.
    """
    return {kind: make_ppo(job, world, says_scores) if kind == PPO else make_tuned(job, world, kind) for kind in kinds}


def make_tuned(job: ScenarioJob, world: World, kind: str) -> Score:
    """Tune a rule by direct search, and score it on both engines."""
    given = job.scenario
    target, path = job.folder / score_file(kind), job.made(kind)
    length = (given.duration_s, given.warmup_s)
    tuning = given.tuning.model_dump(mode="json")
    fingerprint = job.fingerprint(*job.world_parts(is_training=True), tuning, length, given.seed, kind)

    def work() -> Sequence[Path]:
        require_trainable(world)
        memo = Memo(job.folder / "training" / fingerprint[:12] / SCORES, fingerprint)
        knobs = knobs_of(world)
        with announced(world, kind, knobs, say=job.say, quiet=job.quiet) as tell:
            tuned = tune_world(world, kind, knobs, on_progress=tell, memo=memo)
        job.say(f"train: {tuned_text(tuned)}")
        save_tuned(path, tuned, world, given.name, is_of_a_run=True)
        name = made_name(kind)
        score = score_router(world, lambda: world.router(name, job.folder.path), name, given.seed)
        history = [{"decisions": float(done), "objective": cost} for done, cost in tuned.history if isfinite(cost)]
        write_json(job.folder / training_file(kind), history)
        write_json(target, score)
        return [path, job.folder / training_file(kind), target]

    job.stage(f"train-{kind}", fingerprint, work)
    document: Score = job.folder.read_json(target.name)
    return document


def make_ppo(job: ScenarioJob, world: World, says_score: bool = False) -> Score:
    """Train `ppo` in simulation, and score it on both engines."""
    given = job.scenario
    target, path = job.folder / score_file(PPO), job.made(PPO)
    length = (given.duration_s, given.warmup_s)  # of what slices are taken from, and of the run that scores
    training = given.training.model_dump(mode="json")
    fingerprint = job.fingerprint(*job.world_parts(is_training=True), training, length, given.seed, PPO)

    def work() -> Sequence[Path]:
        require_trainable(world)
        require_one_class(given)
        router, scalars = train_router(job, world, fingerprint)
        score = score_router(world, lambda: router, PPO, given.seed)
        router.save(path, made_by={MADE_WITH: dict(world.made_with)})
        write_json(job.folder / training_file(PPO), scalars)
        write_json(target, score)
        if says_score:
            job.say(f"train: {format_score(score)}")
        return [path, job.folder / training_file(PPO), target]

    job.stage(f"train-{PPO}", fingerprint, work)
    document: Score = job.folder.read_json(target.name)
    return document


def train_router(job: ScenarioJob, world: World, fingerprint: str) -> tuple[PPORouter, list[dict[str, float]]]:
    """Train for a world; returns the router and the scalars of every update."""
    from scenarios.learn.ppo import train_world  # torch and numba are slow to import

    folder = job.folder / "training" / fingerprint[:12]
    checkpoint, history = folder / CHECKPOINT, folder / "scalars.json"
    if job.folder.drop_damaged(checkpoint, read) or job.folder.drop_damaged(history, read_json):
        checkpoint.unlink(missing_ok=True)  # the one resumes from where the other is
        history.unlink(missing_ok=True)
    scalars: list[dict[str, float]] = read_json(history) if history.exists() else []
    decisions = world.scenario.training.decisions
    with Progress("train the router", decisions, unit="decision", quiet=job.quiet) as progress:

        def tell(done: int, found: Mapping[str, float]) -> None:
            while scalars and scalars[-1]["decisions"] >= done:
                scalars.pop()  # what was logged after the checkpoint that an interrupted training resumes from
            scalars.append({"decisions": float(done), **found})
            write_json(history, scalars)
            progress.set(done)

        router = train_world(world, folder, seed=job.scenario.seed, on_progress=tell)
    return router, scalars
