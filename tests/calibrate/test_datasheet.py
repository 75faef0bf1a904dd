"""Datasheet profiles: a roofline that never goes the wrong way."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from calibrate.costs import costs_of
from calibrate.datasheet import GPUS, find_gpu, synthesize
from hw.networks import Network
from policies.errors import InputError
from policies.vocabulary import Provenance
from sim.profile import Profile

COSTS = costs_of(Network("slimresnet18").build(), "slimresnet18", "0")
PROFILES = {name: synthesize(name, COSTS, 128) for name in GPUS}


@pytest.mark.parametrize("name", GPUS)
def test_slower_with_batch_width_and_previous_width(name: str) -> None:
    """More work is never faster."""
    curves = {(c.segment, c.width, c.previous_width): c.mean_s for c in PROFILES[name].latency}
    for latency_s in curves.values():
        assert list(latency_s) == sorted(latency_s)
    for (s, w, p), (t, v, q) in product(curves, curves):
        if s == t and w <= v and p <= q:
            assert all(less <= more for less, more in zip(curves[s, w, p], curves[t, v, q], strict=True))


def test_a_faster_gpu_is_not_slower() -> None:
    """More arithmetic and more bandwidth: no key takes longer."""
    for first, second in product(GPUS, GPUS):
        a, b = GPUS[first], GPUS[second]
        if a.peak_flop_s <= b.peak_flop_s and a.bandwidth_bytes_s <= b.bandwidth_bytes_s:
            for slow, fast in zip(PROFILES[first].latency, PROFILES[second].latency, strict=True):
                assert all(y <= x for x, y in zip(slow.mean_s, fast.mean_s, strict=True))


@pytest.mark.parametrize("name", GPUS)
def test_power_stays_between_idle_and_tdp(name: str) -> None:
    """Solo power rises with the batch and reaches the TDP where arithmetic or memory is saturated."""
    profile = PROFILES[name]
    reached = 0.0
    for curve in profile.latency:
        powers = [
            profile.power.context_idle_w + k * b / latency
            for k, b, latency in zip(curve.energy_j_per_image, curve.batches, curve.mean_s, strict=True)
        ]
        assert all(x <= y + 1e-9 for x, y in pairwise(powers))
        assert powers[-1] <= profile.power.cap_w + 1e-9
        reached = max(reached, powers[-1])
    assert reached == pytest.approx(profile.power.cap_w, rel=1e-6)


def test_the_label_is_datasheet_and_it_survives_a_file() -> None:
    """No errors are stated, none are promised, and the text reads back."""
    profile = PROFILES["rtx-2080-ti"]
    assert profile.provenance == Provenance.DATASHEET
    assert profile.errors == ()
    assert Profile.from_yaml(profile.to_yaml(), "synth.yaml") == profile
    assert len(profile.latency) == 52


def test_names_are_forgiving_and_unknown_ones_are_refused() -> None:
    """The nearest known name is offered."""
    assert find_gpu("NVIDIA GeForce RTX 2080 Ti").name == "RTX 2080 Ti"
    with pytest.raises(InputError, match="did you mean 'rtx-2080-ti'"):
        find_gpu("rtx 2080")
    with pytest.raises(InputError, match="at least 1, found 0"):
        synthesize("t4", COSTS, 0)
