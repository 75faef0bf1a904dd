"""What a command line is parsed with: a parser that names the nearest word, and what the text of a flag may be."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from kit.errors import InputError, nearest
from kit.files import possible_path

SHORTEST_S: Final = 1e-3


SHORT: Final = {"--out": "-o", "--quiet": "-q", "--router": "-r", "--seed": "-s"}  # wherever a command has the flag


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts no abbreviations and raises `InputError` instead of ending the process."""

    def __init__(self, **options: Any) -> None:
        self.flags: list[str] = []
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """As every parser does; long flags are remembered, and the most used have a short form."""
        self.flags += [name for name in names if name.startswith("--")]
        short = [SHORT[name] for name in names if name in SHORT]
        return super().add_argument(*short, *names, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, with the command that explains it."""
        raise InputError(self.prog, "", f"{message} (try {self.prog} --help)")

    def require_none(
        self, unknown: Sequence[str], commands_with: Callable[[str], Sequence[str]] = lambda _: ()
    ) -> None:
        """Raises `InputError` where words are left that nothing took; it names the nearest flag.

        Args:
            commands_with: tells the other commands that take a flag.
        """
        if unknown:
            known = nearest(unknown[0], self.flags) if unknown[0].startswith("-") else "it takes no such argument"
            if others := commands_with(unknown[0].partition("=")[0]):
                known = f"commands that take it: {', '.join(others)}; {known}"
            raise InputError(self.prog, "", f"unknown {unknown[0]!r}; {known}")

    def require_word(self, name: str, word: str, known: Iterable[str]) -> None:
        """Raises `InputError` for a word that is not known, with the nearest that is."""
        if word not in (words := tuple(known)):
            self.error(f"{name}: unknown {word!r}; {nearest(word, words)}")


# ------------------------------------------------------------------------------------------------ what a flag's text is


def one_of(*known: str) -> Callable[[str], str]:
    """One of some words."""

    def word(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown {text!r}; {nearest(text, known)}")
        return text

    return word


MOST: Final = 10**15  # of any whole number: beyond, no machine gets there


def whole(text: str) -> int:
    """0, 1, 2 ..."""
    return _whole(text, 0, MOST)


def positive(text: str) -> int:
    """1, 2, 3 ..."""
    return _whole(text, 1, MOST)


def up_to(most: int) -> Callable[[str], int]:
    """1, 2, 3 ... `most`."""
    return lambda text: _whole(text, 1, most)


def _whole(text: str, least: int, most: int) -> int:
    is_whole = text.isascii() and text.isdigit() and len(text) <= len(str(MOST))
    if not is_whole or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r:.40}: must be a whole number, at least {least}, at most {most:,}")
    return int(text)


def share(text: str) -> float:
    """From 0 to 1."""
    return _between(text, 0.0, 1.0)


def above_zero(text: str) -> float:
    """More than 0; at most 1000."""
    return _between(text, 1e-6, 1000.0)


def load(text: str) -> float:
    """A share of a cluster, above 0; at most 10, for a larger one is meant in percent."""
    value = above_zero(text)
    if value > 10:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is a share of the cluster; {value:g} % is {value / 100:g}")
    return value


def pairs(text: str) -> dict[str, str]:
    """`a=b,c=d`: words by other words."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not (key and equals and value) or key in found:
            raise argparse.ArgumentTypeError(f"{part!r:.80}: must be pairs such as a=b,c=d, each word once")
        found[key] = value
    return found


def precision(text: str) -> float:
    """Of a search, as a share."""
    return _between(text, 0.001, 0.5)


def _between(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        number = text.strip().removesuffix("%")
        helps = f"; {number} % is {float(number) / 100:g}" if number.isdecimal() and 1 < float(number) <= 100 else ""
        raise argparse.ArgumentTypeError(f"{text!r:.40}: must be a number from {least:g} to {most:g}{helps}")
    return value


def duration_s(text: str) -> float:
    """`45s`, `5m`, `1h`: more than none."""
    return _duration_s(text, SHORTEST_S)


def _duration_s(text: str, least_s: float) -> float:
    from kit.units import parse_duration
    from scenarios.files.spec import LONGEST_S

    try:
        value_s = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not least_s <= value_s <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r:.40}: must be from {least_s:g} to {LONGEST_S:g} seconds")
    return value_s


def path(text: str) -> Path:
    """A path."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    try:
        return Path(possible_path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def new_file(text: str) -> Path:
    """A file that can be written; its folder is made."""
    from scenarios.terminal.places import writable_file

    return _checked(text, writable_file)


def new_file_here(text: str) -> Path:
    """A file that can be written into a folder that is there."""
    from scenarios.terminal.places import in_a_folder, writable_file

    return _checked(text, in_a_folder, writable_file)


def json_file(text: str) -> Path:
    """A file for JSON, or `-` for standard output."""
    return path(text) if text == "-" else new_file_here(text)


def picture(text: str) -> Path:
    """A file for a picture."""
    if path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text}: name a .png or .svg file")
    return new_file(text)


def new_folder(text: str) -> Path:
    """A folder that can be written into; it is made."""
    from scenarios.terminal.places import writable_folder

    return _checked(text, writable_folder)


def _checked(text: str, *checks: Callable[[Path], Path]) -> Path:
    place = path(text)
    try:
        for check in checks:
            check(place)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return place
