"""A front end to the tiny network on a real loopback port, for tests: its clients, and what it counts."""

from __future__ import annotations

import http.client
import json
import threading
import time  # noqa: TID251 - clients wait for a server
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from prometheus_client.parser import text_string_to_metric_families

from hw.clock import RunClock
from hw.frontend.admission import Limits
from hw.frontend.client_requests import Clients, ServingStats
from hw.frontend.connections import Journal, listen
from hw.frontend.inference_protocol import Served
from hw.frontend.ingress import Ingress, IngressSpec, ingress
from hw.frontend.router_link import SlotImages, slots_of
from hw.frontend.transforms import tried
from hw.host_resources import CollectionMeter
from hw.router.interventions import Operator, Order
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing, RunProgress
from policies.interfaces import AccuracyPrior, RewardWeights, RouterConfig
from policies.vocabulary import Choice, ClusterView, GoalSet
from tests.hw.tiny import TINY, Wanderer, router

WIDTHS = (1.0, 0.5, 1.0)
SLOTS = 24
CARRIED_IMG_S = 100.0
TOKEN = b"a token that nobody guesses"
MODEST = b"a token that may have three images inside"
LIMITS = Limits(body_bytes=1 << 16, body_s=0.5, timeout_s=60.0, connections=128)
PATIENCE_S = 60.0
JOURNAL = Journal(lambda _: None, as_json=False)
IMAGES = torch.randn(SLOTS, 1, 8, 8, generator=torch.Generator().manual_seed(3))


class Gate(Wanderer):
    """Decides as often as it is let to, where it is closed; a loop that decides nothing answers nobody."""

    def __init__(self) -> None:
        super().__init__(WIDTHS)
        self.allowed = threading.Semaphore(0)
        self.is_open = True

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        if not self.is_open:
            self.allowed.acquire()
        return super().choose(view, rng)

    def open(self) -> None:
        self.is_open = True
        self.allowed.release(1000)

    def close(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.is_open = False


@dataclass
class Frontend:
    """A server that clients are connected to.

    Attributes:
        end: how far the router's loop was at its end.
        ticks: one for each time that it has told how far it is.
        orders: that the operator gives, and the loop has not taken yet.
    """

    port: int
    grpc: str
    gate: Gate
    cluster: HardwareCluster
    stop: threading.Event
    end: Future[RunProgress]
    traffic: list[Clients]
    stats: ServingStats
    ticks: list[int]
    ingress: Ingress
    orders: deque[Order]
    before: dict[tuple[str, ...], float] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {TOKEN.decode()}", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def infer(
        self, images: torch.Tensor, by: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        tensor = {"name": "image", "shape": list(images.shape), "datatype": "FP32", "data": images.flatten().tolist()}
        body = json.dumps({"inputs": [tensor], **more}).encode()
        status, headers, answer = self.ask("POST", "/v2/models/tiny/infer", body, by)
        return status, headers, json.loads(answer)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """By name and values of labels."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics")[2].decode())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    def counted(self, *key: str) -> float:
        return self.metrics().get(key, 0.0) - self.before.get(key, 0.0)

    def until(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, "it never came"
            time.sleep(0.01)

    def passes(self) -> int:
        """Images that have passed a segment; a loop that decides.

        An answer is on its way before its pass is counted, at the end of that turn of the loop.
        """
        wanted = len(self.ticks) + 2
        self.until(lambda: len(self.ticks) >= wanted)
        return sum(server.images for server in self.stats.servers)

    def decides_and_is_not_ready(self) -> bool:
        self.gate.allowed.release()
        return self.ask("GET", "/v2/health/ready")[0] == 503

    def until_inside(self, count: int) -> None:
        self.until(lambda: self.metrics()["slimsched_images_inside",] == count)


@contextmanager
def open_frontend(cluster: HardwareCluster, transform: str = "", limits: Limits = LIMITS) -> Iterator[Frontend]:
    """Open and ready; drained in the end."""
    served = Served("tiny", (1, 8, 8), 3, TINY.classes, (2.0,), (4.0,), SLOTS, transform=transform)
    served = tried(served) if transform else served
    names = [server.name for server in cluster.servers]
    config: RouterConfig = replace(router(len(names)), shed_expired=True)
    gate, stop, stats = Gate(), threading.Event(), ServingStats(names, config, JOURNAL, CollectionMeter())
    routing = Routing(gate, np.random.default_rng(1), RewardWeights(), AccuracyPrior({(1.0,) * 3: 0.9}))
    spec = IngressSpec(served, limits, {b"another one of many": SLOTS, TOKEN: 2 * SLOTS, MODEST: 3}, CARRIED_IMG_S)
    with (
        listen("127.0.0.1", 0, 0, is_safe=True) as listening,
        ThreadPoolExecutor(1) as hands,
        ingress(spec, listening, SLOTS, JOURNAL) as open_ingress,
    ):
        images, made = SlotImages(slots_of(open_ingress.arena, served.shape), served.shape), list[Clients]()
        ticks: list[int] = []
        orders = deque[Order]()

        def given() -> Iterator[Order]:
            while orders:
                yield orders.popleft()

        def traffic(_: object, __: object, clock: RunClock) -> Clients:
            made.append(Clients(open_ingress, images, stop.is_set, clock))
            return made[0]

        def tell(progress: RunProgress) -> None:
            ticks.append(progress.now_ns)
            open_ingress.port.post(stats.status(progress))

        def serve() -> RunProgress:
            operator = Operator(orders=given)
            try:
                return cluster.serve(traffic, config, routing, (GoalSet(),), stats, tell, lambda _: None, operator)
            finally:
                open_ingress.port.close()

        assert listening.grpc is not None
        port, end = listening.http.getsockname()[1], hands.submit(serve)
        frontend = Frontend(port, listening.grpc, gate, cluster, stop, end, made, stats, ticks, open_ingress, orders)
        frontend.until(lambda: frontend.end.done() or frontend.ask("GET", "/v2/health/ready")[0] == 200)
        try:
            yield frontend
        finally:
            stop.set()
            frontend.end.result(PATIENCE_S)
