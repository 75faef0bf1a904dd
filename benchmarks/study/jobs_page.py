"""The page about RLTune: what was trained and judged, in words and tables. It reads no file and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from jobs.learning.course import TRAINING_JOBS, gain
from jobs.learning.judging import (
    BASELINES,
    PROGRAMMES,
    Estimate,
    Numbers,
    mean_of,
    ratio_of,
    table_of,
)
from jobs.learning.learned import FAITHFUL, FIXED
from jobs.sim.jobs import JobList
from scenarios.show.charts import COLORS, canvas
from scenarios.show.table import Table, columns, to_markdown

BASE: Final = "fifo-stall"
LEARNED: Final = (FAITHFUL, FIXED)
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
PLACES: Final = {
    "cold": f"on an empty cluster, of the first {TRAINING_JOBS:,} jobs",
    "whole": "on an empty cluster, of the whole trace",
    "warm": "on a warm cluster, of the last 40 % of the time",
}


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
        picture: its path from the page.
    """

    trace: str
    jobs: JobList
    drawn_jobs: int
    load: float
    gpus: int
    effort: Mapping[str, int]
    judged: Sequence[Judged]
    lessons: Sequence[Lesson]
    picture: str


def page_of(study: Study) -> str:
    """Markdown."""
    philly = [each for each in study.judged if each.case == "philly"]
    parts = [
        _head(study),
        _in_short(study.judged),
        _maxima(study.judged),
        *_tables("Philly's trace on RLTune's cluster", philly, "The jobs of the trace."),
        _without_learning(study.judged),
        *_tables(
            "Helios' and Alibaba's clusters, with drawn jobs",
            [each for each in study.judged if each.case != "philly"],
            f"**These jobs are drawn, and nobody's trace.** The nodes are RLTune's; {study.drawn_jobs:,} jobs have the "
            f"GPUs (16 at most) and the mean and spread of run times (lognormal) of the trace above, and as much load "
            f"({study.load:.2f}). They arrive in bursts (mmpp), each bound to one VC or GPU type.",
        ),
        _programmes(philly),
        _ablation(philly, study.lessons),
        _explained(study.lessons),
        _training(study),
    ]
    return "\n\n".join(parts) + "\n"


def _head(study: Study) -> str:
    jobs, flags = study.jobs, " ".join(f"--{key} {value}" for key, value in study.effort.items())
    days = (jobs.submit_s[-1] - jobs.submit_s[0]) / 86_400
    command = f"python -m benchmarks jobs --trace {study.trace} {flags}"
    return (
        "# Results: RLTune\n\n"
        f"Generated by `{command}`; edit nothing here.\n\n"
        "RLTune ([arXiv 2512.10271](https://arxiv.org/abs/2512.10271)) as its authors ran it (`rltune-faithful`) and "
        f"mended (`rltune-fixed`), beside rivals; [what they are](jobs-learning.md). The trace has {len(jobs):,} jobs "
        f"of {days:,.1f} days, {study.load:.2f} of what RLTune's {study.gpus} GPUs of Philly can do. Waits are "
        f"means of {study.effort['windows']} windows of 256 jobs; brackets hold 95 % of the bootstrap over windows, "
        "and differences are paired. `-stall`: who is first stalls the cluster until it fits. `oracle`: run "
        "times are known."
    )


# ----------------------------------------------------------------------------------------------------------- in short


def _in_short(judged: Sequence[Judged]) -> str:
    heads = ("windows", "learned", "**loses to**", "can't be told from", "beats")
    rows = [
        [each.title, f"`{name}`", *(_names(rivals) for rivals in _standing(each, name))]
        for name in LEARNED
        for each in judged
    ]
    sentences = "\n".join(_losses(judged, name) for name in LEARNED)
    return f"## In short\n\n{sentences}\n\n{to_markdown(Table(columns(*heads), rows))}"


