"""The page about RLTune: what was trained and judged as frames and a template. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.grid import Row
from benchmarks.study.pages import read_frames, render, write_frames
from jobs.learning.judging import BASELINES, DRAWS, BootstrapMean, Numbers, mean_of
from jobs.learning.learned import FAITHFUL, FIXED, NamedPolicy
from jobs.learning.training import gain
from jobs.policies.policy import JobPolicy
from jobs.trace import JobTrace
from kit.chance import stream
from kit.documents import write_text
from scenarios.show import charts
from scenarios.show.charts import COLORS, canvas

BASE: Final = "fifo-stall"
LEARNED: Final = (FAITHFUL, FIXED)
PROGRAMMES: Final = tuple(  # the same order of arrival in RLTune's way of waiting, placed by its programme
    NamedPolicy(f"fifo-stall-{placement}", JobPolicy("fifo", "stall", placement=placement))
    for placement in ("programme-as-written", "programme")
)
UNLEARNED: Final = {
    "fifo-first-fit": "not stalling",
    "random-fitting": "chance, not stalling",
    "smallest-stall": "smallest first, stalling",
    "smallest": "smallest first, not stalling",
    "fifo-easy-oracle": "EASY, which knows run times",
}
MAXIMA_OF: Final = (BASE, *LEARNED, "fifo-first-fit")
COLD: Final = ("cold", "whole")
APART: Final = 3.0  # times the wait of the base policy, from which on a training is given up
CLAIMS: Final = {  # the abstract of arXiv 2512.10271; it is silent on where
    "GPU utilisation": "up to +20 %",
    "queueing delay": "up to -81 %",
    "job completion time": "up to -70 %",
}
CHANGED: Final = {
    "waiting": "who was chosen stalls the cluster -> only who fits may be chosen (`choice`)",
    "waiting-lam-1": "the same, and advantages that take no value of later states (lambda = 1)",
    "reward": "the score at the end -> job seconds in the system after each choice (`steps`)",
    "against": "set against the base policy that stalls -> against first-fit",
    "value": "value of 128 slots -> of means and largest values over the queue",
    "warm": "cold windows -> warm ones",
    "earlier": "windows of the first jobs -> of the first 60 % of the time",
}
SHOWN: Final = {"philly": "Philly", "helios": "Helios (drawn)", "alibaba": "Alibaba (drawn)"}
PICTURE: Final = "images/jobs-training.svg"


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What all came to on the same windows.

    Attributes:
        waits_s: by policy, (windows,) mean waits.
        busy: by policy, (windows,) utilisation; of some, where windows begin cold.
        run_s: (windows,) mean run times.
    """

    case: str
    place: str
    waits_s: Mapping[str, Numbers]
    busy: Mapping[str, Numbers]
    run_s: Numbers

    @property
    def title(self) -> str:
        """Whose windows."""
        return f"{SHOWN[self.case]}, {self.place}"


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """A training.

    Attributes:
        steps: of the policy, at most, an update.
        history: as `history_in` gives it.
        times: of epochs, `wall_s` and `processes`.
        table: what a table of scores explains; None where nobody had a choice.
    """

    case: str
    name: str
    steps: int
    history: Sequence[Mapping[str, float]]
    times: Sequence[Mapping[str, float]]
    table: Mapping[str, float] | None

    @property
    def gains(self) -> list[float]:
        """RLTune's reward of each epoch's mean waits."""
        return [gain(epoch["base_score"], epoch["score"]) for epoch in self.history]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """All that the page says.

    Attributes:
        trace: the file's name.
        load: of the trace on RLTune's cluster of Philly, and of the drawn jobs on theirs.
        gpus: of RLTune's cluster of Philly.
        effort: `epochs`, `episodes`, `windows`, as the command was given them.
    """

    trace: str
    jobs: JobTrace
    sampled_jobs: int
    load: float
    gpus: int
    effort: Mapping[str, int]
    judged: Sequence[Judged]
    lessons: Sequence[Lesson]


