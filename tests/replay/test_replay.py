"""Same events and times, same decisions: a log replays through fresh cores to identical commands."""

import dataclasses
import json

from hypothesis import HealthCheck, given, settings

from policies.replay import from_jsonable, replay, replay_run, to_jsonable
from policies.run_records import LoggedStep
from policies.vocabulary import RunBatch
from tests import tiny
from tests.laws.test_conservation import Scenario, scenarios


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenarios())
def test_a_stored_log_replays_to_identical_commands(scenario: Scenario) -> None:
    spec, run = scenario.cluster, scenario.run
    _, record = tiny.simulate(spec, run)
    stored = json.loads(json.dumps([to_jsonable(step) for step in map(as_data, record.log)]))
    log = [
        LoggedStep(now, core, from_jsonable(event), from_jsonable(commands)) for now, core, event, commands in stored
    ]
    assert tuple(log) == record.log
    assert replay_run(log, (), spec.router, [server.params for server in spec.servers]) == []


def as_data(step: LoggedStep) -> tuple[object, ...]:
    return (step.now_ns, step.core, step.event, step.commands)


def test_a_changed_log_parts_where_it_was_changed() -> None:
    spec = tiny.cluster()
    _, record = tiny.simulate(spec, tiny.run(spec, tiny.poisson_s(200, 0.5), 0.5, keep_log=True))
    log = list(record.log)
    number = next(i for i, step in enumerate(log) if any(isinstance(c, RunBatch) for c in step.commands))
    log[number] = dataclasses.replace(log[number], commands=())
    divergence = replay(log, spec.router, [server.params for server in spec.servers])
    assert divergence is not None
    assert divergence.step == number
