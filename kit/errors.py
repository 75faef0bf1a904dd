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


def in_a_line(text: str, most: int = 300) -> str:
    """Return text from a library or a user's code on one line: each run of whitespace becomes one space, and it is
    cut."""
    short = " ".join(text.split())
    return short if len(short) <= most else f"{short[:most]} ..."


def nearest(name: str, known: Iterable[str], lead: str = "known:", *, same_numbers: bool = False) -> str:
    """Return a phrase that names the known word most similar to an unknown one, and all known words.

    Args:
        lead: the text before the known words.
        same_numbers: only a word with the same digits is similar: an RTX 5090 isn't a mistyped RTX 4090.
    """
    words = sorted(known)
    bare = name[:100].lstrip("-")  # the dashes of a flag don't make two of them similar
    near = {word.lstrip("-"): word for word in words if not same_numbers or _digits(word) == _digits(name)}
    close = difflib.get_close_matches(bare, near, n=1) or _begin_alike(bare, near)
    hint = f"did you mean {near[close[0]]!r}? " if close else ""
    return f"{hint}{lead} {', '.join(words)}"


def _begin_alike(name: str, words: Iterable[str]) -> list[str]:
    """Return the one word that begins with another and `_`: `rate_img_s` for `rate`; none if there are several."""
    longer = [word for word in words if word.startswith(f"{name}_")]
    return longer if len(longer) == 1 else []


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))
