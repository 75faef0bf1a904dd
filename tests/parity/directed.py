"""Scenarios made for one rule each. Every one comes with a check, from the reference's log, that the tie did happen.

Times are in units of a microsecond. `pairs` sets up any two kinds of event at one instant, on one server, on two
servers, or on two servers of one device; the rest are scenes that a pair can't set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from policies.faults import Crash, Fault, Hang, Outage, Slowness, Squeeze, Supervision
from policies.run_records import STAGES, LoggedStep, RunRecord
from policies.vocabulary import (
    BatchFinished,
    BatchStarted,
    Choice,
    Decide,
    Decided,
    GoalSet,
    MicroBatchArrived,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsReturned,
    RouterTimer,
    SendMicroBatch,
    ServerDown,
    ServerReport,
    ServerUp,
    TransferFailed,
    TransferFinished,
    UnloadInstance,
)
from sim.device_profile import Link
from sim.device_tables import DeviceTables, SlowdownTable
from sim.host_and_network import FREE, HostTable
from sim.simulated_cluster import BernoulliCorrectness, RunSpec
from tests.parity.happenings import happenings
from tests.parity.scenarios import JITTERS, Device, Scenario, grid_cluster

UNIT_NS = 1000
Check = Callable[[Scenario, RunRecord], bool]


@dataclass(frozen=True)
class Directed:
    """A scenario, and whether what it is for did happen in it."""

    scenario: Scenario
    happened: Check

    @property
    def name(self) -> str:
        return self.scenario.name


def link(latency: float = 0.0, bandwidth: float = inf, loss: float = 0.0) -> Link:
    """Latency in units, bandwidth in bytes a unit."""
    unit_s = UNIT_NS / 1e9
    return Link.model_construct(latency_s=latency * unit_s, bandwidth_bytes_s=bandwidth / unit_s, loss=loss)


def host(
    decision: tuple[int, int] = (0, 0),
    returned: tuple[int, int] = (0, 0),
    spread: tuple[float, ...] = (),
    sent_permille: int = 1000,
    received_permille: int = 1000,
) -> HostTable:
    """A router's process; (a micro-batch, an image) in units."""
    in_ns = [(micro_batch * UNIT_NS, image * UNIT_NS) for micro_batch, image in (decision, returned)]
    return HostTable(in_ns[0], in_ns[1], spread, sent_permille, received_permille)


def device(**changes: object) -> Device:
    """One segment, one width; a batch takes 2 units and 1 an image, a load 3, a second one 2, an unload 1."""
    return Device(**{"segments": 1, "widths": (1.0,), "period_ns": 1000 * UNIT_NS, **changes})  # type: ignore[arg-type]


def scene(
    name: str,
    devices: Sequence[Device | DeviceTables],
    arrivals: Sequence[int],
    *,
    horizon: int = 0,
    choices: Mapping[int, Choice] | None = None,
    policy: str = "first",
    run: Mapping[str, object] | None = None,
    **cluster: object,
) -> Scenario:
    """A scenario with arrivals (and the horizon) in units; `cluster` is `grid_cluster`'s, `run` changes the run."""
    spec = grid_cluster(devices, **cluster)  # type: ignore[arg-type]
    run_spec = RunSpec(
        arrivals_ns=np.array(arrivals, dtype=np.int64) * UNIT_NS,
        horizon_ns=(horizon or max(arrivals, default=0) + 1) * UNIT_NS,
        correctness=BernoulliCorrectness(spec.prior, 1),
        drain_limit_ns=5000 * UNIT_NS,
    )
    return Scenario(name, spec, replace(run_spec, **(run or {})), policy, choices or {})  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- pairs

MEETING = 200  # units; when the two events meet
DECISION, LINK, LOAD, DISPATCH, RUN, IDLE, UNLOAD = 2, 10, 7, 5, 20, 30, 3
THERE, BACK, HEARD = 6, 8, 4  # only where a pair is about them
PAIR_WIDTHS = (0.25, 0.5, 0.75, 1.0)

