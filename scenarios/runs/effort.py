"""What simulated runs will take, before anything is drawn: images, events, hours and gigabytes.

The costs of an image and so on are rough: measured on one core of a virtual machine, of `jsq` and `random` on the
shipped scenarios and on clusters of 3 to 600 servers. They tell seconds from hours, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hw.host.limits import machine_bytes
from kit.errors import InputError
from scenarios.files.spec import ChaosFault
from scenarios.metrics.result import Simulator
from scenarios.world.world import World

LONG_S = 3600.0
_IMAGE_S = {"simpy": 1.2e-4, "compiled": 2.5e-6}
_SERVER_S = {"simpy": 5e-7, "compiled": 2e-8}  # what one more server costs each image and event
_EVENT_S = {"simpy": 2e-5, "compiled": 1e-6}
_IMAGE_BYTES = {"simpy": 1400, "compiled": 700}
_EVENT_BYTES = {"changes of the load": 250, "deaths of workers": 250, "readings of sensors": 60}  # of what is kept
_LEARNT_S = {"simpy": 1e-3, "compiled": 5e-6}  # of a decision that training or tuning makes and learns from
_DRAWN_BYTES = 16  # of an arrival that is drawn, whether kept or thinned out


@dataclass(frozen=True, slots=True)
class Effort:
    """Of so many runs.

    Attributes:
        runs, images: how many, and how many images arrive in each.
        events: what happens in each beside them: readings of sensors, changes of a load and of speeds, faults, by name.
        seconds: of all runs together, those beside each other at once.
        memory_bytes: of the runs that are beside each other.
    """

    runs: int
    images: float
    events: dict[str, float]
    seconds: float
    memory_bytes: float

    @property
    def text(self) -> str:
        """In words, with what is the most of it."""
        parts = {"images": self.images, **self.events}
        most = sorted(parts, key=lambda name: -parts[name])[:2]
        of_run = " and ".join(f"{parts[name]:.2g} {name}" for name in most if parts[name] >= 1)
        runs = f"{self.runs} runs of {of_run} each" if self.runs > 1 else f"a run of {of_run}"
        memory_gb = self.memory_bytes / 1e9
        memory = f"{memory_gb:,.0f}" if memory_gb >= 10 else f"{memory_gb:.2g}"
        return f"about {_span(self.seconds)} and {memory} GB of memory: {runs}"


def effort_of(
    world: World, runs: int, engine: Simulator = "simpy", *, duration_s: float | None = None, processes: int = 1
) -> Effort:
    """What so many runs of a scenario take, some of them beside each other."""
    length_s = duration_s or world.scenario.duration_s
    images, drawn = _images(world, length_s)
    events = dict(_events(world, length_s))
    server_s = len(world.cluster.servers) * _SERVER_S[engine]
    one_s = images * (_IMAGE_S[engine] + server_s) + sum(events.values()) * (_EVENT_S[engine] + server_s)
    one_bytes = images * _IMAGE_BYTES[engine] + drawn * _DRAWN_BYTES
    one_bytes += sum(count * _EVENT_BYTES.get(name, 0) for name, count in events.items())
    beside = max(1, min(processes, runs))
    return Effort(runs, images, events, runs * one_s / beside, beside * one_bytes)


def require_effort(effort: Effort, source: str) -> str | None:
    """What to tell before the work where it is long or takes much memory; None where it does not.

    Raises:
        InputError: it takes more memory than this machine has.
    """
    here_bytes = machine_bytes()
    if effort.memory_bytes > here_bytes:
        problem = f"{effort.text}; this machine has {here_bytes / 1e9:.0f} GB"
        raise InputError(source, "", f"{problem}. Shorten duration_s, or lower what there is so much of")
    if effort.seconds <= LONG_S and effort.memory_bytes <= here_bytes / 2:
        return None
    return f"warning: {source}: {effort.text}; a shorter duration_s takes less"


def learning_warning(decisions: int, source: str, engine: Simulator = "compiled") -> str | None:
    """What to tell before a router is trained or tuned, where that is long."""
    return _warning(decisions * _LEARNT_S[engine], source, f"to learn from {decisions:.2g} decisions; fewer take less")


def real_time_warning(runs: int, duration_s: float, source: str) -> str | None:
    """What to tell before runs on real executors, which take the time that they last, where that is long."""
    return _warning(runs * duration_s, source, f"for {runs} real runs of {duration_s:g} s; fewer or shorter take less")


def _warning(seconds: float, source: str, what: str) -> str | None:
    return f"warning: {source}: about {_span(seconds)} {what}" if seconds > LONG_S else None


def _images(world: World, length_s: float) -> tuple[float, float]:
    """Images that arrive in a run, and those that are drawn for it."""
    workload, rate_img_s = world.scenario.workload, world.rate_img_s
    if rate_img_s is None:  # a trace, which is no longer than its file
        images = float(len(world.arrivals_ns(world.scenario.seed, length_s)))
        return images, images
    return rate_img_s * workload.mean_factor(length_s) * length_s, rate_img_s * workload.peak_factor() * length_s


def _events(world: World, length_s: float) -> Iterator[tuple[str, float]]:
    yield "changes of the load", world.scenario.workload.mean_changes(length_s)
    yield "deaths of workers", sum(length_s / f.mean_gap_s for f in world.scenario.faults if isinstance(f, ChaosFault))
    profiles = [tables.profile for tables in world.cluster.devices]
    speeds = [profile.slowdown for profile in profiles if profile.slowdown is not None]
    yield "changes of devices' speed", sum(2 * length_s * s.slow_share / s.mean_slow_s for s in speeds)
    yield "readings of sensors", sum(length_s / profile.sensor.period_s for profile in profiles)


def _span(seconds: float) -> str:
    for unit, length_s in (("years", 31_557_600.0), ("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:.2g} s"
