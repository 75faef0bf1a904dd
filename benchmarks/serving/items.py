"""The goals of `slimsched serve`, one function each; a row is a figure with its goal."""

from __future__ import annotations

import time  # noqa: TID251 - servers are killed in mid-load
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.serving.rows import Row, row
from benchmarks.serving.stand import FULL, Server, Stand, load, percentile, saturated_img_s, serve
from hw.frontend.load_generator import Load, generate, spread
from scenarios.executors.executor_runs import RealRun, real_cluster, run_on_hardware, without_faults
from scenarios.files.scenario_keys import PoissonWorkload
from scenarios.job.network_stages import load_measured

EMULATED: Final = "paper-live-x1"
NARROWEST: Final = "fixed:0.25,0.25,0.25,0.25"
FEW, MANY = 100_000, 1_000_000  # images, after which memory is compared
USUAL_S: Final = 10.0  # of a load; if it is shorter, fewer images are sent
TURNS: Final = 3
SINGLE: Final = 256, 1  # connections, and images in a request of each: the limit of the ingress
AFTER_S: Final = 10.0  # after a failure, in which latencies are measured
ANSWERED: Final = 200
REFUSED: Final = 429


def added(stand: Stand) -> list[Row]:
    """Measure what HTTP, validation and the way to the router and back add to the router's own time, by request."""
    with stand.ours() as server:
        capacity_img_s = saturated_img_s(server, stand.seconds / 2, stand.most_img_s, *SINGLE)
        outcome = load(server, 0.3 * capacity_img_s, stand.seconds)
    pairs = [(each.added_s, each.router_s) for each in outcome.answered if each.added_s is not None]
    added_s, router_s = np.array(pairs, np.float64).T
    detail = {
        "capacity_img_s": capacity_img_s,
        "router_s": spread(router_s.tolist()),
        "added_s": spread(added_s.tolist()),
        "lag_s": spread([each.sent_s - each.due_s for each in outcome.answered]),
    }
    usual_s = percentile(router_s, 50)
    return [
        row("added", f"added p{at} / router's p50", percentile(added_s, at) / usual_s, at_most, detail=detail)
        for at, at_most in ((50, 0.15), (99, 0.3))
    ]


def saturated(stand: Stand) -> list[Row]:
    """Compare throughput over HTTP with executors alone, in turns, both at full load: an idle one hardly computes."""
    rows = []
    for what, router in (("full width", FULL), ("as shipped", stand.router)):
        with stand.ours(router) as server, executors_alone(stand) as alone_img_s:
            served_img_s, bare_img_s = list[float](), list[float]()
            for _ in range(TURNS):
                served_img_s.append(saturated_img_s(server, stand.seconds / 2, stand.most_img_s))
                bare_img_s.append(alone_img_s(router, 1.5 * max(served_img_s), stand.seconds / 2))
        ratio = sum(served_img_s) / sum(bare_img_s)
        detail = {"served_img_s": served_img_s, "alone_img_s": bare_img_s}
        rows.append(row("saturated", f"over HTTP / executors alone, {what}", ratio, at_least=0.95, detail=detail))
    return rows


@contextmanager
def executors_alone(stand: Stand) -> Iterator[Callable[[str, float, float], float]]:
    """Yield a measurement of executors without the ingress: (router, arriving images/s, seconds) -> images/s."""
    job = stand.job
    experiment = without_faults(job.experiment())
    assert experiment.accuracy.evaluation is not None, "a network runs"
    dataset = load_measured(job.scenario, experiment.accuracy.evaluation)
    with real_cluster(experiment, job.model_to_serve) as cluster:

        def sustained_img_s(router: str, rate_img_s: float, seconds: float) -> float:
            update = {"workload": PoissonWorkload(kind="poisson", rate_img_s=rate_img_s), "deadline_s": None}
            asked = replace(experiment, scenario=experiment.scenario.model_copy(update=update))
            plan = RealRun(
                router, experiment.router(router, job.folder.path), 1, seconds, seconds / 5,
                end="cut", image_limit=1024, emulate_links=False, keep_log=False,
            )  # fmt: skip
            result, _ = run_on_hardware(asked, cluster, dataset, plan)
            return float(result["throughput_img_s"] or 0.0)

        yield sustained_img_s


