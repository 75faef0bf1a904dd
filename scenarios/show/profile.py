"""What `slimsched profile show` says of a profile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from textwrap import fill

from policies.vocabulary import Provenance
from scenarios.metrics.statistics import Estimate
from scenarios.show.numbers import interval, number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.terminal.screen import screen_width
from sim.profile import LatencyFit, Profile, WorkCost

READABLE = 110  # characters of a line where there is no screen
DISTURBED = "disturbed"  # the stamp of steps that others disturbed
SPOILT_SHARE = 0.05  # of the steps may have stayed so
LATENCY_FITS: Mapping[LatencyFit, str] = {
    "each key": "each through its own points",
    "surface": "from one surface over all keys, which predicted points that it had not seen better than each key's own",
}
PROMISES_NOTHING = (
    "DERIVED FROM A DATASHEET: nothing was measured, no error is promised. Good for trying things out; `slimsched "
    "calibrate` measures a device"
)


def described(profile: Profile) -> str:
    """All that a profile says of itself, but for its curves."""
    screen = screen_width()
    width = screen or READABLE
    lines = [f"{profile.name}: {profile.device.name} ({profile.device.kind}), {profile.origin}"]
    for name, text in _facts(profile):
        lines.append(fill(text, width, initial_indent=f"  {name:<12} ", subsequent_indent=" " * 15))
    if profile.provenance == Provenance.DATASHEET:
        lines += ["", fill(f"{PROMISES_NOTHING}.", width)]
    tables = [table for table in (error_table(profile), range_table(profile)) if table.rows]
    return to_text(["\n".join(lines), *tables], screen)


def error_table(profile: Profile) -> Table:
    """How far each quantity of the profile may be off."""
    percents = (Column(head, "%") for head in ("median", "mean", "largest"))
    rows = [
        [
            error.metric,
            error.kind,
            *(number(percent, 2) for percent in (error.median_abs_pct, error.mean_abs_pct, error.max_abs_pct)),
            str(error.points),
        ]
        for error in profile.errors
    ]
    return Table([Column("error of"), Column("kind", is_text=True), *percents, Column("points")], rows)


def range_table(profile: Profile) -> Table:
    """Where errors hold; beyond that everything is extrapolated."""
    rows = [[found.metric, found.quantity, f"{found.low:g}", f"{found.high:g}"] for found in profile.ranges]
    return Table([Column("holds for"), Column("quantity", is_text=True), *columns("from", "to")], rows)


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    power, model, sensor, sharing = profile.power, profile.model, profile.sensor, profile.concurrency
    yield "model", f"{model.name} ({model.hash[:12]}), {model.segments} segments, widths {list(model.widths)}"
    stamps = {key: value for key, value in profile.device.stamps.items() if key != DISTURBED}
    yield "stack", ", ".join(f"{key} {value}" for key, value in stamps.items()) or "not stamped"
    yield "execution", ", ".join(f"{key} {value}" for key, value in profile.execution.items()) or "not said"
    made = "" if profile.latency_fit is None else f", {LATENCY_FITS[profile.latency_fit]}"
    yield "latency", f"{len(profile.latency)} curves, batches up to {profile.batch_limit} ({profile.origin}){made}"
    watts = f"idle {power.bare_idle_w:g} W, ready {power.context_idle_w:g} W, cap {power.cap_w:g} W"
    yield "power", f"{watts} ({power.provenance})"
    fitted = f"alpha {_with_interval(sharing.alpha, sharing.alpha_ci95)}, beta "
    fitted += _with_interval(sharing.beta, sharing.beta_ci95)
    if sharing.across_beta is not None:
        fitted += f", across processes {_with_interval(sharing.across_beta, sharing.across_beta_ci95)}"
    yield "concurrency", f"{fitted} ({sharing.provenance})"
    if DISTURBED in profile.device.stamps:
        yield "disturbed", spoilt(profile) or profile.device.stamps[DISTURBED]
    held_bytes = sum(cost.vram_bytes for cost in profile.memory.instances) + profile.memory.context_bytes
    yield "memory", f"{_size(profile.device.vram_bytes)}; context and every instance {_size(held_bytes)}"
    yield "dispatch", _overheads(profile)
    windows = f"power over {sensor.power_window_s:g} s, utilization over {sensor.utilization_window_s:g} s"
    yield "sensor", f"every {sensor.period_s:g} s: {windows}, {sensor.lag_s:g} s late"
    if profile.slowdown is not None:
        slowdown = profile.slowdown
        slow = f"slow spells: {100 * slowdown.slow_share:.0f} % of the time, {slowdown.mean_slow_s:.2g} s each"
        slow += f", things take {slowdown.slow_factor:.2f} times as long"
        yield "slowdown", f"{slow} ({slowdown.provenance}); latencies are of full speed"
    if profile.link is not None:
        yield "link", f"{profile.link.latency_s * 1e6:.0f} us, {profile.link.bandwidth_bytes_s / 1e9:.2f} GB/s"
    yield from (("left out", text) for text in profile.omitted)


def spoilt(profile: Profile) -> str:
    """What to say of a calibration that others disturbed to its end in more than a few steps; empty for a good one."""
    found = re.search(r"of (\d+) steps .* (\d+) stayed disturbed", profile.device.stamps.get(DISTURBED, ""))
    steps, still = (int(found[1]), int(found[2])) if found else (0, 0)
    if still <= SPOILT_SHARE * steps:
        return ""
    text = f"SPOILT: {still} of {steps} steps ({100 * still / steps:.0f} %) were disturbed to the end"
    return f"{text}, by other programs or a slow spell of the device; calibrate again when it is quiet, or for longer"


def _size(count_bytes: float) -> str:
    return f"{count_bytes / 1e9:.1f} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.1f} MB"


def _with_interval(value: float, half_width: float | None) -> str:
    return interval(Estimate(mean=value, ci95=half_width), 3)


def _overheads(profile: Profile) -> str:
    parts = [f"{profile.dispatch_s * 1e6:.0f} us"]
    if profile.served_extra_s:
        parts.append(f"the device {profile.served_extra_s * 1e6:.0f} us beyond the pass")
    if (handover := profile.handover) is not None:
        there_us, back_us = (1e6 * sum(way_s) / len(way_s) for way_s in (handover.there_s, handover.back_s))
        parts.append(f"from the router {there_us:.0f} us, back to it {back_us:.0f} us")
    if (host := profile.router_host) is not None:
        parts.append(
            f"the router's host: {_per_block(host.decision)} to send, {_per_block(host.returned)} to take back"
        )
    return ", ".join(parts)


def _per_block(cost: WorkCost) -> str:
    return f"{cost.block_s * 1e6:.0f} us a block and {cost.image_s * 1e6:.1f} us an image"
