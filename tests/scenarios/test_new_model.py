"""What may take the place of weights that serve, and what is refused in a line."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hw.frontend.connections import Journal
from hw.frontend.inference_protocol import Canary
from hw.networks.accuracy_table import Evaluation, PaperTable, save_accuracy
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile, save_model
from hw.router.interventions import NewModel
from kit.checkpoint import header
from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.vocabulary import ModelChanged
from scenarios.job.serve_stage import Candidate, ModelOrders, Trial, canary_servers, read_new_model
from scenarios.runs.operator_control import Steering
from tests.hw.tiny import TINY, tiny_model

TUPLES = tuple(product(TINY.widths, repeat=TINY.segments))


def table(version: str, **changes: Any) -> Evaluation:
    known = Evaluation(TUPLES, np.ones((100, len(TUPLES)), bool), version, "digits")
    return replace(known, **changes)


@pytest.fixture
def serving(tmp_path: Path) -> ModelFile:
    save_model(tmp_path / "serving.safetensors", tiny_model(), "tiny", {})
    return ModelFile(tmp_path / "serving.safetensors")


@pytest.fixture
def experiment(serving: ModelFile) -> Any:
    evaluation = table(header(serving.path)["hash"])
    cluster = SimpleNamespace(backend="local")
    return SimpleNamespace(accuracy=SimpleNamespace(evaluation=evaluation), scenario=SimpleNamespace(cluster=cluster))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Other weights of the same network, and their accuracies."""
    (tmp_path / "new").mkdir()
    found = tmp_path / "new" / "model.safetensors"
    torch.manual_seed(5)
    save_model(found, SlimResNet(TINY), "tiny", {})
    save_accuracy(found.with_name("accuracy.json"), table(header(found)["hash"]))
    return found


def refusal(path: Path, serving: ModelFile, experiment: Any) -> str:
    with pytest.raises(InputError) as found:
        read_new_model(path, serving, experiment)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_other_weights_with_their_accuracies_may_serve(path: Path, serving: ModelFile, experiment: Any) -> None:
    version, found = read_new_model(path, serving, experiment)
    assert version == found.hash == header(path)["hash"]


def test_a_wrong_file_is_told(path: Path, serving: ModelFile, experiment: Any) -> None:
    """Not there, cut off, of numbers that are none, of another network, or what serves already."""
    assert "these weights serve already" in refusal(serving.path, serving, experiment)
    assert "absent.safetensors" in refusal(path.with_name("absent.safetensors"), serving, experiment)
    cut, wider = path.with_name("cut.safetensors"), path.with_name("wider.safetensors")
    cut.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(cut, serving, experiment)
    save_model(wider, SlimResNet(replace(TINY, classes=TINY.classes + 1)), "tiny", {})
    assert "is of another network than what serves" in refusal(wider, serving, experiment)
    broken, found = tiny_model(), path.with_name("nan.safetensors")
    with torch.no_grad():
        next(broken.parameters()).view(-1)[0] = torch.nan
    save_model(found, broken, "tiny", {})
    assert "holds numbers that are not finite" in refusal(found, serving, experiment)


def test_new_model_with_wrong_or_missing_accuracy_file_is_refused(
    path: Path, serving: ModelFile, experiment: Any
) -> None:
    beside, version = path.with_name("accuracy.json"), header(path)["hash"]
    for wrong in (table("0123"), PaperTable(TUPLES, (0.5,) * len(TUPLES), "digits")):
        save_accuracy(beside, wrong)
        assert f"accuracy.json: model: is not of {path} ({version})" in refusal(path, serving, experiment)
    save_accuracy(beside, table(version, dataset="others"))
    assert "must be digits, with the widths that serve" in refusal(path, serving, experiment)
    beside.unlink()
    assert "accuracy.json" in refusal(path, serving, experiment)


def cluster(rates: dict[int, float], devices: list[int], fits: list[tuple[bool, bool]]) -> Any:
    """An experiment of servers on devices; by server, which of two segments it can hold."""
    config = RouterConfig(2, (1.0,), tuple(tuple((can,) for can in fit) for fit in fits))
    servers = [SimpleNamespace(device=device) for device in devices]
    costs = SimpleNamespace(image_s=lambda server, key: 0.5 / rates[devices[server]])
    return SimpleNamespace(cluster=SimpleNamespace(router=config, servers=servers), costs=costs)


@pytest.mark.parametrize(
    ("rates", "devices", "lacking", "share", "chosen"),
    [
        ({0: 1.0, 1: 1.0}, [0, 1], {}, 0.1, (0,)),
        ({0: 8.0, 1: 1.0, 2: 1.0}, [0, 1, 2], {}, 0.1, (1,)),
        ({0: 8.0, 1: 1.0, 2: 1.0}, [0, 1, 2], {}, 0.5, (0,)),
        ({0: 1.0, 1: 1.0, 2: 1.0}, [0, 1, 2], {}, 0.9, (0, 1)),  # one is left, at any share
        ({0: 1.0, 1: 3.0}, [0, 0, 1], {}, 0.2, (0, 1)),  # servers of one device change together
        ({0: 1.0, 1: 2.0}, [0, 1], {0: (True, False)}, 0.2, None),  # one can't hold all, the other is needed for that
        ({0: 1.0, 1: 2.0, 2: 4.0}, [0, 1, 2], {0: (True, False)}, 0.1, (1,)),
        ({0: 1.0}, [0, 0], {}, 0.1, None),
    ],
)
def test_a_canary_gets_the_devices_nearest_to_its_share(
    rates: dict[int, float], devices: list[int], lacking: Any, share: float, chosen: tuple[int, ...] | None
) -> None:
    """Each can hold the network, and so can the others; if there are none such, that is said in a line."""
    found = cluster(rates, devices, [lacking.get(index, (True, True)) for index in range(len(devices))])
    if chosen is None:
        with pytest.raises(InputError, match="needs a device that can hold the whole network"):
            canary_servers(found, share)
    else:
        assert canary_servers(found, share) == chosen