def overload(stand: Stand) -> list[Row]:
    """Measure overload at twice the capacity: answers, their latencies, and the time to refuse the rest."""
    with stand.ours() as server:
        capacity_img_s = saturated_img_s(server, stand.seconds, stand.most_img_s, *SINGLE)
        outcome = load(server, 2 * capacity_img_s, stand.seconds)
    answered = outcome.answered
    refused_s = [each.ended_s - each.sent_s for each in outcome.ended if each.code == REFUSED]
    full_s = stand.inside / capacity_img_s
    p99_s = percentile([each.latency_s for each in answered], 99)
    detail = {
        "capacity_img_s": capacity_img_s,
        "offered_img_s": outcome.due / stand.seconds,
        "inside": stand.inside,
        "codes": {str(code): count for code, count in outcome.codes.items()},
        "latency_s": spread([each.latency_s for each in answered]),
        "refused_s": spread(refused_s),
        "lag_s": spread([each.sent_s - each.due_s for each in outcome.ended]),
    }
    goodput_img_s = sum(each.ended_s < stand.seconds for each in answered) / stand.seconds
    errors = sum(count for code, count in outcome.codes.items() if code >= 500 or not code)
    return [
        row("overload", "goodput / saturated", goodput_img_s / capacity_img_s, at_least=0.9, detail=detail),
        row("overload", "answered p99 / (inside / capacity)", p99_s / full_s, 3.0),
        row("overload", "refusals' p99 in ms", 1e3 * percentile(refused_s, 99), 5.0),
        row("overload", "5xx and lost", errors, 0.0),
    ]


def memory(stand: Stand) -> list[Row]:
    """Compare memory of the router's process and the ingress after many images with that after few.

    Devices are emulated, and passes narrow.
    """
    share = min(1.0, stand.seconds / USUAL_S)
    few, many = round(FEW * share), round(MANY * share)
    images, seconds = 8, 2.0
    with TemporaryDirectory() as folder, serve(EMULATED, "--router", NARROWEST, "--out", f"{folder}/run") as server:
        rate_img_s = 0.7 * saturated_img_s(server, seconds, 20_000.0, connections=64, images=images)
        rss = dict[int, int]()
        for target in (few, many):
            while (count := _answered(server)) < target:
                load(server, rate_img_s, max(seconds, min(20.0, (target - count) / rate_img_s)), images)
            rss[count] = sum(each.memory_info().rss for each in (server.processes()[0], server.ingress))
    first, last = rss.values()
    return [row("memory", f"RSS after {many:,} images / after {few:,}", last / first, 1.02, detail={"rss_bytes": rss})]


def _answered(server: Server) -> int:
    return int(server.metrics()["slimsched_images_answered_total",])


def faults(stand: Stand) -> list[Row]:
    """Kill a worker at half of the capacity; then, under the same load, send SIGTERM to a fresh server."""
    before_s = max(AFTER_S / 2, stand.seconds / 2)
    with stand.ours() as server:
        rate_img_s = saturated_img_s(server, stand.seconds / 2, stand.most_img_s, *SINGLE) / 2
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(generate, Load(server.url, rate_img_s, before_s + AFTER_S, 1, "", 1))
            time.sleep(before_s)
            server.workers()[0].kill()
            outcome = asked.result()
    codes = {str(code): count for code, count in outcome.codes.items()}
    failed = outcome.due - outcome.codes[ANSWERED] - outcome.codes[REFUSED]
    parts = [
        [each.latency_s for each in outcome.answered if (each.due_s > before_s) is is_after]
        for is_after in (False, True)
    ]
    before, after = (percentile(part, 99) for part in parts)
    return [
        row("faults", "failed at a worker's kill", failed, 0.0, detail={"rate_img_s": rate_img_s, "codes": codes}),
        row("faults", f"p99 in the {AFTER_S:g} s after it / before", after / before, 5.0),
        *_ended(stand, rate_img_s, before_s),
    ]


def _ended(stand: Stand, rate_img_s: float, before_s: float) -> list[Row]:
    """End a server by SIGTERM, in the middle of a load."""
    with stand.ours() as server, ThreadPoolExecutor(1) as clients:
        asked = clients.submit(generate, Load(server.url, rate_img_s, 2 * before_s, 1, "", 1))
        time.sleep(before_s)
        code = server.end()
        outcome = asked.result()
    document, codes = server.document, {str(code): count for code, count in outcome.codes.items()}
    lost = document["accepted"] - document["answered"]
    return [
        row("faults", "accepted - answered at SIGTERM", lost, 0.0, detail=document),
        row("faults", "answered - seen by clients", document["answered"] - outcome.codes[ANSWERED], 0.0, detail=codes),
        row("faults", "its exit code", code, 0.0),
    ]
