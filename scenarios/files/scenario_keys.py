"""The scenario file: what a user may write, key by key, checked whole before anything starts.

Every key is defined here once, with its meaning, its limits and its default; `docs/scenario-keys.md` is made from this
file. It reads series (traces, rates) to check them; everything else that a scenario names is checked by
`scenarios.files.scenario_reading`. It builds nothing: `scenarios.experiment.scenario_building` does that. The number of
segments, the widths and the number of servers come from the files named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from hw.networks.datasets import DATASETS, is_image_folder
from kit import strict
from kit.errors import InputError
from kit.strict import FileName, FilePath, Name, Plain, PossiblePath, StrictModel, form
from kit.units import seconds
from policies.faults import Crash, Fault, Hang, Outage, Slowness, Squeeze, Supervision
from policies.goal_control import MAX_WEIGHT
from policies.interfaces import MICRO_BATCH_SIZES
from policies.observation import problem_with
from policies.vocabulary import NS_PER_S, nanoseconds
from scenarios.files.bundled_files import is_shipped_name, profile_file
from scenarios.files.router_files import is_router_file, labelled, router_file
from scenarios.files.series_files import read_rates, read_trace
from sim.device_profile import Count, Loss, NonNegative, Positive, Share

SCHEMA: Literal["slimsched.scenario/1"] = "slimsched.scenario/1"
GB = 1_000_000_000


LONGEST_S = 1e7  # four months; nanoseconds of it still fit where engines count them
Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=LONGEST_S)]
SecondsOrZero = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=LONGEST_S)]
EnergyWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT)]
Whole = Annotated[int, Field(ge=0)]
ProfileName = Annotated[PossiblePath, FileName(lambda text: not is_shipped_name(text), profile_file)]
DatasetName = Annotated[
    PossiblePath, FileName(is_image_folder, lambda text: Path(text) if is_image_folder(text) else None)
]
RouterName = Annotated[PossiblePath, FileName(is_router_file, router_file, labelled)]
ShareBelowOne = Annotated[float, Field(gt=0, lt=1)]


# -------------------------------------------------------------------------------------------------------------- model


NETWORKS = (
    "digits",
    "digit-pairs",
    "large-digit-pairs",
    "slimresnet-pairs",
    "slimresnet-tiny",
    "slimresnet18",
    "slimvit-pairs",
    "slimvit-tiny",
    "slimvit",
)  # those of hw.networks.network_files, named here without opening torch


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


class ModelTraining(StrictModel):
    """How the network is trained. Keys that are left out follow the data set's recipe."""

    epochs: Count | None = Field(None, description="passes over the training images")
    batch: Count | None = Field(None, description="images a step")
    optimizer: Literal["sgd", "adamw"] | None = Field(
        None, description="`sgd` with Nesterov momentum, or `adamw` (for Transformers)"
    )
    learning_rate: Positive | None = Field(None, description="peak rate; a cosine to zero follows")
    weight_decay: NonNegative | None = Field(None, description="L2 penalty; `adamw` decays no biases and norms")
    clip_norm: NonNegative | None = Field(None, description="limit of the gradient's norm; 0: none")
    warmup_epochs: NonNegative | None = Field(None, description="epochs of linear warm-up of the rate")
    label_smoothing: Share | None = Field(None, description="of the widest network's labels")
    label_share: Share | None = Field(
        None, description="weight of the labels for narrower networks; the rest is distillation from the widest"
    )
    shift: Whole | None = Field(None, description="random crops after padding by this many pixels")
    flip: bool | None = Field(None, description="mirror half of the images")
    random_tuples: Whole | None = Field(None, description="width tuples drawn each step, besides the two extremes")
    growth: tuple[tuple[Share, Count], ...] | None = Field(
        None,
        description="pairs [share of the epochs, pixels]: image size until then; only for networks that take any size",
    )
    checkpoint_epochs: Count | None = Field(None, description="epochs between checkpoints")
    probe_epochs: Whole | None = Field(
        None, description="epochs between tests of the uniform widths, for TensorBoard; 0: none"
    )
    device: str = Field("cpu", description="torch's name of the device: `cpu`, `cuda:0`")
    precision: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="of forward passes in training; `auto`: mixed if the device has it"
    )


class ModelSection(StrictModel):
    """The slimmable network: one to train (`network`), a trained one (`checkpoint`), or none.

    With `accuracy` alone you can simulate, if every server has a profile.
    """

    network: str | None = Field(
        None,
        description=f"{_listed(NETWORKS)}, or a custom `module:Class` (a subclass of "
        "hw.networks.slimmable.SlimmableModel); trained first, unless there is a checkpoint",
    )
    options: Plain = Field(default_factory=dict, description="arguments of a custom network's class")
    dataset: DatasetName = Field(
        "digits",
        description=f"images for training and testing: {_listed(DATASETS)}, a custom "
        "`module:Class` (hw.networks.datasets.OwnDataset), or a folder with `train/CLASS/*.png` and `test/CLASS/*.png`",
    )
    training: ModelTraining = Field(default_factory=ModelTraining, description="how it is trained")
    checkpoint: FilePath | None = Field(
        None,
        description="a trained network's file (safetensors), or a bundled one (`slimresnet-pairs`, "
        "`slimresnet-tiny`, `slimvit-pairs`); `network` must name a custom class",
    )
    accuracy: FilePath | None = Field(
        None,
        description="a file of accuracy by width tuple, or a bundled one: `slimresnet18-paper`, the paper's, "
        "or a bundled network's; made from the network if there is one",
    )

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if not (self.network or self.checkpoint or self.accuracy):
            raise ValueError("give one of network, checkpoint, accuracy")
        if self.options and not (self.network and ":" in self.network):
            raise ValueError("options are for a custom network, named `module:Class`")
        return self

    @property
    def is_runnable(self) -> bool:
        """Whether there is (or will be) a network, and not only a table of its accuracy."""
        return bool(self.network or self.checkpoint)


