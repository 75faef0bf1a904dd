"""What policy gradient adds to a searched policy: `ppo`, trained from Compass with several seeds, beside Compass.

    python -m benchmarks ppo                       # every main scenario; docs/data/ppo.csv
    python -m benchmarks ppo --only main-mmpp-10g  # one

Each serves the first runs of the scenario's comparison, which no training saw, at the setting of its one dial at which
it has the floor of accuracy on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pandas as pd

from benchmarks.grid import GridRow, Row, code_state
from benchmarks.study.candidates import FINE_TUNED, state_of
from benchmarks.study.headroom import Dialled, at_floor, rules_of
from benchmarks.study.judge import columns
from kit.documents import inputs_hash
from policies.ppo.candidate_router import KIND as PPO
from policies.registry import COMPASS
from scenarios.learn.evaluator import Evaluator, SampledRun, workers_of
from scenarios.learn.train import train_candidates
from scenarios.learn.tune import knobs_of
from scenarios.metrics.statistics import estimate
from scenarios.world.materials import load_world

RUNS: Final = 3
FIGURES: Final = {"mean": "mean_s", "p99": "p99_s"}


def points(scenarios: Sequence[Path], seeds: int, decisions: int) -> list[GridRow]:
    """A row a scenario and training, and one of Compass; raises `InputError` where a scenario is wrong."""
    rows, code = [], code_state()
    for path in scenarios:
        world = load_world(path)
        rules = [rule.model_dump_json() for rule in rules_of(path, world).values()]
        state = inputs_hash(state_of(world.scenario, ("validate_",)), code, rules)
        seeds_of = [None, *range(seeds)]
        rows += [
            GridRow({"scenario": path.stem, "seed": seed, "decisions": decisions}, state, path) for seed in seeds_of
        ]
    return rows


def measure(_: None, point: GridRow) -> Row:
    """By router what it has on each run."""
    world, seed = load_world(point.given), point.key["seed"]
    routers: dict[str, Dialled] = {}
    if seed is None:
        routers |= {label: rule for label, rule in rules_of(point.given, world).items() if label.startswith(COMPASS)}
    else:
        with TemporaryDirectory() as folder:
            spec = train_candidates(world, Path(folder), seed=seed, decisions=point.key["decisions"])
        routers[PPO] = spec
    runs = [SampledRun(each) for each in world.scenario.compare.seeds[:RUNS]]
    with workers_of() as workers:
        evaluator = Evaluator(world, knobs_of(world), workers)
        scores = {label: at_floor(rule, evaluator, runs) for label, rule in routers.items()}
    names = (*FIGURES.values(), "accuracy")
    return {
        "routers": {
            label: {name: float(np.mean([getattr(score, name) for score in each])) for name in names}
            for label, each in scores.items()
        }
    }


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """A row a scenario: Compass as it ships and fine-tuned, `ppo`, and its change against both over its trainings."""
    table = []
    for name in dict.fromkeys(row["scenario"] for row in rows):
        of = [row for row in rows if row["scenario"] == name]
        compass = next(row["routers"] for row in of if row["seed"] is None)
        trained = [row["routers"][PPO] for row in of if row["seed"] is not None]
        row: Row = {"scenario": name, "trainings": len(trained), "decisions": of[0]["decisions"]}
        for stem, key in FIGURES.items():
            values = [each[key] for each in trained]
            row |= {f"{label}_{stem}_ms": 1000 * each[key] for label, each in compass.items()}
            row |= columns(f"{PPO}_{stem}_ms", estimate([1000 * value for value in values]))
            for label, short in ((COMPASS, "shipped"), (FINE_TUNED, "tuned")):
                if label in compass:
                    changes = [100 * (value / compass[label][key] - 1) for value in values]
                    row |= columns(f"{stem}_against_{short}_pct", estimate(changes))
        row["accuracy_pct"] = 100 * float(np.mean([each["accuracy"] for each in trained]))
        table.append(row)
    return pd.DataFrame(table)
