"""A rule that decides by its plan outside the compiled engine: on executors a decision takes a few microseconds.

It decides as the rule does (`policies.plan_of`), and as simulation does. The router's view is copied into a sheet.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numba
import numpy as np

from kit.jit import Ints, entry
from kit.jit_cache import IS_ON
from policies.compiled.draws import Draws
from policies.compiled.layout import Plan, Sheet, bits, blank_sheet
from policies.compiled.plan import work_keys
from policies.compiled.rules import choose
from policies.interfaces import RouterConfig, RoutingPolicy, limit_ns_of
from policies.plan_of import CompiledRouter, plan_of
from policies.rules.context import is_up
from policies.vocabulary import IMAGE, Choice, ClusterView, ServerView, WorkKey

_write_view: Final = Struct("=9q2d2qd5q").pack_into  # a `Sheet`, without its samples
_write_server: Final = Struct("=5q2d")  # a `SeenServer`


@entry
def decide(plan_row: Ints, sheet_row: Ints) -> int:
    """Let a plan decide; returns the choice as one number (`_Choices`)."""
    plan = Plan(plan_row)
    choose(plan, Sheet(sheet_row))
    return (plan.group * plan.servers + plan.server) * plan.widths + plan.width


class _Choices(dict[int, Choice]):
    def __init__(self, config: RouterConfig) -> None:
        self._servers, self._widths = config.servers, config.widths

    def __missing__(self, number: int) -> Choice:
        rest, width = divmod(number, len(self._widths))
        group, server = divmod(rest, self._servers)
        return self.setdefault(number, Choice(server, self._widths[width], group))


class _Page:
    """A sheet for one segment, and the servers' views in it."""

    def __init__(self, servers: int) -> None:
        self.sheet = blank_sheet(servers)
        self.memory = self.sheet.data
        self.views: list[ServerView | None] = [None] * servers
        self.samples = self.sheet[Sheet(self.sheet).samples_at :]
        self.outstanding = self.up = 0


class PlannedRouter:
    """A router's plan, used for one decision at a time; not thread-safe.

    Later calls of the router's methods (`set_floor` ...) do not reach its plan.
    """

    def __init__(self, policy: RoutingPolicy, planned: CompiledRouter, config: RouterConfig) -> None:
        self.hold = planned.hold
        self._policy, self._replan = policy, planned.replan
        self._row, self._plan = planned.row, Plan(planned.row)
        self._draws: Draws | None = None
        self._before = {width: place for place, width in enumerate((IMAGE, *config.widths))}
        self._pages = [_Page(config.servers) for _ in range(config.segments)]
        self._choices = _Choices(config)
        self._image_ns = self._times_of_images(config)
        if IS_ON:  # now rather than at the first decision
            decide.compile((numba.int64[::1],) * 2)  # type: ignore[attr-defined]

    def _times_of_images(self, config: RouterConfig) -> list[dict[WorkKey, int]]:
        """Return the times of images by server; empty for a rule that needs none."""
        at = self._plan.image_ns_at
        devices_at = self._plan.devices_at
        keys = work_keys(config)
        if not at:
            return []
        devices = self._row[devices_at : devices_at + config.servers].tolist()
        table = self._row[at : at + (1 + max(devices)) * len(keys)].reshape(-1, len(keys)).tolist()
        of_device = [dict(zip(keys, row, strict=True)) for row in table]
        return [of_device[device] for device in devices]

    @property
    def p99_limit_ns(self) -> int:
        """See `RoutingPolicy`."""
        return limit_ns_of(self._policy)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide as the router would; `rng` is the same at each decision, and drawn from in advance."""
        plan, page = self._plan, self._pages[view.head.segment - 1]
        self._read(view, page)
        if plan.draw + plan.most_draws > plan.draws:
            if self._draws is None:
                self._draws = Draws(self._row, rng)
            self._draws.draw()
        if self._replan is not None and view.now_ns >= plan.wake_ns:
            self._replan(self._row, page.sheet)
        return self._choices[decide(self._row, page.sheet)]

    def _read(self, view: ClusterView, page: _Page) -> None:
        """Write the servers' views; a view that is the very object of the segment's last decision is not read again."""
        head = view.head
        memory = page.memory
        known = page.views
        for index, server in enumerate(view.servers):
            before = known[index]
            if server is not before:
                known[index] = server
                page.outstanding += server.outstanding_requests - (before.outstanding_requests if before else 0)
                page.up += (1 if is_up(server) else 0) - (1 if before and is_up(before) else 0)
                holds = bits(server.widths)
                _write_server.pack_into(
                    memory, 8 * Sheet.size + index * _write_server.size, holds if server.valid else 0, holds,
                    server.outstanding_requests, server.outstanding_blocks, self._work_ns(index, server),
                    server.utilization, server.power_w,
                )  # fmt: skip
        sample = () if self._plan.sees_all else view.looked_at
        page.samples[: len(sample)] = sample
        _write_view(
            memory, 0, view.now_ns, head.segment - 1, self._before[head.previous_width], head.location,
            view.candidates, view.head_entered_ns, view.fifo_length, view.completed, view.hold_left_ns,
            view.accuracy_sum, view.goal_floor, view.late, view.goal_limit_ns, view.goal_energy_weight,
            head.service_class, view.others_completed, page.outstanding, page.up, len(sample),
        )  # fmt: skip

    def _work_ns(self, index: int, server: ServerView) -> int:
        if not self._image_ns:
            return 0
        times_ns = self._image_ns[index]
        return sum([count * times_ns[key] for key, count in server.outstanding.items()])


def by_plan(policy: RoutingPolicy, config: RouterConfig) -> RoutingPolicy:
    """Return the same router with decisions by its plan; itself if Python must decide (`plan_of`)."""
    compiled = plan_of(policy, config) if IS_ON else None
    return policy if compiled is None else PlannedRouter(policy, compiled, config)