# How long before its event a request has to arrive for it (the decision's time comes on top).
_LEAD = {
    "arrival": 0,
    "decision end": 0,
    "transfer end": LINK,
    "block arrival": LINK,
    "load end": LINK + LOAD,
    "batch start": LINK + LOAD + DISPATCH,
    "batch end": LINK + LOAD + DISPATCH + RUN,
    "message": LINK + LOAD + DISPATCH + RUN + BACK,
    "heard": LINK + LOAD + DISPATCH + RUN + HEARD,
    "timer": LINK + LOAD + DISPATCH + RUN + IDLE,
    "unload end": LINK + LOAD + DISPATCH + RUN + IDLE + UNLOAD,
}
_BEFORE = ("arrival", "decision end", "transfer end")  # the handover
_FAULTS: Mapping[str, Callable[[int], Fault]] = {
    "slowness": lambda server: Slowness(server, MEETING * UNIT_NS, (MEETING + 60) * UNIT_NS, 2.0),
    "slowness's end": lambda server: Slowness(server, (MEETING - 1) * UNIT_NS, MEETING * UNIT_NS, 1.0),
    "squeeze": lambda server: Squeeze(server, MEETING * UNIT_NS, (MEETING + 60) * UNIT_NS, 1),
    "squeeze's end": lambda server: Squeeze(server, (MEETING - 60) * UNIT_NS, MEETING * UNIT_NS, 0),
    "outage": lambda server: Outage(server, MEETING * UNIT_NS, (MEETING + 40) * UNIT_NS),
    "crash": lambda server: Crash(server, MEETING * UNIT_NS),
    "hang": lambda server: Hang(server, MEETING * UNIT_NS),
}
_DEADLY = ("outage", "crash", "hang")
_SENSOR = {"sample": (50, 3), "fresh sample": (50, 0), "report": (40, 40), "late report": (30, 50), "both": (50, 50)}
PAIR_KINDS = (*_LEAD, "sample", "report", *_FAULTS, "slowdown")
PLACES = ("one server", "two servers", "one device")


def pairs() -> Iterator[Directed]:
    """Every two kinds of event at one instant, in all three places."""
    for position, one in enumerate(PAIR_KINDS):
        for other in PAIR_KINDS[position:]:
            for place in PLACES:
                if is_possible(one, other, place):
                    yield pair(one, other, place)
                if one in _FAULTS and other in _FAULTS and one != other:
                    yield pair(other, one, place)


def is_possible(one: str, other: str, place: str) -> bool:
    """A server has one sensor, which reads once, and a device one slowdown; what is squeezed to nothing never runs."""
    if one == other and one in ("sample", "report", "slowdown"):
        return one != "slowdown" and place != "one server"
    if "heard" in (one, other) and {one, other} & {"heard", "decision end", "message"}:
        return False  # a host does one thing at a time, and tells of a message when it has heard it
    squeezed = "squeeze's end" in (one, other)
    ran = {"batch start", "batch end", "message", "heard", "timer", "unload end"}
    return not (squeezed and place == "one server" and {one, other} & ran)


def pair(one: str, other: str, place: str) -> Directed:
    """Two events at `MEETING`; requests come after it, to whom their order may make a difference."""
    second = 0 if place == "one server" else 1
    kinds = (one, other)
    period, lag = _SENSOR[_sensor_of(kinds)] if _sensor_of(kinds) else (10_000, 1)
    drawn = Device(
        segments=1,
        widths=PAIR_WIDTHS,
        base_ns=(RUN - 1) * UNIT_NS,
        load_ns=LOAD * UNIT_NS,
        reload_ns=(LOAD - 2) * UNIT_NS,
        unload_ns=UNLOAD * UNIT_NS,
        dispatch_ns=DISPATCH * UNIT_NS,
        period_ns=period * UNIT_NS,
        lag_ns=lag * UNIT_NS,
        alpha=0.3,
        bandwidth=(0.0, 0.0),
        demand=(150, 0),
        there_ns=THERE * UNIT_NS if "block arrival" in kinds else 0,
        back_ns=BACK * UNIT_NS if "message" in kinds else 0,
    )
    decision = DECISION if "decision end" in kinds and one != other else 0
    idle = IDLE if {"timer", "unload end"} & set(kinds) else 2000
    arrivals, choices = _requests(((one, 0), (other, second)), decision)
    faults = tuple(_FAULTS[kind](server) for kind, server in ((one, 0), (other, second)) if kind in _FAULTS)
    changes = ((0, 1.0), (MEETING * UNIT_NS, 1.9))
    on = [0, 0] if place == "one device" else [0, 1]
    slowdowns = {on[server]: changes for kind, server in ((one, 0), (other, second)) if kind == "slowdown"}
    scenario = scene(
        f"{one} and {other}, {place}",
        [drawn, drawn],
        arrivals,
        horizon=MEETING + 150,
        choices=choices,
        on=on,
        links=[link(LINK)],
        params=[{"idle_unload_ns": idle * UNIT_NS, "load_backoff_ns": 5 * UNIT_NS}],
        decision_ns=decision * UNIT_NS,
        host=host(returned=(HEARD, 0)) if "heard" in kinds else None,
        router={"micro_batch_sizes": (1, 2, 4), "outstanding_micro_batches": 4},
        supervision=Supervision(hang_ns=9 * UNIT_NS, backoff_ns=UNIT_NS, stable_ns=500 * UNIT_NS, start_ns=4 * UNIT_NS),
        run={"faults": faults, "slowdowns": slowdowns},
    )
    return Directed(scenario, lambda s, record: _did_meet(s, record, ((one, 0), (other, second))))