# ------------------------------------------------------------------------------------------------------------ cluster


MAX_SLOWDOWN = 1e6


_OF_A_GPU: Final = ("memory_format", "dtype", "graphs", "sm_percent")


class DeviceSection(StrictModel):
    """A device of this machine, for calibration and runs on real executors, or an [emulated](emulated.md) one.

    An emulated device takes `slowdown` and `cores` alone, and its server takes no `profile`.
    """

    emulated: ProfileName | None = Field(
        None, description="the profile to emulate: a file, or a bundled profile's name; null: a real device"
    )
    slowdown: Annotated[float, Field(ge=1, le=MAX_SLOWDOWN)] = Field(
        1.0, description="of an emulated device: factor on the time of every pass and load"
    )
    kind: Literal["cpu", "cuda"] = Field("cpu", description="some of this machine's cores, or an NVIDIA GPU")
    cores: tuple[Whole, ...] = Field(
        (),
        description="cores the executor is pinned to; empty: all, or a GPU's share of those that no device names",
    )
    threads: Count = Field(1, description="threads of one forward pass")
    onednn: bool = Field(True, description="whether torch may use oneDNN on a CPU")
    index: Whole = Field(0, description="which GPU")
    memory_format: Literal["measured", "contiguous", "channels_last"] = Field(
        "measured", description="of a GPU: layout of activations in memory; `measured`: what calibration found faster"
    )
    dtype: Literal["float32", "bfloat16", "float16", "measured"] = Field(
        "float32",
        description="of a GPU: of weights and activations; `measured`: bfloat16 if calibration finds it "
        "faster, with at most one label in a thousand different",
    )
    graphs: bool | None = Field(None, description="of a GPU: capture and replay passes, if possible; null: true")
    sm_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="of a GPU: percent of its multiprocessors, by MPS, for unequal servers on one GPU; "
        "without MPS smaller shares compute each pass several times instead; null: all",
    )
    idle_w: NonNegative | None = Field(None, description="idle power without a sensor; null: the kind's default")
    tdp_w: Positive | None = Field(None, description="full power without a sensor; null: the kind's default")
    vram_gb: Positive | None = Field(
        None, description="memory, GB of 10^9 bytes; null: the GPU's own, and 1.07 (1 GiB) for a CPU"
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> DeviceSection:
        if self.emulated is None:
            if "slowdown" in self.model_fields_set:
                raise ValueError("slowdown is of an emulated device; leave it out, or name the profile: emulated")
            changed = [name for name in _OF_A_GPU if getattr(self, name) != DeviceSection.model_fields[name].default]
            if self.kind != "cuda" and changed:
                raise ValueError(f"{', '.join(changed)}: of a GPU alone; leave it out, or give kind: cuda")
            return self
        if others := sorted(self.model_fields_set - {"emulated", "slowdown", "cores"}):
            raise ValueError(f"an emulated device takes emulated, slowdown and cores; leave out {', '.join(others)}")
        return self


LinkName = Literal["wifi5", "1gbe", "10gbe", "loopback", "measured"]


class LinkSection(StrictModel):
    """The network link to a server."""

    latency_s: SecondsOrZero = Field(description="one way, for any size")
    bandwidth_bytes_s: Positive = Field(description="bytes per second")
    loss: Loss = Field(0.0, description="share of packets (1500 bytes) that are lost and sent again")
    medium: str | None = Field(None, description="servers with the same medium share it; null: not shared")


InstanceName = tuple[Count, Positive]


class GreedySection(StrictModel):
    """Settings of a server's greedy scheduler (Algorithm 1)."""

    batch_limit: Count = Field(32, description="B_max: largest batch, in requests; the profile must cover it")
    vram_cap_gb: Positive | None = Field(
        None, description="M_max, GB of 10^9 bytes, with a GPU's context; null: the device's memory"
    )
    utilization_block: Share = Field(0.95, description="U_blk: no load while the latest sample is at least this")
    util_metric: Literal["nvml", "sm"] = Field(
        "nvml",
        description="utilization: share of time any kernel ran, or share of the SMs (simulation only)",
    )
    idle_unload_s: Seconds | None = Field(
        5.0, description="t_idle: idle time after which an instance is unloaded; null: never"
    )
    scale_trigger: Whole = Field(
        32, description="Q_th: queued requests of a key above which a further instance may load, without eviction"
    )
    scale_cap: Whole | None = Field(
        None,
        description="N_new: no further instance after this many loads for a key since its queue was last "
        "empty; null: 2 on a CPU, 0 on a GPU, where it is a second stream, not a second device",
    )
    head_of_line: Literal["skip", "wait"] = Field(
        "skip", description="if the oldest key can't be served: try the next, or wait (the literal algorithm)"
    )
    skip_limit_s: SecondsOrZero = Field(0.5, description="wait after which a key is no longer overtaken")
    served_width: Literal["requested", "instance"] = Field(
        "requested", description="width that runs if a wider instance serves a request"
    )
    preload: Annotated[
        Annotated[Literal["all", "none"], Tag("<word>")] | Annotated[tuple[InstanceName, ...], Tag("<parts>")],
        Discriminator(form),
    ] = Field(
        "none",
        description="instances to load when the server starts: `all`, `none`, or pairs of segment and width; "
        "loads before the run take no time, after a restart they do",
    )


class ServerSection(StrictModel):
    """One server: a queue with a scheduler, on a device."""

    name: Name = Field(description="unique in the cluster; up to 100 letters, digits, `.`, `_`, `-`")
    device: DeviceSection | None = Field(None, description="the real device; null: simulated only")
    profile: ProfileName | None = Field(
        None, description="a file, or a bundled profile's name; null: the local device is calibrated"
    )
    link: Annotated[
        Annotated[LinkName, Tag("<word>")] | Annotated[LinkSection, Tag("<parts>")], Discriminator(form)
    ] = Field("measured", description="a preset (`wifi5` is one medium for all), `measured` by calibration, or numbers")
    count: Count = Field(
        1, description="number of equal servers, each with a separate device and link: `NAME-0`, `NAME-1` ..."
    )
    rack: Name | None = Field(None, description="its rack; null without racks")
    shares_device_with: str | None = Field(None, description="another server, whose device it shares")
    host: Name | None = Field(
        None,
        description="under `backend: ray`: its host, by the label `host` of the node or the host's name; "
        "null: the router's",
    )
    greedy: GreedySection = Field(
        default_factory=GreedySection, description="settings that differ from `cluster.greedy`"
    )

    @property
    def emulated(self) -> str | None:
        """The profile that its device plays; None for a real device, and for none."""
        return self.device.emulated if self.device is not None else None

    @property
    def known_profile(self) -> str | None:
        """The profile that the file names, whether simulated or emulated; None if the device is to be measured."""
        return self.profile or self.emulated

    @property
    def profile_key(self) -> str:
        """The key of `known_profile` in the server's section."""
        return "profile" if self.emulated is None else "device.emulated"


class RackSection(StrictModel):
    """A rack: its servers reach each other over their own links, and all others over its uplink, too."""

    name: Name = Field(description="unique in the cluster")
    count: Count = Field(
        1, description="number of equal racks, each with separate servers: `NAME0-SERVER`, `NAME1-SERVER` ..."
    )
    latency_s: SecondsOrZero = Field(description="one way, from its switch to the switch of all racks")
    bandwidth_bytes_s: Positive = Field(description="bytes per second into the rack, in total")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the racks."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}{number}" for number in range(self.count))


