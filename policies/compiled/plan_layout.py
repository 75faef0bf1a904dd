"""An *observation* (a router's view) and a *plan* (its rule, memory, random numbers) as rows of records; the writer of
plans.

Records: a row is one array of 8-byte numbers, and a record is a few consecutive ones:

    class Move(Record):
        end_ns = source = INT

    move = Move(micro_batch, p.moves_at, 2)  # the third of the moves at offset `p.moves_at` from the micro-batch
    move.end_ns = now + 5                    # compiled, this is one store

A field is declared by its initial value: a whole number (INT is 0), a float (REAL is 0.0), or another record, which is
then nested (`times = Times.blank()`). Fields with the same initial value may share a line. A record is made from an
array of numbers, from the address of its first number, or from another record with an offset and, if several are
consecutive, an index. Nothing is copied: a record is a pointer, and it has no bounds in compiled code.

An observation is a row that begins with an `ObservationRecord`, and a plan is a row that begins with a `Plan`. A field
whose name ends in `_at` is an offset in the same row, except for `uniforms_at`, an address.

`PlanRow` writes plans, with a cluster's expected costs as tables of nanoseconds. A plan reads its random numbers from
memory, so `Draws` draws them in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from threading import Lock
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from kit.jit import Ints, ints, kernel, python_view
from kit.jit_cache import IS_ON
from policies.interfaces import ELSEWHERE, HERE, IN_RACK, WAYS, Alike, CostModel, RouterConfig
from policies.vocabulary import IMAGE, NS_PER_S, ROUTER, WorkKey

# -------------------------------------------------------------------------------------------------------------- records


INT: int = 0
REAL: float = 0.0


class Record:
    """The base class of records.

    Attributes:
        size: its length in numbers.
        offsets: the offset of each of its fields.
        dtype: the numpy type, for lists of records in Python.
        integers, floats, begin: in Python, its memory, read either way, and its offset there.
    """

    size: ClassVar[int] = 0
    offsets: ClassVar[dict[str, int]] = {}
    dtype: ClassVar[np.dtype[Any]]
    _first: ClassVar[npt.NDArray[np.int64]]
    __slots__ = ("begin", "floats", "integers")
    begin: int
    integers: Any
    floats: Any

    def __init__(self, base: Record | npt.NDArray[Any] | int, at: int = 0, number: int = 0) -> None:
        self.begin = int(at + number * self.size)
        if isinstance(base, Record):
            self.integers, self.floats = base.integers, base.floats
            self.begin += base.begin
        else:
            self.integers, self.floats = python_view(base, "q"), python_view(base, "d")

    def __init_subclass__(cls) -> None:
        defaults = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
        kinds = [(name, type(value)) for name, value in defaults.items()]
        fields = [(name, kind) for name, kind in kinds if kind in (int, float) or issubclass(kind, Record)]
        cls.offsets, cls.size = {}, 0
        for name, kind in fields:
            setattr(cls, name, _property(cls.size, kind))
            cls.offsets[name] = cls.size
            cls.size += kind.size if issubclass(kind, Record) else 1
        cls.dtype = np.dtype([(name, _dtype(kind)) for name, kind in fields], align=True)
        cls._first = np.zeros(cls.size, np.int64)
        for name, kind in fields:
            if issubclass(kind, Record):
                getattr(cls(cls._first), name).numbers[:] = defaults[name].numbers
            else:
                setattr(cls(cls._first), name, defaults[name])
        if IS_ON:
            _teach(cls)

    @classmethod
    def blank(cls) -> Self:
        """Return a new record with initial values."""
        return cls(cls._first.copy())

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The record's numbers."""
        return self.following[: self.size]

    @property
    def following(self) -> npt.NDArray[np.int64]:
        """The numbers of the buffer from the record's first one on."""
        return np.asarray(self.view_as("q"))

    def view_as(self, kind: str) -> Any:
        """Return the same as Python's numbers; `kind` as in `struct`."""
        return (self.integers if kind == "q" else self.floats)[self.begin :]


