"""For which cluster a router is: what its file says, and what is told where it is another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.scenario_reading import load_scenario
from tests.scenarios.files import write_scenario

WIDTHS = (0.5, 1.0)
CONFIG = RouterConfig(2, WIDTHS, (((True, True),) * 2,) * 2)
DEVICES = ("RTX 2080 Ti", "GTX 980 Ti")
SPEC = PolicySpec.of(CONFIG, (250.0, 250.0), DEVICES)


def saved(path: Path, spec: PolicySpec, deterministic: bool = False) -> Path:
    sizes = (spec.observation.size, 4, sum(spec.head_sizes))
    weights = {
        "trunk.0.weight": np.zeros((4, sizes[0]), np.float32),
        "trunk.0.bias": np.zeros(4, np.float32),
        "heads.weight": np.zeros((sizes[2], 4), np.float32),
        "heads.bias": np.zeros(sizes[2], np.float32),
    }
    PPORouter(spec, weights, deterministic=deterministic).save(path)
    return path


def test_policy_spec_reads_back_from_json_unchanged() -> None:
    assert PolicySpec.from_json(SPEC.to_json()) == SPEC
    with pytest.raises(ValueError, match="2 servers, but 1 devices"):
        PolicySpec.of(CONFIG, (250.0, 250.0), ("RTX 2080 Ti",))


def test_waits_are_told_only_by_a_router_that_has_them(tmp_path: Path) -> None:
    """One without them has the file that it had, and never holds; a file with wrong ones is refused."""
    assert "batching_delays_s" not in SPEC.to_json()
    holding = replace(SPEC, batching_delays_s=(0.01, 0.02))
    assert PolicySpec.from_json(holding.to_json()) == holding
    assert holding.head_sizes == (*SPEC.head_sizes, 3)
    assert PPORouter.load(saved(tmp_path / "router.safetensors", holding), CONFIG).spec == holding
    with pytest.raises(ValueError, match=r"batching_delays_s: .* must ascend"):
        PolicySpec.from_json(holding.to_json().replace("0.02", "0.001"))


def test_every_difference_is_named() -> None:
    other = RouterConfig(3, (0.5, 0.75), (((True, True),) * 3,), micro_batch_sizes=(1, 2))
    with pytest.raises(InputError, match="another cluster") as caught:
        SPEC.require(other, "router.safetensors")
    for part in (
        "servers: expected 1, found 2",
        "segments: expected 3, found 2",
        "expected [0.5, 0.75]",
        "[1, 2], fou",
    ):
        assert part in str(caught.value)
    assert "train a router for this cluster" in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "is_same"),
    [
        (DEVICES, True),
        (("NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce GTX 980 Ti"), True),
        ((), True),
        (DEVICES[::-1], False),
        (("RTX 2080", "GTX 980"), True),  # all their words agree: as near as names can tell
        (("RTX 2080 Ti", "RTX 2080 Ti"), False),
    ],
)
def test_devices_by_their_names_and_places(devices: tuple[str, ...], is_same: bool) -> None:
    """Vendors' words don't count, the order does; names that are not known are held against nothing."""
    replace(SPEC, devices=()).require(CONFIG, "router.safetensors", devices)
    if is_same:
        SPEC.require(CONFIG, "router.safetensors", devices)
        return
    expected = f"in this order: expected {', '.join(devices)}, found RTX 2080 Ti, GTX 980 Ti"
    with pytest.raises(InputError, match=expected):
        SPEC.require(CONFIG, "router.safetensors", devices)


def test_a_scenario_refuses_a_router_of_other_devices(tmp_path: Path) -> None:
    """And takes one of its own, which decides as its file says whatever the scenario's own router does."""
    experiment = make_experiment(load_scenario(write_scenario(tmp_path)), tmp_path)
    limits_w = tuple(profile.power.cap_w for profile in experiment.profiles)
    mine = PolicySpec.of(experiment.cluster.router, limits_w, experiment.device_names)
    assert experiment.device_names == ("toy", "toy")
    for is_greedy in (False, True):
        router = experiment.router(str(saved(tmp_path / "ppo.safetensors", mine, is_greedy)))
        assert isinstance(router, PPORouter)
        assert router.deterministic == is_greedy
    trained = experiment.router("ppo", tmp_path)
    assert isinstance(trained, PPORouter)
    assert trained.deterministic == experiment.scenario.training.deterministic
    with pytest.raises(InputError, match="expected toy, toy, found toy, A100"):
        experiment.router(str(saved(tmp_path / "other.safetensors", replace(mine, devices=("toy", "A100")))))
