"""A GPU is measured at the batch sizes that it is given, and at no others; what its profile states is known here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.calibration_log import CalibrationRequest, Log
from calibrate.device_opening import settled
from calibrate.fresh_points import captured_here
from calibrate.measurement_plan import EFFORTS, PATHS, CalibrationPlan, Extras, InstancePoints, make_plan, powers_of_two
from calibrate.plan_execution import Measurements, measure
from calibrate.profile_fit import CONCURRENCY_ERROR, ENERGY_ERROR, PATH_ERROR, REPEATABILITY, SOLO_ERROR, fit
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.worker.instances import ComputeMode
from kit.errors import InputError
from sim.device_profile import Profile
from sim.device_tables import compile_tables
from tests.calibrate.fake import LIMIT, FakeBench, all_keys, facts, model_costs
from tests.calibrate.test_fit import errors

INSTANCES = len({key[:2] for key in all_keys()})


def planned(limit: int = LIMIT) -> CalibrationPlan:
    sizes, extras = powers_of_two(limit), Extras(power=True, peer=True)
    return make_plan("cuda", all_keys(), sizes, extras, lambda _: 5e-4, np.random.default_rng(0))


def measured(bench: FakeBench, path: Path, budget_s: float = 60.0, limit: int = LIMIT) -> Measurements:
    with Log(path, {}) as log:
        return measure(bench, planned(limit), log, budget_s, bench.clock)


def profile_of(bench: FakeBench, path: Path, budget_s: float = 60.0, limit: int = LIMIT) -> Profile:
    found = measured(bench, path, budget_s, limit)
    return fit(found.measurements, model_costs(), facts("cuda", powers_of_two(limit)), "fake", found.omitted)


@pytest.mark.parametrize("limit", [1, 4, 12, 32])
def test_profile_is_measured_at_exactly_the_batch_sizes_served(tmp_path: Path, limit: int) -> None:
    """The sizes of the server, those with samples at every key and those that a load warms are one tuple."""
    path = tmp_path / "log"
    found = profile_of(FakeBench(), path, limit=limit)
    wanted = CalibrationRequest(ModelFile(path), DeviceSpec("cuda"), 60.0, limit, tmp_path / "none")
    micro_batch_s = dict.fromkeys(powers_of_two(limit), 1.0)
    loaded = settled(wanted, lambda file, ways, batches: [ComputeMode(ways[0], micro_batch_s, 1.0)])[0].device
    assert isinstance(loaded, DeviceSpec)
    served = compile_tables(found, limit).padded_sizes
    assert served == found.padded_sizes == loaded.warm_sizes
    for curve in found.latency:
        timed = [size for size, count in zip(curve.batches, curve.samples, strict=True) if count]
        assert tuple(timed) == served


def test_another_size_is_refused(tmp_path: Path) -> None:
    found = profile_of(FakeBench(), tmp_path / "log")
    assert compile_tables(found, 8).padded_sizes == (1, 2, 4, 8)
    with pytest.raises(InputError, match=r"padded_sizes.*batch limit of 12"):
        compile_tables(found, 12)
    text = found.model_copy(update={"padded_sizes": (1, 2, 4, 8, 16, 24, 32)}).to_yaml()
    with pytest.raises(InputError, match="measured at exactly the sizes"):
        Profile.from_yaml(text, "profile.yaml")


def test_a_larger_budget_adds_rounds(tmp_path: Path) -> None:
    """Two are always done; each loads each instance once, with all its previous widths and sizes in one message."""
    small, large = FakeBench(), FakeBench()
    found = measured(small, tmp_path / "small", budget_s=1.0)
    measured(large, tmp_path / "large", budget_s=600.0)
    assert small.loads == EFFORTS["cuda"].rounds * INSTANCES < large.loads == EFFORTS["cuda"].most_rounds * INSTANCES
    assert small.held == {}
    points = [step.points for step, _ in found.measurements if isinstance(step, InstancePoints)]
    assert sum(map(len, points)) == EFFORTS["cuda"].rounds * len(all_keys()) * len(powers_of_two(LIMIT))


def test_stated_are_repeatability_and_held_out_paths(tmp_path: Path) -> None:
    """No error of interpolating batch sizes: there is none. Paths that take a tenth more than their hops say so."""
    for extra in (0.0, 0.1):
        found = profile_of(FakeBench(jitter=0.02, path_extra=extra), tmp_path / str(extra))
        stated = errors(found)
        assert SOLO_ERROR not in {error.metric for error in found.errors}
        assert stated[PATH_ERROR].points == PATHS
        assert stated[PATH_ERROR].median_abs_pct == pytest.approx(100 * (1 - 1 / (1 + extra)), abs=1.0)
        assert stated[REPEATABILITY].points == len(all_keys()) * len(powers_of_two(LIMIT))
        assert 0 < stated[REPEATABILITY].median_abs_pct < stated[REPEATABILITY].p90_abs_pct < 3
        assert {CONCURRENCY_ERROR, ENERGY_ERROR} <= set(stated)


def test_disturbed_rounds_count_for_repeatability(tmp_path: Path) -> None:
    """A machine that is busy all the time would else state it of no point."""
    found = errors(profile_of(FakeBench(jitter=0.02, background_share=0.2), tmp_path / "log"))
    assert found[REPEATABILITY].points == len(all_keys()) * len(powers_of_two(LIMIT))


def test_loads_slow_others_down_and_refused_captures_are_counted(tmp_path: Path) -> None:
    found = profile_of(FakeBench(load_factor=2.5, refused=1), tmp_path / "log")
    passes = len(all_keys()) * len(powers_of_two(LIMIT))
    assert found.beside_load == pytest.approx(2.5)
    assert found.execution["captured"] == f"{passes - INSTANCES} of {passes}"
    assert captured_here(FakeBench(refused=1), found) == (passes - INSTANCES, passes)
    assert captured_here(FakeBench(), found) == (passes, passes)
    assert {(cost.load_s, cost.reload_s) for cost in found.memory.instances} == {(0.02, 0.005)}
