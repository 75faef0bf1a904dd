"""`slimsched serve` and `slimsched load` as commands: what the page says is so, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time  # noqa: TID251 - a client waits
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits

import slimsched
from hw.frontend.connections import Journal, require_certificate
from hw.frontend.grpc_service import MESSAGES, SERVICE
from hw.frontend.inference_protocol import read_request
from hw.frontend.log_segments import Segment, segments_in
from hw.networks.datasets import load_dataset
from hw.networks.network_files import ModelFile, save_model
from hw.transport.peers import fresh_certificate
from kit.errors import InputError, WorkError
from kit.random_streams import stream
from policies.interfaces import RouterConfig
from policies.ppo.ppo_router import PPORouter
from policies.rules.rule_params import LadderRule
from policies.vocabulary import RequestArrived
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.bundled_files import SHIPPED_SCENARIOS
from scenarios.files.router_files import write_rule
from scenarios.job.serve_stage import ModelOrders, _OperatorOrders, _served, _stopping, endless_policy
from scenarios.runs.folder import CONTROL, SERVED
from slimsched.cli import main
from tests.hw.tiny import tiny_model
from tests.policies.ppo.problems import network_of, spec_of, tensors_of
from tests.scenarios.files import SEGMENTS, WIDTHS
from tests.scenarios.test_emulated import scenario
from tests.test_docs import ROOT
from tests.test_site import SERVING, steps, words

pytestmark = pytest.mark.workers

PATIENCE_S = 120
AT = re.compile(r"serve: (https?://[\d.]+:(\d+)/v2/models/([\w-]+))(?:, gRPC at ([\d.:]+))?")


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
            if "serve: ready" in line:
                break
        found = AT.search(self.said)
        assert found, self.said
        self.url, self.port, self.name, self.grpc = found.groups()

    def end(self) -> tuple[int, str, str]:
        self.process.terminate()
        return self.after()

    def after(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    @property
    def ingress(self) -> psutil.Process:
        (found,) = [
            process
            for process in self.processes()
            if any(at.laddr.port == int(self.port) for at in process.net_connections() if at.status == "LISTEN")
        ]
        return found


@contextmanager
def serving(arguments: Sequence[str], folder: Path, kept: socket.socket | None = None) -> Iterator[Served]:
    """`kept` is handed over as systemd does it."""
    command = [sys.executable, "-m", "slimsched", "serve", *arguments, "--port", "0", "--out", str(folder / "run")]
    descriptors = () if kept is None else (kept.fileno(),)
    for given in descriptors:
        command = ["bash", "-c", f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{given}', "bash", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        pass_fds=descriptors,
    ) as process:  # fmt: skip
        try:
            yield Served(process)
        finally:
            process.kill()


@pytest.fixture
def served(tmp_path: Path, usual_interrupts: None) -> Iterator[Served]:
    with serving([str(scenario(tmp_path, 1, 1)), "--router", "jsq"], tmp_path) as found:
        yield found


def infer(url: str, name: str = "") -> tuple[int, dict[str, list[float]]]:
    """Status and outputs, by name, for one image, of a class if it has a name."""
    image = {"name": "image", "datatype": "FP32", "shape": [1, 768], "data": [0.5] * 768}
    body = {"inputs": [image], **({"parameters": {"class": name}} if name else {})}
    with urlopen(f"{url}/infer", json.dumps(body).encode(), timeout=PATIENCE_S) as answer:
        return answer.status, {each["name"]: each["data"] for each in json.load(answer)["outputs"]}


def infer_soon(url: str) -> int:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with suppress(HTTPError, OSError):
            return infer(url)[0]
        time.sleep(0.05)
    raise AssertionError("it never came back")


def test_clients_are_told_of_the_network_and_its_pixels(tmp_path: Path) -> None:
    model, pixels = ModelFile(tmp_path / "tiny.safetensors"), load_digits().images[:, None]
    save_model(model.path, tiny_model(), "tiny", {})
    evaluation = SimpleNamespace(accuracy=SimpleNamespace(evaluation=SimpleNamespace(dataset="digits", hash="12ab")))
    evaluation.cluster = SimpleNamespace(router=RouterConfig(3, WIDTHS, ()))
    keys = SimpleNamespace(name="mine", model=SimpleNamespace(dataset="digits"), classes=(), deadlines_s=(None,))
    found = _served(SimpleNamespace(scenario=keys, model_to_serve=model), evaluation, 64)  # type: ignore[arg-type]
    assert (found.name, found.shape, found.segments, found.classes, found.most) == ("mine", (1, 8, 8), 3, 10, 64)
    assert found.version == "12ab"
    body = json.dumps({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [5, 1, 8, 8],
                                   "data": pixels[:5].astype(int).tolist()}]})  # fmt: skip
    images, data = read_request(body.encode(), None, found).images, load_dataset("digits")
    known = np.concatenate((data.train_images, data.test_images)).reshape(-1, 64)
    assert all(np.abs(known - image).max(1).min() < 1e-5 for image in images)


def test_routers_are_made_for_a_run_without_an_end(tmp_path: Path) -> None:
    """The paper's counts as it was trained; one that keeps goals has no debts of who decided before it."""
    experiment = load_experiment(scenario(tmp_path, 1, 1), tmp_path / "run")
    folder = SimpleNamespace(path=tmp_path / "run")
    job: Any = SimpleNamespace(folder=folder, scenario=experiment.scenario, model_to_serve=None)
    journal = Journal(lambda _: None, as_json=False)
    asked = _OperatorOrders(job, ModelOrders(job, experiment, journal), "compass", experiment.cluster.router, journal)
    for takes_over in (False, True):
        policy: Any = asked.policy("compass", takes_over=takes_over)
        assert getattr(policy, "_policy", policy).control.takes_over == takes_over
    of_classes = load_experiment(SHIPPED_SCENARIOS / "classes.yaml", tmp_path / "other")
    with_classes: Any = endless_policy(of_classes, "compass", tmp_path, of_classes.cluster.router, takes_over=True)
    assert [each.takes_over for each in getattr(with_classes, "_policy", with_classes).control.all] == [True, True]
    spec = spec_of(2)
    learned = PPORouter(spec, tensors_of(network_of(spec)))
    other: Any = SimpleNamespace(router=lambda *_: learned, scenario=experiment.scenario)
    models = ModelOrders(job, other, journal)
    endless: Any = _OperatorOrders(job, models, "ppo", experiment.cluster.router, journal).policy("ppo")
    assert (endless._router, endless._stretch_ns) == (learned, 20_000_000_000)


