"""Real servers that are drained while they serve: nothing is lost or tried again, and they may be taken away."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hw.networks.slimresnet import SlimResNet
from hw.router.cluster import HardwareCluster
from policies.faults import DRAINED, WORKER_DIED, Slowness
from policies.records import RunRecord
from policies.vocabulary import NS_PER_S, SendBlock, ServerDraining, ServerUp
from tests.hw.test_faults import _cluster, _run

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    with _cluster(path, 2) as running:
        yield running


class Operator:
    """Drains server 0 at a look, hears what is said, and kills the agent of whoever may be taken away.

    Args:
        drains_at: at which look.
        returns_after: that many looks later it is returned; never by default.
        kills: what was said by then.
    """

    def __init__(
        self, cluster: HardwareCluster, drains_at: int = 1, returns_after: int = 10**9, kills: str = "may be taken away"
    ) -> None:
        self.said: list[str] = []
        self._agent = cluster.slots[0].agent
        self._looks = 0
        self._from, self._until = drains_at, drains_at + returns_after
        self._kills = kills

    def wish(self) -> frozenset[int]:
        """What is to be drained now."""
        self._looks += 1
        return frozenset({0}) if self._from <= self._looks < self._until else frozenset()

    def hear(self, text: str) -> None:
        """A line for people."""
        self.said.append(text)
        if self._kills and self._kills in text:
            os.kill(self._agent.pid, signal.SIGKILL)

    def told(self, words: str) -> int:
        """How many lines have these words."""
        return sum(words in line for line in self.said)


def _serve(cluster: HardwareCluster, model: SlimResNet, operator: Operator, *faults: Any, **options: Any) -> RunRecord:
    return _run(cluster, model, faults, drained=operator.wish, say=operator.hear, **options)


def _sent(record: RunRecord, server: int) -> list[int]:
    """When blocks were sent there."""
    return [
        step.now_ns
        for step in record.log
        for command in step.commands
        if isinstance(command, SendBlock) and command.block.server == server
    ]


def _wishes(record: RunRecord) -> list[tuple[int, bool]]:
    """When the core was told."""
    return [(step.now_ns, step.event.is_draining) for step in record.log if isinstance(step.event, ServerDraining)]


def _tries(record: RunRecord) -> Counter[tuple[str, int]]:
    return Counter((request.status, request.retries) for request in record.requests)


def test_a_server_is_drained_under_load_and_taken_away(cluster: HardwareCluster, model: SlimResNet) -> None:
    """All complete at the first try; the agent's death costs nothing. The next run does not wait for it."""
    operator = Operator(cluster, drains_at=4)
    busy = [Slowness(server, 0, NS_PER_S * 3 // 4, 30.0) for server in (0, 1)]  # with blocks, when the wish comes
    record = _serve(cluster, model, operator, *busy, seconds=1.5)
    assert _tries(record) == {("completed", 0): len(record.requests)}
    ((drained_ns, _),) = _wishes(record)
    assert max(_sent(record, 0)) < drained_ns < max(_sent(record, 1))
    assert [(down.server, down.reason, down.is_planned) for down in record.downtimes] == [
        (0, DRAINED, True),
        (0, WORKER_DIED, True),
    ]
    assert operator.told("server0: is drained since") == operator.told("server0: is empty at") == 1
    assert operator.told("as planned; it was drained, and a new worker starts when it is returned") == 1

    absent = Operator(cluster, kills="")
    record = _serve(cluster, model, absent, seconds=0.5)
    assert _tries(record) == {("completed", 0): len(record.requests)}
    assert {step.event.server for step in record.log if isinstance(step.event, ServerUp)} == {1}
    assert absent.told("and it is not there") == 1
    assert [down.up_ns for down in record.downtimes if down.reason == WORKER_DIED] == [None]

    record = _serve(cluster, model, Operator(cluster, drains_at=10**9), seconds=0.5)
    assert _sent(record, 0)
    assert record.downtimes == ()
