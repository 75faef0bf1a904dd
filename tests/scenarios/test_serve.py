"""`slimsched serve` and `slimsched load` as commands: what the page says is so, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time  # noqa: TID251 - a client waits
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits

import slimsched
from hw.door.listening import require_certificate
from hw.door.protocol import read_request
from hw.networks.datasets import load_dataset
from hw.networks.registry import ModelFile, save_model
from hw.transport.tls import fresh_certificate
from kit.chance import stream
from kit.errors import InputError, WorkError
from scenarios.job.serving import _served, _stopping
from scenarios.runs.folder import CONTROL
from slimsched.cli import main
from tests.hw.worlds import tiny_model
from tests.scenarios.files import SEGMENTS, WIDTHS
from tests.scenarios.test_emulated import scenario
from tests.test_docs import ROOT
from tests.test_site import SERVING, steps, words

pytestmark = pytest.mark.workers

PATIENCE_S = 120
AT = re.compile(r"serve: (https?://[\d.]+:(\d+)/v2/models/([\w-]+))")


class Served:
    """A `slimsched serve` that is ready.

    Attributes:
        said: on standard error until then.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        for line in process.stderr:
            self.said += line
            if line == "serve: ready\n":
                break
        found = AT.search(self.said)
        assert found, self.said
        self.url, self.port, self.name = found.groups()

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and the rest of standard error."""
        self.process.terminate()
        return self.after()

    def after(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    @property
    def ingress(self) -> psutil.Process:
        """The one that listens beside the router."""
        (found,) = [
            each
            for each in self.processes()
            if any(at.laddr.port == int(self.port) for at in each.net_connections() if at.status == "LISTEN")
        ]
        return found


@contextmanager
def serving(arguments: Sequence[str], folder: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "slimsched", "serve", *arguments, "--port", "0", "--out", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


@pytest.fixture
def served(tmp_path: Path, usual_interrupts: None) -> Iterator[Served]:
    with serving([str(scenario(tmp_path, 1, 1)), "--router", "jsq"], tmp_path) as found:
        yield found


def infer(url: str) -> tuple[int, dict[str, list[float]]]:
    """Status and outputs, by name, for one image."""
    image = {"name": "image", "datatype": "FP32", "shape": [1, 768], "data": [0.5] * 768}
    with urlopen(f"{url}/infer", json.dumps({"inputs": [image]}).encode(), timeout=PATIENCE_S) as answer:
        return answer.status, {each["name"]: each["data"] for each in json.load(answer)["outputs"]}


def infer_soon(url: str) -> int:
    """The status, once it is ready again."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with suppress(HTTPError, OSError):
            return infer(url)[0]
        time.sleep(0.05)
    raise AssertionError("it never came back")


def test_clients_are_told_of_the_network_and_its_pixels(tmp_path: Path) -> None:
    """Raw pixels, normalised by what is told, are the data set's own images."""
    model, pixels = ModelFile(tmp_path / "tiny.safetensors"), load_digits().images[:, None]
    save_model(model.path, tiny_model(), "tiny", {})
    evaluation = SimpleNamespace(accuracy=SimpleNamespace(evaluation=SimpleNamespace(dataset="digits")))
    keys = SimpleNamespace(name="mine", model=SimpleNamespace(dataset="digits"))
    found = _served(SimpleNamespace(scenario=keys, model_to_serve=model), evaluation, 64)  # type: ignore[arg-type]
    assert (found.name, found.shape, found.segments, found.classes, found.most) == ("mine", (1, 8, 8), 3, 10, 64)
    body = json.dumps({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [5, 1, 8, 8],
                                   "data": pixels[:5].astype(int).tolist()}]})  # fmt: skip
    images, data = read_request(body.encode(), None, found).images, load_dataset("digits")
    known = np.concatenate((data.train_images, data.test_images)).reshape(-1, 64)
    assert all(np.abs(known - image).max(1).min() < 1e-5 for image in images)


def test_the_first_signal_is_a_wish_and_the_second_ends_the_work() -> None:
    """As it was before, afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        with _stopping() as wants_stop:
            assert not wants_stop()
            signal.raise_signal(number)
            assert wants_stop()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_a_load_is_answered_and_the_end_is_in_order(served: Served, tmp_path: Path) -> None:
    """What the load generator counts as answered is what the server says, one of two servers drained meanwhile; nobody
    is left behind."""
    slimsched.drain(tmp_path / "run", "fast")
    assert served.process.stderr is not None
    assert any("fast: is empty" in line for line in served.process.stderr)
    found = slimsched.generate_load(served.url, rate=400.0, duration_s=1.0, images=2)
    document = found.document
    assert document["requests"] == document["answered"] > 0
    assert document["latency_s"]["p50"] <= document["latency_s"]["p99"] <= document["latency_s"]["max"]
    parts_s = [document[part]["mean"] for part in ("router_s", "added_s")]
    assert min(parts_s) > 0
    assert sum(parts_s) <= document["latency_s"]["mean"]
    left = served.processes()
    code, out, err = served.end()
    images = 2 * document["answered"]
    assert (code, out, err) == (0, f"{images} images were accepted, {images} answered, 0 given up\n", "")
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def test_goals_and_router_change_while_clients_are_served(served: Served, tmp_path: Path) -> None:
    """A router that can't be made leaves the one that decides; so does a goal."""
    run, said = tmp_path / "run", served.process.stderr
    assert said is not None
    narrow = f"fixed:{','.join([f'{WIDTHS[0]:g}'] * SEGMENTS)}"
    assert infer(served.url)[1]["widths"] == [WIDTHS[-1]] * SEGMENTS
    slimsched.steer(run, router=narrow)
    assert next(said) == f"serve: {narrow} decides from now on\n"
    assert infer(served.url)[1]["widths"] == [WIDTHS[0]] * SEGMENTS
    slimsched.steer(run, router="tuned:compass", floor=0.5)
    refused, asked = next(said), next(said)
    assert refused.startswith("serve: ")
    assert refused.endswith("the router stays as it was\n")
    assert asked == "serve: asked for from now on: accuracy 50.00%, no limit of p99 latency\n"
    assert next(said).startswith(f"serve: warning: {narrow} can't follow slo.floor; what can is ")
    (run / CONTROL / "steer-9").write_text('{"floor": 7}')
    assert "floor" in next(said), "what nobody could have asked for is told, and nobody's answer is lost"
    assert infer(served.url)[1]["widths"] == [WIDTHS[0]] * SEGMENTS
    assert served.end()[0] == 0


