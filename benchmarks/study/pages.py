"""Pages and pictures of data frames: what is said stands in `templates/`, and figures come from frames."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import Any, Final

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.study import candidates, judge, pictures, tables
from benchmarks.study.headroom import ALL, AS_IT_IS, BOUND, REMOVALS
from kit.documents import write_text
from policies.registry import BASELINES, COMPASS
from policies.rules.specs import FixedRule, LadderRule
from scenarios.show import charts

NONE: Final = "-"
WINNERS: Final = (COMPASS, candidates.FINE_TUNED, *(kind for kind in BASELINES if kind != FixedRule.KIND))
PARTS: Final = ("scenarios", "missing", "routers", "versus", "losses", "paper", "checks", "tuning", "machine")
"""Of the results: `results-NAME.csv`."""


def write_frames(folder: Path, frames: Mapping[str, pd.DataFrame]) -> None:
    """Each as `NAME.csv`, figures to six digits, counts whole; what is empty has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        if frame.columns.empty:
            (folder / f"{name}.csv").unlink(missing_ok=True)
            continue
        frame.convert_dtypes().to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def read_frames(folder: Path, prefix: str = "") -> dict[str, pd.DataFrame]:
    """The CSV files of a folder by their names, without the prefix that they all have."""
    files = sorted(folder.glob(f"{prefix}*.csv"))
    return {path.stem.removeprefix(prefix): pd.read_csv(path, keep_default_na=False, na_values=[""]) for path in files}


