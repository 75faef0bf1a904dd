"""How wrong solo latency is after calibrations of several budgets: a curve for each key and one surface, side by side.

    python -m benchmarks.speed.calibration_error --budgets 30,180

The truth is measured apart: random (key, batch size) points, in rounds before, between and after the calibrations, so
that a slow spell of the machine meets all alike. Both ways of fitting get the same calibration's measurements. `truth`
is how far two halves of the truth's rounds lie apart: no fit can be seen to be nearer than about half of that.

A budget is one of `slimsched calibrate`, whose last part (what serving costs) is left out here. What was measured stays
in `--folder`: the same command, with other code, fits it again; steps that its plan has and the log does not have are
measured.
"""

from __future__ import annotations

import argparse
import json
import time  # noqa: TID251 - it measures
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.bench import WatchResult
from calibrate.calibration import Calibration
from calibrate.check import draw_point
from calibrate.costs import Key
from calibrate.errors import predict_solo_s
from calibrate.fit import fit
from calibrate.log import Log
from calibrate.measure import Station
from calibrate.opening import bench_of
from calibrate.plan import LAVISH, Planned, Point, Solo, Watch
from calibrate.session import model_costs, observe
from calibrate.slowdown import UNSEEN, Speed
from calibrate.solo import solo_points
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from kit.chance import stream
from scenarios.executors.checking import SERVING_S
from scenarios.executors.devices import chosen_devices
from sim.profile import LatencyFit, Profile

MODEL = Path("scenarios/data/models/slimresnet-tiny.safetensors")
EFFORT = replace(LAVISH, warmup=10, repeats=20, min_s=0.04)
WATCH_S = 3.0
WAYS: tuple[LatencyFit, ...] = ("each key", "surface")


@dataclass(frozen=True)
class Subject:
    """What is calibrated, and where all that was measured of it is kept."""

    file: ModelFile
    device: DeviceSpec
    batch_limit: int
    points: int
    folder: Path
    seed: int

    @property
    def keys(self) -> list[Key]:
        """In their order."""
        return sorted(model_costs(self.file).keys)

    def round_of_truth(self, number: int) -> dict[Point, float]:
        """The median seconds at full speed of every point of the truth, measured where the folder does not have it."""
        rng = stream(self.seed, "truth")
        drawn = {draw_point(self.keys, self.batch_limit, rng) for _ in range(self.points)}
        stamp = {
            "device": json.dumps(self.device.execution()),
            "model": model_costs(self.file).info.hash,
            "batch_limit": str(self.batch_limit),
            "points": str(self.points),
            "seed": str(self.seed),
        }
        watched = Planned(Watch(min(drawn)), number, True, 0.0)
        steps = [Planned(Solo(point), number, True, 0.0) for point in sorted(drawn)]
        with Log(self.folder / f"truth-{number}.jsonl", stamp) as log:
            if not all(each.id in log.results for each in (watched, *steps)):
                with bench_of(self.file, self.device, None, 0) as bench:
                    seen = Station(bench, log, time.monotonic_ns, lambda _: 0.0, UNSEEN).once(
                        watched, replace(EFFORT, min_s=WATCH_S)
                    )
                    assert isinstance(seen, WatchResult)
                    station = Station(bench, log, time.monotonic_ns, lambda _: 0.0, seen.slowdown)
                    for index in rng.permutation(len(steps)):
                        station.once(steps[index], EFFORT)
            seen = log.results[watched.id]
            assert isinstance(seen, WatchResult)
            measured = [(planned.step, log.results[planned.id]) for planned in steps]
        found = solo_points(measured, 1, Speed(seen.slowdown.full_s), held_out=False)
        return {point: each.times.quantile(0.5) for point, each in found.items()}

    def profiles(self, budget_s: float) -> tuple[dict[LatencyFit, Profile], LatencyFit | None, set[Point]]:
        """A profile by each way, the way that would be kept, and which points its calibration measured."""
        wanted = Calibration(
            file=self.file,
            device=self.device,
            budget_s=max(budget_s - SERVING_S, 0.75 * budget_s),
            batch_limit=self.batch_limit,
            log_path=self.folder / f"calibration-{budget_s:g}.jsonl",
            seed=self.seed,
            peer=self.device,
            allow_busy=True,
        )
        seen = observe(wanted)

        def fitted(by: LatencyFit | None) -> Profile:
            return fit(seen.measurements, seen.costs, seen.facts, "bench", seen.omitted, seen.seen, by=by)

        points = {step.point for step, _ in seen.measurements if isinstance(step, Solo) and not step.held_out}
        return {by: fitted(by) for by in WAYS}, fitted(None).latency_fit, points


def errors_pct(profile: Profile, truth_s: Mapping[Point, float]) -> list[float]:
    """Of the profile's median latencies; positive where the profile says more."""
    curves = {(curve.segment, curve.width, curve.previous_width): curve for curve in profile.latency}
    return [100 * (predict_solo_s(curves[p.key], p.batch) / s - 1) for p, s in truth_s.items()]


def report(subject: Subject, budgets_s: Sequence[float]) -> Iterator[dict[str, object]]:
    """Lines of results: of each budget and way, then of the truth itself."""
    rounds = [subject.round_of_truth(0)]
    made = []
    for number, budget_s in enumerate(budgets_s, start=1):
        made.append((budget_s, *subject.profiles(budget_s)))
        rounds += [subject.round_of_truth(2 * number - 1), subject.round_of_truth(2 * number)]
    truth_s = {point: float(np.median([each[point] for each in rounds])) for point in rounds[0]}
    for budget_s, profiles, kept, measured in made:
        unmeasured_s = {point: s for point, s in truth_s.items() if point not in measured}
        for by, profile in profiles.items():
            yield {
                "budget_s": budget_s,
                "by": by,
                "kept": by == kept,
                **_summary(errors_pct(profile, truth_s)),
                "not_measured": _summary(errors_pct(profile, unmeasured_s)),
                "stated": [
                    {"kind": e.kind, "median_pct": e.median_abs_pct, "mean_pct": e.mean_abs_pct}
                    for e in profile.errors
                    if e.metric == "solo latency"
                ],
            }
    halves = [{p: float(np.median([each[p] for each in rounds[half::2]])) for p in truth_s} for half in (0, 1)]
    apart = [100 * (halves[0][point] / halves[1][point] - 1) for point in truth_s]
    yield {"by": "truth", "rounds": len(rounds), **_summary(apart)}


def _summary(percents: Sequence[float]) -> dict[str, float]:
    if not percents:
        return {"points": 0}
    sizes, bias_pct = np.abs(percents), float(np.median(percents))
    return {
        "median_pct": float(np.median(sizes)),
        "mean_pct": float(np.mean(sizes)),
        "bias_pct": bias_pct,
        "points": len(percents),
    }


def main() -> None:
    """Measure what the folder does not have, and print a line of JSON for each result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="30,180", help="seconds, with commas")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--batch-limit", type=int, default=16)
    parser.add_argument("--points", type=int, default=300, help="of the truth, at most")
    parser.add_argument("--folder", type=Path, default=Path("runs/calibration-error"))
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    ((_, device),) = chosen_devices(wanted.device)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    file = ModelFile(wanted.model)
    subject = Subject(file, device, wanted.batch_limit, wanted.points, wanted.folder, wanted.seed)
    for line in report(subject, [float(each) for each in wanted.budgets.split(",")]):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
