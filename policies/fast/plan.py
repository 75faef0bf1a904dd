"""Makes plans: the row that compiled rules read, with the expected costs of a cluster as tables of nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.fast.layout import *
from policies.jit import Ints
from policies.routing import CostModel, RouterConfig
from policies.vocabulary import IMAGE, WorkKey

_NS = 1e9


class Plan:
    """A row that grows while it is written.

    Args:
        config: the router core's settings.
        costs: expected costs; None for a rule that asks for none.
    """

    def __init__(self, config: RouterConfig, costs: CostModel | None) -> None:
        self.config, self.costs = config, costs
        self.keys = work_keys(config)
        self._parts: list[npt.NDArray[np.int64]] = [np.zeros(PLAN_SIZE, np.int64)]
        self._size = PLAN_SIZE
        self.head = self._parts[0]
        self.head[[PLAN_SERVERS, PLAN_SEGMENTS, PLAN_WIDTHS, PLAN_KEYS, PLAN_MOST, PLAN_GROUP_COUNT]] = (
            config.servers, config.segments, len(config.widths), len(self.keys), config.groups[-1], len(config.groups),
        )  # fmt: skip
        self.head[PLAN_GROUPS_AT], self.head[PLAN_TURN], self.head[PLAN_WAKE_NS] = (
            self.add(config.groups),
            NONE,
            1 << 62,
        )

    def add(self, values: npt.ArrayLike) -> int:
        """Put integers, or reals, at the end; returns where."""
        array = np.ascontiguousarray(values).ravel()
        array = array.view(np.int64) if array.dtype == np.float64 else array.astype(np.int64)
        self._parts.append(array)
        at, self._size = self._size, self._size + len(array)
        return at

    def row(self) -> Ints:
        """The plan."""
        return np.concatenate(self._parts)

    def add_costs(self) -> None:
        """The tables of a cluster's expected costs."""
        tables = cost_tables(self.config, self.costs)
        self.head[PLAN_IMAGE_NS_AT], self.head[PLAN_BATCH_NS_AT], self.head[PLAN_TRANSFER_NS_AT] = map(self.add, tables)

    def code(self, widths: Sequence[float]) -> list[int]:
        """Widths by number."""
        return [self.config.widths.index(width) for width in widths]


def work_keys(config: RouterConfig) -> list[WorkKey]:
    """Every key (segment, width, previous width) in the order of its number, also those that no request can have."""
    before = (IMAGE, *config.widths)
    return [WorkKey(s, w, p) for s in range(1, config.segments + 1) for w in config.widths for p in before]


_tables: dict[int, tuple[Any, tuple[npt.NDArray[np.int64], ...]]] = {}


def cost_tables(config: RouterConfig, costs: CostModel | None) -> tuple[npt.NDArray[np.int64], ...]:
    """(servers, keys) of an image, (servers, keys, most + 1) of a batch, (servers + 1, servers, lines, most + 1) of moves.

    Nanoseconds, rounded; made once for a cost model.
    """
    assert costs is not None, "this rule asks for costs"
    found = _tables.get(id(costs))
    if found is None or found[0] is not costs:
        while len(_tables) > 8:
            _tables.pop(next(iter(_tables)))
        found = _tables[id(costs)] = (costs, _make_tables(config, costs))
    return found[1]


def _make_tables(config: RouterConfig, costs: CostModel) -> tuple[npt.NDArray[np.int64], ...]:
    most, servers = config.groups[-1], range(config.servers)
    lines = list(product(range(1, config.segments + 1), (IMAGE, *config.widths)))
    keys = work_keys(config)
    image = np.zeros((config.servers, len(keys)), np.int64)
    batch = np.zeros((config.servers, len(keys), most + 1), np.int64)
    moves = np.zeros((config.servers + 1, config.servers, len(lines), most + 1), np.int64)
    for server in servers:
        for number, key in enumerate(keys):
            if (key.segment == 1) != (key.previous_width == IMAGE):
                continue
            image[server, number] = round(costs.image_s(server, key) * _NS)
            batch[server, number, 1:] = [round(costs.batch_s(server, key, n) * _NS) for n in range(1, most + 1)]
    for source, server in product(range(-1, config.servers), servers):
        if source == server:
            continue
        for number, (segment, previous) in enumerate(lines):
            if (segment == 1) != (previous == IMAGE):
                continue
            moves[source + 1, server, number, 1:] = [
                round(costs.transfer_s(source, server, segment, previous, n) * _NS) for n in range(1, most + 1)
            ]
    return image, batch, moves
