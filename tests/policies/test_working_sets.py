"""Which instances a server holds together: against all that there are, and what routers come to that stay within."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, RouterConfig, nests_of, tuples_within
from policies.router_names import make_router
from policies.rules.rule_context import RouterContext, efficient_tuples, path_ns, within, working_sets
from policies.vocabulary import WorkKey
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.simulated_cluster import Simulation
from tests import tiny
from tests.parity.scenarios import Scenario
from tests.policies.cluster_views import LinearCosts, context

SEGMENTS, WIDTHS = 2, (0.25, 0.5, 1.0)
SPECS = list(product(range(1, SEGMENTS + 1), WIDTHS))
Widths = tuple[float, ...]


@dataclass(frozen=True)
class Costs(LinearCosts):
    """Milliseconds of an image by server, segment and width."""

    image_ms: tuple[dict[tuple[int, float], int], ...] = ()

    def image_s(self, server: int, key: WorkKey) -> float:
        return self.image_ms[server][key.segment, key.width] / 1000


@st.composite
def clusters(draw: st.DrawFn) -> tuple[RouterContext, list[GreedyParams], float]:
    """Two unlike servers, of a slimmable network, a family, or a family of which a member is slimmable; and a floor."""
    nests = draw(st.sampled_from([(), (1, 1, 1), (1, 2)]))
    tuples = tuples_within(nests_of(WIDTHS, nests), SEGMENTS)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    known = [tuples[n] for n in rng.permutation(len(tuples))[: 1 + int(rng.integers(len(tuples)))]]
    accuracies = {widths: (50 + int(rng.integers(20)) + int(10 * sum(widths))) / 100 for widths in known}
    image_ms = tuple({(s, w): int(rng.integers(1, 9) + 20 * w) for s, w in SPECS} for _ in range(2))
    servers = []
    for _ in range(2):
        sizes = [sorted(rng.integers(1, 9, len(WIDTHS)).tolist()) for _ in range(SEGMENTS)]
        instances = dict(zip(SPECS, chain(*sizes), strict=True))
        cap = 10 + int(rng.integers(sum(instances.values())))
        servers.append(GreedyParams(WIDTHS, instances, 10, 8, cap, nests=nests))
    config = RouterConfig(SEGMENTS, WIDTHS, (((True,) * 3,) * SEGMENTS,) * 2)
    floor = draw(st.sampled_from([0.0, 0.55, 0.6, 0.65, 0.7, 0.75, 0.85]))
    return RouterContext(config, Costs(image_ms=image_ms), AccuracyPrior(accuracies), (250.0,) * 2), servers, floor


def all_sets(params: GreedyParams) -> Iterator[set[Widths]]:
    """The width tuples that each set of instances serves which the memory holds, whatever it is good for."""
    for limits in product(*((None, *product(nest, repeat=SEGMENTS)) for nest in nests_of(WIDTHS, params.nests))):
        held = [limit for limit in limits if limit is not None]
        if (
            10 + sum(params.instance_bytes[spec] for limit in held for spec in enumerate(limit, 1))
            <= params.vram_cap_bytes
        ):
            yield {
                widths
                for limit, nest in zip(limits, nests_of(WIDTHS, params.nests), strict=True)
                for widths in product(nest, repeat=SEGMENTS)
                if limit is not None and all(width <= most for width, most in zip(widths, limit, strict=True))
            }


def least_ns(its: RouterContext, server: int, served: set[Widths], floor: float) -> float:
    """Device time of an image at a mean accuracy of the floor: by any tuple, or by a mix of any two."""
    accuracies = {widths: accuracies for widths, accuracies in its.prior.accuracies.items() if widths in served}
    cost = {widths: path_ns(its.costs, server, widths) for widths in accuracies}
    best = min((cost[widths] for widths in accuracies if accuracies[widths] >= floor), default=inf)
    for one, other in product(accuracies, repeat=2):
        if accuracies[one] >= floor > accuracies[other]:
            share = (floor - accuracies[other]) / (accuracies[one] - accuracies[other])
            best = min(best, share * cost[one] + (1 - share) * cost[other])
    return best


@settings(max_examples=400)
@given(clusters())
def test_no_set_that_fits_has_the_floor_for_less_device_time(
    drawn: tuple[RouterContext, list[GreedyParams], float],
) -> None:
    """On each server by itself; where none has it, or none is asked for, none has a more accurate tuple."""
    its, servers, floor = drawn
    everything = ((True,) * len(WIDTHS),) * SEGMENTS
    chosen = working_sets(its, servers, floor) or (everything,) * 2
    for server, (params, masks) in enumerate(zip(servers, chosen, strict=True)):
        accuracies = its.prior.accuracies
        served = {widths for widths in product(WIDTHS, repeat=SEGMENTS) if within(widths, masks, WIDTHS)}
        useful = [each & accuracies.keys() for each in all_sets(params)]
        if not any(useful):
            assert masks == everything, "a server that holds no tuple is not limited"
            continue
        assert served & accuracies.keys() in useful, "it fits"
        most = max(accuracies[widths] for each in useful for widths in each)
        if floor > most or not floor:
            assert max(accuracies[widths] for widths in served & accuracies.keys()) == most
        else:
            assert least_ns(its, server, served, floor) <= min(
                least_ns(its, server, each, floor) for each in useful
            ) * (1 + 1e-9)


def test_working_sets_are_unlimited_if_full_width_fits_or_for_several_models() -> None:
    its = context(servers=1)
    sizes = {(segment, width): int(8 * width) for segment in range(1, 5) for width in its.config.widths}
    roomy, tight = (GreedyParams(its.config.widths, sizes, 0, 8, cap) for cap in (32, 31))
    assert working_sets(its, [roomy], 0.75) == ()
    assert working_sets(its, [tight], 0.75) != ()
    models = replace(its.config, models=((0.25, 0.5), (0.75, 1.0)))
    assert working_sets(replace(its, config=models), [tight], 0.75) == ()


@pytest.mark.parametrize(
    "name", ["ladder:2,4,8", "slackfit", "infaas", "milp", "lookahead", "compass", "ladder:2,4,8@random", "ladder@jsq"]
)
def test_a_router_within_its_sets_needs_no_load_beyond_them(name: str) -> None:
    """On either engine: both servers begin with theirs, and load nothing more; without sets they do."""
    spec = tiny.cluster(
        [tiny.profile("a", load_s=0.001), tiny.profile("b", speed=0.5, load_s=0.001)],
        greedy={"vram_cap_bytes": 480_000_000, "idle_unload_ns": None, "scale_trigger": 10**9},
        router={"max_batching_delay_ns": 0},
    )
    its = Scenario("", spec, tiny.run(spec, [], 1.0)).context()
    every, loads = spec.router.widths, []
    widest = [[max(w for w, held in zip(every, mask, strict=True) if held) for mask in one] for one in its.working_sets]
    servers = tuple(
        replace(server, params=replace(server.params, preload=tuple(enumerate(limit, 1))))
        for server, limit in zip(spec.servers, widest, strict=True)
    )
    spec = replace(spec, servers=servers)
    run = tiny.run(spec, tiny.poisson_s(1500, 0.4), 0.4)
    for where in (its, replace(its, working_sets=())):
        for engine in (Simulation, CompiledSimulation):
            record = engine(spec, run).run(make_router(name, where), np.random.default_rng(0))
            loads.append([server.loads for server in record.servers])
            assert sum(server.images for server in record.servers) == 4 * len(run.arrivals_ns)
    assert loads[0] == loads[1] == [4, 4]
    assert loads[2] == loads[3]
    assert loads[2] > loads[0] or name == "milp", "which is content with a narrow tuple here"


def test_rungs_lie_within_some_servers_set() -> None:
    its = context(servers=2)
    narrow, wide = (tuple((True,) * 4 if s else (True, True, n > 0, n > 0) for s in range(4)) for n in range(2))
    assert efficient_tuples(replace(its, working_sets=(narrow, wide))) == efficient_tuples(its)
    limited = efficient_tuples(replace(its, working_sets=(narrow, narrow)))
    assert set(limited) == {widths for widths in efficient_tuples(its) if widths[0] <= 0.5}