def test_first_signal_requests_the_end_and_the_second_ends_the_work() -> None:
    told = list[str]()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        with _stopping(Journal(told.append, as_json=True)) as wants_stop:
            assert not wants_stop()
            signal.raise_signal(number)
            assert wants_stop()
            assert wants_stop()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert handlers == {number: signal.getsignal(number) for number in handlers}
    assert [json.loads(line)["event"] for line in told] == ["stopping", "stopping"]


def test_a_load_is_answered_and_the_end_is_in_order(served: Served, tmp_path: Path) -> None:
    """What the load generator counts as answered is what the server says, one of two servers drained meanwhile; nobody
    is left behind."""
    slimsched.steer(tmp_path / "run", drain=["fast"])
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
    replayed = slimsched.replay(tmp_path / "run")
    assert replayed.code == 0
    (segment,) = segments_in(tmp_path / "run" / SERVED)
    assert replayed.document["runs"][SERVED]["logs"][0]["file"] == segment.name
    arrived = [step for step in Segment(segment).steps() if isinstance(step.event, RequestArrived)]
    assert len(arrived) == images
    trace = tmp_path / "served.csv"
    assert slimsched.replay(tmp_path / "run", trace_file=trace).document["arrivals"] == images
    changes = {"workload": {"kind": "trace", "file": str(trace)}, "duration_s": 30.0}
    played = slimsched.simulate(tmp_path / "tiny.yaml", "random", changes=changes)
    assert played.document["images"]["arrived"] == images


