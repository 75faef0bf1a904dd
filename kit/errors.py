"""Errors that say whose fault it is: `InputError` the user's (exit code 2), `WorkError` the work's (exit code 1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave is wrong; nothing was run.

    Attributes:
        source: the file (or flag) that holds it.
        key: the key inside it, dotted, with the name of a list's item after it (`cluster.servers.0.profile (fast)`), or
            empty for the file as a whole.
        problem: what was found and what is allowed, with the remedy.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        self.source = source
        self.key = key
        self.problem = problem
        super().__init__(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, ...]]:
        """Made again from its parts where it comes out of another process."""
        return type(self), (self.source, self.key, self.problem)


class WorkError(RuntimeError):
    """The work itself failed, through no fault of the input."""


def in_a_line(text: str, most: int = 300) -> str:
    """Somebody else's words (a library's, or a user's code), with what is between them as one space each, and cut."""
    short = " ".join(text.split())
    return short if len(short) <= most else f"{short[:most]} ..."


def nearest(name: str, known: Iterable[str], lead: str = "known:", *, same_numbers: bool = False) -> str:
    """A phrase that names the known word nearest to an unknown one, and all the known ones.

    Args:
        lead: before the known ones.
        same_numbers: only a word with the same digits is near: an RTX 5090 is no mistyped RTX 4090.
    """
    words = sorted(known)
    bare = name[:100].lstrip("-")  # the dashes of a flag make no two of them alike
    near = {word.lstrip("-"): word for word in words if not same_numbers or _digits(word) == _digits(name)}
    close = difflib.get_close_matches(bare, near, n=1) or _begin_alike(bare, near)
    hint = f"did you mean {near[close[0]]!r}? " if close else ""
    return f"{hint}{lead} {', '.join(words)}"


def _begin_alike(name: str, words: Iterable[str]) -> list[str]:
    """The one word that begins with another and `_`: `rate_img_s` for `rate`; none where there are several."""
    longer = [word for word in words if word.startswith(f"{name}_")]
    return longer if len(longer) == 1 else []


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))
