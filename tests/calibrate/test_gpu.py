"""A GPU is measured at the batch sizes that it is given, and at no others; what its profile states is known here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.calibration import CalibrationRequest
from calibrate.errors import CONCURRENCY_ERROR, ENERGY_ERROR, PATH_ERROR, REPEATABILITY, SOLO_ERROR
from calibrate.fit import fit
from calibrate.gpu import DUTIES, EFFORT, PATHS, captured_here, gpu_plan, powers_of_two, typical_pass_s
from calibrate.log import Log
from calibrate.measure import Measurements, measure
from calibrate.plan import CalibrationPlan, Extras, InstancePoints, Paths, Solo, Steady, Together
from calibrate.ways import settled
from hw.device import DeviceSpec
from hw.devices.formats import Way
from hw.networks.registry import ModelFile
from hw.networks.slimresnet import PRESETS, SlimResNet
from kit.errors import InputError
from sim.profile import Profile
from sim.tables import compile_tables
from tests.calibrate.fake import LIMIT, FakeBench, all_keys, facts, model_costs
from tests.calibrate.test_fit import errors

INSTANCES = len({key[:2] for key in all_keys()})


def planned(limit: int = LIMIT, extras: Extras | None = None, seed: int = 0) -> CalibrationPlan:
    wanted = extras or Extras(power=True, peer=True, sibling=True)
    return gpu_plan(all_keys(), powers_of_two(limit), wanted, np.random.default_rng(seed))


def measured(bench: FakeBench, path: Path, budget_s: float = 60.0, limit: int = LIMIT) -> Measurements:
    with Log(path, {}) as log:
        return measure(bench, planned(limit), typical_pass_s, log, budget_s, bench.clock)


def profile_of(bench: FakeBench, path: Path, budget_s: float = 60.0, limit: int = LIMIT) -> Profile:
    found = measured(bench, path, budget_s, limit)
    return fit(found.measurements, model_costs(), facts("cuda", powers_of_two(limit)), "fake", found.omitted)


@pytest.mark.parametrize("limit", [1, 4, 12, 32])
def test_what_is_served_is_what_is_measured(tmp_path: Path, limit: int) -> None:
    """The sizes of the server, those with samples at every key and those that a load warms are one tuple."""
    path = tmp_path / "log"
    found = profile_of(FakeBench(), path, limit=limit)
    wanted = CalibrationRequest(ModelFile(path), DeviceSpec("cuda"), 60.0, limit, tmp_path / "none")
    block_s = dict.fromkeys(powers_of_two(limit), 1.0)
    loaded = settled(wanted, lambda file, ways, batches: [Way(ways[0], block_s, 1.0)])[0].device
    assert isinstance(loaded, DeviceSpec)
    served = compile_tables(found, limit).padded_sizes
    assert served == found.padded_sizes == loaded.warm_sizes
    for curve in found.latency:
        timed = [size for size, count in zip(curve.batches, curve.samples, strict=True) if count]
        assert tuple(timed) == served


def test_another_size_is_refused(tmp_path: Path) -> None:
    """In a profile, and as a server's batch limit."""
    found = profile_of(FakeBench(), tmp_path / "log")
    assert compile_tables(found, 8).padded_sizes == (1, 2, 4, 8)
    with pytest.raises(InputError, match=r"padded_sizes.*batch limit of 12"):
        compile_tables(found, 12)
    text = found.model_copy(update={"padded_sizes": (1, 2, 4, 8, 16, 24, 32)}).to_yaml()
    with pytest.raises(InputError, match="measured at exactly the sizes"):
        Profile.from_yaml(text, "profile.yaml")


def test_each_instance_is_made_once_a_round(tmp_path: Path) -> None:
    """With all its previous widths and sizes in one message; it is unloaded."""
    bench = FakeBench()
    found = measured(bench, tmp_path / "log", budget_s=0.0)
    assert bench.loads == EFFORT.rounds * INSTANCES
    assert bench.held == {}
    points = [step.points for step, _ in found.measurements if isinstance(step, InstancePoints)]
    assert sum(map(len, points)) == EFFORT.rounds * len(all_keys()) * len(powers_of_two(LIMIT))
    assert not any(isinstance(step, Solo) for step, _ in found.measurements)


