"""A check holds on the same device, however noisy; a device that is slower, or shares otherwise, fails it by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.fresh_points import (
    Allowed,
    CheckedMetric,
    ComparedValue,
    allowed,
    check,
    holds,
    is_judged,
    median_interval,
)
from calibrate.measurement_bench import Loop
from calibrate.profile_fit import ACROSS_ERROR, CONCURRENCY_ERROR, REPEATABILITY, SOLO_ERROR, ErrorKind, fit
from hw.transport.messages import Point
from kit.errors import InputError
from sim.device_profile import Profile, StatedError
from tests.calibrate.fake import FakeBench, facts, model_costs
from tests.calibrate.test_measure import PLENTY_S, session

ACROSS_BETA = 1.6


@dataclass
class Drifting(FakeBench):
    """Some times as slow as it was; its speed wanders from call to call, and now and then another program uses it."""

    across_beta: float | None = ACROSS_BETA
    times: float = 1.0
    wander: float = 0.0
    bursts: float = 0.0

    def truth_s(self, point: Point) -> float:
        return self.times * super().truth_s(point)

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, **options: Any) -> Loop:
        """The whole loop is off by the moment's factor."""
        loop = super().solo(point, warmup, repeats, min_s, **options)
        factor = float(np.exp(self.wander * self._rng.standard_normal())) * (1.6 if self._burst() else 1.0)
        slower_s = tuple(factor * repeat_s for repeat_s in loop.repeats_s)
        return replace(loop, repeats_s=slower_s, wall_s=factor * loop.wall_s)

    def _burst(self) -> bool:
        return bool(self._rng.random() < self.bursts)


