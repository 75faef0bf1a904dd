"""Several models on one cluster: what follows from their being apart, and from what they have in common."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hw.networks.accuracy_table import Evaluation, load_accuracy, save_accuracy
from hw.router.run_requests import ServedNetwork
from kit.errors import InputError
from kit.random_streams import stream
from policies.router_names import make_router
from policies.router_plans import plan_of
from scenarios.executors.device_calibration import open_loop_experiment, profile_device
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.scenario_reading import load_scenario
from scenarios.learn.tune import params_of, require_possible
from scenarios.runs.fluid_bound import FluidModel, overload_of
from scenarios.runs.simulated_runs import simulate_metrics
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.simulated_cluster import Simulation
from tests import tiny
from tests.parity.compare import difference

SEGMENTS, WIDTHS = 2, (0.25, 0.5, 0.75, 1.0)
MODELS = {"small": WIDTHS[:1], "large": WIDTHS[1:]}
CLASSES = [
    {"name": "a", "model": "large", "share": 0.5, "floor": 0.7},
    {"name": "b", "model": "small", "share": 0.25},
    {"name": "c", "model": "large", "share": 0.25, "deadline_s": 0.2},
]
TEXT = """\
schema: slimsched.scenario/1
name: several
model: {accuracy: accuracy.json}
cluster:
  greedy: {batch_limit: 8, preload: all, idle_unload_s: null}
  servers:
  - {name: fast, profile: fast.yaml, link: 10gbe}
  - {name: slow, profile: slow.yaml, link: 10gbe}
router: {micro_batch_sizes: [1, 2, 4], max_batching_delay_s: 4e-3, decision_s: 0}
workload: {kind: poisson, rate_img_s: 400}
duration_s: 1
warmup_s: 100ms
"""


def write(folder: Path, models: dict[str, tuple[float, ...]] = MODELS) -> Path:
    """The scenario, its profiles and its table: of two models, or of the one that is given."""
    widths = tuple(width for model in models.values() for width in model)
    for name, speed in (("fast", 1.0), ("slow", 0.5)):
        found = tiny.profile(name, segments=SEGMENTS, widths=widths, batches=(1, 4, 8), speed=speed)
        counts = {name: len(each) for name, each in models.items()}
        found = tiny.of_models(found, **counts) if len(models) > 1 else found
        (folder / f"{name}.yaml").write_text(found.to_yaml())
    tuples = [each for one in models.values() for each in product(one, repeat=SEGMENTS)]
    shares = [0.5 + 0.1 * sum(each) for each in tuples]
    save_accuracy(
        folder / "accuracy.json",
        Evaluation(tuple(tuples), np.arange(100)[:, None] < 100 * np.array(shares), "0", "toy"),
    )
    path = folder / "several.yaml"
    path.write_text(TEXT)
    return path


def experiment(folder: Path, classes: Any = CLASSES, **changes: Any) -> Experiment:
    return make_experiment(load_scenario(write(folder), {"classes": classes, **changes}), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.mark.parametrize("name", ["random", "jsq", "sticky", "ladder", "slackfit", "lookahead", "compass"])
def test_images_of_a_class_run_at_widths_of_its_model_alone(folder: Path, name: str) -> None:
    given = experiment(folder)
    run = given.run_spec(3)
    records = [
        engine(given.cluster, run).run(make_router(name, given.context), stream(3, "router"))
        for engine in (Simulation, CompiledSimulation)
    ]
    assert difference(records[0], records[1], "record") is None
    assert plan_of(make_router(name, given.context), given.cluster.router) is not None, "it is compiled"
    allowed = [MODELS[str(each["model"])] for each in CLASSES]
    ran = [set[float](), set[float](), set[float]()]
    for request in records[0].requests:
        ran[run.class_of[request.request]] |= set(request.widths)
    assert all(widths <= set(its) for widths, its in zip(ran, allowed, strict=True))
    assert all(ran)
    assert len(records[0].requests) == len(run.arrivals_ns)
    for batch in records[0].batches:
        assert batch.previous_width == 0.0 or (batch.width in MODELS["small"]) == (
            batch.previous_width in MODELS["small"]
        )


@pytest.mark.parametrize("name", ["ladder", "compass", "slackfit"])
def test_each_model_is_served_at_its_own_widths_as_the_load_asks(folder: Path, name: str) -> None:
    """At little load the large model's widest, and at much load its narrowest: never the other's."""
    given = experiment(folder)
    for rate_img_s, wanted in ((20.0, 1.0), (12_000.0, 0.5)):
        busy = experiment(folder, **{"workload.rate_img_s": rate_img_s})
        record = CompiledSimulation(given.cluster, busy.run_spec(1)).run(
            make_router(name, given.context), stream(1, "router")
        )
        widths = [width for request in record.requests for width in request.widths if width > 0.25]
        assert np.mean(np.array(widths) == wanted) > 0.5, rate_img_s


def test_memory_is_common(folder: Path) -> None:
    """Preloaded, both models' instances are there; where one has no room, one makes room for the other."""
    given = experiment(folder)
    every = sum(int(50_000_000 * s * w) for s in (1, 2) for w in WIDTHS) + 100_000_000
    found = simulate_metrics(given, given.router("random"), "random", 0, engine="compiled")
    assert all(server["vram_peak_bytes"] >= every for server in found["servers"])
    small = {"cluster.greedy.preload": "none", "cluster.greedy.vram_cap_gb": 0.21, "classes": CLASSES}
    short = make_experiment(load_scenario(write(folder), small), folder)
    found = simulate_metrics(short, short.router("random"), "random", 0, engine="compiled")
    assert sum(server["unloads"] for server in found["servers"]) > 0
    assert {name: each["images"]["failed"] for name, each in found["classes"].items()} == {"a": 0, "b": 0, "c": 0}


