"""The records of a compiled run as `policies.records.RunColumns`: no object for each request."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.records import NOT_PASSED, DeviceTotals, Downtime, RequestColumns, RunColumns, ServerTotals
from policies.vocabulary import NS_PER_S
from sim.compiled.codes import DOWN_REASONS, NONE, REASONS
from sim.compiled.layout import Server
from sim.compiled.run import RunRow
from sim.compiled.totals import chores_ns, device_of, energy_j


def run_columns(run: RunRow) -> RunColumns:
    """Return the columns of a run that has ended and keeps its requests."""
    c, records, is_detailed = run.cluster, run.records, run.run.detail
    reasons = tuple(REASONS[number] for number in range(len(REASONS)))
    return RunColumns(
        ended_ns=c.ended_ns,
        requests=request_columns(records.requests[: c.request_rows], run.program.widths, reasons, is_detailed),
        servers=tuple(_server_totals(run, index) for index in range(run.program.servers)),
        devices=tuple(_device_totals(run, index) for index in range(len(run.program.cluster.devices))),
        gpu_var=records.variances[: c.variances if is_detailed else 0],
        decisions=c.decision,
        downtimes=tuple(
            Downtime(server, down_ns, None if up_ns == NONE else up_ns, DOWN_REASONS[reason])
            for server, down_ns, up_ns, reason in records.downtimes[: c.downtimes].tolist()
        ),
    )


def _server_totals(run: RunRow, index: int) -> ServerTotals:
    c, p, spec, ended_ns = run.cluster, run.shape.p, run.program.cluster.servers[index], run.cluster.ended_ns
    server, device = Server(c, p.servers_at + index * p.server_size), device_of(run, spec.device)
    tables = run.program.cluster.devices[spec.device]
    chored_ns, busy_permille = chores_ns(device, ended_ns), max(device.busy_permille, tables.chores_permille)
    busy = device.busy_permille_ns + device.busy_permille * (ended_ns - device.updated_ns - chored_ns)
    busy += busy_permille * chored_ns
    return ServerTotals(
        name=spec.name,
        device=spec.device,
        busy_s=busy / NS_PER_S / 1000,
        images=server.images,
        batches=server.batches,
        loads=server.loads,
        unloads=server.unloads,
        vram_peak_bytes=server.peak_bytes,
    )


def _device_totals(run: RunRow, index: int) -> DeviceTotals:
    device, tables, ended_ns = device_of(run, index), run.program.cluster.devices[index], run.cluster.ended_ns
    open_ns = ended_ns - device.updated_ns if device.is_extrapolated else 0
    power = tables.profile.power
    return DeviceTotals(
        name=tables.name,
        energy_j=energy_j(run, index, ended_ns),
        bare_idle_w=power.bare_idle_w,
        context_idle_w=power.context_idle_w,
        extrapolated_s=(device.extrapolated_ns + open_ns) / NS_PER_S,
    )


def request_columns(
    rows: NDArray[Any], widths: tuple[float, ...], reasons: tuple[str, ...], is_detailed: bool
) -> RequestColumns:
    """Convert recorded requests (`run.request_row`), in their order.

    Args:
        reasons: why a request failed, by the engine's numbers.
    """
    head, ran, width = rows["head"], rows["servers"], rows["widths"]
    is_passed = np.arange(ran.shape[1]) < head["length"][:, np.newaxis]
    return RequestColumns(
        request=head["id"],
        arrived_ns=head["arrived_ns"],
        finished_ns=head["finished_ns"],
        status=head["fate"].astype(np.int8),  # the layout numbers them in the order of `STATUSES`
        reason=head["reason"].astype(np.int8),
        correct=head["correct"] != 0,
        energy_j=head["energy_j"],
        width=np.where(is_passed, width, NOT_PASSED).astype(np.int8),
        moves=np.count_nonzero((ran[:, 1:] != ran[:, :-1]) & is_passed[:, 1:], axis=1),
        stages_ns=rows["stages_ns"] if is_detailed else None,
        reasons=reasons,
        widths=widths,
    )