def test_the_clients_to_copy_are_answered_by_a_routers_file(tmp_path: Path, usual_interrupts: None) -> None:
    """A router that can't follow the scenario's floor is told, as at the start so when it is asked for."""
    write_rule(tmp_path / "mine.rule.yaml", LadderRule())
    path = scenario(tmp_path, 1, 1)
    path.write_text(path.read_text() + "slo: {floor: 0.5}\n")
    with serving([str(path), "--router", "mine=mine.rule.yaml"], tmp_path) as served:
        assert "serve: warning: mine=mine.rule.yaml can't follow slo.floor; what can is " in served.said
        for name, warnings in (("compass", 0), ("sticky", 1)):
            slimsched.steer(tmp_path / "run", router=name)
            assert served.process.stderr is not None
            assert next(served.process.stderr) == f"serve: {name} decides from now on\n"
            for _ in range(warnings):
                assert f"{name} can't follow slo.floor; what can is " in next(served.process.stderr)
        asked = clients_to_copy(served.url)
        for command in asked:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert re.search(r"prediction\W.*widths\W.*1\.0", done.stdout, re.DOTALL), (done.stdout, done.stderr)
        code, out, _ = served.end()
    assert (code, out.partition(" images were accepted")[0]) == (0, str(len(asked)))


def clients_to_copy(url: str) -> list[list[str]]:
    """The commands of the examples that ask for one image; Triton's own client is not installed."""
    folder, values = ROOT / "examples" / "serving", ",".join(["0.5"] * 768)
    by_curl = [[str(folder / "ask.sh"), url, values, "768"]] if shutil.which("curl") else []
    return [[sys.executable, str(folder / "ask.py"), url], *by_curl]


def test_goals_router_and_ingress_change_while_clients_are_served(served: Served, tmp_path: Path) -> None:
    """A router that can't be made leaves the one that decides; so does a goal. Another ingress takes the place of one
    that died: clients lose their connections, and find the port open. Too many deaths end it."""
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
    slimsched.steer(run, model=tmp_path / "new.safetensors")
    assert "reads" in next(said)
    assert next(said).endswith("emulated devices serve no network; the model stays as it was\n")
    (run / CONTROL / "steer-9").write_text('{"floor": 7}')
    assert "floor" in next(said), "what nobody could have asked for is told, and nobody's answer is lost"
    assert infer(served.url)[1]["widths"] == [WIDTHS[0]] * SEGMENTS
    left = served.processes()
    served.ingress.suspend()
    assert next(said) == "serve: the ingress has not answered for 5 s; it is killed\n"
    for deaths in range(1, 6):
        if deaths > 1:
            served.ingress.kill()
        if deaths < 5:
            assert "another one starts" in next(said)
            assert infer_soon(served.url) == 200
    code, out, err = served.after()
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "the ingress has died 5 times within 60 s" in err
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def outcome(url: str) -> int:
    """Of a request: its status, below 0 where it should say when to come again, 0 where the connection was lost.

    Raises:
        TimeoutError: nobody answers.
    """
    try:
        return infer(url)[0]
    except HTTPError as error:
        return error.code if error.headers["retry-after"] == "1" else -error.code
    except TimeoutError:
        raise
    except OSError:
        return 0


def test_another_router_takes_the_place_of_one_that_died(tmp_path: Path, usual_interrupts: None) -> None:
    """Nobody is left of the first one, and who waits for an answer hears 503; so do those who come until the second one
    is ready, on the socket that was kept."""
    arguments = [str(scenario(tmp_path, 1, 1)), "--router", "jsq"]
    over = threading.Event()

    def visits(url: str) -> set[int]:
        found = set()
        while not over.is_set():
            found.add(outcome(url))
            over.wait(0.02)
        return found

    with socket.create_server(("127.0.0.1", 0)) as kept, ThreadPoolExecutor(2) as clients:
        with serving(arguments, tmp_path, kept) as first:
            assert int(first.port) == kept.getsockname()[1]
            left = first.processes()
            first.process.send_signal(signal.SIGSTOP)
            asked = clients.submit(infer, first.url)
            while b"slimsched_images_inside 1.0" not in urlopen(f"http://127.0.0.1:{first.port}/metrics").read():
                assert not asked.done()
                time.sleep(0.02)
            first.process.kill()
            with pytest.raises(HTTPError, match="503"):
                asked.result(PATIENCE_S)
        assert psutil.wait_procs(left, PATIENCE_S)[1] == []
        visiting = clients.submit(visits, first.url)
        try:
            with serving(arguments, tmp_path, kept) as second:
                assert infer_soon(second.url) == 200
                over.set()
                assert {200, 503} <= visiting.result(PATIENCE_S) <= {0, 200, 503}
                assert second.end()[0] == 0
        finally:
            over.set()