def test_rounds_are_far_apart_and_a_larger_budget_adds_some(tmp_path: Path) -> None:
    """All that is measured otherwise lies between the first two."""
    steps = planned().steps
    of_points = [place for place, each in enumerate(steps) if isinstance(each.step, InstancePoints)]
    between = [each for each in steps[: of_points[-1]] if not isinstance(each.step, InstancePoints)]
    assert of_points[:INSTANCES] == list(range(INSTANCES))
    assert of_points[INSTANCES] == INSTANCES + len(between)
    assert {each.round for each in steps if each.required} == {1, 2}
    small, large = FakeBench(), FakeBench()
    measured(small, tmp_path / "small", budget_s=1.0)
    measured(large, tmp_path / "large", budget_s=600.0)
    assert small.loads == EFFORT.rounds * INSTANCES < large.loads


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


def test_paths_follow_one_another(tmp_path: Path) -> None:
    """Each has a legal key a segment, and one size."""
    (paths,) = {step.step for step in planned().steps if isinstance(step.step, Paths)}
    assert len(paths.paths) == PATHS
    for path in paths.paths:
        assert [point.segment for point in path] == sorted({key[0] for key in all_keys()})
        assert {point.key for point in path} <= set(all_keys())
        assert len({point.batch for point in path}) == 1
    assert len({point.batch for path in paths.paths for point in path}) > 1


def test_loads_slow_others_down_and_refused_captures_are_counted(tmp_path: Path) -> None:
    """Both stand in the profile."""
    found = profile_of(FakeBench(load_factor=2.5, refused=1), tmp_path / "log")
    passes = len(all_keys()) * len(powers_of_two(LIMIT))
    assert found.beside_load == pytest.approx(2.5)
    assert found.execution["captured"] == f"{passes - INSTANCES} of {passes}"
    assert captured_here(FakeBench(refused=1), found) == (passes - INSTANCES, passes)
    assert captured_here(FakeBench(), found) == (passes, passes)
    assert {(cost.load_s, cost.reload_s) for cost in found.memory.instances} == {(0.02, 0.005)}


def test_a_third_of_the_sets_and_of_the_power_points_is_held_out() -> None:
    """In one process and across two; short ones and long ones are fitted."""
    steps = [each.step for each in planned().steps]
    for some in (
        [s.held_out for s in steps if isinstance(s, Together) and s.across],
        [s.held_out for s in steps if isinstance(s, Together) and not s.across],
        [s.held_out for s in steps if isinstance(s, Steady)],
    ):
        assert (sum(some), len(some)) == (2, 6)
    alone = [each.step for each in planned(extras=Extras(False, False)).steps]
    assert not any(isinstance(s, Steady) or (isinstance(s, Together) and s.across) for s in alone)
    awake = [each.step for each in planned(extras=Extras(True, False, awake=True)).steps]
    assert sorted({s.duty for s in awake if isinstance(s, Steady)}) == [*DUTIES, 1.0]


def test_a_minute_is_enough_for_four_segments_of_four_widths() -> None:
    """312 points at six sizes; a seed's plan is always the same, and its steps' names tell them apart."""
    keys = SlimResNet(PRESETS["slimresnet18"]).spec.work_keys()
    made = [
        gpu_plan(sorted(keys), powers_of_two(32), Extras(True, True, True), np.random.default_rng(3)) for _ in range(2)
    ]
    assert made[0] == made[1]
    ids = [each.id for each in made[0].steps]
    assert len(set(ids)) == len(ids)
    first = [each.step.points for each in made[0].steps if isinstance(each.step, InstancePoints) and each.round == 1]
    assert (len(first), sum(map(len, first))) == (16, 312)
    assert sum(each.estimated_s for each in made[0].steps if each.required) < 60
