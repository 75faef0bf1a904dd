"""The fluid bound: no run beats it, it moves the right way, and one server's can be worked out by hand."""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit import strict
from kit.errors import InputError, WorkError
from scenarios.experiment.resolved_scenario import Experiment, NetworkAccuracy
from scenarios.experiment.scenario_building import build_experiment, load_experiment
from scenarios.files.scenario_keys import PoissonWorkload, Scenario
from scenarios.runs import fluid_bound
from scenarios.runs.fluid_bound import (
    FluidModel,
    busy_router_of,
    oracle_accuracy,
    overload_of,
    router_load_of,
    whole_img_s,
)
from scenarios.runs.simulated_runs import simulate_metrics
from sim.device_profile import Profile
from sim.host_and_network import HostTable
from slimsched.cli import main
from tests import tiny
from tests.scenarios.files import write_scenario

WIDTHS = (0.5, 1.0)
TEXT = """
schema: slimsched.scenario/1
name: fluid
model: {{accuracy: none.json}}
cluster:
  servers: [{servers}]
  greedy: {{vram_cap_gb: 3, batch_limit: 16, served_width: {served}}}
router: {{decision_s: 0.001}}
workload: {{kind: poisson, rate_img_s: 400}}
duration_s: 0.6
warmup_s: 0.1
jitter: {jitter}
{more}
"""
GPU = {"kind": "cuda", "name": "toy", "vram_bytes": 8_000_000_000}


def toy(name: str, speed: float, **changes: Any) -> Profile:
    """Two segments at two widths; the faster device is the hungrier one."""
    return tiny.profile(name, segments=2, widths=WIDTHS, batches=(1, 4, 16, 64), speed=speed, **changes)


def made(
    *profiles: Profile, link: str = "10gbe", more: str = "", jitter: bool = False, served: str = "requested"
) -> Experiment:
    """An experiment of a server for each profile."""
    names = [f"{{name: s{index}, profile: p{index}.yaml, link: {link}}}" for index in range(len(profiles))]
    text = TEXT.format(servers=", ".join(names), more=more, served=served, jitter=str(jitter).lower()).replace(
        "1ms", "0.001"
    )
    scenario = strict.parse(Scenario, text, "fluid")
    accuracy = NetworkAccuracy(tiny.prior(2, WIDTHS))
    return build_experiment(scenario, {f"s{index}": profile for index, profile in enumerate(profiles)}, accuracy)


def at_rate(experiment: Experiment, rate_img_s: float) -> Experiment:
    workload = PoissonWorkload(kind="poisson", rate_img_s=rate_img_s)
    return replace(experiment, scenario=experiment.scenario.model_copy(update={"workload": workload}))


