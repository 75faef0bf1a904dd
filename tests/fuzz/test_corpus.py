"""What once went wrong, or well might, goes right: the whole corpus, each call in a watched process of its own."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.__main__ import warm_up
from tests.fuzz.cases import Case
from tests.fuzz.corpus import accepted, is_as_wanted, refused
from tests.fuzz.trial import attempt


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        warm_up()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in refused()])
def test_it_is_refused_in_one_line(case: Case, tmp_path: Path) -> None:
    """In time and memory, without a traceback, and nobody's file is touched."""
    found = attempt(case, tmp_path / "box")
    assert is_as_wanted("refused", case, found), (found.kind, found.note, found.ended and found.ended.err[-2000:])


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in accepted()])
def test_it_is_carried_out(case: Case, tmp_path: Path) -> None:
    """Odd names and places are no mistakes."""
    found = attempt(case, tmp_path / "box")
    assert is_as_wanted("ok", case, found), (found.kind, found.note, found.ended and found.ended.err[-2000:])
