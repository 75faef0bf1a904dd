"""The page of all commands, generated from their functions so that it can't be wrong.

`python -m benchmarks.study.commands_page > docs/commands.md` regenerates it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

from docstring_parser import parse

from slimsched import commands as cli
from slimsched.launching import app_of, function_of

_HEAD: Final = """# Commands

Made from the functions of `slimsched` by `python -m benchmarks.study.commands_page`: edit the docstrings there.
`slimsched COMMAND --help` prints the same. Defaults are in parentheses.

Every command also takes:

- `-h`, `--help`: print this help.
- `--json FILE`: write the result as JSON there; `-`: standard output.
- `-q`, `--quiet`: print results and errors only.
- `--no-own-code`: refuse to run a custom module:Class (also by SLIMSCHED_NO_OWN_CODE=1 in the environment).

Results go to standard output, the rest to standard error. The exit code is 0 for success, 1 if the work failed, 2 if an
input is wrong, and 130 after Ctrl-C.

"""
_PAGE: Final = re.compile(r"docs/([\w-]+)\.md")


def commands_markdown() -> str:
    """Return the whole page: a section for each command."""
    return _HEAD + "\n".join(map(_section, cli.COMMANDS))


def _section(name: str) -> str:
    rows = list(_rows(name))
    docstring = parse(function_of(name).__doc__ or "")
    text = _linked(" ".join(" ".join(filter(None, (docstring.short_description, docstring.long_description))).split()))
    title = f"## `slimsched {name}`\n\n{text}\n"
    return "\n".join([title, *rows, ""]) if rows else title


def _rows(name: str) -> Iterator[str]:
    meanings = {param.arg_name: param.description for param in parse(function_of(name).__doc__ or "").params}
    for argument in app_of(name).assemble_argument_collection():
        flags = [each for each in argument.names if each.startswith("-")]
        shown = ", ".join(f"`{flag}`" for flag in flags) or f"`{argument.name}`"
        yield _row(shown, meanings.get(argument.field_info.name) or "")


def _row(names: str, text: str) -> str:
    return f"- {names}: {_linked(' '.join(text.split()))}"


def _linked(text: str) -> str:
    """Turn pages that a text names as files into links."""
    return _PAGE.sub(r"[\1](\1.md)", text)


if __name__ == "__main__":
    sys.stdout.write(commands_markdown())