def test_while_a_canary_is_on_nothing_else_changes_the_model_or_the_router(tmp_path: Path, experiment: Any) -> None:
    """And without one there is none to end; both are refused with the remedy."""
    run: Any = SimpleNamespace(model_to_serve=None)
    orders = ModelOrders(run, experiment, Journal(lambda _: None, as_json=False))
    for steering in (Steering(promote=True), Steering(take_back=True)):
        with pytest.raises(InputError, match=r"no canary is on; `--canary FILE` begins one"):
            orders.ask(steering, "jsq", 0.0)
    for steering in (Steering(canary="x"), Steering(model="x"), Steering(router="jsq")):
        orders.require_no_trial(steering)
    candidate: Any = SimpleNamespace(version="12ab")
    orders._now = replace(orders._now, trial=Trial(candidate, (1,), None, ""))  # type: ignore[arg-type]
    for steering in (Steering(canary="x"), Steering(model="x"), Steering(router="jsq")):
        with pytest.raises(InputError, match=r"a canary is on \(12ab\); first `--promote` it, or `--take-back`"):
            orders.require_no_trial(steering)
    orders.require_no_trial(Steering(floor=0.5))
    orders.ask(Steering(promote=True), "jsq", 0.0)
    assert orders.is_busy


def test_a_canary_is_begun_promoted_and_taken_back_by_updates_of_some_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names the servers whose weights change, and what clients get from then on."""
    first, second = (cluster({0: 1.0, 1: 3.0}, [0, 1], [(True, True)] * 2) for _ in "ab")
    for experiment, version in ((first, "a"), (second, "b")):
        experiment.accuracy = SimpleNamespace(evaluation=SimpleNamespace(hash=version))
        experiment.cluster.router = replace(experiment.cluster.router, accuracies=(ord(version) / 200,))
        experiment.cluster.servers = [SimpleNamespace(device=device, name=f"cpu{device}") for device in range(2)]
        experiment.scenario = SimpleNamespace(classes=[SimpleNamespace(name="gold", share=0.5)])
    files: Any = {"a": SimpleNamespace(path="a"), "b": SimpleNamespace(path="b")}
    told: list[Any] = []
    folder = SimpleNamespace(path=Path())
    run: Any = SimpleNamespace(
        model_to_serve=files["a"], scenario=first.scenario, say=told.append, folder=folder, made=lambda kind: kind
    )
    orders = ModelOrders(run, first, Journal(told.append, as_json=False))
    candidate: Any = Candidate(files["b"], "b", second, "policy of b")  # type: ignore[arg-type]
    monkeypatch.setattr(orders, "_candidate", lambda *_: candidate)
    monkeypatch.setattr("scenarios.job.serve_stage.endless_policy", lambda *_, **__: "promoted")
    servers: Any = SimpleNamespace(servers=[0, 1], starts_of=lambda file: tuple((file.path, each) for each in range(2)))
    frontend: Any = SimpleNamespace(serve_model=lambda *now: told.append(now))

    def follow(steering: Steering) -> Any:
        orders.ask(steering, "jsq", 0.0)
        assert orders.is_busy
        found: list[NewModel] = []
        while not found:
            found += orders.orders(servers, frontend, "jsq")
        assert orders.is_busy
        found[0].took_over()
        assert not orders.is_busy
        return found[0]

    tops = first.cluster.router.accuracies, second.cluster.router.accuracies
    canary = Canary("b", tops[1], 0.4, 0)
    for end in (Steering(take_back=True), Steering(promote=True)):
        begun = follow(Steering(canary="b.safetensors", share=0.4, service_class="gold"))
        assert (begun.starts, begun.changed) == ({0: ("b", 0)}, ModelChanged(tops[0], (0,), tops[1]))
        assert (begun.policy, begun.canary) == (None, "policy of b")
        assert told[-2:] == [
            ("a", tops[0], canary),
            "serve: the model b serves 40 % of class gold, on cpu0, from now on",
        ]
        ended = follow(end)
        assert ended.canary is None
        if end.promote:
            assert (ended.starts, ended.changed, ended.policy) == ({1: ("b", 1)}, ModelChanged(tops[1]), "promoted")
            assert told[-2][:2] == ("b", tops[1])
        else:
            assert (ended.starts, ended.changed, ended.policy) == ({0: ("a", 0)}, ModelChanged(tops[0]), None)
            assert told[-2:] == [("a", tops[0], None), "serve: the model a serves all requests from now on"]
    assert (orders.experiment, orders.trial) == (second, None)
    orders.ask(Steering(canary="c.safetensors", service_class="tin"), "jsq", 0.0)
    while orders.is_busy:
        assert list(orders.orders(servers, frontend, "jsq")) == []
    assert "--class: found 'tin', expected gold; the model stays as it was" in told[-1]