MAX_SERVERS: Final = 10_000


class ClusterSection(StrictModel):
    """The servers, and their common settings."""

    servers: Annotated[
        Annotated[Literal["auto"], Tag("<word>")]
        | Annotated[tuple[ServerSection, ...], Field(min_length=1, max_length=MAX_SERVERS), Tag("<parts>")],
        Discriminator(form),
    ] = Field(description="the servers; `auto`: one for each device of this machine")
    racks: tuple[RackSection, ...] = Field(
        (), description="racks of servers, for simulation; the router's host is in none ([many servers](scale.md))"
    )
    greedy: GreedySection = Field(default_factory=GreedySection, description="Algorithm 1's settings for all servers")
    backend: Literal["local", "ray"] = Field(
        "local", description="what starts real servers: this machine, or [Ray](cluster.md) on a cluster's hosts"
    )
    address: str = Field(
        "auto", description="under `backend: ray`: HOST:PORT of the cluster's head; `auto`: the one that runs here"
    )
    beyond_loopback: bool = Field(
        False, description="under `backend: ray`: allow hosts that others can reach; needs Ray's token"
    )

    @model_validator(mode="after")
    def _in_racks(self) -> ClusterSection:
        """Check that every server is in an existing rack, and that every rack has servers."""
        sections = () if self.servers == "auto" else self.servers
        unique(tuple(rack.name for rack in self.racks))
        racks = {rack.name: rack.count for rack in self.racks}
        count_in_racks = sum(server.count * racks.get(server.rack or "", 1) for server in sections)
        if (count := max(count_in_racks, sum(racks.values()))) > MAX_SERVERS:  # a rack has one at least
            raise ValueError(f"these are {count} servers; expected at most {MAX_SERVERS}")
        unique(tuple(name for rack in self.racks for name in rack.names))
        for server in sections:
            if (server.rack is not None or racks) and server.rack not in racks:
                remedy = f"name one of {', '.join(racks)}" if racks else "the cluster has no racks: leave it out"
                raise ValueError(f"{server.name}'s rack is {server.rack or 'missing'}; {remedy}")
            if server.shares_device_with is not None and (server.count > 1 or racks):
                raise ValueError(f"{server.name} shares a device; leave out its count and all racks")
        if empty := sorted(set(racks) - {server.rack for server in sections}):
            raise ValueError(f"no server is in {', '.join(empty)}; leave the rack out, or name it at its servers")
        return self

    @model_validator(mode="after")
    def _of_one_backend(self) -> ClusterSection:
        if self.backend == "local":
            misplaced = sorted({"address", "beyond_loopback"} & self.model_fields_set)
            misplaced += [f"{server.name}'s host" for server in self.named_servers if server.host is not None]
            if misplaced:
                raise ValueError(f"{', '.join(misplaced)}: only under backend: ray; set that, or leave it out")
        elif shares := [each.name for each in self.named_servers if each.device and each.device.sm_percent]:
            raise ValueError(f"{', '.join(shares)}: sm_percent is given by this host alone; leave it out under ray")
        elif self.servers == "auto":
            raise ValueError("servers: auto finds devices of this machine alone; under backend: ray name each server")
        for server in self.named_servers:
            if server.shares_device_with is not None and server.host is not None:
                raise ValueError(f"{server.name} is where {server.shares_device_with} is; leave out its host")
        return self

    def host_of(self, server: ServerSection) -> str | None:
        """Return the host that a server is on; None for the router's."""
        if server.shares_device_with is None:
            return server.host
        return next((other.host for other in self.named_servers if other.name == server.shares_device_with), None)

    @property
    def named_servers(self) -> tuple[ServerSection, ...]:
        """The servers that the file names, one by one; none under `auto`."""
        return tuple(server for _, server in self.numbered_servers)

    @property
    def numbered_servers(self) -> tuple[tuple[int, ServerSection], ...]:
        """The servers that the file names, each behind the number of its section."""
        return () if self.servers == "auto" else _one_by_one(self.servers, self.racks)

    @property
    def owners(self) -> tuple[ServerSection, ...]:
        """The servers that have a separate device."""
        return tuple(server for server in self.named_servers if server.shares_device_with is None)

    @property
    def is_emulated(self) -> bool:
        """Whether all devices are."""
        return bool(self.owners) and all(server.emulated is not None for server in self.owners)

    def greedy_of(self, server: ServerSection) -> GreedySection:
        """Return a server's parameters: its own if it gives them, otherwise the cluster's."""
        changes = {name: getattr(server.greedy, name) for name in server.greedy.model_fields_set}
        return self.greedy.model_copy(update=changes)


