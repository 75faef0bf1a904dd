"""The scenario file: what a user may write, key by key, checked whole before anything starts.

Every key stands here once, with its meaning, its limits and its default; `docs/scenario-keys.md` is made from this
file. It reads series (traces, rates) to check them; all else that a scenario names is checked by
`scenarios.files.scenario_reading`. It builds nothing: `scenarios.world.scenario_building` does that. The number of
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
from policies.interfaces import GROUPS
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
    """How the network is trained. What is left out has the data set's own recipe."""

    epochs: Count | None = Field(None, description="passes over the training images")
    batch: Count | None = Field(None, description="images a step")
    optimizer: Literal["sgd", "adamw"] | None = Field(
        None, description="`sgd` with Nesterov momentum, or `adamw` (for Transformers)"
    )
    learning_rate: Positive | None = Field(None, description="peak rate; a cosine to zero follows")
    weight_decay: NonNegative | None = Field(None, description="L2 penalty; `adamw` decays no biases and norms")
    clip_norm: NonNegative | None = Field(None, description="longer gradients are shortened to this length; 0 never")
    warmup_epochs: NonNegative | None = Field(None, description="epochs of linear rise of the rate")
    label_smoothing: Share | None = Field(None, description="of the widest network's labels")
    label_share: Share | None = Field(
        None, description="how much narrower networks learn from labels; the rest is what the widest says"
    )
    shift: Whole | None = Field(None, description="random crops after padding by so many pixels")
    flip: bool | None = Field(None, description="mirror half of the images")
    random_tuples: Whole | None = Field(None, description="width tuples drawn each step beside the two extremes")
    growth: tuple[tuple[Share, Count], ...] | None = Field(
        None,
        description="pairs [share of the epochs, pixels]: until then images are shrunk to so many pixels; only for "
        "networks that take any size",
    )
    checkpoint_epochs: Count | None = Field(None, description="write a checkpoint each so many epochs")
    probe_epochs: Whole | None = Field(
        None, description="test the uniform widths each so many epochs, for TensorBoard; 0 never"
    )
    device: str = Field("cpu", description="where to train, as torch names it: `cpu`, `cuda:0`")
    precision: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="of forward passes in training; `auto`: mixed where the device has it"
    )


class ModelSection(StrictModel):
    """The slimmable network: one to train (`network`), one that is trained (`checkpoint`), or none.

    Without either, only `accuracy` is known and every server needs a profile: enough to simulate.
    """

    network: str | None = Field(
        None,
        description=f"{_listed(NETWORKS)}, or `module:Class` for one of your own (a subclass of "
        "hw.networks.slimmable.SlimmableModel): trained before all else unless there is a checkpoint",
    )
    options: Plain = Field(default_factory=dict, description="what the class of a network of your own is called with")
    dataset: DatasetName = Field(
        "digits",
        description=f"the images it is trained and tested on: {_listed(DATASETS)}, `module:Class` for a set of "
        "your own (hw.networks.datasets.OwnDataset), or a folder with `train/CLASS/*.png` and `test/CLASS/*.png`",
    )
    training: ModelTraining = Field(default_factory=ModelTraining, description="how it is trained")
    checkpoint: FilePath | None = Field(
        None,
        description="a trained network's file (safetensors), or one that ships (`slimresnet-pairs`, `slimresnet-tiny`, "
        "`slimvit-pairs`); of a class of your own, `network` must name it as well",
    )
    accuracy: FilePath | None = Field(
        None,
        description="a file of accuracy by width tuple, or one that ships: `slimresnet18-paper`, the paper's table, "
        "or that of a network which ships; made from the network where there is one",
    )

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if not (self.network or self.checkpoint or self.accuracy):
            raise ValueError("give one of network, checkpoint, accuracy")
        if self.options and not (self.network and ":" in self.network):
            raise ValueError("options are for a network of your own, named `module:Class`")
        return self

    @property
    def is_runnable(self) -> bool:
        """Whether there is (or will be) a network, and not only a table of its accuracy."""
        return bool(self.network or self.checkpoint)


# ------------------------------------------------------------------------------------------------------------ cluster


MAX_SLOWDOWN = 1e6


_OF_A_GPU: Final = ("memory_format", "dtype", "graphs", "sm_percent")


