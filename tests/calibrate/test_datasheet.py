"""Datasheet profiles: a roofline that never goes the wrong way."""

from __future__ import annotations

import dataclasses
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from torchvision.models import get_model

from calibrate.datasheet import (
    CONTEXT_SHARES,
    GPUS,
    TILE_OUTPUTS,
    ForwardTimes,
    Gpu,
    _outputs,
    find_gpu,
    forward_times,
    synthesize,
)
from calibrate.device_identity import sensor_model
from calibrate.measurement_plan import KeyCost, costs_of
from hw.device_settings import DeviceSpec
from hw.networks.network_files import Network
from hw.networks.network_tracing import structure_of
from hw.networks.slimmable import SlimmedNetwork
from hw.telemetry import NvmlSensor
from hw.telemetry.nvml import TIMINGS
from kit.errors import InputError
from policies.vocabulary import Provenance
from sim.device_profile import LatencyCurve, Profile
from tests.hw.fake_nvml import AMPERE, HOPPER, MAXWELL, TURING, VOLTA, FakeNvml, FakeNvmlDevice, Handle

COSTS = costs_of(Network("slimresnet18").build(), "slimresnet18", "0")
PROFILES = {name: synthesize(GPUS[name], COSTS, 128) for name in GPUS}


@pytest.mark.parametrize("name", GPUS)
def test_slower_with_batch_width_and_previous_width(name: str) -> None:
    curves = {(c.segment, c.width, c.previous_width): c.mean_s for c in PROFILES[name].latency}
    for latency_s in curves.values():
        assert list(latency_s) == sorted(latency_s)
    for (s, w, p), (t, v, q) in product(curves, curves):
        if s == t and w <= v and p <= q:
            assert all(less <= more for less, more in zip(curves[s, w, p], curves[t, v, q], strict=True))


def test_a_faster_gpu_is_not_slower() -> None:
    """More arithmetic, in all and in each multiprocessor, and more bandwidth: no key takes longer."""

    def published(gpu: Gpu) -> tuple[float, ...]:
        return gpu.peak_flop_s, gpu.peak_flop_s / gpu.multiprocessors, gpu.bandwidth_bytes_s

    compared = 0
    for first, second in permutations(GPUS, 2):
        if all(a <= b for a, b in zip(published(GPUS[first]), published(GPUS[second]), strict=True)):
            compared += 1
            for slow, fast in zip(PROFILES[first].latency, PROFILES[second].latency, strict=True):
                assert all(y <= x for x, y in zip(slow.mean_s, fast.mean_s, strict=True))
    assert compared >= 8


@pytest.mark.parametrize("name", GPUS)
def test_power_stays_between_idle_and_tdp(name: str) -> None:
    """Solo power rises with the batch and comes to the TDP where arithmetic or memory is saturated."""
    profile = PROFILES[name]
    reached = 0.0
    for curve in profile.latency:
        powers = _powers_w(profile, curve)
        assert all(x <= y * 1.0002 for x, y in pairwise(powers))  # five digits are kept
        assert powers[-1] <= profile.power.cap_w * 1.0001
        reached = max(reached, powers[-1])
    assert reached > 0.99 * profile.power.cap_w


def test_power_is_linear_in_images_a_second_below_three_quarters_of_the_peak() -> None:
    """As published (within 7 %): the line from idle through the point nearest to half the peak rate fits the others.

    But for single images: there reading the weights may take longer than the arithmetic.
    """
    profile = PROFILES["rtx-2080-ti"]
    judged = 0
    for curve in profile.latency:
        rates = np.asarray(curve.batches) / np.asarray(curve.mean_s)
        above_w = np.asarray(_powers_w(profile, curve)) - profile.power.context_idle_w
        middle = int(np.argmin(abs(rates / rates.max() - 0.5)))
        line_w = profile.power.context_idle_w + above_w[middle] / rates[middle] * rates
        lower = (rates < 0.75 * rates.max()) & (np.asarray(curve.batches) > 1)
        error = abs(line_w / (profile.power.context_idle_w + above_w) - 1)[lower]
        judged += len(error)
        assert error.max() < 0.07
    assert judged > 50