def make_pages(study: Study, docs: Path) -> None:
    """`data/jobs-*.csv`, the picture, and `jobs-results.md` of them."""
    charts.save(curves_chart(study.lessons), docs / PICTURE)
    write_frames(docs / "data", frames_of(study))
    render_page(docs)


def render_page(docs: Path) -> None:
    """`jobs-results.md`, of the CSV files in a folder's `data/`."""
    given = {"base": BASE, "learned": LEARNED, "unlearned": UNLEARNED, "apart": APART, "picture": PICTURE}
    text = render("jobs-results.md.j2", **given, **read_frames(docs / "data", "jobs-"))
    write_text(docs / "jobs-results.md", text)


def frames_of(study: Study) -> dict[str, pd.DataFrame]:
    """By name, what goes into `data/`; intervals are of the bootstrap over windows, and differences are paired."""
    judged = study.judged
    learned = [(name, each) for name in LEARNED for each in judged]
    frames = {
        "study": [_study_row(study)],
        "ranking": [_ranking_row(each, name) for name, each in learned],
        "maxima": [row for each in judged if each.place in COLD for row in _maxima_rows(each)],
        "shares": [row for each in judged for row in _share_rows(each)],
        "waits": [row for each in judged for row in _wait_rows(each)],
        "trainings": [_training_row(each) for each in study.lessons],
    }
    return {f"jobs-{name}": pd.DataFrame(rows) for name, rows in frames.items()}


def _study_row(study: Study) -> Row:
    jobs = study.jobs
    days = (jobs.submit_s[-1] - jobs.submit_s[0]) / 86_400
    numbers = {
        "jobs": len(jobs),
        "days": days,
        "load": study.load,
        "gpus": study.gpus,
        "sampled_jobs": study.sampled_jobs,
    }
    return {"trace": study.trace, **numbers, **study.effort}


def _ranking_row(judged: Judged, name: str) -> Row:
    """Baselines that wait less than it, as long within the interval, and longer; and the one it loses most to, of those
    that know no run times, with its wait."""
    baselines: dict[str, list[str]] = {"loses_to": [], "open": [], "beats": []}
    worst, least = None, np.inf
    for baseline in (each.name for each in BASELINES):
        more = mean_of(judged.waits_s[baseline] - judged.waits_s[name])
        baselines["loses_to" if more.high < 0 else "beats" if more.low > 0 else "open"].append(baseline)
        ratio = ratio_of(judged.waits_s[baseline], judged.waits_s[name]).mean
        if more.high < 0 and "oracle" not in baseline and ratio < least:
            worst, least = baseline, ratio
    waits_s = {
        key: None if of is None else float(judged.waits_s[of].mean())
        for key, of in (("wait_s", name), ("worst_wait_s", worst))
    }
    row = {"windows": judged.title, "learned": name, **{key: " ".join(names) for key, names in baselines.items()}}
    return {**row, "worst": worst, "of_its_wait_pct": None if worst is None else 100 * least, **waits_s}


def _maxima_rows(judged: Judged) -> list[Row]:
    """The abstract's three, as changes of means against `BASE` in percent."""
    rows = []
    for measure, claim in CLAIMS.items():
        for name in (each for each in MAXIMA_OF if each != BASE):
            ratio = _ratio(judged, measure, name)
            change = {key: 100 * (getattr(ratio, key) - 1) for key in ("mean", "low", "high")}
            rows.append({"measure": measure, "claim": claim, "policy": name, "windows": judged.title, **change})
    return rows


def _ratio(judged: Judged, measure: str, name: str) -> BootstrapMean:
    if measure == "GPU utilisation":
        return ratio_of(judged.busy[name], judged.busy[BASE])
    run_s = 0.0 if measure == "queueing delay" else judged.run_s
    return ratio_of(judged.waits_s[name] + run_s, judged.waits_s[BASE] + run_s)