def _sensor_of(kinds: Sequence[str]) -> str:
    """What the sensors' period and lag are for; before a death only a reading that takes no time is heard of."""
    if "sample" in kinds:
        return "both" if "report" in kinds else "fresh sample" if set(_DEADLY) & set(kinds) else "sample"
    return ("late report" if "arrival" in kinds else "report") if "report" in kinds else ""


def _requests(events: Sequence[tuple[str, int]], decision: int) -> tuple[list[int], dict[int, Choice]]:
    """Arrivals for the two events, then six more at and after the meeting; the narrower key comes first."""
    there = THERE if any(kind == "block arrival" for kind, _ in events) else 0
    wanted = sorted(
        (MEETING - _LEAD[kind] - (0 if kind == "arrival" else decision) - there * (kind not in _BEFORE), server)
        for kind, server in events
        if kind in _LEAD
    )
    arrivals = [when for when, _ in wanted]
    choices = {
        number: Choice(server, width, 1)
        for number, ((_, server), width) in enumerate(zip(wanted, (0.5, 0.75), strict=False), start=1)
    }
    later = [MEETING + after for after in (1, 1, 4, 4, 11, 30)]
    for number, _ in enumerate(later, start=len(arrivals) + 1):
        choices[number] = Choice(number % 2, (0.5, 0.75, 1.0)[number % 3], 1 + number % 2)
    return [*arrivals, *later], choices


def _did_meet(scenario: Scenario, record: RunRecord, events: Sequence[tuple[str, int]]) -> bool:
    at_ns = MEETING * UNIT_NS
    seen = [(server, kind) for now_ns, server, kind in happenings(scenario, record) if now_ns == at_ns]
    unloads = {
        int(step.core.split(":")[1])
        for step in record.log
        if step.now_ns == at_ns and any(isinstance(command, UnloadInstance) for command in step.commands)
    }
    for kind, server in events:
        if kind == "timer":  # an event of the server just before it does what the timer came for
            if server not in unloads:
                return False
            continue
        wanted = (-1 if kind in ("arrival", "decision end", "heard") else server, "fault" if kind in _FAULTS else kind)
        if wanted[1] == "slowdown" and scenario.cluster.servers[server].device == 0:
            wanted = (0, "slowdown")
        if wanted not in seen:
            return False
        if kind not in _DEADLY:  # one dies once
            seen.remove(wanted)
    return True


# ------------------------------------------------------------------------------------------------------------- scenes


def steps(record: RunRecord, kind: type, at: int | None = None) -> list[LoggedStep]:
    """The logged steps of an event, at a time (in units)."""
    return [step for step in record.log if isinstance(step.event, kind) and (at is None or step.now_ns == at * UNIT_NS)]


def commands(record: RunRecord, kind: type) -> list[tuple[int, object]]:
    """(time in ns, command) of a kind."""
    return [(step.now_ns, command) for step in record.log for command in step.commands if isinstance(command, kind)]


