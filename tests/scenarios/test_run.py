"""The main job on this machine, interrupted in every stage and carried on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from hw.accuracy import load_accuracy
from hw.networks import ModelFile
from policies.errors import InputError
from policies.records import BatchRecord, BlockRecord, ForeignLoad, Handover, RouterCost, RunRecord, ServerTotals
from policies.reward import RewardTerms
from policies.vocabulary import ROUTER, HeadKey
from scenarios.cli import main
from scenarios.executors import serving
from scenarios.executors.serving import WARMUP_S, overheads_of, with_overheads
from scenarios.files.documents import read_json
from scenarios.files.reading import load_scenario
from scenarios.job import network, profiles, router, validation
from scenarios.job.job import Job
from scenarios.job.run import Outcome, carry_out
from scenarios.runs.simulate import run_simulation
from scenarios.world.materials import load_world
from sim.profile import Profile
from sim.tables import compile_tables
from tests import worlds
from tests.scenarios.files import write_scenario

pytestmark = pytest.mark.workers

SCENARIO = """
schema: slimsched.scenario/1
name: small
model: {network: 'tests.scenarios.own_network:DigitsPerceptron', options: {features: 32}, dataset: digits}
cluster: {servers: auto, greedy: {batch_limit: 8, preload: all}}
router: {groups: [1, 4]}
workload: {kind: poisson, rate_img_s: 30}
calibration: {budget: 4s, allow_busy: true}
training: {decisions: 3000, batch: 1024, minibatch: 256, environments: 2, horizon_s: 2}
compare: {routers: [random, sticky, ppo], seeds: [0]}
validate: {routers: [random, ppo], go_on: true, duration_s: 2s, warmup_s: 0.2s}
duration_s: 3
warmup_s: 0.5
"""
STAGES = {
    "train_model": network,
    "evaluate_model": network,
    "calibrate_device": profiles,
    "measure_serving": profiles,
    "train_router": router,
    "validate_world": validation,
}


@dataclass
class Finished:
    """A whole job that was interrupted as each of its stages began, and then carried out."""

    folder: Path
    began: list[str]
    said: list[str]
    outcome: Outcome


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("job")
    (folder / "small.yaml").write_text(SCENARIO)
    began: list[str] = []

    def interrupt(name: str) -> Callable[..., None]:
        def stop(*_: object, **__: object) -> None:
            began.append(name)
            raise KeyboardInterrupt

        return stop

    def run(say: Callable[[str], None]) -> Outcome:
        return carry_out(Job(load_scenario(folder / "small.yaml"), folder / "run", say=say, quiet=True))

    for name, module in STAGES.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, interrupt(name))
            with pytest.raises(KeyboardInterrupt):
                run(lambda _: None)
    said: list[str] = []
    return Finished(folder / "run", began, said, run(said.append))


@pytest.mark.slow
def test_interrupted_in_any_stage_it_goes_on_from_the_last_finished_one(
    job: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each try is interrupted as the next stage begins; no finished stage runs again; then replay and report work."""
    assert job.began == list(STAGES)
    said = [line for line in job.said if not line.startswith("warning: other programs")]  # this machine may be busy
    assert [line.partition(": ")[0] for line in said[:2]] == ["devices", "cut for time, of the defaults"]
    assert [line for line in said[2:] if "skipped" not in line and "images/s arrive" not in line] == [
        "validate: not done yet"
    ]
    assert job.outcome.report.is_file()
    pairs = read_json(job.folder / "validation.json")["pairs"]
    assert [pair["router"] for pair in pairs] == ["random", "ppo"]
    for pair in pairs:
        for world in ("simulated", "hardware"):
            images = pair[world]["images"]
            assert images["arrived"] == images["completed"] > 30
        assert pair["simulated"]["images"]["arrived"] == pair["hardware"]["images"]["arrived"]
        assert 0.0 <= pair["foreign_load"]["programs"] <= 1.0
    assert main(["replay", str(job.folder)]) == 0
    assert capsys.readouterr().out.count("identical commands") == 2


def test_a_users_network_goes_through_the_whole_job(job: Finished) -> None:
    """Named `module:Class` in the scenario: trained, evaluated, calibrated, simulated, and served by real agents."""
    table = load_accuracy(job.folder / "accuracy.json")
    assert len(table.tuples) == 4
    assert min(table.top1().values()) > 0.5
    for pair in read_json(job.folder / "validation.json")["pairs"]:
        assert pair["hardware"]["accuracy"] > 0.5  # served labels are those of the trained network