def only(tmp_path: Path, name: str) -> float:
    alone = tmp_path / name
    alone.mkdir()
    path = write(alone, {name: MODELS[name]} if MODELS[name][-1] == 1.0 else MODELS)
    classes = [] if MODELS[name][-1] == 1.0 else [{"name": "b", "model": name, "share": 1.0}]
    return FluidModel(make_experiment(load_scenario(path, {"classes": classes}), alone)).capacity_img_s()


def test_of_a_mix_a_device_carries_the_harmonic_mean(tmp_path: Path) -> None:
    """Each image takes the device's time that its model takes: so do shares, and nothing else is short."""
    capacities = {name: only(tmp_path, name) for name in MODELS}
    assert capacities["small"] > 1.3 * capacities["large"]
    for share in (0.1, 0.5, 0.999):
        classes = [{"name": "a", "model": "large", "share": share}, {"name": "b", "model": "small", "share": 1 - share}]
        found = FluidModel(experiment(tmp_path, classes)).capacity_img_s()
        assert found == pytest.approx(1 / (share / capacities["large"] + (1 - share) / capacities["small"]), rel=1e-3)


def test_no_router_carries_more_than_the_bound(folder: Path) -> None:
    most = FluidModel(experiment(folder)).capacity_img_s()
    assert overload_of(experiment(folder, **{"workload.rate_img_s": 0.99 * most})) is None
    assert overload_of(experiment(folder, **{"workload.rate_img_s": 1.01 * most})) is not None
    flooded = experiment(folder, **{"workload.rate_img_s": 3 * most, "end": "cut"})
    found = simulate_metrics(flooded, flooded.router("ladder"), "ladder", 0, engine="compiled")
    assert 0.3 * most < found["throughput_img_s"] < most


def test_the_bound_keeps_each_classs_floor_with_its_own_models_tuples(folder: Path) -> None:
    """The small model knows 55 % at most, so the large one's images can't help it, nor it them."""
    given = experiment(folder)
    free, held = FluidModel(given), FluidModel(given, classes=given.scenario.classes)
    assert held.capacity_img_s() == pytest.approx(FluidModel(given, classes=given.scenario.classes).capacity_img_s())
    assert held.capacity_img_s() < 0.95 * free.capacity_img_s()


def test_executors_make_room_for_the_largest_input_of_any_model() -> None:
    served = ServedNetwork.of_sizes(WIDTHS, 100, [[4000, 400, 400, 400], [8, 8, 8, 8]])
    assert served.largest_input_bytes == 4000
    assert ServedNetwork.of_sizes(WIDTHS, 100, [[8] * 4, [4000] * 4]).largest_input_bytes == 100, "nobody takes answers"


def test_a_devices_check_serves_each_model(folder: Path) -> None:
    profile = tiny.profile("gpu", segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 8))
    found = tiny.of_models(profile, small=1, large=3)
    checked = open_loop_experiment(found, profile_device(found, "p.yaml"), seed=1)
    assert checked.cluster.router.models == (MODELS["small"], MODELS["large"])
    assert checked.cluster.router.model_shares == (0.5, 0.5)


@pytest.mark.parametrize(
    ("models", "given", "line"),
    [
        (MODELS, None, "several: classes: missing; the network holds the models small, large: name one"),
        (MODELS, {}, "several: classes.0.model: missing; the network holds the models small, large"),
        (MODELS, {"model": "medium"}, "several: classes.0.model: medium; the network holds the models"),
        (
            MODELS,
            {"model": "small", "floor": 0.6},
            r"classes.0.floor: is 0.6.*the nearest is \[0.25, 0.25\] with 0.56",
        ),
        ({"large": WIDTHS[1:]}, {"model": "large"}, "large; the network is one: leave it out, or join several"),
    ],
)
def test_class_of_a_model_that_the_network_lacks_is_refused(tmp_path: Path, models: Any, given: Any, line: str) -> None:
    classes = [] if given is None else [{"name": "a", "share": 1, **given}]
    with pytest.raises(InputError, match=line):
        make_experiment(load_scenario(write(tmp_path, models), {"classes": classes}), tmp_path)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("infaas", "infaas supports one model, here are 2; take ladder, compass"),
        ("milp", "milp supports one model, here are 2; take ladder, compass"),
        ("fixed:1,1", r"\[1.0, 1.0\] is of one model, here are 2; take ladder, compass"),
    ],
)
def test_a_router_that_knows_one_model_is_refused(folder: Path, name: str, line: str) -> None:
    given = experiment(folder)
    with pytest.raises(InputError, match=line):
        given.router(name)
    with pytest.raises(InputError, match="a rule is tuned for one model, here are 2"):
        require_possible(given, "ladder", params_of(given))


def test_a_table_needs_every_tuple_of_each_model(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "accuracy.json"
    tuples = load_accuracy(path).tuples
    assert len(tuples) == 1 + 9
    raw = yaml.safe_load(path.read_text())
    assert raw["tuples"][4] == [0.75, 0.5]
    table = Evaluation(tuples[:4] + tuples[5:], np.ones((100, 9), np.bool_), "0", "toy")
    save_accuracy(path, table)
    with pytest.raises(
        InputError, match=r"1 of the 3\^2 combinations of \[0.5, 0.75, 1.0\] are missing, first \[0.75, 0.5\]"
    ):
        load_accuracy(path)