def returns(record: RunRecord) -> list[tuple[int, int]]:
    """When a server went down that came back, and when it did."""
    return [(down.down_ns, down.up_ns) for down in record.downtimes if down.up_ns is not None]


def meet(record: RunRecord, *kinds: type) -> bool:
    """Whether there is an instant with all of these events (as often as they are named)."""
    times = {step.now_ns for step in steps(record, kinds[0])}
    return any(
        all(sum(step.now_ns == t for step in steps(record, kind)) >= kinds.count(kind) for kind in kinds) for t in times
    )


TWO = (0.5, 1.0)


def scenes() -> Iterator[Directed]:
    yield from _router_scenes()
    yield from _scheduler_scenes()
    yield from _device_scenes()
    yield from _fault_scenes()
    yield from _network_scenes()
    yield from _host_scenes()
    yield from _end_scenes()


def _router_scenes() -> Iterator[Directed]:
    yield Directed(
        scene(
            "a question is asked when its instant is over",
            [device()],
            [5, 5, 5, 9, 9],
            router={"micro_batch_sizes": (8,)},
        ),
        lambda s, r: next(c for _, c in commands(r, Decide)).view.candidates == 3,  # type: ignore[attr-defined]
    )
    yield Directed(
        scene(
            "returns and arrivals of one instant are asked about together",
            [device(segments=2)],
            [0, 6, 6, 9],
            params=[{"preload": ((1, 1.0), (2, 1.0))}],
        ),
        lambda s, r: meet(r, RequestsReturned, RequestArrived, RouterTimer),
    )
    yield Directed(
        scene(
            "the host is busy until just when a request comes",
            [device()],
            [10, 10, 14, 14, 18, 18],
            decision_ns=UNIT_NS,
            host=host(decision=(3, 0)),
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: meet(r, RequestArrived, Decided, RouterTimer),
    )
    yield Directed(
        scene(
            "decisions without delay chain in one instant",
            [device(), device()],
            [3] * 9,
            router={"micro_batch_sizes": (2,), "outstanding_micro_batches": 2},
            policy="jsq",
        ),
        lambda s, r: len(steps(r, Decided, 3)) == 4,
    )
    for after in (5, 6, 7):
        yield Directed(
            scene(
                f"a deadline at the head, {after} units after the arrival",
                [device(base_ns=8 * UNIT_NS)],
                [0, 0, 1, 1, 1],
                router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 1, "shed_expired": True},
                run={"deadlines_ns": (after * UNIT_NS,)},
                params=[{"preload": ((1, 1.0),)}],
            ),
            lambda s, r: any(
                t - r.requests[0].arrived_ns == s.run.deadlines_ns[0] for t, _ in commands(r, RequestFailed)
            ),
        )
    yield Directed(
        scene(
            "an image takes just the operator's limit, and the next one longer",
            [device()],
            [0, 0, 0, 20],
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 1},
            run={"goals": ((0, GoalSet(limit_ns=6 * UNIT_NS)),)},
            params=[{"preload": ((1, 1.0),)}],
        ),
        lambda s, r: (
            [q.finished_ns - q.arrived_ns for q in r.requests[:3]] == [3 * UNIT_NS, 6 * UNIT_NS, 9 * UNIT_NS]
            and [c.view.late for _, c in commands(r, Decide)] == [0, 0, 0, 1]  # type: ignore[attr-defined]
        ),
    )
    yield Directed(
        scene(
            "too many come of two classes, and some expire",
            [device()],
            list(range(60)),
            router={
                "micro_batch_sizes": (1,),
                "outstanding_micro_batches": 2,
                "shed_expired": True,
                "classes": ("gold", "bronze"),
                "sustained_img_s": 1e9 / (2 * UNIT_NS),
            },
            run={
                "classes": np.arange(60) % 2,
                "deadlines_ns": (9 * UNIT_NS, None),
                "goals": (
                    (0, GoalSet(floor=0.8, limit_ns=20 * UNIT_NS, service_class=0)),
                    (0, GoalSet(floor=0.6, limit_ns=60 * UNIT_NS, service_class=1)),
                ),
            },
            params=[{"preload": ((1, 1.0),)}],
        ),
        lambda s, r: {c.reason for _, c in commands(r, RequestFailed)} == {"refused", "deadline"},  # type: ignore[attr-defined]
    )
    split = device(limit=2, period_ns=4 * UNIT_NS)
    yield Directed(
        scene("a micro-batch is split over batches", [split], [0] * 7 + [30] * 3, router={"micro_batch_sizes": (8,)}),
        lambda s, r: len(steps(r, BatchFinished)) > len(commands(r, SendMicroBatch)),
    )


