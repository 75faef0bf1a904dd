"""A canary while drawn worlds serve: all laws hold, and a request keeps to servers of one version, whatever dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from hw.frontend.inference_protocol import Canary
from hw.router.interventions import NewModel, Order
from hw.router.run_requests import PlannedTraffic
from hw.worker.lanes import WorkerSpec
from policies.run_records import RunRecord
from policies.vocabulary import CANARY, STABLE, ModelChanged, RequestArrived, RequestCompleted, SendMicroBatch
from tests.swarm.mix import Mix
from tests.swarm.play import Drawer, play_mix
from tests.swarm.world import World

SHARE = 0.3
BEGUN, PROMOTED, TAKEN_BACK = "begun", "promoted", "taken back"


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request arrives with the version that the ingress would draw."""
    take, canary = PlannedTraffic.take, Canary("new", (), SHARE)

    def marked(self: PlannedTraffic, now_ns: int) -> tuple[RequestArrived, int]:
        event, came_ns = take(self, now_ns)
        return structs.replace(event, version=int(canary.takes(event.request, 0))), came_ns

    monkeypatch.setattr(PlannedTraffic, "take", marked)


def trial(mix: Mix, told: list[str]) -> RunRecord:
    """Play a world in which the last server is a canary's after an eighth, and which it ends after a half."""
    last = mix.router.servers - 1

    def orders(mix: Mix, world: World, specs: Sequence[WorkerSpec]) -> Callable[[], Iterable[Order]]:
        world.laws.may_wait = True
        began_ns = world.event_queue.now_ns
        event = PROMOTED if mix.seed % 2 else TAKEN_BACK
        starts = {index: partial(world.start, index, spec) for index, spec in enumerate(specs)}
        ended = {index: start for index, start in starts.items() if (index == last) != (event == PROMOTED)}
        due = [
            (8, BEGUN, NewModel({last: starts[last]}, ModelChanged((), (last,)), *outcomes(BEGUN), None, Drawer(mix))),
            (2, event, NewModel(ended, ModelChanged(()), *outcomes(event))),
        ]

        def take() -> Iterable[Order]:
            if due and world.event_queue.now_ns > began_ns + mix.horizon_ns // due[0][0]:
                _, event, order = due[0]
                if event == BEGUN or told == [BEGUN]:  # one after another; without a beginning there is no end
                    due.pop(0)
                    yield order

        return take

    def outcomes(event: str) -> tuple[Callable[[], object], Callable[[str], object]]:
        return partial(told.append, event), lambda reason: told.append(f"{event} failed: {reason}")

    return play_mix(mix, orders=orders).records[0]


def followed(record: RunRecord) -> tuple[Counter[int], int]:
    """Return the completed requests by version, and how many of them had been drawn for the other one.

    Raises:
        AssertionError: a request has segments of two versions, or is said to be of another.
    """
    canary: tuple[int, ...] = ()
    drawn, begun, completed, others = dict[int, int](), dict[int, int](), Counter[int](), 0
    for step in record.log:
        if step.core != "router":
            continue
        match step.event:
            case ModelChanged(_, servers):
                canary = servers
            case RequestArrived(request, _, _, version):
                drawn[request] = version if canary else STABLE
        for command in step.commands:
            match command:
                case SendMicroBatch(micro_batch):
                    version = CANARY if micro_batch.server in canary else STABLE
                    for request in micro_batch.requests:
                        if micro_batch.key.segment == 1:
                            begun[request] = version
                        assert begun[request] == version, (request, micro_batch)
                case RequestCompleted(request, _, _, _, version):
                    assert version == begun[request], request
                    completed[version] += 1
                    others += drawn[request] != version
    return completed, others


def test_a_request_meets_one_version_whatever_dies() -> None:
    """Most are served by the version that they were drawn for; both versions serve in most worlds."""
    ends, both, completed, others = Counter[str](), 0, Counter[int](), 0
    for seed in range(40):
        mix = replace(Mix.draw(seed), is_far=False, runs=1)
        if mix.router.servers == 1:
            continue
        told: list[str] = []
        counts, stood_in = followed(trial(mix, told))
        ends.update(told)
        both += len(counts) == 2
        completed += counts
        others += stood_in
    assert min(ends[BEGUN], both) > 10
    assert min(ends[PROMOTED], ends[TAKEN_BACK]) > 3
    assert 0 < others < completed[CANARY] < completed[STABLE]
