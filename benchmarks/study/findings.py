"""What was found, and what it says: does the learned router beat the best of its rivals at equal accuracy?

Pure: results in, plain data out. What counts as a win stands here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Final

from benchmarks.study.cases import FAULTS, LEARNED, MOVING, PLACED, PLAIN, TUNED, WINDOWED, for_promise
from policies.registry import TIDE
from scenarios.learn.knobs import TAIL
from scenarios.learn.race import OF_SEARCH
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.pareto import Point, hypervolume
from scenarios.metrics.result import Result
from scenarios.metrics.served import leaves_many, served
from scenarios.metrics.statistics import Estimate, PairedDifference, estimate, paired_difference, widened
from scenarios.show import paper

EQUAL: Final = 0.05 / 100  # of accuracy: a rival that is less accurate by more is no rival
CARRIED_PCT: Final = 5.0  # more images a second at floor and limit: asked for where the rate moves ...
POINTS: Final = 0.3  # ... or so many points more accuracy
FAULTS_P99_PCT: Final = -25.0  # asked of the p99 where servers fail or slow down
WORST_PCT: Final = 1.0  # that any figure may be worse, anywhere
WORST_KEPT: Final = 1.0  # points of the windows that keep what is promised
ENERGY_OVER_PCT: Final = 15.0  # above the fluid bound, asked for under moderate load
LOST: Final = 0.001  # of the images: who leaves more than that more of them unfinished has bought its latency so
REFERENCE_S: Final = 0.05  # mean latency from which hypervolume counts

IN_RACE: Final = {"latency_mean_s": "mean_s", "latency_p99_s": "p99_s"}  # of `MEASURES`, in a tuned router's file
OFF_FRACTION: Final = 1e-9  # rounding of means


@dataclass(frozen=True)
class Row:
    """One router in one scenario, with a result a seed.

    Attributes:
        bound_energy_j, bound_latency_s: the least dynamic energy an image, and mean latency, at its accuracy and rate.
        searches: what each search of its tuning had in the final race (`mean_s`, `p99_s`); empty where none is told.
    """

    label: str
    group: str
    results: tuple[Result, ...]
    bound_energy_j: float | None = None
    bound_latency_s: float | None = None
    searches: tuple[Mapping[str, Any], ...] = ()

    @property
    def accuracy(self) -> float | None:
        """Mean expected accuracy."""
        return self.metric("expected_accuracy")["mean"]

    @property
    def mean_s(self) -> float | None:
        """Mean latency."""
        return self.metric("latency_mean_s")["mean"]

    @property
    def lost(self) -> float:
        """Share of the images that failed or were never finished."""
        arrived = sum(result["images"]["arrived"] for result in self.results)
        return sum(lost_images(result) for result in self.results) / arrived

    @property
    def is_marked(self) -> bool:
        """Whether it leaves too many images unserved: it wins nothing, and is on no front."""
        return leaves_many(served(self.results))

    def metric(self, name: str) -> Estimate:
        """One of `MEASURES` over seeds."""
        return estimate([MEASURES[name].of(result) for result in self.results])

    def spread(self, name: str) -> float:
        """By what share of a measure the search that came second in the final race differs from the one that won.

        Another tuning would have found another router; runs of other seeds say nothing of that. 0 where one search is
        all there is: nobody knows.
        """
        key = IN_RACE.get(name)
        ran = [each for each in self.searches if each.get("mean_s") and each.get("p99_s")]
        if key is None or len(ran) < 2:
            return 0.0
        ran.sort(key=lambda each: log(each["mean_s"]) + TAIL * log(each["p99_s"]))
        first, second = ran[:2]
        return abs(float(second[key]) / float(first[key]) - 1)

    def interval(self, name: str) -> Estimate:
        """One of `MEASURES` over seeds and searches."""
        return widened(self.metric(name), self.spread(name))

    def highest(self, name: str) -> float | None:
        """The highest of the seeds; None where one has none."""
        values = [MEASURES[name].of(result) for result in self.results]
        return None if None in values else max(values)


def searches_in(made_by: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """What each search had in the race that a tuned router's file tells of; of an old file its only one."""
    if "race" not in made_by:
        old = {"mean_s": made_by.get("latency_mean_s"), "p99_s": made_by.get("latency_p99_s")}
        return (old,) if made_by.get("command", "").startswith("slimsched tune") else ()
    return tuple(each for each in made_by["race"] if each["of"].startswith(OF_SEARCH))