def traced(url: str, trace: str, timeout_us: int = 60_000_000) -> tuple[int, str | None]:
    image = {"name": "image", "datatype": "FP32", "shape": [1, 768], "data": [0.5] * 768}
    body = json.dumps({"inputs": [image], "parameters": {"timeout": timeout_us}}).encode()
    try:
        with urlopen(Request(f"{url}/infer", body, {"traceparent": trace}), timeout=PATIENCE_S) as answer:
            return answer.status, answer.headers["traceparent"]
    except HTTPError as error:
        return error.code, error.headers["traceparent"]


def test_state_and_failed_requests_are_told_in_json(tmp_path: Path, usual_interrupts: None) -> None:
    """A request's trace is in its answer, and in what is told of it where it failed or came late, also over gRPC."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    arguments = [str(scenario(tmp_path, 1, 1)), "--router", "jsq", "--log-json", "--grpc-port", "0"]
    with serving(arguments, tmp_path) as served:
        assert traced(served.url, trace) == (200, trace)
        assert traced(served.url, trace.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)) == (200, None)
        slimsched.steer(tmp_path / "run", p99_s=1e-4)
        while b"goal_p99_seconds 0.0001" not in urlopen(f"http://127.0.0.1:{served.port}/metrics").read():
            assert served.process.poll() is None
        assert traced(served.url, trace) == (200, trace)
        with grpc.insecure_channel(served.grpc) as channel:
            tensor = {
                "name": "image",
                "datatype": "FP32",
                "shape": [1, 768],
                "contents": {"fp32_contents": [0.5] * 768},
            }
            asked = MESSAGES["ModelInferRequest"](model_name=served.url.rpartition("/")[2], inputs=[tensor])
            infer_by_grpc = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            infer_by_grpc(asked.SerializeToString(), timeout=PATIENCE_S, metadata=(("traceparent", trace),))
        served.process.send_signal(signal.SIGSTOP)
        assert traced(served.url, trace, timeout_us=50_000) == (504, trace)
        served.process.send_signal(signal.SIGCONT)
        code, _, rest = served.end()
    told = [json.loads(line) for line in (served.said + rest).splitlines()]
    states = [each for each in told if each["event"] != "remark"]
    ready = ["starting", "server_up", "server_up", "ready"]
    late = ["request_late"] * 2
    assert [state["event"] for state in states] == [*ready, "goals", *late, "request_failed", "stopping"]
    assert [state.get("traceparent") for state in states] == [None] * 5 + [trace, trace, trace, None]
    assert (states[4]["p99_limit_s"], states[7]["reason"], code) == (1e-4, "deadline", 0)
    assert all(datetime.fromisoformat(each["time"]).tzinfo == UTC for each in told)


def test_server_with_certificate_serves_only_clients_that_trust_it(tmp_path: Path, usual_interrupts: None) -> None:
    certificate = tmp_path / "served.pem"
    certificate.touch(0o600)
    certificate.write_text("hello")
    with pytest.raises(InputError, match="must hold a certificate and its key"):
        require_certificate(certificate)
    certificate.write_bytes(fresh_certificate())
    arguments = [str(scenario(tmp_path, 1, 1)), "--router", "jsq", "--certificate", str(certificate)]
    with serving([*arguments, "--grpc-port", "0"], tmp_path) as served:
        assert served.url.startswith("https://")
        found = slimsched.generate_load(served.url, rate=50.0, duration_s=1.0, certificate=certificate).document
        assert found["requests"] == found["answered"] > 0
        with pytest.raises(WorkError, match="SSLCertVerificationError"):
            slimsched.generate_load(served.url, duration_s=0.1)
        with pytest.raises(WorkError, match="no model answers there"):
            slimsched.generate_load(served.url.replace("https", "http"), duration_s=0.1)
        known = grpc.ssl_channel_credentials(certificate.read_bytes())
        named = (("grpc.ssl_target_name_override", "slimsched"),)
        with grpc.secure_channel(served.grpc, known, named) as trusting, grpc.insecure_channel(served.grpc) as plain:
            live = [each.unary_unary("/inference.GRPCInferenceService/ServerLive") for each in (trusting, plain)]
            assert live[0](b"", timeout=PATIENCE_S) == b"\x08\x01"
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                live[1](b"", timeout=PATIENCE_S)
        assert served.end() == (0, ANY, "")


def test_a_taken_port_and_missing_packages_are_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(scenario(tmp_path)), "--port", port]) == 2
    assert (
        capsys.readouterr().err
        == f"slimsched: --port: {port}: Address already in use; name another one, or 0 for a free one\n"
    )
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["serve", str(scenario(tmp_path)), "--grpc-port", "0"]) == 2
    assert capsys.readouterr().err == "slimsched: grpc: is not installed here; pip install 'slim-scheduler[grpc]'\n"


@pytest.mark.release
@pytest.mark.slow
def test_the_page_is_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands and its program, but for the port; and what is shown as printed is printed."""
    blocks = steps(SERVING)
    (start, load, *_) = [block.text.split() for block in blocks if block.language == "console"]
    (program,) = [block.text for block in blocks if block.language == "python"]
    assert start[:2] == ["slimsched", "serve"]
    with serving(start[2:], tmp_path) as served:
        program = program.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}")
        done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
        assert load[:3] == ["slimsched", "load", f"http://127.0.0.1:8000/v2/models/{served.name}"]
        assert main(["load", served.url, *load[3:-1], "1s"]) == 0
        assert "lag" in capsys.readouterr().out
        said = [words(line) for line in (served.said + done.stdout).splitlines()]
        shown = [line for block in blocks if block.language == "text" for line in block.text.splitlines()]
        assert [line for line in shown if not any(words(line) - {"8000"} <= each for each in said)] == []
        metrics = urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S).read().decode()
        named = re.findall(r"`(slimsched_\w+)", SERVING.read_text(encoding="utf-8"))
        assert [name for name in named if f"# TYPE {name}" not in metrics] == []
        assert served.end()[0] == 0


