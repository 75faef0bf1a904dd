"""A profile as a page, and as a part of a run's report: its errors, where they hold, and its charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from policies.vocabulary import Provenance
from scenarios.show.html import Block, Grid, Heading, Note, Page, chart, render
from scenarios.show.profile import PROMISES_NOTHING, error_table, range_table
from scenarios.show.profile_charts import (
    energy_by_utilization,
    latency_by_utilization,
    latency_curves,
    utilization_by_batch,
)
from scenarios.show.profile_curves import latency_bands, loaded_at_once, loaded_batch, under_load
from sim.profile import Profile


def profile_page(profile: Profile) -> str:
    """A page of one profile's curves and the paper's Figures 1-3."""
    return render(Page(profile.name, {"": list(profile_blocks(profile.name, profile))}))


def origin_badge(profile: Profile) -> tuple[str, str]:
    """The weaker origin of latency and power, which colors it, and both in words: nothing modelled looks measured."""
    latency, power = profile.provenance, profile.power.provenance
    weakest = Provenance.weakest(latency, power)
    return (profile.origin,) * 2 if weakest == latency else (str(weakest), f"latency {profile.origin}, power {power}")


def profile_blocks(server: str, profile: Profile) -> Iterator[Block]:
    """What a page says of one profile, under the server's name."""
    word = profile.origin
    yield Heading(f"{server}: {profile.device.name}", *origin_badge(profile))
    if profile.provenance == Provenance.DATASHEET:
        yield Note(f"{PROMISES_NOTHING}.", "warning")
    yield from (table for table in (error_table(profile), range_table(profile)) if table.rows)
    sources = f"latency {word}, power {profile.power.provenance}, concurrency {profile.concurrency.provenance}"
    yield Note(f"Where it comes from: {sources}; shares of the memory bandwidth modelled from shapes.")
    if profile.omitted:
        yield Note(f"Left out: {'; '.join(profile.omitted)}.")
    yield _charts(_Drawable(profile.to_yaml(), profile))


@dataclass(frozen=True, slots=True)
class _Drawable:
    """A profile that is told from others by its text."""

    text: str
    profile: Profile = field(compare=False)


@lru_cache(maxsize=16)
def _charts(of: _Drawable) -> Grid:
    """Kept: they take seconds to draw, and a profile may be shown on several pages."""
    profile = of.profile
    bands, loaded = latency_bands(profile), under_load(profile)
    stated = next(iter(bands.values())).error_share
    dashes = "" if stated is None else f"; dashed, the stated error of {100 * stated:.1f} % around it"
    alone = f"Median latency of a batch alone, shaded from the 5th to the 95th percentile{dashes}. "
    alone += "Where a line is flat, a larger batch costs little."
    figure1 = (
        "The paper's Figure 1: utilization (any kernel running) against batch size; dotted, the share of the SMs. "
    )
    figure1 += "See from which batch on the device is full."
    stream = (
        f"as a Poisson stream of batches of {loaded_batch(profile)} fills the device, "
        f"up to {loaded_at_once(profile)} at once. "
        "Dots: where latency bends most. Shaded: where the paper saw it."
    )
    figure2 = f"The paper's Figure 2: energy of a batch (mean power x latency) against utilization, {stream} "
    figure2 += "See where a line turns upwards: beyond that, a batch costs more the fuller the device is."
    figure3 = f"The paper's Figure 3: mean latency against utilization, {stream} "
    figure3 += "See how far right a line stays flat: so much load costs no time."
    return Grid(
        [
            chart(latency_curves(profile, bands), alone),
            chart(utilization_by_batch(profile), figure1),
            chart(energy_by_utilization(profile, loaded), figure2),
            chart(latency_by_utilization(profile, loaded), figure3),
        ]
    )
