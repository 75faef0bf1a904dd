"""The fit recovers the physics of a device whose physics is known, and never looks at what was held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.bench import SoloResult, TogetherResult
from calibrate.errors import CONCURRENCY_ERROR, ENERGY_ERROR, REPEATABILITY, SOLO_ERROR
from calibrate.fit import fit
from calibrate.measure import Measurement
from calibrate.plan import Point, Solo, Steady, Together
from calibrate.samples import Samples
from policies.vocabulary import Provenance
from sim.profile import LatencyCurve, Profile, StatedError
from sim.tables import compile_tables
from tests.calibrate.fake import LIMIT, FakeBench, facts, model_costs
from tests.calibrate.test_measure import session


def measured(bench: FakeBench, tmp_path: Path, budget_s: float = 300.0) -> list[Measurement]:
    return list(session(bench, tmp_path / "log", budget_s)[1].measurements)


def errors(profile: Profile) -> dict[str, StatedError]:
    return {error.figure: error for error in profile.errors if error.kind != "cross-validated"}


def curve_of(profile: Profile, point: Point) -> LatencyCurve:
    return next(c for c in profile.latency if (c.segment, c.width, c.previous_width) == point.key)


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
    assert errors(found)[SOLO_ERROR].mean_abs_pct < 3


def test_jitter_is_recovered_and_keeps_the_mean(tmp_path: Path) -> None:
    """Quantiles of a log-normal of 10 %, and their mean is the mean over the median."""
    found = fit(measured(FakeBench(jitter=0.1), tmp_path, 600.0), model_costs(), facts(), "fake")
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


def test_what_is_held_out_enters_no_fit(tmp_path: Path) -> None:
    """Held-out results replaced by nonsense change the stated errors and nothing else."""
    honest = measured(FakeBench(jitter=0.05), tmp_path)

    def spoil(measurement: Measurement) -> Measurement:
        step, result = measurement
        if isinstance(result, SoloResult):
            return step, replace(result, samples=Samples(1, (9.9,)), cpu_s=0.0)
        if isinstance(result, TogetherResult):
            return step, replace(result, together_s=tuple(7.0 for _ in result.together_s))
        return step, result

    spoiled = [spoil(m) if getattr(m[0], "held_out", False) else m for m in honest]
    first = fit(honest, model_costs(), facts(), "fake")
    second = fit(spoiled, model_costs(), facts(), "fake")
    assert second.model_copy(update={"errors": first.errors}) == first
    assert errors(second)[SOLO_ERROR].mean_abs_pct > 90
    assert errors(second)[CONCURRENCY_ERROR].mean_abs_pct > errors(first)[CONCURRENCY_ERROR].mean_abs_pct
    assert errors(second)[REPEATABILITY] == errors(first)[REPEATABILITY]


def test_a_key_without_measurement_is_refused(tmp_path: Path) -> None:
    """A profile with a hole is no profile."""
    holed = [m for m in measured(FakeBench(), tmp_path) if not (isinstance(m[0], Solo) and m[0].point.segment == 1)]
    with pytest.raises(ValueError, match=r"no measurement of \(1, 0.5, 0.0\)"):
        fit(holed, model_costs(), facts(), "fake")


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
    if kind == "cuda":  # the sensor's own utilization, not the launching thread's share
        assert {u for curve in found.latency for u in curve.utilization} == {0.5}


def test_a_tiny_budget_still_gives_a_stated_error(tmp_path: Path) -> None:
    """Four batch sizes and three repeats make a whole profile."""
    found = fit(measured(FakeBench(), tmp_path, 0.0), model_costs(), facts(), "fake")
    assert {len(curve.batches) for curve in found.latency} == {4}
    assert errors(found)[SOLO_ERROR].points >= 6
    assert CONCURRENCY_ERROR in errors(found)