def ratio_of(own: Numbers, base: Numbers, seed: int = 0) -> BootstrapMean:
    """The mean of one over the mean of another, on the windows of `mean_of`; 1 where the other one's is 0."""
    drawn = stream(seed, "job windows:bootstrap").integers(len(own), size=(DRAWS, len(own)))
    tops, bottoms = (np.append(each[drawn].mean(axis=1), each.mean()) for each in (own, base))
    ratios = np.divide(tops, bottoms, out=np.ones(DRAWS + 1), where=bottoms != 0)
    low, high = np.percentile(ratios[:-1], (2.5, 97.5))
    return BootstrapMean(float(ratios[-1]), float(low), float(high))


def _share_rows(judged: Judged) -> list[Row]:
    """Mean wait in percent of `BASE`'s."""
    rows = []
    for name in (*UNLEARNED, *LEARNED):
        ratio = ratio_of(judged.waits_s[name], judged.waits_s[BASE])
        share = {key: 100 * getattr(ratio, key) for key in ("mean", "low", "high")}
        rows.append({"policy": name, "windows": judged.title, **share})
    return rows


def _wait_rows(judged: Judged) -> list[Row]:
    """Each policy's mean wait, and how far it is above the one that its table is set against."""
    names = {"baselines": [*(each.name for each in BASELINES), *LEARNED]}
    if judged.case == "philly" and judged.place != "whole":
        names["ablation"] = [FAITHFUL, *(each for each in CHANGED if each in judged.waits_s), FIXED]
    if (judged.case, judged.place) == ("philly", "cold"):
        names["programmes"] = [BASE, *(each.name for each in PROGRAMMES)]
    against = {"baselines": FIXED if judged.place == "warm" else FAITHFUL, "ablation": FAITHFUL, "programmes": BASE}
    return [
        {"windows": judged.title, "table": table, "policy": name, **_wait_row(judged.waits_s, name, against[table])}
        for table, columns in names.items()
        for name in columns
    ]


def _wait_row(waits_s: Mapping[str, Numbers], name: str, against: str) -> Row:
    mean = mean_of(waits_s[name])
    row: Row = {"wait_s": mean.mean, "low_s": mean.low, "high_s": mean.high, "against": against}
    if name != against:
        more = mean_of(waits_s[name] - waits_s[against])
        row |= {"more_s": more.mean, "more_low_s": more.low, "more_high_s": more.high}
    return row


def _training_row(lesson: Lesson) -> Row:
    """`r_squared` and `same_choice_pct`: how much a table of scores by age and GPUs explains of its choices."""
    steps = [epoch["steps"] for epoch in lesson.history]
    table = lesson.table or {}
    return {
        "cluster": SHOWN[lesson.case],
        "learned": lesson.name,
        "changed": CHANGED.get(lesson.name),
        "epochs": len(lesson.history),
        "epoch_s": float(np.median([each["wall_s"] for each in lesson.times])) if lesson.times else None,
        "processes": max((int(each["processes"]) for each in lesson.times), default=None),
        "steps": float(np.mean(steps)),
        "most_steps": lesson.steps,
        "met_bound": sum(many < lesson.steps for many in steps),
        "first_reward": lesson.gains[0],
        "last_reward": lesson.gains[-1],
        "r_squared": table.get("r_squared"),
        "same_choice_pct": None if "same_choice" not in table else 100 * table["same_choice"],
        "decisions": table.get("decisions"),
    }


def curves_chart(lessons: Sequence[Lesson]) -> Figure:
    """A panel a cluster, a line a training."""
    cases = list(dict.fromkeys(each.case for each in lessons))
    names = list(dict.fromkeys(each.name for each in lessons))
    with canvas(9.0, 3.2, 1, len(cases), squeeze=False, sharey=True) as (figure, grid):
        for axes, case in zip(grid.flat, cases, strict=True):
            for each in (one for one in lessons if one.case == case):
                epochs, color = range(1, len(each.gains) + 1), COLORS[names.index(each.name) % len(COLORS)]
                axes.plot(epochs, each.gains, color=color, label=each.name, linewidth=1.0, marker=".", markersize=3)
            axes.set_title(SHOWN[case], loc="left")
            axes.set_xlabel("epoch")
        grid[0, 0].set_ylabel("reward of an epoch's mean waits")
        handles: dict[str, Any] = {}
        for axes in grid.flat:
            handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return figure
