"""What a run is made on, and its sizes below the usual ones, so that a fast trial is not mistaken for a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hw.telemetry import usable_cores
from scenarios.files.spec import Scenario, ServerSection
from scenarios.show.numbers import plural
from scenarios.world.build import estimated_capacity_img_s
from scenarios.world.world import World

_SIZES: Final = (  # section, key: what costs time, and gives surer numbers or better routers if there is more of it
    ("calibration", "budget"),
    ("training", "decisions"),
    ("tuning", "decisions"),
    ("tuning", "episodes"),
    ("tuning", "episode_s"),
    ("tuning", "matching_runs"),
    ("", "duration_s"),
)


def cuts_text(scenario: Scenario) -> str:
    """Return the sizes that are below their defaults, in a line; empty if there are none."""
    cuts = []
    for section, key in _SIZES:
        part = getattr(scenario, section) if section else scenario
        given, usual = getattr(part, key), type(part).model_fields[key].default
        if given < usual:
            cuts.append(f"{section}.{key}".lstrip(".") + f" {_size(given)} of {_size(usual)}")
    return f"cut for time, of the defaults: {', '.join(cuts)}" if cuts else ""


def _size(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def devices_text(servers: Sequence[ServerSection]) -> str:
    """Describe each real or emulated device, in a line, and where the router's process runs; empty if there is none.

    Two unequal CPU devices are real, but the second may have been made slower: the line states that.
    """
    with_device = [server for server in servers if server.device is not None]
    if not with_device:
        return ""
    devices = ", ".join(f"{server.name}: {_device_text(server)}" for server in with_device)
    return f"devices: {devices}; {_router_text(with_device)}"


def _device_text(server: ServerSection) -> str:
    device = server.device
    assert device is not None, "asked before"
    if device.emulated is not None:
        return f"emulated ({device.emulated}, {device.slowdown:g} times as slow)"
    if device.kind == "cuda":
        return f"GPU {device.index}"
    cores = f"core {', '.join(map(str, device.cores))}" if device.cores else "all cores"
    slower = "" if device.onednn else " without oneDNN, which makes it slower"
    return f"{cores}, {plural(device.threads, 'thread')}{slower}"


def _router_text(servers: Sequence[ServerSection]) -> str:
    """Describe the router's placement by `hw.router.loop`: on the cores without pinned agents, if all are pinned."""
    pinned = [server.device.cores for server in servers if server.device is not None]
    free = [core for core in usable_cores() if not any(core in cores for cores in pinned)]
    if free and all(pinned):
        return f"the router's process has core {', '.join(map(str, free))} to itself"
    return f"the router's process and theirs share {plural(len(usable_cores()), 'core')}"


def pressure_text(world: World) -> str:
    """Compare peak arrivals with the capacity of the widest and the narrowest network, and state whether widths matter.

    Empty for a trace.
    """
    rate_img_s = world.rate_img_s
    if rate_img_s is None:
        return ""
    narrow_img_s = estimated_capacity_img_s(world.cluster, world.costs, 0)
    wide_img_s, busy_img_s = world.capacity_img_s, rate_img_s * world.scenario.workload.busiest_factor()
    text = (
        f"{world.scenario.name}: {world.mean_rate_img_s:.4g} images/s arrive on average, at most {busy_img_s:.4g} for "
        f"a while; the devices carry about {wide_img_s:.4g} at full width and {narrow_img_s:.4g} at the narrowest"
    )
    if busy_img_s > narrow_img_s:
        return f"{text}: not even the narrowest always keeps up, and queues grow under every router"
    if busy_img_s < wide_img_s:
        return f"{text}: full width always keeps up, and routers will hardly differ; raise the load to see them do"
    return f"{text}: at times full width can't keep up, and a router must choose"
