"""Who is let in waits no longer than his class, the client and the server's limit allow, and is counted once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.door.admission import Admission, Limits
from hw.door.bridge import Bridge
from hw.door.journal import Journal, Sparing
from hw.door.metrics import Metrics
from hw.door.protocol import Answer, Request, RequestClass, RequestError, Served
from hw.door.words import Status

CLASSES = (RequestClass("gold", 0.25, 0.0), RequestClass("bronze", 0.05), RequestClass("tin"))
SERVED = Served("m", (1, 2, 2), 2, 0, (), (), 8, request_classes=CLASSES)
STATUS = Status(True, 0, 0, 0, 0.0, 0.0, 0, ())


class Door:
    """An admission in front of a bridge that hands images to `submit`."""

    def __init__(self, submit: Callable[..., asyncio.Future[Any]]) -> None:
        self.told: list[str] = []
        self.metrics = Metrics(lambda: SERVED, lambda: 0, lambda: None)
        bridge: Any = SimpleNamespace(
            served=SERVED, is_ready=True, is_draining=False, inside=0, submit=submit, status=STATUS
        )
        bridge.is_late = MethodType(Bridge.is_late, bridge)
        journal, page = Sparing(Journal(self.told.append, as_json=True)), SimpleNamespace(note=lambda _: None)
        limits: Any = replace(Limits(), timeout_s=0.5)
        self.admission = Admission(bridge, self.metrics, page, limits, {}, 1e9, journal)  # type: ignore[arg-type]

    def ask(self, service_class: int, timeout_ns: int | None = None, version: str = "") -> list[Answer]:
        request = Request("", np.zeros((1, 1, 2, 2), np.float32), {}, timeout_ns, service_class)
        return asyncio.run(self.admission.answers(request, b"", {}, version))

    def counted(self) -> dict[str, float]:
        """Images, by what became of them."""
        found = re.findall(
            r"^slimsched_images_(\w+)_total(?:\{.*\})? (\S+)", self.metrics.text().decode(), re.MULTILINE
        )
        return {name: float(value) for name, value in found if float(value)}


def never(*_: Any) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def at_once(*_: Any) -> asyncio.Future[Any]:
    found = never()
    found.set_result([Answer(1, (1.0, 1.0), b"", "B", 7, 0.5)])
    return found


@pytest.mark.parametrize(
    ("service_class", "timeout_ns", "waited"),
    [(0, None, "0.25"), (1, None, "0.05"), (2, None, "0.5"), (1, 20_000_000, "0.02"), (0, 10**12, "0.25")],
)
def test_the_shortest_of_three_times_counts(service_class: int, timeout_ns: int | None, waited: str) -> None:
    handed: list[int] = []
    door = Door(lambda _, until_ns, __: handed.append(until_ns) or never())  # type: ignore[func-returns-value]
    with pytest.raises(RequestError, match=f"no answer within {waited} s") as error:
        door.ask(service_class, timeout_ns)
    assert (error.value.status, handed) == (504, [round(float(waited) * 1e9)])
    assert door.counted() == {"arrived": 1, "failed": 1}


def test_who_asks_for_a_version_that_is_gone_is_counted_as_failed() -> None:
    door = Door(at_once)
    with pytest.raises(RequestError, match="version A is served no more, but B"):
        door.ask(2, version="A")
    assert door.counted() == {"arrived": 1, "failed": 1}
    assert door.ask(2, version="B")[0].label == 1
    assert door.counted() == {"arrived": 2, "failed": 1, "answered": 1}


def test_a_request_is_late_by_its_own_class() -> None:
    """Gold's limit is 0: all of it is late; tin has none."""
    door = Door(at_once)
    door.ask(2)
    assert door.told == []
    door.ask(0)
    assert [json.loads(line)["event"] for line in door.told] == ["request_late"]
    assert b'slimsched_class_images_expected_right_total{class="gold"} 0.5' in door.metrics.text()
