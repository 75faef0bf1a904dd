"""Clients: served by a scenario's executors, or played by a load generator; and the hosts of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from kit.errors import InputError, WorkError
from slimsched.arguments import (
    LONGEST,
    Changes,
    Duration,
    File,
    Names,
    NewFolder,
    Out,
    Router,
    ScenarioLike,
    require_within,
)
from slimsched.results import CommandResult
from slimsched.working import (
    Observer,
    announcing_compilation,
    begin,
    load,
    observer,
    observing,
    verb,
    warn_of_routers,
)

if TYPE_CHECKING:
    from hw.frontend.admission import ClientTerms
    from hw.frontend.connections import Journal
    from hw.frontend.ingress import WaitingRoom
    from hw.router.router_loop import RunProgress
    from scenarios.executors.device_choice import Hosts
    from scenarios.job.job_stages import Run


_LARGEST_PORT: Final = 65535
_FASTEST_IMG_S: Final = 1e6


@contextlib.contextmanager
def _naming_the_extra(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"pip install 'slim-scheduler[{extra}]'"
        raise InputError(str(error.name), "", f"is not installed here; {remedy}") from None


class _Journalled:
    """An observer whose remarks go to a journal."""

    def __init__(self, journal: Journal, listener: Observer) -> None:
        self.quiet, self.written = listener.quiet, listener.written
        self.remark = journal.say


@verb
def serve(
    scenario: ScenarioLike,
    /,
    router: Router = "compass",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grpc_port: int | None = None,
    token_file: File | None = None,
    certificate: File | None = None,
    timeout_s: Duration = 30.0,
    transform: str | None = None,
    log_json: bool = False,
    out: Out = None,
    changes: Changes | None = None,
) -> CommandResult:
    """Serve clients over HTTP.

    Clients speak the Open Inference Protocol, version 2 (docs/how-to/serve.md), also over gRPC with --grpc-port.
    Router, servers and processes are those of `validate`. SIGTERM or Ctrl-C ends it after accepted requests are
    answered.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        router: the router: its name (docs/routers.md), a rule file, a trained router's file, or a custom
            `module:Class`.
        host: the address to listen on. Only this machine reaches the default; any other one needs a token file and a
            certificate.
        port: the port to listen on; 0: a free one.
        grpc_port: the port for gRPC, too (the extra `grpc`); 0: a free one.
        token_file: a file with a token in each line; clients send one (`Authorization: Bearer TOKEN`). A number after
            it limits its images in flight.
        certificate: a file with a certificate and its key (PEM), for TLS.
        timeout_s: the longest time for an answer (30s); clients may request less.
        transform: a custom `module:Class` that makes images of what clients send (`before`), or answers of the
            network's outputs (`after`), or both (docs/how-to/serve.md#custom-code-around-the-network).
        log_json: write each change of state as a line of JSON on standard error.
        out: the run folder with network, profiles and routers; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as slo.floor=0.75.

    Returns:
        What was served. Call it in the main thread, which receives signals.

    Raises:
        InputError: something is missing, does not fit this machine, or the port is taken.
        WorkError: executors failed, or some that were accepted could not be answered.
    """
    from hw.frontend.connections import Journal, listen, read_tokens, require_certificate
    from scenarios.files.router_files import check_router
    from scenarios.files.scenario_reading import require_router

    require_within("--port", port, 0, _LARGEST_PORT)
    require_within("--grpc-port", grpc_port, 0, _LARGEST_PORT)
    require_within("--timeout", timeout_s, 1e-3, 3600)
    _require_extras(speaks_grpc=grpc_port is not None)
    tokens = {} if token_file is None else read_tokens(Path(token_file))
    certificate_path = None if certificate is None else Path(certificate)
    if certificate_path is not None:
        require_certificate(certificate_path)
    router_name = str(router)
    check_router(router_name, "--router")
    if transform is not None:
        _require_transform(transform)
    journal = Journal(observer().remark, as_json=log_json)
    with observing(_Journalled(journal, observer())):
        run = begin(scenario, changes, out)
        require_router(router_name, run.scenario)
        from hw.frontend.admission import ClientTerms, Limits
        from hw.frontend.ingress import WaitingRoom

        with (
            listen(host, port, grpc_port, is_safe=bool(tokens and certificate_path)) as listening,
            contextlib.closing(WaitingRoom(listening, certificate_path)) as room,
        ):
            terms = ClientTerms(Limits(timeout_s=timeout_s), tokens, certificate_path, transform or "")
            return _served(_opened(run, router_name, room, terms, journal))


def _opened(run: Run, router: str, room: WaitingRoom, terms: ClientTerms, journal: Journal) -> RunProgress:
    """Serve in the scenario's run folder; see `scenarios.job.serve_stage.serve`."""
    from scenarios.job import serve_stage
    from scenarios.job.validation_stage import require_executors

    listening = room.listening
    require_executors(run, "serve")
    with run.opened(), announcing_compilation((router,)):
        url = f"{'https' if terms.certificate else 'http'}://{listening.address}/v2/models/{run.scenario.name}"
        by_grpc = f", gRPC at {listening.grpc}" if listening.grpc else ""
        experiment = run.experiment()
        where = {"url": url, **({"grpc": listening.grpc} if listening.grpc else {})}
        journal.note("starting", f"serve: {url}{by_grpc} with {router}; it starts", **where, router=router)
        warn_of_routers(experiment, (router,), run.folder.path)
        return serve_stage.serve(run, experiment, router, room, terms, journal)


