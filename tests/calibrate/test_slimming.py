"""What slimming gains: contenders take turns, ratios follow from their times, and what is timed is what serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrate import slimming
from calibrate.slimming import (
    COMPILED,
    FULL,
    GRAPH,
    ONE_PIECE,
    PACKED,
    PLAIN,
    SERVED,
    VIEWS,
    Effort,
    PlainStack,
    Race,
    Slimming,
    Spread,
    Stand,
    full_width_of,
    measure_slimming,
    points_of,
    race,
    saved_share,
)
from hw.device import DeviceSpec
from hw.devices.instances import serve
from hw.networks.counting import counted
from hw.networks.rows import Row, gather
from hw.networks.slimmable import SegmentInstance, SlimmableModel
from hw.networks.slimresnet import PRESETS, SlimResNet
from kit.errors import InputError, WorkError
from tests.hw.worlds import TINY, TINY_SPEC, TinyNet, tiny_model
from tests.scenarios.own_network import DigitsPerceptron

A, B = ("a", 1.0), ("b", 1.0)
HASTE = Effort(rounds=2, turn_s=0.0)


class Clock:
    """Time that passes only while a contender runs."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ran: list[str] = []

    def __call__(self) -> int:
        return self.now_ns

    def takes(self, name: str, *seconds: float) -> Callable[[], None]:
        """A contender whose passes take these, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.ran.append(name)
            self.now_ns += round(1e9 * (left.pop(0) if len(left) > 1 else left[0]))

        return run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[DeviceSpec]:
    """The devices that were opened, without pinning the process that runs the tests."""
    devices: list[DeviceSpec] = []

    def open_device(device: DeviceSpec) -> torch.device:
        devices.append(device)
        return torch.device("cpu")

    monkeypatch.setattr(slimming, "open_device", open_device)
    return devices


# ------------------------------------------------------------------------------------------------------------- timing


def test_contenders_take_turns() -> None:
    """A sweep to warm up, which does not count, then round by round, each until its turn is long enough."""
    clock = Clock()
    contenders = {A: clock.takes("a", 9.0, 1.0), B: clock.takes("b", 7.0, 0.5)}
    rounds: list[None] = []
    found = race(contenders, Effort(3, turn_s=1.0, slow_s=99.0), clock, lambda: rounds.append(None))
    assert "".join(clock.ran) == "ab" + 3 * "abb"
    assert found.turns_s == {A: (1.0, 1.0, 1.0), B: (0.5, 0.5, 0.5)}
    assert found.rounds == 3
    assert len(rounds) == 4


def test_a_turn_is_its_median_pass() -> None:
    """One pass that was held up is not what a turn took."""
    clock = Clock()
    found = race({A: clock.takes("a", 9.0, 1.0, 1.0, 40.0)}, Effort(1, turn_s=9.0), clock)  # 9 is the warm-up
    assert found.turns_s == {A: (1.0,)}


def test_slow_contenders_have_fewer_rounds() -> None:
    """Where one pass of each takes longer than `slow_s`; never more rounds than were asked for."""
    clock = Clock()
    slow = {A: clock.takes("a", 6.0), B: clock.takes("b", 6.0)}
    assert race(slow, Effort(5, 0.0, slow_s=10.0, few_rounds=3), clock).rounds == 3
    assert race(slow, Effort(2, 0.0, slow_s=10.0, few_rounds=3), clock).rounds == 2
    assert race(slow, Effort(5, 0.0, slow_s=12.0, few_rounds=3), clock).rounds == 5
    cold = {A: clock.takes("a", 60.0, 6.0, 40.0, 6.0), B: clock.takes("b", 6.0)}
    assert race(cold, Effort(5, 0.0, slow_s=12.0, few_rounds=3), clock).rounds == 5  # a hitch makes nothing slow


def test_ratios_are_taken_within_a_round() -> None:
    """A device that slows down by half changes every latency, and no ratio."""
    found = Race({A: (1.0, 2.0, 1.0, 2.0, 4.0), B: (2.0, 4.0, 2.0, 4.0, 4.0)})
    assert found.latency_s(A) == 2.0
    assert found.latency_s(B) == 4.0
    assert found.ratio(A, B) == Spread(0.5, 0.5, 0.5)
    assert found.ratio(B, A).median == 2.0
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0)


# --------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    "ratio, ideal, share",
    [(0.25, 0.25, 1.0), (0.625, 0.25, 0.5), (1.0, 0.25, 0.0), (1.5, 0.5, -1.0), (0.5, 1.0, None), (0.5, None, None)],
)
def test_the_share_of_the_ideal_saving(ratio: float, ideal: float | None, share: float | None) -> None:
    """All of it, half, none, less than none; and nothing is said where nothing was promised."""
    assert saved_share(ratio, ideal) == share


def test_points_of_given_times() -> None:
    """The ideal is by operations at uniform width, and every way is set against the served full width."""
    model = tiny_model()
    found = Race({(SERVED, 0.5): (3.0, 3.0), (VIEWS, 0.5): (2.0, 4.0), (SERVED, FULL): (4.0, 4.0), A: (1.0, 1.0)})
    narrow, full = points_of(model, 2, 8, found, rivals=["a"])
    ideal = model.cost(2, 0.5, 0.5).macs / model.cost(2, 1.0, 1.0).macs
    assert (narrow.segment, narrow.width, narrow.batch, narrow.rounds) == (2, 0.5, 8, 2)
    assert narrow.ideal_ratio == pytest.approx(ideal)
    assert list(narrow.timings) == [SERVED, VIEWS]
    assert narrow.timings[SERVED].ratio.median == 0.75
    assert narrow.timings[SERVED].saved_share == pytest.approx(0.25 / (1 - ideal))
    assert narrow.timings[VIEWS].ratio == Spread(0.75, 0.625, 0.875)
    assert list(full.timings) == [SERVED]
    assert full.timings[SERVED].saved_share is None
    assert (full.ideal_ratio, full.macs) == (1.0, model.cost(2, 1.0, 1.0).macs)


def test_the_whole_network_is_the_sum_of_its_segments() -> None:
    """Its operations are; segment 1 comes from the image at every width."""
    model = tiny_model()
    narrow, _ = points_of(model, None, 1, Race({(SERVED, 0.5): (1.0,), (SERVED, FULL): (1.0,)}))
    assert narrow.macs == sum(model.cost(s, 0.5, 0.0 if s == 1 else 0.5).macs for s in (1, 2, 3))


def test_rivals_of_the_full_width() -> None:
    """The ratio says how many times as long as the rival the served network takes."""
    found = full_width_of(8, Race({(SERVED, FULL): (3.0, 3.0), A: (2.0, 2.0)}), ["a"])
    assert (found.latency_s, found.rounds, found.batch) == (3.0, 2, 8)
    assert found.rivals["a"].latency_s == 2.0
    assert found.rivals["a"].served_ratio.median == 1.5


# ----------------------------------------------------------------------------------------------------- the plain stack


@pytest.mark.parametrize("name", PRESETS)
def test_the_plain_stack_is_of_the_same_shapes(name: str) -> None:
    """After each segment; its operations are those of the slimmable ResNet but for the projection in segment 1."""
    config = PRESETS[name]
    model = SlimResNet(config)
    stack = PlainStack(config).eval().to("meta")
    x = torch.empty(2, *config.spec.input_shape, device="meta")
    for number, part in enumerate(stack, start=1):
        # in a function of its own: the loop's variables change
        def run(part: torch.nn.Module = part, x: Tensor = x) -> Tensor:
            y: Tensor = part(x)
            return y

        counts, x = counted(run)
        assert x.shape == (2, *model.activation_shape(number, FULL))
        surplus = config.base_channels**2 * config.size(1) ** 2 if number == 1 else 0
        cost = model.cost(number, FULL, model.spec.widest_input(number))
        assert counts.macs == 2 * (cost.macs - surplus)


def test_the_plain_stack_has_no_weight_more() -> None:
    """Its convolutions and its head are those of the slimmable ResNet, but for segment 1's projection."""
    kernels = sorted(tuple(p.shape) for p in PlainStack(TINY).parameters() if p.dim() > 1)
    ours = sorted(tuple(p.shape) for n, p in tiny_model().named_parameters() if p.dim() > 1)
    assert [shape for shape in ours if shape != (8, 8, 1, 1)] == kernels


