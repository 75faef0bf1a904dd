"""Clusters drawn at random, which a router for any cluster is trained over: what they are drawn from is a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import AfterValidator, Field

from hw.networks.accuracy import load_accuracy
from kit import strict
from kit.chance import stream
from kit.documents import read_text, with_remedy
from kit.strict import Plain, StrictModel
from policies.reward import AccuracyPrior
from policies.rules.compass import unit_of
from policies.rules.costs import middle_widths, path_ns
from policies.vocabulary import NS_PER_S
from scenarios.files.reading import read_profile
from scenarios.files.shipped import accuracy_file, clusters_file
from scenarios.files.spec import GB, LinkName, LinkSection, ProfileName, Scenario
from scenarios.world.build import build_world
from scenarios.world.world import NetworkAccuracy, World
from sim.emulation import emulated
from sim.profile import Count, Positive, Profile, Share

SCHEMA: Final = "slimsched.clusters/1"
WARMUP: Final = 0.1  # of a run: what arrives then is not scored
MIN_RUN_S: Final = 1.0
MIN_BURST: Final = 1.1
PART: Final = 8  # images of a block by which it is judged how many decisions the router's host can make


def _ascending(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"from {span[0]:g} to {span[1]:g}: must ascend")
    return span


Span = Annotated[tuple[Positive, Positive], AfterValidator(_ascending)]
"""From and to: drawn evenly in the logarithm."""


class Clusters(StrictModel):
    """What clusters, their loads and their mishaps are drawn from. Of a list each item is as likely: name one twice."""

    schema_: Literal["slimsched.clusters/1"] = Field(alias="schema", description="this kind of file")
    name: str = Field(description="of the run folder")
    seed: Annotated[int, Field(ge=0, lt=2**53)] = Field(0, description="what is drawn follows from it")
    clusters: Count = Field(96, description="how many there are to train over")
    images: Count = Field(8_000, description="that arrive in a run, about")
    accuracy: str = Field("slimresnet18-paper", description="the accuracy table; profiles must be of its network")
    steps: Span = Field((0.5, 2.0), description="by what the table's distances from the best tuple are multiplied")
    profiles: Annotated[tuple[ProfileName, ...], Field(min_length=1)] = Field(description="devices")
    kinds: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="how many different ones in a cluster")
    servers: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="how many servers")
    slowdown: Span = Field((1.0, 20.0), description="of all devices of a cluster")
    links: Annotated[tuple[tuple[LinkName | LinkSection, ...], ...], Field(min_length=1)] = Field(
        description="lists of links: each server of a cluster draws from one of them"
    )
    host: Span = Field(
        (0.1, 3.5), description="what decisions cost the router's host, in times of what the profiles say"
    )
    batching_delay: Span = Field((0.3, 2.2), description="`router.max_batching_delay_s`, in units of Compass")
    outstanding_blocks: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        (2, 4), description="`router.outstanding_blocks`"
    )
    load: Span = Field((0.2, 0.95), description="mean rate, as a share of what devices and router can carry")
    busiest: Positive = Field(1.4, description="the busiest rate, likewise: bursts are no higher")
    workloads: Annotated[tuple[Literal["poisson", "mmpp", "diurnal", "flash"], ...], Field(min_length=1)] = Field(
        ("poisson", "mmpp", "diurnal", "flash"), description="kinds of workload"
    )
    burst: Span = Field((1.5, 3.5), description="the busiest rate, in times of the mean, where it changes")
    short_of_memory: Share = Field(0.25, description="share of the clusters that are")
    memory: Span = Field((0.25, 0.8), description="how much of all instances fits there")
    straggling: Share = Field(0.15, description="share of the clusters in which a server is slow for a while")
    slower: Span = Field((2.0, 6.0), description="how many times slower it is")
    dying: Share = Field(0.15, description="share of the clusters in which a server is gone for a while")
    start: Plain = Field(
        default_factory=dict,
        description="numbers of Compass that the search begins with; the others are those that ship",
    )
    rounds: Count = Field(1, description="of the search; with each the reference is what the last one found")
    generations: Count = Field(40, description="of a round")
    population: Count = Field(16, description="candidates of a generation")
    at_once: Count = Field(28, description="clusters that a generation is tried on")
    held_back: Count = Field(40, description="other clusters, on which what was found is judged in the end")


def read_clusters(path: Path, changes: Mapping[str, Any]) -> Clusters:
    """Read the distribution; raises `InputError` if anything in its file is wrong."""
    path = clusters_file(path)
    raw = strict.mapping(read_text(path), str(path))
    for key, value in changes.items():
        strict.change(raw, key.split("."), value, str(path))
    return strict.validate(Clusters, raw, str(path))


def _even(span: tuple[float, float], rng: np.random.Generator) -> float:
    low, high = np.log(span)
    return float(np.exp(rng.uniform(low, high)))


def _one(items: tuple[Any, ...], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def drawn_world(given: Clusters, name: str) -> World:
    """Draw a cluster with its load; its name gives its seed.

    Raises:
        InputError: it can't run: the distribution allows what no cluster can be.
    """
    rng = stream(given.seed, f"cluster:{name}")
    count = int(_one(given.servers, rng))
    kinds = rng.choice(
        len(given.profiles), size=min(count, int(_one(given.kinds, rng)), len(given.profiles)), replace=False
    )
    devices = [given.profiles[int(rng.choice(kinds))] for _ in range(count)]
    slowdown, host = _even(given.slowdown, rng), _even(given.host, rng)
    links = _one(given.links, rng)
    profiles = {f"s{n}": _profile(device, slowdown, host) for n, device in enumerate(devices)}
    servers = [
        {"name": f"s{n}", "profile": device, "link": _link(_one(links, rng))} for n, device in enumerate(devices)
    ]
    accuracy = _accuracy(given, rng)
    document: dict[str, Any] = {
        "schema": "slimsched.scenario/1",
        "name": f"{given.name}-{name}",
        "model": {"accuracy": given.accuracy},
        "cluster": {"servers": servers, "greedy": {"preload": "all", "idle_unload_s": None}},
        "router": {"outstanding_blocks": _one(given.outstanding_blocks, rng)},
        "workload": {"kind": "poisson", "rate_img_s": 1.0},
    }

    def built() -> World:
        with with_remedy(f"{given.name} draws such a cluster ({name}): narrow what it draws from"):
            return build_world(strict.validate(Scenario, document, f"{given.name}:{name}"), profiles, accuracy)

    world = built()
    unit_s = unit_of(world.context) / NS_PER_S
    document["router"]["max_batching_delay_s"] = min(1.0, _even(given.batching_delay, rng) * unit_s)
    duration_s, document["workload"] = _workload(given, _carried_img_s(world), rng)
    document |= {"duration_s": duration_s, "warmup_s": WARMUP * duration_s}
    if rng.random() < given.short_of_memory:
        document["cluster"]["greedy"] = {"vram_cap_gb": _cap_gb(world, _even(given.memory, rng))}
    document["faults"] = _faults(given, count, duration_s, rng)
    return built()


def _link(link: LinkName | LinkSection) -> str | dict[str, Any]:
    return link.model_dump() if isinstance(link, LinkSection) else link


def _profile(device: str, slowdown: float, host: float) -> Profile:
    profile = emulated(read_profile(Path(device)), slowdown)
    its = profile.router_host
    if its is None:
        return profile
    costs = {
        key: cost.model_copy(update={"block_s": host * cost.block_s, "image_s": host * cost.image_s})
        for key, cost in (("decision", its.decision), ("returned", its.returned))
    }
    return profile.model_copy(update={"router_host": its.model_copy(update=costs)})


def _accuracy(given: Clusters, rng: np.random.Generator) -> NetworkAccuracy:
    """Draw the table, with larger or smaller steps."""
    accuracy = NetworkAccuracy.of(load_accuracy(Path(accuracy_file(given.accuracy))))
    best, steps = max(accuracy.prior.top1.values()), _even(given.steps, rng)
    table = {widths: best - steps * (best - top1) for widths, top1 in accuracy.prior.top1.items()}
    return replace(accuracy, prior=AccuracyPrior(table))


def _carried_img_s(world: World) -> float:
    """Return the rate of the devices at middle widths, or of the router's host in small blocks, whichever is less."""
    config, host = world.cluster.router, world.cluster.host
    middle = middle_widths(config)
    devices_img_s = sum(NS_PER_S / path_ns(world.costs, server, middle) for server in range(config.servers))
    image_ns = world.cluster.block_ns / PART + (0 if host is None else host.decision[1] + host.returned[1])
    host_img_s = NS_PER_S / (config.segments * image_ns) if image_ns else devices_img_s
    return min(devices_img_s, host_img_s)


