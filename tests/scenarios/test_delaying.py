"""What a router's file says of waiting is what its runs do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kit.random_streams import stream
from policies.rules.rule_params import BatchingDelaySpec, DelayingRouter, FixedRule, LadderRule
from policies.vocabulary import BatchingDelayRule
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.experiment.scenario_routers import maker_of
from scenarios.files.router_files import read_rule, write_rule
from sim.compiled.compiled_simulation import CompiledSimulation

SCENARIO = Path("scenarios/main-mmpp-10g.yaml")
EAGER = BatchingDelaySpec(requests=(8,) * 4, wait_s=(2e-3,) * 4)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load_experiment(SCENARIO)


def finished_ns(experiment: Experiment, name: str, limit_ns: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    cluster = replace(experiment.cluster, router=replace(experiment.cluster.router, max_batching_delay_ns=limit_ns))
    spec = experiment.run_spec(3, duration_s=1.0, detail=False)
    simulation = CompiledSimulation(cluster, spec)
    context = replace(experiment.context, config=cluster.router)
    router = maker_of(name, experiment.scenario, experiment.device_names, None, "routers").make(context)
    simulation.finish(router, stream(3, "router"))
    return np.asarray(simulation.columns().requests.finished_ns)


def test_batching_delay_in_a_rule_file_is_applied(experiment: Experiment, tmp_path: Path) -> None:
    """A rule with a delay changes the run, unless no request may be delayed."""
    rule, ladder = tmp_path / "held.rule.yaml", tmp_path / "ladder.rule.yaml"
    write_rule(rule, FixedRule(placement="sticky", batching_delay=EAGER))
    write_rule(ladder, LadderRule(batching_delay=EAGER))
    for path, before in ((rule, "fixed:1,1,1,1@sticky"), (ladder, "ladder")):
        held = finished_ns(experiment, str(path), 16_000_000)
        assert (held != finished_ns(experiment, before, 16_000_000)).any()
        assert (finished_ns(experiment, str(path), 0) == finished_ns(experiment, before, 0)).all()
    made = read_rule(rule).make(experiment.context)
    assert isinstance(made, DelayingRouter)
    assert made.batching_delay == BatchingDelayRule((8,) * 4, (2_000_000,) * 4)
