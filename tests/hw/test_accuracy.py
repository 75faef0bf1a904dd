"""Accuracy tables as files: what comes back, how small it is, and what is refused, always with one clear error."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.networks.accuracy_table import (
    AccuracyTable,
    Evaluation,
    PaperTable,
    accuracy_text,
    load_accuracy,
    save_accuracy,
)
from kit.errors import InputError

TUPLES = tuple(product((0.5, 1.0), repeat=2))
PAPER = PaperTable(TUPLES, (0.5, 0.625, 0.7, 0.8), "cifar100")


def evaluation(images: int = 101) -> Evaluation:
    """Random bits; 101 x 4 of them end within a byte."""
    return Evaluation(TUPLES, np.random.default_rng(0).random((images, 4)) < 0.5, "0123", "digits")


def text(table: AccuracyTable, **changes: Any) -> str:
    """A table's file with some keys changed, or (`...`) left out."""
    raw = {**json.loads(accuracy_text(table)), **changes}
    return json.dumps({key: value for key, value in raw.items() if value is not ...})


def refusal(path: Path, text: str) -> InputError:
    """The error that a file of this text is refused with."""
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_accuracy(path)
    assert caught.value.source == str(path)
    for leaked in ("KeyError", "TypeError", "ValueError", "Traceback"):
        assert leaked not in str(caught.value)
    return caught.value


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def test_a_measured_table_comes_back(tmp_path: Path) -> None:
    """Bits, tuples and names survive, and so do shares to the last digit."""
    made = evaluation()
    save_accuracy(tmp_path / "new" / "accuracy.json", made)
    found = load_accuracy(tmp_path / "new" / "accuracy.json")
    assert isinstance(found, Evaluation)
    assert np.array_equal(found.correct, made.correct)
    assert (found.tuples, found.hash, found.dataset) == (TUPLES, "0123", "digits")
    assert found.top1() == made.top1()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["accuracy.json"]


def test_a_table_of_the_paper_comes_back(tmp_path: Path) -> None:
    save_accuracy(tmp_path / "paper.json", PAPER)
    assert load_accuracy(tmp_path / "paper.json") == PAPER
    document = json.loads((tmp_path / "paper.json").read_text())
    assert [document[key] for key in ("provenance", "model", "images", "correct")] == ["paper", None, None, None]


def test_every_tuple_has_its_line_and_bits_that_agree_are_small() -> None:
    """10,000 images x 256 tuples that mostly agree within an image: under 400 KB, which the raw bits are not."""
    rng = np.random.default_rng(0)
    tuples = tuple(product((0.25, 0.5, 0.75, 1.0), repeat=4))
    ease = rng.normal(1.0, 1.6, 10_000)[:, None]
    gain = np.array([0.5 * sum(widths) - 1.0 for widths in tuples])
    written = accuracy_text(Evaluation(tuples, ease + gain + rng.normal(0, 0.5, (10_000, 256)) > 0, "0", "cifar100"))
    assert len(written) < 400_000 < 10_000 * 256 // 8 * 4 / 3
    assert "\n  [0.25, 0.25, 0.25, 0.25],\n  [0.25, 0.25, 0.25, 0.5],\n" in written
    assert len(written.splitlines()) == 2 * 256 + 12


@pytest.mark.parametrize(
    "table, changes, key, problem",
    [
        ("measured", {"schema": "slimsched.accuracy/1"}, "schema", "expected 'slimsched.accuracy/2'; delete"),
        ("measured", {"image": 3}, "image", "did you mean 'images'"),
        ("measured", {"model": ...}, "model", "missing; it must be given"),
        ("measured", {"model": None}, "model", "must be given in a measured table"),
        ("measured", {"dataset": ""}, "dataset", "at least 1 character"),
        ("measured", {"tuples": [[]]}, "tuples.0", "at least 1 item"),
        ("measured", {"tuples": [[0.5, 1.5]]}, "tuples.0.1", "less than or equal to 1"),
        ("measured", {"tuples": [[0.5], [1.0, 1.0]]}, "tuples.1", "has 2 widths, the first tuple has 1"),
        ("measured", {"tuples": [[0.5], [1], [1.0]]}, "tuples.2", "is already at tuples.1"),
        ("measured", {"tuples": [[0.5, 0.5], [0.5, 1], [1, 1]]}, "tuples", r"1 of the 2\^2 .*, first \[1.0, 0.5\]"),
        ("measured", {"top1": [0.5]}, "top1", "1 values for 4 tuples"),
        ("measured", {"top1": [0.5, float("nan"), 0.5, 0.5]}, "top1.1", "finite number"),
        ("measured", {"top1": [0.1] * 4}, "top1.0", r"is 0.1 for \[0.5, 0.5\], but the bits say 0.4"),
        ("measured", {"images": 99}, "images", "greater than or equal to 100"),
        ("measured", {"images": 10**12}, "images", "may be 1e"),
        ("measured", {"images": 102, "correct": packed(bytes(50))}, "correct", "cut off after 50 of 51 bytes"),
        ("measured", {"correct": "!"}, "correct", "broken bits of 101 images x 4 tuples"),
        ("measured", {"correct": packed(bytes(52))}, "correct", "more than the 51 bytes"),
        ("measured", {"correct": base64.b64encode(zlib.compress(bytes(51))[:-1]).decode()}, "correct", "cut off"),
        ("measured", {"correct": base64.b64encode(zlib.compress(bytes(51)) + b"x").decode()}, "correct", "1 bytes beh"),
        ("paper", {"correct": ""}, "correct", "must be null in a table of the paper; correct the file, or write the p"),
        ("paper", {"images": 100}, "images", "must be null in a table of the paper"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, table: str, changes: Any, key: str, problem: str) -> None:
    """One error names the file, the key, what was found and the remedy."""
    error = refusal(tmp_path / "bad.json", text(PAPER if table == "paper" else evaluation(), **changes))
    assert error.key == key
    with pytest.raises(InputError, match=problem):
        raise error


def test_accuracy_file_that_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    assert "cannot be read as JSON" in refusal(tmp_path / "bad.json", "[" * 100_000).problem


def test_a_zip_bomb_is_not_inflated(tmp_path: Path) -> None:
    """64 MB behind 64 KB: refused without making them."""
    path = tmp_path / "bomb.json"
    path.write_text(text(evaluation(), correct=packed(bytes(64_000_000))))
    tracemalloc.start()
    with pytest.raises(InputError, match="more than the 51 bytes"):
        load_accuracy(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4_000_000


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.lists(st.sampled_from([0.5, 1.0, 0, 2, None]), max_size=3), max_size=5)
KEYS = st.sampled_from(["provenance", "model", "dataset", "images", "tuples", "top1", "correct"])


@given(st.dictionaries(KEYS, ANY | ROWS, min_size=1, max_size=3), st.sampled_from(["paper", "measured"]))
def test_accuracy_file_with_arbitrary_changes_loads_or_raises_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], kind: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(text(PAPER if kind == "paper" else evaluation(), **changes))
    try:
        found = load_accuracy(path)
    except InputError:
        return
    assert set(found.top1()) == set(product({w for row in found.tuples for w in row}, repeat=len(found.tuples[0])))