def _workload(given: Clusters, carried_img_s: float, rng: np.random.Generator) -> tuple[float, dict[str, Any]]:
    """Draw how long a run is, and when images arrive."""
    load, kind = float(rng.uniform(*given.load)), _one(given.workloads, rng)
    burst = max(MIN_BURST, min(_even(given.burst, rng), given.busiest / load))
    rate_img_s = load * carried_img_s
    duration_s = max(MIN_RUN_S, given.images / rate_img_s)
    changes: dict[str, Any] = {}
    if kind == "mmpp":
        share = float(rng.uniform(0.1, 0.8)) / burst
        changes = {
            "burst_factor": burst,
            "burst_share": share,
            "dwell_s": duration_s * share / float(rng.uniform(2, 5)),
        }
    elif kind == "diurnal":
        changes = {"amplitude": min(1.0, burst - 1.0), "period_s": duration_s * float(rng.uniform(0.4, 1.0))}
    elif kind == "flash":
        at_s, rise_s, hold_s, fall_s = (part * duration_s for part in (0.3, 0.03, 0.27, 0.1))
        changes = {"factor": burst, "at_s": at_s, "rise_s": rise_s, "hold_s": hold_s, "fall_s": fall_s}
        rate_img_s /= 1.0 + (burst - 1.0) / 3.0  # so that it has about the load
    return duration_s, {"kind": kind, "rate_img_s": rate_img_s, **changes}


def _cap_gb(world: World, share: float) -> float:
    """Return a share of all instances' memory, on the server that needs most."""
    knobs = [server.knobs for server in world.cluster.servers]
    return max(k.context_bytes + share * (k.all_bytes - k.context_bytes) for k in knobs) / GB


def _faults(given: Clusters, servers: int, duration_s: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    span = {"start_s": 0.35 * duration_s, "end_s": 0.6 * duration_s}
    faults: list[dict[str, Any]] = []
    if rng.random() < given.straggling:
        faults.append(
            {"kind": "straggler", "server": f"s{rng.integers(servers)}", "factor": _even(given.slower, rng), **span}
        )
    if rng.random() < given.dying and servers > 1:
        faults.append({"kind": "server_down", "server": f"s{rng.integers(servers)}", **span})
    return faults