def _require_transform(name: str) -> None:
    """Report custom code that is about to run, or raise `InputError` if it is refused or does not exist."""
    from kit.plugins import OWN_CLASS, code_hash, is_own

    if not is_own(name):
        raise InputError("--transform", "", f"{name!r}: must be {OWN_CLASS}")
    code_hash(name, "--transform", "")


def _require_extras(*, speaks_grpc: bool) -> None:
    """Raise `InputError` if a package is missing that is asked for, in the process or in its ingress."""
    packages_of = {"serve": ("hw.frontend.ingress",), "grpc": ("grpc", "google.protobuf") if speaks_grpc else ()}
    for extra, packages in packages_of.items():
        with _naming_the_extra(extra):
            for package in packages:
                import_module(package)


def _served(end: RunProgress) -> CommandResult:
    """Return what happened to all images; raises `WorkError` if some had to be left."""
    if end.in_flight:
        raise WorkError(f"{end.in_flight} images that were accepted could not be answered in time")
    failed = end.arrived - end.completed
    document = {"schema": "slimsched.served/1", "accepted": end.arrived, "answered": end.completed, "failed": failed}
    text = f"{end.arrived} images were accepted, {end.completed} answered, {failed} given up"
    return CommandResult(document, text)


def _mix(classes: Sequence[str]) -> dict[str, float]:
    """Read `NAME=NUMBER` each."""
    mix: dict[str, float] = {}
    for text in classes:
        name, _, share = text.rpartition("=")
        try:
            mix[name] = float(share)
        except ValueError:
            mix[name] = 0.0
        if not name or not 0.0 < mix[name] < inf:
            raise InputError("--classes", "", f"{text!r:.80}; expected NAME=NUMBER, a number above 0: gold=1")
    return mix


@verb
def generate_load(
    url: str,
    /,
    *,
    rate: float = 100.0,
    duration_s: Duration = 10.0,
    images: int = 1,
    seed: int = 0,
    classes: Sequence[str] = (),
    token_file: File | None = None,
    certificate: File | None = None,
) -> CommandResult:
    """Send images to a server as clients do, and show the latencies.

    Arrivals are a Poisson process, and do not wait for answers. A latency counts from the time at which the request was
    due.

    Args:
        url: the model's address, as `slimsched serve` prints it: http://HOST:PORT/v2/models/NAME.
        rate: images per second (100).
        duration_s: the duration of arrivals (10s); then it waits for answers.
        images: images in each request (1).
        seed: the seed of arrivals and images (0).
        classes: classes that requests name, with weights, such as gold=1 and bronze=3: of four one is gold. By default
            they name none.
        token_file: a file whose first line is the token to send.
        certificate: a file with the server's certificate (PEM), if no authority signed it.

    Raises:
        InputError: the URL is none of a model.
        WorkError: no model answers there.
    """
    with _naming_the_extra("serve"):
        from hw.frontend.connections import read_tokens
        from hw.frontend.load_generator import Load, document, generate
    from scenarios.show.command_tables import format_load

    require_within("--rate", rate, 1e-3, _FASTEST_IMG_S)
    require_within("--images", images, 1, 1 << 16)
    require_within("--seed", seed, 0, LONGEST)
    path = None if certificate is None else Path(certificate)
    token = "" if token_file is None else next(iter(read_tokens(Path(token_file)))).decode()
    load = Load(url, rate, duration_s, images, token, seed, _mix(classes), path)
    measured = document(load, generate(load))
    return CommandResult(measured, format_load(measured))


DOES_NOT_FIT = 2


