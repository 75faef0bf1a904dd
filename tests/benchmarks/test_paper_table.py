"""The paper's table, completed: exact where it is published, monotone everywhere, and as the file has it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import nnls

from benchmarks.__main__ import main
from benchmarks.study.paper_table import (
    FILE,
    PUBLISHED_PCT,
    SEGMENTS,
    STEP,
    TIE,
    WIDTHS,
    completed,
    first_differences,
    grid,
    paper_table,
    second_differences,
)
from hw.networks.accuracy_table import PaperTable, load_accuracy


@pytest.fixture(scope="module")
def table() -> PaperTable:
    found = load_accuracy(FILE)
    assert isinstance(found, PaperTable)
    return found


def test_the_published_values_stand_exactly(table: PaperTable) -> None:
    """Tables I and II to the last digit."""
    top1 = table.top1()
    assert {widths: top1[widths] for widths in PUBLISHED_PCT} == {
        widths: round(pct / 100, 4) for widths, pct in PUBLISHED_PCT.items()
    }


def test_paper_table_is_complete_and_within_the_published_accuracies(table: PaperTable) -> None:
    assert table.tuples == tuple(product(WIDTHS, repeat=SEGMENTS))
    assert min(table.shares) == 0.7030
    assert max(table.shares) == 0.7643


def test_a_wider_segment_is_always_better(table: PaperTable) -> None:
    """Strictly, for every segment and whatever the others have, by `STEP` but for the rounding."""
    top1 = table.top1()
    steps = 0
    for widths, segment in product(table.tuples, range(SEGMENTS)):
        place = WIDTHS.index(widths[segment])
        if place + 1 < len(WIDTHS):
            wider = (*widths[:segment], WIDTHS[place + 1], *widths[segment + 1 :])
            assert top1[wider] - top1[widths] > STEP - 2e-6
            steps += 1
    assert steps == 768


def test_the_file_is_what_the_program_prints(table: PaperTable, capsys: pytest.CaptureFixture[str]) -> None:
    """The committed file equals the regenerated table within 1e-6, and no hand has touched its form."""
    assert completed() == pytest.approx(np.array(table.shares), abs=1e-6)
    assert main(["paper-table"]) == 0
    printed = capsys.readouterr().out
    committed = FILE.read_text()
    assert printed.splitlines()[:8] == committed.splitlines()[:8]
    assert len(printed.splitlines()) == len(committed.splitlines())
    assert paper_table().dataset == table.dataset


def test_no_other_table_is_smoother() -> None:
    """At the minimum the smallest steps expected all that stands against the slope, none with a negative part."""
    shares, steps, rough = completed(), first_differences(), second_differences()
    free = np.array([widths not in PUBLISHED_PCT for widths in grid()])
    slope = (rough.T @ rough + TIE * steps.T @ steps) @ shares
    binding = steps @ shares < STEP + 1e-10
    assert (steps @ shares > STEP - 1e-10).all()
    _, left = nnls(steps[binding][:, free].T, slope[free])
    assert left < 1e-9 < 1e-3 < np.linalg.norm(slope[free])


def test_a_linear_fit_would_punish_a_wide_first_segment() -> None:
    """The shortest least-squares solution has a negative slope for segment 1, and misses by up to half a point."""
    points = np.array([[*widths, 1.0] for widths in PUBLISHED_PCT])
    values = np.array(list(PUBLISHED_PCT.values()))
    slopes, _, rank, _ = np.linalg.lstsq(points, values, rcond=None)
    assert slopes[0] < -0.3
    assert 0.4 < np.abs(points @ slopes - values).max() < 0.5
    assert rank == 4  # of 5: w1 - w2 - w3 + w4 is 0 at all eight
    assert np.abs(points[:, :4] @ [1, -1, -1, 1]).max() == 0


def test_no_additive_table_is_exact() -> None:
    """Both tables have every segment at every width once, so an additive model gives them one mean; they have two."""
    uniform, mixed = list(PUBLISHED_PCT)[:4], list(PUBLISHED_PCT)[4:]
    for segment in range(SEGMENTS):
        assert sorted(t[segment] for t in uniform) == sorted(t[segment] for t in mixed) == list(WIDTHS)
    means = [np.mean([PUBLISHED_PCT[widths] for widths in table]) for table in (uniform, mixed)]
    assert means == pytest.approx([73.6625, 73.385])
