"""Why a router's file should be tuned again: it was made otherwise than now, or for another world or load."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from kit.errors import InputError
from scenarios.files.router_names import made_by
from scenarios.learn.tuned_files import failed_command, failure_path, load_of
from scenarios.world.routers import deciding_in
from scenarios.world.world import World

_NAMES: Final = {
    "tuning.floor": "--floor",
    "tuning.decisions": "--decisions",
    "tuning.searches": "--searches",
    "seed": "--seed",
    "tuning.objective": "--objective",
}


def why_tune(path: Path, command: str, world: World) -> str:
    """In words; empty where the file, or the note that there can be none, is of this command and world.

    What no tuning made is a user's, and stays.
    """
    if not path.is_file():
        if not failure_path(path).is_file():
            return "no file yet"
        made = failed_command(path)
        return "" if made is None else _differences(made, command)
    try:
        told = made_by(path)
    except InputError as error:
        where = f"{error.key}: " if error.key else ""
        return f"its file can't be read: {where}{error.problem}"
    if "command" not in told:
        return ""
    found = [_differences(str(told["command"]), command)]
    now = {"devices": list(world.device_names), "deciding": deciding_in(world.cluster), "load": load_of(world.scenario)}
    for key, here in now.items():
        if key not in told:
            found.append(f"{key} not told")
        elif told[key] != here:
            found.append(f"{key} {told[key]}, now {here}")
    return "; ".join(filter(None, found))


def _differences(made: str, command: str) -> str:
    """What differs of two commands, flag by flag."""
    before, now = _flags(made), _flags(command)
    keys = [key for key in {**now, **before} if before.get(key) != now.get(key)]
    return "; ".join(f"{key} {before.get(key, 'not given')}, now {now.get(key, 'not given')}" for key in keys)


def _flags(command: str) -> dict[str, str]:
    """By setting what a command says of it; the scenario by its name alone, for where it lies says nothing of it.

    Files and notes that ship were made by `slimsched tune`, whose flags `train` takes as settings of the scenario.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if words[:1] != ["slimsched"] or words[1:2] not in (["tune"], ["train"]) or len(words) % 2 == 0:
        return {"command": command}
    found = {"scenario": Path(words[2]).name}
    for flag, value in zip(words[3::2], words[4::2], strict=True):
        key, _, text = value.partition("=") if flag == "--set" else (flag, "", value)
        key = _NAMES.get(key, key)
        found[key] = f"{found[key]} {text}" if key in found else text
    return found
