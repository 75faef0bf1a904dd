"""One record of a run in which several routers served, each of which kept its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from hw.router.front_end import Fates
from policies.ledger import ReportedPower
from policies.records import STAGES, BackgroundLoad, CpuUse, RequestRecord, RunRecord, TelemetryPoint
from policies.reward import variance


def merged(
    records: Mapping[int, RunRecord], fates: Fates, owners: Sequence[int], arrivals_ns: Sequence[int], routers: int
) -> RunRecord:
    """What the routers' records say together.

    Of a router that was killed there is no record: of what it had ended the front end knows when and how, and that is
    what counts; of its servers what they did under their next router.

    Args:
        records: by router, of those that lived.
        owners: of each server, at the end.
        arrivals_ns: of each image.
        routers: how many there were at first.
    """
    every = [records[place] for place in sorted(records)]
    ended_ns = max(record.ended_ns for record in every)
    telemetry = tuple(sorted((point for record in every for point in record.telemetry), key=lambda p: p.sampled_ns))
    power, gpu_var = _of_all(telemetry, len(owners))
    return replace(
        every[0],
        ended_ns=ended_ns,
        requests=tuple(_requests(records, fates, arrivals_ns, ended_ns, power)),
        blocks=tuple(
            structs.replace(block, decision=block.decision * routers + place)
            for place, record in records.items()
            for block in record.blocks
        ),
        batches=tuple(batch for record in every for batch in record.batches),
        telemetry=telemetry,
        servers=tuple(records[owner].servers[server] for server, owner in enumerate(owners)),
        devices=tuple(
            records[owners[next(i for i, each in enumerate(every[0].servers) if each.device == device)]].devices[device]
            for device in range(len(every[0].devices))
        ),
        gpu_var=gpu_var,
        decisions=sum(record.decisions for record in every),
        arrival_lags_ns=tuple(lag_ns for record in every for lag_ns in record.arrival_lags_ns),
        downtimes=tuple(sorted((down for r in every for down in r.downtimes), key=lambda down: down.down_ns)),
        router_busy_ns=sum(record.router_busy_ns for record in every),
        agents_busy_ns=tuple(records[owner].agents_busy_ns[server] for server, owner in enumerate(owners)),
        references=tuple(reading for record in every for reading in record.references),
        background_load=_background(every),
        cpu=_cpu(every),
        router_costs=tuple(cost for record in every for cost in record.router_costs),
        handovers=tuple(handover for record in every for handover in record.handovers),
        chores=tuple(chore for record in every for chore in record.chores),
        clocks=tuple(clock for record in every for clock in record.clocks),
    )


def _of_all(telemetry: Sequence[TelemetryPoint], servers: int) -> tuple[ReportedPower, tuple[float, ...]]:
    """The mean power over all servers, and the variance of their utilization at each reading."""
    power, utilization, gpu_var = ReportedPower(servers), [0.0] * servers, list[float]()
    for point in telemetry:
        power.report(point.server, point.power_w, point.sampled_ns)
        utilization[point.server] = point.utilization
        gpu_var.append(variance(utilization))
    return power, tuple(gpu_var)


def _requests(
    records: Mapping[int, RunRecord],
    fates: Fates,
    arrivals_ns: Sequence[int],
    ended_ns: int,
    power: ReportedPower,
) -> list[RequestRecord]:
    """Each image once, in the order in which they ended: as the router that ended it has it, first of all."""
    kept = {(place, each.request): each for place, record in records.items() for each in record.requests}
    ends = {request: place for place, request in kept if kept[place, request].status != "in_flight"}
    ends |= {request: place for request, (place, _) in fates.ended.items()}
    requests = []
    for request, arrived_ns in enumerate(arrivals_ns):
        record = kept.get((ends[request], request)) if request in ends else None
        if record is None and request in fates.ended:
            _, told = fates.ended[request]
            record = RequestRecord(
                request,
                arrived_ns,
                told.ended_ns,
                "failed" if told.reason else "completed",
                told.reason,
                told.retries,
                told.widths,
                (),
                told.correct,
                0.0,
                (0,) * len(STAGES),
            )
        elif record is None and arrived_ns <= ended_ns:
            record = RequestRecord(
                request, arrived_ns, ended_ns, "in_flight", "", 0, (), (), False, 0.0, (0,) * len(STAGES)
            )
        if record is not None:
            requests.append(_from_its_arrival(record, arrived_ns, fates, power))
    return sorted(requests, key=lambda each: each.finished_ns)


def _from_its_arrival(record: RequestRecord, arrived_ns: int, fates: Fates, power: ReportedPower) -> RequestRecord:
    """Who was moved to another router waited before it came there; with a dead one the time is lost."""
    stages_ns = [*record.stages_ns]
    if stages_ns:
        stages_ns[-1 if fates.moved.get(record.request) else 0] += record.arrived_ns - arrived_ns
    energy_j = power.energy_j(record.finished_ns) - power.energy_j(arrived_ns)
    return structs.replace(record, arrived_ns=arrived_ns, stages_ns=tuple(stages_ns), energy_j=energy_j)


def _background(records: Sequence[RunRecord]) -> BackgroundLoad | None:
    """The largest of theirs."""
    loads = [record.background_load for record in records if record.background_load is not None]
    return max(loads, key=lambda load: load.share, default=None)


def _cpu(records: Sequence[RunRecord]) -> CpuUse | None:
    """Of the fullest router and agent; what all take of the cores."""
    uses = [record.cpu for record in records if record.cpu is not None]
    if not uses:
        return None
    return CpuUse(max(use.router for use in uses), max(use.agent for use in uses), sum(use.cores for use in uses))
