"""Errors by cause: `InputError` for the user's input (exit code 2), `WorkError` for a failure of the run (exit code
1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An error in the user's input; nothing was run.

    Attributes:
        source: the file (or flag) that contains the error.
        key: the key inside it, dotted, followed by the name of a list's item (`cluster.servers.0.profile (fast)`);
            empty for the file as a whole.
        problem: what was found and what is expected, with the remedy.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        self.source = source
        self.key = key
        self.problem = problem
        super().__init__(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, ...]]:
        """Rebuild the error from its parts when it crosses a process boundary."""
        return type(self), (self.source, self.key, self.problem)


class WorkError(RuntimeError):
    """A failure of the run that the input did not cause."""


def in_a_line(text: str, limit: int = 300) -> str:
    """Return text from a library or a user's code on one line: each run of whitespace becomes one space, and it is
    cut."""
    short = " ".join(text.split())
    return short if len(short) <= limit else f"{short[:limit]} ..."


def nearest(name: str, names: Iterable[str], lead: str = "known:", *, same_numbers: bool = False) -> str:
    """Return a phrase that names the known word most similar to an unknown one, and all known words.

    Args:
        lead: the text before the known words.
        same_numbers: only a word with the same digits is similar: an RTX 5090 isn't a mistyped RTX 4090.
    """
    ordered = sorted(names)
    bare = name[:100].lstrip("-")  # the dashes of a flag don't make two of them similar
    near = {word.lstrip("-"): word for word in ordered if not same_numbers or _digits(word) == _digits(name)}
    longer = [word for word in near if word.startswith(f"{bare}_")]  # `rate_img_s` for `rate`, if it is the only one
    close = difflib.get_close_matches(bare, near, n=1) or (longer if len(longer) == 1 else [])
    hint = f"did you mean {near[close[0]]!r}? " if close else ""
    return f"{hint}{lead} {', '.join(ordered)}"


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))
