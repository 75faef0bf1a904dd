"""One table, three ways to write it; numbers as the catalogue wants them."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.metrics.metric_catalogue import MEASURES
from scenarios.show.tables import Column, Table, column, columns, interval, number, places, plural, to_markdown, to_text

P99 = column(MEASURES["latency_p99_s"])
WIDE = Table(
    [Column("router"), *(Column(f"measure {letter}", "ms") for letter in "abcdefgh"), Column("said", is_text=True)],
    [[name, *(f"{place * 10:.2f} +-0.25" for place in range(8)), "so"] for name in ("random", "a-longer-name")],
    title="a title",
    notes=["a note that is a sentence of more than forty characters, so it has to be broken"],
)


def test_numbers_are_right_and_words_are_left() -> None:
    table = Table([Column("router"), Column("mean", "ms"), Column("said", is_text=True)],
                  [["a", "1.25", "x"], ["longer", "10.00", "yes"]])  # fmt: skip
    assert to_text([table]).splitlines() == [
        "router  mean ms  said",
        "------- -------- ----",
        "a          1.25  x",
        "longer    10.00  yes",
    ]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_narrow_terminal_gets_blocks(width: int) -> None:
    text = to_text([WIDE], width)
    assert max(map(len, text.splitlines())) <= width
    blocks = text.partition("\n")[2].split("\n\n")
    assert len(blocks) > 1
    for block in blocks:
        assert sum(line.startswith("random") for line in block.splitlines()) == 1
    assert [cell for row in WIDE.rows for cell in row[1:] if text.count(cell) < 2] == []


def test_a_head_is_broken_before_the_table_is() -> None:
    table = Table(columns("router", "beaten by nobody at"), [["a", "p99"]])
    assert to_text([table], 20).splitlines()[:4] == [
        "        beaten",
        "            by",
        "        nobody",
        "router      at",
    ]


def test_a_table_without_rows_has_its_head() -> None:
    assert to_text([Table(columns("a", "b"), [])], 80) == to_text([Table(columns("a", "b"), [])]) == "a  b\n-- -"


def test_markdown_has_pipes_and_its_own_sign() -> None:
    table = Table([Column("router"), column(MEASURES["latency_mean_s"])], [["a|b", "1.0 +-0.5"]])
    assert to_markdown(table) == "| router | latency ms |\n| --- | --- |\n| a/b | 1.0 ± 0.5 |"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (number(None, 2), "-"),
        (number(0.12345, 2, 100), "12.35"),
        (number(1234.5, 0, grouped=True), "1,234"),
        (number(-1.0, 1, signed=True), "-1.0"),
        (number(0.02934, None), "0.0293"),
        (number(123456.0, None), "123456"),
        (number(0.0, None), "0"),
        (interval({"mean": None, "ci95": None}, 2), "-"),
        (interval({"mean": 1.5, "ci95": None}, 2, 1000), "1500.00"),
        (interval({"mean": 0.329, "ci95": 0.0219}, None), "0.329 +-0.022"),
        (P99.text(0.00516), "5.16"),
        (P99.text({"mean": 0.00516, "ci95": 0.0001}), "5.16 +-0.10"),
        (P99.text(None), "-"),
        (P99.text("met"), "met"),
        (Column("change", "%", 1, signed=True).text(3), "+3.0"),
        (Column("jobs").text(1234), "1234"),
        (plural(1, "seed"), "1 seed"),
        (plural(2, "seed"), "2 seeds"),
    ],
)
def test_numbers_as_text(text: str, wanted: str) -> None:
    assert text == wanted


def test_digits_that_count() -> None:
    given: dict[Any, int] = {0.00123: 4, 0.0999: 3, 1.5: 1, 99.0: 0, 12345.0: 0, 0: 0}
    assert {value: places(value, 2) for value in given} == given


def test_words_go_on_below_where_there_is_no_room_and_numbers_are_whole() -> None:
    table = Table(columns("error of", "mean", "largest"), [["solo latency from four 模型 sizes", "1.00", "2.00"]])
    assert to_text([table], 40).splitlines()[2:] == ["solo latency from four     1.00     2.00", "模型 sizes"]
    assert to_text([table], 60).splitlines()[2:] == ["solo latency from four 模型 sizes  1.00     2.00"]
