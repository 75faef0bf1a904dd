"""Who is let in at a Ray cluster: with its token, without one, with another one; and what is not a cluster of ours."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time  # noqa: TID251 - how long a refusal takes
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hw.router import ray_cluster as ray_entry
from kit.errors import InputError
from tests.ray_nodes import LOOPBACK, TOKEN, RayNodes, ray_nodes

pytestmark = [pytest.mark.workers, pytest.mark.ray]

grpc = pytest.importorskip("grpc")
ray = pytest.importorskip("ray")

_JOIN = """
import sys
from hw.router.ray_cluster import joined
from kit.errors import InputError
try:
    with joined(sys.argv[1], "scenario", "cluster.address") as cluster:
        print(*(node.host for node in cluster.nodes()))
except InputError as error:
    print(error)
"""
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_RUN = (
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVGet",
    "/ray.rpc.NodeManagerService/RequestWorkerLease",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.RayletDriver/Init",
)
"""A call of each service that a port of Ray's may have."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(["alpha"]) as opened:
        yield opened


def joins(address: str, home: Path, **environment: str) -> tuple[str, str, float]:
    """What a process says that wants to join, what else it writes, and how long that took once Ray was imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    began_s = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-c", _JOIN, address],
        env={**kept, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return found.stdout.strip(), found.stderr.strip(), time.monotonic() - began_s


def test_host_with_the_token_joins_from_any_place_of_the_token(nodes: RayNodes, tmp_path: Path) -> None:
    """The token is in the environment, in a file, or in Ray's default place, which needs no setting."""
    kept = tmp_path / ".ray" / "auth_token"
    kept.parent.mkdir()
    kept.write_text(TOKEN + "\n")
    assert joins(nodes.address, Path(), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)[:2] == ("alpha", "")
    assert joins(nodes.address, Path(), RAY_AUTH_TOKEN_PATH=str(kept))[:2] == ("alpha", "")
    assert joins(nodes.address, tmp_path)[:2] == ("alpha", "")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "requires a token, and this process shows none"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": TOKEN}, "requires a token, and this process shows none"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed"}, "requires a token, and this process shows another"),
        ({"RAY_AUTH_MODE": "token"}, "no token to show"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "no token to show"),
    ],
)
def test_a_stranger_is_refused_at_once_in_one_line(
    nodes: RayNodes, tmp_path: Path, environment: Mapping[str, str], told: str
) -> None:
    """Ray itself would try for 20 s, and write a line of its own for each second."""
    said, written, took_s = joins(nodes.address, tmp_path, **environment)
    assert said.startswith("scenario: cluster.address: ")
    assert told in said
    assert "RAY_AUTH_TOKEN_PATH" in said
    assert (said.count("\n"), written) == (0, "")
    assert took_s < 15.0  # most of it is the import of Ray


def test_no_port_of_a_node_serves_a_stranger(nodes: RayNodes) -> None:
    """Every one that it listens on, whatever speaks there; and one call more with the token, to see that it counts."""
    ports = {port for _, port in nodes.listening("alpha")}
    assert len(ports) >= 4
    refused = [port for port in ports if "refused" in _answers(port, None)]
    assert len(refused) >= 3  # the head, and the two of its raylet
    for port in ports:
        assert _answers(port, None) <= {"refused", "none of its calls"}, port
    head = int(nodes.address.rpartition(":")[2])
    assert "served" in _answers(head, TOKEN)


def _answers(port: int, token: str | None) -> set[str]:
    shown = () if token is None else (("authorization", f"Bearer {token}"),)
    found = set()
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        for call in (_ALIVE, *_RUN):
            try:
                channel.unary_unary(call)(b"", timeout=3.0, metadata=shown)
                found.add("served")
            except grpc.RpcError as error:
                found.add(_meaning(error.code(), port))
    return found


def _meaning(code: object, port: int) -> str:
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return "none of its calls"
    if code == grpc.StatusCode.UNAVAILABLE:  # it speaks HTTP
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=3.0)
        connection.request("POST", "/get_or_create_runtime_env")
        status = connection.getresponse().status
        return "refused" if status == http.HTTPStatus.UNAUTHORIZED else f"HTTP {status}"
    return "refused" if code == grpc.StatusCode.UNAUTHENTICATED else str(code)


# ---------------------------------------------------------------------------------- heads that are none: no node runs


@contextlib.contextmanager
def head(host: str, answer: Callable[[bytes, object], bytes]) -> Iterator[str]:
    """Whoever asks whether it is alive gets this answer."""
    served = grpc.unary_unary_rpc_method_handler(answer)
    handlers = grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", {"CheckAlive": served})
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handlers,))
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    yield f"{LOOPBACK if host == '0.0.0.0' else host}:{port}"
    server.stop(None)


def of_version(version: str) -> Callable[[bytes, object], bytes]:
    return lambda *_: b"\x12" + bytes([len(version)]) + version.encode()  # a protobuf with its second field alone


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)


def entry(address: str) -> str:
    return ray_entry.require_entry(ray, address, "scenario", "cluster.address")


def test_a_cluster_of_another_version_is_told() -> None:
    with head(LOOPBACK, of_version(ray.__version__)) as address:
        assert entry(address) == address
    with (
        head(LOOPBACK, of_version("2.9.3")) as address,
        pytest.raises(InputError, match=f"runs Ray 2.9.3, this process {ray.__version__}"),
    ):
        entry(address)


def test_address_without_a_ray_cluster_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match="no Ray cluster answers at"):
            entry(f"{LOOPBACK}:{port}")
    for address, problem in {
        f"{LOOPBACK}:{port}": "no process answers",
        "nonsense": "is not an address",
        ":1": "is not an address",
        "127.0.0.2:99999": "has no port",
        "no-such-host.invalid:1": "no process answers",
    }.items():
        with pytest.raises(InputError, match=problem):
            entry(address)


def test_a_head_that_lets_in_everybody_is_refused_where_others_reach_it() -> None:
    """Its nodes may well say that they are on loopback: its port is open all the same."""
    if not ray_entry._addresses():
        pytest.skip("this machine has no address beyond loopback")
    with (
        head("0.0.0.0", of_version(ray.__version__)) as address,
        pytest.raises(InputError, match="requires no token"),
    ):
        ray_entry.require_closed(address, "scenario", "cluster.address")
    with head(LOOPBACK, of_version(ray.__version__)) as address:
        ray_entry.require_closed(address, "scenario", "cluster.address")

    def refuse(_: bytes, context: object) -> bytes:
        return context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")  # type: ignore[attr-defined,no-any-return]

    with head("0.0.0.0", refuse) as address:
        ray_entry.require_closed(address, "scenario", "cluster.address")
        with pytest.raises(InputError, match="requires a token"):
            entry(address)