def _dtype(kind: type) -> Any:
    return kind.dtype if issubclass(kind, Record) else np.float64 if kind is float else np.int64


def _property(offset: int, kind: type) -> property:
    if issubclass(kind, Record):
        return property(lambda self: kind(self, offset))
    if kind is float:

        def get_real(self: Any) -> float:
            return self.floats[self.begin + offset]

        def set_real(self: Any, value: float) -> None:
            self.floats[self.begin + offset] = value

        return property(get_real, set_real)

    def get(self: Any) -> int:
        return self.integers[self.begin + offset]

    def put(self: Any, value: int) -> None:
        self.integers[self.begin + offset] = value

    return property(get, put)


if IS_ON:
    from numba.core import types
    from numba.core.typing.templates import signature
    from numba.extending import lower_builtin, type_callable
    from numba.np.numpy_support import from_dtype

    def _teach(record: type[Record]) -> None:
        """Let compiled code create a record: as numpy's structured type, whose fields Numba reads and writes."""
        pointer = from_dtype(record.dtype)

        @type_callable(record)
        def _type(context: Any) -> Any:
            def typer(base: Any, at: Any = None, number: Any = None) -> Any:
                return signature(pointer, *[types.unliteral(part) for part in (base, at, number) if part is not None])

            return typer

        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind, *kinds = signature.args
            base, *counts = arguments
            numbers = context.get_value_type(types.CPointer(types.int64))
            if isinstance(kind, types.Array):
                base = context.make_array(kind)(context, builder, base).data
            base = (builder.inttoptr if isinstance(kind, types.Integer) else builder.bitcast)(base, numbers)
            for count, kind, size in zip(counts, kinds, (1, record.size), strict=False):
                steps = builder.mul(
                    context.cast(builder, count, kind, types.int64), context.get_constant(types.int64, size)
                )
                base = builder.gep(base, [steps])
            return builder.bitcast(base, context.get_value_type(pointer))

        for count_args in range(3):
            lower_builtin(record, types.Any, *[types.Integer] * count_args)(make)


# ----------------------------------------------------------------------------------------------- observations and plans


NONE: Final = -1
BATCHING_DELAY: Final = -2  # instead of a server: the width is the number that ends it, the size its time in ns
ANYWHERE: Final = -2  # `policies.vocabulary.ANYWHERE`
OUTSIDE: Final = 0  # the width rule of a plan whose caller decides


class ObservationRecord(Record):
    """A router's view for one decision; its view of each server follows.

    `outstanding` counts the requests at all servers, of which `up` are up. A decision examines `samples` servers, whose
    numbers begin at `samples_at`; 0: all.
    """

    now_ns = segment = previous_width = location = candidates = entered_ns = fifo_length = completed = INT
    batching_delay_left_ns = INT
    accuracy_sum = goal_floor = REAL
    late = goal_limit_ns = INT
    goal_energy_weight = REAL
    service_class = others_completed = INT
    outstanding = up = samples = samples_at = INT


class SeenServer(Record):
    """A router's view of a server. In a set of widths, bit w is width w."""

    code = fits = requests = micro_batches = work_ns = INT
    utilization = power_w = REAL


def blank_observation(servers: int) -> Ints:
    """Return an empty observation for this number of servers, and for the numbers of those that are examined."""
    row = np.zeros(ObservationRecord.size + servers * (SeenServer.size + 1), np.int64)
    ObservationRecord(row).samples_at = ObservationRecord.size + servers * SeenServer.size
    return row


@cache
def bits(widths: tuple[bool, ...]) -> int:
    """Return a set of widths as a number: bit w is whether width w is in it."""
    return sum(1 << number for number, is_in in enumerate(widths) if is_in)


class WidthRule(Record):
    """A rule of widths: its code, one of those below, and its parameters."""

    rule = tuple_at = rungs_at = thresholds_at = rung_at = variants_at = control_at = INT