CLASSES = """classes:
- {name: gold, share: 0.5, floor: 0.6}
- {name: bronze, share: 0.5}
"""


def test_a_request_is_served_as_its_class(tmp_path: Path) -> None:
    """By a rule that has a tuple for each; who names a class that is none hears which there are."""
    path, rule = scenario(tmp_path, 1, 1), tmp_path / "by-class.rule.yaml"
    path.write_text(path.read_text() + CLASSES)
    wide, narrow = [WIDTHS[-1]] * SEGMENTS, [WIDTHS[0]] * SEGMENTS
    rule.write_text(f"schema: slimsched.rule/1\nkind: fixed\ntuples: {{gold: {wide}, bronze: {narrow}}}\n")
    with serving([str(path), "--router", str(rule)], tmp_path) as served:
        assert (infer(served.url, "gold")[1]["widths"], infer(served.url, "bronze")[1]["widths"]) == (wide, narrow)
        assert infer(served.url)[1]["widths"] == wide
        with pytest.raises(HTTPError) as refused:
            infer(served.url, "tin")
        assert (refused.value.code, b"expected gold, bronze" in refused.value.read()) == (400, True)
        found = slimsched.generate_load(served.url, rate=50, duration_s=2, classes=("gold=1", "bronze=3")).document
        counts = {name: each["answered"] for name, each in found["classes"].items()}
        assert found["answered"] == found["requests"] == sum(counts.values())
        assert 0 < counts["gold"] < counts["bronze"]
        assert main(["cluster", "steer", str(tmp_path / "run"), "--floor", "0.5"]) == 0
        assert served.process.stderr is not None
        assert "each class keeps what `classes` promises it" in served.process.stderr.readline()
        metrics = urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S).read().decode()
        answered = {name: re.search(f'class_images_answered_total{{class="{name}"}} (.*)', metrics) for name in counts}
        assert {name: float(each[1]) for name, each in answered.items() if each} == {
            "gold": counts["gold"] + 2,
            "bronze": counts["bronze"] + 1,
        }
        assert served.end()[0] == 0


