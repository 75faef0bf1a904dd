"""RLTune by several seeds of training, against the order that it is given, on later windows unseen in training.

    python -m benchmarks rltune philly.yaml    # trains what is missing; docs/data/rltune.csv, docs/jobs-learning.md

Windows follow each other to the end of the trace, each warmed up by the jobs before it. Changes are paired: the same
windows, and of several trainings their mean.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import slimsched.jobs
from benchmarks.marked import commit_here
from benchmarks.study.pages import change, number, rows_of, table_header, table_row
from jobs.job_scenario import read_case, read_scenario
from jobs.learning.scoring_network import NamedPolicy, read_learned
from jobs.learning.training import BASELINES, DRAWS, LENGTH, BootstrapMean, Windows, judge, mean_of
from kit.random_streams import stream

GIVEN: Final = "qssf"  # the order that it is given, with its predictions: first-fit in this order
ALL: Final = "all"  # seeds
MODES: Final = {"drawn": True, "likeliest": False}  # of taking a choice, by `is_sampled`
Numbers = NDArray[np.float64]


def make_frame(scenario: Path, runs: Path, seeds: int, epochs: int, episodes: int, jobs: int) -> pd.DataFrame:
    """Train what is missing, and return a row a policy: mean wait on later windows, its change against `GIVEN`."""
    files = [runs / f"rltune-{seed}.safetensors" for seed in range(seeds)]
    for seed, file in enumerate(files):  # evaluated below, on all windows
        training = {"seed": seed, "epochs": epochs, "episodes": episodes, "judged": 1, "jobs": jobs}
        slimsched.jobs.train(scenario, base=GIVEN, out=file, **training)
    experiment = read_case(read_scenario(scenario), str(scenario))
    _, later = Windows.split(experiment.jobs, experiment.cluster_model)
    starts = range(later.first, later.last + 1, LENGTH)
    waits_s = {policy.name: each for policy, each in judge(BASELINES, later, starts, jobs=jobs)}
    rows = [row_of(name, None, each[None], waits_s[GIVEN]) for name, each in waits_s.items()]
    learned = [read_learned(file)[0] for file in files]
    for mode, is_sampled in MODES.items():
        these = [replace(each, spec=replace(each.spec, is_sampled=is_sampled)) for each in learned]
        policies = [NamedPolicy(f"rltune, {mode}", each.spec.policy, each) for each in these]
        own_s = np.stack([each for _, each in judge(policies, later, starts, jobs=jobs)])
        groups = [*((str(seed), own_s[[seed]]) for seed in range(seeds)), (ALL, own_s)]
        rows += [row_of(f"rltune, {mode}", seed, each, waits_s[GIVEN]) for seed, each in groups]
    return pd.DataFrame(rows).assign(scenario=scenario.name, epochs=epochs, episodes=episodes)


def row_of(name: str, seed: str | None, own_s: Numbers, given_s: Numbers) -> dict[str, float | str | int | None]:
    """Return one policy's figures of (trainings, windows) waits, against (windows,) waits of the order it is given."""
    wait, change_pct = mean_of(own_s.mean(axis=0)), ratio_pct(own_s, given_s)
    columns = {"wait_s": wait.mean, "wait_s_low": wait.low, "wait_s_high": wait.high, "windows": len(given_s)}
    if name != GIVEN:
        columns |= dict(zip(("change_pct", "change_pct_low", "change_pct_high"), change_pct, strict=True))
    return {"policy": name, "seed": seed, **columns}


def ratio_pct(own_s: Numbers, given_s: Numbers) -> BootstrapMean:
    """Return by how many percent the mean of (trainings, windows) is above that of (windows,), and the ends of its 95 %
    interval: a bootstrap over trainings and windows, paired by window."""
    rng, (trainings, windows) = stream(0, "rltune:bootstrap"), own_s.shape
    trained, drawn = rng.integers(trainings, size=(DRAWS, trainings)), rng.integers(windows, size=(DRAWS, windows))
    means_s = own_s[trained[:, :, None], drawn[:, None, :]].mean(axis=(1, 2))
    low, high = np.percentile(means_s / given_s[drawn].mean(axis=1), (2.5, 97.5))
    return BootstrapMean(*(100 * (float(ratio) - 1) for ratio in (own_s.mean() / given_s.mean(), low, high)))


def text(frame: pd.DataFrame) -> str:
    """Return the frame as Markdown, with the command and the commit."""
    lines = [table_header(["policy", "seed", "mean wait (95 %), s", f"against `{GIVEN}` (95 %)"])]
    for row in rows_of(frame):
        wait = f"{number(row['wait_s'], 0)} ({number(row['wait_s_low'], 0)} to {number(row['wait_s_high'], 0)})"
        lines.append(table_row([row["policy"], row["seed"] or "", wait, change(row, "change_pct")]))
    one = frame.iloc[0]
    command = f"python -m benchmarks rltune {one['scenario']} --epochs {one['epochs']} --episodes {one['episodes']}"
    header = f"`{command}` at commit {commit_here()[:8]}; all {one['windows']} later windows of {LENGTH} jobs:"
    return "\n".join([header, "", *lines])
