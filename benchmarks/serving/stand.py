"""Servers under measurement, a command each: their load, and the resources of their processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

import slimsched
from benchmarks.grid import ROOT
from hw.frontend.load_generator import Load, Outcome, generate
from kit.errors import InputError, WorkError
from scenarios.experiment.scenario_building import estimated_capacity_img_s
from scenarios.job.job_stages import Run
from scenarios.job.serve_stage import SLOTS

AT: Final = re.compile(r"http://127\.0\.0\.1:(\d+)/v2/models/[\w-]+")
FULL: Final = str(ROOT / "benchmarks" / "serving" / "full-width.rule.yaml")
ENDING_S: Final = 60.0
TRIES: Final = 4
PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Stand:
    """Subject of a measurement.

    Attributes:
        scenario: the scenario whose network runs on this machine's devices.
        folder: a run folder with the devices' profiles, and tuned routers.
        router: the router of the shipped configuration.
        seconds: duration of a load.
    """

    scenario: str
    folder: Path
    router: str
    seconds: float

    @cached_property
    def job(self) -> Run:
        """The scenario's job; raises `InputError` if the run folder does not exist yet."""
        if not (self.folder / "profiles").is_dir():
            problem = f"no profiles are there; `slimsched run {self.scenario} --out {self.folder}` makes them"
            raise InputError(str(self.folder), "", problem)
        return Run(slimsched.load(self.scenario).keys, self.folder, say=lambda _: None, quiet=True)

    @property
    def inside(self) -> int:
        """The largest number of images in its ingress."""
        config = self.job.experiment().cluster.router
        return SLOTS * config.servers * config.outstanding_micro_batches * config.micro_batch_sizes[-1]

    @property
    def most_img_s(self) -> float:
        """A rate beyond the devices' capacity at any widths."""
        experiment = self.job.experiment()
        return 1.2 * estimated_capacity_img_s(experiment.cluster, experiment.costs, 0)

    @property
    def full_img_s(self) -> float:
        """The devices' capacity at full width, from their profiles alone."""
        experiment = self.job.experiment()
        return estimated_capacity_img_s(experiment.cluster, experiment.costs)

    @contextmanager
    def ours(self, router: str = "", *arguments: str) -> Iterator[Server]:
        """Serve the scenario."""
        with serve(self.scenario, "--router", router or self.router, "--out", str(self.folder), *arguments) as server:
            yield server


@dataclass
class Server:
    """A server that is ready.

    Attributes:
        url: URL of its model.
        document: its output on exit.
    """

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)
    document: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""

    @property
    def path(self) -> str:
        """The path of its model."""
        return urlsplit(self.url).path

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port = urlsplit(self.url).port
        assert port is not None, "it was found there"
        return port

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, the router's first."""
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def cpu_s(self) -> float:
        """Return CPU time of all its processes, and of ended children."""
        times = [process.cpu_times() for process in self.processes()]
        return float(sum(time.user + time.system for time in times) + times[0].children_user + times[0].children_system)

    @property
    def ingress(self) -> psutil.Process:
        """The process that holds the connections."""
        return next(process for process in self.processes()[1:] if _listens(process, self.port))

    def workers(self) -> list[psutil.Process]:
        """Return the servers' processes: those with torch, or an emulated device."""
        others = [process for process in self.processes()[1:] if "resource_tracker" not in " ".join(process.cmdline())]
        return [other for other in others if not _listens(other, self.port)]

    def ask(self, path: str) -> bytes:
        """Return the body of a GET."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {self.token}"} if self.token else {})
            return connection.getresponse().read()
        finally:
            connection.close()

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return metrics by name and label values."""
        families = text_string_to_metric_families(self.ask("/metrics").decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }

    def end(self) -> int:
        """Send SIGTERM; returns the exit code, and `document` is the output."""
        self.process.terminate()
        try:
            out, _ = self.process.communicate(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            raise WorkError(f"{self.url}: did not end within {ENDING_S:g} s") from None
        self.document = json.loads(out) if out else {}
        return self.process.returncode


def _listens(process: psutil.Process, port: int) -> bool:
    return any(each.laddr.port == port for each in process.net_connections() if each.status == psutil.CONN_LISTEN)


@contextmanager
def serve(*arguments: str) -> Iterator[Server]:
    """Run `slimsched serve`; yields it when ready and ends it afterwards."""
    command = [sys.executable, "-m", "slimsched", "serve", *arguments, "--port", "0", "--json", "-"]
    with started(command) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line == "serve: ready\n":
                break
        match = AT.search("".join(lines))
        if process.poll() is not None or match is None:
            raise WorkError(f"slimsched serve: {''.join(lines)}")
        threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True).start()
        server = Server(process, match[0], lines)
        yield server
        if process.poll() is None:
            server.end()


@contextmanager
def started(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command; none of its processes is left afterwards."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        left = []
        if process.poll() is None:
            left = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for each in left:
            if each.is_running():
                each.kill()
        process.wait()


def load(server: Server, rate_img_s: float, seconds: float, images: int = 1, **changes: Any) -> Outcome:
    """Send Poisson arrivals, after two seconds of the same that do not count."""
    changes = {"seed": 1, "token": "", **changes}
    generate(Load(server.url, rate_img_s, min(2.0, seconds), images, **changes))
    return generate(Load(server.url, rate_img_s, seconds, images, **changes))


def saturated_img_s(
    server: Server, seconds: float, rate_img_s: float, connections: int = 16, images: int = 16
) -> float:
    """Return answers a second while every connection waits for one, without the first fifth of the time.

    The time is doubled until the answers are at least twice the images waiting at a time.

    Raises:
        WorkError: there are hardly any answers.
    """
    for _ in range(TRIES):
        work = Load(server.url, rate_img_s, seconds, images, "", 1, connections=connections, patience_s=0.5)
        found_img_s = throughput_img_s(generate(work), seconds, images)
        if found_img_s * seconds > 2 * connections * images:
            return found_img_s
        seconds *= 2
    raise WorkError(f"{server.url}: {found_img_s:.3g} images/s are answered, too few to measure its capacity")


def throughput_img_s(outcome: Outcome, seconds: float, images: int) -> float:
    """Return the rate of images answered in the last four fifths of that time."""
    since_s = seconds / 5
    return images * sum(since_s <= each.ended_s < seconds for each in outcome.answered) / (seconds - since_s)


def percentile(values: Sequence[float], at: float) -> float:
    """Return a percentile; NaN without values."""
    return float(np.percentile(values, at)) if len(values) else float("nan")
