"""A faster router is never worse, if it may wait: it could always do what the slower one does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from policies.rules.rule_params import BatchingDelaySpec, FixedRule
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.learn.evaluator import Evaluator, TuningParams

FAST_NS, SLOW_NS = 3_000, 100_000  # of a decision
TUPLE = (0.25, 0.5, 0.75, 1.0)
WAITS_S = (2e-4, 1e-3)
SIZES = (4, 8)
LIMIT_S = 8e-3
PICKED_ON, JUDGED_ON = ("pick",), ("one", "two", "three")


def drawn_experiment(seed: int, folder: Path) -> Experiment:
    """Two to four unequal GPUs on one kind of link, at 40 to 70 % of what they would carry with full batches."""
    rng = np.random.default_rng(seed)
    profiles = rng.choice(["rtx-2080-ti", "gtx-980-ti", "t4", "v100"], int(rng.integers(2, 5))).tolist()
    link = str(rng.choice(["10gbe", "25gbe", "loopback"]))
    scenario = {
        "schema": "slimsched.scenario/1",
        "name": f"drawn{seed}",
        "model": {"accuracy": str(Path("scenarios/data/models/slimresnet18-paper.accuracy.json").resolve())},
        "cluster": {
            "servers": [{"name": f"s{i}", "profile": profile, "link": link} for i, profile in enumerate(profiles)],
            "greedy": {"preload": "all", "idle_unload_s": None},
        },
        "router": {"outstanding_micro_batches": int(rng.choice([4, 16, 64])), "max_batching_delay_s": LIMIT_S},
        "workload": {"kind": "poisson", "load": float(rng.uniform(0.4, 0.7))},
        "duration_s": 1.0,
        "warmup_s": 0.1,
    }
    path = folder / "drawn.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return load_experiment(path)


def with_decisions_of(experiment: Experiment, decision_ns: int) -> Experiment:
    """Deciding takes this, and nothing else of the router's does."""
    return replace(experiment, cluster=replace(experiment.cluster, decision_ns=decision_ns, host=None))


def mean_s(course: Evaluator, batching_delay: BatchingDelaySpec | None, names: Sequence[str]) -> float:
    rule = FixedRule(placement="sticky-coming", tuple=TUPLE, batching_delay=batching_delay)
    scores = course.measure([(rule, course.trace_slice(name, 0)) for name in names])
    return float(np.mean([score.mean_s for score in scores]))


def best_mean_s(experiment: Experiment) -> float:
    """With the batching delay that does best on one run, of six, on three others."""
    batching_delays = [
        BatchingDelaySpec(requests=(size,) * 4, wait_s=(wait_s,) * 4) for size in SIZES for wait_s in WAITS_S
    ]
    batching_delays.append(BatchingDelaySpec(requests=(32,) * 4, wait_s=(WAITS_S[0],) * 4))
    with ThreadPoolExecutor(1) as workers:
        course = Evaluator(experiment, TuningParams(floor=0.0, episode_s=1.0, episodes=1), workers)
        best = min((None, *batching_delays), key=lambda batching_delay: mean_s(course, batching_delay, PICKED_ON))
        return mean_s(course, best, JUDGED_ON)


@pytest.mark.parametrize("seed", range(5))
def test_a_router_that_may_wait_is_no_slower_for_deciding_faster(seed: int, tmp_path: Path) -> None:
    experiment = drawn_experiment(seed, tmp_path)
    fast_s, slow_s = (best_mean_s(with_decisions_of(experiment, decision_ns)) for decision_ns in (FAST_NS, SLOW_NS))
    assert fast_s <= slow_s
