"""The page of all commands, made from their flags themselves so that it can't lie.

`python -m benchmarks.study.commands_page > docs/commands.md` writes it anew.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Final

from scenarios.cli import COMMANDS, Command
from scenarios.terminal.flags import Parser

_HEAD: Final = """# Commands

Made from `scenarios/cli.py` by `python -m benchmarks.study.commands_page`: edit the help there. The same is said by
`slimsched COMMAND --help`.

Every command also takes `-h`, `--help`; `--json FILE`: write the result as JSON there, `-` for standard output; and
`-q`, `--quiet`: no progress, no remarks, but results and errors only. Results go to standard output, the rest to
standard error. The exit code is 0 where all went well, 1 where the work failed, 2 where something that was given is
wrong, and 130 after Ctrl-C.

| command | does |
|---|---|
"""
_PAGE: Final = re.compile(r"docs/([\w-]+)\.md")


class _Listening(Parser):
    """A parser that tells which arguments it was given."""

    def __init__(self) -> None:
        self.arguments: list[argparse.Action] = []
        super().__init__(add_help=False)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **options))
        return self.arguments[-1]


def commands_markdown() -> str:
    """The whole page: a list of all commands, then a section each."""
    anchors = {name: f"slimsched-{name.replace(' ', '-')}" for name in COMMANDS}
    rows = [f"| [`slimsched {name}`](#{anchors[name]}) | {known.help} |" for name, known in COMMANDS.items()]
    sections = [_section(name, known) for name, known in COMMANDS.items()]
    return _HEAD + "\n".join([*rows, "", *sections])


def _section(name: str, known: Command) -> str:
    parser = _Listening()
    for add in known.flags:
        add(parser)
    title = f"## `slimsched {name}`\n\n{known.help[0].upper()}{known.help[1:]}.\n"
    rows = [_row(argument) for argument in parser.arguments]
    return "\n".join([title, "| argument | meaning |", "|---|---|", *rows, ""]) if rows else title


def _row(argument: argparse.Action) -> str:
    value = "" if argument.nargs == 0 else argument.metavar
    value = f"[{value}]" if argument.nargs == "?" else value
    words = [f"`{word} {value}`" if value else f"`{word}`" for word in argument.option_strings] or [f"`{value}`"]
    needed = "must be given: " if argument.option_strings and argument.required else ""
    text = (argument.help or "") % vars(argument)
    meaning = _PAGE.sub(r"[\1](\1.md)", text.replace("|", "\\|").replace("*", "\\*"))
    return f"| {', '.join(words)} | {needed}{meaning} |"


if __name__ == "__main__":
    sys.stdout.write(commands_markdown())
