"""Plans of routers: the data with which compiled code decides instead of the router, in simulation and on executors.

A router's plan (`plan_of`): only known classes have a compiled form; each part is looked up by its exact type, as a
subclass may have another rule. A router with memory starts from its present state; `CompiledRouter.keep` writes the
final state back.

`PlannedRouter` decides by a plan outside the compiled engine: on executors a decision takes a few microseconds. It
decides as the router's rule does, and as simulation does. It copies the router's view into an observation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, cast

import numba
import numpy as np

from kit.jit import Ints, entry
from kit.jit_cache import IS_ON
from policies.compiled.adaptive_kernels import (
    Ahead,
    CompassMemory,
    Control,
    MilpMemory,
    Priced,
    Replan,
    Weights,
    control_row,
    keep_control,
)
from policies.compiled.plan_layout import (
    NONE,
    Draws,
    ObservationRecord,
    Plan,
    PlanRow,
    Table,
    WidthRule,
    bits,
    blank_observation,
    cost_table,
    transfers_of,
    work_keys,
)
from policies.compiled.rule_kernels import (
    AT_RANDOM,
    BY_SERVER,
    COMPASS,
    DEFICIT,
    FIXED,
    IDLE_QUEUE,
    INFAAS,
    LADDER,
    LEAST_WORK,
    LEAST_WORK_COMING,
    LOOKAHEAD,
    PACKED,
    POWER_OF_TWO,
    POWER_OF_TWO_BY_SPEED,
    RANDOM_MICRO_BATCH_SIZE,
    RANDOM_WIDTH,
    ROUND_ROBIN,
    SHORTEST_DELAY,
    SHORTEST_QUEUE,
    SHORTEST_QUEUE_BY_SPEED,
    SLACKFIT,
    WEIGHTED_RANDOM,
    Rung,
    ToCome,
    Variant,
    VariantSteps,
    WorkToCome,
    choose,
)
from policies.goal_control import GoalControl
from policies.interfaces import CostModel, RouterConfig, RoutingPolicy, limit_ns_of
from policies.rules import compass, lookahead, published_rules, rule_parts
from policies.rules import proteus as milp
from policies.rules import published_rules as slackfit
from policies.rules.compass import PricedRungs
from policies.rules.rule_context import ComposedRouter, PathRule, WorkingSet, is_up
from policies.rules.rule_params import DelayingRouter
from policies.vocabulary import IMAGE, BatchingDelayRule, Choice, ClusterView, ServerView, WorkKey

# ------------------------------------------------------------------------------------------------------ a router's plan


MAX_TRANSFERS: Final = 1 << 22  # entries of that table, which takes a few seconds to build
_EXACT: Final = 1 << 53  # below it, a float represents every whole number
_MOST: Final = 1 << 60  # of a number in a plan: sums of a few must fit into 64 bits


@dataclass(frozen=True, slots=True)
class CompiledRouter:
    """A router in compiled form.

    Attributes:
        row: its plan; the memory is updated there.
        replan: a function of (plan, observation) for when the plan requests it; None if it never does.
        batching_delay: the batching delay rule for the router's core.
        keep: writes the plan's memory into the router that it was made from.
    """

    row: Ints
    replan: Replan | None = None
    keep: Callable[[], None] = lambda: None
    batching_delay: BatchingDelayRule | None = None


class _NotCompiled(Exception):  # noqa: N818 - no error: Python decides
    """A part that has no compiled form."""


def plan_of(policy: RoutingPolicy, config: RouterConfig) -> CompiledRouter | None:
    """Return a router's plan for a cluster; None if Python must decide.

    Python must decide for an unknown class, for a router made for other widths or servers, if some key has no expected
    costs, and if the table of transfers would be too large (`MAX_TRANSFERS`).
    """
    if type(policy) is DelayingRouter:
        planned = _plan_of(policy.router, _Writer(config, policy.sets))
        return None if planned is None else replace(planned, batching_delay=policy.batching_delay)
    return _plan_of(policy, _Writer(config))


def _plan_of(policy: RoutingPolicy, writer: _Writer) -> CompiledRouter | None:
    kind = type(policy)
    try:
        if kind is ComposedRouter:
            return writer.composed(cast(ComposedRouter, policy))
        if kind is slackfit.SlackFit:
            return writer.slackfit(cast(slackfit.SlackFit, policy))
        if kind is milp.Milp:
            return writer.milp(cast(milp.Milp, policy))
        if kind is compass.Compass:
            return writer.compass(cast(compass.Compass, policy))
        if kind is lookahead.Lookahead:
            return writer.lookahead(cast(lookahead.Lookahead, policy))
    except _NotCompiled:
        pass
    return None


# -------------------------------------------------------------------------------------------------- the writer of plans


# Placements: the number, and the largest number of random draws.
_PLACEMENTS: Final[dict[type, tuple[int, int]]] = {
    rule_parts.RandomPlacement: (AT_RANDOM, 1),
    rule_parts.WeightedRandom: (WEIGHTED_RANDOM, 1),
    rule_parts.RoundRobin: (ROUND_ROBIN, 0),
    rule_parts.ShortestQueue: (SHORTEST_QUEUE, 0),
    rule_parts.ShortestQueueBySpeed: (SHORTEST_QUEUE_BY_SPEED, 0),
    rule_parts.PowerOfTwo: (POWER_OF_TWO, 2),
    rule_parts.PowerOfTwoBySpeed: (POWER_OF_TWO_BY_SPEED, 2),
    rule_parts.IdleQueue: (IDLE_QUEUE, 1),
    rule_parts.LeastWork: (LEAST_WORK, 0),
    rule_parts.LeastWorkComing: (LEAST_WORK_COMING, 0),
    rule_parts.ShortestDelay: (SHORTEST_DELAY, 0),
    rule_parts.Packed: (PACKED, 0),
}


class _Writer:
    """The writer of one router's plan, part by part; raises `_NotCompiled`. `sets`: each server's working set, if
    limited."""

    def __init__(self, config: RouterConfig, sets: Sequence[WorkingSet] = ()) -> None:
        self._config = config
        self._plan = PlanRow(config, None)
        self._head = self._plan.head
        self._head.most_draws = 0
        if sets:
            self._head.masks_at = self._plan.add([bits(mask) for each in sets for mask in each])
        self._tables: list[Table] = []
        self._keep: list[Callable[[Ints], None]] = []

    # ------------------------------------------------------------------------------------------------------ routers

    def composed(self, router: ComposedRouter) -> CompiledRouter:
        """Write a placement, a width rule and a micro-batch size rule."""
        self._head.width_rule.numbers[:] = self._widths(router.width, 1)
        self._place(router.placement, router.width)
        if type(router.micro_batch_size) is rule_parts.RandomMicroBatch:
            self._head.micro_batch_size_rule = RANDOM_MICRO_BATCH_SIZE
            self._head.most_draws += 1
        else:
            self._require(type(router.micro_batch_size) is rule_parts.LargestMicroBatch)
        self._choose_from(cast(rule_parts.LargestMicroBatch, router.micro_batch_size).micro_batch_sizes)
        self._add_paths(router.paths)
        return self._finished()

    def slackfit(self, router: slackfit.SlackFit) -> CompiledRouter:
        """Write the width and micro-batch size by slack, on a placement."""
        self._require(
            router.widths == self._config.widths and list(router.micro_batch_sizes) == sorted(router.micro_batch_sizes)
        )
        self._place(router.placement)
        self._choose_from(router.micro_batch_sizes)
        self._ask_for(router.costs, "image", "batch", "transfer")
        self._head.width_rule.rule, self._head.share_ns = SLACKFIT, self._whole(router.share_ns)
        self._head.scratch_at = self._plan.add([NONE] * (slackfit.SLACK_BUCKETS + 1))
        return self._finished()

    def milp(self, router: milp.Milp) -> CompiledRouter:
        """Write tuples and shares by server; Python makes a new plan."""
        servers, segments = self._config.servers, self._config.segments
        self._require(router.widths == self._config.widths and len(router.capacity_img_s) == servers)
        self._choose_from(router.micro_batch_sizes)
        self._head.width_rule.rule = BY_SERVER
        self._head.placement = DEFICIT
        self._head.stays = 1
        self._head.width_rule.rungs_at = self._plan.add([0] * (servers * segments))
        self._head.shares_at = self._plan.add(np.zeros(servers))
        self._head.placed_at = self._plan.add([0] * servers)
        for number in (router.since_ns, router.period_ns, router.arrived, *router.placed):
            self._whole(number)
        self._head.sees_all = 1
        self._add_paths(router.paths)
        memory = MilpMemory(router, self._config, [self._codes(each) for each in router.tuples])
        self._keep.append(memory.keep)
        planned = self._finished(memory.replan)
        memory.write(planned.row)
        return planned

    def lookahead(self, router: lookahead.Lookahead) -> CompiledRouter:
        """Write a lookahead over the next few micro-batches."""
        self._require(router.widths == self._config.widths and len(router.worth_ns) == self._config.segments)
        self._require(len(router.image_ns) == self._config.servers)
        self._choose_from(router.micro_batch_sizes)
        self._ask_for(router.costs, "image", "batch", "transfer")
        self._head.sees_all, ahead = 1, Ahead.blank()
        ahead.horizon_s = router.horizon_s
        ahead.weight = router.weight
        ahead.micro_batches = self._whole(router.micro_batches)
        ahead.rate_img_s, ahead.arrived = router.rate_img_s, self._whole(router.arrived)
        ahead.seen_ns = self._whole(router.seen_ns)
        ahead.image_ns_at, ahead.worth_ns_at = self._table(router.image_ns), self._table(router.worth_ns)
        ahead.busy_ns_at = self._plan.add([0] * self._config.servers)
        if router.control is not None:
            ahead.control_at = self._control(router.control)
        self._head.width_rule.rule, self._head.memory_at = LOOKAHEAD, self._plan.add(ahead.numbers)
        at = self._head.memory_at

        def keep(row: Ints) -> None:
            memory = Ahead(row, at)
            router.rate_img_s = memory.rate_img_s
            router.arrived = memory.arrived
            router.seen_ns = memory.seen_ns

        self._keep.append(keep)
        return self._finished()

    def compass(self, router: compass.Compass) -> CompiledRouter:
        """Write the joint choice of server and width."""
        self._require(router.widths == self._config.widths and len(router.priced) == self._config.class_count)
        self._choose_from(router.micro_batch_sizes)
        self._ask_for(router.costs, "image", "batch", "transfer")
        memory = CompassMemory.blank()
        self._head.width_rule.rule = COMPASS
        memory.priced_at = self._plan.add(np.concatenate([self._priced(each) for each in router.priced]))
        for name in Weights.offsets:
            setattr(memory.weights, name, getattr(router.weights, name))
        if router.control is not None:
            memory.control_at = self._control(router.control)
        self._add_paths(router.paths)
        self._head.memory_at = self._plan.add(memory.numbers)
        return self._finished()

    def _add_paths(self, paths: PathRule | None) -> None:
        if paths is None:
            return
        head, config = self._head, self._config
        self._require(paths.widths == config.widths and paths.segments == config.segments)
        head.places = config.segments * len(config.model_widths)
        self._require([len(places) for places in paths.held] == [head.places] * config.servers)
        head.held_at = self._plan.add([bits(mask) for places in paths.held for mask in places])
        head.first_places_at = self._plan.add(paths.first_places)
        head.then_at = self._plan.add([0] * config.segments)

    def _priced(self, priced: PricedRungs) -> Ints:
        self._require(len(priced.thresholds) == len(priced.savings) == len(priced.rungs) - 1)
        record = Priced.blank()
        record.count = len(priced.rungs)
        record.rungs_at = self._plan.add([self._codes(rung) for rung in priced.rungs])
        record.thresholds_at = self._plan.add(np.array(priced.thresholds, np.float64))
        record.savings_at = self._plan.add(np.array(priced.savings, np.float64))
        return record.numbers

    def _table(self, rows: Sequence[Sequence[int]]) -> int:
        """Write numbers for each width."""
        self._require(all(len(row) == len(self._config.widths) for row in rows))
        return self._plan.add([[self._whole(number) for number in row] for row in rows])

    def _finished(self, replan: Replan | None = None) -> CompiledRouter:
        self._add_tables()
        row, copies = self._plan.row(), tuple(self._keep)

        def keep() -> None:
            for copy_memory in copies:
                copy_memory(row)

        return CompiledRouter(row, replan, keep)

    # --------------------------------------------------------------------------------------------------------- parts

    def _place(self, placement: object, width: object = None) -> None:
        """Write a placement; `width` is the router's rule, with the record whose memory a placement shares."""
        while type(placement) is rule_parts.Sticky:
            placement, self._head.stays = placement.elsewhere, 1
        entry = _PLACEMENTS.get(type(placement))
        if entry is None:
            raise _NotCompiled
        self._head.placement, draws = entry
        self._head.most_draws += draws
        match placement:
            case rule_parts.WeightedRandom() | rule_parts.ShortestQueueBySpeed() | rule_parts.PowerOfTwoBySpeed():
                self._require(len(placement.speeds_img_s) == self._config.servers)
                self._head.speeds_at = self._plan.add(np.array(placement.speeds_img_s, np.float64))
            case rule_parts.RoundRobin():
                self._take_turns(placement)
            case rule_parts.LeastWork():
                self._ask_for(placement.costs, "image")
            case rule_parts.Packed():
                self._ask_for(placement.costs, "image")
                self._require(sorted(placement.order) == [*range(self._config.servers)])
                self._require(len(placement.full_ns) == self._config.servers)
                rows = [(server, self._whole(placement.full_ns[server])) for server in placement.order]
                self._head.packed_at, self._head.sees_all = self._plan.add(rows), 1
            case rule_parts.LeastWorkComing():
                self._ask_for(placement.costs, "image")
                self._remember_coming(placement)
            case rule_parts.ShortestDelay():
                self._ask_for(placement.costs, "image", "batch", "transfer")
                # It uses the widths that its rule gives every server.
                if placement.width is not width:
                    self._head.delay_at = self._plan.add(self._widths(placement.width, self._config.servers))
                elif self._head.width_rule.rule == RANDOM_WIDTH:
                    self._head.most_draws += self._config.servers

    def _take_turns(self, placement: rule_parts.RoundRobin) -> None:
        self._head.turn = max(self._whole(placement.last), NONE)

        def keep(row: Ints) -> None:
            placement.last = Plan(row).turn

        self._keep.append(keep)

    def _remember_coming(self, placement: rule_parts.LeastWorkComing) -> None:
        servers = self._config.servers
        self._require(len(placement.way_ns) == len(placement.coming) == len(placement.seen_ns) == servers)
        self._require(placement.segments == self._config.segments and not self._head.stays)  # it keeps images itself
        memory, records = WorkToCome.blank(), np.zeros(servers, ToCome.dtype)
        memory.forget_ns = self._whole(placement.forget_ns)
        memory.most = self._whole(placement.most)
        records["images"], records["way_ns"] = placement.coming, [self._whole(way_ns) for way_ns in placement.way_ns]
        records["seen_ns"] = [self._whole(seen_ns) for seen_ns in placement.seen_ns]
        self._head.stays = int(placement.stays)
        self._head.coming_at = at = self._plan.add(np.concatenate([memory.numbers, records.view(np.int64)]))
        first = at + WorkToCome.size

        def keep(row: Ints) -> None:
            rows = row[first : first + servers * ToCome.size].view(ToCome.dtype)
            placement.coming[:], placement.seen_ns[:] = rows["images"].tolist(), rows["seen_ns"].tolist()

        self._keep.append(keep)

    def _widths(self, rule: object, calls: int) -> Ints:
        """Write a record of widths, which decisions read often."""
        self._require(getattr(rule, "widths", None) == self._config.widths)
        record = WidthRule.blank()
        match rule:
            case rule_parts.RandomWidth() if type(rule) is rule_parts.RandomWidth:
                record.rule = RANDOM_WIDTH
                self._head.most_draws += calls
            case rule_parts.FixedWidths() if type(rule) is rule_parts.FixedWidths:
                self._require(not rule.by_class or len(rule.by_class) == self._config.class_count)
                tuples = rule.by_class or (rule.tuple_,) * self._config.class_count
                record.rule, record.tuple_at = FIXED, self._plan.add([self._codes(each) for each in tuples])
            case rule_parts.Ladder() if type(rule) is rule_parts.Ladder:
                record.rule = LADDER
                record.thresholds_at = self._plan.add(np.array(rule.thresholds, np.float64))
                record.rung_at = self._rung(rule)
            case rule_parts.ControlledLadder() if type(rule.ladder) is rule_parts.Ladder:
                record.numbers[:] = self._widths(rule.ladder, calls)
                record.control_at = self._control(rule.control)
            case published_rules.Variants() if type(rule) is published_rules.Variants:
                record.rule, record.variants_at = INFAAS, self._variants(rule)
            case _:
                raise _NotCompiled
        return record.numbers

    def _rung(self, rule: rule_parts.Ladder) -> int:
        self._require(len(rule.at) == len(rule.rungs) == self._config.class_count)
        self._require(all(0 <= self._whole(at) < len(rungs) for at, rungs in zip(rule.at, rule.rungs, strict=True)))
        records = np.zeros(len(rule.at), Rung.dtype)
        records["rung"], records["share"] = rule.at, 1 - rule.hysteresis
        records["last"] = [min(len(rungs) - 1, len(rule.thresholds)) for rungs in rule.rungs]
        records["tuples_at"] = [self._plan.add([self._codes(rung) for rung in rungs]) for rungs in rule.rungs]
        at = self._plan.add(records.view(np.int64))

        def keep(row: Ints) -> None:
            rule.at[:] = [Rung(row, at, number).rung for number in range(len(rule.at))]

        self._keep.append(keep)
        return at

    def _control(self, control: GoalControl) -> int:
        self._require(len(control.all) == self._config.class_count)
        at = self._plan.add(np.concatenate([control_row(member) for member in control.all]))

        def keep(row: Ints) -> None:
            for number, member in enumerate(control.all):
                keep_control(member, Control(row, at, number))

        self._keep.append(keep)
        return at

    def _variants(self, rule: published_rules.Variants) -> int:
        self._ask_for(rule.costs, "image")
        self._require(len(rule.variants) == len(rule.levels) == len(rule.since_ns) == self._config.servers)
        numbers = [rule.waiting_ns, rule.up_ns, rule.down_ns, rule.dwell_ns, rule.leap]
        for variants, level, since_ns in zip(rule.variants, rule.levels, rule.since_ns, strict=True):
            self._require(0 <= level < len(variants))
            tuples_at = self._plan.add([self._codes(variant) for variant in variants])
            numbers += [len(variants), level, since_ns, tuples_at]
        at = self._plan.add([self._whole(number) for number in numbers])
        first, end = at + VariantSteps.size, at + len(numbers)

        def keep(row: Ints) -> None:
            rows = row[first:end].view(Variant.dtype)
            rule.levels[:], rule.since_ns[:] = rows["level"].tolist(), rows["since_ns"].tolist()

        self._keep.append(keep)
        return at

    def _choose_from(self, sizes: Sequence[int]) -> None:
        self._require(len(sizes) > 0 and all(self._whole(size) >= 1 for size in sizes))
        self._plan.set_micro_batch_sizes(sizes)

    def _codes(self, tuple_: Sequence[float]) -> list[int]:
        """Return, for each segment, the widest width that isn't above the tuple's; NONE if all are."""
        self._require(len(tuple_) >= self._config.segments)
        return [bisect_right(self._config.widths, width) - 1 for width in tuple_[: self._config.segments]]

    # --------------------------------------------------------------------------------------------------------- costs

    def _ask_for(self, costs: CostModel, *tables: Table) -> None:
        """Require these tables, of one cost model for all parts."""
        self._require(self._plan.costs is None or self._plan.costs is costs)
        self._plan.costs = costs
        self._tables += [table for table in tables if table not in self._tables]

    def _add_tables(self) -> None:
        """Write the tables; refused if sums of floats would not compare like sums of whole numbers."""
        costs, config = self._plan.costs, self._config
        if costs is None:
            return
        try:
            self._require("transfer" not in self._tables or transfers_of(config, costs) <= MAX_TRANSFERS)
            most_ns = {name: int(np.abs(cost_table(config, costs, name)).max()) for name in self._tables}
        except Exception as error:  # for a key that no request may ever have; any error of the model
            raise _NotCompiled from error
        waiting_ns = config.outstanding_micro_batches * config.micro_batch_sizes[-1] * most_ns.pop("image")
        self._require(waiting_ns + sum(most_ns.values()) < _EXACT)
        self._plan.add_costs(self._tables)

    # --------------------------------------------------------------------------------------------------- refusing

    def _require(self, is_so: bool) -> None:
        if not is_so:
            raise _NotCompiled

    def _whole(self, number: int) -> int:
        self._require(type(number) is int and abs(number) < _MOST)
        return number


