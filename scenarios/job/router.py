"""The stage that trains the router."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from policies.ppo.router import PPORouter
from scenarios.files.documents import read_json, write_json
from scenarios.learn.train import train_world
from scenarios.metrics.result import Simulator
from scenarios.terminal.progress import Progress
from scenarios.world.world import World


def train_router(
    world: World,
    folder: Path,
    *,
    seed: int,
    decisions: int | None = None,
    resume: bool = True,
    quiet: bool = False,
    engine: Simulator = "simpy",
) -> tuple[PPORouter, list[dict[str, float]]]:
    """Train PPO for a world; returns the router and the scalars of every update."""
    scalars: list[dict[str, float]] = []
    history = folder / "scalars.json"
    if resume and history.is_file():
        scalars = read_json(history)
    wanted = decisions or world.scenario.training.decisions
    with Progress("train the router", wanted, unit="decision", quiet=quiet) as progress:

        def tell(done: int, found: Mapping[str, float]) -> None:
            while scalars and scalars[-1]["decisions"] >= done:
                scalars.pop()  # what was logged after the checkpoint that an interrupted training goes on from
            scalars.append({"decisions": float(done), **found})
            write_json(history, scalars)
            progress.set(done)

        router = train_world(
            world, folder, seed=seed, decisions=decisions, resume=resume, engine=engine, on_progress=tell
        )
    return router, scalars
