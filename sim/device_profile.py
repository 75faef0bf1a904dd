"""A profile: the parameters of one device running one model, with each number's source.

It is the parameter set of the simulator's device model (`sim.device_model`): `calibrate` fits it by calling the very
functions that the simulator replays. The type checks its consistency; `sim.device_tables` compiles it.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kit import strict
from kit.errors import InputError
from kit.strict import StrictModel
from policies.interfaces import nest_by_width, nests_of
from policies.vocabulary import IMAGE, Provenance

SCHEMA: Literal["slimsched.profile/2"] = "slimsched.profile/2"
JITTER_QUANTILES = 33
AT_ONCE = "batches at once"  # the quantity of a `Range` that bounds the number of batches measured together
PROCESSES = "processes at once"  # the same for their processes

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Loss = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Cost = Annotated[float, Field(ge=0, le=60)]  # s


class DeviceInfo(StrictModel):
    """The device, and the software stack of the measurement (`stamps`: driver, torch, cores, threads, date ...).

    Attributes:
        emulated_slowdown: for an emulated device, the factor on times of passes and loads relative to the device that
            it is named after. None for a real one.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    vram_bytes: Count
    emulated_slowdown: Annotated[float, Field(ge=1)] | None = None
    stamps: dict[str, str] = Field(default_factory=dict)