AROUND = """import numpy as np

class Around:
    def __init__(self, served):
        self.shape = served.shape
        print("made")

    example = {"grey": np.zeros((1, 1))}

    def before(self, inputs):
        return np.broadcast_to(inputs["grey"].astype("float32"), (len(inputs["grey"]), *self.shape))

    def after(self, outputs):
        return {"label": np.array([f"none of {each}" for each in outputs["prediction"]])}

class Broken(Around):
    def after(self, outputs):
        return outputs["scores"]
"""


def test_custom_code_is_served_and_ends_with_the_command(tmp_path: Path, usual_interrupts: None) -> None:
    """It is reported before it runs, what it prints is on standard error, and none of its processes is left."""
    path = scenario(tmp_path, 1, 1)
    (tmp_path / "around.py").write_text(AROUND)
    with serving([str(path), "--router", "jsq", "--transform", "around:Around"], tmp_path) as served:
        assert "own code: around.py: Around (--transform) runs with your rights\n" in served.said
        assert "made\n" in served.said
        grey = {"name": "grey", "datatype": "FP64", "shape": [2, 1], "data": [0.5, 1]}
        with urlopen(f"{served.url}/infer", json.dumps({"inputs": [grey]}).encode()) as answer:
            label = {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["none of -1"] * 2}
            assert json.load(answer)["outputs"] == [label]
        for wrong in ({"name": "image"}, {"datatype": "FP32"}, {"shape": [2]}):
            with pytest.raises(HTTPError, match="400"):
                urlopen(f"{served.url}/infer", json.dumps({"inputs": [{**grey, **wrong}]}).encode())
        with pytest.raises(InputError, match=r"takes 'grey' \('FP64'\) for custom code, and not numbers"):
            slimsched.generate_load(served.url, duration_s=0.1)
        schema = json.load(urlopen(f"http://127.0.0.1:{served.port}/openapi.json"))["components"]["schemas"]
        assert schema["Images"]["properties"]["name"] == {"enum": ["grey"]}
        left = served.processes()
        assert sum("transform_process" in " ".join(each.cmdline()) for each in left) == 2
        code, out, err = served.end()
    assert (code, out) == (0, "2 images were accepted, 2 answered, 0 given up\n")
    assert set(err.splitlines()) <= {"made"}
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def test_custom_code_that_fails_is_one_line_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around.py").write_text(AROUND)
    path = str(scenario(tmp_path, 1, 1))
    command = ["serve", path, "--port", "0", "--router", "jsq", "--out", "run", "--transform", "around:Broken"]
    assert main(command) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "slimsched: --transform: 'around:Broken': KeyError: 'scores' (around.py, line 18)"


class _Stalling(threading.Thread):
    """A server that answers nobody until it is let to, and then everybody at once."""

    def __init__(self, requests: int) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.requests = requests

    def run(self) -> None:
        meta = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1]}]}).encode()
        with self.server.accept()[0] as first:
            first.recv(1 << 16)
            first.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(meta), meta))
        waiting = [self.server.accept()[0] for _ in range(self.requests)]
        for client in waiting:
            client.recv(1 << 16)
        for client in waiting:
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_load_latency_counts_from_the_due_time_while_the_server_stalls() -> None:
    """All requests are sent although none is answered before the last arrives."""
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