class Plan(Record):
    """A router's rule, its memory, and its choice; `then` counts the widths of the choice's path, from `then_at` on.

    With paths, `held_at` has the widths that each server can hold by place, and `first_places_at` each class's first.
    """

    servers = segments = widths = keys = most = micro_batch_sizes_at = micro_batch_size_count = placement = stays = (
        micro_batch_size_rule
    ) = INT
    turn = draw = draws = most_draws = uniforms_at = speeds_at = image_ns_at = batch_ns_at = INT
    transfer_ns_at = masks_at = devices_at = links_at = racks_at = links = INT
    share_ns = scratch_at = shares_at = placed_at = memory_at = server = width = micro_batch_size = INT
    wake_ns = delay_at = coming_at = packed_at = sees_all = INT
    held_at = places = first_places_at = then_at = then = INT
    width_rule = WidthRule.blank()


# -------------------------------------------------------------------------------------------------- the writer of plans


MOST_KEPT: Final = 1024  # tables: four for each cluster; a router may be trained over many at once
Table = Literal["image", "batch", "transfer"]


class PlanRow:
    """A plan in progress, which grows with each part.

    Args:
        config: the router core's settings.
        costs: expected costs; None for a rule that needs none.

    Attributes:
        head: its first record, set by name. Initially the micro-batch sizes are those of the settings, and a decision
            may draw a number for each server and three more.
    """

    def __init__(self, config: RouterConfig, costs: CostModel | None) -> None:
        self.config, self.costs = config, costs
        self.keys = work_keys(config)
        self.head = Plan.blank()
        self._parts: list[npt.NDArray[np.int64]] = [self.head.numbers]
        self._size = Plan.size
        head = self.head
        head.servers, head.segments = config.servers, config.segments
        head.widths = len(config.widths)
        head.keys, head.most = len(self.keys), config.micro_batch_sizes[-1]
        self.set_micro_batch_sizes(config.micro_batch_sizes)
        head.turn, head.wake_ns = NONE, 1 << 62
        head.most_draws = config.servers + 3
        head.delay_at = Plan.offsets["width_rule"]

    def add(self, values: npt.ArrayLike) -> int:
        """Append integers, or reals; returns their offset."""
        array = np.ascontiguousarray(values).ravel()
        array = array.view(np.int64) if array.dtype == np.float64 else array.astype(np.int64)
        self._parts.append(array)
        at, self._size = self._size, self._size + len(array)
        return at

    def set_micro_batch_sizes(self, micro_batch_sizes: Sequence[int]) -> None:
        """Set the micro-batch sizes to choose from, ascending."""
        self.head.micro_batch_sizes_at, self.head.micro_batch_size_count = (
            self.add(micro_batch_sizes),
            len(micro_batch_sizes),
        )

    def row(self) -> Ints:
        """Return the plan."""
        return np.concatenate(self._parts)

    def add_costs(self, tables: Sequence[Table] = ("image", "batch", "transfer")) -> None:
        """Append the expected costs of the cluster, as tables of nanoseconds."""
        assert self.costs is not None, "this rule needs costs"
        alike = alike_of(self.config, self.costs)
        self.head.links = 1 + max(alike.links)
        for name in ("devices", "links", "racks"):
            setattr(self.head, f"{name}_at", self.add(getattr(alike, name)))
        for name in tables:
            setattr(self.head, f"{name}_ns_at", self.add(cost_table(self.config, self.costs, name)))

    def code(self, widths: Sequence[float]) -> list[int]:
        """Return the widths by number."""
        return [self.config.widths.index(width) for width in widths]


def work_keys(config: RouterConfig) -> list[WorkKey]:
    """Return every key (segment, width, previous width) in the order of its number, including impossible ones."""
    previous = (IMAGE, *config.widths)
    return [WorkKey(s, w, p) for s in range(1, config.segments + 1) for w in config.widths for p in previous]


_tables: dict[tuple[Any, ...], tuple[CostModel, Ints]] = {}
_lock = Lock()


