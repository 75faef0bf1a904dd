"""Tide and its rivals tuned on every main scenario, into `data/routers/` (`make routers`).

What has a file already, if only one that says why it could not be tuned, is left alone, but with `--force`. Each is
one `slimsched tune`, told before it begins.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from policies.errors import InputError, nearest
from policies.registry import RULES
from policies.tide.knobs import KIND as TIDE
from scenarios import cli
from scenarios.learn.tuned_files import failure_path
from scenarios.study.cases import ROUTERS, scenario_files, tuned_file
from scenarios.terminal.exits import exit_code

KINDS = (*RULES, TIDE)
SCENARIOS = Path(__file__).parents[1]


def tune_commands(
    folder: Path, only: Sequence[str] = (), kinds: Sequence[str] = KINDS, *, force: bool = False
) -> list[list[str]]:
    """The arguments of `slimsched` for each router that has no file yet, or with `force` for each.

    Raises:
        InputError: there is no such scenario or kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError("--router", "", f"{kind!r} is not tuned; {nearest(kind, KINDS)}")
    commands = []
    for path in scenario_files(folder, tuple(only)):
        if not path.name.startswith("main-"):
            continue
        for kind in kinds:
            file = tuned_file(folder / ROUTERS / path.stem, kind)
            if force or not (file.exists() or failure_path(file).exists()):
                commands.append(["tune", _near(path), "--router", kind, "--out", _near(file)])
    return commands


def _near(path: Path) -> str:
    """From where the user is, if it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main(argv: Sequence[str] | None = None, run: Callable[[Sequence[str]], int] = cli.main) -> int:
    """Tune them one after the other; stops at the first that fails, and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m scenarios.study.tune_all", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these scenarios")
    parser.add_argument("--router", nargs="+", default=KINDS, metavar="KIND", help=f"these of {', '.join(KINDS)}")
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, metavar="DIR")
    parser.add_argument("--force", action="store_true", help="also what has a file already")
    parser.add_argument("--dry-run", action="store_true", help="only tell the commands")
    given = parser.parse_args(argv)

    def work() -> int:
        commands = tune_commands(given.scenarios, given.only, given.router, force=given.force)
        if not commands:
            sys.stdout.write("nothing to tune: each has a file, or is not of a main scenario (--force tunes anew)\n")
        return _tune_all(commands, run, only_told=given.dry_run)

    return exit_code("routers", work)


def _tune_all(commands: Sequence[list[str]], run: Callable[[Sequence[str]], int], *, only_told: bool) -> int:
    for number, command in enumerate(commands, start=1):
        sys.stdout.write(f"[{number}/{len(commands)}] slimsched {' '.join(command)}\n")
        sys.stdout.flush()
        if only_told:
            continue
        out = Path(command[-1])
        out.parent.mkdir(parents=True, exist_ok=True)
        failure_path(out).unlink(missing_ok=True)
        code = run(command)
        if failure_path(out).exists():  # that a floor can't be kept is a result, too; an older router would hide it
            out.unlink(missing_ok=True)
        elif code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