# ------------------------------------------------------------------------------------------------------ what is timed


class Served:
    """Stands in for `serve`: lets it do its work, and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, float, float, int]] = []  # segment, held, width, previous, batch
        self.outputs: list[Tensor] = []
        self.formats: set[torch.memory_format] = set()

    def __call__(
        self,
        instance: SegmentInstance,
        inputs: Sequence[Row],
        width: float,
        previous_width: float,
        padded: int,
        memory_format: torch.memory_format,
    ) -> Tensor:
        assert padded == len(inputs)
        self.calls.append((instance.segment, instance.width, width, previous_width, len(inputs)))
        self.formats.add(memory_format)
        y = serve(instance, inputs, width, previous_width, padded, memory_format)
        self.outputs.append(y)
        return y


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Watches `serve` where it is measured."""
    watched = Served()
    monkeypatch.setattr(slimming, "serve", watched)
    return watched


def stand(model: SlimmableModel) -> Stand:
    return Stand(model, DeviceSpec(), torch.device("cpu"))


def test_a_segment_is_timed_as_it_is_served(served: Served) -> None:
    """Every width from its own width, by an instance of that very width and by one of full width."""
    passes = stand(tiny_model()).segment_passes(2, batch=3)
    for run in passes.values():
        run()
    assert list(passes) == [(SERVED, 0.5), (VIEWS, 0.5), (SERVED, FULL)]
    assert served.calls == [(2, 0.5, 0.5, 0.5, 3), (2, FULL, 0.5, 0.5, 3), (2, FULL, FULL, FULL, 3)]
    assert served.formats == {torch.channels_last}


