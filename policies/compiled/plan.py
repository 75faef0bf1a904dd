"""The writer of plans: the row that compiled rules read, with the expected costs of a cluster as tables of
nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from threading import Lock
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from kit.jit import Ints
from policies.compiled.layout import NONE, Plan
from policies.interfaces import WAYS, Alike, CostModel, RouterConfig
from policies.vocabulary import IMAGE, NS_PER_S, ROUTER, WorkKey

MOST_KEPT: Final = 1024  # tables: four for each cluster; a router may be trained over many at once
Table = Literal["image", "batch", "transfer"]


class PlanRow:
    """A plan in progress, which grows with each part.

    Args:
        config: the router core's settings.
        costs: expected costs; None for a rule that needs none.

    Attributes:
        head: its first record, set by name. Initially the groups are those of the settings, and a decision may draw a
            number for each server and three more.
    """

    def __init__(self, config: RouterConfig, costs: CostModel | None) -> None:
        self.config, self.costs = config, costs
        self.keys = work_keys(config)
        self.head = Plan.blank()
        self._parts: list[npt.NDArray[np.int64]] = [self.head.numbers]
        self._size = Plan.size
        head = self.head
        head.servers, head.segments, head.widths = config.servers, config.segments, len(config.widths)
        head.keys, head.most = len(self.keys), config.groups[-1]
        self.set_groups(config.groups)
        head.turn, head.wake_ns, head.most_draws = NONE, 1 << 62, config.servers + 3
        head.delay_at = Plan.offsets["width_rule"]

    def add(self, values: npt.ArrayLike) -> int:
        """Append integers, or reals; returns their offset."""
        array = np.ascontiguousarray(values).ravel()
        array = array.view(np.int64) if array.dtype == np.float64 else array.astype(np.int64)
        self._parts.append(array)
        at, self._size = self._size, self._size + len(array)
        return at

    def set_groups(self, groups: Sequence[int]) -> None:
        """Set the groups to choose from, ascending."""
        self.head.groups_at, self.head.group_count = self.add(groups), len(groups)

    def row(self) -> Ints:
        """Return the plan."""
        return np.concatenate(self._parts)

    def add_costs(self, tables: Sequence[Table] = ("image", "batch", "transfer")) -> None:
        """Append the expected costs of the cluster, as tables of nanoseconds."""
        assert self.costs is not None, "this rule asks for costs"
        alike = alike_of(self.config, self.costs)
        self.head.links = 1 + max(alike.links)
        for what in ("devices", "links", "racks"):
            setattr(self.head, f"{what}_at", self.add(getattr(alike, what)))
        for name in tables:
            setattr(self.head, f"{name}_ns_at", self.add(cost_table(self.config, self.costs, name)))

    def code(self, widths: Sequence[float]) -> list[int]:
        """Return the widths by number."""
        return [self.config.widths.index(width) for width in widths]


def work_keys(config: RouterConfig) -> list[WorkKey]:
    """Return every key (segment, width, previous width) in the order of its number, including impossible ones."""
    before = (IMAGE, *config.widths)
    return [WorkKey(s, w, p) for s in range(1, config.segments + 1) for w in config.widths for p in before]


_tables: dict[tuple[Any, ...], tuple[CostModel, Ints]] = {}
_lock = Lock()


def alike_of(config: RouterConfig, costs: CostModel) -> Alike:
    """Return which of the cluster's servers cost the same, by numbers from 0 on; all differ if this is unknown."""
    known, each = costs.alike, tuple(_all(config))
    if known is None:
        return Alike(each, each, (0,) * config.servers)
    return Alike.of(*([of[server] for server in each] for of in (known.devices, known.links, known.racks)))


def transfers_of(config: RouterConfig, costs: CostModel) -> int:
    """Return the number of entries of the table of moves."""
    links, lines = 1 + max(alike_of(config, costs).links), config.segments * (len(config.widths) + 1)
    return (links + 1) * links * WAYS * lines * (config.groups[-1] + 1)


def cost_table(config: RouterConfig, costs: CostModel, name: Table) -> Ints:
    """Return nanoseconds, rounded as in `policies.rules.costs`; computed once for a cost model, which is pure.

    Servers with equal costs share a row. (devices, keys) of an image, (devices, keys, most + 1) of a batch; (links + 1,
    links, `WAYS`, lines, most + 1) of moves: from the router (0) or from link n - 1, by segment and previous width. 0
    if there is no such key, batch or way.
    """
    key = (id(costs), config.servers, config.segments, config.model_widths, config.groups[-1], name)
    with _lock:
        table = _tables.get(key)
        if table is None or table[0] is not costs:
            while len(_tables) >= MOST_KEPT:
                del _tables[next(iter(_tables))]
            table = _tables[key] = (costs, _MAKERS[name](config, costs))
    return table[1]


def _image_table(config: RouterConfig, costs: CostModel) -> Ints:
    keys, devices = work_keys(config), _servers_of(alike_of(config, costs).devices)
    rows = [[_ns(costs.image_s(server, key)) if config.has_key(key) else 0 for key in keys] for server, *_ in devices]
    return np.array(rows, np.int64)


def _batch_table(config: RouterConfig, costs: CostModel) -> Ints:
    keys, sizes = work_keys(config), range(1, config.groups[-1] + 1)
    devices = _servers_of(alike_of(config, costs).devices)
    table = np.zeros((len(devices), len(keys), len(sizes) + 1), np.int64)
    for row, (server, *_) in enumerate(devices):
        for number, key in enumerate(keys):
            if config.has_key(key):
                table[row, number, 1:] = [_ns(costs.batch_s(server, key, size)) for size in sizes]
    return table


def _transfer_table(config: RouterConfig, costs: CostModel) -> Ints:
    lines = list(product(range(1, config.segments + 1), (IMAGE, *config.widths)))
    sizes, links = range(1, config.groups[-1] + 1), 1 + max(alike_of(config, costs).links)
    table = np.zeros((links + 1, links, WAYS, len(lines), len(sizes) + 1), np.int64)
    for place, (source, server) in alike_of(config, costs).ways().items():
        for number, (segment, width) in enumerate(lines):
            if config.has_key(WorkKey(segment, width, width)) and (segment == 1 or source != ROUTER):
                moved_s = [costs.transfer_s(source, server, segment, width, size) for size in sizes]
                table[place][number, 1:] = [_ns(each) for each in moved_s]
    return table


def _servers_of(devices: Sequence[int]) -> list[list[int]]:
    """Return, for each number of a device, its servers."""
    servers: list[list[int]] = [[] for _ in range(1 + max(devices))]
    for server, device in enumerate(devices):
        servers[device].append(server)
    return servers


_MAKERS: Final = {"image": _image_table, "batch": _batch_table, "transfer": _transfer_table}


def _all(config: RouterConfig) -> range:
    return range(config.servers)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
