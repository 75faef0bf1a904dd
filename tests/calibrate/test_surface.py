"""A surface finds what keys share, says how sure it is, and is chosen only where it predicts better."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from calibrate.costs import Key, KeyCost, ModelCosts
from calibrate.errors import predict_solo_s
from calibrate.plan import scouted_batches
from calibrate.samples import Pooled, Samples
from calibrate.solo import SoloPoint, fit_solo
from calibrate.surface import Seen, Surface, least_sure
from hw.transport.messages import Point
from sim.profile import LatencyFit, ModelInfo

WIDTHS = (0.25, 0.5, 0.75, 1.0)
KEYS: list[Key] = [(1, w, 0.0) for w in WIDTHS] + [(s, w, p) for s in (2, 3) for w in WIDTHS for p in WIDTHS]
LIMIT = 32
SIZES = (1, 2, 8, 32)
BETWEEN = (3, 4, 5, 6, 12, 16, 24)


def cost(key: Key) -> KeyCost:
    segment, width, previous_width = key
    area, before = 4.0**-segment, previous_width or 0.1
    return KeyCost(int(4e7 * area * width * before), int(4e4 * width * before), int(2e6 * area * (width + before)), 10)


COSTS: Mapping[Key, KeyCost] = {key: cost(key) for key in KEYS}


class World:
    """Physics with a floor, an efficiency that changes smoothly with the widths, a kernel that changes at 8 images."""

    def __init__(self, seed: int = 0, own: float = 0.02, wild: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self._own = {key: rng.normal(0, own) for key in KEYS}
        self._wild = {(key, b): rng.normal(0, wild) for key in KEYS for b in range(1, LIMIT + 1)}

    def truth_s(self, point: Point) -> float:
        work, batch = COSTS[point.key], point.batch
        time_s = 1e-4 + 5e-5 * (batch > 1) + work.macs * batch / 5e10 + work.batch_bytes(batch) / 8e9
        time_s = max(2e-4, time_s) * (1 + 0.2 * np.cos(3 * point.width)) * (0.95 if batch >= 8 else 1.0)
        return float(time_s * np.exp(self._own[point.key] + self._wild[point.key, batch]))


def seen(
    world: World, noise: float, sizes: Sequence[int] = SIZES, seed: int = 1, outliers: float = 0.0
) -> dict[Point, Seen]:
    rng = np.random.default_rng(seed)
    points = [Point(*key, batch) for key in KEYS for batch in sizes]
    factors = np.exp(noise * rng.standard_normal(len(points))) * np.where(rng.random(len(points)) < outliers, 1.5, 1.0)
    return {point: Seen((world.truth_s(point) * factor,)) for point, factor in zip(points, factors, strict=True)}


def solo(found: Mapping[Point, Seen], spread: float = 0.01) -> dict[Point, SoloPoint]:
    """As a calibration has it, of five repeats."""
    return {
        point: SoloPoint(
            Pooled.of([Samples(5, tuple(each.rounds_s[0] * np.exp(spread * z) for z in (-2, -1, 0, 1, 2)))]),
            1.0 / point.batch,
            each.rounds_s,
        )
        for point, each in found.items()
    }


def model() -> ModelCosts:
    info = ModelInfo(
        name="world", hash="0", segments=3, widths=WIDTHS, input_bytes=100, activation_bytes=((1,) * 4,) * 3
    )
    return ModelCosts(info, COSTS, {(s, w): 1000 for s in (1, 2, 3) for w in WIDTHS})


def errors(
    world: World, by: LatencyFit, found: Mapping[Point, SoloPoint], sizes: Sequence[int] = BETWEEN
) -> np.ndarray:
    curves = fit_solo(found, model(), 1e10, by).curves
    points = [Point(*key, batch) for key in KEYS for batch in sizes]
    return np.abs([predict_solo_s(curves[p.key], p.batch) / world.truth_s(p) - 1 for p in points])


@pytest.mark.parametrize("noise, outliers", [(0.02, 0.0), (0.05, 0.05), (0.1, 0.1)])
def test_keys_tell_of_each_other(noise: float, outliers: float) -> None:
    """Sizes in between, from four sizes and one noisy look at each: much nearer than each key's own curve."""
    world = World()
    found = solo(seen(world, noise, outliers=outliers))
    own, shared = (errors(world, by, found) for by in ("each key", "surface"))
    assert np.mean(shared) < 0.85 * np.mean(own)
    assert np.median(shared) < 0.65 * noise + 0.015
    assert fit_solo(found, model(), 1e10).by == "surface"


def test_it_knows_how_sure_it_is() -> None:
    """What it says of points that it never saw lies within two of its deviations for most of them."""
    world = World(own=0.03)
    surface = Surface(seen(world, 0.05), COSTS)
    points = [Point(*key, batch) for key in KEYS for batch in BETWEEN]
    predicted_s, deviations = surface.predict(points)
    z = np.abs(np.log(predicted_s / [world.truth_s(point) for point in points])) / deviations
    assert 0.8 < np.mean(z < 2) <= 1.0
    assert np.median(z) > 0.2  # nor is it much surer than it says