def test_another_ingress_takes_the_place_of_one_that_died(served: Served) -> None:
    """Clients lose their connections, and find the port open. Too many deaths end it."""
    left = served.processes()
    assert infer(served.url)[0] == 200
    for deaths in range(1, 6):
        served.ingress.kill()
        assert served.process.stderr is not None
        if deaths < 5:
            assert "another one starts" in next(served.process.stderr)
            assert infer_soon(served.url) == 200
    code, out, err = served.after()
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "the ingress has died 5 times within 60 s" in err
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def test_without_its_router_nobody_is_left(served: Served) -> None:
    """Who waits for an answer hears so."""
    left = served.processes()
    served.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(infer, served.url)
        while b"slimsched_images_inside 1.0" not in urlopen(f"http://127.0.0.1:{served.port}/metrics").read():
            assert not asked.done()
        served.process.kill()
        with pytest.raises(HTTPError, match="503"):
            asked.result(PATIENCE_S)
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def test_who_trusts_its_certificate_is_served(tmp_path: Path, usual_interrupts: None) -> None:
    """Who does not is not, nor who speaks plain HTTP."""
    certificate = tmp_path / "served.pem"
    certificate.touch(0o600)
    certificate.write_text("hello")
    with pytest.raises(InputError, match="must hold a certificate and its key"):
        require_certificate(certificate)
    certificate.write_bytes(fresh_certificate())
    arguments = [str(scenario(tmp_path, 1, 1)), "--router", "jsq", "--certificate", str(certificate)]
    with serving(arguments, tmp_path) as served:
        assert served.url.startswith("https://")
        found = slimsched.generate_load(served.url, rate=50.0, duration_s=1.0, certificate=certificate).document
        assert found["requests"] == found["answered"] > 0
        with pytest.raises(WorkError, match="SSLCertVerificationError"):
            slimsched.generate_load(served.url, duration_s=0.1)
        with pytest.raises(WorkError, match="no model answers there"):
            slimsched.generate_load(served.url.replace("https", "http"), duration_s=0.1)
        assert served.end()[0] == 0


def test_a_port_that_is_taken_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(scenario(tmp_path)), "--port", port]) == 2
    assert (
        capsys.readouterr().err
        == f"slimsched: --port: {port}: Address already in use; name another one, or 0 for a free one\n"
    )


@pytest.mark.slow
def test_the_page_is_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands and its program, but for the port; and what is shown as printed is printed."""
    blocks = steps(SERVING)
    (start, load, *_) = [each.text.split() for each in blocks if each.language == "console"]
    (program,) = [each.text for each in blocks if each.language == "python"]
    assert start[:2] == ["slimsched", "serve"]
    with serving(start[2:], tmp_path) as served:
        program = program.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}")
        done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
        assert load[:3] == ["slimsched", "load", f"http://127.0.0.1:8000/v2/models/{served.name}"]
        assert main(["load", served.url, *load[3:-1], "1s"]) == 0
        assert "lag" in capsys.readouterr().out
        said = [words(line) for line in (served.said + done.stdout).splitlines()]
        shown = [line for each in blocks if each.language == "text" for line in each.text.splitlines()]
        assert [line for line in shown if not any(words(line) - {"8000"} <= each for each in said)] == []
        metrics = urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S).read().decode()
        named = re.findall(r"`(slimsched_\w+)", SERVING.read_text(encoding="utf-8"))
        assert [name for name in named if f"# TYPE {name}" not in metrics] == []
        assert served.end()[0] == 0


class _Stalling(threading.Thread):
    """A server that answers nobody until it is let to, and then everybody at once."""

    def __init__(self, requests: int) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.requests = requests

    def run(self) -> None:
        meta = json.dumps({"inputs": [{"shape": [-1, 1]}]}).encode()
        with self.server.accept()[0] as first:
            first.recv(1 << 16)
            first.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(meta), meta))
        waiting = [self.server.accept()[0] for _ in range(self.requests)]
        for client in waiting:
            client.recv(1 << 16)
        for client in waiting:
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_who_is_due_while_a_server_stands_still_has_waited() -> None:
    """All are sent, though none is answered before the last has come; each wait counts from when it was due."""
    rate, duration_s = 200.0, 0.5
    due_s = stream(3, "load:arrivals").exponential(1 / rate, 1 + int(rate * duration_s * 2)).cumsum()
    due_s = due_s[due_s <= duration_s]
    server = _Stalling(len(due_s))
    server.start()
    url = f"http://127.0.0.1:{server.server.getsockname()[1]}/v2/models/x"
    found = slimsched.generate_load(url, rate=rate, duration_s=duration_s, seed=3).document
    server.join(PATIENCE_S)
    server.server.close()
    assert found["requests"] == found["answered"] == len(due_s)
    waits_s = due_s[-1] - due_s  # at least
    assert found["latency_s"]["max"] >= waits_s[0]
    assert found["latency_s"]["mean"] >= waits_s.mean()
