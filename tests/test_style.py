"""The style sheet finds idioms in prose, and none in code."""

from __future__ import annotations

import pytest

from tests.style import Idiom, Prose, found_in, of_module, of_page, read_sheet

IDIOM = Idiom(r"\bnobody\b", "no request", "nobody waits", 0, 0)
PAGE = "Nobody and nobody.\n\n    nobody\n\n```\nnobody\n```\n[nobody](nobody.md) and `nobody`\n"
MODULE = '''"""Nobody waits, nobody at all."""
key = "nobody"  # nobody comes
raise ValueError(f"here is nobody: {key}")
'''


def test_prose_of_a_page_has_no_code_and_no_addresses() -> None:
    places = found_in(list(of_page("page.md", PAGE)), IDIOM)
    assert [place.split(": ")[0] for place in places] == ["page.md:1", "page.md:8"]
    assert places[0].endswith("-> no request")


def test_prose_of_a_module_is_its_docstrings_comments_and_messages() -> None:
    places = found_in(list(of_module("module.py", MODULE)), IDIOM)
    assert sorted(place.split(": ")[0] for place in places) == ["module.py:1", "module.py:2", "module.py:3"]


@pytest.mark.parametrize("idiom", read_sheet(), ids=lambda idiom: idiom.example)
def test_each_idiom_of_the_sheet_is_found_in_its_example(idiom: Idiom) -> None:
    assert len(found_in([Prose("", idiom.example)], idiom)) == 1