class ModelInfo(StrictModel):
    """The profile's network.

    Attributes:
        segments: S, the number of its segments.
        widths: the width set W, ascending.
        input_bytes: size of one image in transfer from the router to a server.
        activation_bytes: (S, W) bytes of one image's activations after each segment at each width.
        labels: display names of the widths: for a family, its networks. Empty if a width is named by its number.
        nests: how many widths each nest has (`policies.interfaces`); empty if all are one.
        models: for several models, each one's name and its number of widths; empty if there is one.
    """

    name: str
    hash: str
    segments: Count
    widths: tuple[Positive, ...]
    input_bytes: Count
    activation_bytes: tuple[tuple[Count, ...], ...]
    labels: tuple[str, ...] = ()
    nests: tuple[Count, ...] = ()
    models: tuple[tuple[str, Count], ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> ModelInfo:
        nests_of(self.widths, self.nests)
        if sum(count for _, count in self.models) not in (0, len(self.widths)):
            raise ValueError(f"the models' widths do not make up {len(self.widths)}: {list(self.models)}")
        if self.labels and not len(set(self.labels)) == len(self.labels) == len(self.widths):
            raise ValueError(f"labels must name each of {len(self.widths)} widths once: {list(self.labels)}")
        if list(self.widths) != sorted(set(self.widths)) or not self.widths or self.widths[-1] > 1:
            raise ValueError(f"widths must ascend within (0, 1]: {list(self.widths)}")
        shape_ok = len(self.activation_bytes) == self.segments
        if not shape_ok or any(len(row) != len(self.widths) for row in self.activation_bytes):
            raise ValueError(f"activation_bytes must have {self.segments} rows of {len(self.widths)} numbers")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit labels, nests and models if they are empty, as for a slimmable network."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key not in ("labels", "nests", "models") or value}

    def name_of(self, width: float) -> str:
        """Return a width's display name."""
        return self.labels[self.widths.index(width)] if self.labels else f"{width:g}"

    @property
    def widths_by_model(self) -> dict[str, tuple[float, ...]]:
        """The widths of each model, by its name, if there are several."""
        counts = tuple(count for _, count in self.models)
        return dict(zip((name for name, _ in self.models), nests_of(self.widths, counts), strict=False))

    def previous_widths(self, segment: int, width: float) -> tuple[float, ...]:
        """Return the possible previous widths of a width of `segment`: `IMAGE` at segment 1, any of its nest after."""
        return (IMAGE,) if segment == 1 else nest_by_width(self.widths, self.nests)[width]


class LatencyCurve(StrictModel):
    """One (segment, width, previous width): solo latency, power and shares of a batch, at each measured batch size.

    All lists are parallel to `batches`.

    Attributes:
        mean_s, p50_s, p95_s, p99_s: of the solo forward pass.
        samples: repeats for each point.
        utilization: busy share u of the device in a solo loop (NVML's sense: the share of time any kernel ran).
        sm_utilization: the share of the SMs, if it is known.
        energy_j_per_image: k, joules above context idle.
        host_share: h, the share of the time in which the launching thread is busy.
        bandwidth_share: m, bytes moved per second over the device's bandwidth (modelled from shapes).
        jitter: 33 quantiles of sample / p50, a list for each batch size; empty if none were kept.
    """

    segment: Count
    width: Positive
    previous_width: NonNegative
    batches: tuple[Count, ...] = Field(min_length=1)
    mean_s: tuple[Positive, ...]
    p50_s: tuple[Positive, ...]
    p95_s: tuple[Positive, ...] = ()
    p99_s: tuple[Positive, ...] = ()
    samples: tuple[int, ...] = ()
    utilization: tuple[Share, ...]
    sm_utilization: tuple[Share, ...] = ()
    energy_j_per_image: tuple[NonNegative, ...]
    host_share: tuple[Share, ...]
    bandwidth_share: tuple[Share, ...]
    jitter: tuple[tuple[Positive, ...], ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> LatencyCurve:
        if list(self.batches) != sorted(set(self.batches)):
            raise ValueError(f"batches must ascend: {list(self.batches)}")
        required = {"mean_s", "p50_s", "utilization", "energy_j_per_image", "host_share", "bandwidth_share"}
        for name in (*sorted(required), "p95_s", "p99_s", "samples", "sm_utilization", "jitter"):
            values = getattr(self, name)
            if len(values) != len(self.batches) and (values or name in required):
                raise ValueError(f"{name} has {len(values)} values for {len(self.batches)} batch sizes")
        if any(len(row) != JITTER_QUANTILES or list(row) != sorted(row) for row in self.jitter):
            raise ValueError(f"each row of jitter must hold {JITTER_QUANTILES} ascending quantiles")
        return self


class InstanceCost(StrictModel):
    """The costs of one (segment, width): weights and workspace at the batch limit, load and unload times."""

    segment: Count
    width: Positive
    vram_bytes: Count
    load_s: NonNegative
    reload_s: NonNegative
    unload_s: NonNegative


class DeviceMemory(StrictModel):
    """Device memory of a server process: its context, and its instances."""

    context_bytes: Annotated[int, Field(ge=0)]
    instances: tuple[InstanceCost, ...] = Field(min_length=1)


class Concurrency(StrictModel):
    """The slow-down of batches that run together (`sim.device_model`): alpha, beta >= 0.

    Attributes:
        across_beta: replaces beta for batches of several processes; None: the same.
        alpha_ci95, beta_ci95, across_beta_ci95: half-widths of the 95 % confidence intervals; None if nothing was
            measured, or if alpha is not significantly different from 0 and taken as 0.
    """

    alpha: NonNegative
    beta: NonNegative
    across_beta: NonNegative | None = None
    alpha_ci95: NonNegative | None = None
    beta_ci95: NonNegative | None = None
    across_beta_ci95: NonNegative | None = None
    provenance: Provenance


class Power(StrictModel):
    """The idle powers, the power cap, and the reduction of clocks above it.

    Attributes:
        bare_idle_w: before any process holds a context on the device.
        context_idle_w: with contexts, nothing running, clocks down.
        awake_w, awake_s: nothing running, but clocks still up: power, and time after a pass has ended; None if it was
            not measured, or a device has no such state.
        cap_w: the power limit.
        throttle: a of phi = clip(1 - a (P_u / P_cap - 1), phi_min, 1).
        phi_min: the lowest clock ratio.
    """

    bare_idle_w: NonNegative
    context_idle_w: NonNegative
    cap_w: Positive
    throttle: NonNegative = 0.0
    phi_min: Annotated[float, Field(gt=0, le=1)] = 1.0
    awake_w: NonNegative | None = None
    awake_s: NonNegative = 0.0
    provenance: Provenance

    @model_validator(mode="after")
    def _ordered(self) -> Power:
        if not self.bare_idle_w <= self.context_idle_w <= self.cap_w:
            raise ValueError("bare_idle_w <= context_idle_w <= cap_w must hold")
        if self.awake_w is not None and not self.context_idle_w <= self.awake_w <= self.cap_w:
            raise ValueError("context_idle_w <= awake_w <= cap_w must hold")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_unknown(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the awake state if it is unknown; most devices have none."""
        written: dict[str, Any] = write(self)
        if self.awake_w is not None:
            return written
        return {name: value for name, value in written.items() if not name.startswith("awake")}

    @property
    def awake_surplus_w(self) -> float:
        """The power of clocks that are up while nothing runs."""
        return 0.0 if self.awake_w is None else self.awake_w - self.context_idle_w


class Slowdown(StrictModel):
    """The variation of a device's speed: its host gives a part of it to others (a virtual machine's cores).

    Latencies are at full speed; at times it is `slow_factor` times slower, for `mean_slow_s` on average (exponentially
    distributed), for a share `slow_share` of the time in total.

    Attributes:
        reference_s: time at full speed of the fixed piece of work that measures the slowdown; 0 if it is unknown.
        reference_exponent: if that piece is x times slower, passes are x to this power slower.
    """

    slow_factor: Annotated[float, Field(ge=1)]
    slow_share: Annotated[float, Field(ge=0, lt=1)]
    mean_slow_s: Annotated[float, Field(ge=1e-6)]
    reference_s: NonNegative = 0.0
    reference_exponent: NonNegative = 1.0
    provenance: Provenance

    @property
    def mean_factor(self) -> float:
        """The mean factor on times."""
        return 1.0 + self.slow_share * (self.slow_factor - 1.0)


class SensorModel(StrictModel):
    """The device's own telemetry: a value every `period_s`, an average over a window, `lag_s` old on arrival."""

    period_s: Annotated[float, Field(ge=1e-6)]
    lag_s: NonNegative
    power_window_s: Positive
    utilization_window_s: Positive


class Link(StrictModel):
    """A network link: a fixed latency, and a bandwidth shared by all that use the same medium.

    `loss` is the share of packets (of 1500 bytes) that are lost and sent again.
    """

    latency_s: NonNegative
    bandwidth_bytes_s: Positive
    loss: Loss = 0.0


class WorkCost(StrictModel):
    """The mean CPU time of work with images: `micro_batch_s + image_s * images`."""

    micro_batch_s: Cost
    image_s: Cost


PAUSES_S: Final = (0.3e-3, 2e-3, 20e-3)
PAUSES_NS: Final = tuple(round(pause_s * 1e9) for pause_s in PAUSES_S)
_PAUSES: Final = len(PAUSES_S)


def pause_number(pause_ns: int) -> int:
    """Return 0 for a pause shorter than all of `PAUSES_S`, 1 for one as long as the first of them ..."""
    return bisect_right(PAUSES_NS, pause_ns)


Factors = Annotated[tuple[NonNegative, ...], Field(min_length=_PAUSES, max_length=_PAUSES)]


class RouterHost(StrictModel):
    """The CPU time of the router's process, which does one thing at a time.

    Attributes:
        decision: a decision, the sending of its micro-batch, and the bookkeeping after it.
        returned: a message that returns requests.
        sent_share: the part of a decision's cost until its micro-batch is sent.
        received_share: the part of a message's cost until its requests are back.
        spread: quantiles of a cost over its mean, in equal parts, ascending, with mean 1; empty if only the mean is
            known.
        after_pause: factors on a cost after a pause of at least each of `PAUSES_S`: caches are cold.
    """

    decision: WorkCost
    returned: WorkCost
    sent_share: Share = 1.0
    received_share: Share = 1.0
    spread: tuple[NonNegative, ...] = ()
    after_pause: Factors | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RouterHost:
        mean = sum(self.spread) / max(1, len(self.spread))
        if self.spread and (list(self.spread) != sorted(self.spread) or abs(mean - 1) > 1e-6):
            raise ValueError(f"spread must ascend and have mean 1: its mean is {mean:g}")
        return self


class HandoverTimes(StrictModel):
    """The mean times between the router's process and a server's, without other traffic.

    Attributes:
        there_s: from when a micro-batch's inputs are at its server until its scheduler has it.
        back_s: from the scheduler's return of requests until the message is at the router's process.
    """

    there_s: Cost
    back_s: Cost


class BusyServing(StrictModel):
    """A profile's `dispatch_s` and `handover` while some pass runs on the device: means, in seconds."""

    dispatch_s: Cost
    there_s: Cost
    back_s: Cost


class CpuWork(StrictModel):
    """The work of a server's process besides its passes, on the computing cores: CPU time at the device's full speed.

    CPU work has priority over passes, which stop meanwhile; its parts run one after the other.

    Attributes:
        taken: receiving a micro-batch.
        taken_after_pause: factors on that if no pass has run for at least each of `PAUSES_S`.
        moved: copying activations to another server.
        begun: work of a batch, from its command until its pass begins.
        ended: work of a batch, after its pass.
        slice_s: how long a process that wakes up, or a batch about to begin, leaves the core to a running pass; then
            they share the device.
    """

    taken: WorkCost
    taken_after_pause: Factors = (1.0,) * _PAUSES
    moved: WorkCost
    begun: WorkCost
    ended: WorkCost
    slice_s: NonNegative = 0.0


class StatedError(StrictModel):
    """The profile's error, in per cent of the measured value, as an absolute value.

    Attributes:
        kind: `held out`: on points that no fit used. `cross-validated`: on fitted points, each left out of a fit in
            turn. `repeatability`: not an error of a fit, but the spread of repeated measurements.
    """

    metric: str
    kind: Literal["held out", "cross-validated", "repeatability"]
    median_abs_pct: NonNegative
    mean_abs_pct: NonNegative
    p90_abs_pct: NonNegative
    max_abs_pct: NonNegative
    points: Count


class Range(StrictModel):
    """The measured range of a metric: beyond `low` to `high` of a quantity it is extrapolated."""

    metric: str
    quantity: str
    low: float
    high: float


class Profile(StrictModel):
    """One device running one model; see the attributes' own types.

    Attributes:
        checksum: checksum of the file's other keys, if it has one; None once it was compared with them.
        dispatch_s: within the server's process, from a command to the forward's start plus from its end to the
            scheduler, on average; it occupies the instance.
        router_host: costs of the router's process on this host, if measured.
        handover: times between that process and a server's, if measured.
        fetch_s: lower bound of the time from when a micro-batch is sent until activations of another server are at its
            own: that server's process is asked, writes them, and answers.
        served_extra_s, served_extra_share, served_extra_per_byte_s: device time of a served pass beyond its solo pass,
            if measured: constant, as a share of that, and for each byte of the instance's weights, which come from
            memory and not from a cache.
        extra_after_pause_s: addition to that if no pass has run for at least each of `PAUSES_S`.
        served_ratios: quantiles, in equal parts, of times of served passes at full speed, over the model's time from
            all of the above and the calibrated mean; they replace `jitter`. Empty if not measured.
        busy_serving: times of serving while passes run, if measured; otherwise they are the same.
        cpu_work: other work of a server's process on a CPU device's cores, if measured.
        slowdown: the variation of the device's speed; None if it was not measured.
        made_with: settings of the calibration, in words; None if unknown.
        padded_sizes: the only batch sizes on the device, ascending: a batch is padded to the next of them. Every
            latency curve is of exactly these. Empty for batches of any size.
        beside_load: the factor on times of passes while an instance is loaded on the device.
        link: this host's transport between two servers on it, if measured.
        errors: held-out and cross-validated ones; empty for a datasheet profile, which guarantees nothing.
        ranges: the measured ranges of the metrics.
        omitted: what was not measured, in words.
    """

    schema_: Literal["slimsched.profile/2"] = Field(alias="schema")
    name: str
    checksum: str | None = None
    provenance: Provenance
    device: DeviceInfo
    model: ModelInfo
    execution: dict[str, str] = Field(default_factory=dict)
    made_with: dict[str, str] | None = None
    dispatch_s: NonNegative
    router_host: RouterHost | None = None
    handover: HandoverTimes | None = None
    fetch_s: NonNegative = 0.0
    served_extra_s: NonNegative = 0.0
    served_extra_share: Annotated[float, Field(gt=-1)] = 0.0
    served_extra_per_byte_s: NonNegative = 0.0
    extra_after_pause_s: Annotated[tuple[NonNegative, ...], Field(min_length=_PAUSES, max_length=_PAUSES)] | None = None
    served_ratios: tuple[Positive, ...] = ()
    busy_serving: BusyServing | None = None
    cpu_work: CpuWork | None = None
    padded_sizes: tuple[Count, ...] = ()
    beside_load: Annotated[float, Field(ge=1)] = 1.0
    latency: tuple[LatencyCurve, ...] = Field(min_length=1)
    memory: DeviceMemory
    concurrency: Concurrency
    power: Power
    sensor: SensorModel
    slowdown: Slowdown | None = None
    link: Link | None = None
    errors: tuple[StatedError, ...] = ()
    ranges: tuple[Range, ...] = ()
    omitted: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        model = self.model
        keys = {
            (s, w, p) for s in range(1, model.segments + 1) for w in model.widths for p in model.previous_widths(s, w)
        }
        curves = [(curve.segment, curve.width, curve.previous_width) for curve in self.latency]
        _require_exactly(keys, curves, "latency", "(segment, width, previous_width)")
        instances = {(s, w) for s in range(1, model.segments + 1) for w in model.widths}
        _require_exactly(
            instances, [(i.segment, i.width) for i in self.memory.instances], "memory.instances", "(segment, width)"
        )
        for curve in self.latency if self.padded_sizes else ():
            if curve.batches != self.padded_sizes:
                key = (curve.segment, curve.width, curve.previous_width)
                sizes = f"the batches of {key} are {list(curve.batches)}, padded_sizes are {list(self.padded_sizes)}"
                raise ValueError(f"{sizes}: a device that pads is measured at exactly the sizes that it is given")
        return self

    @property
    def origin(self) -> str:
        """The display form of its origin: its provenance, and the slowdown of an emulated device."""
        return origin_of(self.provenance, emulated_slowdowns([self]))

    @property
    def is_on_cores(self) -> bool:
        """Whether passes run on the same cores as the process that serves them: a real CPU device."""
        return self.device.kind == "cpu" and self.device.emulated_slowdown is None

    def weights_bytes(self, segment: int, width: float) -> int:
        """Return the bytes of the instance of a segment at a width."""
        return next(cost.vram_bytes for cost in self.memory.instances if (cost.segment, cost.width) == (segment, width))

    @property
    def batch_limit(self) -> int:
        """The largest batch that every curve covers; beyond it the simulator refuses."""
        return min(curve.batches[-1] for curve in self.latency)

    @classmethod
    def from_yaml(cls, text: str, source: str) -> Profile:
        """Read a profile; raises `InputError` naming `source` and the key if it is invalid."""
        try:
            return _read(text)
        except InputError as error:
            raise InputError(source, error.key, error.problem) from None

    def to_yaml(self) -> str:
        """Return the text that `from_yaml` reads back as this profile, with a checksum near its beginning."""
        schema, name, *others = strict.plain(self).items()
        content = dict([schema, name, *others])
        return strict.dump(dict([schema, name, ("checksum", _checksum(content)), *others]))


def emulated_slowdowns(profiles: Iterable[Profile]) -> tuple[float, ...]:
    """Return the slowdowns of the emulated devices among them, ascending, each once."""
    slowdowns = {profile.device.emulated_slowdown for profile in profiles}
    return tuple(sorted(slowdown for slowdown in slowdowns if slowdown is not None))


def origin_of(provenance: str, slowdowns: Sequence[float]) -> str:
    """Return `measured`, `emulated x10`; devices of several slowdowns are `emulated x1/x20`."""
    return f"{provenance} {'/'.join(f'x{slowdown:g}' for slowdown in slowdowns)}" if slowdowns else str(provenance)


@lru_cache(maxsize=64)
def _read(text: str) -> Profile:
    """Cache the parsed profile: it is large, frozen, and read for every server that names it, at each check."""
    raw = strict.mapping(text, "")
    stored = raw.pop("checksum", None)
    profile = strict.validate(Profile, raw, "")
    if stored is not None and stored != (checksum := _checksum(raw)):
        problem = f"{stored!r:.40} is not of the file's other keys ({checksum!r}): it was changed by hand, or damaged"
        remedy = "to keep the change, delete the line `checksum`; otherwise calibrate again, or copy the file again"
        raise InputError("", "checksum", f"{problem}; {remedy}")
    if profile.provenance not in (Provenance.DATASHEET, Provenance.EMULATED) and not profile.errors:
        raise InputError("", "errors", "a profile that was not derived from a datasheet must state its errors")
    return profile


def _checksum(content: Mapping[str, Any]) -> str:
    """Return 16 hex digits of a file's content, whatever its layout and its version."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _require_exactly(expected: Set[tuple[float, ...]], keys: Sequence[tuple[float, ...]], where: str, of: str) -> None:
    missing, extra = expected - set(keys), set(keys) - expected
    if missing or extra or len(keys) != len(expected):
        twice = {key for key, count in Counter(keys).items() if count > 1}
        raise ValueError(
            f"{where} must have each {of} of the model once; missing {sorted(missing)[:3]}, "
            f"not of the model {sorted(extra)[:3]}, given twice {sorted(twice)[:3]}"
        )