CAPPED = {"bare_idle_w": 10.0, "context_idle_w": 30.0, "cap_w": 45.0, "throttle": 0.4, "phi_min": 0.6}
HOST = {
    "decision": {"micro_batch_s": 2e-4, "image_s": 5e-5},
    "returned": {"micro_batch_s": 3e-4, "image_s": 4e-5},
    "spread": [0.5, 0.5, 2.0],
}
HANDOVER = {"there_s": 3e-4, "back_s": 4e-4}
CLUSTERS: dict[str, Any] = {
    "unequal": lambda: made(toy("a", 1.0), toy("b", 0.4)),
    "one medium": lambda: made(toy("a", 1.0), toy("b", 0.4), link="wifi5"),
    "GPUs": lambda: made(toy("a", 1.0, device=GPU, host_share=0.6), toy("b", 0.4, device=GPU)),
    "power cap": lambda: made(
        toy("a", 1.0, host_share=0.05, power={**CAPPED, "provenance": "datasheet"}),
        toy("b", 0.4, host_share=0.05, power={**CAPPED, "provenance": "datasheet"}),
    ),
    "jitter": lambda: made(toy("a", 1.0, jitter=tuple(np.linspace(0.5, 1.8, 33))), toy("b", 0.4), jitter=True),
    "faults": lambda: made(
        toy("a", 1.0),
        toy("b", 0.4),
        more="faults: [{kind: server_down, server: s1, start_s: 0.2, end_s: 0.3}, "
        "{kind: straggler, server: s0, start_s: 0.4, end_s: 0.5, factor: 2}]",
    ),
    "busy router": lambda: made(
        toy("a", 1.0, router_host=HOST, handover=HANDOVER), toy("b", 0.4, handover=HANDOVER), jitter=True
    ),
    "own width": lambda: made(toy("a", 1.0), toy("b", 0.4), served="instance"),
}
ROUTERS = ("random", "compass", "sticky", "fixed:0.5,1", "fixed:0.5,0.5@shortest-delay", "ladder:4,16,64", "compass")


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_run_beats_the_bound(name: str) -> None:
    """Latency, energy and rate of real runs, light and beyond what they can carry, at the accuracy that they had."""
    experiment = CLUSTERS[name]()
    model = FluidModel(experiment)
    most_img_s = model.capacity_img_s()
    for share, router in zip((0.05, 0.2, 0.3, 0.4, 0.6, 0.8, 1.5), ROUTERS, strict=True):
        loaded = at_rate(experiment, share * min(most_img_s, 1200))
        found = simulate_metrics(loaded, loaded.router(router), router, 1, warmup_s=0.0, engine="compiled")
        energy, accuracy, mean_s = found["energy_per_image_j"], found["expected_accuracy"], found["latency_s"]["mean"]
        assert accuracy is not None
        assert mean_s is not None
        assert energy["dynamic"] is not None
        assert energy["total"] is not None
        rate_img_s = found["images"]["completed"] / found["duration_s"]
        limit = model.bound(accuracy, rate_img_s)
        assert rate_img_s <= limit.capacity_img_s
        assert mean_s > limit.latency_mean_s
        assert limit.energy_dynamic_j is not None
        assert limit.energy_per_image_j is not None
        sure = 0.97 if name == "jitter" else 0.9999  # there the draws of one run may be shorter than the mean
        assert energy["dynamic"] >= sure * limit.energy_dynamic_j
        assert energy["total"] >= sure * limit.energy_per_image_j


@pytest.mark.parametrize("name", CLUSTERS)
def test_fluid_lower_bound_of_capacity_is_within_20_percent_of_the_optimum(name: str) -> None:
    """A close lower bound avoids solving programs unless overload is near; links and the router count."""
    experiment = CLUSTERS[name]()
    for width in WIDTHS:
        certain_img_s, most_img_s = whole_img_s(experiment, (width,)), FluidModel(experiment, (width,)).capacity_img_s()
        assert 0.8 * most_img_s < certain_img_s <= most_img_s * (1 + 1e-9)


def racked(uplink_bytes_s: float) -> Experiment:
    """Three racks of one composition, and one with another; a medium that two servers share."""
    link = "{latency_s: 1e-4, bandwidth_bytes_s: 2e7%s}"
    servers = [
        *(f"{{name: {name}, profile: {name[0]}.yaml, rack: many, link: {link % ''}}}" for name in ("a0", "a1", "b0")),
        *(f"{{name: {name}, profile: a.yaml, rack: one, link: {link % ', medium: air'}}}" for name in ("a8", "a9")),
    ]
    text = TEXT.format(servers=", ".join(servers), more="", served="requested", jitter="false")
    uplink = f"latency_s: 1e-4, bandwidth_bytes_s: {uplink_bytes_s}"
    racks = f"racks: [{{name: many, count: 3, {uplink}}}, {{name: one, {uplink}}}]"
    scenario = strict.parse(Scenario, text.replace("cluster:", f"cluster:\n  {racks}"), "racked")
    slow, fast = toy("x", 0.5), toy("x", 1.0)
    profiles = {each.name: slow if "b0" in each.name else fast for each in scenario.cluster.named_servers}
    return build_experiment(scenario, profiles, NetworkAccuracy(tiny.prior(2, WIDTHS)))


