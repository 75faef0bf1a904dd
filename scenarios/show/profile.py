"""What `slimsched profile show` prints of a profile."""

from __future__ import annotations

import re

from policies.vocabulary import Provenance
from scenarios.show.table import Column, Table, columns, facts, to_text
from scenarios.show.wording import lines_of, say
from sim.profile import Profile

DISTURBED = "disturbed"  # the stamp of steps that were disturbed
UNRELIABLE_SHARE = 0.05  # of the steps may have stayed so
PROMISES_NOTHING = (
    "DERIVED FROM A DATASHEET: nothing was measured, no error is promised. Good for trying things out; `slimsched "
    "calibrate` measures a device"
)


def described(profile: Profile) -> str:
    """Describe all of a profile but its curves."""
    stamps = {key: value for key, value in profile.device.stamps.items() if key != DISTURBED}
    disturbed = unreliable(profile) or profile.device.stamps.get(DISTURBED, "")
    head = f"{profile.name}: {profile.device.name} ({profile.device.kind}), {profile.origin}"
    parts = [f"{head}\n{to_text([facts(lines_of('profile', 'facts', profile, stamps, disturbed))])}"]
    if profile.provenance == Provenance.DATASHEET:
        parts.append(f"{PROMISES_NOTHING}.")
    return to_text([*parts, *tables_of(profile)])


def tables_of(profile: Profile) -> list[Table]:
    """Return its errors, and where they hold; no table of what it lacks."""
    return [table for table in (error_table(profile), range_table(profile)) if table.rows]


def error_table(profile: Profile) -> Table:
    """Return how far each quantity of the profile may be off."""
    percents = (Column(head, "%", 2) for head in ("median", "mean", "90th percentile", "largest"))
    rows = [
        [of.metric, of.kind, of.median_abs_pct, of.mean_abs_pct, of.p90_abs_pct, of.max_abs_pct, of.points]
        for of in profile.errors
    ]
    return Table([Column("error of"), Column("kind", is_text=True), *percents, Column("points")], rows)


def range_table(profile: Profile) -> Table:
    """Return where errors hold; beyond that everything is extrapolated."""
    rows = [[held.metric, held.quantity, f"{held.low:g}", f"{held.high:g}"] for held in profile.ranges]
    return Table([Column("holds for"), Column("quantity", is_text=True), *columns("from", "to")], rows)


def unreliable(profile: Profile) -> str:
    """Describe a calibration of which many steps stayed disturbed, and by what; empty for a good one."""
    text = profile.device.stamps.get(DISTURBED, "")
    if match := re.search(r"of (\d+) points and sets, (\d+) stayed disturbed: (\d+) by .*, (\d+) below", text):
        steps, still, taken, slow = map(int, match.groups())
        if still > UNRELIABLE_SHARE * steps:
            return say("profile", "unreliable", still, steps, taken, slow)
    return ""
