"""Same seed, same run; simultaneous events happen in their rank's order."""

from __future__ import annotations

import numpy as np

from sim.event_queue import ARRIVAL, HOST, EventQueue, Kind, rank
from tests import tiny


def test_the_same_specs_and_seed_give_the_same_record() -> None:
    """Every record, credit and reading, bit for bit; another seed's jitter gives another run."""
    quantiles = tuple(np.linspace(0.8, 1.6, 33))
    profiles = [tiny.profile("a", jitter=quantiles), tiny.profile("b", speed=0.5, jitter=quantiles)]
    spec = tiny.cluster(profiles)
    runs = [tiny.run(spec, tiny.poisson_s(200, 1.0), 1.0, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (tiny.simulate(spec, run)[1] for run in runs)
    assert first == again
    assert first != other


def test_events_of_one_instant_happen_in_rank_order_whatever_the_order_they_were_planned_in() -> None:
    """Arrival; by server transfer, start, batch, load, unload, timer, telemetry, fault; the decision's end last."""
    orders = [ARRIVAL, *(rank(server, kind, number) for server in (0, 1) for kind in Kind for number in (0, 7)), HOST]
    assert orders == sorted(orders)
    for seed in range(5):
        event_queue = EventQueue()
        seen: list[int] = []
        for index in np.random.default_rng(seed).permutation(len(orders)):
            event_queue.at(10, orders[index], seen.append, int(index))
        for _ in orders:
            assert not event_queue.is_instant_over or event_queue.now_ns < 10
            event_queue.step()
        assert seen == list(range(len(orders)))


def test_the_decision_sees_everything_that_happened_at_its_instant() -> None:
    """Two arrivals at one nanosecond are both candidates of the first decision."""
    spec = tiny.cluster()
    _, record = tiny.simulate(spec, tiny.run(spec, [0.1, 0.1, 0.1], 0.2, keep_log=True))
    asked = [c.view for step in record.log for c in step.commands if type(c).__name__ == "Decide"]
    assert asked[0].candidates == 3
