"""Does the learned router beat the best of its baselines at equal accuracy? What counts as a win stands here, once.

It works on one scenario's frames: `routers`, a row a router (columns as in `docs/data/results-routers.csv`, by label),
and `runs`, a row a router and seed (columns: `scenarios.metrics.catalogue.MEASURES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any, Final

import pandas as pd

from benchmarks.study import paper
from benchmarks.study.candidates import FINE_TUNED, LEARNED, PLACED, TOLD, TUNED, told
from policies.registry import COMPASS
from scenarios.learn.knobs import TAIL
from scenarios.metrics.pareto import ParetoPoint, hypervolume
from scenarios.metrics.statistics import MeanInterval, estimate, paired_difference, widened

EQUAL_POINTS: Final = 0.05  # of accuracy: a baseline that is less accurate by more is no baseline
MEAN_PCT: Final = 3.0  # that the mean latency may be above the best tuned rival's
P99_PCT: Final = 5.0  # and the p99
TAIL_PCT: Final = -15.0  # from here on the p99 is called lower
WORST_PCT: Final = 1.0  # whoever is better by more than this is told
LITTLE_PCT: Final = 3.0  # a scenario with less to win (`benchmarks.study.headroom`) misses no goal
LOST: Final = 0.001  # of the images: who leaves more than that more of them unfinished has bought its latency so
REFERENCE_MS: Final = 50.0  # mean latency from which hypervolume counts
ROUNDING: Final = 1e-7  # of means, in points

CHANGES: Final = {
    "p99": "latency_p99_s",
    "energy": "energy_per_image_j",
    "mean": "latency_mean_s",
    "std": "latency_std_s",
}
"""What is compared in percent, by the stem of its columns."""
WORDS: Final = {"p99": "p99", "energy": "energy", "mean": "mean latency", "std": "standard deviation"}
VERSUS: Final = (
    *("scenario", "load", "group", "router", "baseline", "holds", "is_tail_lower", "points"),
    *(name for stem in CHANGES for name in (f"{stem}_pct", f"{stem}_pct_ci95")),
    *("attainment_points", "attainment_points_ci95", "attainment_pct", "best_attainment_pct"),
    *("best_attainment_points", "best_attainment_points_ci95", "best_attainment_baseline"),
    *("worst_ms", "baseline_worst_ms"),
    *("hypervolume", "hypervolume_without_compass"),
)
"""Columns of `results-versus.csv`."""
LOSSES: Final = ("what", "change", "ci95", "unit", "against", "asked", "holds")
Goal = dict[str, Any]
"""Something asked for, with what was found: `LOSSES`, of which `holds` is None where the interval leaves it open."""


@dataclass(frozen=True)
class JudgedScenario:
    """One scenario.

    Attributes:
        floor: mean accuracy that its routers were tuned to keep.
        load: one of `candidates.LOADS`.
        spreads: by router and measure, how far its searches lie apart (`spreads_in`).
        is_of_energy: its routers were tuned for the least energy.
        extremes_pct: accuracies of the narrowest width tuple, and of the best.
    """

    name: str
    load: str
    floor: float | None
    runs: pd.DataFrame
    routers: pd.DataFrame
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    is_of_energy: bool = False
    extremes_pct: tuple[float, float] = (0.0, 100.0)

    def able(self) -> pd.DataFrame:
        """Who completed something."""
        return self.routers.dropna(subset=["accuracy_pct", "mean_ms"])

    def of(self, router: str, measure: str) -> dict[int, float | None]:
        """One measure of a router, by seed."""
        rows = self.runs[self.runs["router"] == router]
        return dict(zip(rows["seed"], known(rows[measure]), strict=True))


def known(values: pd.Series[Any]) -> list[float | None]:
    """None for what is missing, as statistics take it."""
    return [None if pd.isna(value) else float(value) for value in values]


def searches_in(made_by: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What each search had in the final evaluation that a tuned router's file tells of; none where all was looked
    at."""
    return [each for each in made_by.get("final_scores", ()) if each["of"].startswith("search")]