# -------------------------------------------------------------------------------------------------- decisions by a plan


_write_view: Final = Struct("=9q2d2qd5q").pack_into  # an `ObservationRecord`, without its samples
_write_server: Final = Struct("=5q2d")  # a `SeenServer`


@entry
def decide(plan_row: Ints, observation_row: Ints) -> int:
    """Let a plan decide; returns the choice as one number (`_Choices`)."""
    plan = Plan(plan_row)
    choose(plan, ObservationRecord(observation_row))
    return (plan.micro_batch_size * plan.servers + plan.server) * plan.widths + plan.width


class _Choices(dict[tuple[int, tuple[int, ...]], Choice]):
    """Choices by number and by the numbers of their path's widths."""

    def __init__(self, config: RouterConfig) -> None:
        self._servers, self._widths = config.servers, config.widths

    def __missing__(self, choice: tuple[int, tuple[int, ...]]) -> Choice:
        rest, width = divmod(choice[0], len(self._widths))
        micro_batch_size, server = divmod(rest, self._servers)
        then = tuple([self._widths[each] for each in choice[1]])
        return self.setdefault(choice, Choice(server, self._widths[width], micro_batch_size, then))


class _Page:
    """An observation for one segment, and the servers' views in it."""

    def __init__(self, servers: int) -> None:
        self.observation = blank_observation(servers)
        self.memory = self.observation.data
        self.views: list[ServerView | None] = [None] * servers
        self.samples = self.observation[ObservationRecord(self.observation).samples_at :]
        self.outstanding = self.up = 0