@pytest.mark.parametrize(
    ("load", "allowed", "words"),
    [
        (ForeignLoad(0.5, 0.1), True, "other programs use 50 % of the device, this virtual machine's host 10 %"),
        (ForeignLoad(0.5), False, None),
        (ForeignLoad(0.1, 0.25), False, None),
        (ForeignLoad(0.2), False, "other programs use 20 % of the device"),
        (None, False, "other programs use an unknown share of the device"),
    ],
)
def test_what_serving_costs_is_not_measured_beside_others(
    load: ForeignLoad | None, allowed: bool, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 30 % of a device is refused, as at a calibration; where it is allowed the profile says so."""
    world = load_world(write_scenario(tmp_path))
    result, record = run_simulation(world, world.router("random"), "random", 0)
    monkeypatch.setattr(serving, "real_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(serving, "run_on_hardware", lambda *_: (result, replace(record, foreign_load=load)))
    measure = partial(serving.measure_serving, world, ModelFile(tmp_path), None, 0, allow_busy=allowed)
    if words is None:
        with pytest.raises(InputError, match=r"what serving costs: .* more than 30 %.*calibration\.allow_busy"):
            measure()
        return
    profile = with_overheads(world.profiles[0], measure(), 0)
    assert profile.device.stamps["interference_serving"] == words


def block(sent_ns: int, arrived_ns: int, server: int, location: int) -> BlockRecord:
    terms = RewardTerms(0.0, 0.0, 0.0, 0.0, 0.0)
    return BlockRecord(
        1, HeadKey(1, 0.0, location), server, 1.0, 2, sent_ns - 50_000, sent_ns, arrived_ns, arrived_ns, 0.0, terms
    )


def totals(busy_s: float) -> ServerTotals:
    return ServerTotals("server", 0, busy_s, 1, 1, 0, 0, 0)


def test_serving_overheads_are_what_the_profile_does_not_explain() -> None:
    """Command to start and end to result; sent to arrived less the bytes and the handover; what a pass took more than
    calibrated. The rest is as it was, and batches that shared their device do not count."""
    link = {"latency_s": 1e-6, "bandwidth_bytes_s": 1e6}
    tables = compile_tables(worlds.profile(link=link, host_share=1.0), 32)
    forward_ns = tables.keys[1, 1.0, 0.0].latency_ns[2]
    begin = int(WARMUP_S * 1e9) + 10**6
    start = begin + 100_000
    batch = BatchRecord(
        0, 0, 0, 1, 1.0, 0.0, 2, begin, start, start + forward_ns + 40_000, start + forward_ns + 240_000
    )
    early = BatchRecord(0, 1, 0, 1, 1.0, 0.0, 2, 0, 0, 10**9, 10**9)
    later = batch.ended_ns + 10**9
    crowded = [BatchRecord(s, 2, 0, 1, 1.0, 0.0, 2, later, later, later + 10**8, later + 10**8) for s in (0, 1)]
    bytes_ns = 2 * 3072 * 1000
    blocks = (block(begin, begin + bytes_ns + 70_000, 0, ROUTER), block(begin, begin + 5, 0, 0))
    handovers = tuple(Handover(0, there, took_ns) for there, took_ns in ((True, 20_000), (False, 10_000)))
    record = RunRecord(10**10, (), blocks, (batch, early, *crowded), (), (), (), (), 2, handovers=handovers)
    overheads = overheads_of(record, [tables], [0, 0])
    assert overheads.dispatch_s[0] == pytest.approx([300e-6] * 32)
    assert overheads.transfer_s[0] == pytest.approx(70e-6 - 20e-6)
    assert overheads.handover[0] is not None
    assert (set(overheads.handover[0].there_s), set(overheads.handover[0].back_s)) == ({20e-6}, {10e-6})
    assert (overheads.handover[1], overheads.router_host) == (None, None)  # no sample
    assert overheads.extra_s[0] == pytest.approx(40e-6)
    own = overheads_of(replace(record, batches=(batch,), servers=(totals(forward_ns / 1e9 + 90e-6),)), [tables], [0])
    assert own.extra_s[0] == pytest.approx(90e-6)  # its core's time for the batch beyond the calibrated pass
    assert own.dispatch_s[0] == pytest.approx([300e-6 + 40e-6 - 90e-6] * 32)  # the batch takes as long as before
    profile = with_overheads(tables.profile, overheads, 0)
    assert profile.link is not None
    assert profile.dispatch_s == pytest.approx(300e-6)
    assert profile.handover == overheads.handover[0]
    assert profile.link.latency_s == pytest.approx(50e-6)
    assert profile.link.bandwidth_bytes_s == 1e6
    assert profile.served_extra_s == pytest.approx(40e-6)
    assert profile.latency == tables.profile.latency
    assert Profile.from_yaml(profile.to_yaml(), "served.yaml") == profile


def test_the_routers_costs_are_found_again_from_samples_of_several_blocks() -> None:
    """A part a block and a part an image, of decisions and of returns; how single costs lie around them."""
    truth: dict[Literal["decision", "returned"], tuple[float, float]] = {
        "decision": (30e-6, 2e-6),
        "returned": (20e-6, 0.0),
    }
    rng = np.random.default_rng(0)
    samples = [
        RouterCost(kind, blocks, images, round(1e9 * float(part[0] * blocks + part[1] * images) * noise))
        for kind, part in truth.items()
        for blocks, images in ((1, 1), (1, 8), (3, 12), (2, 40))
        for noise in rng.choice((0.8, 1.2), 500)
    ]
    record = RunRecord(10**10, (), (), (), (), (), (), (), 0, router_costs=tuple(samples))
    host = overheads_of(record, [], []).router_host
    assert host is not None
    for kind, (block_s, image_s) in truth.items():
        found = getattr(host, kind)
        assert found.block_s == pytest.approx(block_s, rel=0.05)
        assert found.image_s == pytest.approx(image_s, rel=0.05, abs=0.05e-6)
    assert host.spread[0] == pytest.approx(0.8, rel=0.05)
    assert host.spread[-1] == pytest.approx(1.2, rel=0.05)
    assert np.mean(host.spread) == pytest.approx(1.0)
    only = replace(record, router_costs=tuple(sample for sample in samples if sample.kind == "decision"))
    assert overheads_of(only, [], []).router_host is None