def spreads_in(made_by: Mapping[str, Any]) -> dict[str, float]:
    """By measure, the share by which the search that came second in the final evaluation differs from the one that won.

    Another tuning would have found another router; runs of other seeds say nothing of that. Empty for one search.
    """
    ran = [each for each in searches_in(made_by) if each.get("mean_s") and each.get("p99_s")]
    ran.sort(key=lambda each: log(each["mean_s"]) + TAIL * log(each["p99_s"]))
    if len(ran) < 2:
        return {}
    keys = {"latency_mean_s": "mean_s", "latency_p99_s": "p99_s"}
    return {measure: abs(ran[1][key] / ran[0][key] - 1) for measure, key in keys.items()}


# --------------------------------------------------------------------------------------------------------- comparisons


def compare(judged: JudgedScenario, router: str, baseline: str, *, with_searches: bool = True) -> dict[str, Any]:
    """One router less another, seed by seed: accuracy and windows kept in points, the rest in percent of the
    baseline's.

    Intervals also hold the spread of both routers' searches, if asked.
    """
    one, other = judged.routers.loc[router], judged.routers.loc[baseline]
    row = {"router": router, "baseline": baseline, "points": one["accuracy_pct"] - other["accuracy_pct"]}
    kept = _difference(judged, router, baseline, "slo_attainment", "difference")
    row |= columns("attainment_points", _times(kept, 100))
    for stem, measure in CHANGES.items():
        change = _difference(judged, router, baseline, measure, "percent")
        if with_searches and change["mean"] is not None:
            shares = [judged.spreads.get(name, {}).get(measure, 0.0) for name in (router, baseline)]
            wider = widened(MeanInterval(mean=100 + change["mean"], ci95=change["ci95"]), *shares)
            change = MeanInterval(mean=change["mean"], ci95=wider["ci95"])
        row |= columns(f"{stem}_pct", change)
    return row


def _difference(judged: JudgedScenario, router: str, baseline: str, measure: str, kind: str) -> MeanInterval:
    mine, others = judged.of(router, measure), judged.of(baseline, measure)
    seeds = [seed for seed in mine if seed in others]
    difference = paired_difference([mine[seed] for seed in seeds], [others[seed] for seed in seeds])
    return difference["percent"] if kind == "percent" else difference["difference"]


def change_mean(judged: JudgedScenario, router: str, baseline: str, measure: str) -> float | None:
    """Mean change of one measure in percent of the baseline's, seed by seed."""
    return _difference(judged, router, baseline, measure, "percent")["mean"]


def columns(name: str, interval: MeanInterval) -> dict[str, float | None]:
    """A mean and its half-width as two columns."""
    return {name: interval["mean"], f"{name}_ci95": interval["ci95"]}


def _times(interval: MeanInterval, factor: float) -> MeanInterval:
    mean, half = interval["mean"], interval["ci95"]
    return MeanInterval(mean=None if mean is None else factor * mean, ci95=None if half is None else abs(factor) * half)


def is_of(labels: Any, router: str) -> Any:
    """Of each label whether it is this router, tuned or not: `compass`, or `compass, fine-tuned`."""
    return (labels == router) | labels.str.startswith(f"{router}, ")


def baselines_of(judged: JudgedScenario, router: str) -> pd.DataFrame:
    """Who finish as much and are as accurate, or more so; or are less so, and slower all the same.

    The quickest first, or who needs the least energy, where that is what was tuned for.

    Itself with other numbers is no baseline, nor who leaves too many images unserved; and who is told its goals is
    compared with those who are, too (`compare_told`).
    """
    able = judged.able()
    row = able.loc[router]
    is_as_accurate = able["accuracy_pct"] >= row["accuracy_pct"] - EQUAL_POINTS - ROUNDING
    is_baseline = (
        ~is_of(able.index, router)
        & (able["group"] != TOLD)
        & ~able["is_flagged"]
        & (is_as_accurate | (able["mean_ms"] >= row["mean_ms"]))
        & (able["lost_share"] <= row["lost_share"] + LOST)
    )
    return able[is_baseline].sort_values("energy_j" if judged.is_of_energy else "mean_ms", kind="stable")


