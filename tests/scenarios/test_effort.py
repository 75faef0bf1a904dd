"""What would take hours or many gigabytes is told before anything is drawn; what can't be done is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.errors import InputError, WorkError
from scenarios.cli import main
from scenarios.job import router as router_stage
from scenarios.learn import tuning
from scenarios.runs import bound, effort
from scenarios.runs.bound import oracle_of, require_solvable
from scenarios.runs.effort import effort_of, learning_warning, real_time_warning, require_effort
from scenarios.world.materials import load_world
from scenarios.world.world import World
from tests.scenarios.files import write_scenario

ABSURD = {
    "four months": ("duration_s: 1\n", "duration_s: 1e7\n", "2e+09 images"),
    "a quick load": ("duration_s: 1\n", "duration_s: 1e5\n", "2e+07 images"),
    "a load that changes all the time": (
        "{kind: poisson, rate_img_s: 200}",
        "{kind: mmpp, rate_img_s: 200, dwell_s: 1e-9}",
        "2e+08 changes of the load",
    ),
    "a crowd": (
        "{kind: poisson, rate_img_s: 200}",
        "{kind: flash, rate_img_s: 200, factor: 1e9, at_s: 0}",
        "images",
    ),
    "chaos": (
        "duration_s: 1\n",
        "duration_s: 1e6\nfaults: [{kind: chaos, mean_gap_s: 10ms}]\n",
        "1e+08 deaths of workers",
    ),
}


@pytest.mark.parametrize("old, new, most", ABSURD.values(), ids=ABSURD)
@pytest.mark.parametrize("command", ["simulate", "compare", "bound"])
def test_too_much_for_the_machine_is_refused_before_it_is_drawn(
    command: str, old: str, new: str, most: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One line, exit code 2; the arrivals alone would fill the memory."""

    def draw(*_: object, **__: object) -> None:
        raise AssertionError("it draws")

    monkeypatch.setattr(World, "arrivals_ns", draw)
    monkeypatch.setattr(effort, "machine_bytes", lambda: 8_000_000_000)
    monkeypatch.chdir(tmp_path)
    assert main([command, str(write_scenario(tmp_path, old, new))]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "this machine has 8 GB" in error
    assert most in error
    assert not (tmp_path / "runs").exists()


def test_a_long_run_is_told_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours, or half of the memory, are worth a line; seconds are not."""
    world = load_world(write_scenario(tmp_path, "duration_s: 1\n", "duration_s: 2000\n"))
    monkeypatch.setattr(effort, "machine_bytes", lambda: 8_000_000_000)
    assert require_effort(effort_of(world, 1), "tiny") is None
    assert require_effort(effort_of(world, 50, "compiled"), "tiny") is None
    told = require_effort(effort_of(world, 100), "tiny")
    assert told is not None
    assert "about 83.5 min and 0.57 GB" in told
    assert "100 runs of 4e+05 images and 8e+04 readings of sensors each" in told
    told = require_effort(effort_of(world, 50, "compiled", processes=20), "tiny")
    assert told is not None
    assert "GB" in told


def test_long_learning_and_long_real_runs_are_told() -> None:
    """Hours are worth a line; minutes are not."""
    assert learning_warning(10**8, "tiny") is None
    assert (
        learning_warning(10**9, "tiny")
        == "warning: tiny: about 83.3 min to learn from 1e+09 decisions; fewer take less"
    )
    assert learning_warning(10**8, "tiny", "simpy") is not None
    assert real_time_warning(100, 30.0, "tiny") is None
    told = "warning: tiny: about 83.3 min for 100 real runs of 50 s; fewer or shorter take less"
    assert real_time_warning(100, 50.0, "tiny") == told


@pytest.mark.parametrize("command, place", [("train", router_stage), ("tune", tuning)])
def test_long_learning_is_told_before_it_begins(
    command: str, place: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that would learn, from what its flag says; of tuning with all that comes on top of its search."""

    def begun(*_: Any, **__: Any) -> None:
        raise WorkError("begun")

    monkeypatch.setattr(place, {"train": "train_router", "tune": "tune_world"}[command], begun)
    monkeypatch.chdir(tmp_path)
    flags = ["--router", "ladder", "--floor", "0.1"] if command == "tune" else []
    assert main([command, str(write_scenario(tmp_path)), "--decisions", "1000000000", *flags]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1].endswith("begun")
    warning = r"warning: tiny: about 83\.\d min to learn from 1e\+09 decisions; fewer take less"
    assert any(re.fullmatch(warning, line) for line in told)


def test_every_server_costs_each_event(tmp_path: Path) -> None:
    """Of many servers the sensors' readings are the most, and each is told to a router that looks at all of them."""
    few = write_scenario(tmp_path).read_text()
    slow = "  - {name: slow, profile: slow.yaml, link: 10gbe}\n"
    rows = "".join(slow.replace("slow,", f"slow{number},") for number in range(498))
    (tmp_path / "many.yaml").write_text(few.replace("workload:", f"{rows}workload:"))
    many, two = (effort_of(load_world(tmp_path / name), 1, duration_s=3600.0) for name in ("many.yaml", "tiny.yaml"))
    assert many.events["readings of sensors"] == pytest.approx(250 * two.events["readings of sensors"])
    assert many.seconds > 500 * 250 * two.events["readings of sensors"] * 1e-7


def test_the_images_of_an_effort_are_those_that_arrive(tmp_path: Path) -> None:
    """Within what chance does to a Poisson process."""
    world = load_world(write_scenario(tmp_path))
    assert effort_of(world, 1).images == pytest.approx(len(world.arrivals_ns(0, 1.0)), rel=0.3)
    assert effort_of(world, 1, duration_s=100.0).images == pytest.approx(len(world.arrivals_ns(0, 100.0)), rel=0.05)


def test_a_bound_that_is_too_large_is_refused_before_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programme grows with the square of the servers."""
    path = write_scenario(tmp_path)
    require_solvable(load_world(path))
    monkeypatch.setattr(bound, "MOST_UNKNOWNS", 10.0)
    for command in (["bound", str(path)], ["compare", str(path), "--bound", "--out", str(tmp_path / "out")]):
        assert main(command) == 2
        assert "the bound on 2 servers is a programme of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["simulate", str(path)]) == 0  # whether it is overloaded is not asked then


def test_windows_without_number_are_refused(tmp_path: Path) -> None:
    """They would fill the memory."""
    world = load_world(write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", "{kind: mmpp, rate_img_s: 200}"))
    model = bound.FluidModel(world)
    assert oracle_of(model, 0.1) is not None
    with pytest.raises(InputError, match=r"--window: 1e-08 s are 1.0e\+08 windows; at least 1e-06 s are needed"):
        oracle_of(model, 1e-8)