def _losses(judged: Sequence[Judged], name: str) -> str:
    """To rivals that know no run times: how often, and the greatest as a share of its wait."""
    lost = {each.title: [rival for rival in _standing(each, name)[0] if "oracle" not in rival] for each in judged}
    ratios = [
        (ratio_of(each.waits_s[rival], each.waits_s[name]).mean, rival, each)
        for each in judged
        for rival in lost[each.title]
    ]
    text = f"- `{name}` loses to rivals that have learned nothing and know no run times on"
    text += f" {sum(map(bool, lost.values()))} of {len(judged)} sets of windows"
    if not ratios:
        return f"{text}."
    _, rival, at = min(ratios, key=lambda found: found[0])
    own, least, more = (
        mean_of(waits) for waits in (at.waits_s[name], at.waits_s[rival], at.waits_s[rival] - at.waits_s[name])
    )
    change = f"{more.mean:+,.0f}, {more.low:+,.0f} to {more.high:+,.0f}"
    return (
        f"{text}; at worst ({at.title}) its jobs wait {own.mean:,.0f} s and `{rival}`'s {least.mean:,.0f} s ({change})."
    )


def _standing(judged: Judged, name: str) -> tuple[list[str], list[str], list[str]]:
    """Rivals that wait less than it, as long within the interval, and longer."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for rival in (each.name for each in BASELINES):
        more = mean_of(judged.waits_s[rival] - judged.waits_s[name])
        found[0 if more.high < 0 else 2 if more.low > 0 else 1].append(rival)
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nobody"


# ------------------------------------------------------------------------------------------------------------- tables


def _maxima(judged: Sequence[Judged]) -> str:
    shown = [each for each in judged if each.place in COLD]
    rows = []
    for measure, claim in CLAIMS.items():
        for name in (each for each in MAXIMA_OF if each != BASE):
            cells = [_percent(_ratio(each, measure, name)) for each in shown]
            rows.append([measure, claim, f"`{name}`", *cells])
    table = Table(columns("", "the abstract", "here", *(each.title for each in shown)), rows)
    return (
        "## The abstract's three maxima\n\n"
        f"They are the largest changes that the abstract names, and here are changes of means against `{BASE}`, which "
        "is the base policy of the training, where windows begin cold, as RLTune has them. `fifo-first-fit` has "
        "learned nothing. Where nobody waits, the change is 0.\n\n" + to_markdown(table)
    )


def _ratio(judged: Judged, measure: str, name: str) -> Estimate:
    if measure == "GPU utilisation":
        return ratio_of(judged.busy[name], judged.busy[BASE])
    run_s = 0.0 if measure == "queueing delay" else judged.run_s
    return ratio_of(judged.waits_s[name] + run_s, judged.waits_s[BASE] + run_s)


def _percent(ratio: Estimate) -> str:
    mean, low, high = (100 * (each - 1) for each in (ratio.mean, ratio.low, ratio.high))
    return f"{mean:+.0f} % ({low:+.0f} to {high:+.0f})"


def _tables(title: str, judged: Sequence[Judged], about: str) -> list[str]:
    parts = [f"## {title}\n\n{about}"]
    for each in judged:
        shown = {name: each.waits_s[name] for name in (*(one.name for one in BASELINES), *LEARNED)}
        against = FIXED if each.place == "warm" else FAITHFUL
        about = f"Windows {PLACES[each.place]}; `it` is `{against}`."
        parts.append(f"### {each.title}\n\n{about}\n\n{table_of(shown, against)}")
    return parts


def _without_learning(judged: Sequence[Judged]) -> str:
    rows = []
    for name, words in (*UNLEARNED.items(), *((name, "learned") for name in LEARNED)):
        ratios = [ratio_of(each.waits_s[name], each.waits_s[BASE]) for each in judged]
        cells = [f"{100 * each.mean:.0f} % ({100 * each.low:.0f} to {100 * each.high:.0f})" for each in ratios]
        rows.append([words, f"`{name}`", *cells])
    return (
        f"## How much of the wait goes without learning\n\nMean wait as a share of `{BASE}`'s; less is better.\n\n"
        + to_markdown(Table(columns("", "policy", *(each.title for each in judged)), rows))
    )


def _programmes(philly: Sequence[Judged]) -> str:
    cold = next(each for each in philly if each.place == "cold")
    waits = {name: cold.waits_s[name] for name in (BASE, *(each.name for each in PROGRAMMES))}
    return (
        "## The programme\n\nPhilly, cold: jobs in order of arrival, in RLTune's way of waiting. Who is chosen lies on "
        "the first nodes that have room, or where a mixed integer programme says: as RLTune has it written, or "
        f"[as it is meant](paper-map-rltune.md#the-programme). `it` is `{BASE}`.\n\n{table_of(waits, BASE)}"
    )


# ------------------------------------------------------------------------------------------------ learning, taken apart


def _ablation(philly: Sequence[Judged], lessons: Sequence[Lesson]) -> str:
    names = [FAITHFUL, *(each.name for each in lessons if each.name in CHANGED), FIXED]
    said = [f"| `{name}` | {CHANGED[name]} |" for name in names if name in CHANGED]
    parts = [
        "## One thing changed at a time",
        f"Each is `{FAITHFUL}`, trained anew with one thing changed, and judged on the same windows; with all of them "
        f"but `waiting-lam-1` it is `{FIXED}`.",
        "\n".join(["| name | changed |", "|---|---|", *said]),
    ]
    for each in philly:
        if each.place != "whole":
            waits = {name: each.waits_s[name] for name in names}
            parts.append(f"### Ablation, {each.place}\n\n`it` is `{FAITHFUL}`.\n\n{table_of(waits, FAITHFUL)}")
    return "\n\n".join(parts)


def _explained(lessons: Sequence[Lesson]) -> str:
    rows = []
    for each in lessons:
        table = each.table
        cells = ["nobody had a choice", "", ""]
        if table is not None:
            share, same = table["r_squared"], table["same_choice"]
            cells = [f"{share:.3f}", f"{100 * same:.1f} %", f"{table['decisions']:,.0f}"]
        rows.append([SHOWN[each.case], f"`{each.name}`", *cells])
    heads = ("cluster", "learned", "R^2", "same choices", "decisions")
    return (
        "## How much a table of scores explains\n\n"
        "A table by age and GPUs is fitted to what the network gave on every other window, and judged on the rest: R^2 "
        "of the scores within decisions, and the share of decisions in which the network's likeliest choice is one "
        f"that the table puts first. Windows are cold, and warm for `{FIXED}`.\n\n"
        + to_markdown(Table(columns(*heads), rows))
    )


def _training(study: Study) -> str:
    heads = ("cluster", "learned", "epochs", "s an epoch", "processes", "steps", "met its bound", "first reward",
             "last reward")  # fmt: skip
    table = Table(columns(*heads), [_training_row(each) for each in study.lessons])
    return (
        "## Training\n\n"
        f"An epoch is {study.effort['episodes']} windows and an update. Its time is the median, with so many "
        "processes. Steps are the mean of an update's gradient steps of the policy, of so many at most; its bound is "
        "on the mean log-ratio. Rewards are RLTune's, (B - R) / max(B, R, 1), of an epoch's mean waits R and of its "
        f"base policy's B. The base policy stalls, but for `{FIXED}` and `against`. A training is given up once R / B "
        f"was above {APART:.0f}, and above {APART:.0f} times what it was in the first epoch, in three epochs one after "
        "another.\n\n" + to_markdown(table) + "\n\n"
        f"![Rewards by epoch, a line a training]({study.picture})"
    )


def _training_row(lesson: Lesson) -> list[str]:
    steps = [epoch["steps"] for epoch in lesson.history]
    wall_s = f"{np.median([each['wall_s'] for each in lesson.times]):.1f}" if lesson.times else "not kept"
    processes = ", ".join(str(each) for each in sorted({int(each["processes"]) for each in lesson.times}))
    return [
        SHOWN[lesson.case],
        f"`{lesson.name}`",
        str(len(lesson.history)),
        wall_s,
        processes,
        f"{np.mean(steps):.0f} of {lesson.steps}",
        f"{sum(many < lesson.steps for many in steps)} of {len(steps)}",
        f"{lesson.gains[0]:+.3f}",
        f"{lesson.gains[-1]:+.3f}",
    ]


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
