"""The fit recovers the device model of a device whose device model is known, and never looks at what was held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.measurement_bench import LoadResult, Loop, SteadyLoad, SteadyResult, TogetherResult
from calibrate.measurement_plan import DUTIES, InstancePoints, Steady, Together
from calibrate.plan_execution import Measurement
from calibrate.profile_fit import ACROSS_ERROR, CONCURRENCY_ERROR, ENERGY_ERROR, REPEATABILITY, SOLO_ERROR, fit, link_of
from calibrate.sharing_and_energy import (
    MIN_CAPPED,
    ObservedSet,
    fit_power_cap,
    power_points,
    predict_slow_downs,
    uncapped_w,
)
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.device_model import Sharing, clock_ratio
from sim.device_profile import AT_ONCE, Concurrency, Power, Profile, StatedError
from sim.device_tables import compile_tables
from tests import tiny
from tests.calibrate.fake import AWAKE_W, LIMIT, REFERENCE_S, SLOW_FACTOR, SLOW_REFERENCE, FakeBench, facts, model_costs
from tests.calibrate.test_measure import PLENTY_S, session


def measured(bench: FakeBench, tmp_path: Path, budget_s: float = PLENTY_S) -> list[Measurement]:
    return list(session(bench, tmp_path / "log", budget_s)[1].measurements)


def errors(profile: Profile) -> dict[str, StatedError]:
    return {error.metric: error for error in profile.errors}


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.2), (0.0, 1.0), (2.0, 0.7)])
def test_alpha_and_beta_are_recovered(tmp_path: Path, alpha: float, beta: float) -> None:
    """Without noise, to a hundredth; and what was held out is predicted."""
    found = fit(measured(FakeBench(alpha=alpha, beta=beta), tmp_path), model_costs(), facts(), "fake")
    assert found.concurrency.alpha == pytest.approx(alpha, abs=0.02)
    assert found.concurrency.beta == pytest.approx(beta, abs=0.01)
    assert errors(found)[CONCURRENCY_ERROR].max_abs_pct < 1


def test_latencies_are_recovered(tmp_path: Path) -> None:
    """Without noise the measured points are the truth, and those between are near it."""
    bench = FakeBench()
    found = fit(measured(bench, tmp_path), model_costs(), facts(), "fake")
    for curve in found.latency:
        for batch, p50_s in zip(curve.batches, curve.p50_s, strict=True):
            point = Point(curve.segment, curve.width, curve.previous_width, batch)
            assert p50_s == pytest.approx(bench.truth_s(point))
            assert curve.host_share[curve.batches.index(batch)] == pytest.approx(bench.host_share(point))
    assert errors(found)[SOLO_ERROR].mean_abs_pct < 10


def test_jitter_is_recovered_and_keeps_the_mean(tmp_path: Path) -> None:
    """Quantiles of a log-normal of 10 %, and their mean is the mean over the median."""
    found = fit(measured(FakeBench(jitter=0.1), tmp_path), model_costs(), facts(), "fake")
    for curve in found.latency:
        for row, mean_s, p50_s in zip(curve.jitter, curve.mean_s, curve.p50_s, strict=True):
            assert np.mean(row) == pytest.approx(mean_s / p50_s)
            assert np.std(np.log(row)) == pytest.approx(0.1, rel=0.25)


def test_load_dispatch_and_link_are_recovered(tmp_path: Path) -> None:
    """First loads and reloads apart; latency and bandwidth of the link."""
    found = fit(measured(FakeBench(), tmp_path), model_costs(), facts(), "fake")
    assert {(i.load_s, i.reload_s, i.unload_s) for i in found.memory.instances} == {(0.02, 0.005, 0.001)}
    assert {i.vram_bytes for i in found.memory.instances} == {500, 1000}
    assert found.dispatch_s == pytest.approx(1e-4)
    assert found.link is not None
    assert found.link.latency_s == pytest.approx(5e-5, rel=1e-3)
    assert found.link.bandwidth_bytes_s == pytest.approx(1e9, rel=1e-3)


def test_energy_is_fitted_on_power_points(tmp_path: Path) -> None:
    """Joules above idle follow the MACs here, for keys that had no power point too."""
    bench = FakeBench()
    found = fit(measured(bench, tmp_path), model_costs(), facts(), "fake")
    for curve in found.latency:
        for batch, joules in zip(curve.batches, curve.energy_j_per_image, strict=True):
            point = Point(curve.segment, curve.width, curve.previous_width, batch)
            assert joules == pytest.approx(bench.joules(point), rel=0.05)
    assert found.power.provenance == Provenance.POLLED
    assert errors(found)[ENERGY_ERROR].mean_abs_pct < 5


def test_energy_is_modelled_without_a_sensor(tmp_path: Path) -> None:
    """(cap - idle) x u x L / b, and it says so."""
    without = [m for m in measured(FakeBench(), tmp_path) if not isinstance(m[0], Steady)]
    found = fit(without, model_costs(), facts(), "fake")
    curve = found.latency[0]
    expected = [80.0 * u * s / b for u, s, b in zip(curve.utilization, curve.mean_s, curve.batches, strict=True)]
    assert curve.energy_j_per_image == pytest.approx(expected)
    assert found.power.provenance == Provenance.MODELLED
    assert ENERGY_ERROR not in errors(found)


def test_the_share_of_the_multiprocessors_is_read_along_demand(tmp_path: Path) -> None:
    """On a GPU that tells it: 0.8 at full demand here, for keys that had no power point too."""
    bench = FakeBench(sm_share=0.8)
    seen = measured(bench, tmp_path)
    found = fit(seen, model_costs(), facts("cuda"), "fake")
    shown = [demand for step, _ in seen if isinstance(step, Steady) for demand in [bench.load_of(step.point).demand]]
    compared = 0
    for curve in found.latency:
        for batch, share in zip(curve.batches, curve.sm_utilization, strict=True):
            demand = bench.load_of(Point(curve.segment, curve.width, curve.previous_width, batch)).demand
            if min(shown) <= demand <= max(shown):
                compared += 1
                assert share == pytest.approx(0.8 * demand, rel=0.02)
    assert compared > 20
    assert max(compile_tables(found, LIMIT, util_metric="sm").keys[1, 1.0, 0.0].busy_permille) == pytest.approx(
        800, rel=0.02
    )


@pytest.mark.parametrize("told, kept", [(None, None), (float("nan"), None), (1.01, 1.0), (-0.01, 0.0), (0.4, 0.4)])
def test_a_share_of_the_multiprocessors_is_a_share_or_nothing(told: float | None, kept: float | None) -> None:
    """A counter lies a little beyond 1 now and then, and is not a number where it did not count."""
    point = Point(1, 1.0, 0.0, 1)
    load = SteadyLoad(100, 1.0, 50.0, 0.9, Provenance.POLLED, 1.0, told)
    seen = power_points([(Steady(point, 1.0), SteadyResult(load))], facts().power, held_out=False)[point]
    assert (seen.utilization, seen.sm_utilization) == (0.9, kept)


def test_held_out_results_do_not_change_the_fit(tmp_path: Path) -> None:
    """Held-out results replaced by nonsense change the stated errors and nothing else."""
    honest = measured(FakeBench(jitter=0.05), tmp_path)

    def spoil(measurement: Measurement) -> Measurement:
        step, result = measurement
        if isinstance(result, TogetherResult):
            return step, replace(result, together_s=tuple(7.0 for _ in result.together_s))
        if isinstance(result, SteadyResult):
            return step, replace(result, load=replace(result.load, power_w=9000.0))
        return step, result

    spoiled = [spoil(m) if getattr(m[0], "held_out", False) else m for m in honest]
    first = fit(honest, model_costs(), facts(), "fake")
    second = fit(spoiled, model_costs(), facts(), "fake")
    assert second.model_copy(update={"errors": first.errors, "ranges": first.ranges}) == first
    for metric in (CONCURRENCY_ERROR, ACROSS_ERROR, ENERGY_ERROR):
        assert errors(second)[metric].mean_abs_pct > errors(first)[metric].mean_abs_pct
    assert errors(second)[REPEATABILITY] == errors(first)[REPEATABILITY]


def test_a_key_without_measurement_is_refused(tmp_path: Path) -> None:
    def of_another(measurement: Measurement) -> bool:
        step, _ = measurement
        return not (isinstance(step, InstancePoints) and step.segment == 1 and step.width == 0.5)

    with pytest.raises(ValueError, match=r"no measurement of \(1, 0.5, 0.0\)"):
        fit(list(filter(of_another, measured(FakeBench(), tmp_path))), model_costs(), facts(), "fake")


def test_members_that_finished_nothing_are_left_out(tmp_path: Path) -> None:
    """A set too short for its slowest member says nothing of that member."""
    honest = measured(FakeBench(), tmp_path)
    cut = [
        (step, replace(result, together_s=(0.0, *result.together_s[1:])))
        if isinstance(step, Together) and isinstance(result, TogetherResult)
        else (step, result)
        for step, result in honest
    ]
    found = fit(cut, model_costs(), facts(), "fake")
    assert found.concurrency.beta == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_profile_survives_a_file_and_compiles(tmp_path: Path, kind: str) -> None:
    """What is fitted can be stored, read back and simulated, up to the batch limit."""
    found = fit(measured(FakeBench(jitter=0.1), tmp_path), model_costs(), facts(kind), "fake", ["nothing"])
    assert Profile.from_yaml(found.to_yaml(), "profile.yaml") == found
    assert found.batch_limit == LIMIT
    assert compile_tables(found, LIMIT).batch_limit == LIMIT
    assert found.omitted == ("nothing",)
    assert found.padded_sizes == ()  # only a real GPU pads (`tests.calibrate.test_gpu`)
    if kind == "cuda":  # the sensor's own utilization, not the launching thread's share
        assert {u for curve in found.latency for u in curve.utilization} == {0.5}
        assert {curve.sm_utilization for curve in found.latency} == {()}  # nothing told it


def test_fit_of_one_round_gives_a_complete_profile_with_stated_errors(tmp_path: Path) -> None:
    """Only repeatability is missing, because it needs a second round."""
    found = fit(measured(FakeBench(), tmp_path, 0.0), model_costs(), facts(), "fake")
    assert {SOLO_ERROR, CONCURRENCY_ERROR, ACROSS_ERROR, ENERGY_ERROR} == set(errors(found))
    assert {curve.batches for curve in found.latency} == {(1, 2, 4, 8, 16, 32)}
    assert all(min(curve.samples) >= 3 for curve in found.latency)


def test_slow_spells_of_the_host_are_seen_through(tmp_path: Path) -> None:
    """Half of the time half as long again: the latencies are of full speed, and the profile tells of the spells."""
    bench = FakeBench(slow_share=0.5, jitter=0.01)
    found = fit(measured(bench, tmp_path), model_costs(), facts(), "fake")
    ratios = [
        p50_s / bench.truth_s(Point(curve.segment, curve.width, curve.previous_width, batch))
        for curve in found.latency
        for batch, p50_s in zip(curve.batches, curve.p50_s, strict=True)
    ]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.005)
    assert np.mean(np.abs(np.asarray(ratios) - 1)) < 0.02
    assert found.slowdown is not None
    assert found.slowdown.slow_factor == pytest.approx(SLOW_FACTOR, rel=0.02)
    exponent = np.log(SLOW_FACTOR) / np.log(SLOW_REFERENCE)
    assert found.slowdown.reference_exponent == pytest.approx(exponent, rel=0.05)
    assert found.slowdown.reference_s == pytest.approx(REFERENCE_S)
    assert found.slowdown.slow_share == pytest.approx(0.55, abs=0.15)
    assert found.concurrency.beta == pytest.approx(bench.beta, abs=0.1)


def test_the_share_of_slow_spells_is_one_of_time(tmp_path: Path) -> None:
    """40 of 100 passes were slow: they took more than 40 % of the time; a point that had no full speed is converted."""
    bench = FakeBench()

    def with_passes(measurement: Measurement) -> Measurement:
        step, result = measurement
        if not isinstance(step, InstancePoints) or not isinstance(result, LoadResult) or not step.points:
            return measurement
        loops = []
        for point in step.points:
            factors, references = (SLOW_FACTOR,) * 40 + (1.0,) * 60, (SLOW_REFERENCE,) * 40 + (1.0,) * 60
            repeats_s = tuple(factor * bench.truth_s(point) for factor in factors)
            loops.append(Loop(repeats_s, 1.0, 0.5, 0.0, tuple(reference * REFERENCE_S for reference in references)))
        slow = replace(loops[0], repeats_s=loops[0].repeats_s[:40], references_s=loops[0].references_s[:40])
        return step, replace(result, loops=(slow, *loops[1:]))

    once = [with_passes(m) for m in measured(bench, tmp_path, 0.0)]
    found = fit(once, model_costs(), facts(), "fake")
    assert found.slowdown is not None
    assert found.slowdown.slow_factor == pytest.approx(SLOW_FACTOR)
    instances, points = 4, 6 * len(found.latency)
    slow, full = 40 * points, 60 * (points - instances)
    assert found.slowdown.slow_share == pytest.approx(slow * SLOW_FACTOR / (slow * SLOW_FACTOR + full))
    words = f"of {points + 12} points and sets, {instances} stayed disturbed"
    causes = f"0 by other programs, {instances} below full speed"
    assert found.device.stamps["disturbed"] == f"{words}: {causes}"
    for curve in found.latency:
        for batch, p50_s in zip(curve.batches, curve.p50_s, strict=True):
            point = Point(curve.segment, curve.width, curve.previous_width, batch)
            assert p50_s == pytest.approx(bench.truth_s(point))


def test_crowding_across_processes_is_told_from_that_within_one(tmp_path: Path) -> None:
    bench = FakeBench(beta=1.0, across_beta=1.4)
    found = fit(measured(bench, tmp_path), model_costs(), facts(), "fake").concurrency
    assert found.beta == pytest.approx(1.0, abs=0.01)
    assert found.across_beta == pytest.approx(1.4, abs=0.01)
    assert found.beta_ci95 is not None


def test_insignificant_bandwidth_contention_is_fitted_as_zero(tmp_path: Path) -> None:
    """Noisy results without contention for bandwidth give an alpha of exactly 0, with no interval."""
    rng = np.random.default_rng(0)

    def noisy(measurement: Measurement) -> Measurement:
        step, result = measurement
        if not isinstance(result, TogetherResult):
            return measurement
        return step, replace(result, together_s=tuple(s * rng.normal(1, 0.02) for s in result.together_s))

    found = fit([noisy(m) for m in measured(FakeBench(alpha=0.0), tmp_path)], model_costs(), facts(), "fake")
    assert found.concurrency.alpha == 0.0
    assert found.concurrency.alpha_ci95 is None
    assert found.concurrency.beta == pytest.approx(1.2, abs=0.05)


def test_how_clocks_fall_above_the_cap_is_recovered() -> None:
    """From sets that would draw more than the cap: phi = 1 - a (P_u / P_cap - 1), down to the lowest that was seen."""
    profile = tiny.profile(batches=(1, 8))
    curves = {(c.segment, c.width, c.previous_width): c for c in profile.latency}
    sharing = Sharing(0.0, 1.0, 1.0, hosted=False)
    concurrency = Concurrency(alpha=0.0, beta=1.0, provenance=Provenance.MEASURED)
    points = [Point(*key, 8) for key in sorted(curves)]
    sets = [ObservedSet((point,) * size, (1.0,) * size) for point in points for size in (1, 2, 3)]
    drawn_w = [uncapped_w(observed, curves, sharing, 30.0) for observed in sets]
    power = Power(
        bare_idle_w=10.0, context_idle_w=30.0, cap_w=float(np.median(drawn_w)), provenance=Provenance.MEASURED
    )
    seen = []
    for observed, watts in zip(sets, drawn_w, strict=True):
        phi = clock_ratio(watts, power.cap_w, 0.4, 0.5)
        slow = predict_slow_downs(observed.points, curves, sharing)
        seen.append(replace(observed, slow_downs=tuple(s / phi for s in slow)))
    found = fit_power_cap(seen, curves, concurrency, power, hosted=False)
    assert found.throttle == pytest.approx(0.4, rel=0.02)
    assert found.phi_min == pytest.approx(max(0.5, min(1 - 0.4 * (w / power.cap_w - 1) for w in drawn_w)), rel=0.01)
    assert fit_power_cap(seen[:1], curves, concurrency, power, hosted=False) == power  # too few above the cap


def test_sets_a_little_above_the_cap_do_not_tell_how_clocks_fall() -> None:
    """Each is at most 1 % above and seen with errors of 1 to 3 %; ends noticed late slow all sets down alike."""
    profile = tiny.profile(batches=(1, 8))
    curves = {(c.segment, c.width, c.previous_width): c for c in profile.latency}
    sharing = Sharing(0.0, 1.0, 1.0, hosted=False)
    concurrency = Concurrency(alpha=0.0, beta=1.0, provenance=Provenance.MEASURED)
    sets = [ObservedSet((Point(*key, 8),) * size, (1.0,) * size) for key in sorted(curves) for size in (1, 2, 3)]
    drawn_w = [uncapped_w(observed, curves, sharing, 30.0) for observed in sets]
    power = Power(bare_idle_w=10.0, context_idle_w=30.0, cap_w=max(drawn_w) / 1.01, provenance=Provenance.MEASURED)
    assert sum(watts > power.cap_w for watts in drawn_w) >= MIN_CAPPED
    rng = np.random.default_rng(0)
    seen = [
        replace(
            each, slow_downs=tuple(s * rng.normal(1.02, 0.01) for s in predict_slow_downs(each.points, curves, sharing))
        )
        for each in sets
    ]
    assert fit_power_cap(seen, curves, concurrency, power, hosted=False) == power


def test_errors_have_kinds_and_ranges_are_told(tmp_path: Path) -> None:
    found = fit(measured(FakeBench(), tmp_path), model_costs(), facts(), "fake", ["further rounds: 1 of 2 steps"])
    kinds = {(error.metric, error.kind) for error in found.errors}
    held_out = {(metric, "held out") for metric in (CONCURRENCY_ERROR, ACROSS_ERROR, ENERGY_ERROR)}
    assert kinds == {(SOLO_ERROR, "cross-validated"), (REPEATABILITY, "repeatability"), *held_out}
    ranges = {(r.metric, r.quantity): (r.low, r.high) for r in found.ranges}
    assert ranges[SOLO_ERROR, "batch"] == (1, LIMIT)
    assert ranges[CONCURRENCY_ERROR, AT_ONCE] == (1, 4)
    assert found.omitted == ("further rounds: 1 of 2 steps",)
    assert compile_tables(found, LIMIT).most_at_once == 4


@pytest.mark.parametrize("fall_s", [0.0, 2.5])
def test_power_of_clocks_that_stay_up_is_recovered_from_small_duties(tmp_path: Path, fall_s: float) -> None:
    """A device whose clocks do not fall has no such state, and its power per image is fitted without it."""
    bench = FakeBench()
    found_at = list(measured(bench, tmp_path))
    point = Point(1, 1.0, 0.0, 8)
    duties = [Steady(point, 60.0, duty=duty) for duty in DUTIES]
    only = [(step, SteadyResult(bench.steady(point, 60.0, step.duty))) for step in duties]
    assert (
        power_points(only, facts().power, held_out=False) == {}
    )  # what an image takes comes from loops without a pause
    found_at += only
    known = replace(facts(), fall_s=fall_s)
    power = fit(found_at, model_costs(), known, "fake").power
    if fall_s:
        assert power.awake_w == pytest.approx(20.0 + AWAKE_W, rel=0.02)
        assert power.awake_s == fall_s
    else:
        assert (power.awake_w, power.awake_s) == (None, 0.0)


@pytest.mark.parametrize("clocks", [[], [1980.0, 1980.0, 345.0, 1900.0]])
def test_clocks_at_solo_points_are_told(tmp_path: Path, clocks: list[float]) -> None:
    """A GPU that was throttled now and then shows it; where nothing tells, nothing is said."""
    found, told = list[Measurement](), iter(clocks)
    for step, result in measured(FakeBench(), tmp_path, 0.0):
        if isinstance(result, LoadResult):
            loops = tuple(replace(loop, clock_mhz=next(told, None)) for loop in result.loops)
            found.append((step, replace(result, loops=loops)))
        else:
            found.append((step, result))
    stamps = fit(found, model_costs(), facts("cuda"), "fake").device.stamps
    words = "345 to 1980 MHz at solo points; 1 of 4 below 95 % of that"
    assert stamps.get("sm_clocks") == (words if clocks else None)


@pytest.mark.parametrize("odd", [256, 4096])
def test_a_size_that_goes_at_once_does_not_bend_a_link(odd: int) -> None:
    """As medians through a shaper were, which lets a few packets pass that others have to wait for."""
    medians = {size: 2e-4 + size / 1e7 for size in (256, 4096, 65536, 1 << 20)}
    medians[odd] /= 2
    found = link_of(medians)
    assert found.bandwidth_bytes_s == pytest.approx(1e7, rel=0.03)
    assert found.latency_s == pytest.approx(2e-4, rel=0.6)


def test_a_link_has_no_negative_latency_and_no_endless_bandwidth() -> None:
    assert link_of({256: 1e-5, 1 << 20: 1.0}).latency_s == 0
    level = link_of({256: 2e-3, 1 << 20: 1e-3})
    assert level.latency_s in (1e-3, 2e-3)
    assert level.bandwidth_bytes_s == (1 << 20) / 1e-3