def test_one_wild_point_rules_nothing() -> None:
    """A point three times as long as it is, which no repeat gives away, moves its neighbours by little."""
    world, wild = World(own=0.0), Point(2, 0.5, 0.5, 8)
    found = seen(world, 0.02)
    found[wild] = Seen((3 * world.truth_s(wild),))
    points = [Point(2, 0.5, 0.5, batch) for batch in (4, 6, 8, 12, 16)]
    predicted_s, _ = Surface(found, COSTS).predict(points)
    assert np.max(np.abs(predicted_s / [world.truth_s(point) for point in points] - 1)) < 0.15


def test_another_kernel_for_one_batch_size_is_followed() -> None:
    """At 16 images a pass takes three times as long, more so where it is wide; sizes below are as they were."""
    world, sizes = World(own=0.0), (1, 2, 15, 16)

    def truth_s(point: Point) -> float:
        return world.truth_s(point) * (2 + point.width if point.batch >= 16 else 1)

    rng = np.random.default_rng(5)
    measured = [Point(*key, batch) for key in KEYS for batch in sizes]
    found = {point: Seen((truth_s(point) * float(np.exp(0.03 * rng.standard_normal())),)) for point in measured}
    points = [Point(*key, batch) for key in KEYS for batch in (2, 15, 16)]
    off = np.abs(Surface(found, COSTS).predict(points)[0] / [truth_s(point) for point in points] - 1)
    assert np.median(off) < 0.03
    assert np.max(off) < 0.15


def test_doubted_points_pull_nothing_along() -> None:
    """Half of the points were disturbed and took half as long again: the others say so."""
    world, rng = World(), np.random.default_rng(7)
    found = seen(world, 0.02)
    for point in found:
        if rng.random() < 0.5:
            late_s = found[point].rounds_s[0] * float(np.exp(0.4 + 0.05 * rng.standard_normal()))
            found[point] = Seen((late_s,), 0.05**2, is_doubted=True)
    points = [Point(*key, batch) for key in KEYS for batch in BETWEEN]
    ratios = Surface(found, COSTS).predict(points)[0] / [world.truth_s(point) for point in points]
    assert abs(np.median(ratios) - 1) < 0.03
    assert np.median(np.abs(ratios - 1)) < 0.04


def test_rounds_tell_the_noise() -> None:
    """Of a few points that were measured twice: what differs there is noise, not something a key has of its own."""
    world, rng = World(), np.random.default_rng(3)
    found = {
        p: Seen((*each.rounds_s, each.rounds_s[0] * np.exp(0.08 * rng.standard_normal())))
        for p, each in seen(world, 0.08).items()
    }
    assert Surface(found, COSTS).noise == pytest.approx(0.07, rel=0.4)
    exact = {point: Seen(each.rounds_s * 3) for point, each in seen(world, 0.0).items()}
    assert Surface(exact, COSTS).noise < 0.005
    points = list(exact)
    assert Surface(exact, COSTS).predict(points)[0] == pytest.approx([world.truth_s(p) for p in points], rel=0.01)


def test_where_a_device_behaves_as_no_surface_does_each_key_keeps_its_curve() -> None:
    """Keys that jump up and down, each in its own way but smoothly along the batch, in a world without noise."""
    rng = np.random.default_rng(0)
    bent = {key: rng.normal(0, 0.5) for key in KEYS}

    def truth_s(point: Point) -> float:
        return float(1e-3 * np.exp(3 * bent[point.key]) * (1 + 0.001 * point.batch ** (2 + bent[point.key])))

    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    found = {Point(*key, batch): Seen((truth_s(Point(*key, batch)),)) for key in KEYS for batch in sizes}
    fitted = fit_solo(solo(found), model(), 1e10)
    assert fitted.by == "each key"
    assert set(fitted.others) == {"surface"}


def test_curves_on_the_surface_are_whole_and_sane() -> None:
    """Positive and not falling with the batch; quantiles ascend; what was not measured has no samples, and shares
    between those of its neighbours."""
    world = World(wild=0.05)
    fitted = fit_solo(solo(seen(world, 0.1, outliers=0.1), spread=0.05), model(), 1e10, "surface")
    for key, curve in fitted.curves.items():
        assert set(scouted_batches(LIMIT)) <= set(curve.batches)
        assert min(curve.p50_s) > 0
        assert list(curve.p50_s) == sorted(curve.p50_s)
        assert all(a <= b <= c for a, b, c in zip(curve.p50_s, curve.p95_s, curve.p99_s, strict=True))
        measured = [batch for batch, count in zip(curve.batches, curve.samples, strict=True) if count]
        assert measured == list(SIZES)
        shares = dict(zip(curve.batches, curve.host_share, strict=True))
        assert shares[4] == pytest.approx(np.interp(4, (2, 8), (0.5, 0.125)))
        moved = COSTS[key].batch_bytes(4) / dict(zip(curve.batches, curve.mean_s, strict=True))[4]
        assert dict(zip(curve.batches, curve.bandwidth_share, strict=True))[4] == pytest.approx(min(1.0, moved / 1e10))
        assert all(
            np.mean(row) == pytest.approx(m / p)
            for row, m, p in zip(curve.jitter, curve.mean_s, curve.p50_s, strict=True)
        )


