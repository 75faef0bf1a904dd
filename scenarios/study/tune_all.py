"""Tide and its rivals tuned on every main scenario, into `data/routers/` (`make routers`).

What has a file already, if only one that says why it could not be tuned, is left alone, but with `--force`. Each is
one `slimsched tune`, told before it begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from policies.errors import InputError, nearest
from policies.registry import RULES
from policies.tide.knobs import KIND as TIDE
from scenarios.learn.tune import FloorError
from scenarios.learn.tuned_files import failure_path
from scenarios.learn.tuning import Tuning, tune_router, tuned_text
from scenarios.study.cases import ROUTERS, scenario_files, tuned_file
from scenarios.terminal.compiling import telling

KINDS = (*RULES, TIDE)


def tunings(
    folder: Path, only: Sequence[str] = (), kinds: Sequence[str] = KINDS, *, force: bool = False
) -> list[Tuning]:
    """What is to be tuned: each router that has no file yet, or with `force` each.

    Raises:
        InputError: there is no such scenario or kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError("--router", "", f"{kind!r} is not tuned; {nearest(kind, KINDS)}")
    found = []
    for path in scenario_files(folder, tuple(only)):
        if not path.name.startswith("main-"):
            continue
        for kind in kinds:
            file = tuned_file(folder / ROUTERS / path.stem, kind)
            if force or not (file.exists() or failure_path(file).exists()):
                found.append(Tuning(_near(path), kind, _near(file)))
    return found


def _near(path: Path) -> Path:
    """From where the user is, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def tune(wanted: Tuning) -> str:
    """Tune one; returns what was found, in words."""
    with telling(lambda text: print(text, file=sys.stderr)):
        return tuned_text(tune_router(wanted)[0])


def tune_all(wanted: Sequence[Tuning], tune: Callable[[Tuning], str] = tune, *, only_told: bool = False) -> None:
    """Tune them one after the other; the first error ends it, but for a floor that can't be kept: that is a result."""
    if not wanted:
        sys.stdout.write("nothing to tune: each has a file, or is not of a main scenario (--force tunes anew)\n")
    for number, each in enumerate(wanted, start=1):
        told = f"slimsched tune {each.scenario} --router {each.router} --out {each.out}"
        sys.stdout.write(f"[{number}/{len(wanted)}] {told}\n")
        sys.stdout.flush()
        if only_told:
            continue
        assert each.out is not None, "named by `tunings`"
        failure_path(each.out).unlink(missing_ok=True)
        try:
            sys.stdout.write(tune(each) + "\n")
        except FloorError as error:
            each.out.unlink(missing_ok=True)  # an older router would hide it
            sys.stdout.write(f"{error}\n")
