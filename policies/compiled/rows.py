"""The offsets of records in a sheet or a plan, and access to the tables of a plan."""

from __future__ import annotations

from typing import Final

from kit.jit import ints, kernel
from policies.compiled.layout import ANYWHERE, Plan, SeenServer, Sheet
from policies.interfaces import ELSEWHERE, HERE, IN_RACK, WAYS

_SHEET: Final = Sheet.size


@kernel
def seen_at(sheet: Sheet, index: int) -> SeenServer:
    """Return the view of a server."""
    return SeenServer(sheet, _SHEET, index)


@kernel
def looked(plan: Plan, sheet: Sheet) -> int:
    """Return the number of servers that the decision examines."""
    return sheet.samples if sheet.samples else plan.servers


@kernel
def looked_at(sheet: Sheet, place: int) -> int:
    """Return one of them (`context.looked_at`)."""
    return ints(sheet)[sheet.samples_at + place] if sheet.samples else place


@kernel
def is_up(sheet: Sheet, index: int) -> bool:
    """Compute `context.is_up`."""
    seen = seen_at(sheet, index)
    return seen.code != 0 or seen.blocks > 0


@kernel
def held(holds: int, wanted: int) -> int:
    """Compute `widths.held_width`: the widest held one not above `wanted` (NONE: below all), or otherwise the
    narrowest."""
    for width in range(wanted, -1, -1):
        if holds >> width & 1:
            return width
    width = wanted + 1
    while not holds >> width & 1:
        width += 1
    return width


@kernel
def largest_group(plan: Plan) -> int:
    """Return the largest of the groups to choose from."""
    return ints(plan)[plan.groups_at + plan.group_count - 1]


@kernel
def key_of(plan: Plan, sheet: Sheet, width: int) -> int:
    """Return the work key of the head at this width."""
    return (sheet.segment * plan.widths + width) * (plan.widths + 1) + sheet.previous_width


@kernel
def image_ns(plan: Plan, server: int, key: int) -> int:
    """Compute `costs.image_ns`."""
    return ints(plan)[plan.image_ns_at + ints(plan)[plan.devices_at + server] * plan.keys + key]


@kernel
def batch_ns(plan: Plan, server: int, key: int, batch: int) -> int:
    """Compute `costs.batch_ns`."""
    device = ints(plan)[plan.devices_at + server]
    return ints(plan)[plan.batch_ns_at + (device * plan.keys + key) * (plan.most + 1) + batch]


@kernel
def transfer_ns(plan: Plan, sheet: Sheet, server: int) -> int:
    """Compute `costs.transfer_ns`: the candidates' inputs; 0 if a block may mix locations."""
    source = sheet.location
    if source == ANYWHERE:
        return 0
    line = sheet.segment * (plan.widths + 1) + sheet.previous_width
    lines, link, way = plan.segments * (plan.widths + 1), 0, ELSEWHERE
    if source >= 0:
        link = 1 + ints(plan)[plan.links_at + source]
        if ints(plan)[plan.racks_at + source] == ints(plan)[plan.racks_at + server]:
            way = HERE if source == server else IN_RACK
    place = ((link * plan.links + ints(plan)[plan.links_at + server]) * WAYS + way) * lines + line
    return ints(plan)[plan.transfer_ns_at + place * (plan.most + 1) + sheet.candidates]
