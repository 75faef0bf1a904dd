"""Who is let in waits no longer than his class, the client and the server's limit allow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.door.admission import Admission, Limits
from hw.door.journal import Journal, Sparing
from hw.door.metrics import Metrics
from hw.door.protocol import Request, RequestError, Served

SERVED = Served(
    "m", (1, 2, 2), 2, 0, (), (), 8, request_classes=("gold", "bronze", "tin"), deadlines_s=(0.25, 0.05, inf)
)


@pytest.mark.parametrize(
    ("service_class", "timeout_ns", "waited"),
    [(0, None, "0.25"), (1, None, "0.05"), (2, None, "0.5"), (1, 20_000_000, "0.02"), (0, 10**12, "0.25")],
)
def test_the_shortest_of_three_times_counts(service_class: int, timeout_ns: int | None, waited: str) -> None:
    async def ask() -> list[Any]:
        handed: list[int] = []

        def submit(_: Any, until_ns: int, __: int) -> asyncio.Future[Any]:
            handed.append(until_ns)
            return asyncio.get_running_loop().create_future()

        bridge: Any = SimpleNamespace(served=SERVED, is_ready=True, is_draining=False, inside=0, submit=submit)
        metrics = Metrics(lambda: SERVED, lambda: 0, lambda: None)
        journal = Sparing(Journal(lambda _: None, as_json=False))
        page: Any = None
        admission = Admission(bridge, metrics, page, replace(Limits(), timeout_s=0.5), {}, 1e9, journal)
        request = Request("", np.zeros((1, 1, 2, 2), np.float32), {}, timeout_ns, service_class)
        with pytest.raises(RequestError, match=f"no answer within {waited} s") as error:
            await admission.answers(request, b"", {})
        assert error.value.status == 504
        return handed

    assert asyncio.run(ask()) == [round(float(waited) * 1e9)]
