"""What once went wrong, or well might, goes right: the whole corpus, each call watched in a process that is forked."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz.__main__ import warm_up
from tests.fuzz.cases import Case
from tests.fuzz.corpus import accepted, is_as_wanted, refused
from tests.fuzz.trial import attempt


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        warm_up(compiled=False)
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("wanted", "cases"), [("refused", refused), ("ok", accepted)])
def test_the_corpus(wanted: str, cases: Callable[[], Iterator[tuple[str, Case]]], tmp_path: Path) -> None:
    """Refused in one line, or carried out; in time and memory, without a traceback, and nobody's file is touched."""
    wrong = {}
    for name, case in cases():
        found = attempt(case, tmp_path / "box")
        if not is_as_wanted(wanted, case, found):
            wrong[name] = (found.kind, found.note, found.ended and found.ended.err[-2000:])
    assert wrong == {}
