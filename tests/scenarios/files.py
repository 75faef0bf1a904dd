"""Scenario files for tests: a whole one that only simulates, with all that it names."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hw.networks.accuracy_table import Evaluation, save_accuracy
from tests import tiny

SCENARIO = """\
schema: slimsched.scenario/1
name: tiny
model: {accuracy: accuracy.json}
cluster:
  greedy: {batch_limit: 16, preload: all}
  servers:
  - {name: fast, profile: fast.yaml, link: 10gbe}
  - {name: slow, profile: slow.yaml, link: {latency_s: 100us, bandwidth_bytes_s: 1e9}}
workload: {kind: poisson, rate_img_s: 200}
compare: {routers: [random, jsq], seeds: [0, 1]}
duration_s: 1
warmup_s: 100ms
""".replace("100us", "0.1ms")
SEGMENTS, WIDTHS = 2, (0.5, 1.0)


@cache
def profile_text(name: str, speed: float) -> str:
    return tiny.profile(name, segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=speed).to_yaml()


def shorten_serving(patch: pytest.MonkeyPatch) -> None:
    """What serving costs is measured in short runs, on a busy host too: enough to go on, too little to trust."""
    for name, value in (("RUN_S", 2.0), ("TRIES", 1), ("MAX_BACKLOG", 0.5)):
        patch.setattr(f"scenarios.executors.serving_measurement.{name}", value)


def write_scenario(folder: Path, old: str = "", new: str = "") -> Path:
    """The scenario with one text replaced by another; it must be there."""
    assert old in SCENARIO, f"{old!r} is not in the scenario"
    for name, speed in (("fast", 1.0), ("slow", 0.5)):
        (folder / f"{name}.yaml").write_text(profile_text(name, speed))
    tuples = tuple(product(WIDTHS, repeat=SEGMENTS))
    shares = [0.5 + 0.2 * sum(widths) for widths in tuples]
    correct = np.arange(100)[:, None] < 100 * np.array(shares)
    save_accuracy(folder / "accuracy.json", Evaluation(tuples, correct, "0", "toy"))
    path = folder / "tiny.yaml"
    path.write_text(SCENARIO.replace(old, new, 1) if old else SCENARIO)
    return path
