"""What `Dockerfile` and `deploy/` name is there: flags, paths, ports, extras and files; and the image serves."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import time  # noqa: TID251 - a client waits
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml

import slimsched
from hw.frontend.admission import Limits
from hw.frontend.http_app import App
from hw.frontend.inference_protocol import Served
from hw.router.local_cluster import DRAIN_LIMIT_NS
from hw.transport.peers import fresh_certificate
from kit.errors import InputError
from kit.units import NS_PER_S
from scenarios.files.scenario_reading import load_scenario
from tests.test_docs import ROOT
from tests.typed import typed

Read = Callable[[str], str]
DOCKERFILE, IGNORED = "Dockerfile", ".dockerignore"
COMPOSE, MANIFEST, RAY = "deploy/compose.yaml", "deploy/kubernetes.yaml", "deploy/raycluster.yaml"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PORT = str(inspect.signature(slimsched.serve).parameters["port"].default)


def as_it_is(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def steps_of(dockerfile: str) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, rest in re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)]


def status_of(path: str) -> int:
    """What `serve` answers there, for a client with a token."""
    served: Any = Served("served", (1, 8, 8), 3, 0, (), (), 16)
    admission: Any = SimpleNamespace(served=served, asks_tokens=True, is_ready=True, token_in=lambda _: b"token")
    metrics: Any = SimpleNamespace(text=lambda: b"")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(App(admission, metrics, SimpleNamespace(), Limits())(scope, receive, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


def faults_of_words(words: list[str], paths: set[str]) -> Iterator[str]:
    """What is wrong with a command of `slimsched`, in a container that has these paths."""
    try:
        typed(words)
    except InputError as error:
        yield f"{words}: {error}"
    yield from (word for word in words if word.startswith("/") and str(Path(word).parent) not in paths | {"/tmp"})


def faults_of_image(read: Read) -> Iterator[str]:
    steps = steps_of(read(DOCKERFILE))
    last = [word for word, _ in steps].index("FROM", 2)  # after ARG and the first
    users = [rest for word, rest in steps[last:] if word == "USER"]
    if not users or not users[-1].isdigit() or users[-1] == "0":
        yield f"user {users}: Kubernetes must see that it is not root"
    (entry,) = (rest for word, rest in steps if word == "ENTRYPOINT")
    if entry != json.dumps(list(PROJECT["project"]["scripts"])):
        yield f"entry point {entry}: not the command itself, so signals may not reach it"
    if any(re.search(r"\b(apt-get|pip|gcc|make)\b", rest) for word, rest in steps[last:] if word == "RUN"):
        yield "the last stage installs something"
    (default,) = (rest.partition("=")[2] for word, rest in steps if word == "ARG" and rest.startswith("EXTRAS"))
    extras = {*PROJECT["project"]["optional-dependencies"]}
    for found in (default, *re.findall(r"EXTRAS=([\w,]+)", read(DOCKERFILE) + read(RAY))):
        yield from (f"extra {each}" for each in found.split(",") if each not in extras)
    (check,) = (rest for word, rest in steps if word == "HEALTHCHECK")
    ((scheme, port, path),) = re.findall(r"'(\w+)://127.0.0.1:(\d+)(/[\w/]+)'", check)
    if (scheme, port) != ("https", PORT) or status_of(path) != 200:
        yield f"health is asked at {scheme}, {port}, {path}"
    for words in re.findall(r"slimsched (serve [^<&]*?) \d?>", read(DOCKERFILE)):
        yield from faults_of_words(shlex.split(words), set())
    kept = [line[1:] for line in read(IGNORED).splitlines() if line.startswith("!")]
    yield from (f"{name}: not there" for name in kept if not (ROOT / name).exists())
    needed = {*PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], PROJECT["project"]["readme"]}
    yield from (f"{name}: needed" for name in sorted(needed - {*kept}))


def faults_of_stop(grace_s: float, before_s: float) -> Iterator[str]:
    if grace_s < before_s + DRAIN_LIMIT_NS / NS_PER_S + 10:
        yield f"{grace_s} s are too short to end in"


def faults_of_compose(read: Read) -> Iterator[str]:
    document = yaml.safe_load(read(COMPOSE))
    services, configs = document["services"], document["configs"]
    ours = services["slimsched"]
    paths = {"/run/secrets", *(volume.partition(":")[2] for volume in ours["volumes"])}
    yield from faults_of_words(ours["command"], paths)
    wanted = {Path(word).name for word in ours["command"] if word.startswith("/run/secrets/")}
    yield from (f"{name}: no secret of the service" for name in wanted - {*ours["secrets"]})
    yield from faults_of_stop(float(ours["stop_grace_period"].rstrip("s")), 0)
    if not all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"]):
        yield "a port is open to others"
    if not ours["ports"][0].endswith(f":{PORT}"):
        yield f"{ours['ports']}: not the port of `serve`"
    files = [config["file"] for config in configs.values() if "file" in config]
    yield from (f"{file}: not there" for file in files if not (ROOT / "deploy" / file).is_file())
    for each in services.values():
        used = {*each.get("secrets", ())} - {*document["secrets"]}
        used |= {config["source"] for config in each.get("configs", ())} - {*configs}
        yield from (f"{name}: not defined" for name in used)
    (job,) = yaml.safe_load(configs["prometheus"]["content"])["scrape_configs"]
    if (job["scheme"], job["static_configs"]) != ("https", [{"targets": [f"slimsched:{PORT}"]}]):
        yield f"{job}: not where `serve` is"
    if status_of(job["metrics_path"]) != 200:
        yield f"{job['metrics_path']}: not served"
    asked = {job["authorization"]["credentials_file"], job["tls_config"]["ca_file"]}
    yield from asked - {f"/run/secrets/{name}" for name in services["prometheus"]["secrets"]}
    (provider,) = yaml.safe_load(configs["dashboards"]["content"])["providers"]
    if provider["options"]["path"] not in {str(Path(each["target"]).parent) for each in services["grafana"]["configs"]}:
        yield f"{provider}: no dashboard is there"


def faults_of_pod(pod: dict[str, Any]) -> Iterator[str]:
    if not (pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]):
        yield "it may run as root"
    volumes = {each["name"] for each in pod["volumes"]}
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        if container["securityContext"] != {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}:
            yield f"{container['name']} has rights"
        yield from (f"{each}: no volume" for each in container["volumeMounts"] if each["name"] not in volumes)


def faults_of_manifest(read: Read, folder: Path) -> Iterator[str]:
    of_kind = {each["kind"]: each for each in yaml.safe_load_all(read(MANIFEST))}
    pod = of_kind["Deployment"]["spec"]["template"]["spec"]
    yield from faults_of_pod(pod)
    (container,), (first,) = pod["containers"], pod["initContainers"]
    paths = {each["mountPath"] for each in container["volumeMounts"]}
    yield from faults_of_words(container["args"], paths)
    args = dict(zip(container["args"], container["args"][1:], strict=False))
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    if ports != {"https": args.get("--port", PORT), "grpc": args["--grpc-port"]}:
        yield f"{ports}: `serve` listens elsewhere"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        if asked["port"] != "https" or asked["scheme"] != "HTTPS" or status_of(asked["path"]) != 200:
            yield f"{probe}: {asked}"
    yield from faults_of_stop(
        pod["terminationGracePeriodSeconds"], float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    )
    copied = {f"/run/slimsched/{Path(each).name}" for each in first["command"] if each.startswith("/secrets/")}
    yield from ({args["--token-file"], args["--certificate"]}) - copied
    yield from (
        f"{port}: not of the container"
        for port in of_kind["Service"]["spec"]["ports"]
        if ports.get(port["targetPort"]) != str(port["port"])
    )
    labels = of_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [of_kind["Service"]["spec"]["selector"]]
    selectors += [of_kind[kind]["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
    yield from (f"{selector}: selects nothing" for selector in selectors if selector != labels)
    file = folder / Path(container["args"][1]).name
    file.write_text(of_kind["ConfigMap"]["data"].get(file.name, ""), encoding="utf-8")
    try:
        load_scenario(file)
    except InputError as error:
        yield str(error)


def faults_of_hosts(read: Read) -> Iterator[str]:
    spec = yaml.safe_load(read(RAY))["spec"]
    if f"ray=={spec['rayVersion']}" not in PROJECT["project"]["optional-dependencies"]["ray"]:
        yield f"Ray {spec['rayVersion']}"
    if spec.get("authOptions") != {"mode": "token"}:
        yield "no token"
    micro_batch_sizes = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    named = load_scenario(ROOT / "examples" / "three-hosts" / "scenario.yaml").cluster.named_servers
    if [micro_batch_size["labels"]["host"] for micro_batch_size in micro_batch_sizes] != [
        server.host for server in named
    ]:
        yield "other hosts than the scenario's"
    yield from (
        f"{micro_batch_size['groupName']}: several hosts of one name"
        for micro_batch_size in micro_batch_sizes[1:]
        if micro_batch_size["maxReplicas"] != 1
    )
    for micro_batch_size in micro_batch_sizes:
        yield from faults_of_pod(micro_batch_size["template"]["spec"])


def faults(read: Read, folder: Path) -> list[str]:
    return [*faults_of_image(read), *faults_of_compose(read), *faults_of_manifest(read, folder), *faults_of_hosts(read)]


def test_the_files_name_what_is_there(tmp_path: Path) -> None:
    assert faults(as_it_is, tmp_path) == []


@pytest.mark.parametrize(
    "file, old, new",
    [
        (DOCKERFILE, "USER 10001", "USER 0"),
        (DOCKERFILE, "EXTRAS=grpc\n", "EXTRAS=http\n"),
        (DOCKERFILE, "v2/health/ready", "v2/ready"),
        (DOCKERFILE, "1:8000", "1:8080"),
        (DOCKERFILE, "--set slo", "--sets slo"),
        (DOCKERFILE, "RUN slimsched", "RUN apt-get install gcc && slimsched"),
        (IGNORED, "!kit\n", ""),
        (COMPOSE, "--log-json", "--json-log"),
        (COMPOSE, "/run/secrets/tokens,", "/run/tokens,"),
        (COMPOSE, "grace_period: 60s", "grace_period: 30s"),
        (COMPOSE, "127.0.0.1:3000", "0.0.0.0:3000"),
        (COMPOSE, "8000:8000", "8000:8080"),
        (COMPOSE, "serving/dashboard", "serving/nvml_device"),
        (COMPOSE, "slimsched:8000", "slimsched:8001"),
        (MANIFEST, "runAsUser: 10001", "runAsUser: 0"),
        (MANIFEST, "drop: [ALL]", "drop: []"),
        (MANIFEST, "{name: runs, emptyDir", "{name: run, emptyDir"),
        (MANIFEST, "/etc/slimsched/scenario", "/etc/scenario"),
        (MANIFEST, "containerPort: 8000", "containerPort: 8080"),
        (MANIFEST, "path: /v2/health/ready", "path: /healthz"),
        (MANIFEST, "PeriodSeconds: 60", "PeriodSeconds: 44"),
        (MANIFEST, "/secrets/served.pem", "/secrets/tls.pem"),
        (MANIFEST, "port: 8001", "port: 8002"),
        (MANIFEST, "selector: {app: slimsched}", "selector: {app: slim}"),
        (MANIFEST, "log_gb: 2", "log_gib: 2"),
        (RAY, "2.60.0", "2.59.0"),
        (RAY, "{mode: token}", "{mode: disabled}"),
        (RAY, "labels: {host: gamma}", "labels: {host: delta}"),
    ],
)
def test_a_false_name_is_found(file: str, old: str, new: str, tmp_path: Path) -> None:
    def read(name: str) -> str:
        text = as_it_is(name)
        assert name != file or old in text
        return text.replace(old, new) if name == file else text

    assert faults(read, tmp_path)


BASE = next(rest for word, rest in steps_of(as_it_is(DOCKERFILE)) if word == "ARG").partition("=")[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def image() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The root of a container of the image, built here, and its configuration."""
    if shutil.which("buildah") is None or os.getuid() != 0:
        pytest.skip("needs buildah, and root")
    if (
        run("buildah", "inspect", "--type=image", BASE).returncode
        and (pulled := run("buildah", "pull", BASE)).returncode
    ):
        pytest.skip(f"{BASE}: {pulled.stderr.splitlines()[-1]}")
    given = shlex.split(os.environ.get("SLIMSCHED_BUILD", ""))  # such as --build-arg TORCH_INDEX=..., --volume
    tag = "slimsched-test"
    built = run("buildah", "build", "--isolation=chroot", "--format=docker", *given, f"--tag={tag}", ".")
    assert built.returncode == 0, built.stderr[-2000:]
    config = json.loads(run("buildah", "inspect", "--type=image", tag).stdout)["Docker"]["config"]
    container = run("buildah", "from", "--pull-never", tag).stdout.strip()
    try:
        yield Path(run("buildah", "mount", container).stdout.strip()), config
    finally:
        run("buildah", "rm", container)
        run("buildah", "rmi", tag)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(1800)