def is_of(row: Row, router: str) -> bool:
    """Whether it is this router, tuned or not: `tide`, or `tide, not tuned`."""
    return row.label == router or row.label.startswith(f"{router}, ")


def lost_images(result: Result) -> int:
    """Failed, or still in flight when the run ended."""
    return result["images"]["failed"] + result["images"]["in_flight"]


@dataclass(frozen=True)
class Found:
    """One scenario.

    Attributes:
        file: its name; `remark`: what stands at its head.
        floor: mean accuracy that its routers were tuned to keep.
        load: one of `cases.LOADS`.
        carried: rows of `docs/carried.json`; empty where they were not made.
        accuracies: of the narrowest width tuple, and of the best.
        oracle: accuracy that foresight could have, estimated.
        missing: what should be here and isn't.
    """

    name: str
    file: str
    remark: str
    load: str
    is_paper: bool
    seeds: tuple[int, ...]
    duration_s: float
    warmup_s: float
    floor: float | None
    accuracies: tuple[float, float]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    oracle: float | None = None
    carried: tuple[Mapping[str, Any], ...] = ()

    def row(self, label: str) -> Row | None:
        """The router of this label."""
        return next((row for row in self.rows if row.label == label), None)


# ------------------------------------------------------------------------------------------------------- the judgement


@dataclass(frozen=True)
class Versus:
    """One router less another on the same seeds: accuracy and `kept` in points, the rest in percent of the other's.

    Attributes:
        kept: of the windows that keep what is promised; without figures where nothing is.
        energy: of all devices, an image.
    """

    router: str
    rival: str
    points: float
    kept: Estimate
    mean: Estimate
    p99: Estimate
    std: Estimate
    energy: Estimate
    lost_more: bool


@dataclass(frozen=True)
class Carried:
    """Images a second that Tide carries at floor and limit, less those of the rival that carries most, in percent."""

    rival: str
    change: Estimate


@dataclass(frozen=True)
class Kept:
    """Windows that a router keeps, less those of the tuned rival that keeps most, in points."""

    rival: str
    change: Estimate


@dataclass(frozen=True)
class Goal:
    """Something that is asked for, with what was found; `holds` is None where the interval leaves it open."""

    text: str
    holds: bool | None

    @property
    def told(self) -> str:
        """In words."""
        return {True: self.text, False: f"{self.text}: missed", None: f"{self.text}: open"}[self.holds]


@dataclass(frozen=True)
class Verdict:
    """Of one scenario.

    Attributes:
        load: one of `cases.LOADS`.
        versus: Tide against its best rival; None where there is no rival, or no Tide.
        holds: None where nobody can say.
        reasons: why it does not hold, or why nobody can say.
        carried: None where it was not made.
        kept: None where nothing is promised, or no rival was tuned.
    """

    scenario: str
    load: str
    versus: Versus | None
    holds: bool | None
    reasons: tuple[str, ...] = ()
    carried: Carried | None = None
    kept: Kept | None = None


