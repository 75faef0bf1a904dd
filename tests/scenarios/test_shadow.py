"""What another router would have done with what was served: where the truth is a simulation, and so known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slimsched
from hw.door.segments import LogBounds, SegmentLog
from kit.chance import stream
from kit.errors import InputError
from policies.router import RouterCore
from scenarios.runs.folder import SERVED, RunFolder
from scenarios.runs.shadow import Figures, claims_of, last_stretch
from scenarios.world.materials import load_world
from tests.scenarios.files import write_scenario

NARROW, WIDE = "fixed:0.5,0.5@jsq", "fixed:1,1@jsq"


def serve(folder: Path, router: str = WIDE, *others: str) -> Path:
    """A run folder with the log of a serve, as the simulation of this scenario would have had it; one router obeyed
    after the other, as long as each other."""
    path, run = write_scenario(folder, "duration_s: 1", "duration_s: 6"), folder / "run"
    world = load_world(path, run)
    core, routers, said = RouterCore(world.cluster.router), [router, *others], list[str]()
    simulation = world.simulation(world.run_spec(0, keep_log=True))
    simulation.finish(world.router(router, run), stream(0, f"router:{router}"))
    steps = [step for step in simulation.record().log if step.core == "router"]
    with RunFolder(run).opened(path):
        log = SegmentLog(
            run / SERVED, LogBounds(1e9, 16 * 1.0), lambda: routers[len(routers) * place // len(steps)], said.append
        )
        for place, step in enumerate(steps):
            if place == 0:
                log.watch(core)
            event: Any = step.event
            log.append(step.now_ns, event, core.handle(event, step.now_ns))
            log.caught_up()
        log.close()
    assert said == []
    return run


def shadow(run: Path, router: str, **options: Any) -> dict[str, Any]:
    return dict(slimsched.shadow(run, router, **options).document)


def test_a_router_beside_itself(tmp_path: Path) -> None:
    """It decides alike about each view, the simulation is near what was measured, and no order is claimed."""
    found = shadow(serve(tmp_path), WIDE)
    alike = found["alike"]
    assert alike["decisions"] == alike["both"] > 1000
    assert found["simulated"] == found["shadow"]
    assert found["arrivals"] > 1000
    assert found["measured"]["images"] == pytest.approx(0.9 * found["arrivals"], rel=0.03)
    for name in ("mean", "p50", "expected_accuracy"):
        assert found["simulated"][name] == pytest.approx(found["measured"][name], rel=0.02)
    assert all(claim.startswith("none: ") for claim in found["claims"].values())


def test_one_that_is_quicker_and_less_accurate_is_told_so(tmp_path: Path) -> None:
    """The recorded arrivals are a workload of any scenario, too: there it does the same."""
    run, trace = serve(tmp_path), tmp_path / "trace.csv"
    found = shadow(run, NARROW, trace=trace)
    assert found["claims"] == dict.fromkeys(("mean", "p50", "p99", "expected_accuracy"), "lower")
    assert (found["alike"]["width"], found["alike"]["both"]) == (0, 0)
    assert found["alike"]["server"] > 0
    workload = {"workload": {"kind": "trace", "file": str(trace)}, "warmup_s": 0.1 * found["duration_s"]}
    again = slimsched.simulate(tmp_path / "tiny.yaml", NARROW, changes={**workload, "duration_s": found["duration_s"]})
    assert again.document["images"]["arrived"] == found["arrivals"]
    assert again.document["latency_s"]["p50"] == found["shadow"]["p50"]


def test_it_looks_back_so_far_and_never_beyond_another_router(tmp_path: Path) -> None:
    """A segment that was cut off before is a gap."""
    run = serve(tmp_path, WIDE, NARROW)
    second = last_stretch(RunFolder(run), 600.0)
    assert {segment.head.decides for segment in second.segments} == {NARROW}
    assert 2.0 < (second.until_ns - second.from_ns) / 1e9 < 4.0
    short = last_stretch(RunFolder(run), 1.5)
    assert short.until_ns - short.from_ns == 1_500_000_000
    assert len(short.segments) <= 3
    assert min(step.now_ns for step in short.steps()) >= short.from_ns
    path = short.segments[-1].path
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    before = last_stretch(RunFolder(run), 600.0)
    path.write_bytes(whole)  # it is served while a shadow is reckoned
    assert max(step.now_ns for step in before.steps()) == before.until_ns < short.until_ns
    with second.segments[-2].path.open("r+b") as file:
        file.truncate(second.segments[-2].path.stat().st_size - 1)
    assert last_stretch(RunFolder(run), 600.0).segments[0].path == second.segments[-1].path


def test_claims_need_a_simulation_that_agrees_with_what_was_measured() -> None:
    def figures(mean: float | None, accuracy: float) -> Figures:
        return Figures(images=10, mean=mean, p50=mean, p99=mean, expected_accuracy=accuracy)

    measured = figures(1.0, 0.8)
    claims = claims_of(measured, figures(1.05, 0.802), figures(1.2, 0.79))
    assert (claims["mean"], claims["expected_accuracy"]) == ("higher", "lower")
    claims = claims_of(measured, figures(1.05, 0.802), figures(1.09, 0.801))
    assert {claim[:26] for claim in claims.values()} == {"none: they are nearer to e"}
    claims = claims_of(measured, figures(1.2, 0.81), figures(0.1, 0.9))
    assert claims["mean"] == "none: the simulation is 20 % off"
    assert claims["expected_accuracy"] == "none: the simulation is 1.0 points off"
    assert claims_of(measured, figures(None, 0.8), figures(1.0, 0.8))["mean"] == "none: no image was answered"


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no log of what was served"):
        slimsched.shadow(tmp_path, "jsq")
    run = serve(tmp_path)
    with pytest.raises(InputError, match="router"):
        slimsched.shadow(run, "nobody")
    with pytest.raises(InputError, match="no image was answered in that time"):
        slimsched.shadow(run, "jsq", duration_s=1e-6)
    with pytest.raises(InputError, match="a shadow knows no classes"):
        slimsched.shadow(run, "jsq", changes={"classes": [{"name": "gold", "share": 1.0}]})
