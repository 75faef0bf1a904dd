"""The shape of a learned router, which determines the clusters that it can serve. It has no weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Final

import msgspec

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.observation import ObservationSpec, Waits, problem_with

TANH: Final = "tanh"  # after each layer but the last, as in our networks
RELU: Final = "relu"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The choices of the heads, and the fixed scales of the observation.

    Attributes:
        segments: S; not an input of Eq. 1, but a router trained for other segments is meaningless here.
        widths: the width set W, ascending.
        micro_batch_sizes: the micro-batch sizes, ascending.
        power_limits_w: (N,) each server's device power limit.
        devices: (N,) the names of the servers' devices, or empty if they are unknown.
        batching_delays_s: (H,) the waits to choose from, ascending; empty for no fourth head, and no batching delay.
        activation: the activation after each layer but the last: `TANH` or `RELU`.

    Raises `ValueError` if waits do not ascend, one is below a nanosecond or infinite, or the activation is unknown.
    """

    segments: int
    widths: tuple[float, ...]
    micro_batch_sizes: tuple[int, ...]
    power_limits_w: tuple[float, ...]
    devices: tuple[str, ...] = ()
    batching_delays_s: tuple[float, ...] = ()
    activation: str = TANH

    def __post_init__(self) -> None:
        problem = problem_with(self.batching_delays_s, inf)
        if problem:
            raise ValueError(f"batching_delays_s: {problem}")
        if self.activation not in (TANH, RELU):
            raise ValueError(f"activation {self.activation!r:.40}; known are {TANH} and {RELU}")

    @classmethod
    def of(
        cls,
        config: RouterConfig,
        power_limits_w: tuple[float, ...],
        devices: tuple[str, ...] = (),
        batching_delays_s: tuple[float, ...] = (),
    ) -> PolicySpec:
        """Return the shape that fits a router core's settings."""
        for name, items in (("power limits", power_limits_w), ("devices", devices)):
            if len(items) != config.servers and (items or name == "power limits"):
                raise ValueError(f"{config.servers} servers, but {len(items)} {name}")
        return cls(config.segments, config.widths, config.micro_batch_sizes, power_limits_w, devices, batching_delays_s)

    @property
    def servers(self) -> int:
        """N."""
        return len(self.power_limits_w)

    @property
    def observation(self) -> ObservationSpec:
        """Eq. 1 for this cluster."""
        return ObservationSpec(self.power_limits_w)

    @property
    def waits(self) -> Waits:
        """The choices of the fourth head."""
        return Waits.of(self.batching_delays_s, self.micro_batch_sizes)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """(N, W, G), and 1 + H if there are waits."""
        batching_delays = (1 + len(self.batching_delays_s),) if self.batching_delays_s else ()
        return self.servers, len(self.widths), len(self.micro_batch_sizes), *batching_delays

    def require(self, config: RouterConfig, source: str, devices: Sequence[str] = ()) -> None:
        """Raise `InputError` naming `source` if this router was trained for another cluster.

        The order of the servers counts: a learned router identifies a server by its index. Devices are compared if both
        sides know them, without vendors' words before a name.
        """
        pairs = {
            "servers": (config.servers, self.servers),
            "segments": (config.segments, self.segments),
            "widths": (list(config.widths), list(self.widths)),
            "micro_batch_sizes": (list(config.micro_batch_sizes), list(self.micro_batch_sizes)),
        }
        wrong = [f"{name}: expected {need}, found {own}" for name, (need, own) in pairs.items() if need != own]
        if len(devices) == len(self.devices) and not all(map(_is_same_device, devices, self.devices)):
            wrong.append(f"devices, in this order: expected {', '.join(devices)}, found {', '.join(self.devices)}")
        if wrong:
            remedy = "train a router for this cluster, or use the cluster it was trained for"
            raise InputError(source, "", f"this router was trained for another cluster ({'; '.join(wrong)}); {remedy}")

    def to_json(self) -> str:
        """Return the text that `from_json` reads back."""
        settings = asdict(self)
        if not self.batching_delays_s:
            del settings["batching_delays_s"]  # as in existing files
        if self.activation == TANH:
            del settings["activation"]
        return json.dumps(settings)

    @classmethod
    def from_json(cls, text: str) -> PolicySpec:
        """Read a spec; raises `ValueError` if the text isn't one."""
        return msgspec.json.decode(text, type=cls)


def _is_same_device(name: str, other_name: str) -> bool:
    """Return whether two names are of one device, such as `RTX 2080 Ti` and `NVIDIA GeForce RTX 2080 Ti`."""
    shorter, longer = sorted((set(name.casefold().split()), set(other_name.casefold().split())), key=len)
    return shorter <= longer