def alike_of(config: RouterConfig, costs: CostModel) -> Alike:
    """Return which of the cluster's servers cost the same, by numbers from 0 on; all differ if this is unknown."""
    alike, servers = costs.alike, tuple(range(config.servers))
    if alike is None:
        return Alike(servers, servers, (0,) * config.servers)
    return Alike.of(*([of[server] for server in servers] for of in (alike.devices, alike.links, alike.racks)))


def transfers_of(config: RouterConfig, costs: CostModel) -> int:
    """Return the number of entries of the table of moves."""
    links, lines = 1 + max(alike_of(config, costs).links), config.segments * (len(config.widths) + 1)
    return (links + 1) * links * WAYS * lines * (config.micro_batch_sizes[-1] + 1)


def cost_table(config: RouterConfig, costs: CostModel, name: Table) -> Ints:
    """Return nanoseconds, rounded as in `policies.rules.rule_context`; computed once for a cost model, which is pure.

    Servers with equal costs share a row. (devices, keys) of an image, (devices, keys, most + 1) of a batch; (links + 1,
    links, `WAYS`, lines, most + 1) of moves: from the router (0) or from link n - 1, by segment and previous width. 0
    for a key, batch or way that does not exist.
    """
    key = (id(costs), config.servers, config.segments, config.model_widths, config.micro_batch_sizes[-1], name)
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
    keys, sizes = work_keys(config), range(1, config.micro_batch_sizes[-1] + 1)
    devices = _servers_of(alike_of(config, costs).devices)
    table = np.zeros((len(devices), len(keys), len(sizes) + 1), np.int64)
    for row, (server, *_) in enumerate(devices):
        for number, key in enumerate(keys):
            if config.has_key(key):
                table[row, number, 1:] = [_ns(costs.batch_s(server, key, size)) for size in sizes]
    return table


def _transfer_table(config: RouterConfig, costs: CostModel) -> Ints:
    lines = list(product(range(1, config.segments + 1), (IMAGE, *config.widths)))
    sizes, links = range(1, config.micro_batch_sizes[-1] + 1), 1 + max(alike_of(config, costs).links)
    table = np.zeros((links + 1, links, WAYS, len(lines), len(sizes) + 1), np.int64)
    for row, (source, server) in alike_of(config, costs).ways().items():
        for number, (segment, width) in enumerate(lines):
            if config.has_key(WorkKey(segment, width, width)) and (segment == 1 or source != ROUTER):
                moved_s = [costs.transfer_s(source, server, segment, width, size) for size in sizes]
                table[row][number, 1:] = [_ns(seconds) for seconds in moved_s]
    return table


def _servers_of(devices: Sequence[int]) -> list[list[int]]:
    """Return, for each number of a device, its servers."""
    servers: list[list[int]] = [[] for _ in range(1 + max(devices))]
    for server, device in enumerate(devices):
        servers[device].append(server)
    return servers


_MAKERS: Final = {"image": _image_table, "batch": _batch_table, "transfer": _transfer_table}


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


# ------------------------------------------------------------------------------------- access to observations and plans


_SHEET: Final = ObservationRecord.size


@kernel
def seen_at(observation: ObservationRecord, index: int) -> SeenServer:
    """Return the view of a server."""
    return SeenServer(observation, _SHEET, index)


@kernel
def looked(plan: Plan, observation: ObservationRecord) -> int:
    """Return the number of servers that the decision examines."""
    return observation.samples if observation.samples else plan.servers


@kernel
def looked_at(observation: ObservationRecord, position: int) -> int:
    """Return one of the servers that the decision examines (`rule_context.looked_at`)."""
    return ints(observation)[observation.samples_at + position] if observation.samples else position


@kernel
def is_up(observation: ObservationRecord, index: int) -> bool:
    """Compute `rule_context.is_up`."""
    view = seen_at(observation, index)
    return view.code != 0 or view.micro_batches > 0


@kernel
def held(fits: int, most: int) -> int:
    """Compute `rule_parts.held_width`: the widest held one not above `most` (NONE: below all), or otherwise the
    narrowest."""
    for width in range(most, -1, -1):
        if fits >> width & 1:
            return width
    width = most + 1
    while not fits >> width & 1:
        width += 1
    return width


