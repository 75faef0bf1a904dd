"""What happened in a run of the reference, by its log: for whether the events that a scene sets up did meet."""

from __future__ import annotations

from collections.abc import Iterator

from policies.faults import Hang, Squeeze
from policies.run_records import RunRecord
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    Decide,
    Decided,
    Delayed,
    InstanceLoaded,
    InstanceUnloaded,
    MicroBatchArrived,
    RequestArrived,
    RequestsRejected,
    RequestsReturned,
    RouterTimer,
    ServerDown,
    ServerUp,
    StragglerEnded,
    StragglerStarted,
    TelemetrySampled,
    TimerFired,
    TransferFinished,
)
from tests.parity.scenarios import Scenario

EVERYWHERE = -1  # the place of what happens at the router


_OF_EVENT = {
    BatchStarted: "batch start",
    BatchFinished: "batch end",
    BatchFailed: "batch end",
    InstanceLoaded: "load end",
    InstanceUnloaded: "unload end",
    TimerFired: "timer",
    TelemetrySampled: "report",
    ServerDown: "fault",
    StragglerStarted: "fault",
    StragglerEnded: "fault",
}


def happenings(scenario: Scenario, record: RunRecord) -> Iterator[tuple[int, int, str]]:
    """(time, server, kind) of all that happened on the event queue, but for changes of slowdown that were drawn."""
    cluster, run = scenario.cluster, scenario.run
    for step in record.log:
        event, now_ns = step.event, step.now_ns
        if step.core == "router":
            if isinstance(event, RequestArrived):
                yield now_ns, EVERYWHERE, "arrival"
            elif isinstance(event, TransferFinished):
                yield now_ns, event.destination, "transfer end"
            elif isinstance(event, Decided | Delayed):
                yield now_ns, EVERYWHERE, "decision end"
            elif isinstance(event, RequestsReturned | RequestsRejected):
                if cluster.host is not None:
                    yield now_ns, EVERYWHERE, "heard"
                elif cluster.devices[cluster.servers[event.server].device].back_ns:
                    yield now_ns, event.server, "message"
            elif isinstance(event, RouterTimer) and any(isinstance(c, Decide) for c in step.commands):
                yield now_ns, EVERYWHERE, "question"
            continue
        server = int(step.core.split(":")[1])
        kind = _OF_EVENT.get(type(event))
        if isinstance(event, MicroBatchArrived) and cluster.devices[cluster.servers[server].device].there_ns:
            yield now_ns, server, "block arrival"
        if isinstance(event, BatchStarted) and not cluster.devices[cluster.servers[server].device].dispatch_ns:
            continue  # no event of its own
        if isinstance(event, TelemetrySampled):
            yield event.sampled_ns, server, "sample"
            if event.sampled_ns == event.received_ns:
                continue  # one event
        if kind is not None:
            yield now_ns, server, kind
        elif isinstance(event, ServerUp) and now_ns > 0:
            yield now_ns, server, "fault"
    for fault in run.faults:
        if isinstance(fault, Squeeze):
            yield fault.start_ns, fault.server, "fault"
            yield fault.end_ns, fault.server, "fault"
        elif isinstance(fault, Hang):
            yield fault.at_ns, fault.server, "fault"
    for device, changes in run.slowdowns.items():
        first = min((i for i, server in enumerate(cluster.servers) if server.device == device), default=0)
        for when_ns, _ in changes:
            if when_ns <= record.ended_ns:
                yield when_ns, first, "slowdown"