@lru_cache(maxsize=64)
def _one_by_one(
    servers: tuple[ServerSection, ...], racks: tuple[RackSection, ...]
) -> tuple[tuple[int, ServerSection], ...]:
    """Return the servers, each under the number of its section, those of a rack together."""
    numbered = [
        (section, server.model_copy(update={"name": f"{server.name}{suffix}", "count": 1}))
        for section, server in enumerate(servers)
        for suffix in ([f"-{number}" for number in range(server.count)] if server.count > 1 else [""])
    ]
    placed = [(section, server) for section, server in numbered if server.rack is None]
    for rack in racks:
        for name in rack.names:
            prefix = f"{name}-" if rack.count > 1 else ""
            placed += [
                (section, server.model_copy(update={"name": f"{prefix}{server.name}", "rack": name}))
                for section, server in numbered
                if server.rack == rack.name
            ]
    return tuple(placed)


# ------------------------------------------------------------------------------------------- router, workload, faults


class RouterSection(StrictModel):
    """Settings of the router's core, the same for every router."""

    micro_batch_sizes: tuple[Count, ...] = Field(
        MICRO_BATCH_SIZES, description="group sizes to choose from, ascending", min_length=1
    )
    outstanding_micro_batches: Count | None = Field(
        None,
        description="most micro-batches outstanding at a server; null: 4 on a real GPU, otherwise 2",
    )
    micro_batch_key: Literal["location", "any"] = Field(
        "location", description="`location`: requests of a micro-batch must have their activations in one place"
    )
    max_batching_delay_s: Annotated[float, Field(ge=0, le=60)] = Field(
        0.0,
        description="most time that a request may be delayed, over all segments, so that others join its micro-batch; "
        "0: no batching delays",
    )
    samples: Annotated[int, Field(ge=1, le=MAX_SERVERS)] | None = Field(
        None,
        description="servers that a decision considers, if there are more: that of the activations and random "
        "others ([many servers](scale.md)); null: all",
    )
    max_retries: Whole = Field(3, description="retries after a rejection or a server's death before a request fails")
    decision_s: Annotated[
        Annotated[Literal["measured"], Tag("<word>")] | Annotated[float, Field(ge=0, le=60), Tag("<number>")],
        Discriminator(form),
    ] = Field(
        "measured",
        description="simulated time of the policy for a decision, in addition to the profiles' cost of the "
        "router's host; `measured`: in `compare` and `validate` that of the run folder, otherwise 0, or 100 "
        "us if no profile has the host's cost",
    )

    @field_validator("micro_batch_sizes")
    @classmethod
    def _ascending(cls, micro_batch_sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(micro_batch_sizes) != sorted(set(micro_batch_sizes)):
            raise ValueError(f"must ascend: {list(micro_batch_sizes)}")
        return micro_batch_sizes


class WorkloadSection(StrictModel):
    """The keys and methods of every workload."""

    def require_files(self) -> None:
        """Check that the files that it names hold what it plays; raises `InputError`."""

    def base_img_s(self, capacity_img_s: float) -> float | None:
        """Return the workload's mean rate on a cluster of some capacity; None if its file fixes the rate."""
        return None

    def mean_factor(self, duration_s: float) -> float:
        """Return the mean rate over a run, in times of that rate."""
        return 1.0

    def peak_factor(self) -> float:
        """Return the highest rate, in times of that rate, if arrivals are drawn at it and thinned out; otherwise 1."""
        return 1.0

    def busiest_factor(self) -> float:
        """Return the highest rate that it stays at for a while, in times of that rate."""
        return self.peak_factor()

    def mean_changes(self, duration_s: float) -> float:
        """Return about how often its rate is drawn again in a run."""
        return 0.0


class _Rated(WorkloadSection):
    rate_img_s: Positive | None = Field(None, description="mean arrivals per second")
    load: Positive | None = Field(None, description="instead of the rate: share of the cluster's estimated capacity")

    @model_validator(mode="after")
    def _one_rate(self) -> _Rated:
        if (self.rate_img_s is None) == (self.load is None):
            raise ValueError("give one of rate_img_s (images a second) and load (share of the capacity)")
        return self

    def base_img_s(self, capacity_img_s: float) -> float | None:
        """Return the given rate, or its share of the capacity."""
        return self.rate_img_s if self.load is None else self.load * capacity_img_s


class PoissonWorkload(_Rated):
    """Independent arrivals at a constant rate."""

    kind: Literal["poisson"] = Field(description="")


class MmppWorkload(_Rated):
    """Bursts: a two-state Markov-modulated Poisson process with the given mean rate."""

    kind: Literal["mmpp"] = Field(description="")
    burst_factor: Annotated[float, Field(gt=1)] = Field(4.0, description="rate in a burst over the mean")
    burst_share: ShareBelowOne = Field(0.1, description="share of time in bursts; factor x share must be below 1")
    dwell_s: Seconds = Field(2.0, description="mean length of a burst")

    @model_validator(mode="after")
    def _calm_rate_is_positive(self) -> MmppWorkload:
        if self.burst_factor * self.burst_share >= 1:
            raise ValueError(
                f"burst_factor x burst_share is {self.burst_factor * self.burst_share:g}; it must be below 1, "
                "or nothing is left for the calm state"
            )
        return self

    def busiest_factor(self) -> float:
        """Return the factor in a burst."""
        return self.burst_factor

    def mean_changes(self, duration_s: float) -> float:
        """Return how often bursts begin and end."""
        return 2 * duration_s * self.burst_share / self.dwell_s


class GammaWorkload(_Rated):
    """Independent gaps with a gamma distribution."""

    kind: Literal["gamma"] = Field(description="")
    cv: Annotated[float, Field(gt=0, le=100)] = Field(
        2.0, description="coefficient of variation of the gaps; 1: Poisson, more: burstier"
    )


class DiurnalWorkload(_Rated):
    """Poisson arrivals whose rate rises and falls as a sine."""

    kind: Literal["diurnal"] = Field(description="")
    amplitude: Share = Field(0.5, description="of the sine, as a share of the mean rate")
    period_s: Seconds = Field(60.0, description="of the sine")

    def peak_factor(self) -> float:
        """Return the factor at the sine's height."""
        return 1 + self.amplitude


class RatesWorkload(_Rated):
    """Poisson arrivals whose rate follows a recorded curve, periodically."""

    kind: Literal["rates"] = Field(description="")
    file: FilePath = Field(description="a CSV file with a header line; rows are equally long steps of the curve")
    column: str = Field("count", description="column of counts or rates, in any unit: only ratios count")
    tuning_file: FilePath | None = Field(None, description="another curve for training and tuning; null: the same")
    period_s: Seconds = Field(60.0, description="time of the whole curve")

    def require_files(self) -> None:
        """Check both curves."""
        for file in filter(None, (self.file, self.tuning_file)):
            read_rates(Path(file), self.column)


class FlashWorkload(_Rated):
    """Poisson arrivals with a flash crowd: the rate rises, stays high, and falls, linearly."""

    kind: Literal["flash"] = Field(description="")
    rate_img_s: Positive | None = Field(None, description="arrivals per second outside the crowd")
    factor: Annotated[float, Field(gt=1)] = Field(3.0, description="rate at the peak over the rate outside")
    at_s: SecondsOrZero = Field(description="start of the rise")
    rise_s: SecondsOrZero = Field(1.0, description="duration of the rise")
    peak_s: SecondsOrZero = Field(10.0, description="duration of the peak")
    fall_s: SecondsOrZero = Field(5.0, description="duration of the fall")

    def mean_factor(self, duration_s: float) -> float:
        """Return the mean rate over a run, in times of the rate outside the crowd."""
        left_s, full_s = duration_s - self.at_s, 0.0  # full_s: time at full height with as many arrivals
        for length_s, begins, ends in (
            (self.rise_s, 0.0, 1.0),
            (self.peak_s, 1.0, 1.0),
            (self.fall_s, 1.0, 0.0),
        ):
            spent_s = min(max(left_s, 0.0), length_s)
            slope = (ends - begins) / length_s if length_s else 0.0
            full_s += spent_s * (begins + slope * spent_s / 2)
            left_s -= length_s
        return 1 + (self.factor - 1) * full_s / duration_s

    def peak_factor(self) -> float:
        """Return the factor at the crowd's height."""
        return self.factor


class TraceWorkload(WorkloadSection):
    """Arrivals from a CSV file with a header line."""

    kind: Literal["trace"] = Field(description="")
    file: FilePath = Field(description="the CSV file")
    time_column: str = Field("time_s", description="column of arrival times: seconds, or ISO 8601 dates")
    factor: Positive = Field(1.0, description="speed-up over the recording; 1000 for times in milliseconds")
    resolution_s: SecondsOrZero = Field(
        0.0,
        description="step of the recorded times, in the file's unit: each arrival is at a random time within "
        "it; 0: as recorded",
    )
    from_s: SecondsOrZero = Field(
        0.0, description="arrivals until this time after the first are left out; in the file's unit"
    )

    def require_files(self) -> None:
        """Check its arrivals, some of them after `from_s`."""
        times_s = read_trace(Path(self.file), self.time_column)
        if self.from_s > (last_s := float(times_s.max() - times_s.min())):
            problem = f"is {self.from_s:g}, and the last arrival comes {last_s:g} after the first: name less"
            raise InputError(self.file, "workload.from_s", problem)


Workload = Annotated[
    PoissonWorkload | MmppWorkload | GammaWorkload | DiurnalWorkload | RatesWorkload | FlashWorkload | TraceWorkload,
    Field(discriminator="kind"),
]


class _Planned(StrictModel):
    """A fault of one server at a known time."""

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it; `server` is the server's number."""
        raise NotImplementedError(f"nothing plays {type(self).__name__}")


class _Span(_Planned):
    server: str = Field(description="its name")
    start_s: SecondsOrZero = Field(description="its start")
    end_s: Seconds | None = Field(description="its end")

    @model_validator(mode="after")
    def _ordered(self) -> _Span:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s ({self.end_s:g}) must be after start_s ({self.start_s:g})")
        return self


class _Moment(_Planned):
    server: str = Field(description="its name")
    at_s: SecondsOrZero = Field(description="when")


class ServerDownFault(_Span):
    """A server is down for a planned time, and returns empty."""

    kind: Literal["server_down"] = Field(description="")
    end_s: Seconds | None = Field(None, description="its return; null: never")

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it."""
        return Outage(server, nanoseconds(self.start_s), None if self.end_s is None else nanoseconds(self.end_s))


class StragglerFault(_Span):
    """A server is slow for a while; the router is not notified."""

    kind: Literal["straggler"] = Field(description="")
    end_s: Seconds = Field(description="its end")
    factor: Annotated[float, Field(ge=1)] = Field(description="slowdown factor")

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it."""
        return Slowness(server, nanoseconds(self.start_s), nanoseconds(self.end_s), self.factor)


class OutOfMemoryFault(_Span):
    """A server's device has memory for few images at once: larger batches run in halves."""

    kind: Literal["out_of_memory"] = Field(description="")
    end_s: Seconds = Field(description="its end")
    batch: Whole = Field(description="images that fit at once; 0: every batch fails")

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it."""
        return Squeeze(server, nanoseconds(self.start_s), nanoseconds(self.end_s), self.batch)


class WorkerKilledFault(_Moment):
    """A server's process is killed, and restarted by `supervision`."""

    kind: Literal["worker_killed"] = Field(description="")

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it."""
        return Crash(server, nanoseconds(self.at_s))


class WorkerHungFault(_Moment):
    """A server's process hangs; `supervision` detects, kills and restarts it."""

    kind: Literal["worker_hung"] = Field(description="")

    def planned(self, server: int) -> Fault:
        """Return the fault as simulation and executors play it."""
        return Hang(server, nanoseconds(self.at_s))


class PoisonedFault(StrictModel):
    """Some images are broken: the last segment finds no prediction for them."""

    kind: Literal["poisoned"] = Field(description="")
    share: Share = Field(description="probability, for each request")


def unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values; raises `ValueError` if one is given twice."""
    earlier: set[Any] = set()
    for value in values:
        if value in earlier:
            raise ValueError(f"{value!r:.80} is given twice; name each once")
        earlier.add(value)
    return values


ChaosKind = Literal["worker_killed", "worker_hung"]


class ChaosFault(StrictModel):
    """Workers die at random times, on random servers, while images arrive."""

    kind: Literal["chaos"] = Field(description="")
    mean_gap_s: Annotated[float, BeforeValidator(seconds), Field(ge=0.01, le=LONGEST_S)] = Field(
        description="mean time between faults (exponential)"
    )
    kinds: Annotated[tuple[ChaosKind, ...], Field(min_length=1), AfterValidator(unique)] = Field(
        ("worker_killed", "worker_hung"), description="kinds of fault, equally likely"
    )


SpanFault = ServerDownFault | StragglerFault | OutOfMemoryFault
MomentFault = WorkerKilledFault | WorkerHungFault
FaultSection = Annotated[SpanFault | MomentFault | PoisonedFault | ChaosFault, Field(discriminator="kind")]

_RULES = Supervision()


class SupervisionSection(StrictModel):
    """How a server's process is supervised and restarted."""

    hang_s: Annotated[float, BeforeValidator(seconds), Field(ge=0.1, le=LONGEST_S)] = Field(
        _RULES.hang_ns / NS_PER_S, description="a process without a heartbeat for this long is hung"
    )
    stuck_s: Annotated[float, BeforeValidator(seconds), Field(ge=1, le=LONGEST_S)] = Field(
        _RULES.stuck_ns / NS_PER_S, description="a process whose batch, load or move takes longer is hung, too"
    )
    backoff_s: SecondsOrZero = Field(
        _RULES.backoff_ns / NS_PER_S, description="wait before a restart; it doubles with each death in a row"
    )
    backoff_limit_s: SecondsOrZero = Field(_RULES.backoff_limit_ns / NS_PER_S, description="longest such wait")
    stable_s: SecondsOrZero = Field(
        _RULES.stable_ns / NS_PER_S, description="time up after which the wait is the first again"
    )
    start_s: SecondsOrZero = Field(
        _RULES.start_ns / NS_PER_S,
        description="simulated time from start to ready",
    )

    @model_validator(mode="after")
    def _ordered(self) -> SupervisionSection:
        if self.backoff_limit_s < self.backoff_s:
            problem = f"backoff_limit_s ({self.backoff_limit_s:g}) must not be below backoff_s ({self.backoff_s:g})"
            raise ValueError(problem)
        return self


# ------------------------------------------------------------------------------------------- reward, training, reports


class RewardSection(StrictModel):
    """Weights of the reward (Eq. 7)."""

    alpha: NonNegative = Field(1.0, description="of accuracy, in [0, 1]")
    beta: NonNegative = Field(1.0, description="of latency, in seconds")
    gamma: NonNegative = Field(0.0, description="of energy, in joules")
    delta: NonNegative = Field(0.0, description="of the variance of utilization over servers")
    bonus: Annotated[float, Field()] = Field(0.0, description="added to every micro-batch's reward")
    centre: bool = Field(False, description="subtract the mean accuracy of all tuples from the accuracy term")


class TrainingSection(StrictModel):
    """How `ppo`, the paper's router, is trained in simulation."""

    decisions: Count = Field(3_000_000, description="decisions to train for, over all environments")
    environments: Annotated[int, Field(ge=1, le=100_000)] = Field(64, description="simulated clusters stepped together")
    horizon_s: Seconds = Field(20.0, description="length of one training run of a cluster")
    load_range: tuple[Positive, Positive] = Field(
        (0.5, 1.0),
        description="range of a training run's rate over the workload's own",
    )
    batch: Annotated[int, Field(ge=2)] = Field(16_384, description="rewarded decisions per update")
    minibatch: Count = Field(2048, description="decisions per gradient step")
    epochs: Count = Field(3, description="K: passes over a batch")
    hidden: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = Field(
        (64, 64),
        description="sizes of the shared layers",
        min_length=1,
        max_length=100,
    )
    learning_rate: Positive = Field(1e-3, description="Adam's")
    clip: Positive = Field(0.2, description="the probability ratio is clipped to 1 +- this")
    value_weight: NonNegative = Field(0.5, description="c_v")
    entropy_weight: NonNegative = Field(0.01, description="c_H")
    max_grad_norm: Positive = Field(0.5, description="limit of the gradient's norm")
    eps_max: Share = Field(0.3, description="share of uniform exploration in the server head at the start")
    eps_min: Share = Field(0.02, description="the same after `eps_decay` decisions")
    eps_decay: Count = Field(1_500_000, description="T_dec: decisions over which it falls linearly")
    batching_delays_s: tuple[Positive, ...] = Field(
        (),
        description="waits to choose from, ascending, up to `router.max_batching_delay_s`: a fourth head "
        "sends the candidates, or holds them until the next larger group is full, for this long at most; "
        "empty: the paper's three heads",
        max_length=100,
    )
    checkpoint_every: Count = Field(10, description="updates between checkpoints")
    deterministic: bool = Field(True, description="the trained policy takes the likeliest choice; false: it samples")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSection:
        if self.eps_min > self.eps_max:
            raise ValueError(f"eps_min ({self.eps_min:g}) must not be above eps_max ({self.eps_max:g})")
        if self.load_range[0] > self.load_range[1]:
            raise ValueError(f"load_range must ascend: {list(self.load_range)}")
        if self.decisions < self.batch:
            raise ValueError(f"decisions ({self.decisions}) must be at least batch ({self.batch}): one update")
        if self.minibatch > self.batch:
            raise ValueError(f"minibatch ({self.minibatch}) must not be above batch ({self.batch})")
        return self


class TuningSection(StrictModel):
    """How a rule is tuned on this scenario, by its run or by `slimsched train`."""

    floor: Share | None = Field(
        None, description="mean accuracy to keep; null: the untuned `ladder`'s, rounded down to a tenth of a point"
    )
    decisions: Count = Field(40_000_000, description="simulated decisions per search")
    searches: Count = Field(1, description="independent searches; the best on new runs is taken")
    episodes: Count = Field(3, description="slices on which every candidate is evaluated")
    episode_s: Seconds = Field(10.0, description="length of a slice: long enough for a burst and its aftermath")
    matching_runs: Count = Field(3, description="full-length runs that set the floor at the end")
    objective: Literal["latency", "energy"] = Field(
        "latency",
        description="what to minimize: latency, or energy per image at a p99 latency of at most `slo.p99_limit_s`",
    )
    control: bool = Field(
        False,
        description="a tuned `ladder`, `lookahead` or `compass` [keeps the goals](routers.md#keeping-goals) "
        "of `slo` while it serves",
    )


Routers = Annotated[tuple[RouterName, ...], Field(min_length=1, max_length=1000), AfterValidator(unique)]
Seeds = Annotated[tuple[Whole, ...], Field(min_length=1, max_length=10_000), AfterValidator(unique)]


class GoalSection(StrictModel):
    """A change of what the operator asks for; what is not given stays as it was."""

    at_s: SecondsOrZero = Field(description="from when on, from the run's start")
    floor: Share | None = Field(
        None, description="mean accuracy that routers which control keep from then on; 0 for none, null: as before"
    )
    p99_limit_s: SecondsOrZero | None = Field(
        None, description="most that the p99 latency may be from then on; 0 for no limit, null: as before"
    )
    energy_weight: EnergyWeight | None = Field(
        None, description="points of accuracy that a joule an image is worth from then on; null: as before"
    )

    @model_validator(mode="after")
    def _changes_something(self) -> GoalSection:
        if self.floor is self.p99_limit_s is self.energy_weight is None:
            raise ValueError(f"at_s {self.at_s:g} changes nothing; give a floor, a p99_limit_s or an energy_weight")
        return self


class Goals(NamedTuple):
    """What the operator asks for from a time on; 0 for nothing of that kind."""

    at_s: float
    floor: float
    p99_limit_s: float
    energy_weight: float


class SloSection(StrictModel):
    """The service-level objective; results have its [attainment](metrics.md).

    Routers with [control](routers.md#keeping-goals) follow it.
    """

    floor: Share | None = Field(None, description="mean accuracy to keep; null: `tuning.floor`, if given")
    p99_limit_s: Seconds | None = Field(None, description="limit of the p99 latency; null: none")
    refuse: bool = Field(
        True,
        description="refuse requests beyond what keeps the p99 limit ([overload](routers.md#overload)); "
        "false: serve all",
    )
    energy_weight: EnergyWeight = Field(
        0.0, description="price of energy for Compass: points of accuracy (0.01) per joule an image"
    )
    schedule: tuple[GoalSection, ...] = Field(
        (), description="changes of these during the run, ascending in time", max_length=10_000
    )

    def goals(self, floor: float | None) -> tuple[Goals, ...]:
        """Return the goals, one after the other, from the start on; `floor` applies if the section names none."""
        goals = [Goals(0.0, (floor if self.floor is None else self.floor) or 0.0, self.p99_limit_s or 0.0,
                       self.energy_weight)]  # fmt: skip
        for goal in self.schedule:
            changes = {name: getattr(goal, name) for name in ("at_s", "floor", "p99_limit_s", "energy_weight")}
            goals.append(goals[-1]._replace(**{name: value for name, value in changes.items() if value is not None}))
        return tuple(goals)

    @model_validator(mode="after")
    def _ascending(self) -> SloSection:
        for before, after in pairwise(self.schedule):
            if after.at_s <= before.at_s:
                problem = f"schedule: at_s {after.at_s:g} stands after {before.at_s:g}"
                raise ValueError(f"{problem}; expected times that ascend")
        return self


class ClassSection(StrictModel):
    """A class of requests: its share and its objective ([how](how-to/classes.md))."""

    name: Name = Field(description="its name, in requests and tables")
    model: Name | None = Field(
        None,
        description="which of the network's [several models](models.md#several-models) serves it; null if there is one",
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="share of the requests; shares of all classes sum to 1"
    )
    floor: Share | None = Field(None, description="mean accuracy to keep; null: none")
    p99_limit_s: Seconds | None = Field(None, description="limit of their p99 latency; null: none")
    deadline_s: Seconds | None = Field(None, description="deadline of each; null: the scenario's `deadline_s`")


def _classes(classes: tuple[ClassSection, ...]) -> tuple[ClassSection, ...]:
    unique(tuple(each.name for each in classes))
    total = sum(each.share for each in classes)
    if classes and abs(total - 1) > 1e-9:
        raise ValueError(f"the classes' shares make {total:g}; they must make 1")
    return classes


Classes = Annotated[tuple[ClassSection, ...], Field(max_length=100), AfterValidator(_classes)]


class CompareSection(StrictModel):
    """The simulated comparison: every router with every seed."""

    routers: Routers = Field(
        ("random", "jsq", "shortest-delay", "sticky", "ladder", "slackfit", "compass"),
        description="names ([list](routers.md)), rule files (`*.rule.yaml`), trained routers' files, "
        "`NAME=FILE` (NAME in tables), `module:Class`, or what this run makes: `ppo`, `tuned:KIND`",
    )
    seeds: Seeds = Field((0, 1, 2), description="one run each; intervals are over seeds")
    baseline: RouterName | None = Field(
        None,
        description="router to which changes are computed, seed by seed; null: `random`, if compared",
    )

    @property
    def runs(self) -> int:
        """The number of runs of the comparison."""
        return len(self.routers) * len(self.seeds)


class ValidateSection(StrictModel):
    """The same workload in simulation and on real executors."""

    routers: Routers = Field(("random", "jsq", "compass"), description="as in `compare`")
    seeds: Seeds = Field((0,), description="one pair of runs each")
    duration_s: Seconds | None = Field(None, description="length of each run; null: the scenario's")
    warmup_s: SecondsOrZero | None = Field(None, description="warm-up, left out of the figures; null: the scenario's")
    loads: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], AfterValidator(unique)] = Field(
        (),
        description="arrival rates, as shares of the slowest router's saturated throughput on executors "
        "(measured first); empty: the workload's rate",
    )
    repeats: Count = Field(1, description="executor runs per router, load and seed, on the same arrivals")
    saturate: bool = Field(
        False,
        description="also compare throughput in saturated runs",
    )
    go_on: bool = Field(
        False,
        description="continue if the first two judged executor runs are more than 50 % from their simulation; "
        "false: stop",
    )


