"""A validation's tables and sentences, for a terminal and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from hw.telemetry.foreign import NOTABLE, STRONG
from policies.records import STAGES
from scenarios.metrics.catalogue import MEASURES, VALIDATED, Measure
from scenarios.metrics.fidelity import (
    REPEATS_OF_NOISE,
    Clock,
    Foreign,
    LoadAxisRow,
    Ranking,
    Row,
    SaturatedRow,
    Validation,
    foreign_share,
    is_busy,
    is_marked,
    middle_load,
    was_stopped,
)
from scenarios.metrics.result import MOST_CPU, MOST_LATE, Cpu, Lateness, charged_decisions, cpu_share, lateness_share
from scenarios.show.far_apart import far_apart_warnings
from scenarios.show.numbers import NONE, change, interval, number, plural, shown
from scenarios.show.table import Column, Table, column, columns, to_text
from scenarios.show.words import decisions_text, downtime_table, marked, served_measures, unserved_lines
from scenarios.terminal.screen import screen_width
from sim.profile import origin_of

AnyRow = Row | SaturatedRow | LoadAxisRow
WORLDS: Final[Mapping[Literal["simulated", "hardware"], str]] = {
    "simulated": "in simulation",
    "hardware": "on the hardware",
}
MOST_DOWNTIMES = 40  # on a terminal; `validation.json` has all
DRAWN, BUSIEST = "error, slowdown drawn", "busiest core"
_DRAWN = (
    "the error of the mean latency where slow spells are drawn as the profile says, and not replayed: only that is a "
    "prediction."
)
_FOREIGN = (
    "what other programs (stolen: a virtual machine's host) took of the device that had most of it, in the run that "
    "had most."
)
_LATE = (
    "how much later than their model says passes on emulated devices were seen to end (p99), as a share of a mean "
    "pass, in the run that had most."
)
CPU_MEANING = (
    "what the router or an agent (but of a CPU device) took of a core, or all of them of the cores that they share, "
    "whichever was fuller, in the run that had most."
)
_LATENCY, _THROUGHPUT = MEASURES["latency_mean_s"], MEASURES["throughput_img_s"]


def format_validation(validation: Validation) -> str:
    """The sim-to-real table of each load, where an image's time goes, saturation; then what there is to say."""
    at_middle = stages_table(rows_at_middle(validation["rows"]))
    stages = _of_devices([at_middle] if at_middle.rows else [], validation)
    tables = [*errors_tables(validation), *stages, *saturation_tables(validation)]
    tables += [found] if (found := _downtimes(validation)) else []
    warnings = [] if was_stopped(validation) else far_apart_warnings(validation)  # else its command's error tells it
    words = ["\n".join(validation_notes(validation)), *warnings, *disturbance_warnings(validation)]
    return to_text([validation["scenario"], *tables, *words], screen_width())


def emulated_devices(validation: Validation) -> str:
    """What the executors' devices were where they were emulated, `emulated x20`; empty where they were real."""
    found = {k for pair in validation["pairs"] for k in pair["hardware"].get("emulated_slowdowns", [])}
    return origin_of("emulated", sorted(found)) if found else ""


def _of_devices(tables: Sequence[Table], validation: Validation) -> list[Table]:
    """With the devices in their titles where those were emulated: nobody takes such a table for one of real devices."""
    devices = emulated_devices(validation)
    return [replace(table, title=f"{table.title} ({devices})") if devices else table for table in tables]


def rows_at_middle(rows: Sequence[Row]) -> list[Row]:
    """Those of the load that charts show."""
    chosen = middle_load(row["load"] for row in rows)
    return [row for row in rows if row["load"] == chosen]


def load_title(row: Row) -> str:
    """What a table of rows at one load is headed with."""
    rate = "a trace's own rate" if row["rate_img_s"] is None else f"{number(row['rate_img_s'], 1)} images/s"
    of = rate if row["load"] is None else f"load {row['load']:g} ({rate})"
    return f"{of}, {plural(len(row['seeds']) * row['repeats'], 'hardware run')} a router"


