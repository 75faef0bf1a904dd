"""A long run with faults, on emulated devices: is the floor kept whenever the bound shows that it can be?"""

from __future__ import annotations

import signal
import threading
import time  # noqa: TID251 - servers are killed in real time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

import slimsched
from benchmarks.serving.rows import Row, row
from benchmarks.serving.stand import Server, Stand, serve
from hw.frontend.load_generator import Load, Outcome, generate
from kit.random_streams import stream
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.scenario_keys import Scenario
from scenarios.runs.fluid_bound import FluidModel

EMULATED: Final = "paper-live"
FLOOR: Final = 0.75
SHARE: Final = 0.6  # of all servers' capacity at the floor: too much for some sets of remaining servers, not for others
RESERVE: Final = 0.002  # margin of the shipped scenarios: a mean over a window varies about the long-run value
WINDOW_S: Final = 60.0  # or a sixth of all the time
FAULT_S: Final = 30.0  # from one fault to the next
HANGS: Final = 0.3  # of the faults; the others kill
LOOK_S: Final = 0.2
IMAGES: Final = 4  # in a request


@dataclass
class Ups:
    """Servers in service over time, from polling the metrics some times a second.

    Attributes:
        states: (time, names of servers that were up), ascending.
        fault_s: time of the last fault; a server observed down after it was down since then.
    """

    states: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    fault_s: float = 0.0

    def look(self, server: Server) -> None:
        """Record the present state."""
        up = frozenset(key[1] for key, value in server.metrics().items() if key[0] == "slimsched_server_up" and value)
        now_s = time.monotonic()
        if self.states and (gone := self.states[-1][1] - up):
            self.states = [(at_s, names - gone if at_s >= self.fault_s else names) for at_s, names in self.states]
        self.states.append((now_s, up))

    def sustained(self, since_s: float, until_s: float, capacity_img_s: Mapping[frozenset[str], float]) -> float:
        """Return the images that the servers in service could process in an interval."""
        times_s = [*(at_s for at_s, _ in self.states), until_s]
        spans = [
            (max(0.0, min(end_s, until_s) - max(at_s, since_s)), names)
            for (at_s, names), end_s in zip(self.states, times_s[1:], strict=True)
        ]
        return sum(span_s * capacity_img_s[names] for span_s, names in spans)


def soak(stand: Stand) -> list[Row]:
    """Measure windows of a minute: in each the mean accuracy, by the table, of the widths of its answers."""
    window_s = min(WINDOW_S, stand.seconds / 6)
    scenario = slimsched.load(EMULATED, {"slo.floor": FLOOR})
    experiment = make_experiment(scenario.keys, Path("none"))
    prior, segments = experiment.accuracy.prior, experiment.cluster.router.segments
    capacity_img_s = capacities_img_s(scenario.keys)
    rate_img_s = SHARE * max(capacity_img_s.values())
    ups, ended = Ups(), threading.Event()
    windows = list[dict[str, float]]()
    with (
        TemporaryDirectory() as folder,
        serve(EMULATED, "--router", "compass", "--set", f"slo.floor={FLOOR}", "--out", f"{folder}/run") as server,
    ):
        breaking = threading.Thread(target=_break, args=(server, ups, ended), daemon=True)
        ups.look(server)
        breaking.start()
        until_s = time.monotonic() + stand.seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            load = Load(server.url, rate_img_s, window_s, IMAGES, "", len(windows), keeps_bodies=True)
            outcome = generate(load)
            widths = _widths(outcome, segments)
            windows.append({
                "began_s": began_s,
                "offered": outcome.due * IMAGES,
                "answered": len(outcome.answered) * IMAGES,
                "refused": outcome.codes[429] * IMAGES,
                "failed": sum(count for code, count in outcome.codes.items() if code not in (200, 429)) * IMAGES,
                "accuracy": float(np.mean([prior(width) for width in widths])) if widths else 0.0,
            })  # fmt: skip
        ended.set()
        breaking.join()
    for window in windows:
        since_s = window["began_s"]
        window["sustained"] = ups.sustained(since_s, since_s + window_s, capacity_img_s)
    possible = [each for each in windows if each["offered"] <= each["sustained"]]
    reached = sum(each["accuracy"] >= FLOOR - RESERVE for each in possible)
    failed = sum(each["failed"] for each in windows)
    share = reached / len(possible) if possible else float("nan")
    what = f"windows of {window_s:g} s with the floor kept / {len(possible)} possible of {len(windows)}"
    detail = {"floor": FLOOR, "reserve": RESERVE, "rate_img_s": rate_img_s, "windows": windows}
    return [row("soak", what, share, at_least=0.99, detail=detail), row("soak", "images that failed", failed, 0.0)]


def capacities_img_s(scenario: Scenario) -> dict[frozenset[str], float]:
    """Return the capacity of every set of servers at the floor, by the bound."""
    servers = scenario.cluster.named_servers
    by_servers = {frozenset[str](): 0.0}
    for some in chain.from_iterable(combinations(servers, count) for count in range(1, len(servers) + 1)):
        cluster = scenario.cluster.model_copy(update={"servers": list(some)})
        experiment = make_experiment(scenario.model_copy(update={"cluster": cluster}), Path("none"))
        by_servers[frozenset(server.name for server in some)] = FluidModel(experiment).capacity_img_s(FLOOR)
    return by_servers


def _widths(outcome: Outcome, segments: int) -> list[tuple[float, ...]]:
    """Return the widths of each answered image, from the end of each body."""
    size = 4 * segments * IMAGES
    tails = b"".join(each.body[-size:] for each in outcome.answered)
    return [tuple(each) for each in np.frombuffer(tails, "<f4").reshape(-1, segments).tolist()]


def _break(server: Server, ups: Ups, ended: threading.Event) -> None:
    """Kill or stop a worker at intervals, and record which servers are up."""
    rng = stream(3, "soak:faults")
    next_s = time.monotonic() + FAULT_S / 2
    while not ended.wait(LOOK_S):
        ups.look(server)
        if time.monotonic() >= next_s:
            next_s += FAULT_S
            workers = server.workers()
            ups.fault_s = time.monotonic()
            workers[int(rng.integers(len(workers)))].send_signal(
                signal.SIGSTOP if rng.random() < HANGS else signal.SIGKILL
            )
