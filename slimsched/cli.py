"""The command line, made from the functions' signatures and docstrings; each command prints what its function returns.

Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hw  # noqa: F401 - sets the environment before torch is opened
from kit.errors import InputError, nearest
from scenarios.terminal.screen import BEGINS_ANEW, RESUMES, exit_code
from slimsched.commands import COMMANDS, JOBS, RESUMING


def overview(group: str = "") -> str:
    """List all commands, or those of a group, a line each."""
    commands = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(group)}
    if not group:
        commands = {name: text for name, text in commands.items() if not name.startswith("jobs ")} | {"jobs ...": JOBS}
    width = max(map(len, commands))
    return "\n".join(
        [
            f"Usage: slimsched {group + ' ' if group else ''}COMMAND ...",
            "",
            "Compares and runs schedulers of slimmable networks on unequal devices, and of training jobs.",
            "",
            *(f"  {name:<{width}}  {text}" for name, text in commands.items()),
            "",
            "slimsched COMMAND --help explains one; slimsched --version prints the version.",
        ]
    )


def command_of(arguments: Sequence[str]) -> str:
    """Return the command that words begin with; empty if they ask for the list of them (of a group).

    Raises:
        InputError: they begin with none; it names the nearest.
    """
    for name in (" ".join(arguments[:count]) for count in (1, 2)):
        if name in COMMANDS:
            return name
    groups = {name.partition(" ")[0] for name in COMMANDS if " " in name}
    is_group = arguments[:1] and arguments[0] in groups
    remaining = arguments[1:] if is_group else arguments
    if not remaining or remaining[0] in ("--help", "-h"):
        return ""
    where, allowed = "slimsched", sorted({name.partition(" ")[0] for name in COMMANDS})
    if is_group:
        where = f"slimsched {arguments[0]}"
        allowed = [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{arguments[0]} ")]
    raise InputError(where, "", f"unknown {remaining[0]!r}; {nearest(remaining[0], allowed)} (try {where} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments, command = list(sys.argv[1:] if argv is None else argv), ""

    def work() -> int:
        nonlocal command
        if arguments[:1] in (["--version"], ["-V"]):
            from kit.plugins import own_version

            sys.stdout.write(f"slimsched {own_version()}\n")
            return 0
        command = command_of(arguments)
        if not command:
            sys.stdout.write(f"{overview('' if not arguments or arguments[0].startswith('-') else arguments[0])}\n")
            return 0 if arguments else 2
        from slimsched.launching import launch  # opens what reads the words of one command

        return launch(command, arguments[len(command.split()) :])

    return exit_code("slimsched", work, lambda: RESUMES if command in RESUMING else BEGINS_ANEW)


if __name__ == "__main__":
    sys.exit(main())
