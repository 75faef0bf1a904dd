"""The operator's door of a run folder: what serves there now, and what of it is to be drained.

The command at work holds the folder's lock; what its operator wishes meanwhile lies in files that need no lock. While
servers are up, `.slimsched/operator/` has `servers.json`, which says who they are, and an empty file `drain-N` for each
server N that is to be drained. A file is there or not: two operators at once do no harm, and nobody reads half a wish.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kit.documents import read_json, write_json
from kit.errors import InputError, nearest
from scenarios.runs.folder import CONTROL, RunFolder

Server = tuple[str, str]
"""A server's name, and its host's; empty where all are on one."""

_SERVERS: Final = "servers.json"
_DRAIN = re.compile(r"drain-(\d+)")


@contextmanager
def accept_wishes(folder: RunFolder, servers: Sequence[Server]) -> Iterator[Callable[[], frozenset[int]]]:
    """Within it the operator may drain these servers; yields what says which he wants drained now, by index."""
    door = folder / CONTROL
    with folder.opened():
        shutil.rmtree(door, ignore_errors=True)
        door.mkdir()
        try:
            write_json(door / _SERVERS, [list(server) for server in servers])
            yield _Wish(door)
        finally:
            shutil.rmtree(door, ignore_errors=True)


class _Wish:
    """Which servers are to be drained now; as far as the folder can't be read, those of before."""

    def __init__(self, door: Path) -> None:
        self._door = door
        self._last: frozenset[int] = frozenset()

    def __call__(self) -> frozenset[int]:
        with suppress(OSError):
            self._last = _drained(self._door)
        return self._last


def _drained(door: Path) -> frozenset[int]:
    matches = [_DRAIN.fullmatch(path.name) for path in door.iterdir()]
    return frozenset(int(wish[1]) for wish in matches if wish)


def drain(folder: Path, name: str, *, is_wanted: bool) -> tuple[list[str], list[str]]:
    """Have a server, or all those of a host, drained from now on; or no more.

    Returns:
        Their names, and those of all servers that are to be drained then.

    Raises:
        InputError: nothing serves in that folder, or it has no such server or host.
    """
    servers, door = _serving(folder), folder / CONTROL
    chosen = [index for index, (server, _) in enumerate(servers) if server == name]
    chosen = chosen or [index for index, (_, host) in enumerate(servers) if host and host == name]
    if not chosen:
        known = nearest(name, {word for server in servers for word in server if word})
        raise InputError(str(folder), "", f"no server or host {name!r} serves here; {known}")
    try:
        for wish in (door / f"drain-{index}" for index in chosen):
            if is_wanted:
                wish.touch()
            else:
                wish.unlink(missing_ok=True)
        drained = sorted(_drained(door))
    except FileNotFoundError:
        raise _nothing_serves(folder) from None  # it has just ended
    return [servers[index][0] for index in chosen], [servers[index][0] for index in drained]


def _serving(folder: Path) -> list[Server]:
    if not RunFolder(folder).is_in_use:
        raise InputError(str(folder), "", "no command runs in this folder, so nothing can be drained or returned")
    if not (folder / CONTROL / _SERVERS).is_file():
        raise _nothing_serves(folder)
    return [(server, host) for server, host in read_json(folder / CONTROL / _SERVERS)]


def _nothing_serves(folder: Path) -> InputError:
    problem = "the command in this folder has no servers up now; they can be drained while `validate` or `run` serves"
    return InputError(str(folder), "", problem)