@pytest.mark.parametrize("uplink_bytes_s", [1e6, 1e9])
def test_servers_of_a_kind_need_not_be_told_apart(uplink_bytes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = racked(uplink_bytes_s)
    assert sorted(len(kind.servers) for kind in fluid_bound.kinds_of(experiment)) == [1, 1, 3, 6]
    few = FluidModel(experiment).bound(0.5, 100.0), whole_img_s(experiment, WIDTHS[:1])
    each = [fluid_bound._Kind((server,)) for server in range(11)]
    monkeypatch.setattr(fluid_bound, "kinds_of", lambda experiment: each)
    many = (FluidModel(experiment).bound(0.5, 100.0),)
    for name in ("capacity_img_s", "energy_per_image_j", "latency_mean_s"):
        assert getattr(few[0], name) == pytest.approx(getattr(many[0], name), rel=1e-6)
    assert few[1] <= few[0].capacity_img_s * (1 + 1e-9)


def test_fluid_bound_of_one_server_matches_hand_calculation() -> None:
    """A single server at full width: every part of the bound is a sum of a few of the profile's numbers."""
    experiment = made(
        toy("a", 1.0, dispatch_s=0.0005, host_share=0.5), link="{latency_s: 0.003, bandwidth_bytes_s: 1e6}"
    )
    found = FluidModel(experiment).bound(0.7, 100.0)
    # Two segments at width 1: batch 1 takes 1 + 0.2 ms, an image of the best batch (64) (1 + 0.2 * 64) / 64 ms.
    busy_s = 2 * (1e-3 + 2e-4 * 64) / 64
    # Demand is rounded to permille; in the largest batch (16) the host is busy half of 4.2 ms for 16 images.
    assert found.capacity_img_s == pytest.approx(min(1 / busy_s, 1 / (2 * 0.5 * 4.2e-3 / 16), 1e6 / 3072), rel=1e-3)
    moved_s = 0.003 + 3072 / 1e6
    assert found.latency_mean_s == pytest.approx(0.001 + 2 * (0.0005 + 0.0012) + moved_s, rel=1e-6)
    assert found.energy_dynamic_j == pytest.approx(2 * 0.02)
    assert found.energy_per_image_j == pytest.approx(2 * 0.02 + 30 / 100)
    assert FluidModel(made(toy("a", 1.0, host_share=0.5))).bound(0.7, 100.0).capacity_img_s == pytest.approx(
        1 / busy_s, rel=1e-3
    )


def test_the_routers_host_and_the_ways_to_it_by_hand() -> None:
    """Latency of an image alone: the means of all that is on its way. Capacity: full groups, full batches returned."""
    quick = toy("a", 4.0, router_host=HOST, handover=HANDOVER, host_share=0.0)
    experiment = made(quick, link="{latency_s: 0.003, bandwidth_bytes_s: 1e9}")
    found = FluidModel(experiment).bound(0.7, 1.0)
    way_s = 0.001 + 2.5e-4 + 3e-4 + 2 * 0.0012 / 4 + 4e-4 + 3.4e-4  # policy, decision, there, passes, back, return
    assert found.latency_mean_s == pytest.approx(way_s + 0.003 + 3072 / 1e9, rel=1e-6)
    image_s = (0.001 + 2e-4) / 32 + 5e-5 + 3e-4 / 16 + 4e-5
    assert found.capacity_img_s == pytest.approx(1 / image_s, rel=1e-6)
    early = toy("a", 4.0, router_host={**HOST, "sent_share": 0.2}, handover=HANDOVER, host_share=0.0)
    sooner = FluidModel(made(early, link="{latency_s: 0.003, bandwidth_bytes_s: 1e9}")).bound(0.7, 1.0)
    assert found.latency_mean_s - sooner.latency_mean_s == pytest.approx(0.8 * 2.5e-4, rel=1e-6)
    assert sooner.capacity_img_s == pytest.approx(found.capacity_img_s, rel=1e-6)
    heard = toy("a", 4.0, router_host={**HOST, "received_share": 0.25}, handover=HANDOVER, host_share=0.0)
    known = FluidModel(made(heard, link="{latency_s: 0.003, bandwidth_bytes_s: 1e9}")).bound(0.7, 1.0)
    assert found.latency_mean_s - known.latency_mean_s == pytest.approx(0.75 * 3.4e-4, rel=1e-6)
    assert known.capacity_img_s == pytest.approx(found.capacity_img_s, rel=1e-6)
    busy = {"dispatch_s": 1e-3, "there_s": 1e-4, "back_s": 9e-4}  # only the way there is faster than idle
    while_busy = toy("a", 4.0, router_host=HOST, handover=HANDOVER, busy_serving=busy, host_share=0.0)
    quicker = FluidModel(made(while_busy, link="{latency_s: 0.003, bandwidth_bytes_s: 1e9}")).bound(0.7, 1.0)
    assert found.latency_mean_s - quicker.latency_mean_s == pytest.approx(3e-4 - 1e-4, rel=1e-6)


def test_a_number_for_the_policy_adds_to_what_the_router_was_measured_to_cost() -> None:
    """`decision_s: 0.001` never drops it; `measured` adds no time; where nothing was measured, only the number."""
    served, plain = toy("a", 1.0, router_host=HOST, handover=HANDOVER), toy("a", 1.0)
    dearer = toy("b", 1.0, router_host={**HOST, "returned": {"micro_batch_s": 3e-4, "image_s": 6e-5}})
    one, both = made(served), made(served, dearer, plain)
    assert one.cluster.decision_ns == both.cluster.decision_ns == 1_000_000
    assert one.cluster.host == HostTable((200_000, 50_000), (300_000, 40_000))
    assert both.cluster.host == HostTable((200_000, 50_000), (300_000, 60_000))
    assert [device.back_ns for device in both.cluster.devices] == [400_000, 0, 0]
    assert made(plain).cluster.host is None
    word = {"decision_s": "measured"}
    for profile, decision_ns in ((served, 0), (plain, 100_000)):
        scenario = one.scenario.model_copy(update={"router": one.scenario.router.model_copy(update=word)})
        assert build_experiment(scenario, {"s0": profile}, one.accuracy).cluster.decision_ns == decision_ns
    drawn = made(served, jitter=True).cluster
    assert drawn.host is not None
    assert drawn.host.spread == (0.5, 0.5, 2.0)


def test_the_bound_moves_the_right_way() -> None:
    """More accuracy costs capacity, time and energy, all convex; a better cluster or a lower rate never costs more."""
    model, more = FluidModel(made(toy("a", 1.0), toy("b", 0.4))), FluidModel(made(*[toy("a", 1.0)] * 2))
    accuracies = np.linspace(0.6, 0.7, 6)
    capacities = np.array([model.capacity_img_s(a) for a in accuracies])
    energies = np.array([model.energy_j(a, 300.0) for a in accuracies])
    latencies = np.array([model.latency_s(a, 300.0) for a in accuracies])
    assert (np.diff(capacities) < 0).all()
    for rising in (energies, latencies):
        assert (np.diff(rising) > 0).all()
        assert (np.diff(rising, 2) > -1e-9).all()
    assert [more.capacity_img_s(a) for a in accuracies] > capacities.tolist()
    assert more.energy_j(0.7, 300.0) <= energies[-1] + 1e-12
    assert model.energy_j(0.7, 100.0) <= model.energy_j(0.7, 600.0)
    for rate_img_s in (100.0, capacities[2], capacities[-2]):
        best = model.best_accuracy(rate_img_s)
        assert model.capacity_img_s(best - 1e-6) == pytest.approx(rate_img_s, rel=1e-3) or best == pytest.approx(0.7)


def test_beyond_the_capacity_only_the_capacity_is_told() -> None:
    experiment = made(toy("a", 1.0))
    model = FluidModel(experiment)
    found = model.bound(0.7, 2 * model.capacity_img_s(0.7))
    assert (found.energy_dynamic_j, found.energy_per_image_j) == (None, None)
    assert found.latency_mean_s == model.latency_s(0.7, None)
    with pytest.raises(WorkError, match="no solution"):
        model.best_accuracy(2 * model.capacity_img_s())
    with pytest.raises(InputError, match=r"0\.71 is beyond the most accurate width tuple .*; expected up to 0\.7000"):
        model.bound(0.71, 10.0)


def test_the_oracle_narrows_in_the_peaks_alone() -> None:
    """Full width where the window allows it; in the peak what its rate allows; what is too much waits."""
    model = FluidModel(made(toy("a", 1.0)))
    full, narrow = model.capacity_img_s(0.7), model.capacity_img_s(0.6)
    calm = oracle_accuracy(model, [0.5 * full] * 4)
    assert calm.accuracy == pytest.approx(0.7, abs=1e-6)
    peak_img_s = (full + narrow) / 2
    peaked = oracle_accuracy(model, [0.5 * full, peak_img_s, 0.5 * full], points=48)
    wanted = (full * 0.7 + peak_img_s * model.best_accuracy(peak_img_s)) / (full + peak_img_s)
    assert peaked.accuracy == pytest.approx(wanted, abs=1e-4)
    assert (peaked.peak_img_s, peaked.overload_share) == (peak_img_s, 0.0)
    flooded = oracle_accuracy(model, [2.9 * narrow, 0.0, 0.0, 0.1 * narrow])
    assert flooded.overload_share == 0.5  # of the second window, too, as its queue is 1.9 windows long
    assert 0.6 <= flooded.accuracy < 0.61


def test_the_command_tells_bound_and_oracle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", str(write_scenario(tmp_path)), "--json", "-"]) == 0
    assert '"oracle": null' in capsys.readouterr().out
    flash = "{kind: flash, rate_img_s: 200, factor: 8, at_s: 0.5, rise_s: 0, peak_s: 0.2, fall_s: 0}"
    moving = write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", flash)
    assert main(["bound", str(moving), "--set", "slo.floor=0.8"]) == 0
    told = capsys.readouterr().out
    said = r"at a mean accuracy of at least 80.00 %, no router can.* less than (\S+) J/image above idle, or (\S+) with"
    energies = re.search(said, told, re.DOTALL)
    assert energies
    assert all(len(group.lstrip("0.").replace(".", "")) >= 3 for group in energies.groups())
    assert all(text in told for text in ("at 480.0 images/s", "in 1 s: a router that knew it"))


@pytest.mark.usefixtures("usual_interrupts")
def test_an_interruption_is_heard_while_the_solver_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ended = write_scenario(tmp_path), threading.Event()

    def solve(*_: Any, **__: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()  # where compiled code hears nothing
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(60)

    monkeypatch.setattr("scipy.optimize.linprog", solve)
    assert main(["bound", str(path)]) == 130
    assert not ended.is_set()
    ended.set()
    assert "interrupted; nothing of it is kept" in capsys.readouterr().err


def test_a_rate_beyond_any_router_is_told_by_the_commands_that_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning with what is possible, not an error: overload may be what is looked at. Below it nothing is said."""
    path = write_scenario(tmp_path)
    experiment = load_experiment(path)
    most_img_s = FluidModel(experiment).capacity_img_s()
    assert overload_of(at_rate(experiment, 0.99 * most_img_s)) is None
    assert f"no router can sustain more than {most_img_s:.4g}" in (
        overload_of(at_rate(experiment, 1.01 * most_img_s)) or ""
    )
    flash = "{kind: flash, rate_img_s: 3000, factor: 9, at_s: 0, peak_s: 1}"
    short = write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", flash)
    short.write_text(short.read_text().replace("duration_s: 1", "duration_s: 0.2"))
    loud = load_experiment(short)
    assert (loud.rate_img_s or 0.0) < most_img_s < (loud.mean_rate_img_s or 0.0)  # its mean counts, not its base
    flags = ["--out", str(tmp_path / "run")]
    for command, quiet in (("simulate", []), ("compare", []), ("simulate", ["--quiet"])):
        assert main([command, str(short), *flags, *quiet]) == 0
        assert ("warning: tiny: " in capsys.readouterr().err) == (not quiet)
    light = write_scenario(tmp_path)
    assert main(["simulate", str(light), *flags]) == 0
    assert "warning" not in capsys.readouterr().err


def test_router_load_at_a_rate_matches_hand_calculation() -> None:
    """Two segments in micro-batches of 32: a policy of 1 ms, a decision, and two messages back, as batches hold 16."""
    experiment = at_rate(made(toy("a", 1.0, router_host=HOST, handover=HANDOVER)), 100.0)
    load = router_load_of(experiment)
    assert load is not None
    assert (load.largest, load.messages, load.micro_batches_s) == (32, 2, 2 * 100 / 32)
    assert load.decided_s == pytest.approx(0.001 + 2e-4 + 32 * 5e-5)
    assert load.returned_s == pytest.approx(2 * 3e-4 + 32 * 4e-5)
    assert load.share == pytest.approx(6.25 * (2.8e-3 + 1.88e-3))
    full_img_s = 100 / load.share
    assert busy_router_of(at_rate(experiment, 0.89 * full_img_s)) is None
    assert "hardly keeps up" in (busy_router_of(at_rate(experiment, 0.91 * full_img_s)) or "")
    told = busy_router_of(at_rate(experiment, 4800.0)) or ""
    assert (
        "fluid: the router's process can't keep up, if it decides at each segment: 4800 images/s in 2 segments are 300"
        in told
    )
    assert "(32 images); each takes 2800 us to decide and send, and 1880 us to take back (in at least 2 mes" in told
    assert "140 % of its one core" in told
    assert "router.micro_batch_sizes, cluster.greedy.batch_limit" in told
