"""The event logs of a run in its folder, and what their replay needs: one of all cores, or the router's and one an
epoch.

A simulation writes one log. Real executors write the router's and one for each epoch of each server's agent; with them
a list of the epochs has how many steps each log has, how many the router had received, and how each epoch ended.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kit.documents import write_json
from kit.errors import InputError
from kit.files import atomic_path
from kit.named_files import NAME
from policies.codec import from_jsonable, to_jsonable
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig
from policies.records import AgentLog, LoggedStep, RunRecord
from scenarios.runs.folder import RunFolder

LOG_FILE: Final = "events.jsonl.gz"
EPOCHS_FILE: Final = "epochs.json"
CORES_FILE: Final = "cores.json"
LONGEST_LINE: Final = 50_000_000  # characters of a log's step
_SCHEMA: Final = "slimsched.epochs/1"
_EPOCH_FILES: Final = "events-*-epoch*.jsonl.gz"
_MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)  # data of another form

_Count = Annotated[int, msgspec.Meta(ge=0)]


class StoredEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One epoch of a server's agent, as the list of epochs has it; `steps` are of its log, the rest as in
    `AgentLog`."""

    server: _Count
    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    epoch: _Count
    steps: _Count
    heard: _Count
    ended: str

    @property
    def file(self) -> str:
        """Its log."""
        return f"events-{self.name}-epoch{self.epoch}.jsonl.gz"

    @classmethod
    def of(cls, log: AgentLog, record: RunRecord) -> StoredEpoch:
        """Return an epoch of a run."""
        name = record.servers[log.server].name
        return cls(log.server, name, log.epoch, len(log.steps), log.heard, log.ended)


class _Epochs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    server_epochs: tuple[StoredEpoch, ...]


# ------------------------------------------------------------------------------------------------------------ a run's


def write_logs(path: Path, record: RunRecord) -> list[Path]:
    """Write the logs that a run has kept, in its place, and remove those of an earlier one. Returns the files."""
    for former in (path / LOG_FILE, *path.glob(_EPOCH_FILES), path / EPOCHS_FILE):
        former.unlink(missing_ok=True)
    logs = {LOG_FILE: record.log} if record.log else {}
    server_epochs = [StoredEpoch.of(log, record) for log in record.agent_logs]
    logs |= {server_epoch.file: log.steps for server_epoch, log in zip(server_epochs, record.agent_logs, strict=True)}
    for name, steps in logs.items():
        write_log(path / name, steps)
    written = [path / name for name in logs]
    if server_epochs:
        write_json(path / EPOCHS_FILE, msgspec.to_builtins(_Epochs(_SCHEMA, tuple(server_epochs))))
        written.append(path / EPOCHS_FILE)
    return written


def logged_places(folder: RunFolder) -> list[str]:
    """Return the places of runs that have kept logs."""
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.path.glob(f"*/*/{LOG_FILE}"))


def read_epochs(folder: RunFolder, place: str) -> tuple[StoredEpoch, ...] | None:
    """Return the epochs of a run; None if one log holds the steps of all cores.

    Raises:
        InputError: the list is missing or damaged.
    """
    name = f"{place}/{EPOCHS_FILE}"
    if not (folder / name).exists() and not any((folder / place).glob(_EPOCH_FILES)):
        return None
    document = folder.read_json(name)
    with folder.mending(name):
        try:
            epochs = msgspec.convert(document, _Epochs)
        except msgspec.ValidationError as error:
            raise InputError(str(folder / name), "", f"no list of epochs: {error}") from None
        if epochs.schema != _SCHEMA:
            raise InputError(str(folder / name), "schema", f"allowed is {_SCHEMA!r} (found {epochs.schema!r:.80})")
    return epochs.server_epochs


# ------------------------------------------------------------------------------------------------------------ one log


def write_log(path: Path, log: Iterable[LoggedStep]) -> None:
    """Write the event log, one step a line."""
    with atomic_path(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8", compresslevel=5) as file:
        for step in log:
            commands = [to_jsonable(command) for command in step.commands]
            line = {"now_ns": step.now_ns, "core": step.core, "event": to_jsonable(step.event), "commands": commands}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_log(path: Path) -> Iterator[LoggedStep]:
    """Yield the steps of an event log; raises `InputError` naming the line if it is broken."""
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                yield _step(json.loads(line))
    except FileNotFoundError:
        raise InputError(str(path), "", "no event log here; run with one kept") from None
    except (OSError, EOFError, zlib.error, *_MALFORMED) as error:
        raise InputError(str(path), f"line {number}", f"no event log: {error}") from None


def _step(data: Mapping[str, Any]) -> LoggedStep:
    commands = tuple(from_jsonable(command) for command in data["commands"])
    return LoggedStep(int(data["now_ns"]), str(data["core"]), from_jsonable(data["event"]), commands)


# ------------------------------------------------------------------------------------------------------------ cores


def write_cores(folder: RunFolder, router: RouterConfig, servers: Sequence[GreedyKnobs]) -> None:
    """Write the settings of the real runs' cores, for their replay: the scenario may be another one by then."""
    write_json(folder / CORES_FILE, {"router": to_jsonable(router), "servers": [to_jsonable(k) for k in servers]})


def read_cores(folder: RunFolder) -> tuple[RouterConfig, list[GreedyKnobs]]:
    """Return what `write_cores` wrote; raises `InputError` if it is missing or broken."""
    path = folder / CORES_FILE
    if not path.is_file():
        raise InputError(str(path), "", "no such file, so the logs can't be replayed; `slimsched validate` writes it")
    document = folder.read_json(CORES_FILE)
    try:
        return from_jsonable(document["router"]), [from_jsonable(knobs) for knobs in document["servers"]]
    except _MALFORMED as error:
        raise InputError(str(path), "", f"no settings of cores: {error}; `slimsched validate` writes them") from None