@verb
def check_cluster(
    scenario: ScenarioLike, /, *, logs: NewFolder | None = None, changes: Changes | None = None
) -> CommandResult:
    """Check every host of a scenario before a run.

    It shows what each host has, and what does not fit.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        logs: collect the workers' output of every host there instead.
        changes: values that replace the scenario's, by dotted keys.

    Raises:
        InputError: the scenario names no hosts, or their cluster is not there.
    """
    from hw.networks.network_files import ModelFile
    from scenarios.executors import preflight
    from scenarios.executors.device_choice import joined_hosts
    from scenarios.show.command_tables import format_cluster

    keys = load(scenario, changes).keys
    if keys.cluster.backend == "local":
        raise preflight.none_here(keys.cluster, keys.name)
    with joined_hosts(keys.cluster, keys.name) as hosts:
        if logs is not None:
            paths = [path for host in hosts.names() for path in _gathered(hosts, host, Path(logs) / host)]
            lines = "\n".join(f"log: {path}" for path in paths) or "no worker has printed anything"
            return CommandResult({"logs": [str(path) for path in paths]}, lines)
        checkpoint = keys.model.checkpoint
        model = None if checkpoint is None else ModelFile(Path(checkpoint))
        check = preflight.check_cluster(keys, model, hosts, observer().remark)
    return CommandResult(check.document(), format_cluster(check), code=0 if check.fits else DOES_NOT_FIT)


def _gathered(hosts: Hosts, host: str, folder: Path) -> list[Path]:
    """Return files here with what workers have printed on a host."""
    from hw.router.ray_workers import kept_logs
    from kit.files import atomic_path

    paths = []
    for name, content in hosts.ask(host, "", kept_logs).items():
        paths.append(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(paths[-1]) as temporary:
            temporary.write_bytes(content)
    return paths


@verb
def steer(
    run: File,
    /,
    *,
    drain: Names = (),
    floor: float | None = None,
    p99_s: Duration | None = None,
    energy_weight: float | None = None,
    router: Router | None = None,
    model: File | None = None,
    canary: File | None = None,
    share: float | None = None,
    service_class: Annotated[str | None, Parameter(name="--class")] = None,
    promote: bool = False,
    take_back: bool = False,
) -> CommandResult:
    """Drain servers, or change goals, router or model, during a run.

    The run reports when it follows, and when a drained server is empty. Goals, router and model are those of a `serve`.
    Routers with control follow goals (docs/routers.md). While a canary is on, the command without options compares both
    versions.

    Args:
        run: the folder of the `run`, `validate` or `serve` in progress.
        drain: a server, or a host with all its servers, that gets no new micro-batch from now on; all others do
            (`none`: all). May be given several times.
        floor: the mean accuracy to keep; 0: none.
        p99_s: the limit of the p99 latency, such as 30ms; 0: none.
        energy_weight: the price of energy: points of accuracy per joule an image.
        router: the new router: its name, a rule file, or a trained router's file.
        model: other weights of the served network; their accuracy table (accuracy.json) is next to them.
        canary: the same, but for a part of the requests, on some of the servers.
        share: the share of the requests that the canary serves; 0.1 if not given, or a whole class.
        service_class: the class whose requests the canary serves.
        promote: let the canary's weights serve all requests.
        take_back: end the canary; the previous weights serve all requests.

    Raises:
        InputError: nothing is asked for, nothing of that kind serves in that folder, it has no such server or host, or
            a value is not allowed.
    """
    from policies.goal_control import MAX_WEIGHT
    from scenarios.files.router_files import check_router, with_file
    from scenarios.runs import operator_control
    from scenarios.show.command_tables import format_versions

    require_within("--floor", floor, 0, 1)
    require_within("--energy-weight", energy_weight, 0, MAX_WEIGHT)
    require_within("--share", share, 1e-4, 1)
    if [model is not None, canary is not None, promote, take_back].count(True) > 1:
        raise InputError("cluster steer", "", "expected at most one of --model, --canary, --promote and --take-back")
    if canary is None and (share is not None or service_class is not None):
        raise InputError("cluster steer", "--share, --class", "are of a canary; give its weights, too: --canary FILE")
    router_name = None if router is None else str(router)
    if router_name is not None:
        check_router(router_name, "--router")
        router_name = with_file(router_name, lambda path: str(path.resolve()))
    weights, trial = (None if file is None else str(Path(file).resolve()) for file in (model, canary))
    steering = operator_control.Steering(
        floor=floor, p99_limit_s=p99_s, energy_weight=energy_weight, router=router_name, model=weights, canary=trial,
        share=share, service_class=service_class, promote=promote or None, take_back=take_back or None,
    )  # fmt: skip
    request = steering.model_dump(exclude_none=True)
    if not (drain or request):
        if versions := operator_control.versions(Path(run)):
            return CommandResult({"versions": versions}, format_versions(versions))
        flags = "--drain, --floor, --p99, --energy-weight, --router, --model, --canary, --promote or --take-back"
        raise InputError(str(run), "", f"nothing is asked for: give {flags}")
    if request:
        operator_control.steer(Path(run), steering)
    if drain:
        request["drain"] = operator_control.drain(Path(run), drain)
    values = {**request, "drain": ", ".join(request["drain"]) or operator_control.NOBODY} if drain else request
    text = ", ".join(f"{name} {value}" for name, value in values.items())
    return CommandResult(request, f"asked for {text}; the command that serves shows when it follows")
