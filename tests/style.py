"""The style sheet as a gate: idioms in pages, docstrings, comments, messages and templates, whose counts may only fall.

    python -m tests.style                # fails if an idiom occurs more often than in style.tsv
    python -m tests.style -v "word"      # lists where the idioms whose pattern holds that word are
    python -m tests.style --lower        # writes the present counts, where they are lower

`style.tsv` has a row for each idiom: a regular expression, what to write instead, an example, and its counts in pages
and in source.
Code in pages, and whatever is between backticks, is left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]
SHEET: Final = Path(__file__).with_suffix(".tsv")
Kind = Literal["pages", "source"]
KINDS: Final[tuple[Kind, ...]] = ("pages", "source")
PACKAGES: Final = ("kit", "policies", "sim", "hw", "calibrate", "scenarios", "jobs", "slimsched", "benchmarks")
_LINK: Final = re.compile(r"\]\([^)]*\)")
_CODE: Final = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Idiom:
    """One row of the sheet."""

    pattern: str
    instead: str
    example: str
    pages: int
    source: int


@dataclass(frozen=True)
class Prose:
    """A piece of text, and where it is."""

    place: str
    text: str


def read_sheet() -> list[Idiom]:
    """Return the rows of the style sheet."""
    _, *lines = SHEET.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return [
        Idiom(pattern, instead, example, int(pages), int(source)) for pattern, instead, example, pages, source in rows
    ]


def write_sheet(idioms: list[Idiom]) -> None:
    """Write the rows of the style sheet."""
    lines = ["\t".join(field.name for field in fields(Idiom))]
    lines += ["\t".join(map(str, astuple(idiom))) for idiom in idioms]
    SHEET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def prose(kind: Kind) -> Iterator[Prose]:
    """Yield the prose of all committed pages, or of all committed source."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = Path(name)
        is_page = path.suffix == ".md" and path.parts[0] in ("README.md", "docs", "examples")
        if kind == "pages" and is_page and (ROOT / path).is_file():
            yield from of_page(name, (ROOT / path).read_text(encoding="utf-8"))
        elif kind == "source" and path.parts[0] in PACKAGES and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8") if path.suffix in (".py", ".j2") else ""
            yield from of_module(name, text) if path.suffix == ".py" else of_page(name, text)


def of_page(name: str, text: str) -> Iterator[Prose]:
    """Yield the lines of a page or template, without its code and the addresses of links."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not (name.endswith(".md") and line.startswith("    ")):
            yield Prose(f"{name}:{number}", _LINK.sub("]", line))


def of_module(name: str, text: str) -> Iterator[Prose]:
    """Yield the comments of a module, and its strings of three words or more: docstrings and messages."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(f"{name}:{token.start[0]}", token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield Prose(f"{name}:{node.lineno}", node.value)


def found_in(pieces: list[Prose], idiom: Idiom) -> list[str]:
    """Return each place where an idiom occurs, with the words around it."""
    pattern, places = re.compile(idiom.pattern), list[str]()
    for piece in pieces:
        text = _CODE.sub("X", piece.text)
        for match in pattern.finditer(text):
            around = text[max(0, match.start() - 40) : match.end() + 40]
            places.append(f"{piece.place}: ...{' '.join(around.split())}... -> {idiom.instead}")
    return places


def main() -> int:
    """Check, list or lower the counts; returns 1 if one has risen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", dest="word", metavar="WORD", help="list the places of idioms whose pattern holds it")
    parser.add_argument("--lower", action="store_true", help="write counts that have fallen")
    wanted = parser.parse_args()
    idioms, counts = read_sheet(), dict[Kind, Counter[str]]()
    risen = False
    for kind in KINDS:
        pieces = list(prose(kind))
        found = {idiom.pattern: found_in(pieces, idiom) for idiom in idioms}
        counts[kind] = Counter({pattern: len(places) for pattern, places in found.items()})
        for idiom in idioms:
            most = getattr(idiom, kind)
            if wanted.word and wanted.word in idiom.pattern:
                print("\n".join(found[idiom.pattern]))
            if counts[kind][idiom.pattern] > most:
                print(f"{kind}: {idiom.pattern} occurs {counts[kind][idiom.pattern]} times, {most} are allowed:")
                print("  write: " + idiom.instead + "; list all with -v")
                risen = True
        words = sum(len(piece.text.split()) for piece in pieces)
        total = counts[kind].total()
        print(f"{kind}: {total:,} idioms in {words:,} words, one in {words / max(total, 1):.0f}")
    if wanted.lower:
        write_sheet([
            replace(idiom, **{kind: min(getattr(idiom, kind), counts[kind][idiom.pattern]) for kind in KINDS})
            for idiom in idioms
        ])  # fmt: skip
    return int(risen)


if __name__ == "__main__":
    raise SystemExit(main())
