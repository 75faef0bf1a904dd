"""What the benchmarks of speed share: turns, and that what is timed as served computes what the whole network does."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from benchmarks.speed.harness import in_turns
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SLIMRESNETS, SlimResNet
from hw.worker.instances import Instances
from policies.vocabulary import IMAGE


def test_turns_alternate_and_ratios_are_of_a_round() -> None:
    """A machine that slows down from round to round slows all alike; the sweep that warms up counts for nothing."""
    ran: list[str] = []
    now_s, slower = [0.0], count(1)

    def pass_of(name: str, cost_s: float) -> None:
        ran.append(name)
        now_s[0] += cost_s * next(slower)

    candidates = {"a": lambda: pass_of("a", 1.0), "b": lambda: pass_of("b", 2.0)}
    turns = in_turns(candidates, rounds=2, turn_s=0.0, clock=lambda: now_s[0])
    assert ran == ["a", "b"] * 3
    assert turns["a"].passes_s == (3.0, 5.0)
    assert turns["b"].passes_s == (8.0, 12.0)
    assert turns["b"].over(turns["a"]).median == pytest.approx((8 / 3 + 12 / 5) / 2)


def test_the_one_piece_is_what_serves_and_the_plain_stack_has_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.speed.slimming import FULL, OpenedNetwork, plain_stack  # opens torchvision

    model, device = SlimResNet(SLIMRESNETS["slimresnet-tiny"]), DeviceSpec("cpu")
    place = torch.device("cpu")
    weights = Instances(model, None, device, place)  # type: ignore[arg-type]
    stand = OpenedNetwork(
        model, device, place, {(s, FULL): weights.make(s, FULL) for s in range(1, model.spec.segments + 1)}
    )
    x = torch.randn(3, *model.activation_shape(0, IMAGE))
    with torch.inference_mode():
        assert stand.compute(x).shape == plain_stack(model.config).eval()(x).shape
        assert stand.served(range(1, model.spec.segments + 1), FULL, FULL, 3)() is None