def compare_told(judged: JudgedScenario) -> dict[str, Any] | None:
    """Compass told its goals against the other one told that keeps most windows; None without both.

    Of those that keep as many, the more accurate one. Who leaves too many images unserved is compared with nobody.
    """
    able = judged.able()
    able, label = able[(able["group"] == TOLD) & ~able["is_flagged"]], told(COMPASS)
    baseline = _most_windows(able[able.index != label])
    if label not in able.index or baseline is None:
        return None
    return {**compare(judged, label, baseline), **compare_attainment(judged, label)}


def compare_attainment(judged: JudgedScenario, router: str) -> dict[str, Any]:
    """Windows that a router keeps less those of the other one, tuned and told nothing, that keeps most; in points."""
    able = judged.able().dropna(subset=["attainment_pct"])
    others = able[able["group"].isin([LEARNED, TUNED, PLACED]) & ~able["is_flagged"] & ~is_of(able.index, router)]
    baseline = _most_windows(others)
    if router not in able.index or baseline is None:
        return {}
    change = _times(_difference(judged, router, baseline, "slo_attainment", "difference"), 100)
    shares = {
        "attainment_pct": able.loc[router, "attainment_pct"],
        "best_attainment_pct": others.loc[baseline, "attainment_pct"],
    }
    return {**shares, **columns("best_attainment_points", change), "best_attainment_baseline": baseline}


def _most_windows(rows: pd.DataFrame) -> str | None:
    if rows.empty:
        return None
    return str(rows.sort_values(["attainment_pct", "accuracy_pct"], ascending=False, kind="stable").index[0])


# ------------------------------------------------------------------------------------------------------- the judgement


def judge(judged: JudgedScenario) -> tuple[dict[str, Any], list[Goal]]:
    """Shipped Compass against the quickest baseline: a row of `results-versus.csv`, and those of `results-losses.csv`.

    `holds` is "yes" where all goals hold by whole intervals against somebody who was tuned: to be better than those who
    were not is no win. The losses are what was asked and is missed or open, then whoever is better for certain.
    """
    row: dict[str, Any] = {"scenario": judged.name, "load": judged.load, "group": "as tuned", "router": COMPASS}
    row |= {"hypervolume": covered(judged), "hypervolume_without_compass": covered(judged, without=COMPASS)}
    if COMPASS not in judged.able().index:
        return {**row, "holds": "?"}, [note("no Compass was run, or it completed nothing")]
    baselines = baselines_of(judged, COMPASS)
    if baselines.empty:
        return {**row, "holds": "?"}, [nearest(judged, "no baseline is as accurate")]
    baseline = str(baselines.index[0])
    row |= {**compare(judged, COMPASS, baseline), **compare_attainment(judged, COMPASS)}
    row |= {"worst_ms": judged.routers.loc[COMPASS, "worst_ms"], "baseline_worst_ms": baselines["worst_ms"].iloc[0]}
    goals = [goal for goal in asked(judged, row, judged.routers.loc[COMPASS], baselines.iloc[0]) if not goal["holds"]]
    goals.sort(key=lambda goal: goal["holds"] is None)
    missed = any(goal["holds"] is False for goal in goals)
    if not goals:
        goals = _doubts(judged, baselines)
    row["holds"] = "no" if missed else "open" if goals else "yes"
    row["is_tail_lower"] = not goals and row["p99_pct"] + (row["p99_pct_ci95"] or 0.0) <= TAIL_PCT
    return row, [*goals, *_worse(judged, baselines), *_spoiled(judged)]