def test_what_is_left_out_is_not_seen() -> None:
    """The cross-validated pairs of both ways are of the same points, and no prediction knows its own point."""
    world = World()
    found = seen(world, 0.02)
    fitted = fit_solo(solo(found), model(), 1e10)
    own, shared = fitted.left_out["each key"], fitted.left_out["surface"]
    assert [measured for _, measured in own] == [measured for _, measured in shared]
    assert len(own) == 2 * len(KEYS)
    changed = Point(*KEYS[0], 2)
    found[changed] = Seen((1.2 * found[changed].rounds_s[0],))
    again = fit_solo(solo(found), model(), 1e10).left_out["surface"]
    assert again[0][1] == pytest.approx(1.2 * shared[0][1])
    assert again[0][0] == pytest.approx(shared[0][0], rel=0.03)


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (1, 2, 3)])
def test_few_batch_sizes_are_no_error(sizes: tuple[int, ...]) -> None:
    """One batch size alone has nothing between others to choose by: each key keeps what was measured."""
    world = World()
    fitted = fit_solo(solo(seen(world, 0.02, sizes)), model(), 1e10)
    assert {curve.batches[-1] for curve in fitted.curves.values()} == {sizes[-1]}
    if len(sizes) < 3:
        assert (fitted.by, fitted.others) == ("each key", {})


def test_a_key_without_any_point_is_refused() -> None:
    """The profile would not be whole, whatever a surface might say."""
    found = {point: each for point, each in seen(World(), 0.02).items() if point.key != KEYS[3]}
    with pytest.raises(ValueError, match="every key must be measured"):
        fit_solo(solo(found), model(), 1e10)


def test_the_next_points_are_where_it_is_least_sure_for_the_time() -> None:
    """A hole in the grid goes first; of two alike the cheaper; the same again gives the same."""
    world = World()
    found = {
        p: each for p, each in seen(world, 0.02, (1, 2, 4, 8, 16, 32)).items() if p.segment != 3 or p.batch in (1, 32)
    }
    targets = [Point(*key, batch) for key in KEYS for batch in (1, 2, 4, 8, 16, 32)]
    missing = {point: 1.0 for point in targets if point not in found}
    again = {point: 1.0 for point in targets if point in found}
    surface = Surface(found, COSTS)
    chosen = least_sure(surface, targets, {**again, **missing}, 8)
    assert set(chosen) <= set(missing)
    assert chosen == least_sure(surface, targets, {**again, **missing}, 8)
    dear = least_sure(surface, targets, {**missing, **{point: 50.0 for point in missing if point.batch > 4}}, 8)
    assert {point.batch for point in dear} <= {2, 4}
    assert len(least_sure(surface, targets, missing, 10_000)) == len(missing)


def test_a_chosen_point_is_worth_more_than_any_other() -> None:
    """Against the definition: the variance left over all targets after measuring each candidate."""
    world = World()
    surface = Surface(seen(world, 0.05), COSTS)
    targets = [Point(*key, batch) for key, batch in itertools.product(KEYS[:12], (1, 2, 4, 8, 16, 32))]
    (best,) = least_sure(surface, targets, dict.fromkeys(targets, 1.0), 1)
    covariance = surface.covariance(targets)

    def left(place: int) -> float:
        gained = np.outer(covariance[:, place], covariance[:, place]) / (covariance[place, place] + surface.noise**2)
        return float(np.trace(covariance - gained))

    assert left(targets.index(best)) == pytest.approx(min(map(left, range(len(targets)))))


def test_each_choice_counts_the_ones_before() -> None:
    """Two looks at one place tell little more than one: the second choice is as if the first were measured."""
    surface = Surface(seen(World(), 0.05), COSTS)
    targets = [Point(*key, batch) for key in KEYS for batch in (3, 4, 5, 6, 12, 16)]
    together = least_sure(surface, targets, dict.fromkeys(targets, 1.0), 12)
    alone: list[Point] = []
    for _ in range(12):  # each the best of all when nothing else was chosen
        left = {point: 1.0 for point in targets if point not in alone}
        alone += least_sure(surface, targets, left, 1)
    assert together[0] == alone[0]
    assert len({point.key for point in together}) > len({point.key for point in alone})
