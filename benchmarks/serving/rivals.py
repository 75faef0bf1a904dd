"""LitServe, Ray Serve and a loop behind uvicorn with the same network on the same cores, from the same load generator.

They are installed in a separate environment with access to this one's torch:

    python -m venv RIVALS
    python -c 'import torch; print(torch.__path__[0][:-5])' > RIVALS/lib/python3.11/site-packages/shared.pth
    RIVALS/bin/pip install litserve 'ray[serve]'

Every worker, theirs and ours, is an executor on a separate core (`hw.device_settings.DeviceSpec`). Ours run at full
width, like theirs, for equal work; then as shipped. A rival is ended before ours are measured: LitServe uses CPU while
idle.
"""

from __future__ import annotations

import json
import time  # noqa: TID251 - a rival starts
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from benchmarks.serving.rows import Row, row
from benchmarks.serving.stand import FULL, Server, Stand, percentile, serve, started, throughput_img_s
from hw.frontend.connections import listen
from hw.frontend.load_generator import Load, Outcome, generate, play
from hw.telemetry import usable_cores
from kit.errors import InputError, WorkError
from kit.random_streams import stream

NAMES: Final = {"litserve": "LitServe", "ray": "Ray Serve", "uvicorn": "uvicorn and a loop"}
CONNECTIONS: Final = 256  # single images at a time, the limit of our ingress
SHARES: Final = (0.3, 0.7, 0.95)  # of capacity
SATURATED: Final = 0.85  # answered share of arrivals below which a server is saturated
SETTINGS: Final = ((16, 5e-3), (16, 1e-3), (8, 2e-3), (4, 1e-3))  # largest batch, and batching delay: the best is taken
START_S: Final = 120.0
ENVIRONMENTS: Final = {
    "litserve": {},
    "ray": {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
    "uvicorn": {},
}


@dataclass(frozen=True)
class AtShare:
    """Figures of a server at a share of its capacity; latencies are from due times."""

    rate_img_s: float
    cpu_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Figures:
    """Figures of one server; CPU time is of all its processes, for an answer."""

    sustained_img_s: float
    saturated_cpu_s: float
    at: Mapping[float, AtShare]


def rivals(stand: Stand, environment: Path) -> list[Row]:
    """Measure throughput with all connections waiting, and CPU time and latencies there and at shares of it.

    The shares are of each one's own capacity at equal work, of the rival's for ours as shipped.
    """
    if not (environment / "bin" / "python").is_file():
        raise InputError("--rivals", "", f"{environment}: they are not there; benchmarks/serving/rivals.py shows how")
    theirs, ours = dict[str, Figures](), dict[tuple[str, str], Figures]()
    settings = dict[str, tuple[int, float]]()
    with _ours(stand, FULL) as full, _ours(stand, "compass") as shipped:
        for name in NAMES:
            theirs[name], settings[name] = _tuned(name, stand, environment)
            rates_img_s = {share: at.rate_img_s for share, at in theirs[name].at.items()}
            ours[name, "equal work"] = _measure(full, stand, None)
            ours[name, "as shipped"] = _measure(shipped, stand, None, rates_img_s)
    return [
        row
        for (name, how), mine in ours.items()
        for row in _rows(f"{NAMES[name]}, {how}", mine, theirs[name], settings[name])
    ]


def _tuned(name: str, stand: Stand, environment: Path) -> tuple[Figures, tuple[int, float]]:
    """Return a rival's figures with those of `SETTINGS` with which it has the highest throughput, and these."""
    throughputs = {}
    for settings in SETTINGS:
        with _rival(name, stand, environment, *settings) as (server, requests):
            send = partial(play, requests={"": requests})
            send(Load(server.url, 20.0, 2.0, 1, "", 1))  # its first passes
            outcome, _ = _cpu_of(server, send, 4 * stand.full_img_s, stand.seconds)
            throughputs[settings] = throughput_img_s(outcome, stand.seconds, 1)
    best = max(throughputs, key=throughputs.__getitem__)
    with _rival(name, stand, environment, *best) as (server, requests):
        return _measure(server, stand, requests), best


def _rows(name: str, ours: Figures, theirs: Figures, settings: tuple[int, float]) -> list[Row]:
    detail = {"ours": asdict(ours), "theirs": asdict(theirs), "batch": settings[0], "wait_s": settings[1]}
    throughput = ours.sustained_img_s / theirs.sustained_img_s
    cpu = ours.saturated_cpu_s / theirs.saturated_cpu_s
    rows = [
        row("rivals", f"throughput / {name}", throughput, at_least=1.3, detail=detail),
        row("rivals", f"CPU a request, saturated / {name}", cpu, 0.7),
    ]
    for share, own in ours.at.items():
        other = theirs.at[share]
        for what, ratio, most in (
            ("CPU a request", own.cpu_s / other.cpu_s, 0.7),
            ("p50", own.p50_s / other.p50_s, 1.0),
            ("p99", own.p99_s / other.p99_s, 1.0),
        ):
            rows.append(row("rivals", f"{what}, {share:g} of capacity / {name}", ratio, most))
    return rows


def _measure(
    server: Server, stand: Stand, requests: list[bytes] | None, rates_img_s: Mapping[float, float] | None = None
) -> Figures:
    """Measure a server saturated, then at these rates, by default `SHARES` of its capacity.

    Args:
        requests: None for our own.
    """
    send = generate if requests is None else partial(play, requests={"": requests})
    send(Load(server.url, 20.0, 2.0, 1, "", 1))  # its first passes
    rate_img_s = 1.5 * stand.full_img_s
    while True:
        busy, busy_cpu_s = _cpu_of(server, send, rate_img_s, stand.seconds)
        sustained_img_s = throughput_img_s(busy, stand.seconds, 1)
        if sustained_img_s < SATURATED * rate_img_s:
            break
        rate_img_s *= 2.5
    at = {}
    for share, rate_img_s in (rates_img_s or {share: share * sustained_img_s for share in SHARES}).items():
        outcome, cpu_s = _cpu_of(server, send, rate_img_s, stand.seconds)
        latencies_s = [each.latency_s for each in outcome.answered]
        p50_s, p99_s = (percentile(latencies_s, percent) for percent in (50, 99))
        at[share] = AtShare(rate_img_s, cpu_s, p50_s, p99_s)
    return Figures(sustained_img_s, busy_cpu_s, at)


def _cpu_of(
    server: Server, send: Callable[[Load], Outcome], rate_img_s: float, seconds: float
) -> tuple[Outcome, float]:
    """Return a load's outcome, and the CPU time an answer; waits for all, so that no work is left uncounted."""
    before_s = server.cpu_s()
    load = Load(server.url, rate_img_s, seconds, 1, "", 1, connections=CONNECTIONS, patience_s=6 * seconds)
    outcome = send(load)
    return outcome, (server.cpu_s() - before_s) / max(1, len(outcome.answered))


@contextmanager
def _ours(stand: Stand, router: str) -> Iterator[Server]:
    """Start our server on equal devices of a core each, with the first one's profile.

    The quickstart's own second device is slowed.
    """
    profile = str((stand.folder / "profiles" / "cpu0.yaml").resolve())
    servers = [
        {"name": f"cpu{core}", "device": {"kind": "cpu", "cores": [core]}, "profile": profile}
        for core in usable_cores()
    ]
    arguments = ("--router", router, "--set", f"cluster.servers={json.dumps(servers)}")
    with TemporaryDirectory() as folder, serve(stand.scenario, *arguments, "--out", f"{folder}/run") as server:
        yield server


@contextmanager
def _rival(
    name: str, stand: Stand, environment: Path, batch: int, wait_s: float
) -> Iterator[tuple[Server, list[bytes]]]:
    """Start a rival; yields it when ready, with requests: an image in binary, labels come as JSON."""
    with listen("127.0.0.1", 0, is_safe=False) as free:
        port = int(free.address.rpartition(":")[2])
    model = stand.job.model_to_serve
    assert model is not None, "a network runs"
    spec = model.load()[0].spec
    body = stream(1, "load:images").standard_normal(spec.input_shape, np.float32).tobytes()
    header = "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"
    requests = [f"{header}content-length: {len(body)}\r\n\r\n".encode() + body]
    with TemporaryDirectory() as folder:
        command: list[Any] = [environment / "bin" / "python", "-m", f"benchmarks.serving.rival_{name}"]
        command += ["--model", model.path.resolve(), "--port", port, "--workers", len(usable_cores())]
        command += ["--batch", batch, "--wait-s", wait_s, "--taken", f"{folder}/taken"]
        with started([*map(str, command)], **ENVIRONMENTS[name]) as process:
            server = Server(process, f"http://127.0.0.1:{port}/predict")
            _wait(server, requests, name)
            yield server, requests
            process.terminate()


def _wait(server: Server, requests: list[bytes], name: str) -> None:
    """Wait until the server answers."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and server.process.poll() is None:
        outcome = play(Load(server.url, 5.0, 1.0, 1, "", 1, patience_s=2.0), {"": requests})
        if outcome.answered:
            return
        time.sleep(1.0)
    raise WorkError(f"{NAMES[name]} does not answer")