def _is_mru(r: RunRecord) -> bool:
    return len({batch.instance for batch in r.batches}) > 1


def _scheduler_scenes() -> Iterator[Directed]:
    yield Directed(
        scene(
            "two free instances of one width, used last at one instant",
            [device()],
            [10, 20, 20, 21, 40],
            params=[{"preload": ((1, 1.0), (1, 1.0)), "batch_limit": 1}],
            router={"micro_batch_sizes": (1, 2), "outstanding_micro_batches": 4},
        ),
        lambda s, r: next(b for b in r.batches).instance == 0 and _is_mru(r),
    )
    yield Directed(
        scene(
            "two free instances of one width, the other one used later",
            [device()],
            [10, 11, 30, 50],
            params=[{"preload": ((1, 1.0), (1, 1.0)), "batch_limit": 1}],
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: [b.instance for b in r.batches] == [0, 1, 1, 1],
    )
    yield Directed(
        scene(
            "utilization exactly at the micro-batch",
            [device(widths=TWO, busy=(300, 0), base_ns=30 * UNIT_NS, period_ns=5 * UNIT_NS)],
            [0, 12, 30, 31],
            choices={1: Choice(0, 0.5, 1), 2: Choice(0, 1.0, 1)},
            params=[{"utilization_block": 0.3}],
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: any(p.utilization == 0.3 for p in r.telemetry),
    )


def _device_scenes() -> Iterator[Directed]:
    crowded = device(
        demand=(700, 0), busy=(400, 33), power_mw=(33_333.3, 17.7), alpha=0.37, bandwidth=(0.31, 0.01), base_ns=7001,
        period_ns=2 * UNIT_NS, lag_ns=UNIT_NS, windows=(3, 2), beta=1.3, across_beta=1.7,
    )  # fmt: skip
    many = {"micro_batch_sizes": (1,), "outstanding_micro_batches": 4}
    preload = {"preload": ((1, 1.0),) * 3, "batch_limit": 1}
    for kind in ("cuda", "cpu"):
        yield Directed(
            scene(
                f"batches of two servers end at one instant on one device ({kind})",
                [replace(crowded, kind=kind)],
                [10, 10, 10, 10, 11, 12, 13],
                on=[0, 0],
                policy="round-robin",
                params=[preload],
                router=many,
            ),
            lambda s, r: meet(r, BatchFinished, BatchFinished),
        )
    yield Directed(
        scene(
            "a batch runs in two parts, the larger one first",
            [replace(crowded, demand=(300, 150), busy=(300, 100), power_mw=(2e4, 1234.5))],
            [10, 10, 10],
            params=[{"preload": ((1, 1.0),)}],
            run={"faults": (Squeeze(0, 0, 90_000, 2),)},
        ),
        lambda s, r: len(r.batches) == 1 and r.batches[0].size == 3,
    )
    yield Directed(
        scene(
            "eight servers report at one instant",
            [replace(crowded, period_ns=4 * UNIT_NS, lag_ns=4 * UNIT_NS)] * 8,
            [*range(3, 23)],
            policy="least-work",
            router=many,
        ),
        lambda s, r: meet(r, *[ServerReport] * 8),
    )
    slowdown = SlowdownTable(1.7, (5000, 3000), (2000, 4000))
    yield Directed(
        scene(
            "slowdown and jitter are drawn by hash",
            [
                replace(crowded, jitter=JITTERS[1], slowdown=slowdown),
                replace(crowded, jitter=JITTERS[0], slowdown=slowdown),
            ],
            [5, 5, 8, 11, 14, 17, 20, 23, 26],
            policy="random",
        ),
        lambda s, r: len({b.forward_ended_ns - b.started_ns for b in r.batches}) > 2,
    )


def _fault_scenes() -> Iterator[Directed]:
    quick = Supervision(
        hang_ns=6 * UNIT_NS,
        backoff_ns=2 * UNIT_NS,
        backoff_limit_ns=5 * UNIT_NS,
        stable_ns=30 * UNIT_NS,
        start_ns=3 * UNIT_NS,
    )
    two = [device(segments=2, base_ns=4 * UNIT_NS, period_ns=5 * UNIT_NS, lag_ns=2 * UNIT_NS)] * 2
    steady = [*range(2, 60, 3)]

    def broken(name: str, *faults: Fault, happened: Check, **changes: object) -> Directed:
        given: dict[str, object] = {"policy": "random", "supervision": quick, "devices": two, "arrivals": steady}
        return Directed(scene(name, run={"faults": faults}, **{**given, **changes}), happened)  # type: ignore[arg-type]

    u = UNIT_NS
    yield broken(
        "one of two servers is out, and the load is that of the other alone",
        Outage(1, 2 * u, 50 * u),
        devices=[device(widths=PAIR_WIDTHS, width_ns=4 * u)] * 2,
        arrivals=sorted(2 * [*range(5, 30)]),
        policy="ladder",
        router={"micro_batch_sizes": (1, 2, 4), "outstanding_micro_batches": 4},
        happened=lambda s, r: len({width for request in r.requests for width in request.widths}) > 1,
    )
    yield broken(
        "an outage ends as another begins",
        Outage(0, 30 * u, 50 * u),
        Outage(0, 10 * u, 30 * u),
        happened=lambda s, r: meet(r, ServerUp, ServerDown),
    )
    yield broken(
        "a restart falls into an outage",
        Crash(0, 10 * u),
        Outage(0, 12 * u, 40 * u),
        happened=lambda s, r: (10 * u, 40 * u) in returns(r),
    )
    yield broken(
        "crashes in a row, each a longer back-off, then a stable incarnation",
        *(Crash(0, at * u) for at in (5, 11, 20, 30, 100)),
        happened=lambda s, r: len({up_ns - down_ns for down_ns, up_ns in returns(r)}) >= 3,
        horizon=120,
    )
    yield broken(
        "hung, out, back, and noticed late",
        Hang(0, 11 * u),
        Outage(0, 13 * u, 17 * u),
        happened=lambda s, r: len(returns(r)) == 1,
    )
    for batch in (1, 2):
        yield broken(
            f"no memory for more than {batch}",
            Squeeze(0, 8 * u, 40 * u, batch),
            Squeeze(1, 8 * u, 40 * u, batch),
            devices=[device(segments=2, base_ns=4 * u, demand=(300, 150), power_mw=(2e4, 1234.5), period_ns=5 * u)] * 2,
            router={"micro_batch_sizes": (8,)},
            links=[link(5)],
            params=[{"load_backoff_ns": 3 * u, "load_retries": 2}],
            happened=lambda s, r: len(steps(r, BatchStarted)) > 3,
        )
    far = {"links": [link(6, 900)], "router": {"micro_batch_sizes": (2,), "micro_batch_key": "any"}}
    yield broken(
        "the source of a transfer dies",
        Crash(0, 24 * u),
        Crash(1, 36 * u),
        **far,
        happened=lambda s, r: bool(steps(r, TransferFailed)),
    )


def _network_scenes() -> Iterator[Directed]:
    yield Directed(
        scene(
            "a path of three segments",
            [device(segments=3, widths=TWO)],
            [1, 1, 3, 9],
            choices={1: Choice(0, 1.0, 2, (0.5, 1.0)), 2: Choice(0, 0.5, 1), 3: Choice(0, 0.5, 1, (1.0,))},
        ),
        lambda s, r: (
            [len(sent.micro_batch.then) for _, sent in commands(r, SendMicroBatch)][:3] == [2, 0, 1]  # type: ignore[attr-defined]
            and all(len(request.widths) == 3 for request in r.requests)
        ),
    )
    three = [device(segments=2)] * 3
    two_places = {1: Choice(0, 1.0, 1), 2: Choice(1, 1.0, 1), 3: Choice(2, 1.0, 2)}
    any_place = {"micro_batch_sizes": (1, 2), "micro_batch_key": "any", "outstanding_micro_batches": 4}
    yield Directed(
        scene(
            "two transfers of one micro-batch end at one instant",
            three,
            [1, 1],
            choices=two_places,
            router=any_place,
            links=[link(4)],
        ),
        lambda s, r: any(len(c.moves) == 2 for _, c in commands(r, SendMicroBatch)) and _together(r),  # type: ignore[attr-defined]
    )
    yield Directed(
        scene(
            "two transfers of one micro-batch queue for the medium, from the lower source first",
            [device(segments=2, base_ns=7 * UNIT_NS), *three[:2]],
            [1, 1],
            choices=two_places,
            router=any_place,
            links=[link(4, 1000), link(9, 1000), link(1, 1000)],
        ),
        lambda s, r: any(len(c.moves) == 2 for _, c in commands(r, SendMicroBatch)),  # type: ignore[attr-defined]
    )
    for media in (["air", "wire", "air"], ["m0", "m1", "m2"]):
        for loss in (0.0, 0.3):
            yield Directed(
                scene(
                    f"blocks for several servers on media {','.join(media)}, loss {loss}",
                    three,
                    [0] * 6 + [9] * 6,
                    policy="random",
                    media=media,
                    links=[link(2, 1500, loss), link(1, 900, loss), FREE],
                    router={"micro_batch_sizes": (2,), "outstanding_micro_batches": 4},
                    run={"seed": 5},
                ),
                lambda s, r: meet(r, Decided, Decided) and len(steps(r, TransferFinished)) > 6,
            )


def _together(r: RunRecord) -> bool:
    return any(
        one.now_ns == other.now_ns and one.event.micro_batch == other.event.micro_batch  # type: ignore[union-attr]
        for one, other in zip(steps(r, TransferFinished), steps(r, TransferFinished)[1:], strict=False)
    )


def _host_scenes() -> Iterator[Directed]:
    u = UNIT_NS
    many = {"micro_batch_sizes": (1, 2), "outstanding_micro_batches": 4}
    loaded = {"preload": ((1, 1.0), (2, 1.0)), "batch_limit": 2}
    for spread in ((), (0.37, 0.81, 1.82)):
        yield Directed(
            scene(
                f"messages wait for a host that decides, and for each other; spread {spread}",
                [device(segments=2)] * 3,
                [0, 0, 1, 1, 2, 2, 3, 5, 5, 9],
                policy="round-robin",
                host=host(decision=(2, 1), returned=(3, 1), spread=spread),
                decision_ns=UNIT_NS,
                params=[loaded],
                router=many,
            ),
            lambda s, r: _handover_ns(r) > 10 * u * max(s.cluster.host.spread, default=1),  # type: ignore[union-attr]
        )
    yield Directed(
        scene(
            "a micro-batch leaves in the middle of its decision's cost, and the next decision waits for all of it",
            [device()],
            [3, 3, 3, 20],
            decision_ns=UNIT_NS,
            host=host(decision=(4, 0), sent_permille=500),
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: (
            [b.sent_ns - b.snapshot_ns for b in r.micro_batches] == [3 * u] * 4
            and [b.snapshot_ns for b in r.micro_batches[:3]] == [3 * u, 8 * u, 13 * u]
        ),
    )
    yield Directed(
        scene(
            "an image is back in the middle of its message's cost, and the next decision waits for all of it",
            [device(segments=2)],
            [3, 60],
            host=host(returned=(4, 0), received_permille=500),
            params=[loaded],
            router=many,
        ),
        lambda s, r: (
            [b.snapshot_ns - a.ended_ns for a, b in zip(r.micro_batches[::2], r.micro_batches[1::2], strict=True)]
            == [2 * u] * 2
        ),
    )
    yield Directed(
        scene(
            "a decision costs what its micro-batch has of images, not its group",
            [device()],
            [3, 3, 3, 20],
            host=host(decision=(1, 2)),
            router={"micro_batch_sizes": (8,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: [b.sent_ns - b.snapshot_ns for b in r.micro_batches] == [7 * u, 3 * u],
    )
    ways = {"there_ns": u, "busy_there_ns": 9 * u, "back_ns": 11 * u, "busy_back_ns": 2 * u}
    for name, costs in (("and nothing else", None), ("to a busy host", host(decision=(1, 0), returned=(2, 0)))):
        yield Directed(
            scene(
                f"ways of different lengths, {name}",
                [device(segments=2, **ways)] * 2,
                [*range(2, 40)],
                policy="random",
                host=costs,
                params=[loaded],
                router=many,
            ),
            lambda s, r: len({b.arrived_ns - b.sent_ns for b in r.micro_batches if b.head.location == b.server}) > 2,
        )
    yield Directed(
        scene(
            "dispatches of different lengths: a later batch starts first",
            [device(dispatch_ns=u, busy_dispatch_ns=9 * u)],
            [10, 10, 11, 11, 12, 13, 13],
            params=[{"preload": ((1, 1.0),) * 3, "batch_limit": 1}],
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": 4},
        ),
        lambda s, r: (begun := _begun(r)) != sorted(begun),
    )
    quick = Supervision(hang_ns=9 * u, backoff_ns=2 * u, backoff_limit_ns=5 * u, stable_ns=30 * u, start_ns=3 * u)
    for name, costs in (("and nothing else", None), ("to a busy host", host(returned=(2, 1)))):
        for fault in (Crash(0, 21 * u), Hang(0, 16 * u), Outage(0, 19 * u, 20 * u)):
            yield Directed(
                scene(
                    f"on its way back when its server goes: {type(fault).__name__}, {name}",
                    [device(segments=2, there_ns=2 * u, back_ns=25 * u)] * 2,
                    [*range(2, 60, 3)],
                    policy="random",
                    host=costs,
                    supervision=quick,
                    params=[loaded],
                    router=many,
                    run={"faults": (fault, Crash(1, 48 * u))},
                ),
                lambda s, r: _is_stale(r),
            )
    yield Directed(
        scene(
            "a new life does not wait for what was on its way to the last one",
            [device(segments=2, there_ns=u, busy_there_ns=40 * u)],
            [*range(2, 90, 3)],
            supervision=quick,
            params=[loaded],
            router=many,
            run={"faults": tuple(Crash(0, at * u) for at in (20, 44, 71))},
        ),
        lambda s, r: len(returns(r)) == 3 and len({b.arrived_ns - b.sent_ns for b in r.micro_batches}) > 2,
    )
    for there in (0, 4 * u):
        yield Directed(
            scene(
                f"a hung server reads nothing, rings nothing; there {there}",
                [device(segments=2, there_ns=there)] * 2,
                [*range(2, 40, 2)],
                policy="random",
                supervision=quick,
                params=[{**loaded, "idle_unload_ns": 5 * u}],
                router=many,
                run={"faults": (Hang(0, 15 * u), Hang(1, 33 * u))},
            ),
            lambda s, r: len(commands(r, SendMicroBatch)) > len(steps(r, MicroBatchArrived)),
        )


def _begun(r: RunRecord) -> list[int]:
    """The numbers of the batches, in the order in which they start."""
    return [step.event.batch for step in steps(r, BatchStarted) if isinstance(step.event, BatchStarted)]


def _handover_ns(r: RunRecord) -> int:
    """The longest of an image, over its segments."""
    return max(request.stages_ns[STAGES.index("handover")] for request in r.requests)


def _is_stale(r: RunRecord) -> bool:
    """Whether a message came back from a life that had ended."""
    down_ns = {(step.event.server, step.event.incarnation): step.now_ns for step in steps(r, ServerDown)}  # type: ignore[union-attr]
    return any(
        step.now_ns > down_ns.get((step.event.server, step.event.incarnation), step.now_ns)  # type: ignore[union-attr]
        for step in steps(r, RequestsReturned)
    )


def _end_scenes() -> Iterator[Directed]:
    yield Directed(
        scene("a request arrives at the very horizon", [device()], [3, 10], horizon=10, run={"end": "cut"}),
        lambda s, r: r.requests[-1].arrived_ns == s.run.horizon_ns and len(commands(r, RequestCompleted)) == 1,
    )


def directed() -> list[Directed]:
    found = [*scenes(), *pairs()]
    assert len({each.name for each in found}) == len(found)
    return found