def compare_pair(one: Row, other: Row, *, with_searches: bool = True) -> Versus:
    """The differences seed by seed; their intervals also hold the spread of both routers' searches, if asked."""
    others = {result["seed"]: result for result in other.results}
    pairs = [(result, others[result["seed"]]) for result in one.results if result["seed"] in others]

    def difference(name: str) -> PairedDifference:
        values = [(MEASURES[name].of(result), MEASURES[name].of(against)) for result, against in pairs]
        return paired_difference(*zip(*values, strict=True))

    def percent(name: str) -> Estimate:
        found = difference(name)["percent"]
        if found["mean"] is None or not with_searches:
            return found
        ratio = widened(Estimate(mean=100 + found["mean"], ci95=found["ci95"]), one.spread(name), other.spread(name))
        return Estimate(mean=found["mean"], ci95=ratio["ci95"])

    assert one.accuracy is not None, "it completed something"
    assert other.accuracy is not None, "it completed something"
    kept = difference("kept_share")["difference"]
    return Versus(
        router=one.label,
        rival=other.label,
        points=100 * (one.accuracy - other.accuracy),
        kept=Estimate(mean=_times(kept["mean"], 100), ci95=_times(kept["ci95"], 100)),
        mean=percent("latency_mean_s"),
        p99=percent("latency_p99_s"),
        std=percent("latency_std_s"),
        energy=percent("energy_per_image_j"),
        lost_more=one.lost > other.lost + LOST,
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def compare_carried(found: Found) -> Carried | None:
    """Seed by seed, against the tuned rival that carries most; None where Tide's or all others' was not made."""
    images_s = {row["router"]: row["images_s"] for row in found.carried if "images_s" in row}
    rivals = {router: values for router, values in images_s.items() if router != TIDE}
    if TIDE not in images_s or not rivals:
        return None
    rival = max(rivals, key=lambda router: sum(rivals[router]))
    return Carried(rival, paired_difference(images_s[TIDE], rivals[rival])["percent"])


def compare_windowed(found: Found, group: str) -> Versus | None:
    """Tide in a group of `cases.WINDOWED` against the other one there that keeps most windows; None without both.

    Of those that keep as many, the more accurate one. Who leaves too many images unserved is compared with nobody.
    """
    tide = found.row(for_promise(TIDE, group))
    rows = [row for row in found.rows if row.group == group and row is not tide]
    able = [row for row in rows if row.accuracy is not None and not row.is_marked]
    if tide is None or tide.accuracy is None or tide.is_marked or not able:
        return None
    return compare_pair(tide, max(able, key=lambda row: (row.metric("kept_share")["mean"] or 0.0, row.accuracy or 0.0)))


def compare_kept(row: Row, rows: Sequence[Row]) -> Kept | None:
    """A router against the other one, tuned and not told goals, that keeps most windows; seed by seed."""

    def share(of: Row) -> float | None:
        return of.metric("kept_share")["mean"]

    able = [
        other
        for other in rows
        if other.group in (LEARNED, TUNED, PLACED) and other.label != row.label and share(other) is not None
    ]
    able = [other for other in able if not other.is_marked and other.accuracy is not None]
    if row.accuracy is None or share(row) is None or not able:
        return None
    rival = max(able, key=lambda other: (share(other) or 0.0, other.accuracy or 0.0))
    return Kept(rival.label, compare_pair(row, rival).kept)


def rivals_of(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Who finish as much and are as accurate, or more so; or are less so, and slower all the same. The quickest first.

    Itself with other numbers is no rival, nor who leaves too many images unserved; and who was made for what is
    promised, and not for the mean at the floor, is compared with those who were, too (`compare_windowed`).
    """
    if row.accuracy is None or row.mean_s is None:
        return []
    found = [
        (other.mean_s, place, other)
        for place, other in enumerate(rows)
        if not is_of(other, row.label)
        and other.group not in WINDOWED
        and not other.is_marked
        and other.accuracy is not None
        and other.mean_s is not None
        and (other.accuracy >= row.accuracy - EQUAL - OFF_FRACTION or other.mean_s >= row.mean_s)
        and other.lost <= row.lost + LOST
    ]
    return [other for _, _, other in sorted(found)]


def judge(found: Found) -> Verdict:
    """Whether Tide does what is asked of it against the quickest of its rivals (`goals`), by whole intervals.

    Who was not tuned counts as a rival too, but to be better than such alone is no win.
    """
    tide, carried = found.row(TIDE), compare_carried(found)
    if tide is None or tide.accuracy is None:
        why = "no Tide was run" if tide is None else "Tide completed nothing"
        return Verdict(found.name, found.load, None, None, (why,), carried)
    rivals = rivals_of(tide, found.rows)
    if not rivals:
        why = f"no rival is as accurate: {_nearest(tide, found)}"
        return Verdict(found.name, found.load, None, None, (why,), carried)
    versus = compare_pair(tide, rivals[0])
    kept = compare_kept(tide, found.rows)
    asked = goals(found, tide, versus, carried, kept)
    holds = False if any(goal.holds is False for goal in asked) else None
    reasons = tuple(goal.told for goal in sorted(asked, key=lambda goal: goal.holds is None) if not goal.holds)
    if not reasons:
        holds, reasons = _as_others_are(tide, found, rivals)
    return Verdict(found.name, found.load, versus, holds, reasons, carried, kept)


def _as_others_are(tide: Row, found: Found, rivals: Sequence[Row]) -> tuple[bool | None, tuple[str, ...]]:
    """Whether all goals held against somebody who counts."""
    if not any(row.group in (TUNED, PLACED) for row in rivals):
        return None, (f"no tuned rival is as accurate: {_nearest(tide, found)}",)
    if (quicker := _quicker(tide, found.rows)) is not None:
        assert quicker.accuracy is not None, "it completed something"
        assert tide.accuracy is not None, "it completed something"
        points = 100 * (quicker.accuracy - tide.accuracy)
        return None, (f"{quicker.label}, tuned, is quicker with {points:+.3f} points of accuracy: neither is better",)
    return True, ()


def goals(found: Found, tide: Row, versus: Versus, carried: Carried | None, kept: Kept | None) -> list[Goal]:
    """All that is asked of Tide in a scenario, the hardest first.

    Where servers fail or slow down, a p99 a quarter lower; where the rate moves, more images a second at floor and
    limit, or more accuracy. Everywhere no figure that is worse by more than `WORST_PCT`.
    """
    asked = []
    if found.load == FAULTS:
        asked.append(_at_most("p99", versus.p99, FAULTS_P99_PCT))
    elif found.load == MOVING and versus.points < POINTS:
        more = _at_least("images/s carried", carried, CARRIED_PCT)
        asked.append(Goal(f"{more.text}, or {POINTS:+.1f} points of accuracy", more.holds))
    worst = {"p99": versus.p99, "energy": versus.energy, "mean latency": versus.mean}
    asked += [_at_most(name, change, WORST_PCT) for name, change in worst.items()]
    if found.load != MOVING and carried is not None:
        asked.append(_at_least("images/s carried", carried, -WORST_PCT))
    if kept is not None:
        text = f"windows not kept, against {kept.rival},"
        asked.append(_at_most(text, _negative(kept.change), WORST_KEPT, " points"))
    if versus.points < -100 * (EQUAL + OFF_FRACTION):
        asked.append(Goal(f"accuracy {versus.points:+.3f} points, allowed is {-100 * EQUAL:+.2f}", False))
    if found.floor is not None and tide.accuracy is not None and tide.accuracy < found.floor - EQUAL:
        asked.append(Goal(f"accuracy {100 * tide.accuracy:.2f} %, the floor is {100 * found.floor:.2f} %", False))
    if versus.lost_more:
        asked.append(Goal("more images stay unfinished", False))
    if tide.is_marked:
        asked.append(Goal("Tide leaves more than 1 % unserved", False))
    return asked


def _at_most(name: str, change: Estimate, most: float, unit: str = " %") -> Goal:
    mean, half = change["mean"], change["ci95"] or 0.0
    if mean is None:
        return Goal(f"{name}: no figure", None)
    holds = True if mean + half <= most else False if mean - half > most else None
    return Goal(f"{name} {mean:+.1f} ± {half:.1f}{unit}, asked for is at most {most:+.0f}{unit}", holds)


def _at_least(name: str, carried: Carried | None, least: float) -> Goal:
    if carried is None or carried.change["mean"] is None:
        return Goal(f"{name}: not measured", None)
    mean, half = carried.change["mean"], carried.change["ci95"] or 0.0
    holds = True if mean - half >= least else False if mean + half < least else None
    text = f"{name} {mean:+.1f} ± {half:.1f} % against {carried.rival}, asked for is at least {least:+.0f} %"
    return Goal(text, holds)


def _negative(change: Estimate) -> Estimate:
    return Estimate(mean=_times(change["mean"], -1), ci95=change["ci95"])


def _quicker(tide: Row, rows: Sequence[Row]) -> Row | None:
    """A tuned rival that is quicker, but too inaccurate to be compared."""
    assert tide.mean_s is not None, "it completed something"
    rivals = rivals_of(tide, rows)
    for row in rows:
        if row.group not in (TUNED, PLACED) or row.accuracy is None or row.mean_s is None or row in rivals:
            continue
        if row.is_marked:
            continue
        if row.mean_s < tide.mean_s and row.lost <= tide.lost + LOST:
            return row
    return None


def _nearest(tide: Row, found: Found) -> str:
    able = [row for row in found.rows if row.group in (TUNED, PLACED) and not row.is_marked]
    others = [row for row in able if row.accuracy is not None]
    if not others or tide.accuracy is None:
        return "none has run"
    best = max(others, key=lambda row: row.accuracy or 0.0)
    assert best.accuracy is not None
    accuracies = f"has {100 * best.accuracy:.2f} %, Tide {100 * tide.accuracy:.2f} %"
    return f"the most accurate that was tuned, {best.label}, {accuracies}"


def losses(found: Found, verdict: Verdict) -> list[str]:
    """What Tide is worse at, in words: what was asked and is missed or open, whoever is better for certain, its start.

    For certain: by the seeds' whole interval, and by more than `WORST_PCT`. A rival whose searches lie far apart is
    no less a rival for that.
    """
    said, tide = list(verdict.reasons), found.row(TIDE)
    if verdict.versus is None or tide is None:
        return said
    pairs = [compare_pair(tide, rival, with_searches=False) for rival in rivals_of(tide, found.rows)]
    for name in ("p99", "energy", "mean latency", "standard deviation"):
        changes = [(pair.rival, _change_of(pair, name)) for pair in pairs]
        worse = [(change["mean"] or 0.0, rival) for rival, change in changes if is_surely_above(change, WORST_PCT)]
        if worse:
            said.append(f"{name} {max(worse)[0]:+.1f} % against {max(worse)[1]}")
    return [*said, *_spoiled(found)]


def _change_of(versus: Versus, name: str) -> Estimate:
    return {"p99": versus.p99, "energy": versus.energy, "mean latency": versus.mean}.get(name, versus.std)


def _spoiled(found: Found) -> list[str]:
    """Tide tuned is worse than what its tuning began with."""
    tide, start = found.row(TIDE), found.row(f"{TIDE}, {PLAIN}")
    if tide is None or start is None or None in (tide.accuracy, start.accuracy):
        return []
    change = compare_pair(tide, start)
    if change.points > 100 * EQUAL or not is_surely_above(change.mean):
        return []
    return [f"mean latency {change.mean['mean']:+.1f} % against {start.label}: tuning has not helped"]


def is_surely_above(change: Estimate, limit: float = 0.0) -> bool:
    """Whether the whole interval lies above it."""
    return change["mean"] is not None and change["mean"] - (change["ci95"] or 0.0) > limit


def covered(found: Found, *, without: str | None = None) -> float | None:
    """Hypervolume of accuracy against mean latency, as a share of what no latency at the best accuracy would cover.

    It counts from the narrowest tuple's accuracy and `REFERENCE_S`; `without` a router, however it was tuned.
    """
    narrowest, best = found.accuracies
    points = [
        Point(row.label, row.accuracy, row.mean_s)
        for row in found.rows
        if (without is None or not is_of(row, without))
        and not row.is_marked
        and row.accuracy is not None
        and row.mean_s is not None
    ]
    if not points or best <= narrowest:
        return None
    return hypervolume(points, Point("reference", narrowest, REFERENCE_S)) / ((best - narrowest) * REFERENCE_S)


# ------------------------------------------------------------------------------------------------- the paper's replica

HEAVY, RELAXED, NARROWEST = "ppo-heavy", "ppo-relaxed", "sticky at 0.25"
CLOSE_PCT: Final = 5.0
RELAXED_CUT_PCT: Final = -80.0


@dataclass(frozen=True)
class Check:
    """Something that a replica should reach; None where nobody can say."""

    what: str
    asked: str
    found: str
    holds: bool | None


def replica_checks(found: Found) -> list[Check]:
    """The paper's PPO against random routing, and against what stays put at the narrowest width."""
    rows = {row.label: row for row in found.rows}
    random, heavy, relaxed, sticky = (rows.get(label) for label in ("random", HEAVY, RELAXED, NARROWEST))
    checks: list[Check] = []
    if heavy is not None and random is not None:
        checks.append(_change_check(heavy, random, "latency_mean_s", paper.HEAVY.latency_change_pct))
        checks.append(_change_check(heavy, random, "energy_j", paper.HEAVY.energy_change_pct))
    if heavy is not None and sticky is not None:
        checks.append(_change_check(heavy, sticky, "latency_mean_s", CLOSE_PCT))
    if relaxed is not None and random is not None:
        least, accuracy = paper.RELAXED.accuracy_pct, relaxed.metric("accuracy")["mean"]
        is_enough = None if accuracy is None else 100 * accuracy >= least
        shown = "none" if accuracy is None else f"{100 * accuracy:.2f} %"
        checks.append(Check(f"{RELAXED}: accuracy", f"at least {least:.2f} %", shown, is_enough))
        for mean, std in (("latency_mean_s", "latency_std_s"), ("energy_j", "energy_std_j")):
            checks.append(_change_check(relaxed, random, mean, RELAXED_CUT_PCT))
            checks.append(_change_check(relaxed, random, std, 0.0))
    return checks


def _change_check(row: Row, other: Row, name: str, most_pct: float | None) -> Check:
    measure = MEASURES[name]
    others = {result["seed"]: measure.of(result) for result in other.results}
    common = [result for result in row.results if result["seed"] in others]
    values = [measure.of(result) for result in common]
    change = paired_difference(values, [others[result["seed"]] for result in common])["percent"]["mean"]
    what = f"{row.label}: {measure.title} against {other.label}"
    assert most_pct is not None, "the paper tells it"
    asked = f"at most {most_pct:+.2f} %"
    return Check(
        what, asked, "none" if change is None else f"{change:+.2f} %", None if change is None else change <= most_pct
    )


# ----------------------------------------------------------------------------------------------------- everything else


@dataclass(frozen=True)
class Made:
    """One router's file and what it says of how it was made."""

    scenario: str
    label: str
    file: str
    made_by: Mapping[str, Any]


@dataclass(frozen=True)
class Notes:
    """What the page says beside the scenarios' tables.

    Attributes:
        machine: what runs were computed on; `versions`: of what computed them.
        wall_s: how long all runs took, one after the other.
        ablation, faster, fronts: `docs/ablation.json` and so on; None where it was not made, or
            where a scenario of it has changed since.
        outdated: which scenarios have, by table.
        front_picture: a path from the page.
        remarks: Markdown that people wrote.
        pictures: by title, a path from the page.
    """

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    wall_s: float
    provenance: str
    ablation: Mapping[str, Any] | None = None
    faster: Mapping[str, Any] | None = None
    fronts: Mapping[str, Any] | None = None
    outdated: Mapping[str, Sequence[str]] = field(default_factory=dict)
    front_picture: str | None = None
    made: tuple[Made, ...] = ()
    remarks: str = ""
    pictures: Mapping[str, str] = field(default_factory=dict)
