"""What happened in a run of the reference, by its log: which features it had, and which events met at one instant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

from policies.faults import NO_LABEL, OUT_OF_MEMORY, WORKER_HUNG, Crash, Hang, Outage, Squeeze
from policies.records import RunRecord
from policies.vocabulary import (
    NS_PER_S,
    BatchFailed,
    BatchFinished,
    BatchStarted,
    BlockArrived,
    Decide,
    Decided,
    Held,
    HoldBegun,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RejectRequests,
    RequestArrived,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    ReturnRequests,
    RouterTimer,
    RunBatch,
    SendBlock,
    ServerDown,
    ServerUp,
    StragglerEnded,
    StragglerStarted,
    TelemetrySampled,
    TimerFired,
    TransferFailed,
    TransferFinished,
    TransferStarted,
    UnloadInstance,
)
from sim.cluster import RunSpec
from tests.parity.scenarios import Scenario

EVERYWHERE = -1  # the place of what happens at the router
KINDS = (
    "arrival",
    "transfer end",
    "block arrival",
    "batch start",
    "batch end",
    "load end",
    "unload end",
    "timer",
    "sample",
    "report",
    "message",
    "fault",
    "slowdown",
    "decision end",
    "heard",
    "question",
)
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
Tie = tuple[str, str, bool]  # two kinds, and whether both were at one server
FEATURES = (
    "a batch starts before an older one",
    "a batch without a label",
    "a block from several places",
    "a block that stays",
    "a block that a hung server never reads",
    "a hold that ended before its time",
    "a hold that lasted its time",
    "a hold that was over when it was answered",
    "a message of an earlier epoch",
    "a message waits for the host",
    "a question when the host is free again",
    "completed",
    "completed after a retry",
    "crash or hang of a server that is out",
    "cut",
    "died: planned",
    "died: worker_died",
    "died: worker_hung",
    "drained past the horizon",
    "evicted",
    "extrapolated",
    "failed: deadline",
    "failed: instance_too_large",
    "failed: no_label",
    "failed: out_of_memory",
    "failed: server_down",
    "hung, and died of something else",
    "jitter",
    "labels of BernoulliCorrectness",
    "labels of MatrixCorrectness",
    "loaded",
    "loaded again",
    "lost packets",
    "moved",
    "no detail",
    "no packets lost",
    "out of memory",
    "slowdown",
    "padded",
    "preloaded",
    "ran in a wider instance",
    "ran in halves",
    "rejected: instance_too_large",
    "rejected: no_label",
    "rejected: out_of_memory",
    "reports differ",
    "restarted",
    "server gone between question and answer",
    "several loads at once",
    "shed",
    "slowed down by others",
    "slowed down on a shared device",
    "some of a batch without a label",
    "stopped at the drain limit",
    "straggled",
    "throttled",
    "transfer lost with its source",
    "unloaded",
    "went alone",
)


def happenings(scenario: Scenario, record: RunRecord) -> Iterator[tuple[int, int, str]]:
    """(time, server, kind) of all that happened on the agenda, but for changes of slowdown that were drawn."""
    cluster, run = scenario.cluster, scenario.run
    for step in record.log:
        event, now_ns = step.event, step.now_ns
        if step.core == "router":
            if isinstance(event, RequestArrived):
                yield now_ns, EVERYWHERE, "arrival"
            elif isinstance(event, TransferFinished):
                yield now_ns, event.destination, "transfer end"
            elif isinstance(event, Decided | Held):
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
        if isinstance(event, BlockArrived) and cluster.devices[cluster.servers[server].device].there_ns:
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


def ties(scenario: Scenario, record: RunRecord) -> set[Tie]:
    """The pairs of kinds that met at one instant; the kinds in the order of `KINDS`, twice the same where two did."""
    at: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for now_ns, server, kind in happenings(scenario, record):
        at[now_ns][kind, server] += 1
    found: set[Tie] = set()
    for seen in at.values():
        found |= {(kind, kind, True) for (kind, _), count in seen.items() if count > 1}
        for (one, first), (other, second) in combinations(seen, 2):
            low, high = sorted((one, other), key=KINDS.index)
            found.add((low, high, first == second or EVERYWHERE in (first, second)))
    return found


def features(scenario: Scenario, record: RunRecord) -> set[str]:
    """What occurred."""
    return {
        *_of_records(scenario, record),
        *_of_router(scenario, record),
        *_of_holds(record),
        *_of_servers(scenario, record),
        *_of_host(scenario, record),
        *_of_messages(scenario, record),
        *_of_faults(scenario, record),
    }


def _of_records(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    run, devices = scenario.run, scenario.cluster.devices
    done = [request for request in record.requests if request.status == "completed"]
    yield from {f"failed: {request.reason}" for request in record.requests if request.status == "failed"}
    if done:
        yield "completed"
    if any(request.correct for request in done) and not all(request.correct for request in done):
        yield f"labels of {type(run.correctness).__name__}"
    if any(request.retries for request in done):
        yield "completed after a retry"
    if any(request.retries >= 2 for request in record.requests):
        yield "went alone"
    if any(request.moved for request in done):
        yield "moved"
    if any(request.status == "in_flight" for request in record.requests):
        yield "cut" if run.end == "cut" else "stopped at the drain limit"
    if run.end == "drain" and record.ended_ns > run.horizon_ns:
        yield "drained past the horizon"
    if any(device.extrapolated_s for device in record.devices):
        yield "extrapolated"
    if not run.detail and done:
        yield "no detail"
    for point in record.telemetry:
        device = devices[scenario.cluster.servers[point.server].device]
        if device.throttle and point.power_w >= device.cap_mw / 1000:
            yield "throttled"
            break
    yield from _of_batches(scenario, record)


def _of_batches(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    run, cluster = scenario.run, scenario.cluster
    for batch in record.batches:
        device = cluster.devices[cluster.servers[batch.server].device]
        table = device.keys[batch.segment, batch.width, batch.previous_width]
        took_ns = batch.forward_ended_ns - batch.started_ns
        if table.jitter and took_ns != table.latency_ns[batch.size]:
            yield "jitter"
        if not run.faults and not table.jitter and took_ns > table.latency_ns[-1]:
            place = cluster.servers[batch.server].device
            yield "slowdown" if device.slowdown is not None or place in run.slowdowns else "slowed down by others"
            if sum(server.device == place for server in cluster.servers) > 1:
                yield "slowed down on a shared device"


def _of_router(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    sent: dict[tuple[int, int], int] = {}
    for step in record.log:
        if step.core != "router":
            continue
        event = step.event
        for command in step.commands:
            if isinstance(command, Decide):
                if command.view.head.location >= 0 and len({s.utilization for s in command.view.servers}) > 1:
                    yield "reports differ"
            elif isinstance(command, RequestFailed) and command.reason == "deadline":
                yield "shed"
            elif isinstance(command, SendBlock) and len(command.moves) > 1:
                yield "a block from several places"
            elif isinstance(command, SendBlock) and not command.moves:
                yield "a block that stays"
        if isinstance(event, Decided) and not any(isinstance(c, SendBlock) for c in step.commands):
            yield "server gone between question and answer"
        elif isinstance(event, RequestsRejected):
            yield f"rejected: {event.reason}"
        elif isinstance(event, TransferFailed):
            yield "transfer lost with its source"
        elif isinstance(event, TransferStarted):
            sent[event.block, event.source] = step.now_ns
        elif isinstance(event, TransferFinished):
            link = scenario.cluster.servers[event.destination].attachment.link
            if event.source == EVERYWHERE and link.loss and link.latency_s:
                rounds_s = (step.now_ns - sent[event.block, event.source]) / 1e9 / link.latency_s
                yield "lost packets" if rounds_s >= 3 else "no packets lost"


def _of_holds(record: RunRecord) -> Iterator[str]:
    begun: dict[int, HoldBegun] = {}  # by when the oldest of the line had entered
    for step in record.log:
        for command in step.commands:
            if isinstance(command, HoldBegun):
                begun[command.entered_ns] = command
            elif isinstance(command, Decide) and command.view.head_entered_ns in begun:
                hold = begun.pop(command.view.head_entered_ns)
                yield (
                    "a hold that lasted its time"
                    if step.now_ns >= hold.until_ns
                    else "a hold that ended before its time"
                )
        if isinstance(step.event, Held) and not any(isinstance(c, HoldBegun) for c in step.commands):
            yield "a hold that was over when it was answered"


def _of_host(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    host = scenario.cluster.host
    if host is None:
        return
    sent_ns: dict[int, int] = {}  # of those whose way back takes no time
    done_ns = -1
    for step in record.log:
        for command in step.commands:
            if isinstance(command, ReturnRequests | RejectRequests) and step.core != "router":
                device = scenario.cluster.servers[int(step.core.split(":")[1])].device
                if not scenario.cluster.devices[device].back_ns:
                    sent_ns |= dict.fromkeys(command.requests, step.now_ns)
            elif isinstance(command, Decide) and done_ns == step.now_ns:
                yield "a question when the host is free again"
        if isinstance(step.event, Decided | Held | RequestsReturned | RequestsRejected):
            done_ns = step.now_ns
        if isinstance(step.event, RequestsReturned | RequestsRejected):
            requests = step.event.requests
            dearest_ns = max(host.cost_ns(host.returned, len(requests), drawn, NS_PER_S) for drawn in range(99))
            if step.now_ns - sent_ns.get(requests[0], step.now_ns) > dearest_ns:
                yield "a message waits for the host"


def _of_messages(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    epochs: dict[int, int] = {}
    read = {step.event.block.block for step in record.log if isinstance(step.event, BlockArrived)}
    hangs = [fault for fault in scenario.run.faults if isinstance(fault, Hang)]
    for step in record.log:
        event = step.event
        if step.core != "router":
            continue
        if isinstance(event, ServerUp):
            epochs[event.server] = event.epoch
        elif isinstance(event, RequestsReturned | RequestsRejected) and event.epoch != epochs[event.server]:
            yield "a message of an earlier epoch"
        for command in step.commands:
            if isinstance(command, SendBlock) and command.block.block not in read:
                server, limit_ns = command.block.server, scenario.cluster.supervision.hang_ns
                if any(hang.server == server and 0 <= step.now_ns - hang.at_ns < limit_ns for hang in hangs):
                    yield "a block that a hung server never reads"


def _of_servers(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    loaded: set[tuple[str, int, int, float]] = set()
    commanded: dict[tuple[str, int, int], RunBatch] = {}
    widths: dict[tuple[str, int, int], float] = {}
    started: dict[tuple[str, int], int] = {}  # the latest batch
    for step in record.log:
        if step.core == "router":
            continue
        knobs = scenario.cluster.servers[int(step.core.split(":")[1])].knobs
        loads = [command for command in step.commands if isinstance(command, LoadInstance)]
        if len(loads) > 1 and not isinstance(step.event, ServerUp):
            yield "several loads at once"
        for load in loads:
            yield "preloaded" if isinstance(step.event, ServerUp) else "loaded"
            spec = (step.core, load.epoch, load.segment, load.width)
            if spec in loaded:
                yield "loaded again"
            loaded.add(spec)
            widths[step.core, load.epoch, load.instance] = load.width
        for command in step.commands:
            if isinstance(command, RunBatch):
                commanded[step.core, command.epoch, command.batch] = command
                if command.padded > len(command.requests):
                    yield "padded"
                if widths[step.core, command.epoch, command.instance] > command.served_width:
                    yield "ran in a wider instance"
            elif isinstance(command, UnloadInstance):
                is_eviction = knobs.idle_unload_ns is None and not isinstance(step.event, BatchFailed)
                yield "evicted" if is_eviction else "unloaded"
        if isinstance(step.event, BatchFinished) and step.event.failed:
            yield "some of a batch without a label"
        elif isinstance(step.event, BatchFailed):
            yield {NO_LABEL: "a batch without a label", OUT_OF_MEMORY: "out of memory"}[step.event.reason]
        elif isinstance(step.event, BatchStarted):
            life, batch = (step.core, step.event.epoch), step.event.batch
            if batch < started.get(life, batch):
                yield "a batch starts before an older one"
            started[life] = batch
            size = len(commanded[step.core, step.event.epoch, step.event.batch].requests)
            if 0 < _room(scenario.run, step.core, step.now_ns) < size:
                yield "ran in halves"


def _room(run: RunSpec, core: str, now_ns: int) -> int:
    rooms = [
        fault.batch
        for fault in run.faults
        if isinstance(fault, Squeeze) and core == f"server:{fault.server}" and fault.start_ns < now_ns < fault.end_ns
    ]
    return rooms[0] if len(rooms) == 1 else 0


def _of_faults(scenario: Scenario, record: RunRecord) -> Iterator[str]:
    if any(down.up_ns is not None for down in record.downtimes):
        yield "restarted"
    downs = [
        (step.now_ns, step.event) for step in record.log if isinstance(step.event, ServerDown) and step.core != "router"
    ]
    for now_ns, down in downs:
        yield f"died: {down.reason}"
        for fault in scenario.run.faults:
            if not isinstance(fault, Hang) or fault.server != down.server or down.reason == WORKER_HUNG:
                continue
            if fault.at_ns < now_ns < fault.at_ns + scenario.cluster.supervision.hang_ns:
                yield "hung, and died of something else"
    for fault in scenario.run.faults:
        if isinstance(fault, Crash | Hang) and any(
            isinstance(other, Outage)
            and other.server == fault.server
            and other.start_ns <= fault.at_ns < (other.end_ns or fault.at_ns + 1)
            for other in scenario.run.faults
        ):
            yield "crash or hang of a server that is out"
    for step in record.log:
        if isinstance(step.event, StragglerStarted):
            yield "straggled"
            break