def render(template: str, **given: Any) -> str:
    """A page; frames are given to it as lists of rows, in which None is what is missing."""
    environment = Environment(
        loader=PackageLoader("benchmarks.study", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "change": change, "yes": yes, "row": table_row, "head": table_head}
    rows = {name: rows_of(each) if isinstance(each, pd.DataFrame) else each for name, each in given.items()}
    return environment.get_template(template).render(**rows)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows, with None for what is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def number(value: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """With so many digits after the point, or three that count; `-` for none."""
    if value is None or pd.isna(value):
        return NONE
    after = digits if digits is not None else max(0, 2 - floor(log10(abs(value)))) if value else 0
    return f"{value:{'+' if signed else ''},.{after}f}"


def change(row: Mapping[str, Any], name: str, unit: str = " %", digits: int = 1) -> str:
    """`-10.3 ± 4.0 %` of the columns of a mean and its interval, `-10.3 (-14.1 to -6.3) %` of those of a ratio; `-` for
    none."""
    mean, half = row.get(name), row.get(f"{name}_ci95")
    if mean is None:
        return NONE
    if (low := row.get(f"{name}_low")) is not None:
        ends = (number(end, digits, signed=True) for end in (low, row[f"{name}_high"]))
        return f"{number(mean, digits, signed=True)} ({' to '.join(ends)}){unit}"
    return number(mean, digits, signed=True) + ("" if half is None else f" ± {number(half, digits)}") + unit


def yes(holds: Any) -> str:
    """In a table."""
    return (
        "?"
        if holds is None
        else "**yes**"
        if holds in (True, "yes")
        else "no"
        if holds in (False, "no")
        else str(holds)
    )


def table_row(cells: Iterable[Any]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(str(NONE if cell is None else cell) for cell in cells)} |"


def table_head(heads: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return f"{table_row(heads)}\n{table_row(['---'] * len(heads))}"


# ------------------------------------------------------------------------------------------------------------- results


def results_page(folder: Path) -> None:
    """`results.md` in a folder and its pictures, of the CSV files in its `data/`."""
    frames = dict.fromkeys(PARTS, pd.DataFrame()) | read_frames(folder / "data", "results-")
    more = {name: frame for name, frame in read_frames(folder / "data").items() if not name.startswith("results-")}
    versus, routers = frames["versus"], frames["routers"]
    rooms = more.get("headroom", pd.DataFrame({"scenario": [], "is_little": []}))
    little = set(rooms["scenario"][rooms["is_little"].astype(bool)])
    images = folder / "images"
    drawn = []
    main = routers[~routers["scenario"].str.startswith("paper")]
    for name, title, frame, draw in (
        ("results-gains", "Compass against its best baseline", _as_tuned(versus), pictures.gains_chart),
        (
            "results-fronts",
            "Accuracy against mean latency, up to four times the quickest router's",
            main,
            pictures.fronts_chart,
        ),
        (
            "results-energy",
            "Energy an image against p99 latency",
            more.get("fronts", pd.DataFrame()),
            pictures.energy_chart,
        ),
    ):
        if not frame.empty:
            charts.save(draw(frame), images / f"{name}.svg")
            drawn.append((title, f"images/{name}.svg"))
    text = render(
        "results.md.j2",
        **frames,
        counts=counts_of(versus, little),
        rooms=headroom_rows(rooms),
        won=won_rows(rooms, routers),
        equal=equal_rows(more.get("equal", pd.DataFrame())),
        winners=WINNERS,
        little=little,
        pictures=drawn,
        tails=more.get("ablation-tail", pd.DataFrame()),
        tables=sorted(more),
        candidates=candidates,
        judge=judge,
        limits=tables,
    )
    write_text(folder / "results.md", text)


def _as_tuned(versus: pd.DataFrame) -> pd.DataFrame:
    if "baseline" not in versus:
        return versus.iloc[:0]
    return versus[(versus["group"] == "as tuned") & versus["baseline"].notna()]


def counts_of(versus: pd.DataFrame, little: Collection[str] = ()) -> dict[str, Any]:
    """Of how many scenarios Compass has what is asked for, in how many that is open, and where its tail is lower.

    Args:
        little: scenarios in which there is little to win: they are counted apart.
    """
    rows = versus[versus["group"] == "as tuned"] if "group" in versus else versus
    if rows.empty:
        return {}
    apart = rows["scenario"].isin(little)
    of = rows[~apart]
    return {
        "all": len(of),
        "won": (of["holds"] == "yes").sum(),
        "open": of["holds"].isin(["open", "?"]).sum(),
        "lower": of["is_tail_lower"].fillna(False).astype(bool).sum(),
        "little": apart.sum(),
    }


def add_headroom(docs: Path, rooms: pd.DataFrame, equal: pd.DataFrame) -> None:
    """What there is to win in some scenarios, and who is quickest at equal accuracy, into `data/` and on the page."""
    known = read_frames(docs / "data")
    for name, frame in (("headroom", rooms), ("equal", equal)):
        before = known.get(name, frame.iloc[:0])
        others = before[~before["scenario"].isin(frame["scenario"])]
        write_frames(docs / "data", {name: pd.concat([others, frame]).sort_values("scenario", kind="stable")})
    results_page(docs)


def headroom_rows(rooms: pd.DataFrame) -> list[list[str]]:
    """Cells of a row a scenario, of `headroom.csv`: what its best rule has, and gains where a difficulty is gone."""
    rows_shown = []
    for name, of in rooms.groupby("scenario", sort=False):
        rows = {row["without"]: row for row in rows_of(of)}
        as_is = rows.pop(AS_IT_IS)
        cells = [f"{number(1000 * as_is['mean_s'])}, {number(1000 * as_is['p99_s'])} ms, {number(as_is['image_j'])} J"]
        for difficulty in (*REMOVALS, ALL, BOUND):
            stems = (
                ("energy",) if as_is["is_of_energy"] else ("mean", "energy") if difficulty == BOUND else ("mean", "p99")
            )
            row = rows.get(difficulty)
            cells.append("" if row is None else ", ".join(number(row[f"{stem}_pct"], 0, signed=True) for stem in stems))
        little = f", under {judge.LITTLE_PCT:g} %" if as_is["is_little"] else ""
        rows_shown.append([str(name), *cells, f"{number(as_is['most_pct'], 0)} %{little}"])
    return rows_shown


def won_rows(rooms: pd.DataFrame, routers: pd.DataFrame) -> list[list[str]]:
    """Cells of a row a scenario: of the way from the tuned tuple (`fixed`) to the best where all difficulties are gone,
    how much each router goes, in percent. A router that misses the floor has none."""
    rows_shown = []
    for name, of in rooms.groupby("scenario", sort=False):
        rows = {row["without"]: row for row in rows_of(of)}
        ours = {row["router"]: row for row in rows_of(routers[routers["scenario"] == name])}
        without = list(rows.keys() - {AS_IT_IS, BOUND})
        least = rows[ALL if ALL in rows else without[0] if without else AS_IT_IS]
        stems = [("mean_ms", 1000 * least["mean_s"]), ("p99_ms", 1000 * least["p99_s"])]
        if least["is_of_energy"]:
            stems = [("energy_j", least["image_j"])]
        first, floor_pct = ours.get(FixedRule.KIND), least["floor_pct"] - judge.EQUAL_POINTS
        if first is None or first["accuracy_pct"] < floor_pct or min(first[key] - best for key, best in stems) <= 0:
            continue
        cells = []
        for label in WINNERS:
            own = ours.get(label)
            is_able = own is not None and own["accuracy_pct"] >= floor_pct and not own["is_flagged"]
            ways = ((first[key] - own[key]) / (first[key] - best) for key, best in stems) if own and is_able else ()
            cells.append(", ".join(number(100 * way, 0) for way in ways))
        rows_shown.append([str(name), *cells])
    return rows_shown


def equal_rows(equal: pd.DataFrame) -> list[list[str]]:
    """Cells of a row a scenario: mean and p99 latency of the tuned ladder, of Compass and of the fine-tuned one, all at
    the floor, and their changes against the ladder in percent."""
    rows_shown = []
    for name, of in equal.groupby("scenario", sort=False) if len(equal) else ():
        cells = [str(name)]
        rows = {row["router"]: row for row in rows_of(of)}
        for label in (LadderRule.KIND, COMPASS, candidates.FINE_TUNED):
            row = rows.get(label)
            figures = "" if row is None else f"{number(1000 * row['mean_s'])}, {number(1000 * row['p99_s'])}"
            changes = [row.get(f"{stem}_pct") for stem in ("mean", "p99")] if row else []
            told = ", ".join(number(each, 0, signed=True) for each in changes if each is not None)
            cells.append(f"{figures} ({told})" if told else figures)
        rows_shown.append(cells)
    return rows_shown