def test_an_architecture_has_its_own_rate_of_arithmetic() -> None:
    """Depthwise convolutions move many bytes and launch many kernels for their arithmetic: a tenth of the rate."""

    def rate(name: str) -> float:
        model = SlimmedNetwork(structure_of(get_model(name, num_classes=100).eval(), (3, 64, 64), (0.5, 1.0)))
        costs = costs_of(model, name, "0")
        keys = [(s, 1.0, 0.0 if s == 1 else 1.0) for s in range(1, model.spec.segments + 1)]
        seconds = sum(
            forward_times(GPUS["rtx-2080-ti"], costs.keys[key], _outputs(costs, *key[:2]), 64).latency_s for key in keys
        )
        return 64 * sum(costs.keys[key].macs for key in keys) / seconds

    assert rate("mobilenet_v3_small") < 0.1 * rate("resnet18")


def test_the_trace_that_the_bend_was_taken_from() -> None:
    """The Zeus trace of a Quadro RTX 6000 (260 W): 63 to 70 ms from batch 8 to 128, while power goes from 71 to 225 W.

    Two equations, two unknowns: the power at rate 0 (ready) and the share of the time that the GPU works.
    """
    rates = 8 / 0.063, 128 / 0.070
    w_per_rate = (225 - 71) / (rates[1] - rates[0])
    ready_w = 71 - w_per_rate * rates[0]
    assert ready_w - 15 == pytest.approx(CONTEXT_SHARES["GDDR"] * 260, rel=0.1)
    busy_s = 0.070 * (225 - ready_w) / (260 - ready_w)
    assert ForwardTimes(launch_s=0.063, work_s=busy_s, busy_s=busy_s).latency_s == pytest.approx(0.070, rel=0.01)


def test_a_batch_that_leaves_multiprocessors_without_a_tile_is_no_faster_for_more_of_them() -> None:
    """The same arithmetic spread over twice the multiprocessors: half as fast for one tile, equal for many."""
    narrow = Gpu("narrow", 40, 1e13, 1e15, 1, 100.0, 10.0, "Turing", "HBM")
    wide = dataclasses.replace(narrow, multiprocessors=80)
    cost = KeyCost(macs=10**9, weight_bytes=1, moved_bytes=1, kernels=1)
    one, two = (forward_times(gpu, cost, TILE_OUTPUTS, 1) for gpu in (narrow, wide))
    assert two.busy_s == pytest.approx(2 * one.busy_s)
    assert two.work_s == one.work_s
    assert forward_times(narrow, cost, TILE_OUTPUTS, 80).busy_s == forward_times(wide, cost, TILE_OUTPUTS, 80).busy_s


def _powers_w(profile: Profile, curve: LatencyCurve) -> list[float]:
    """Power of a solo loop, at each batch size."""
    return [
        profile.power.context_idle_w + k * b / latency
        for k, b, latency in zip(curve.energy_j_per_image, curve.batches, curve.mean_s, strict=True)
    ]


@pytest.mark.parametrize("name", GPUS)
def test_the_sensor_is_what_a_calibration_would_state(name: str) -> None:
    """A board of the same architecture: one table of sensors, and no GPU of an architecture that nobody measured."""
    assert GPUS[name].architecture in TIMINGS
    make = {make.architecture.title(): make for make in (MAXWELL, VOLTA, TURING, AMPERE, HOPPER)}
    nvml_device = FakeNvmlDevice(make.get(GPUS[name].architecture, AMPERE))  # Ada's sensor is as Ampere's
    sensor = PROFILES[name].sensor
    assert sensor == sensor_model(
        DeviceSpec(kind="cuda"),
        sensor.period_s,
        NvmlSensor(FakeNvml(nvml_device), Handle(nvml_device), nvml_device.now_ns),
    )


def test_the_label_is_datasheet_and_it_survives_a_file() -> None:
    """No errors are stated, none are promised, and the text reads back."""
    profile = PROFILES["rtx-2080-ti"]
    assert profile.provenance == Provenance.DATASHEET
    assert profile.errors == ()
    assert Profile.from_yaml(profile.to_yaml(), "synth.yaml") == profile
    assert len(profile.latency) == 52


def test_names_are_forgiving_and_unknown_ones_are_refused() -> None:
    assert find_gpu("NVIDIA GeForce RTX 2080 Ti").name == "RTX 2080 Ti"
    assert find_gpu("V100").name == "V100 SXM2"
    assert find_gpu("h100-sxm").name == "H100 SXM"
    with pytest.raises(InputError, match="did you mean 'rtx-2080-ti'"):
        find_gpu("rtx 2080")
    with pytest.raises(InputError, match="at least 1, found 0"):
        synthesize(GPUS["t4"], COSTS, 0)