def asked(judged: JudgedScenario, row: Mapping[str, Any], own: pd.Series[Any], baseline: pd.Series[Any]) -> list[Goal]:
    """All that is asked of Compass: to keep the floor, and to be little behind the best rival in the mean and the p99.

    Or in energy, where that is what was tuned for.
    """
    most = {"energy": MEAN_PCT} if judged.is_of_energy else {"mean": MEAN_PCT, "p99": P99_PCT}
    goals = [_at_most(WORDS[stem], row, f"{stem}_pct", limit) for stem, limit in most.items()]
    if row["points"] < -EQUAL_POINTS - ROUNDING:
        goals.append(_short("accuracy", row["points"], "points", f"at least {-EQUAL_POINTS:+.2f} points"))
    if judged.floor is not None and own["accuracy_pct"] < 100 * judged.floor - EQUAL_POINTS:
        what = f"accuracy {own['accuracy_pct']:.2f} %"
        goals.append(_short(what, None, "", f"at least the floor, {100 * judged.floor:.2f} %"))
    if own["lost_share"] > baseline["lost_share"] + LOST:
        more = 100 * (own["lost_share"] - baseline["lost_share"])
        goals.append(_short("images that stay unfinished", more, "points", "no more"))
    if own["is_flagged"]:
        goals.append(_short("images left unserved", None, "%", "at most 1 %"))
    return goals


def note(what: str) -> Goal:
    """Why nobody can say."""
    return {"what": what, "holds": None}


def _short(what: str, change: float | None, unit: str, wish: str) -> Goal:
    return {"what": what, "change": change, "unit": unit, "asked": wish, "holds": False}


def _at_most(what: str, row: Mapping[str, Any], name: str, most: float, unit: str = "%") -> Goal:
    mean, half = row[name], row[f"{name}_ci95"] or 0.0
    goal = {"what": what, "change": mean, "ci95": half, "unit": unit, "asked": f"at most {most:+.0f} {unit}"}
    if mean is None:
        return {**goal, "holds": None}
    return {**goal, "holds": True if mean + half <= most else False if mean - half > most else None}


def _doubts(judged: JudgedScenario, baselines: pd.DataFrame) -> list[Goal]:
    """Why all goals that hold are no win: nobody who counts is as accurate, or one of those is quicker."""
    if not baselines["group"].isin([TUNED, PLACED]).any():
        return [nearest(judged, "no tuned baseline is as accurate")]
    able, row = judged.able(), judged.routers.loc[COMPASS]
    quicker = able[
        able["group"].isin([TUNED, PLACED])
        & ~able["is_flagged"]
        & ~able.index.isin(baselines.index)
        & (able["mean_ms"] < row["mean_ms"])
        & (able["lost_share"] <= row["lost_share"] + LOST)
    ]
    if quicker.empty:
        return []
    points = quicker["accuracy_pct"].iloc[0] - row["accuracy_pct"]
    what = "a tuned one is quicker and less accurate: neither is better"
    return [{**note(what), "change": points, "unit": "points", "against": quicker.index[0]}]


def nearest(judged: JudgedScenario, what: str) -> Goal:
    """With the most accurate one that was tuned, and its accuracy less Compass's."""
    able = judged.able()
    others = able[able["group"].isin([TUNED, PLACED]) & ~able["is_flagged"]]
    if others.empty:
        return note(f"{what}: none has run")
    best = others["accuracy_pct"].idxmax()
    points = others.loc[best, "accuracy_pct"] - judged.routers.loc[COMPASS, "accuracy_pct"]
    return {**note(f"{what}; the most accurate"), "change": points, "unit": "points", "against": best}


def _worse(judged: JudgedScenario, baselines: pd.DataFrame) -> list[Goal]:
    """What Compass is worse at for certain: by the seeds' whole interval, by more than `WORST_PCT`.

    A baseline whose searches lie far apart is no less a baseline for that.
    """
    pairs = [compare(judged, COMPASS, str(baseline), with_searches=False) for baseline in baselines.index]
    losses = []
    for stem, what in WORDS.items():
        worse = [(pair[f"{stem}_pct"], pair["baseline"]) for pair in pairs if _is_above(pair, f"{stem}_pct", WORST_PCT)]
        if worse:
            change, baseline = max(worse)
            losses.append({"what": what, "change": change, "unit": "%", "against": baseline, "holds": False})
    return losses


