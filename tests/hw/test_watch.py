"""What a look at a server tells: rates, and shares of what came meanwhile."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from hw.door.bridge import Bridge, FailedError
from hw.door.metrics import Metrics
from hw.door.protocol import Answer, RequestClass, Served
from hw.door.watch import Watch
from hw.door.words import Answered, Cancel, Failed, ServerState, Serving, Status
from kit.errors import WorkError

SERVED = Served("tiny", (1, 8, 8), 3, 0, (), (), 16)
FIRST = Status(True, 3, 0, 100, 90.0, 0.8, 50_000_000, (ServerState("a", True, 10, 0), ServerState("b", False, 0, 0)))


class Server:
    """One whose clock a test turns."""

    url = "http://here"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.status = FIRST
        self.metrics = Metrics(lambda: SERVED, lambda: 4, lambda: self.status, lambda: 0.0)
        self.watch = Watch(self, lambda: self.now_s)  # type: ignore[arg-type]

    def get(self, path: str) -> bytes:
        assert path == "/metrics"
        return self.metrics.text()

    def look_after(self, seconds: float) -> dict[str, Any]:
        self.now_s += seconds
        return self.watch.look()


def test_rates_are_of_what_came_since_the_first_look() -> None:
    server = Server()
    server.metrics.answered.inc(1000)
    server.watch.look()
    server.metrics.answered.inc(40)
    server.metrics.refused.labels("full").inc(6)
    server.metrics.refused.labels("token").inc(2)
    for seconds in (0.004, 0.004, 0.004, 0.4):
        server.metrics.seconds.observe(seconds)
    servers = (ServerState("a", True, 90, 1_000_000_000), FIRST.servers[1])
    server.status = replaced(completed=140, accuracy_sum=121.0, busy_ns=500_000_000, servers=servers)
    found = server.look_after(2.0)
    assert (found["answered_img_s"], found["refused_img_s"], found["failed_img_s"]) == (20.0, 4.0, 0.0)
    assert found["accuracy"] == pytest.approx(31 / 40)
    assert found["goal"] == {"floor": 0.8, "p99_s": 0.05}
    assert (found["is_ready"], found["inside"], found["queued"], found["router_share"]) == (True, 4, 3, 0.25)
    assert found["servers"] == [
        {"name": "a", "is_up": True, "img_s": 40.0, "share": 0.5},
        {"name": "b", "is_up": False, "img_s": 0.0, "share": 0.0},
    ]
    assert 0.002 < found["latency_s"]["p50"] <= 0.005
    assert 0.2 < found["latency_s"]["p99"] <= 0.5


def replaced(**more: Any) -> Status:
    return msgspec.structs.replace(FIRST, **more)


def test_what_is_older_than_ten_seconds_is_forgotten() -> None:
    server = Server()
    server.watch.look()
    server.metrics.answered.inc(500)
    assert server.look_after(5.0)["answered_img_s"] == 100.0
    assert server.look_after(10.0)["answered_img_s"] == 0.0


def test_another_ingress_counts_anew_and_nothing_is_below_zero() -> None:
    server = Server()
    server.metrics.answered.inc(500)
    server.watch.look()
    server.metrics = Metrics(lambda: SERVED, lambda: 0, lambda: None, lambda: 0.0)
    found = server.look_after(1.0)
    assert (found["is_ready"], found["answered_img_s"], found["accuracy"], found["servers"]) == (False, 0.0, None, [])


def test_a_class_is_counted_by_the_accuracies_of_what_serves() -> None:
    """After a new model, by its own."""
    served = Served("tiny", (2,), 1, 0, (), (), 16, "1", (RequestClass("gold"),), {(0.5,): 0.6, (1.0,): 0.8})

    async def ask() -> list[Answer]:
        """Two images: one is answered before the new model serves, in the same words."""
        words = [Answered(1, 7, (1.0,), b"", 5), Serving("2", (0.5, 0.9)), Answered(0, 7, (1.0,), b"", 5)]
        end, _ = pair = socket.socketpair()
        port: Any = SimpleNamespace(fileno=end.fileno, receive=lambda: words, post=lambda *_: None, flush=lambda: None)
        bridge = Bridge(port, np.zeros((2, 2), np.float32), served, lambda: None)
        asked = bridge.submit(np.zeros((2, 2), np.float32), 10**9)
        bridge._hear()
        answers = await asked
        asyncio.get_running_loop().remove_reader(end.fileno())
        for each in pair:
            each.close()
        return answers

    answers = asyncio.run(ask())
    assert sorted((each.version, each.expected) for each in answers) == [("1", 0.8), ("2", 0.9)]
    metrics = Metrics(lambda: served, lambda: 0, lambda: None, lambda: 0.0)
    metrics.note_class(0, answers, 0.1)
    assert b'slimsched_class_images_expected_right_total{class="gold"} 1.7' in metrics.text()


def test_what_is_left_of_a_request_that_failed_is_served_no_more() -> None:
    """Nor does it count against its token's images any longer than the router has it."""
    served = Served("tiny", (2,), 1, 0, (), (), 16)

    async def ask() -> tuple[list[object], list[int]]:
        words, said = [Failed(1, "refused"), Failed(2, "refused")], list[object]()
        end, _ = pair = socket.socketpair()
        port: Any = SimpleNamespace(fileno=end.fileno, receive=lambda: words, post=said.append, flush=lambda: True)
        bridge = Bridge(port, np.zeros((3, 2), np.float32), served, lambda: None)
        asked = bridge.submit(np.zeros((3, 2), np.float32), 10**9, token=b"its")
        inside = [bridge.inside_of[b"its"]]
        bridge._hear()
        inside.append(bridge.inside_of[b"its"])
        with pytest.raises(FailedError, match="refused"):
            await asked
        words[:] = [Failed(0, "cancelled")]
        bridge._hear()
        asyncio.get_running_loop().remove_reader(end.fileno())
        for each in pair:
            each.close()
        return said[1:], [*inside, bridge.inside_of[b"its"]]

    said, inside = asyncio.run(ask())
    assert [type(each) for each in said] == [Cancel]
    assert [sorted(each.slots) for each in said if isinstance(each, Cancel)] == [[0, 2]]
    assert inside == [3, 1, 0]


def test_other_pages_are_no_metrics() -> None:
    server = Server()
    server.get = lambda path: b"<html>"  # type: ignore[method-assign]
    with pytest.raises(WorkError, match="these are no metrics"):
        server.watch.look()
