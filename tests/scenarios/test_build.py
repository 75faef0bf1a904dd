"""Worlds built from scenarios: what is refused, what the bound promises, and the environment by its name."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.study.paper_table import FILE
from hw.networks.accuracy_table import Evaluation, save_accuracy
from policies.faults import Crash, Hang, Outage, Poison, Slowness, Squeeze, Supervision
from policies.vocabulary import NS_PER_S
from scenarios.cluster_gym import ID, experiment_env
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.metrics.router_comparison import compare_results
from scenarios.runs.simulated_runs import run_simulation, simulate_experiment
from sim.simulated_cluster import Simulation
from tests import tiny
from tests.scenarios.files import write_scenario

SCENARIO = """
schema: slimsched.scenario/1
name: tiny
model: {accuracy: accuracy.json}
cluster:
  servers:
    - {name: a, profile: a.yaml, link: 10gbe}
    - {name: b, profile: b.yaml, link: 10gbe}
  greedy: {vram_cap_gb: 3}
workload: {kind: poisson, rate_img_s: 150}
training: {horizon_s: 1}
duration_s: 4
warmup_s: 0.5
compare: {routers: [random, sticky], seeds: [0, 1]}
validate: {routers: [random]}
"""


def write(folder: Path, text: str = SCENARIO, **changes: Any) -> Path:
    """A scenario of two servers, twice as fast the one as the other, with an accuracy file."""
    tuples = list(tiny.prior().accuracies)
    rng = np.random.default_rng(0)
    correct = rng.random((100, len(tuples))) < np.array([sum(t) / 4 for t in tuples])
    save_accuracy(folder / "accuracy.json", Evaluation(tuple(tuples), correct, "0", "digits"))
    for name, speed in (("a", 1.0), ("b", 0.5)):
        (folder / f"{name}.yaml").write_text(tiny.profile(name, speed=speed, **changes).to_yaml())
    (folder / "tiny.yaml").write_text(text)
    return folder / "tiny.yaml"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(write(tmp_path))


def test_labels_are_replayed_from_the_matrix(experiment: Experiment) -> None:
    """A request is a test image; whether it is right is what the network got on that image at those widths."""
    evaluation = experiment.accuracy.evaluation
    assert evaluation is not None
    _, record = run_simulation(experiment, experiment.router("random"), "random", 3)
    images = experiment.images(3, len(record.requests))
    for request in record.requests:
        column = evaluation.tuples.index(request.widths)
        assert request.correct == evaluation.correct[images[request.request], column]


def test_same_seed_same_result_but_for_wall_time(experiment: Experiment) -> None:
    first, again = (simulate_experiment(experiment, "random", 7) for _ in range(2))
    first["wall_s"] = again["wall_s"] = 0.0
    assert json.dumps(first) == json.dumps(again)
    assert first["latency_s"] != simulate_experiment(experiment, "random", 8)["latency_s"]


def test_the_environment_is_made_by_its_name(tmp_path: Path) -> None:
    """`gymnasium.make` with a scenario's file, and Gymnasium's own checker."""
    env = gymnasium.make(ID, scenario=str(write(tmp_path)))
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert info["server_mask"].all()
    check_env(experiment_env(load_experiment(tmp_path / "tiny.yaml")), skip_render_check=True)


def test_the_papers_table_simulates_end_to_end(tmp_path: Path) -> None:
    """Labels are drawn from it: every tuple that ran is right as often as it says, and the result says whose it is."""
    text = SCENARIO.replace("accuracy.json", str(FILE)).replace("duration_s: 4", "duration_s: 20")
    experiment = load_experiment(write(tmp_path, text, provenance="datasheet"))
    result, record = run_simulation(experiment, experiment.router("random"), "random", 0, engine="compiled")
    assert (result["accuracy_provenance"], result["mode"]) == ("paper", "simulation")
    done = [request for request in record.requests if request.status == "completed"]
    expected = np.array([experiment.accuracy.prior(request.widths) for request in done])
    spread = np.sqrt(np.sum(expected * (1 - expected)))
    assert len(done) > 2000
    assert len({request.widths for request in done}) > 200
    assert abs(sum(request.correct for request in done) - expected.sum()) < 4 * spread
    narrow = simulate_experiment(experiment, "fixed:0.25,0.25,0.25,0.25", 0, engine="compiled")["accuracy"]
    assert narrow == pytest.approx(0.7030, abs=0.04)
    assert compare_results([result])["accuracy_provenance"] == "paper"


FAULTS = """
faults:
  - {kind: worker_killed, server: b, at_s: 1}
  - {kind: worker_hung, server: a, at_s: 250ms}
  - {kind: out_of_memory, server: b, start_s: 2, end_s: 3, batch: 4}
  - {kind: server_down, server: a, start_s: 2.5}
  - {kind: straggler, server: a, start_s: 1, end_s: 2, factor: 3}