def _spoiled(judged: JudgedScenario) -> list[Goal]:
    """Fine-tuned for the scenario it is worse than as it ships."""
    if FINE_TUNED not in judged.able().index:
        return []
    change = compare(judged, FINE_TUNED, COMPASS)
    if change["points"] > EQUAL_POINTS or not _is_above(change, "mean_pct"):
        return []
    what = "mean latency of the fine-tuned one, so tuning has not helped,"
    return [{"what": what, "change": change["mean_pct"], "unit": "%", "against": COMPASS, "holds": False}]


def _is_above(row: Mapping[str, Any], name: str, limit: float = 0.0) -> bool:
    """Whether the whole interval lies above it."""
    return row[name] is not None and row[name] - (row[f"{name}_ci95"] or 0.0) > limit


def covered(judged: JudgedScenario, *, without: str | None = None) -> float | None:
    """Hypervolume of accuracy against mean latency, as a share of what no latency at the best accuracy would cover.

    It counts from the narrowest tuple's accuracy and `REFERENCE_MS`; `without` a router, however it was tuned.
    """
    narrowest, best = judged.extremes_pct
    able = judged.able()
    able = able[~able["is_flagged"].astype(bool)]
    if without is not None:
        able = able[~is_of(able.index, without)]
    points = [ParetoPoint(str(label), row["accuracy_pct"], row["mean_ms"]) for label, row in able.iterrows()]
    if not points or best <= narrowest:
        return None
    return hypervolume(points, ParetoPoint("reference", narrowest, REFERENCE_MS)) / ((best - narrowest) * REFERENCE_MS)


# ------------------------------------------------------------------------------------------------- the paper's replica

HEAVY, RELAXED, NARROWEST = "ppo-heavy", "ppo-relaxed", "sticky at 0.25"
CLOSE_PCT: Final = 5.0
RELAXED_CUT_PCT: Final = -80.0


def replica_checks(judged: JudgedScenario) -> list[dict[str, Any]]:
    """What the paper's PPO should reach against random routing, and against what stays put at the narrowest width."""
    wanted: list[tuple[str, str, str, float | None]] = [
        (HEAVY, "latency_mean_s", "random", paper.HEAVY.latency_change_pct),
        (HEAVY, "energy_j", "random", paper.HEAVY.energy_change_pct),
        (HEAVY, "latency_mean_s", NARROWEST, CLOSE_PCT),
        (RELAXED, "latency_mean_s", "random", RELAXED_CUT_PCT),
        (RELAXED, "latency_std_s", "random", 0.0),
        (RELAXED, "energy_j", "random", RELAXED_CUT_PCT),
        (RELAXED, "energy_std_j", "random", 0.0),
    ]
    rows = []
    for router, measure, other, most in wanted:
        if {router, other} <= set(judged.routers.index):
            change = change_mean(judged, router, other, measure)
            rows.append(_check(f"{router}: {measure} against {other}, %", "at most", most, change))
    if RELAXED in judged.routers.index:
        reached = estimate(list(judged.of(RELAXED, "accuracy").values()))["mean"]
        reached = None if reached is None else 100 * reached
        rows.append(_check(f"{RELAXED}: accuracy, %", "at least", paper.RELAXED.accuracy_pct, reached))
    return [{"scenario": judged.name, **row} for row in rows]


def _check(what: str, sense: str, asked_for: float | None, reached: float | None) -> dict[str, Any]:
    assert asked_for is not None, "the paper tells it"
    holds = None if reached is None else reached <= asked_for if sense == "at most" else reached >= asked_for
    return {"what": what, "asked": f"{sense} {asked_for:+.2f}", "found": reached, "holds": holds}