def test_the_image_serves_and_ends_by_sigterm(image: tuple[Path, dict[str, Any]]) -> None:
    """As process 1, without rights, in the root and the environment of the image; nothing is compiled any more."""
    root, config = image
    user = int(config["User"])
    token, pem = "t" * 64, fresh_certificate()
    for name, content in (("tokens", token.encode()), ("served.pem", pem)):
        path = root / "tmp" / name
        path.write_bytes(content)
        path.chmod(0o600)
        os.chown(path, user, user)
    known = ssl.create_default_context(cadata=pem[pem.index(b"-----BEGIN CERT") :].decode())
    known.check_hostname = False
    at = f"https://127.0.0.1:{PORT}/v2"
    compiled = sorted((root / "var" / "cache").rglob("*.nb?"))

    def answer(path: str, body: bytes | None = None) -> Any:
        request = Request(at + path, body, {"Authorization": f"Bearer {token}"})
        with urlopen(request, context=known, timeout=30) as response:
            return json.loads(response.read() or "null")

    # The devices are there for these processes alone, and so gone before the container is removed.
    inside = ["unshare", "--mount", "sh", "-c", 'mount --rbind /dev "$0/dev" && exec "$@"', str(root)]
    inside += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", f"--root={root}"]
    inside += [f"--wd={config['WorkingDir']}", f"--setuid={user}", f"--setgid={user}", *config["Entrypoint"]]
    inside += ["serve", "paper-live", "--router", "sticky", "--host", "0.0.0.0"]
    inside += ["--token-file", "/tmp/tokens", "--certificate", "/tmp/served.pem"]
    environment = dict(each.split("=", 1) for each in config["Env"])
    with subprocess.Popen(inside, env=environment, stderr=subprocess.PIPE, text=True) as outer:
        try:
            until = time.monotonic() + 300
            while outer.poll() is None and time.monotonic() < until:
                with suppress(URLError, OSError):
                    answer("/health/ready")
                    break
                time.sleep(0.5)
            assert outer.poll() is None, outer.communicate()
            check = ["chroot", f"--userspec={user}", str(root), *config["Healthcheck"]["Test"][1:]]
            assert subprocess.run(check, env=environment, check=False).returncode == 0
            (shown,) = answer("/models/paper-live")["inputs"]
            sent = {"name": "image", "datatype": "FP32", "shape": [1, *shown["shape"][1:]]}
            sent |= {"data": [0.5] * prod(shown["shape"][1:])}
            found = answer("/models/paper-live/infer", json.dumps({"inputs": [sent]}).encode())
            assert found["outputs"][0]["name"] == "label"
            (first,) = psutil.Process(outer.pid).children()
            first.send_signal(signal.SIGTERM)
            assert outer.wait(60) == 0
            assert sorted((root / "var" / "cache").rglob("*.nb?")) == compiled != []
        finally:
            outer.kill()
