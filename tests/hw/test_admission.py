"""Who is let in waits no longer than his class, the client and the server's limit allow, and is counted once."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.frontend.admission import Admission, Limits
from hw.frontend.connections import Journal, Sparing
from hw.frontend.http_app import App
from hw.frontend.inference_protocol import Answer, Outcome, Request, RequestClass, RequestError, Served
from hw.frontend.router_link import Bridge, FailedError, Status
from hw.frontend.traffic_metrics import Metrics
from policies.router_queue import REFUSED

CLASSES = (RequestClass("gold", 0.25, 0.0), RequestClass("bronze", 0.05), RequestClass("tin"))
SERVED = Served("m", (1, 2, 2), 2, 0, (), (), 8, request_classes=CLASSES)
STATUS = Status(True, 0, 0, 0, 0.0, 0.0, 0, ())


class Frontend:
    """An admission in front of a bridge that hands images to `submit`."""

    def __init__(self, submit: Callable[..., asyncio.Future[Any]]) -> None:
        self.told: list[str] = []
        self.metrics = Metrics(lambda: SERVED, lambda: 0, lambda: None, lambda: 0.0)
        bridge: Any = SimpleNamespace(
            served=SERVED,
            is_ready=True,
            is_draining=False,
            inside=0,
            inside_of=Counter(),
            submit=submit,
            status=STATUS,
            heard_s=0.1,
        )
        bridge.is_late = MethodType(Bridge.is_late, bridge)
        self.bridge = bridge
        journal, page = Sparing(Journal(self.told.append, as_json=True)), SimpleNamespace(note=lambda *_: None)
        limits: Any = replace(Limits(), timeout_s=0.5)
        transforms: Any = None
        self.admission = Admission(bridge, self.metrics, page, limits, {}, 1e9, journal, transforms)  # type: ignore[arg-type]

    def ask(self, service_class: int, timeout_ns: int | None = None, version: str = "") -> Outcome:
        request = Request("", np.zeros((1, 1, 2, 2), np.float32), {}, timeout_ns, service_class)
        return asyncio.run(self.admission.answers(request, b"", {}, version))

    def counted(self) -> dict[str, float]:
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
    frontend = Frontend(lambda _, until_ns, *__: handed.append(until_ns) or never())  # type: ignore[func-returns-value]
    with pytest.raises(RequestError, match=f"no answer within {waited} s") as error:
        frontend.ask(service_class, timeout_ns)
    assert (error.value.status, handed) == (504, [round(float(waited) * 1e9)])
    assert frontend.counted() == {"arrived": 1, "failed": 1}


def test_frontend_is_ready_while_its_routers_last_message_is_recent() -> None:
    """Without a message for 2.5 s the frontend is not ready, but still accepts requests."""
    frontend = Frontend(at_once)
    assert frontend.admission.is_ready
    frontend.bridge.heard_s = 2.5
    assert not frontend.admission.is_ready
    assert frontend.ask(0).version == "B"


def failed_by(reason: str) -> Callable[..., asyncio.Future[Any]]:
    def failed(*_: Any) -> asyncio.Future[Any]:
        found = never()
        found.set_exception(FailedError(reason))
        return found

    return failed


@pytest.mark.parametrize(
    ("submit", "version", "words", "status", "counted"),
    [
        (at_once, "A", "version A is served no more, but B", 404, "failed"),
        (failed_by(REFUSED), "", "more could not be answered within the p99 latency promised", 429, "refused"),
        (failed_by("no_prediction"), "", "scores: not finite", 400, "failed"),
    ],
)
def test_failed_request_gets_the_reason_and_is_counted_once(
    submit: Callable[..., asyncio.Future[Any]], version: str, words: str, status: int, counted: str
) -> None:
    """Scores of an image of values that are finite and huge are the client's own, and have a label of their own."""
    frontend = Frontend(submit)
    with pytest.raises(RequestError, match=words) as error:
        frontend.ask(2, version=version)
    assert error.value.status == status
    assert frontend.counted() == {"arrived": 1, counted: 1}
    label = 'images_failed_total{reason="no_prediction"} 1.0'
    assert (label in frontend.metrics.text().decode()) == (status == 400)


def test_a_fault_of_ours_is_one_line_and_one_answer() -> None:
    """In the protocol's form, and counted; the next request is served."""

    def broken(*_: Any) -> asyncio.Future[Any]:
        raise ZeroDivisionError("a fault")

    frontend, sent = Frontend(broken), list[dict[str, Any]]()
    app = App(frontend.admission, frontend.metrics, None, Limits())  # type: ignore[arg-type]
    tensor = {"name": "image", "shape": [1, *SERVED.shape], "datatype": "FP32", "data": [0.0] * prod(SERVED.shape)}
    body = json.dumps({"inputs": [tensor]}).encode()

    asked = iter([{"type": "http.request", "body": body}])

    async def receive() -> dict[str, Any]:
        return next(asked, None) or await never()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"/v2/models/{SERVED.name}/infer", "headers": []}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"]) == {"error": "internal error; see the server's log"}
    (line,) = frontend.told
    assert re.search('"event":"request_fault","error":"ZeroDivisionError: a fault","at":"test_admission.py:', line)
    assert 'requests_total{code="500"} 1.0' in frontend.metrics.text().decode()


def test_a_request_is_late_by_its_own_class() -> None:
    """Gold's limit is 0: all of it is late; tin has none."""
    frontend = Frontend(at_once)
    frontend.ask(2)
    assert frontend.told == []
    frontend.ask(0)
    assert [json.loads(line)["event"] for line in frontend.told] == ["request_late"]
    assert b'slimsched_class_images_expected_right_total{class="gold"} 0.5' in frontend.metrics.text()
