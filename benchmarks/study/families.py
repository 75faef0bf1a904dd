"""Capacity of a family of ordinary networks against replicas of any one of them: the table of docs/models.md.

Four of torchvision's networks at 224 pixels are on a T4 and an A10, whose times come from data sheets; accuracies are
torchvision's own figures for ImageNet. A rival serves all requests by the fastest network that keeps the floor, placed
by the best of three rules. Both have the same blocks, batches and limit. All is simulated:

    python -m benchmarks.study.families
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import slimsched
from hw.networks.model_families import Family, Member, ranked
from hw.networks.network_files import save_model

TOP1: Final = {"mobilenet_v3_small": 0.67668, "resnet18": 0.69758, "resnet34": 0.73314, "resnet50": 0.7613}
WIDTHS: Final = (0.25, 0.5, 0.75, 1.0)
GPUS: Final = ("t4", "a10")
FLOORS: Final = (0.676, 0.687, 0.697, 0.706, 0.715, 0.724, 0.733, 0.74, 0.747, 0.754, 0.761)
PLACEMENTS: Final = ("sticky", "jsq", "least-work")
SEEDS: Final = (0, 1, 2)
_SCENARIO: Final = """\
schema: slimsched.scenario/1
name: family-on-two
model: {accuracy: accuracy.json}
cluster:
  servers:
    - {name: t4, profile: t4.yaml, link: {latency_s: 0.0001, bandwidth_bytes_s: 2.0e+10}}
    - {name: a10, profile: a10.yaml, link: {latency_s: 0.0001, bandwidth_bytes_s: 2.0e+10}}
  greedy: {batch_limit: 32, preload: all}
router: {micro_batch_sizes: [1, 2, 4, 8, 16, 32]}
workload: {kind: poisson, rate_img_s: 500}
slo: {p99_limit_s: 0.1}
"""


def write_scenario(folder: Path) -> Path:
    """Write the scenario, with its profiles and table; weights are random, for times do not depend on them."""
    members = [Member(label=name, network=f"torchvision:{name}") for name in TOP1]
    family, file = Family(ranked(members, (3, 224, 224), 1000)), folder / "family.safetensors"
    save_model(file, family, family.structure.label, {})
    for gpu in GPUS:
        slimsched.synthesize_profile(gpu, network=str(file), out=folder / f"{gpu}.yaml")
    table = {
        "schema": "slimsched.accuracy/2", "provenance": "paper", "model": None, "dataset": "imagenet", "images": None,
        "tuples": [[width] for width in WIDTHS], "top1": list(TOP1.values()), "correct": None,
    }  # fmt: skip
    (folder / "accuracy.json").write_text(json.dumps(table))
    scenario = folder / "family-on-two.yaml"
    scenario.write_text(_SCENARIO)
    return scenario


def sustained(scenario: Path, router: str, floor: float | None) -> list[float]:
    """Return the capacity in images a second, of each seed."""
    changes = {} if floor is None else {"slo.floor": floor}
    return [
        slimsched.capacity(
            scenario, router, [seed], p99_s=0.1, floor=floor, duration_s=6.0, precision=0.01, changes=changes
        ).stable_img_s
        for seed in SEEDS
    ]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        scenario = write_scenario(Path(name))
        alone = {}
        for network, width in zip(TOP1, WIDTHS, strict=True):
            tried = [sustained(scenario, f"fixed:{width:g}@{placement}", None) for placement in PLACEMENTS]
            alone[network] = max(tried, key=np.mean)
        print("| floor % | replicas of | they sustain | `compass` | as a share | `ladder`, as a share |")
        print("|---" * 6 + "|")
        for floor in FLOORS:
            rival = next(network for network, top1 in TOP1.items() if top1 >= floor)
            rates = [sustained(scenario, router, floor) for router in ("compass", "ladder")]
            shares = [np.divide(rate, alone[rival]) for rate in rates]
            cells = [f"{100 * floor:.1f}", f"`{rival}`", f"{np.mean(alone[rival]):,.0f}", f"{np.mean(rates[0]):,.0f}"]
            print("|", " | ".join([*cells, *(_with_interval(share) for share in shares)]), "|", flush=True)


def _with_interval(shares: NDArray[np.float64]) -> str:
    """Return the mean and the half-width of its 95 % interval (Student's t)."""
    half = stats.t.ppf(0.975, len(shares) - 1) * stats.sem(shares)
    return f"{shares.mean():.2f} +- {half:.2f}"


if __name__ == "__main__":
    main()