def test_every_way_through_the_network_gives_its_numbers(served: Served) -> None:
    """All go through `serve` segment by segment and end in the logits of the whole network at that width."""
    model = tiny_model()
    bench = stand(model)
    images = gather(bench.rows(1, 0.0, 3))
    passes = bench.network_passes(batch=3)
    half = [(SERVED, 0.5), (VIEWS, 0.5), (PACKED, 0.5), ("contiguous", 0.5)]
    assert list(passes) == [*half, (SERVED, FULL), ("contiguous", FULL)]
    for (way, width), run in passes.items():
        served.calls.clear()
        with torch.inference_mode():
            run()
        held = FULL if way == VIEWS else width
        assert served.calls == [(s, held, width, 0.0 if s == 1 else width, 3) for s in (1, 2, 3)]
        torch.testing.assert_close(served.outputs[-1], model(images, (width,) * 3))
    assert served.formats == {torch.channels_last, torch.contiguous_format}


def test_packed_weights_are_sliced_no_more() -> None:
    """They have the key's very shapes, while an instance holds what any previous width needs."""
    model = tiny_model()
    bench = stand(model)
    packed, own = bench._packed(2, 0.5), bench._instances[2, 0.5]
    assert {name: tuple(t.shape) for name, t in packed.weights.items()} == model.weight_shapes(2, 0.5, 0.5)
    assert packed.weight_bytes < own.weight_bytes
    kernels = [tensor for tensor in packed.weights.values() if tensor.dim() == 4]
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def test_the_rivals_compute_the_full_width() -> None:
    """The one piece gives the network's logits, the plain stack logits of the same shape, from the same images."""
    model = SlimResNet(replace(TINY, in_channels=3))  # one channel would have every order in memory at once
    bench = stand(model)
    images = gather(bench.rows(1, 0.0, 3))
    torch.testing.assert_close(bench.compute(images), model(images, (FULL,) * 3))
    seen: list[Tensor] = []

    def compute(x: Tensor) -> Tensor:
        seen.append(x)
        assert bench.plain is not None
        y: Tensor = bench.plain(x)
        assert y.shape == (3, TINY_SPEC.classes)
        return y

    bench.one_piece(3, compute)()
    torch.testing.assert_close(seen[0], images)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


# -------------------------------------------------------------------------------------------------- the whole of it


def measured(model: SlimmableModel, **options: Any) -> Slimming:
    return measure_slimming(model, "tiny", DeviceSpec(cores=(0,)), effort=HASTE, **options)


