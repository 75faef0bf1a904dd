"""The operator's requests of a run folder: what serves there now, what of it is to be drained, and what is asked of it.

The running command holds the folder's lock; the operator's requests meanwhile are files that need no lock. While
servers are up, `.slimsched/operator/` has `servers.json`, which lists them, an empty file `drain-N` for each server N
that is to be drained, and a file `steer-NUMBER-RANDOM` for each change of goals, router or model. A file exists or not:
two operators at once do no harm, and no process reads half a request. The command writes `versions.json` there while a
canary is on.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kit.documents import read_json, write_json
from kit.errors import InputError, nearest
from kit.files import atomic_path
from kit.strict import StrictModel, validate
from scenarios.files.scenario_keys import EnergyWeight, SecondsOrZero
from scenarios.runs.folder import CONTROL, RunFolder
from sim.device_profile import Share

Server = tuple[str, str]
"""A server's name, and its host's; empty if all are on one."""

_SERVERS: Final = "servers.json"
_VERSIONS: Final = "versions.json"
_DRAIN = re.compile(r"drain-(\d+)")
_STEER = re.compile(r"steer-(\d+)-\w+")


class Steering(StrictModel):
    """What an operator asks for from now on; what is not given stays as it was.

    Attributes:
        router: a name or a file.
        model: a file of other weights of the same network.
        canary: the same, for a `share` of the requests (of a class).
        promote, take_back: the canary.
    """

    floor: Share | None = None
    p99_limit_s: SecondsOrZero | None = None
    energy_weight: EnergyWeight | None = None
    router: str | None = None
    model: str | None = None
    canary: str | None = None
    share: Share | None = None
    service_class: str | None = None
    promote: bool | None = None
    take_back: bool | None = None


@contextmanager
def accept_operator_requests(
    folder: RunFolder, servers: Sequence[Server], *, may_be_steered: bool = False
) -> Iterator[OperatorRequests]:
    """Let the operator drain these servers within it, and steer them if allowed; yields the operator's requests."""
    folder_of_requests = folder / CONTROL
    with folder.opened():
        shutil.rmtree(folder_of_requests, ignore_errors=True)
        folder_of_requests.mkdir(mode=0o700)  # a request names code to run
        try:
            write_json(
                folder_of_requests / _SERVERS,
                {"servers": [list(server) for server in servers], "may_be_steered": may_be_steered},
            )
            yield OperatorRequests(folder_of_requests)
        finally:
            shutil.rmtree(folder_of_requests, ignore_errors=True)


class OperatorRequests:
    """The operator's requests."""

    def __init__(self, folder_of_requests: Path) -> None:
        self._frontend = folder_of_requests
        self._drained: frozenset[int] = frozenset()
        self._steered = set[str]()
        self._shown: list[Any] = []

    def show(self, versions: list[Any]) -> None:
        """Let the operator read these; nothing is synced to disk, as the router's loop waits."""
        if versions != self._shown:
            self._shown = versions
            with suppress(OSError), atomic_path(self._frontend / _VERSIONS, is_synced=False) as temporary:
                temporary.write_text(json.dumps(versions))

    def __call__(self) -> frozenset[int]:
        """Return which servers are to be drained now; if the folder can't be read, the previous ones."""
        with suppress(OSError):
            self._drained = _drained(self._frontend)
        return self._drained

    def steering(self) -> Iterator[Steering]:
        """Yield what is asked for since the last call, one request after the other."""
        with suppress(OSError):
            for path in sorted(self._frontend.glob("steer-*")):
                if path.name not in self._steered:
                    self._steered.add(path.name)
                    yield validate(Steering, read_json(path), str(path))


def _drained(folder_of_requests: Path) -> frozenset[int]:
    matches = [_DRAIN.fullmatch(path.name) for path in folder_of_requests.iterdir()]
    return frozenset(int(steering[1]) for steering in matches if steering)


NOBODY: Final = "none"


def drain(folder: Path, names: Sequence[str]) -> list[str]:
    """Drain these servers, and all those of these hosts, and no others, from now on; `NOBODY` means none.

    Returns:
        The names of the servers.

    Raises:
        InputError: nothing serves in that folder, or it has no such server or host.
    """
    (servers, _), folder_of_requests = _serving(folder), folder / CONTROL
    indices = [index for name in names if name != NOBODY for index in _indices_of(folder, servers, name)]
    try:
        for index in range(len(servers)):
            steering = folder_of_requests / f"drain-{index}"
            if index in indices:
                steering.touch()
            else:
                steering.unlink(missing_ok=True)
    except FileNotFoundError:
        raise _nothing_serves(folder) from None  # it has just ended
    return [servers[index][0] for index in sorted({*indices})]


def _indices_of(folder: Path, servers: Sequence[Server], name: str) -> list[int]:
    """Return the server of this name, or those of this host."""
    indices = [index for index, (server, _) in enumerate(servers) if server == name]
    indices = indices or [index for index, (_, host) in enumerate(servers) if host and host == name]
    if not indices:
        hint = nearest(name, {label for server in servers for label in server if label} | {NOBODY})
        raise InputError(str(folder), "", f"no server or host {name!r} serves here; {hint}")
    return indices


def steer(folder: Path, steering: Steering) -> None:
    """Change the goals, or the router, of what serves in a folder.

    Raises:
        InputError: nothing serves in that folder, or it is not a `serve`.
    """
    _, may_be_steered = _serving(folder)
    if not may_be_steered:
        raise InputError(str(folder), "", "goals and routers are changed while `serve` serves; this is another command")
    earlier = [int(match[1]) for path in (folder / CONTROL).iterdir() if (match := _STEER.fullmatch(path.name))]
    name = f"steer-{max(earlier, default=0) + 1:06}-{secrets.token_hex(4)}"
    write_json(folder / CONTROL / name, steering.model_dump(mode="json"))


def versions(folder: Path) -> list[dict[str, Any]]:
    """Return what is known of the versions that serve there while a canary is on; raises `InputError` as `steer`."""
    _serving(folder)
    path = folder / CONTROL / _VERSIONS
    return list(read_json(path)) if path.is_file() else []


def _serving(folder: Path) -> tuple[list[Server], bool]:
    """Return the servers, and whether they may be steered."""
    if not RunFolder(folder).is_in_use:
        raise InputError(str(folder), "", "no command runs in this folder, so nothing can be drained or steered")
    if not (folder / CONTROL / _SERVERS).is_file():
        raise _nothing_serves(folder)
    folder_of_requests = read_json(folder / CONTROL / _SERVERS)
    return [(server, host) for server, host in folder_of_requests["servers"]], folder_of_requests["may_be_steered"]


def _nothing_serves(folder: Path) -> InputError:
    problem = "the command in this folder has no servers up now; they can be drained while `validate` or `run` serves"
    return InputError(str(folder), "", problem)