class PlannedRouter:
    """A router's plan, used for one decision at a time; not thread-safe.

    Later calls of the router's methods (`set_floor` ...) do not reach its plan.
    """

    def __init__(self, policy: RoutingPolicy, planned: CompiledRouter, config: RouterConfig) -> None:
        self.batching_delay = planned.batching_delay
        self._policy, self._replan = policy, planned.replan
        self._row, self._plan = planned.row, Plan(planned.row)
        self._draws: Draws | None = None
        self._before = {width: number for number, width in enumerate((IMAGE, *config.widths))}
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
            self._replan(self._row, page.observation)
        number = decide(self._row, page.observation)
        first, count = plan.then_at, plan.then
        return self._choices[number, tuple(self._row[first : first + count].tolist()) if count else ()]

    def _read(self, view: ClusterView, page: _Page) -> None:
        """Write the servers' views; a view that is the very object of the segment's last decision is not read again."""
        head = view.head
        memory = page.memory
        views = page.views
        for index, server in enumerate(view.servers):
            previous = views[index]
            if server is not previous:
                views[index] = server
                page.outstanding += server.outstanding_requests - (previous.outstanding_requests if previous else 0)
                page.up += (1 if is_up(server) else 0) - (1 if previous and is_up(previous) else 0)
                fits = bits(server.widths)
                _write_server.pack_into(
                    memory, 8 * ObservationRecord.size + index * _write_server.size, fits if server.valid else 0, fits,
                    server.outstanding_requests, server.outstanding_micro_batches, self._work_ns(index, server),
                    server.utilization, server.power_w,
                )  # fmt: skip
        sample = () if self._plan.sees_all else view.looked_at
        page.samples[: len(sample)] = sample
        _write_view(
            memory, 0, view.now_ns, head.segment - 1, self._before[head.previous_width], head.location,
            view.candidates, view.head_entered_ns, view.fifo_length, view.completed, view.batching_delay_left_ns,
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