def _is_slowed(row: Row) -> bool:
    slowdown = row.get("slowdown")
    return slowdown is not None and slowdown["mean"] is not None


def _all_rows(validation: Validation) -> list[AnyRow]:
    return [*validation.get("rows", []), *validation.get("saturated", []), *validation.get("load_axis", [])]


def _foreign_loads(validation: Validation) -> list[Foreign]:
    return [load for row in _all_rows(validation) if (load := row.get("foreign_load")) is not None]


def _disturbances(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """What is in the hardware's numbers and in no simulation: columns, and each row's cells of them."""
    parts = [_foreign_column(rows), _late_column(rows), _cpu_column(rows)]
    return [head for heads, _ in parts for head in heads], [
        [cell for _, cells in parts for cell in cells[place]] for place in range(len(rows))
    ]


def _foreign_column(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """The column's head, and each row's cell of it; nothing where nothing was measured."""
    loads = [row.get("foreign_load") for row in rows]
    if not any(loads):
        return [], [[] for _ in rows]
    return [Column("foreign load", "%", meaning=_FOREIGN)], [[_foreign_text(load)] for load in loads]


def _late_column(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """Likewise, of emulated devices."""
    found = [row.get("lateness_s") for row in rows]
    if not any(found):
        return [], [[] for _ in rows]
    return [Column("ends late", "%", meaning=_LATE)], [[_late_text(late)] for late in found]


def _late_text(late: Lateness | None) -> str:
    """`3`, `25 late`."""
    if late is None:
        return NONE
    text = number(lateness_share(late), 0, 100)
    return f"{text} late" if lateness_share(late) > MOST_LATE else text


def _cpu_column(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """Likewise, of the run's own processes."""
    found = [row.get("cpu") for row in rows]
    if not any(found):
        return [], [[] for _ in rows]
    return [Column(BUSIEST, "%", meaning=CPU_MEANING)], [[_cpu_text(cpu)] for cpu in found]


def _cpu_text(cpu: Cpu | None) -> str:
    """`40`, `97 starved`."""
    if cpu is None:
        return NONE
    text = number(cpu_share(cpu), 0, 100)
    return f"{text} starved" if cpu_share(cpu) > MOST_CPU else text


def _foreign_text(load: Foreign | None) -> str:
    """`12`, `55 busy`, `40 (20 stolen) busy`."""
    if load is None:
        return NONE
    stolen = f" ({number(load['stolen'], 0, 100)} stolen)" if load["stolen"] > NOTABLE else ""
    text = f"{number(foreign_share(load), 0, 100)}{stolen}"
    return f"{text} busy" if is_busy(load) else text


def errors_tables(validation: Validation) -> list[Table]:
    """A table a load: both worlds' mean latency, then each error and what is allowed."""
    by_load: dict[float | None, list[Row]] = {}
    for row in validation.get("rows", []):
        by_load.setdefault(row["load"], []).append(row)
    return _of_devices([_errors_table(rows) for rows in by_load.values()], validation)


def _errors_table(rows: Sequence[Row]) -> Table:
    judged = {name for row in rows for name, met in row["met"].items() if met is not None}
    slowed = any(map(_is_slowed, rows))
    served_head, served_cells = _served_columns(rows)
    head = [Column("router"), *served_head]
    head += [column(_LATENCY, f"{world} {_LATENCY.title}") for world in ("simulated", "hardware")]
    head.append(Column("hardware noise", "%"))
    head += [*columns("device slowdown"), Column(DRAWN, "%", meaning=_DRAWN)] if slowed else []
    foreign_head, foreign_cells = _disturbances(rows)
    head += foreign_head
    measures = [each for each in VALIDATED if any(row["error_pct"][each.stem]["mean"] is not None for row in rows)]
    for measure in measures:
        head.append(Column(f"{measure.title} error", "%", meaning=measure.meaning))
        head += columns("allowed") if measure.stem in judged else []
    body = []
    for row, found, foreign in zip(rows, served_cells, foreign_cells, strict=True):
        cells = [_name(row), *found]
        cells += [shown(_LATENCY, row[world][_LATENCY.stem]) for world in ("simulated", "hardware")]
        cells.append(number(row["repeatability_pct"][_LATENCY.stem], 1))
        cells += [interval(row["slowdown"], 2), _drawn(row)] if slowed else []
        cells += foreign
        for measure in measures:
            cells.append(change(row["error_pct"][measure.stem], unit=""))
            if measure.stem in judged:
                cells.append(verdict(row["target_pct"][measure.stem], row["met"][measure.stem]))
        body.append(cells)
    return Table(head, body, load_title(rows[0]), *_unserved_lines(rows))


def _drawn(row: Row) -> str:
    errors = row.get("drawn_error_pct", {})
    return change(errors[_LATENCY.stem], unit="") if _LATENCY.stem in errors else NONE


def _name(row: AnyRow) -> str:
    return marked(row["router"], "served" in row and is_marked(row["served"]))


def _served_columns(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """How much each world served of what arrived: the columns, and for each row their cells."""
    found = [row["served"][world] for row in rows if "served" in row for world in WORLDS]
    measures = served_measures(found)
    head = [Column(f"{each.head} sim./hw.", each.unit, meaning=each.meaning) for each in measures]
    return head, [[_both(row, each) for each in measures] for row in rows]


def _both(row: AnyRow, measure: Measure) -> str:
    if "served" not in row:
        return NONE
    return "/".join(shown(measure, measure.of({"shares": row["served"][world]})) for world in WORLDS)


def _unserved_lines(rows: Sequence[AnyRow]) -> tuple[list[str], list[str]]:
    """Who left images unserved, in which world: few, and many."""
    return unserved_lines(
        (row["router"], f" {words}", row["served"][world])
        for row in rows
        if "served" in row
        for world, words in WORLDS.items()
    )


def stages_table(rows: Sequence[Row]) -> Table:
    """Mean milliseconds an image spent in each stage, simulated/hardware; no rows where no run kept them."""
    known = [(_name(row), row["stages_s"]["simulated"], row["stages_s"]["hardware"]) for row in rows]
    body = [
        [router, *(f"{number(simulated.get(name), 2, 1000)}/{number(hardware.get(name), 2, 1000)}" for name in STAGES)]
        for router, simulated, hardware in known
        if simulated is not None and hardware is not None
    ]
    title = f"{load_title(rows[0])}: where an image's time goes, simulated/hardware, ms" if rows else ""
    return Table(columns("router", *(name.replace("_", " ") for name in STAGES)), body, title=title)


def _downtimes(validation: Validation) -> Table | None:
    """When servers were down in the paired runs of either world; one twin may serve all repeats."""
    runs, twins = [], []
    for pair in validation["pairs"]:
        load = "" if pair["load"] is None else f", load {pair['load']:g}"
        place = f"{load}, seed {pair['seed']}" + (f", repeat {pair['repeat']}" if pair["repeat"] else "")
        if pair["simulated"] not in twins:
            twins.append(pair["simulated"])
            runs.append((f"simulation{place}", pair["simulated"]))
        runs.append((f"hardware{place}", pair["hardware"]))
    return downtime_table(runs, MOST_DOWNTIMES)


def saturation_tables(validation: Validation) -> list[Table]:
    """Throughput of saturated runs, and the error along the load axis near saturation; what was run of the two."""
    saturated, near = validation.get("saturated", []), validation.get("load_axis", [])
    found = [_saturated_table(saturated)] if saturated else []
    return _of_devices([*found, *([_load_axis_table(near)] if near else [])], validation)


def _saturated_table(rows: Sequence[SaturatedRow]) -> Table:
    served_head, served_cells = _served_columns(rows)
    head = [Column("router"), *served_head, Column("arriving", "images/s"), column(_THROUGHPUT, "simulated")]
    head += [column(_THROUGHPUT, "hardware"), Column("error", "%"), Column("allowed"), Column("kept up", is_text=True)]
    foreign_head, foreign_cells = _disturbances(rows)
    body = [
        [
            _name(row),
            *found,
            number(row["rate_img_s"], 0),
            shown(_THROUGHPUT, row["simulated_img_s"]),
            shown(_THROUGHPUT, row["hardware_img_s"]),
            number(row["error_pct"], 1, signed=True),
            verdict(row["target_pct"], row["met"]),
            _kept_up(row),
            *foreign,
        ]
        for row, found, foreign in zip(rows, served_cells, foreign_cells, strict=True)
    ]
    return Table([*head, *foreign_head], body, "saturated: arrivals just above capacity", *_unserved_lines(rows))


def _kept_up(row: SaturatedRow) -> str:
    """Which world carried what arrived, if one did: it was not saturated."""
    kept_up = [world for world, is_saturated in row["saturated"].items() if not is_saturated]
    return f"not saturated: {', '.join(kept_up)}" if kept_up else ""


def _load_axis_table(rows: Sequence[LoadAxisRow]) -> Table:
    served_head, served_cells = _served_columns(rows)
    head = [Column("router"), *served_head, Column("arriving", "images/s"), column(_LATENCY, "simulated")]
    head += [column(_LATENCY, "hardware"), Column("load axis error", "%"), Column("allowed")]
    foreign_head, foreign_cells = _disturbances(rows)
    body = [
        [
            _name(row),
            *found,
            number(row["rate_img_s"], 1),
            shown(_LATENCY, row["simulated_latency_s"]),
            shown(_LATENCY, row["hardware_latency_s"]),
            change(row["error_pct"], unit=""),
            verdict(row["target_pct"], row["met"]),
            *foreign,
        ]
        for row, found, foreign in zip(rows, served_cells, foreign_cells, strict=True)
    ]
    title = "near saturation, at 95 % of what the router carries on the hardware: at how much more load the simulation"
    return Table([*head, *foreign_head], body, f"{title} is as slow", *_unserved_lines(rows))


def verdict(target: float | None, is_met: bool | None) -> str:
    """What is allowed, and whether it was kept."""
    if target is None:
        return NONE
    return f"{target:.1f} {'' if is_met is None else 'met' if is_met else 'missed'}".rstrip()


# --------------------------------------------------------------------------------------------------------------- words


def validation_notes(validation: Validation) -> list[str]:
    """What errors and intervals are, when noise widens what is allowed, how routers rank, and what nobody can know."""
    rows = validation.get("rows", [])
    notes = [
        "Errors are (simulated - hardware) / hardware; noise is the hardware's own, between repeats.",
    ]
    if any(row["repeats"] >= REPEATS_OF_NOISE for row in rows):
        notes.append("Twice the noise is allowed where that is more than the promise.")
    if any(len(row["seeds"]) > 1 for row in rows):
        notes.append("Intervals (95 %) are over seeds, each the mean of its repeats.")
    elif any(row["repeats"] > 1 for row in rows):
        notes.append("Intervals (95 %) are over repeats of one trace.")
    if any(map(_is_slowed, rows)):
        notes.append(
            "Device slowdown: how many times as long as at full speed the devices took; each run's twin replays it."
        )
        notes.append(f"{DRAWN.capitalize()}: {_DRAWN}")
    if _foreign_loads(validation):
        notes.append(f"Foreign load: {_FOREIGN}")
    if any(row.get("lateness_s") for row in rows):
        notes.append(f"Ends late: {_LATE}")
    if any(row.get("cpu") for row in rows):
        notes.append(f"{BUSIEST.capitalize()}: {CPU_MEANING}")
    if clocks := validation.get("clocks"):
        notes.append(_clocks_text(clocks))
    notes += decisions_text(charged_decisions(pair["simulated"] for pair in validation["pairs"]))
    if validation.get("saturated"):
        notes.append("A saturated row is a single run: no interval, and no noise in what is allowed.")
    return [*notes, *map(_ranking_text, validation.get("ranking", [])), *_energy_reasons(validation)]


def _clocks_text(clocks: Sequence[Clock]) -> str:
    told = [
        f"{clock['server']} {number(1e3 * clock['offset_s'], 3, signed=True)} +-{number(1e3 * clock['error_s'], 3)}"
        + (f" (jumped {clock['jumps']} times)" if clock["jumps"] else "")
        for clock in clocks
    ]
    return f"Clocks of other hosts beside the router's, ms: {', '.join(told)}; stages between hosts are as wrong."


def disturbance_warnings(validation: Validation) -> list[str]:
    """All that is in the hardware's numbers and in no simulation."""
    return [*busy_warnings(validation), *late_warnings(validation), *cpu_warnings(validation)]


def busy_warnings(validation: Validation) -> list[str]:
    """What nobody should miss: that somebody else's work is in the hardware's numbers."""
    if not any(map(is_busy, _foreign_loads(validation))):
        return []
    found = f"Busy host: in rows marked `busy` others took more than {100 * STRONG:.0f} % of a device, so errors there"
    return [f"{found} are not the simulator's alone. Stop them and validate again, into a folder of its own (--out)."]


def late_warnings(validation: Validation) -> list[str]:
    """What nobody should miss: that this machine was too slow to play the devices."""
    found = [late for row in _all_rows(validation) if (late := row.get("lateness_s")) is not None]
    if not any(lateness_share(late) > MOST_LATE for late in found):
        return []
    text = (
        f"Late: in rows marked `late` ends were seen later than {100 * MOST_LATE:.0f} % of a pass, so errors there are"
    )
    return [f"{text} of this machine, too. Give it more cores or less to do, or its devices a larger slowdown."]


def cpu_warnings(validation: Validation) -> list[str]:
    """What nobody should miss: that this machine was too small for the run's own processes."""
    found = [cpu for row in _all_rows(validation) if (cpu := row.get("cpu")) is not None]
    if not any(cpu_share(cpu) > MOST_CPU for cpu in found):
        return []
    text = (
        f"Starved: in rows marked `starved` the router or an agent took more than {100 * MOST_CPU:.0f} % of a core, or"
    )
    text += " all of them of the cores that they share, so errors there are of this machine, too."
    return [f"{text} Give it more cores or less load, or emulated devices a larger slowdown."]


def _ranking_text(ranking: Ranking) -> str:
    """One sentence about the order of the routers at one load."""
    at = "" if ranking["load"] is None else f" at load {ranking['load']:g}"
    text = f"Ranking of routers by mean latency{at}: tau {number(ranking['tau'], 2)} over {ranking['pairs']} pairs"
    if left_out := ranking.get("left_out"):
        text += f" (without {', '.join(left_out)}: too much unserved)"
    if not ranking["separated_pairs"]:
        return f"{text}; no two differ on the hardware by more than chance."
    apart = f"{number(ranking['tau_separated'], 2)} over the {ranking['separated_pairs']} that differ on the hardware"
    word = "met" if ranking["met"] else "missed"
    return f"{text}; {apart} by more than chance (allowed {ranking['target']:g}: {word})."


def _energy_reasons(validation: Validation) -> list[str]:
    """Why errors that nobody can know are left out."""
    reasons: dict[str, list[str]] = {}
    for pair in validation["pairs"]:
        for name, why in pair["not_applicable"].items():
            if name not in reasons.setdefault(why, []):
                reasons[why].append(name)
    titles = {measure.stem: measure.title for measure in MEASURES.values()}
    return [
        f"Not compared: {' and '.join(titles.get(name, name) for name in found)}. Why: {why}."
        for why, found in reasons.items()
    ]