@kernel
def path_fits(plan: Plan, observation: ObservationRecord, server: int, segment: int) -> int:
    """Return the widths of a later segment that a server may run on a path."""
    place = ints(plan)[plan.first_places_at + observation.service_class] + segment
    return ints(plan)[plan.held_at + server * plan.places + place]


@kernel
def add_path(plan: Plan, observation: ObservationRecord, tuple_at: int) -> None:
    """Compute `rule_context.PathRule.then`, for the server chosen and the widths at an offset."""
    plan.then = 0
    if plan.held_at == 0:
        return
    for segment in range(observation.segment + 1, plan.segments):
        fits = path_fits(plan, observation, plan.server, segment)
        if fits == 0:
            return
        ints(plan)[plan.then_at + plan.then] = held(fits, ints(plan)[tuple_at + segment])
        plan.then += 1


@kernel
def largest_micro_batch(plan: Plan) -> int:
    """Return the largest of the micro-batch sizes to choose from."""
    return ints(plan)[plan.micro_batch_sizes_at + plan.micro_batch_size_count - 1]


@kernel
def key_of(plan: Plan, observation: ObservationRecord, width: int) -> int:
    """Return the work key of the head at this width."""
    return (observation.segment * plan.widths + width) * (plan.widths + 1) + observation.previous_width


@kernel
def image_ns(plan: Plan, server: int, key: int) -> int:
    """Compute `rule_context.image_ns`."""
    return ints(plan)[plan.image_ns_at + ints(plan)[plan.devices_at + server] * plan.keys + key]


@kernel
def batch_ns(plan: Plan, server: int, key: int, batch: int) -> int:
    """Compute `rule_context.batch_ns`."""
    device = ints(plan)[plan.devices_at + server]
    return ints(plan)[plan.batch_ns_at + (device * plan.keys + key) * (plan.most + 1) + batch]


@kernel
def transfer_ns(plan: Plan, observation: ObservationRecord, server: int) -> int:
    """Compute `rule_context.transfer_ns`: the candidates' inputs; 0 if a micro-batch may mix locations."""
    source = observation.location
    if source == ANYWHERE:
        return 0
    line = observation.segment * (plan.widths + 1) + observation.previous_width
    lines, link = plan.segments * (plan.widths + 1), 0
    route = ELSEWHERE
    if source >= 0:
        link = 1 + ints(plan)[plan.links_at + source]
        if ints(plan)[plan.racks_at + source] == ints(plan)[plan.racks_at + server]:
            route = HERE if source == server else IN_RACK
    row = ((link * plan.links + ints(plan)[plan.links_at + server]) * WAYS + route) * lines + line
    return ints(plan)[plan.transfer_ns_at + row * (plan.most + 1) + observation.candidates]


# ------------------------------------------------------------------------------------------------------- random numbers


_DRAWN: Final = 1 << 14  # numbers at a time


class Draws:
    """Uniform numbers for a plan, drawn in advance."""

    def __init__(self, plan: Ints, rng: np.random.Generator) -> None:
        self._plan, self._rng = Plan(plan), rng
        self._before = rng.bit_generator.state
        self._drawn = np.zeros(0)
        self._used = 0
        self._plan.draw = self._plan.draws = 0

    def draw(self) -> None:
        """Draw more numbers."""
        plan, used = self._plan, self._plan.draw
        self._used += used
        self._drawn = np.concatenate([self._drawn[used:], self._rng.random(_DRAWN)])
        plan.draw, plan.draws = 0, len(self._drawn)
        plan.uniforms_at = int(self._drawn.ctypes.data)

    def give_back(self) -> None:
        """Rewind the generator to its state without the unused numbers."""
        count = self._used + self._plan.draw
        self._plan.draw = self._plan.draws = 0
        self._rng.bit_generator.state = self._before
        while count > 0:
            count -= len(self._rng.random(min(count, _DRAWN)))
