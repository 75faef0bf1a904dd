"""The known answers of `docs/simulation-in-detail.md` are those of `kit.random_streams`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.random_streams import derived_seed, hashed, hashed_share, stream

PAGE = Path("docs/simulation-in-detail.md").read_text(encoding="utf-8")
WORDS = {"hash": hashed, "salt": derived_seed, "share": hashed_share, "stream": stream}
ANSWERS = re.findall(r"^\| `((?:hash|salt|share|stream)\(.*)` \| ([\d.]+)", PAGE, re.MULTILINE)


def test_every_word_of_chance_has_a_known_answer() -> None:
    assert {formula.partition("(")[0] for formula, _ in ANSWERS} == set(WORDS)


@pytest.mark.parametrize(("formula", "value"), ANSWERS)
def test_a_known_answer(formula: str, value: str) -> None:
    assert repr(eval(formula, WORDS)) == value
