"""What a seed draws: a cluster, a load, and its own mix and intensity of faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kit.random_streams import stream
from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze, Supervision
from policies.interfaces import RouterConfig
from policies.vocabulary import NS_PER_S

MS = 1_000_000
US = 1_000
WIDTHS = (0.5, 1.0)
MICRO_BATCH_SIZES = (1, 2, 4, 8)
INPUT_BYTES = 256
ACTIVATION_BYTES = 128  # at full width


@dataclass(frozen=True)
class Mix:
    """One seed's world.

    Attributes:
        is_far: workers on other hosts, else processes of the router's.
        rooms: blocks that a server's arena takes.
        spins: whether the router has a core to itself.
        tick_ns: what each look at the clock takes the router; a worker's take as much.
        pauses: the share of looks after which it stands still, for `pause_ns` on average.
        stop_ns: how long it is stopped at `stops`, in ns since the run's start.
        late_ns: on average, until a worker that is woken runs.
        kills, halts, severs: mean times between two of these, over all workers; 0: none. A kill strikes in the middle
            of whatever it does; one that is halted does nothing more; a connection that is severed is lost with its
            bytes.
        cuts: the same, of links to a host; each lasts `cut_ns` on average. Half cut it off from the router alone.
        stalls: the share of moves that take long; while their host is in trouble, longer than until it is given up.
        start_ns: on average, from a start until the worker runs; `stillborn`: the share that never does.
        drains: (from, until, server) that the operator wants drained.
        leaves: whether who may be taken away is.
    """

    seed: int
    is_far: bool
    router: RouterConfig
    supervision: Supervision
    arrivals_ns: np.ndarray
    horizon_ns: int
    ends: Literal["drain", "cut"]
    deadline_ns: int | None
    runs: int
    rooms: int
    shares_device: bool
    preloads: bool
    idle_unload_ns: int | None
    vram_bytes: int
    pass_ns: int
    has_links: bool
    spins: bool
    tick_ns: int
    pauses: float
    pause_ns: int
    stops: tuple[int, ...]
    stop_ns: int
    late_ns: int
    link_ns: int
    split: float
    room_bytes: int
    kills: int
    halts: int
    severs: int
    cuts: int
    cut_ns: int
    stalls: float
    start_ns: int
    stillborn: float
    faults: tuple[Fault, ...]
    drains: tuple[tuple[int, int, int], ...]
    leaves: bool
    batching_delays_rule: bool
    paths: bool = False

    @classmethod
    def draw(cls, seed: int) -> Mix:
        return _draw(seed, stream(seed, "swarm:mix"))


def _draw(seed: int, rng: np.random.Generator) -> Mix:
    def some(share: float) -> bool:
        return bool(rng.random() < share)

    def among(low: float, high: float) -> int:
        """Log-uniform."""
        return int(low * (high / low) ** rng.random())

    def whole(low: int, high: int) -> int:
        return low + int(rng.random() * (high - low))

    servers, segments = whole(1, 5), whole(1, 4)
    count, horizon_ns = among(20, 300), among(200, 3000) * MS
    arrivals = np.sort(rng.random(count)) ** (2.0 if some(0.3) else 1.0) * horizon_ns
    if some(0.3):
        arrivals = arrivals // (20 * MS) * (20 * MS)  # in bursts, some at the start
    batching_delay_ns = among(1, 50) * MS if some(0.4) else 0
    is_far = some(0.5)
    faulty = some(0.9)
    hang_ns = among(30, 600) * MS
    router = RouterConfig(
        segments,
        WIDTHS,
        (((True, True),) * segments,) * servers,
        micro_batch_sizes=MICRO_BATCH_SIZES[: whole(1, 5)],
        outstanding_micro_batches=whole(1, 5),
        micro_batch_key="any" if some(0.3) else "location",
        max_retries=whole(0, 5),
        shed_expired=some(0.2),
        max_batching_delay_ns=batching_delay_ns,
    )

    def every(share: float) -> int:
        return among(0.03 * horizon_ns, 2 * horizon_ns) if faulty and some(share) else 0

    mix = Mix(
        seed=seed,
        is_far=is_far,
        router=router,
        supervision=Supervision(
            hang_ns=hang_ns,
            stuck_ns=hang_ns * whole(2, 6),
            backoff_ns=among(1, 60) * MS,
            backoff_limit_ns=200 * MS,
            stable_ns=among(50, 1000) * MS,
        ),
        arrivals_ns=arrivals.astype(np.int64),
        horizon_ns=horizon_ns,
        ends="cut" if some(0.1) else "drain",
        deadline_ns=among(5, 500) * MS if some(0.3) else None,
        runs=2 if some(0.2) else 1,
        rooms=whole(1, 9),
        shares_device=some(0.2),
        preloads=some(0.5),
        idle_unload_ns=among(5, 200) * MS if some(0.3) else None,
        vram_bytes=whole(3, 12) * 1000 if some(0.3) else 1 << 30,
        pass_ns=among(50, 8000) * US,
        has_links=some(0.2),
        spins=some(0.4),
        tick_ns=among(100, 4000),
        pauses=among(1, 100) / 10_000 if some(0.4) else 0.0,
        pause_ns=among(100, 5000) * US,
        stops=tuple(int(rng.random() * horizon_ns) for _ in range(whole(1, 4))) if faulty and some(0.2) else (),
        stop_ns=among(0.3, 8) * hang_ns if some(0.5) else hang_ns,
        late_ns=among(5, 2000) * US,
        link_ns=among(5, 3000) * US,
        split=rng.random() if some(0.4) else 0.0,
        room_bytes=among(600, 1 << 16) if some(0.3) else 1 << 20,
        kills=every(0.5),
        halts=every(0.3),
        severs=every(0.3) if is_far else 0,
        cuts=every(0.4) if is_far else 0,
        cut_ns=among(0.1 * hang_ns, 6 * hang_ns),
        stalls=rng.random() if some(0.5) else 0.0,
        start_ns=among(1, 200) * MS,
        stillborn=0.3 * rng.random() if faulty and some(0.3) else 0.0,
        faults=_faults(rng, servers, count, horizon_ns) if faulty else (),
        drains=tuple(_drain(rng, servers, horizon_ns) for _ in range(whole(1, 4))) if some(0.3) else (),
        leaves=some(0.7),
        batching_delays_rule=some(0.5),
    )
    return replace(mix, paths=some(0.4))


def _drain(rng: np.random.Generator, servers: int, horizon_ns: int) -> tuple[int, int, int]:
    from_ns, until_ns = sorted(int(at * horizon_ns) for at in rng.random(2))
    if rng.random() < 0.2:
        from_ns = 0
    return from_ns, until_ns, int(rng.random() * servers)


def _faults(rng: np.random.Generator, servers: int, count: int, horizon_ns: int) -> tuple[Fault, ...]:
    """Those of the plan; they are over at the horizon, but for outages without an end."""
    planned: list[Fault] = []
    for _ in range(int(rng.random() * 6)):
        server, kind = int(rng.random() * servers), int(rng.random() * 6)
        begin_ns, end_ns = sorted(int(at * horizon_ns) for at in rng.random(2))
        match kind:
            case 0:
                planned.append(Crash(server, begin_ns))
            case 1:
                planned.append(Hang(server, begin_ns))
            case 2:
                planned.append(Outage(server, begin_ns, None if rng.random() < 0.3 else end_ns))
            case 3:
                planned.append(Slowness(server, begin_ns, end_ns, 1 + 30 * rng.random()))
            case 4:
                planned.append(Squeeze(server, begin_ns, end_ns, int(rng.random() * 5)))
            case _:
                most = int(1 + 20 * rng.random())
                planned.append(Poison(frozenset(int(rng.random() * count) for _ in range(most))))
    return tuple(planned)


assert NS_PER_S == 1000 * MS