class DeviceSection(StrictModel):
    """A device of this machine, for calibration and for runs on real executors; or one that is emulated.

    An emulated device is a real process that plays a profile in real time ([emulated devices](emulated.md)). Of the
    other keys it takes `cores` alone, and its server takes no `profile`.
    """

    emulated: ProfileName | None = Field(
        None, description="the profile to play: a file, or a shipped profile's name; null for a real device"
    )
    slowdown: Annotated[float, Field(ge=1, le=MAX_SLOWDOWN)] = Field(
        1.0, description="of an emulated device: every pass and load takes so many times as long"
    )
    kind: Literal["cpu", "cuda"] = Field("cpu", description="a share of this machine's cores, or an NVIDIA GPU")
    cores: tuple[Whole, ...] = Field(
        (),
        description="cores the executor is pinned to; empty for all, or for a GPU's share of those that nobody names",
    )
    threads: Count = Field(1, description="threads of one forward pass")
    onednn: bool = Field(True, description="whether torch may use oneDNN on a CPU")
    index: Whole = Field(0, description="which GPU")
    memory_format: Literal["measured", "contiguous", "channels_last"] = Field(
        "measured", description="of a GPU: how activations lie in memory; what its calibration found quicker, or given"
    )
    dtype: Literal["float32", "bfloat16", "float16", "measured"] = Field(
        "float32",
        description="of a GPU: of weights and activations; `measured`: bfloat16 where calibration finds it quicker and "
        "all labels but one in a thousand the same",
    )
    graphs: bool | None = Field(
        None, description="of a GPU: passes are captured and replayed, where they can be; null: they are"
    )
    sm_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="of a GPU: share of its multiprocessors, by MPS, so that one GPU makes unequal servers; where MPS "
        "does not come up, smaller shares compute each pass several times instead; null: all of them",
    )
    idle_w: NonNegative | None = Field(
        None, description="idle power where no sensor tells; null for the kind's default"
    )
    tdp_w: Positive | None = Field(None, description="full power where no sensor tells; null for the kind's default")
    vram_gb: Positive | None = Field(
        None, description="memory, in GB of 10^9 bytes; null asks a GPU, and is 1.07 (1 GiB) for a CPU"
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> DeviceSection:
        if self.emulated is None:
            if "slowdown" in self.model_fields_set:
                raise ValueError("slowdown is of an emulated device; leave it out, or name the profile: emulated")
            ways = [name for name in _OF_A_GPU if getattr(self, name) != DeviceSection.model_fields[name].default]
            if self.kind != "cuda" and ways:
                raise ValueError(f"{', '.join(ways)}: of a GPU alone; leave it out, or give kind: cuda")
            return self
        if others := sorted(self.model_fields_set - {"emulated", "slowdown", "cores"}):
            raise ValueError(f"an emulated device takes emulated, slowdown and cores; leave out {', '.join(others)}")
        return self


LinkName = Literal["wifi5", "1gbe", "10gbe", "loopback", "measured"]


class LinkSection(StrictModel):
    """What carries images and activations to a server, in numbers."""

    latency_s: SecondsOrZero = Field(description="one way, whatever the size")
    bandwidth_bytes_s: Positive = Field(description="bytes a second")
    loss: Loss = Field(0.0, description="share of packets (1500 bytes) that get lost and are sent again")
    medium: str | None = Field(
        None, description="servers that name the same medium share it; null: a medium of its own"
    )


InstanceName = tuple[Count, Positive]


class GreedySection(StrictModel):
    """The knobs of a server's greedy scheduler (Algorithm 1)."""

    batch_limit: Count = Field(32, description="B_max, requests a batch; the profile must cover it")
    vram_cap_gb: Positive | None = Field(
        None, description="M_max, in GB of 10^9 bytes, a GPU's context included; null for all of the device's memory"
    )
    utilization_block: Share = Field(0.95, description="U_blk: no load while the latest sample is at or above it")
    util_metric: Literal["nvml", "sm"] = Field(
        "nvml",
        description="which utilization that is: share of time any kernel ran, or share of the SMs (simulated alone)",
    )
    idle_unload_s: Seconds | None = Field(5.0, description="t_idle: an instance idle so long is unloaded; null: never")
    scale_trigger: Whole = Field(
        32, description="Q_th: queued requests of one key above which a further instance may load, never by eviction"
    )
    scale_cap: Whole | None = Field(
        None,
        description="N_new: no further instance once this many loads were ordered for a key since its queue was last "
        "empty; null: 2 on a CPU, and 0 on a GPU, where a further instance is a second stream, not a second device",
    )
    head_of_line: Literal["skip", "block"] = Field(
        "skip", description="try the next key when the oldest can't be served, or wait (the literal algorithm)"
    )
    skip_limit_s: SecondsOrZero = Field(0.5, description="a key that waited so long is no longer overtaken")
    served_width: Literal["requested", "instance"] = Field(
        "requested", description="the width that runs when a wider instance serves a request"
    )
    preload: Annotated[
        Annotated[Literal["all", "none"], Tag("<word>")] | Annotated[tuple[InstanceName, ...], Tag("<parts>")],
        Discriminator(form),
    ] = Field(
        "none",
        description="instances to load as soon as the server comes up: `all`, `none`, or pairs of segment and width; "
        "a run's clock starts when those of its beginning are there; after a death they take their load times",
    )


class ServerSection(StrictModel):
    """One server: a queue with a scheduler, on a device."""

    name: Name = Field(description="unique in the cluster; up to 100 letters, digits, `.`, `_` and `-`")
    device: DeviceSection | None = Field(None, description="the real device; null for a server that is only simulated")
    profile: ProfileName | None = Field(
        None, description="a file, or a shipped profile's name; null: the local device is calibrated"
    )
    link: Annotated[
        Annotated[LinkName, Tag("<word>")] | Annotated[LinkSection, Tag("<parts>")], Discriminator(form)
    ] = Field(
        "measured", description="a preset (`wifi5` is one medium for all), what calibration `measured`, or numbers"
    )
    count: Count = Field(
        1, description="so many alike, each with a device and a link of its own: `NAME-0`, `NAME-1` ..."
    )
    rack: Name | None = Field(None, description="the rack that it stands in; null where there are no racks")
    shares_device_with: str | None = Field(None, description="the server whose device this one runs on, too")
    host: Name | None = Field(
        None,
        description="under `backend: ray`: the host that it is on, by the label `host` of its node or its own name; "
        "null: the router's",
    )
    greedy: GreedySection = Field(
        default_factory=GreedySection, description="knobs that differ from `cluster.greedy` on this server"
    )

    @property
    def emulated(self) -> str | None:
        """The profile that its device plays; None for a real device, and for none."""
        return self.device.emulated if self.device is not None else None

    @property
    def known_profile(self) -> str | None:
        """The profile that the file names, whether simulated or emulated; None where the device is to be measured."""
        return self.profile or self.emulated

    @property
    def profile_key(self) -> str:
        """Where that stands in its section."""
        return "profile" if self.emulated is None else "device.emulated"


class RackSection(StrictModel):
    """A rack: servers that name it reach each other over their own links, and all else over its uplink, too."""

    name: Name = Field(description="unique in the cluster")
    count: Count = Field(
        1, description="so many alike, each with servers of its own: `NAME0-SERVER`, `NAME1-SERVER` ..."
    )
    latency_s: SecondsOrZero = Field(description="one way, from its servers' switch to what joins the racks")
    bandwidth_bytes_s: Positive = Field(description="bytes a second of all that comes into it")

    @property
    def names(self) -> tuple[str, ...]:
        """Of each of them."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}{number}" for number in range(self.count))


MAX_SERVERS: Final = 10_000


class ClusterSection(StrictModel):
    """The servers, and the scheduler knobs they have in common."""

    servers: Annotated[
        Annotated[Literal["auto"], Tag("<word>")]
        | Annotated[tuple[ServerSection, ...], Field(min_length=1, max_length=MAX_SERVERS), Tag("<parts>")],
        Discriminator(form),
    ] = Field(description="the servers, or `auto`: one for each device found on this machine")
    racks: tuple[RackSection, ...] = Field(
        (), description="where servers stand, for simulation; the router's host is in none ([many servers](scale.md))"
    )
    greedy: GreedySection = Field(default_factory=GreedySection, description="Algorithm 1's knobs for all servers")
    backend: Literal["local", "ray"] = Field(
        "local", description="who starts real servers: this machine, or [Ray](cluster.md) on the hosts of a cluster"
    )
    address: str = Field(
        "auto", description="under `backend: ray`: HOST:PORT of the cluster's head, or `auto`: the one that runs here"
    )
    beyond_loopback: bool = Field(
        False, description="under `backend: ray`: whether hosts that others can reach may be used; needs Ray's token"
    )

    @model_validator(mode="after")
    def _in_racks(self) -> ClusterSection:
        """Every server stands in a rack that there is, and every rack has servers."""
        named = () if self.servers == "auto" else self.servers
        unique(tuple(rack.name for rack in self.racks))
        racks = {rack.name: rack.count for rack in self.racks}
        in_them = sum(server.count * racks.get(server.rack or "", 1) for server in named)
        if (count := max(in_them, sum(racks.values()))) > MAX_SERVERS:  # a rack has one at least
            raise ValueError(f"these are {count} servers; allowed are {MAX_SERVERS}")
        unique(tuple(name for rack in self.racks for name in rack.names))
        for server in named:
            if (server.rack is not None or racks) and server.rack not in racks:
                known = f"name one of {', '.join(racks)}" if racks else "there are no racks: leave it out"
                raise ValueError(f"{server.name}'s rack is {server.rack or 'missing'}; {known}")
            if server.shares_device_with is not None and (server.count > 1 or racks):
                raise ValueError(f"{server.name} shares a device; leave out its count and all racks")
        if empty := sorted(set(racks) - {server.rack for server in named}):
            raise ValueError(f"no server stands in {', '.join(empty)}; leave the rack out, or name it at its servers")
        return self

    @model_validator(mode="after")
    def _of_one_backend(self) -> ClusterSection:
        if self.backend == "local":
            given = sorted({"address", "beyond_loopback"} & self.model_fields_set)
            given += [f"{server.name}'s host" for server in self.named_servers if server.host is not None]
            if given:
                raise ValueError(f"{', '.join(given)}: only under backend: ray; say that, or leave it out")
        elif shares := [each.name for each in self.named_servers if each.device and each.device.sm_percent]:
            raise ValueError(f"{', '.join(shares)}: sm_percent is given by this host alone; leave it out under ray")
        elif self.servers == "auto":
            raise ValueError("servers: auto finds devices of this machine alone; under backend: ray name each server")
        for server in self.named_servers:
            if server.shares_device_with is not None and server.host is not None:
                raise ValueError(f"{server.name} is where {server.shares_device_with} is; leave out its host")
        return self

    def host_of(self, server: ServerSection) -> str | None:
        """The host that a server is on; None for the router's."""
        if server.shares_device_with is None:
            return server.host
        return next((other.host for other in self.named_servers if other.name == server.shares_device_with), None)

    @property
    def named_servers(self) -> tuple[ServerSection, ...]:
        """The servers that the file names, one by one; none under `auto`."""
        return tuple(server for _, server in self.numbered_servers)

    @property
    def numbered_servers(self) -> tuple[tuple[int, ServerSection], ...]:
        """Each of them behind the number of its section in the file."""
        return () if self.servers == "auto" else _one_by_one(self.servers, self.racks)

    @property
    def owners(self) -> tuple[ServerSection, ...]:
        """Those of them that have a device of their own."""
        return tuple(server for server in self.named_servers if server.shares_device_with is None)

    @property
    def is_emulated(self) -> bool:
        """Whether all devices are."""
        return bool(self.owners) and all(server.emulated is not None for server in self.owners)

    def greedy_of(self, server: ServerSection) -> GreedySection:
        """A server's knobs: its own where it gives them, else the cluster's."""
        changes = {name: getattr(server.greedy, name) for name in server.greedy.model_fields_set}
        return self.greedy.model_copy(update=changes)


@lru_cache(maxsize=64)
def _one_by_one(
    servers: tuple[ServerSection, ...], racks: tuple[RackSection, ...]
) -> tuple[tuple[int, ServerSection], ...]:
    """Those of a rack together."""
    each = [
        (section, server.model_copy(update={"name": f"{server.name}{suffix}", "count": 1}))
        for section, server in enumerate(servers)
        for suffix in ([f"-{number}" for number in range(server.count)] if server.count > 1 else [""])
    ]
    placed = [(section, server) for section, server in each if server.rack is None]
    for rack in racks:
        for name in rack.names:
            prefix = f"{name}-" if rack.count > 1 else ""
            placed += [
                (section, server.model_copy(update={"name": f"{prefix}{server.name}", "rack": name}))
                for section, server in each
                if server.rack == rack.name
            ]
    return tuple(placed)


# ------------------------------------------------------------------------------------------- router, workload, faults


class RouterSection(StrictModel):
    """Settings of the router's core, the same for every router."""

    groups: tuple[Count, ...] = Field(GROUPS, description="group sizes to choose from, ascending", min_length=1)
    outstanding_blocks: Count | None = Field(
        None,
        description="blocks a server may have at once; the router waits beyond it; null: 4 where a server's device is "
        "a real GPU, else 2",
    )
    block_key: Literal["location", "any"] = Field(
        "location", description="whether requests of a block must have their activations in one place"
    )
    max_batching_delay_s: Annotated[float, Field(ge=0, le=60)] = Field(
        0.0,
        description="how long a request may be held back in all, over all segments, so that others join its block; "
        "0: nobody is held",
    )
    samples: Annotated[int, Field(ge=1, le=MAX_SERVERS)] | None = Field(
        None,
        description="how many servers a decision looks at where there are more: that of the activations and others "
        "drawn at random ([many servers](scale.md)); null: at all",
    )
    max_retries: Whole = Field(3, description="tries after a rejection or a server's death before a request fails")
    decision_s: Annotated[
        Annotated[Literal["measured"], Tag("<word>")] | Annotated[float, Field(ge=0, le=60), Tag("<number>")],
        Discriminator(form),
    ] = Field(
        "measured",
        description="simulated time of the policy for a decision, on top of what the router's host costs by the "
        "profiles; `measured`: in `compare` and `validate` what was measured of that router in the run folder, else "
        "none, or 100 us where no profile says what the host costs",
    )

    @field_validator("groups")
    @classmethod
    def _ascending(cls, groups: tuple[int, ...]) -> tuple[int, ...]:
        if list(groups) != sorted(set(groups)):
            raise ValueError(f"must ascend: {list(groups)}")
        return groups


class WorkloadSection(StrictModel):
    """What every workload can say of itself."""

    def require_files(self) -> None:
        """What it names must hold what it plays; raises `InputError`."""

    def base_img_s(self, capacity_img_s: float) -> float | None:
        """Its rate on a cluster of some capacity; None where it has none of its own."""
        return None

    def mean_factor(self, duration_s: float) -> float:
        """Mean rate over a run, in times of that rate."""
        return 1.0

    def peak_factor(self) -> float:
        """The highest rate, in times of that rate, where arrivals are drawn at it and thinned out; else 1."""
        return 1.0

    def busiest_factor(self) -> float:
        """The highest rate that it stays at for a while, in times of that rate."""
        return self.peak_factor()

    def mean_changes(self, duration_s: float) -> float:
        """How often, about, its rate is drawn anew in a run."""
        return 0.0


class _Rated(WorkloadSection):
    rate_img_s: Positive | None = Field(None, description="mean arrivals a second")
    load: Positive | None = Field(
        None, description="instead of the rate: this share of the cluster's estimated capacity"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> _Rated:
        if (self.rate_img_s is None) == (self.load is None):
            raise ValueError("give one of rate_img_s (images a second) and load (share of the capacity)")
        return self

    def base_img_s(self, capacity_img_s: float) -> float | None:
        """As given, or its share of the capacity."""
        return self.rate_img_s if self.load is None else self.load * capacity_img_s


class PoissonWorkload(_Rated):
    """Independent arrivals at a constant rate."""

    kind: Literal["poisson"] = Field(description="")


class MmppWorkload(_Rated):
    """Bursts: a two-state Markov-modulated Poisson process with the given mean rate."""

    kind: Literal["mmpp"] = Field(description="")
    burst_factor: Annotated[float, Field(gt=1)] = Field(4.0, description="rate in a burst, in times of the mean")
    burst_share: ShareBelowOne = Field(0.1, description="share of the time in bursts; factor x share must be below 1")
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
        """In a burst."""
        return self.burst_factor

    def mean_changes(self, duration_s: float) -> float:
        """Bursts begin and end."""
        return 2 * duration_s * self.burst_share / self.dwell_s


class GammaWorkload(_Rated):
    """Independent gaps with a gamma distribution."""

    kind: Literal["gamma"] = Field(description="")
    cv: Annotated[float, Field(gt=0, le=100)] = Field(
        2.0, description="the gaps' coefficient of variation; 1 is Poisson, more is burstier"
    )


class DiurnalWorkload(_Rated):
    """Poisson arrivals whose rate rises and falls as a sine."""

    kind: Literal["diurnal"] = Field(description="")
    amplitude: Share = Field(0.5, description="of the sine, as a share of the mean rate")
    period_s: Seconds = Field(60.0, description="of the sine")

    def peak_factor(self) -> float:
        """At the sine's height."""
        return 1 + self.amplitude


class RatesWorkload(_Rated):
    """Poisson arrivals whose rate follows a recorded curve, which is played again when it ends."""

    kind: Literal["rates"] = Field(description="")
    file: FilePath = Field(description="a CSV file with a header line; its rows are equally long steps of the curve")
    column: str = Field("count", description="its column of counts or rates, in any unit: only their ratios count")
    tuning_file: FilePath | None = Field(
        None, description="the curve that training and tuning see instead, so that a report's is new; null: the same"
    )
    period_s: Seconds = Field(60.0, description="time in which the whole curve is played once")

    def require_files(self) -> None:
        """Both curves."""
        for file in filter(None, (self.file, self.tuning_file)):
            read_rates(Path(file), self.column)


class FlashWorkload(_Rated):
    """Poisson arrivals with a flash crowd: the rate rises, stays high, and falls, all linearly."""

    kind: Literal["flash"] = Field(description="")
    rate_img_s: Positive | None = Field(None, description="arrivals a second before and after the crowd")
    factor: Annotated[float, Field(gt=1)] = Field(3.0, description="rate at the crowd's height, in times of the other")
    at_s: SecondsOrZero = Field(description="when it begins to rise")
    rise_s: SecondsOrZero = Field(1.0, description="until it is at its height")
    hold_s: SecondsOrZero = Field(10.0, description="how long it stays there")
    fall_s: SecondsOrZero = Field(5.0, description="until it is as before")

    def mean_factor(self, duration_s: float) -> float:
        """Mean rate over a run, in times of the rate outside the crowd."""
        left_s, full_s = duration_s - self.at_s, 0.0  # full_s: time at full height with as many arrivals
        for length_s, begins, ends in ((self.rise_s, 0.0, 1.0), (self.hold_s, 1.0, 1.0), (self.fall_s, 1.0, 0.0)):
            spent_s = min(max(left_s, 0.0), length_s)
            slope = (ends - begins) / length_s if length_s else 0.0
            full_s += spent_s * (begins + slope * spent_s / 2)
            left_s -= length_s
        return 1 + (self.factor - 1) * full_s / duration_s

    def peak_factor(self) -> float:
        """At the crowd's height."""
        return self.factor


class TraceWorkload(WorkloadSection):
    """Arrivals from a CSV file with a header line."""

    kind: Literal["trace"] = Field(description="")
    file: FilePath = Field(description="the CSV file")
    time_column: str = Field("time_s", description="its column of arrival times: seconds, or ISO 8601 dates")
    factor: Positive = Field(
        1.0, description="how many times faster than recorded; 1000 where the times are milliseconds"
    )
    resolution_s: SecondsOrZero = Field(
        0.0,
        description="each arrives at a random time within a step of so long, in which times were noted; in the file's "
        "own unit; 0: as noted",
    )
    from_s: SecondsOrZero = Field(
        0.0, description="arrivals up to so long after the first one are left out; in the file's own unit"
    )

    def require_files(self) -> None:
        """Its arrivals, some of them after `from_s`."""
        times_s = read_trace(Path(self.file), self.time_column)
        if self.from_s > (last_s := float(times_s.max() - times_s.min())):
            problem = f"is {self.from_s:g}, and the last arrival comes {last_s:g} after the first: name less"
            raise InputError(self.file, "workload.from_s", problem)


Workload = Annotated[
    PoissonWorkload | MmppWorkload | GammaWorkload | DiurnalWorkload | RatesWorkload | FlashWorkload | TraceWorkload,
    Field(discriminator="kind"),
]


class _Planned(StrictModel):
    """What befalls one server at a known time."""

    def planned(self, server: int) -> Fault:
        """The fault as both worlds play it; `server` is the server's number."""
        raise NotImplementedError(f"nothing plays {type(self).__name__}")


class _Span(_Planned):
    server: str = Field(description="its name")
    start_s: SecondsOrZero = Field(description="from when")
    end_s: Seconds | None = Field(description="until when")

    @model_validator(mode="after")
    def _ordered(self) -> _Span:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s ({self.end_s:g}) must be after start_s ({self.start_s:g})")
        return self


class _Moment(_Planned):
    server: str = Field(description="its name")
    at_s: SecondsOrZero = Field(description="when")


class ServerDownFault(_Span):
    """A server dies, and comes back empty at a given time: planned, so nobody starts it again earlier."""

    kind: Literal["server_down"] = Field(description="")
    end_s: Seconds | None = Field(None, description="when it is back; null: never")

    def planned(self, server: int) -> Fault:
        """As both worlds play it."""
        return Outage(server, nanoseconds(self.start_s), None if self.end_s is None else nanoseconds(self.end_s))


class StragglerFault(_Span):
    """A server is slow for a while. Nobody announces it to the router."""

    kind: Literal["straggler"] = Field(description="")
    end_s: Seconds = Field(description="until when")
    factor: Annotated[float, Field(ge=1)] = Field(description="how many times slower")

    def planned(self, server: int) -> Fault:
        """As both worlds play it."""
        return Slowness(server, nanoseconds(self.start_s), nanoseconds(self.end_s), self.factor)


class OutOfMemoryFault(_Span):
    """A server's device has memory for few images at once: larger batches run in halves, one after the other."""

    kind: Literal["out_of_memory"] = Field(description="")
    end_s: Seconds = Field(description="until when")
    batch: Whole = Field(description="images that fit at once; 0: none, every batch fails")

    def planned(self, server: int) -> Fault:
        """As both worlds play it."""
        return Squeeze(server, nanoseconds(self.start_s), nanoseconds(self.end_s), self.batch)


class WorkerKilledFault(_Moment):
    """A server's process is killed. It is started again as `supervision` says; nothing happens if it is down."""

    kind: Literal["worker_killed"] = Field(description="")

    def planned(self, server: int) -> Fault:
        """As both worlds play it."""
        return Crash(server, nanoseconds(self.at_s))


class WorkerHungFault(_Moment):
    """A server's process stops without dying. It is noticed, killed and started again as `supervision` says."""

    kind: Literal["worker_hung"] = Field(description="")

    def planned(self, server: int) -> Fault:
        """As both worlds play it."""
        return Hang(server, nanoseconds(self.at_s))


class PoisonedFault(StrictModel):
    """Some images are broken: the last segment finds no label for them."""

    kind: Literal["poisoned"] = Field(description="")
    share: Share = Field(description="the probability of that, for each request")


def unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values; raises `ValueError` where one is given twice."""
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{value!r:.80} is given twice; name each once")
        seen.add(value)
    return values


ChaosKind = Literal["worker_killed", "worker_hung"]


class ChaosFault(StrictModel):
    """Workers die at random times, on random servers, for as long as images arrive."""

    kind: Literal["chaos"] = Field(description="")
    mean_gap_s: Annotated[float, BeforeValidator(seconds), Field(ge=0.01, le=LONGEST_S)] = Field(
        description="mean time from one to the next (exponential)"
    )
    kinds: Annotated[tuple[ChaosKind, ...], Field(min_length=1), AfterValidator(unique)] = Field(
        ("worker_killed", "worker_hung"), description="what happens, each as likely"
    )


SpanFault = ServerDownFault | StragglerFault | OutOfMemoryFault
MomentFault = WorkerKilledFault | WorkerHungFault
FaultSection = Annotated[SpanFault | MomentFault | PoisonedFault | ChaosFault, Field(discriminator="kind")]

_RULES = Supervision()


class SupervisionSection(StrictModel):
    """How a server's process is watched, and how it is brought back when it has died."""

    hang_s: Annotated[float, BeforeValidator(seconds), Field(ge=0.1, le=LONGEST_S)] = Field(
        _RULES.hang_ns / NS_PER_S, description="without a sign of life for so long it is hung"
    )
    stuck_s: Annotated[float, BeforeValidator(seconds), Field(ge=1, le=LONGEST_S)] = Field(
        _RULES.stuck_ns / NS_PER_S, description="a batch, load or move that takes longer means the same"
    )
    backoff_s: SecondsOrZero = Field(
        _RULES.backoff_ns / NS_PER_S, description="wait before it is started again; it doubles with each death in a row"
    )
    backoff_limit_s: SecondsOrZero = Field(_RULES.backoff_limit_ns / NS_PER_S, description="the longest such wait")
    stable_s: SecondsOrZero = Field(
        _RULES.stable_ns / NS_PER_S, description="once up for so long, the next death is the first of a new row"
    )
    start_s: SecondsOrZero = Field(
        _RULES.start_ns / NS_PER_S,
        description="simulated time from its start until it is ready; a real one takes what it takes",
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

    alpha: NonNegative = Field(1.0, description="of accuracy, a share")
    beta: NonNegative = Field(1.0, description="of latency, in seconds")
    gamma: NonNegative = Field(0.0, description="of energy, in joules")
    delta: NonNegative = Field(0.0, description="of the variance of utilization over servers")
    bonus: Annotated[float, Field()] = Field(0.0, description="added to every block's reward")
    centre: bool = Field(False, description="subtract the mean accuracy of all tuples from the accuracy term")


class TrainingSection(StrictModel):
    """How `ppo`, the paper's router, is trained in simulation."""

    decisions: Count = Field(3_000_000, description="how many decisions to train for, over all environments")
    environments: Annotated[int, Field(ge=1, le=100_000)] = Field(64, description="simulated clusters stepped together")
    horizon_s: Seconds = Field(20.0, description="length of one training run of a cluster")
    load_range: tuple[Positive, Positive] = Field(
        (0.5, 1.0),
        description="each training run draws its rate from this, in times of the workload's own",
    )
    batch: Annotated[int, Field(ge=2)] = Field(16_384, description="an update waits for so many rewarded decisions")
    minibatch: Count = Field(2048, description="decisions a gradient step")
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
    max_grad_norm: Positive = Field(0.5, description="gradients are scaled down to this norm")
    eps_max: Share = Field(0.3, description="share of uniform exploration in the server head at the start")
    eps_min: Share = Field(0.02, description="the same from `eps_decay` decisions on")
    eps_decay: Count = Field(1_500_000, description="T_dec: decisions over which it falls linearly")
    holds_s: tuple[Positive, ...] = Field(
        (),
        description="waits to choose from, ascending, up to `router.max_batching_delay_s`: a fourth head "
        "of the policy goes on, or holds the candidates until the next larger group is full, for so long at most; "
        "empty: the paper's three heads",
        max_length=100,
    )
    checkpoint_every: Count = Field(10, description="updates between checkpoints")
    deterministic: bool = Field(True, description="it takes the likeliest choice; false: it samples")

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
        None, description="mean accuracy to keep; null: what the untuned `ladder` has, down to a tenth of a point"
    )
    decisions: Count = Field(40_000_000, description="simulated decisions that a search may take")
    searches: Count = Field(
        1, description="independent searches; a final evaluation on new runs picks from what they found"
    )
    episodes: Count = Field(3, description="slices that every candidate is measured on")
    episode_s: Seconds = Field(10.0, description="their length: long enough for a burst and what comes after it")
    matching_runs: Count = Field(3, description="full-length runs on which the floor is set at the end")
    objective: Literal["latency", "energy"] = Field(
        "latency",
        description="what the search makes small: latency, or energy an image at a p99 latency of at most "
        "`slo.p99_limit_s`",
    )
    control: bool = Field(
        False,
        description="whether a tuned `ladder`, `lookahead` or `compass` [keeps the "
        "goals](routers.md#keeping-goals) that `slo` asks for while it serves",
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
    """The service-level objective: results say in how much of the time it was met ([metrics](metrics.md)).

    Routers that [control](routers.md#keeping-goals) follow it.
    """

    floor: Share | None = Field(None, description="mean accuracy to keep; null: `tuning.floor`, where there is one")
    p99_limit_s: Seconds | None = Field(None, description="most that the p99 latency may be; null for no limit")
    refuse: bool = Field(
        True,
        description="refuse what is too much for the p99 limit ([overload](routers.md#overload)); false: serve all",
    )
    energy_weight: EnergyWeight = Field(
        0.0, description="points of accuracy (0.01) that a joule an image is worth: what Compass pays for energy"
    )
    schedule: tuple[GoalSection, ...] = Field(
        (), description="changes of these in mid-run, ascending in time", max_length=10_000
    )

    def goals(self, floor: float | None) -> tuple[Goals, ...]:
        """What is asked for, one after the other, from the start on; `floor` where it names none of its own."""
        goals = [Goals(0.0, (floor if self.floor is None else self.floor) or 0.0, self.p99_limit_s or 0.0,
                       self.energy_weight)]  # fmt: skip
        for goal in self.schedule:
            given = {name: getattr(goal, name) for name in ("at_s", "floor", "p99_limit_s", "energy_weight")}
            goals.append(goals[-1]._replace(**{name: value for name, value in given.items() if value is not None}))
        return tuple(goals)

    @model_validator(mode="after")
    def _ascending(self) -> SloSection:
        for before, after in pairwise(self.schedule):
            if after.at_s <= before.at_s:
                problem = f"schedule: at_s {after.at_s:g} stands after {before.at_s:g}"
                raise ValueError(f"{problem}; allowed are times that ascend")
        return self


class ClassSection(StrictModel):
    """A class of requests: how many there are of it, and what its users are promised ([how](how-to/classes.md))."""

    name: Name = Field(description="by which a request names its class, and tables name it")
    model: Name | None = Field(
        None, description="which of the network's [several models](models.md#several-models) serves it; null for one"
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(description="of the requests; those of all classes make 1")
    floor: Share | None = Field(None, description="mean accuracy to keep for them; null for none")
    p99_limit_s: Seconds | None = Field(None, description="most that their p99 latency may be; null for no limit")
    deadline_s: Seconds | None = Field(
        None, description="time limit of each of them; null: the scenario's `deadline_s`"
    )


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
        description="by name ([all of them](routers.md)), a rule file (`*.rule.yaml`), a trained router's file, "
        "`NAME=FILE` (NAME in tables), `module:Class`, or one that this run makes: `ppo`, "
        "`tuned:KIND` for a rule",
    )
    seeds: Seeds = Field((0, 1, 2), description="one run each; intervals are over them")
    baseline: RouterName | None = Field(
        None,
        description="changes and differences are to this one of the routers, seed by seed; null: `random`, where it is "
        "compared",
    )

    @property
    def runs(self) -> int:
        """How many there are in all."""
        return len(self.routers) * len(self.seeds)


class ValidateSection(StrictModel):
    """The same workload in simulation and on real executors."""

    routers: Routers = Field(("random", "jsq", "compass"), description="as in `compare`")
    seeds: Seeds = Field((0,), description="one pair of runs each")
    duration_s: Seconds | None = Field(None, description="length of each run; null for the scenario's")
    warmup_s: SecondsOrZero | None = Field(None, description="left out of the figures; null for the scenario's")
    loads: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], AfterValidator(unique)] = Field(
        (),
        description="arrival rates, as shares of the throughput that the slowest router reaches on the saturated "
        "hardware (measured first); empty: the workload's own rate",
    )
    repeats: Count = Field(1, description="hardware runs of each router, load and seed, on the same arrivals")
    saturate: bool = Field(
        False,
        description="also compare throughput in saturated runs",
    )
    go_on: bool = Field(
        False,
        description="also where the first two hardware runs that can be judged are more than 50 % from their "
        "simulation, which else ends it",
    )


class ServeSection(StrictModel):
    """What `slimsched serve` keeps ([serve clients](how-to/serve.md))."""

    log_gb: NonNegative = Field(
        10.0,
        description="most that the log of what is served may take, in GB of 10^9 bytes; oldest parts go; 0: no log",
    )
    log_age_s: Seconds = Field(172_800.0, description="parts of the log that are older go")


class CalibrationSection(StrictModel):
    """How local devices are measured."""

    budget: Seconds = Field(
        300.0, description="wall time for each device; a large one measures more rounds over all points"
    )
    allow_busy: bool = Field(False, description="measure although other programs use much of a device")


# ------------------------------------------------------------------------------------------------------ the whole file


class Scenario(StrictModel):
    """One experiment: everything but the code that a run depends on."""

    EXAMPLE: ClassVar[str] = "scenarios/quickstart.yaml"

    schema_: Literal["slimsched.scenario/1"] = Field(alias="schema", description="the form of this file")
    name: Name = Field(description="names the run folder; up to 100 letters, digits, `.`, `_` and `-`")
    model: ModelSection = Field(description="the network")
    cluster: ClusterSection = Field(description="the servers")
    router: RouterSection = Field(default_factory=RouterSection, description="the router's core")
    workload: Workload = Field(description="when images arrive")
    faults: tuple[FaultSection, ...] = Field((), description="what goes wrong, and when", max_length=100_000)
    supervision: SupervisionSection = Field(
        default_factory=SupervisionSection, description="how processes that died or hang are brought back"
    )
    deadline_s: Seconds | None = Field(None, description="a request's time limit, for goodput; null for none")
    shed: bool = Field(False, description="give up requests whose deadline has passed")
    slo: SloSection = Field(
        default_factory=SloSection, description="the service-level objective: what users are promised"
    )
    classes: Classes = Field((), description="classes of requests with promises of their own; empty: all are of one")
    reward: RewardSection = Field(default_factory=RewardSection, description="weights of Eq. 7")
    training: TrainingSection = Field(default_factory=TrainingSection, description="of `ppo`")
    tuning: TuningSection = Field(default_factory=TuningSection, description="of rules, by search")
    compare: CompareSection = Field(default_factory=CompareSection, description="the simulated comparison")
    validate_: ValidateSection = Field(
        default_factory=ValidateSection, alias="validate", description="simulation against real executors"
    )
    serve: ServeSection = Field(default_factory=ServeSection, description="of `slimsched serve`")
    calibration: CalibrationSection = Field(default_factory=CalibrationSection, description="of local devices")
    seed: Whole = Field(0, description="of everything random that `compare` and `validate` give no seed for")
    duration_s: Seconds = Field(60.0, description="for how long images arrive")
    warmup_s: SecondsOrZero = Field(5.0, description="requests that arrive earlier are left out of the figures")
    end: Literal["drain", "cut"] = Field(
        "drain", description="finish what is in flight when arrivals end (a minute at most), or stop there"
    )
    jitter: bool = Field(True, description="draw batch latencies from the profile's spread; false takes the mean")

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
                    raise ValueError(
                        f"{key} is given beside classes; leave it out, and give each class what it is promised"
                    )
        if self.shed and not any(self.deadlines_s):
            raise ValueError("shed needs a deadline_s: without one no request is ever late")
        if problem := problem_with(self.training.holds_s, self.router.max_batching_delay_s):
            raise ValueError(f"training.holds_s: {problem}")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the classes, in their order; empty where all requests are of one."""
        return tuple(each.name for each in self.classes)

    @property
    def deadlines_s(self) -> tuple[float | None, ...]:
        """Of each class, or of all requests."""
        of_classes = tuple(self.deadline_s if each.deadline_s is None else each.deadline_s for each in self.classes)
        return of_classes or (self.deadline_s,)

    def to_yaml(self) -> str:
        """What was given (not the defaults), as text that reads back as this scenario."""
        return strict.dump(self.model_dump(mode="json", by_alias=True, exclude_unset=True))