supervision: {hang_s: 500ms, stuck_s: 7, backoff_s: 0, backoff_limit_s: 1, stable_s: 2, start_s: 20ms}
"""


def test_planned_faults_and_supervision_are_what_the_file_says(tmp_path: Path) -> None:
    """Servers by their place in the cluster, times in nanoseconds; the same for every seed."""
    experiment = load_experiment(write(tmp_path, SCENARIO + FAULTS))
    s = NS_PER_S
    expected = (Crash(1, s), Hang(0, s // 4), Squeeze(1, 2 * s, 3 * s, 4), Outage(0, 5 * s // 2, None))
    assert experiment.run_spec(0).faults == experiment.run_spec(1).faults == (*expected, Slowness(0, s, 2 * s, 3.0))
    assert experiment.cluster.supervision == Supervision(s // 2, 7 * s, 0, s, 2 * s, s // 50)
    plain = load_experiment(write(tmp_path))
    assert plain.cluster.supervision == Supervision()
    assert plain.run_spec(0).faults == ()


@pytest.mark.parametrize(
    ("device", "router", "micro_batches"),
    [("{}", "{}", 2), ("{kind: cuda}", "{}", 4), ("{kind: cuda}", "{outstanding_micro_batches: 3}", 3)],
)
def test_a_gpu_has_more_blocks_at_once_unless_the_file_says(
    tmp_path: Path, device: str, router: str, micro_batches: int
) -> None:
    text = SCENARIO.replace("link: 10gbe}", f"link: 10gbe, device: {device}}}", 1) + f"router: {router}\n"
    assert load_experiment(write(tmp_path, text)).cluster.router.outstanding_micro_batches == micro_batches


def test_shares_of_a_gpu_share_its_memory(tmp_path: Path) -> None:
    """Unless the file gives caps, each server may use an equal part: together no more than there is."""
    text = write_scenario(tmp_path).read_text()
    for link in ("10gbe", "{latency_s: 0.1ms, bandwidth_bytes_s: 1e9}"):
        text = text.replace(f"link: {link}", f"link: {link}, device: {{kind: cuda, sm_percent: 25}}")
    path = tmp_path / "shares.yaml"
    path.write_text(text)
    experiment = load_experiment(path)
    caps = [server.params.vram_cap_bytes for server in experiment.cluster.servers]
    assert caps == [profile.device.vram_bytes // 2 for profile in experiment.profiles]


def test_poison_and_chaos_are_drawn_from_their_own_streams(tmp_path: Path) -> None:
    """Another seed, other faults; arrivals are those of a run without; as many as was asked for; within the horizon."""
    text = SCENARIO.replace("duration_s: 4", "duration_s: 200")
    plain = load_experiment(write(tmp_path, text)).run_spec(3)
    faults = "faults: [{kind: poisoned, share: 0.1}, {kind: chaos, mean_gap_s: 0.5}, {kind: poisoned, share: 0.1}]\n"
    experiment = load_experiment(write(tmp_path, text + faults))
    first, again, other = (experiment.run_spec(seed) for seed in (3, 3, 4))
    assert (first.arrivals_ns == plain.arrivals_ns).all()
    assert first.faults == again.faults != other.faults
    poisons = [fault.requests for fault in first.faults if isinstance(fault, Poison)]
    expected = 0.1 * len(first.arrivals_ns)
    assert all(abs(len(requests) - expected) < 4 * np.sqrt(expected) for requests in poisons)
    assert poisons[0] != poisons[1]
    assert max(max(requests) for requests in poisons) < len(first.arrivals_ns)
    chaos = [fault for fault in first.faults if isinstance(fault, Crash | Hang)]
    assert abs(len(chaos) - 400) < 4 * 20
    assert [fault.at_ns for fault in chaos] == sorted(fault.at_ns for fault in chaos)
    assert chaos[-1].at_ns < first.horizon_ns
    for kind, server in itertools.product((Crash, Hang), (0, 1)):
        assert sum(isinstance(fault, kind) and fault.server == server for fault in chaos) > 60


LINKS = """
    - {name: a, profile: a.yaml, link: {latency_s: 1ms, bandwidth_bytes_s: 1e6, loss: 0.2, medium: air}}
    - {name: b, profile: b.yaml, link: measured}
"""


def test_emulated_links_are_the_simulations_own_but_for_measured_ones(tmp_path: Path) -> None:
    """The same answers with the same losses; what was measured happens by itself and is free here."""
    measured = {"latency_s": 0.5, "bandwidth_bytes_s": 1e3}
    start, end = SCENARIO.index("    - {name: a"), SCENARIO.index("  greedy:")
    text = SCENARIO[:start] + LINKS[1:] + SCENARIO[end:]
    experiment = load_experiment(write(tmp_path, text, link=measured))
    network, other = experiment.emulated_links(5), experiment.emulated_links(6)
    assert network is not None
    assert other is not None
    simulated = Simulation(experiment.cluster, experiment.run_spec(5))._network
    moves = [(-1, 0, 9000, now_ns) for now_ns in range(0, 10**9, 10**7)]
    answers = [network.transfer(*move) for move in moves]
    assert answers == [simulated.transfer(*move) for move in moves]
    assert answers != [other.transfer(*move) for move in moves]
    assert network.transfer(-1, 1, 10**9, 77) == (77, 77)
    everywhere = SCENARIO.replace("link: 10gbe", "link: measured")
    assert load_experiment(write(tmp_path, everywhere, link=measured)).emulated_links(5) is None
