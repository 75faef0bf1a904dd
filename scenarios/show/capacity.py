"""A capacity, and each rate that was tried for it, in words."""

from __future__ import annotations

from scenarios.metrics.limits import Capacity
from scenarios.metrics.service import Promise
from scenarios.runs.capacity import GROWTH_LIMIT, Reading, Tried
from scenarios.show.numbers import duration, number, plural, share


def capacity_text(found: Capacity) -> str:
    """The rate and what was asked of it, then what users have there."""
    asked = [] if found.p99_limit_s is None else [f"a p99 of at most {duration(found.p99_limit_s)}"]
    asked += [] if found.floor is None else [f"an accuracy of at least {share(found.floor)}"]
    most, too_much = f"{found.stable_img_s:.1f} images/s", f"{found.unstable_img_s:.1f}"
    told = (
        f"carries {most} at {' and '.join(asked)}, not {too_much}" if asked else f"stable at {most}, not at {too_much}"
    )
    seeds = f"{plural(len(found.seeds), 'seed').partition(' ')[2]} {', '.join(map(str, found.seeds))}"
    text = f"{found.router}: {told} ({found.workload} arrivals, {found.duration_s:g} s, {seeds})"
    there = f"p99 {duration(found.p99_s)}, accuracy {share(found.accuracy)}"
    stable = f"stable: in its second half the backlog grows by at most {share(GROWTH_LIMIT)} of what arrives"
    return f"{text}\n  there: {there}, {number(found.energy_per_image_j, None)} J/image\n  {stable}"


def tried_text(tried: Tried, promise: Promise) -> str:
    """Whether a rate is carried; else why not, and by how much."""
    rate = f"{tried.rate_img_s:.1f} images/s"
    if tried.carries:
        return f"{rate}: stable" + ("" if promise == Promise() else ", and keeps what is asked")
    missed = [_missed(each, promise) for each in tried.readings if not each.keeps(promise)]
    return f"{rate}: {missed[0]}"


def _missed(reading: Reading, promise: Promise) -> str:
    if not reading.is_steady:
        return "not stable"
    parts = [] if reading.keeps_limit(promise) else [f"p99 {duration(reading.p99_s)}"]
    parts += [] if reading.keeps_floor(promise) else [f"accuracy {share(reading.accuracy)}"]
    return f"stable, but {' and '.join(parts)}"