class ServeSection(StrictModel):
    """What `slimsched serve` keeps ([serve clients](how-to/serve.md))."""

    log_gb: NonNegative = Field(
        10.0,
        description="limit of the log of served requests, GB of 10^9 bytes; oldest parts are removed; 0: no log",
    )
    log_age_s: Seconds = Field(172_800.0, description="age at which parts of the log are removed")


class CalibrationSection(StrictModel):
    """How local devices are measured."""

    budget: Seconds = Field(300.0, description="wall time for each device; more time measures more rounds")
    allow_busy: bool = Field(False, description="measure even if other programs use much of a device")


# ------------------------------------------------------------------------------------------------------ the whole file


class Scenario(StrictModel):
    """One experiment: all that a run depends on, except the code."""

    EXAMPLE: ClassVar[str] = "scenarios/quickstart.yaml"

    schema_: Literal["slimsched.scenario/1"] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="name of the run folder; up to 100 letters, digits, `.`, `_`, `-`")
    model: ModelSection = Field(description="the network")
    cluster: ClusterSection = Field(description="the servers")
    router: RouterSection = Field(default_factory=RouterSection, description="settings of the router's core")
    workload: Workload = Field(description="arrivals of images")
    faults: tuple[FaultSection, ...] = Field((), description="faults to inject, and when", max_length=100_000)
    supervision: SupervisionSection = Field(
        default_factory=SupervisionSection, description="restarts of processes that died or hang"
    )
    deadline_s: Seconds | None = Field(None, description="a request's deadline, for goodput; null: none")
    shed: bool = Field(False, description="drop requests whose deadline has passed")
    slo: SloSection = Field(default_factory=SloSection, description="service-level objective")
    classes: Classes = Field((), description="classes of requests with separate objectives; empty: one class")
    reward: RewardSection = Field(default_factory=RewardSection, description="weights of Eq. 7")
    training: TrainingSection = Field(default_factory=TrainingSection, description="of `ppo`")
    tuning: TuningSection = Field(default_factory=TuningSection, description="of rules, by search")
    compare: CompareSection = Field(default_factory=CompareSection, description="the simulated comparison")
    validate_: ValidateSection = Field(
        default_factory=ValidateSection, alias="validate", description="simulation against real executors"
    )
    serve: ServeSection = Field(default_factory=ServeSection, description="of `slimsched serve`")
    calibration: CalibrationSection = Field(default_factory=CalibrationSection, description="of local devices")
    seed: Whole = Field(0, description="of all randomness without a seed in `compare` or `validate`")
    duration_s: Seconds = Field(60.0, description="duration of arrivals")
    warmup_s: SecondsOrZero = Field(5.0, description="requests that arrive earlier are left out of figures")
    end: Literal["drain", "cut"] = Field(
        "drain", description="at the end of arrivals: finish requests in flight (for a minute at most), or stop"
    )
    jitter: bool = Field(True, description="draw batch latencies from the profile's spread; false: means")

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if self.warmup_s >= self.duration_s:
            raise ValueError(f"warmup_s ({self.warmup_s:g}) must be below duration_s ({self.duration_s:g})")
        if self.classes:
            elsewhere = {
                "slo.floor": self.slo.floor,
                "slo.p99_limit_s": self.slo.p99_limit_s,
                "slo.schedule": self.slo.schedule or None,
                "tuning.floor": self.tuning.floor,
                "tuning.objective": "energy" if self.tuning.objective == "energy" else None,
            }
            for key, value in elsewhere.items():
                if value is not None:
                    raise ValueError(f"{key} is given together with classes; leave it out, and give it to each class")
        if self.shed and not any(self.deadlines_s):
            raise ValueError("shed needs a deadline_s: without one no request is ever late")
        if problem := problem_with(self.training.batching_delays_s, self.router.max_batching_delay_s):
            raise ValueError(f"training.batching_delays_s: {problem}")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in their order; empty if all requests are of one class."""
        return tuple(each.name for each in self.classes)

    @property
    def deadlines_s(self) -> tuple[float | None, ...]:
        """The deadline of each class, or of all requests, in seconds."""
        of_classes = tuple(self.deadline_s if each.deadline_s is None else each.deadline_s for each in self.classes)
        return of_classes or (self.deadline_s,)

    def to_yaml(self) -> str:
        """Return what was given (not the defaults), as text that reads back as this scenario."""
        return strict.dump(self.model_dump(mode="json", by_alias=True, exclude_unset=True))
