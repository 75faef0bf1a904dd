"""Are the tuned routers that ship of now? Each file says how it was made, and each note why there can be none."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from kit.documents import write_text
from kit.errors import InputError
from scenarios.files.router_names import made_by, without_ending
from scenarios.learn.tuned_files import world_of_now
from scenarios.world.world import World

FAILURE_SUFFIX: Final = ".failed.txt"
_COMMAND: Final = re.compile(r"\((slimsched train .*)\)\s*$")  # ends every note of a failure


def failure_path(path: Path) -> Path:
    """Beside where a router would lie: why there is none."""
    return path.with_name(without_ending(path.name) + FAILURE_SUFFIX)


def note_failure(path: Path, problem: str, command: str) -> None:
    """Write beside where a router would lie why there is none, in the place of an older router."""
    write_text(failure_path(path), f"{problem} ({command})\n")
    path.unlink(missing_ok=True)


def why_tune(path: Path, command: str, world: World) -> str:
    """Why a router is to be tuned (again), in words; empty where its file, or the note that there can be none, is of
    this command and world."""
    if not path.is_file():
        if not failure_path(path).is_file():
            return "no file yet"
        noted = _COMMAND.search(failure_path(path).read_text(encoding="utf-8"))
        return _differences(noted[1], command) if noted else ""
    try:
        making = made_by(path)
    except InputError as error:
        where = f"{error.key}: " if error.key else ""
        return f"its file can't be read: {where}{error.problem}"
    reasons = [_differences(str(making.get("command", "")), command)]
    for key, here in world_of_now(world).items():
        if making.get(key) != here:
            reasons.append(f"{key} {making.get(key)}, now {here}")
    return "; ".join(filter(None, reasons))


def _differences(before: str, now: str) -> str:
    """What one command sets otherwise than another; the scenario's folder says nothing of it."""
    before_set, now_set = _settings(before), _settings(now)
    keys = [key for key in {**now_set, **before_set} if before_set.get(key) != now_set.get(key)]
    return "; ".join(f"{key} {before_set.get(key, 'not given')}, now {now_set.get(key, 'not given')}" for key in keys)


def _settings(command: str) -> dict[str, str]:
    """By key what `slimsched train SCENARIO --router KIND --set KEY=VALUE ...` sets."""
    words = shlex.split(command)
    if len(words) < 5:
        return {}
    pairs = (word.partition("=") for word in words[6::2])
    return {"scenario": Path(words[2]).name, "router": words[4], **{key: value for key, _, value in pairs}}
