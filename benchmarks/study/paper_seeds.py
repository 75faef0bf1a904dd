"""The paper's PPO by several seeds of training: is it as fast as a router that stays put?

    python -m benchmarks paper    # trains what runs/ lacks; docs/data/paper-seeds.csv and tables of docs/paper-map.md

Random routing is overloaded in the paper's experiment, so every router that is not reproduces Tables IV and V. A router
that stays put learns nothing: the check that can fail is to be no slower, and no less accurate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import slimsched
from benchmarks.marked import commit_here
from benchmarks.study.pages import number, rows_of, table_header, table_row, yes
from benchmarks.study.paper import HEAVY, RELAXED, PaperRow
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.bundled_files import PPO
from scenarios.runs.simulated_runs import simulate_metrics

RUNS: Final = (300, 301)  # seeds that neither training nor tuning uses
RANDOM: Final = "random"
NARROWEST: Final = "`sticky` at 0.25"
WIDEST: Final = "`sticky`, full width"
REFERENCES: Final = {RANDOM: "random", NARROWEST: "fixed:0.25,0.25,0.25,0.25", WIDEST: "sticky"}
CLOSE_PCT: Final = 5.0  # allowed excess of the mean latency over the router that stays put
POINTS: Final = 0.05  # differences of accuracy that count as equal
FIGURES: Final = ("latency_ms", "latency_std_ms", "energy_j", "energy_std_j", "accuracy_pct")


@dataclass(frozen=True)
class Weights:
    """Weights of the reward.

    Attributes:
        staying: the router that stays put at the accuracy that they require.
        asked: the paper's results with them; None if it has no figures.
    """

    scenario: str
    staying: str
    asked: PaperRow | None = None


WEIGHTS: Final = {
    "heavy": Weights("paper", NARROWEST, HEAVY),
    "relaxed": Weights("paper-relaxed", WIDEST, RELAXED),
    "latency": Weights("paper-latency", NARROWEST),
}


def make_frame(scenarios: Path, runs: Path, seeds: Sequence[int]) -> pd.DataFrame:
    """Train what `runs` lacks, and return a row a reference and training: `FIGURES` on `RUNS`, changes against both."""
    # the others differ only in the reward
    experiment = load_experiment(scenarios / f"{WEIGHTS['heavy'].scenario}.yaml")
    rows = [{"router": label, **measure(experiment, router, router)} for label, router in REFERENCES.items()]
    for kind, weights in WEIGHTS.items():
        for seed in seeds:
            path, out = scenarios / f"{weights.scenario}.yaml", runs / f"{weights.scenario}-{seed}"
            file = slimsched.train(path, out=out, changes={"seed": seed}).routers[0].path
            rows.append({"router": kind, "seed": seed, **measure(experiment, str(file), PPO)})
    return with_changes(pd.DataFrame(rows))


def measure(experiment: Experiment, router: str, name: str) -> dict[str, float]:
    """Simulate one router; returns means over `RUNS` of `FIGURES` (deviations are over a run's images)."""
    figures = []
    for seed in RUNS:
        result: Any = simulate_metrics(experiment, experiment.router(router), name, seed, engine="compiled")
        latency, energy = result["latency_s"], result["energy_j"]
        times_ms = [np.nan if each is None else 1000 * each for each in (latency["mean"], latency["std"])]
        figures.append([*times_ms, energy["mean"], energy["std"], 100 * result["expected_accuracy"]])
    return dict(zip(FIGURES, np.mean(np.array(figures, float), axis=0).tolist(), strict=True))


def with_changes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their changes against random routing and their weights' router that stays put."""
    by_router = frame[frame["seed"].isna()].set_index("router")
    frame = frame.assign(
        latency_against_random_pct=100 * (frame["latency_ms"] / by_router.loc[RANDOM, "latency_ms"] - 1),
        energy_against_random_pct=100 * (frame["energy_j"] / by_router.loc[RANDOM, "energy_j"] - 1),
    )
    staying = frame["router"].map({kind: weights.staying for kind, weights in WEIGHTS.items()})
    staying_ms, staying_pct = (staying.map(by_router[name]) for name in ("latency_ms", "accuracy_pct"))
    return frame.assign(
        latency_against_staying_pct=100 * (frame["latency_ms"] / staying_ms - 1),
        points_against_staying=frame["accuracy_pct"] - staying_pct,
    )


def checks(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the criterion of each weights' trainings, and the numbers that meet and miss it.

    A router without figures misses it.
    """
    return [
        {"asked": asked, "reached": int(is_met.sum()), "of": len(is_met), "missed": list(is_met.index[~is_met])}
        for asked, is_met in _asked(frame)
    ]


def _asked(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series[bool]]]:
    for kind, weights in WEIGHTS.items():
        of = frame[frame["router"] == kind].set_index("seed")
        if (row := weights.asked) is not None:
            assert None not in (row.latency_change_pct, row.energy_change_pct), "the paper states both"
            changes = f"latency {row.latency_change_pct:+g} %, energy {row.energy_change_pct:+g} % against random"
            yield (
                f"{kind}: Table {row.table} ({changes}, {row.accuracy_pct:g} % accurate)",
                (of["latency_against_random_pct"] <= row.latency_change_pct)
                & (of["energy_against_random_pct"] <= row.energy_change_pct)
                & (of["accuracy_pct"] >= row.accuracy_pct - POINTS),
            )
        yield (
            f"{kind}: latency at most {CLOSE_PCT:+g} % against {weights.staying}, no less accurate",
            (of["latency_against_staying_pct"] <= CLOSE_PCT) & (of["points_against_staying"] >= -POINTS),
        )


def text(frame: pd.DataFrame) -> str:
    """Return the frame and its checks as Markdown, with the command and the commit."""
    heads = ["router", "seed", "latency (std), ms", "energy (std), J", "accuracy %", "latency against random"]
    lines = [table_header([*heads, "against staying put"])]
    for row in rows_of(frame):
        seed = "" if row["seed"] is None else f"{row['seed']:.0f}"
        stems = (("latency", "ms"), ("energy", "j"))
        spread = [f"{number(row[f'{stem}_{unit}'])} ({number(row[f'{stem}_std_{unit}'])})" for stem, unit in stems]
        changes = [(row["latency_against_random_pct"], 2), (row["latency_against_staying_pct"], 1)]
        cells = ["" if change is None else f"{number(change, digits, signed=True)} %" for change, digits in changes]
        lines.append(table_row([row["router"], seed, *spread, number(row["accuracy_pct"], 2), *cells]))
    lines += ["", table_header(["asked", "trainings that have it", "all", "seeds that miss it"])]
    for check in checks(frame):
        missed = ", ".join(f"{seed:.0f}" for seed in check["missed"])
        reached = f"{check['reached']} of {check['of']}"
        lines.append(table_row([check["asked"], reached, yes(check["reached"] == check["of"]), missed]))
    where = f"`python -m benchmarks paper` at commit {commit_here()[:8]}; means of the runs {RUNS[0]} and {RUNS[1]}:"
    return "\n".join([where, "", *lines])