def calibrated(bench: FakeBench, folder: Path) -> Profile:
    """A profile of the fake device, with the errors that its calibration stated."""
    return fit(session(bench, folder / "log", PLENTY_S)[1].measurements, model_costs(), facts(), "fake")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Of the fake device, whose processes share it worse than one alone."""
    return calibrated(FakeBench(across_beta=ACROSS_BETA), tmp_path_factory.mktemp("check"))


def by_name(bench: FakeBench, profile: Profile, seed: int = 1) -> dict[str, CheckedMetric]:
    return {metric.metric: metric for metric in check(bench, profile, np.random.default_rng(seed))}


def test_the_same_device_holds_whatever_its_noise(profile: Profile) -> None:
    """Moments that differ by 3 %, and one loop in twenty that another program slows by 60 %: fifty checks, all hold."""
    verdicts = [
        holds(check(Drifting(jitter=0.1, wander=0.03, bursts=0.05, seed=seed), profile, np.random.default_rng(seed)))
        for seed in range(50)
    ]
    assert verdicts.count(True) >= 49


@pytest.mark.parametrize("times, word", [(1.15, "15 % slower"), (0.8, "20 % faster"), (2.0, "100 % slower")])
def test_a_device_of_another_speed_drifts_in_solo_latency_alone(profile: Profile, times: float, word: str) -> None:
    """Named with its direction, through the same noise; a set is compared with its members alone: that still holds."""
    for seed in range(10):
        bench = Drifting(times=times, jitter=0.1, wander=0.03, bursts=0.05, seed=seed)
        found = by_name(bench, profile, seed)
        assert found[SOLO_ERROR].verdict == "drifted"
        assert found[SOLO_ERROR].is_biased
        assert abs(found[SOLO_ERROR].bias_pct / (100 / times - 100) - 1) < 0.3
        assert word.split()[-1] in found[SOLO_ERROR].finding
        assert found[CONCURRENCY_ERROR].verdict == "holds"
    assert word in by_name(Drifting(times=times), profile)[SOLO_ERROR].finding


@pytest.mark.parametrize("beta", [0.8, 1.7])
def test_only_sharing_has_changed(profile: Profile, beta: float) -> None:
    """Another beta: sets drift, each in the direction of beta; points alone hold."""
    for seed in range(10):
        found = by_name(Drifting(beta=beta, jitter=0.1, wander=0.03, seed=seed), profile, seed)
        assert found[SOLO_ERROR].verdict == "holds"
        assert found[CONCURRENCY_ERROR].verdict == "drifted"
        assert ("more" if beta > 1.2 else "less") in found[CONCURRENCY_ERROR].finding


def test_only_sharing_between_processes_has_changed(profile: Profile) -> None:
    """Sets across processes drift; those within one, and points alone, hold."""
    for seed in range(10):
        found = by_name(Drifting(across_beta=1.1, jitter=0.1, wander=0.03, seed=seed), profile, seed)
        assert {name for name, metric in found.items() if metric.verdict == "drifted"} == {ACROSS_ERROR}
        assert "less" in found[ACROSS_ERROR].finding


def test_sets_across_processes_are_not_measured_where_the_profile_knows_of_none(profile: Profile) -> None:
    within = profile.concurrency.model_copy(update={"across_beta": None})
    found = by_name(FakeBench(), profile.model_copy(update={"concurrency": within}))
    assert list(found) == [SOLO_ERROR, CONCURRENCY_ERROR]


def test_a_device_whose_host_lends_its_speed_is_checked_at_full_speed(tmp_path: Path) -> None:
    """Slow for a third of the time, in the calibration as now, or as never before: it holds; slower at full speed as
    well: it does not."""
    lent = calibrated(FakeBench(slow_share=0.3, across_beta=ACROSS_BETA), tmp_path)
    verdicts = [
        holds(check(Drifting(slow_share=share, seed=seed), lent, np.random.default_rng(seed)))
        for seed in range(6)
        for share in (0.0, 0.3, 0.7)
    ]
    assert verdicts.count(True) >= 17
    for seed in range(5):
        found = by_name(Drifting(slow_share=0.3, times=1.2, seed=seed), lent, seed)[SOLO_ERROR]
        assert found.verdict == "drifted"


def test_errors_on_both_sides_drift_without_a_bias(profile: Profile) -> None:
    class Mixed(Drifting):
        def truth_s(self, point: Point) -> float:
            return (1.3 if point.width == 1.0 else 0.75) * super().truth_s(point)

    found = [by_name(Mixed(), profile, seed)[SOLO_ERROR] for seed in range(10)]
    assert {metric.verdict for metric in found} == {"drifted"}
    assert sum("both directions" in metric.finding for metric in found) >= 8


def test_a_burst_that_passes_is_no_drift(profile: Profile) -> None:
    """All of the first look is slow, the second is not: the device holds, and was looked at twice."""

    bench, begun = Drifting(times=1.5), []

    def notice(done: int, _: int) -> None:
        begun.extend([done] if done == 0 else [])
        bench.times = 1.5 if len(begun) < 2 else 1.0

    metrics = check(bench, profile, np.random.default_rng(1), on_progress=notice)
    (found,) = (metric for metric in metrics if metric.metric == SOLO_ERROR)
    assert (found.verdict, found.looks) == ("holds", 2)


def pairs(*errors_pct: float) -> tuple[ComparedValue, ...]:
    return tuple(ComparedValue("x", (1 + error / 100,), (1.0,)) for error in errors_pct)


def test_metric_has_drifted_if_many_values_agree_but_not_by_a_single_outlier() -> None:
    """The rule compares medians and their whole intervals with the limits in size and to one side."""
    allow = Allowed(size_pct=10, bias_pct=5)
    assert CheckedMetric("x", pairs(0, 1, 2, 1, 0, 1, 400), allow).verdict == "holds"
    assert CheckedMetric("x", pairs(-7, -8, -9, -6, -9, -8, 30), allow).verdict == "holds"  # one of seven disagrees
    assert CheckedMetric("x", pairs(-7, -8, -9, -6, -9, -8, -7), allow).verdict == "drifted"
    assert CheckedMetric("x", pairs(12, -12, 13, -13, 14, -14, 12), allow).verdict == "drifted"
    assert CheckedMetric("x", pairs(7, -7, 8, -8, 9, -9, 8), allow).verdict == "holds"
    assert CheckedMetric("x", (), allow).verdict == "not judged"
    assert CheckedMetric("x", pairs(50, 50), allow, not_judged="power is modelled").verdict == "not judged"


def test_a_set_counts_once_and_its_members_do_not_cancel() -> None:
    """Twice as slow and half as slow: no bias, but an error of a half and of one."""
    found = ComparedValue("a + b", (2.0, 0.5), (1.0, 1.0))
    assert found.error_pct == pytest.approx(0)
    assert found.abs_error_pct == pytest.approx(75)


@pytest.mark.parametrize("n", [5, 6, 12, 24])
def test_the_interval_covers_the_median(n: int) -> None:
    """In 95 % of the samples (of five or fewer, as often as the whole range can), of a skewed distribution."""
    rng = np.random.default_rng(n)
    intervals = [median_interval(rng.exponential(size=n).tolist()) for _ in range(4000)]
    covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert covered >= min(0.95, 1 - 2 * 0.5**n) - 0.012
    if n == 24:
        assert covered < 0.985  # not by being needlessly wide


def test_allowed_deviation_follows_from_the_errors_stated_in_the_profile(profile: Profile) -> None:
    """The size limit is twice the held-out error or the repeatability, and at least the promised error."""

    def with_errors(**stated_pct: float) -> Profile:
        def error(metric: str, kind: ErrorKind, pct: float) -> StatedError:
            return StatedError(
                metric=metric,
                kind=kind,
                median_abs_pct=pct,
                mean_abs_pct=pct,
                p90_abs_pct=pct,
                max_abs_pct=pct,
                points=9,
            )

        errors = (
            error(SOLO_ERROR, "held out", stated_pct.get("held_out", 0.5)),
            error(SOLO_ERROR, "cross-validated", 40.0),
            error(REPEATABILITY, "repeatability", stated_pct.get("repeat", 0.5)),
        )
        return profile.model_copy(update={"errors": errors})

    assert allowed(with_errors(), SOLO_ERROR) == Allowed(3.0, 3.0)
    assert allowed(with_errors(held_out=5.0), SOLO_ERROR) == Allowed(10.0, 5.0)
    assert allowed(with_errors(repeat=4.0), SOLO_ERROR) == Allowed(8.0, 8.0)


def test_no_points_are_no_check(profile: Profile) -> None:
    bench = FakeBench()
    with pytest.raises(InputError, match="at least 1"):
        check(bench, profile, np.random.default_rng(0), points=0)
    assert bench.asked == []


def test_check_without_a_judged_metric_does_not_hold() -> None:
    """A metric without pairs or excluded by its nature is not judged; a single judged metric decides."""
    allow = Allowed.by(3.0)
    silent = CheckedMetric("a", (), allow)
    withheld = CheckedMetric("b", (ComparedValue("p", (1.0,), (1.0,)),), allow, not_judged="nothing measures it")
    good = CheckedMetric("c", (ComparedValue("p", (1.0,), (1.0,)),), allow)
    for metrics in ([], [silent], [withheld], [silent, withheld]):
        assert not holds(metrics)
        assert not is_judged(metrics)
    assert holds([silent, withheld, good])
