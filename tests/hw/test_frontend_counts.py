"""What the ingress counts, and what it tells of the router."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.frontend.inference_protocol import Answer, RequestClass, Served
from hw.frontend.router_link import Answered, Bridge, Cancel, Failed, FailedError, ServerState, Serving, Status
from hw.frontend.traffic_metrics import Metrics

SERVED = Served("tiny", (1, 8, 8), 3, 0, (), (), 16)
SERVERS = (ServerState("a", True, 10, 250_000_000), ServerState("b", False, 0, 0))
SAID = Status(True, 3, 500_000_000, 100, 90.0, 0.8, 50_000_000, SERVERS)


def test_metrics_report_the_status_of_the_router() -> None:
    silent = Metrics(lambda: SERVED, lambda: 0, lambda: None, lambda: 0.0)
    assert b"slimsched_ready" not in silent.text()
    told = set(Metrics(lambda: SERVED, lambda: 4, lambda: SAID, lambda: 1.5).text().decode().splitlines())
    wanted = {
        "ready 1.0", "router_heard_seconds 1.5", "images_inside 4.0", "images_queued 3.0",
        "images_completed_total 100.0", "accuracy_total 90.0", "goal_accuracy 0.8", "goal_p99_seconds 0.05",
        "router_busy_seconds_total 0.5", 'server_up{server="a"} 1.0', 'server_up{server="b"} 0.0',
        'server_images_total{server="a"} 10.0', 'server_busy_seconds_total{server="a"} 0.25',
    }  # fmt: skip
    assert {f"slimsched_{line}" for line in wanted} - told == set()


def test_a_class_is_counted_by_the_accuracies_of_what_serves() -> None:
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
    assert sorted((answer.version, answer.expected) for answer in answers) == [("1", 0.8), ("2", 0.9)]
    metrics = Metrics(lambda: served, lambda: 0, lambda: None, lambda: 0.0)
    metrics.note_answered(0, answers, 0.1, 2.0)
    assert b'slimsched_class_images_expected_right_total{class="gold"} 1.7' in metrics.text()


def test_remaining_images_of_a_failed_request_are_cancelled() -> None:
    """Cancelled images count against the images of their token only until the router has released them."""
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
