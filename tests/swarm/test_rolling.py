"""A new model while drawn worlds serve: all laws hold, and no request meets two versions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from hw.router.interventions import NewModel, Order, Rolling
from hw.worker.lanes import Fitting, WorkerSpec
from policies.vocabulary import ModelChanged, RunBatch
from tests.swarm.mix import Mix
from tests.swarm.play import Drawer, play_mix
from tests.swarm.world import Process, World

NEW = " of the new model"


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[int, Counter[bool]]:
    """By request: how often a worker of the old model began a pass with it, and one of the new."""
    begun: dict[int, Counter[bool]] = defaultdict(Counter)
    fit = Process.fit

    def watched(self: Process, *given: object) -> Fitting:
        fitting = fit(self, *given)  # type: ignore[arg-type]
        run = fitting.lanes.run

        def noted(command: RunBatch) -> None:
            for request in command.requests:
                begun[request][self.spec.name.endswith(NEW)] += 1
            run(command)

        fitting.lanes.run = noted  # type: ignore[method-assign]
        return fitting

    monkeypatch.setattr(Process, "fit", watched)
    return begun


@pytest.fixture(autouse=True)
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a new model takes over, nobody of the old one counts as up."""
    switch = Rolling.switch

    def watched(self: Rolling) -> NewModel:
        assert [server._run.up for server in self._servers] == [{}] * len(self._servers)
        return switch(self)

    monkeypatch.setattr(Rolling, "switch", watched)


def roll(mix: Mix, told: list[str]) -> None:
    """Play a world with a new model on its way."""

    def orders(mix: Mix, world: World, specs: Sequence[WorkerSpec]) -> Callable[[], Iterable[Order]]:
        world.laws.may_wait = True
        left = [world.event_queue.now_ns + mix.horizon_ns // 4]
        starts = [partial(world.start, index, replace(spec, name=spec.name + NEW)) for index, spec in enumerate(specs)]

        def due() -> Iterable[Order]:
            if left and world.event_queue.now_ns > left[0]:
                left.clear()
                took_over = partial(told.append, "took over")
                yield NewModel(dict(enumerate(starts)), ModelChanged(()), took_over, told.append, Drawer(mix))

        return due

    play_mix(mix, orders=orders)


def test_no_request_meets_two_versions(versions: dict[int, Counter[bool]]) -> None:
    """Whatever dies meanwhile; where the new model can't serve, the old one does."""
    ends = Counter[str]()
    both = 0
    for seed in range(24):
        versions.clear()
        told: list[str] = []
        roll(replace(Mix.draw(seed), is_far=False, runs=1), told)
        ends.update(told)
        mixed = [request for request, count in versions.items() if len(count) == 2]
        took_over = told == ["took over"]
        is_new = {version for count in versions.values() for version in count}
        both += is_new == {True, False}
        assert took_over or True not in is_new, seed
        assert len(told) <= 1
        assert mixed == [], seed
    assert ends["took over"] > 7
    assert both > 4
