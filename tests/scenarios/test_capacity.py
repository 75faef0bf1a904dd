"""The largest stable rate: bracketed by bisection, by most of the seeds, of a load that can last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.errors import InputError
from scenarios.cli import main
from scenarios.runs.bound import FluidModel
from scenarios.runs.capacity import Capacity, Search, backlog_is_steady, capacity
from scenarios.world.materials import load_world
from scenarios.world.world import World
from tests.scenarios.files import write_scenario

POISSON = "{kind: poisson, rate_img_s: 200}"
TRACE = "{kind: trace, file: trace.csv}"


def world_of(folder: Path, workload: str = POISSON, more: str = "") -> World:
    path = write_scenario(folder, POISSON, workload)
    path.write_text(path.read_text() + more)
    return load_world(path)


def search(world: World, is_steady: Any = backlog_is_steady, **changes: Any) -> Capacity:
    settings = replace(Search("sticky", (0,), duration_s=0.4, precision=0.25), **changes)
    return capacity(world, lambda: world.router("sticky"), settings, is_steady=is_steady)


def test_it_lies_between_a_stable_and_an_unstable_rate_and_below_the_fluid_bound(tmp_path: Path) -> None:
    """Bisection brackets it as narrowly as asked."""
    world = world_of(tmp_path)
    found = search(world, precision=0.2)
    assert 0 < found.stable_img_s < found.unstable_img_s <= 1.3 * found.stable_img_s
    assert found.stable_img_s <= 1.1 * FluidModel(world).capacity_img_s()  # a short run's backlog may grow unnoticed
    assert (found.workload, found.seeds) == ("poisson", (0,))


def test_who_sheds_what_it_cannot_carry_is_not_stable(tmp_path: Path) -> None:
    """Its backlog never grows, however much arrives."""
    world = world_of(tmp_path, more="deadline_s: 20ms\nshed: true\n")
    patient = world_of(tmp_path)
    far = 20 * world.capacity_img_s / (world.rate_img_s or 1.0)
    wanted = Search("sticky", (0,), duration_s=0.4)
    for engine in ("simpy", "compiled"):
        found = [
            backlog_is_steady(each, each.router("sticky"), scale, 0, replace(wanted, engine=engine))
            for each in (world, patient)
            for scale in (0.2, far)
        ]
        assert found == [True, False, True, False]


class Limits:
    """Instead of simulating: a run is stable below its seed's limit. `asked` are the runs."""

    def __init__(self, limits_img_s: dict[int, float]) -> None:
        self.limits_img_s = limits_img_s
        self.asked: list[tuple[int, float]] = []

    def __call__(self, world: World, policy: Any, scale: float, seed: int, search: Search) -> bool:
        self.asked.append((seed, scale * (world.rate_img_s or 0.0)))
        return self.asked[-1][1] < self.limits_img_s[seed]


def test_most_seeds_decide_and_no_more_are_run_than_needed(tmp_path: Path) -> None:
    """Of three the middle one, of two the lower: a tie is not stable."""
    world = world_of(tmp_path)
    limits = Limits({0: 100.0, 1: 300.0, 2: 200.0})
    three, asked = search(world, limits, seeds=(0, 1, 2), precision=0.01), limits.asked
    assert three.stable_img_s < 200 <= three.unstable_img_s <= 1.011 * three.stable_img_s
    assert three.runs == len(asked)
    rates = {rate for _, rate in asked}
    assert len(asked) < 3 * len(rates)
    assert sum(rate >= 300 for _, rate in asked) == 2 * len({rate for rate in rates if rate >= 300})
    two = search(world, limits, seeds=(1, 2), precision=0.01)
    assert two.stable_img_s < 200 <= two.unstable_img_s


def test_bursts_and_faults_do_not_count_unless_asked_for(tmp_path: Path) -> None:
    """A rate that can last is that of the cluster, whatever the scenario's arrivals do on it."""
    plain = search(world_of(tmp_path))
    bursts = "{kind: mmpp, rate_img_s: 50, burst_factor: 1.5, burst_share: 0.5, dwell_s: 0.02}"
    moving = world_of(tmp_path, bursts, "faults: [{kind: server_down, server: fast, start_s: 0.05}]\n")
    assert search(moving) == plain
    own = search(moving, own_workload=True)
    assert own.workload == "mmpp"
    assert own.stable_img_s < 0.7 * plain.stable_img_s  # without its fast server


def test_a_trace_has_no_rate_of_its_own(tmp_path: Path) -> None:
    """Its cluster has a capacity; its own arrivals have no rate to search."""
    (tmp_path / "trace.csv").write_text("time_s\n0\n0.5\n")
    world = world_of(tmp_path, TRACE)
    assert search(world).workload == "poisson"
    with pytest.raises(InputError, match="a trace has no rate to search"):
        search(world, own_workload=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several seeds, a length and a precision; what is out of range is refused."""
    path = str(write_scenario(tmp_path))
    flags = ["--router", "sticky", "--seed", "3", "--seed", "4", "--duration", "200ms", "--precision", "0.4"]
    assert main(["capacity", path, *flags, "--json", "-"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out)
    assert (found["seeds"], found["workload"], found["engine"]) == ([3, 4], "poisson", "simpy")
    assert "(poisson arrivals, 0.2 s, seeds 3, 4)" in streams.err
    assert main(["capacity", path, "--precision", "0"]) == 2
    assert "must be a number from 0.001 to 0.5" in capsys.readouterr().err
    assert main(["capacity", path, "--workload", "onw"]) == 2
    assert "did you mean 'own'" in capsys.readouterr().err
    assert main(["capacity", path, "--seed", "1", "--seed", "1"]) == 2
    assert "--seed: 1 is given twice" in capsys.readouterr().err