def test_all_segments_widths_and_batches(opened: list[DeviceSpec], served: Served) -> None:
    """Nothing is left out or there twice, the device was opened, and progress ends at its total."""
    told: list[tuple[int, int]] = []
    found = measured(tiny_model(), batches=(1, 3), on_progress=lambda done, total: told.append((done, total)))
    keys = [(point.segment, point.batch, point.width) for point in found.points]
    assert sorted(keys, key=str) == sorted(
        ((s, b, w) for s in (None, 1, 2, 3) for b in (1, 3) for w in (0.5, 1.0)), key=str
    )
    assert [full.batch for full in found.full_width] == [1, 3]
    assert [set(full.rivals) for full in found.full_width] == 2 * [{PLAIN, ONE_PIECE}]
    assert opened == [DeviceSpec(cores=(0,))]
    assert found.execution == opened[0].execution()
    assert {point.rounds for point in found.points} == {HASTE.rounds}
    assert told[-1] == (24, 24)  # 2 batches x (network + 3 segments) x (1 + 2 rounds)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    passes = 2 * (2 + 1) * (6 * 3 + 3 * 3)  # batches x rounds with warming x (6 ways x 3 segments, 3 for each segment)
    assert len(served.calls) == passes


def test_progress_counts_the_rounds_that_slow_ones_save(opened: list[DeviceSpec]) -> None:
    """It jumps over them, and still ends at its total."""
    told: list[tuple[int, int]] = []
    slow = Effort(rounds=4, turn_s=0.0, slow_s=0.0, few_rounds=1)
    found = measure_slimming(
        tiny_model(), "tiny", DeviceSpec(), batches=(1,), effort=slow, on_progress=lambda *state: told.append(state)
    )
    assert {point.rounds for point in found.points} == {1}
    assert told[-1] == (20, 20)  # (network + 3 segments) x (1 + 4 rounds)


def test_what_is_absent_is_told(opened: list[DeviceSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its reason: no ResNet, not asked for, not on a CPU, a compiler that fails."""
    found = measured(DigitsPerceptron(8), batches=(2,))
    assert set(found.absent) == {PLAIN, COMPILED, GRAPH}
    assert found.absent[GRAPH] == "not on a CPU"
    assert "--compile" in found.absent[COMPILED]
    assert set(found.full_width[0].rivals) == {ONE_PIECE}
    assert PLAIN in measured(TinyNet(), batches=(2,)).absent  # a subclass may compute something else

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", fails)
    found = measured(tiny_model(), batches=(2,), compiled=True)
    assert found.absent == {COMPILED: "failed: RuntimeError: no compiler", GRAPH: "not on a CPU"}


def test_the_compiled_network_takes_part(opened: list[DeviceSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """When asked for, in one graph for each batch size: a part that stays uncompiled would be told as compiled."""
    asked: list[dict[str, Any]] = []

    def compiler(compute: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
        asked.append(options)
        return compute

    monkeypatch.setattr(torch, "compile", compiler)
    found = measured(tiny_model(), batches=(1, 2), compiled=True)
    assert [COMPILED in full.rivals for full in found.full_width] == [True, True]
    assert asked == 2 * [{"fullgraph": True, "dynamic": False}]


@pytest.mark.parametrize("batches", [(), (0,), (4, -1), (1 << 17,)])
def test_batches_out_of_range(batches: tuple[int, ...], opened: list[DeviceSpec]) -> None:
    """They are the user's mistake, found before the device is opened."""
    with pytest.raises(InputError, match=r"from 1 to 65536"):
        measured(tiny_model(), batches=batches)
    assert opened == []


@pytest.mark.parametrize(
    "error, told",
    [
        (MemoryError(), WorkError),
        (torch.OutOfMemoryError("CUDA out of memory"), WorkError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), WorkError),
        (RuntimeError("a defect"), RuntimeError),
    ],
)
def test_a_batch_that_does_not_fit(
    error: Exception, told: type[Exception], opened: list[DeviceSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as such, and no other failure is."""

    def rows(*_: object) -> None:
        raise error

    monkeypatch.setattr(Stand, "rows", rows)
    with pytest.raises(told) as caught:
        measured(tiny_model(), batches=(7,))
    assert ("batch 7 does not fit" in str(caught.value)) == (told is WorkError)
    assert type(caught.value) is told
