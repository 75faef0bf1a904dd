"""Signs that a router fails in one of the ways that the paper names, and requests that were not served.

Signatures: the paper warns of reward hacking, VRAM exhaustion and accuracy collapse; collapse onto one server is ours.
A signature states that a run looks like one of these failures, with the number and the threshold that it passed, never
why: a rule that always takes the narrowest widths shows accuracy collapse, too. `docs/metrics.md` justifies the
thresholds.

Unserved requests: latency, accuracy and energy are of completed images alone. A router that serves few images may look
fast, so a router that leaves more than `LIMIT` unserved is never the winner; and a run that completed nothing is an
error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from policies.faults import OUT_OF_MEMORY
from policies.vocabulary import IMAGE, WorkKey
from scenarios.metrics.run_result import Result, Shares, Signature, SignatureName

if TYPE_CHECKING:
    from policies.interfaces import CostModel
    from scenarios.metrics.run_result import ServerMetrics
    from sim.simulated_cluster import ClusterSpec


REFERENCE: Final = "sticky"  # keeps images on their server
MIN_IMAGES: Final = 100  # completed (of those refused: arrived): fewer show nothing
CHANCE_STAYS: Final = 0.5  # of the share of segments that chance alone would leave on their server
GAIN: Final = 1.02  # throughput over that of a router without moves: less is not a gain
REFUSED: Final = 1e-3  # of the images
MEMORY_WAITS: Final = 1 / 3  # of an image's time beyond the router
LOADS_PER_BATCH: Final = 0.25  # if an image's time is not known
UNFINISHED: Final = 0.1  # of the images
NEAR_NARROWEST: Final = 0.05  # of the way from the narrowest tuple's accuracy to the best
TAKEN_OVER: Final = 0.5  # of the share that belongs to the others by their speed
IDLE: Final = 0.5  # of the busy server's passes for its speed
WAITS: Final = 0.5  # of an image's time
_STAYS: Final = (
    "{moves:.2f} moves an image: {stays:.1%} of the segments run where the one before ran, chance alone would leave "
    "{by_chance:.1%} there"
)
_REASONS: Final = {
    "moves": _STAYS,
    "moves for nothing": _STAYS + "; {result[throughput_img_s]:.1f} images/s, {other[router]} has "
    "{other[throughput_img_s]:.1f}",
    "refused": "{refused} of {images[arrived]} images failed for want of device memory",
    "unfinished": "memory of {where} was full, {of:.1%} of the images were never finished",
    "loads": "memory of {where} was full, {of:.2f} loads a batch there",
    "memory": "memory of {where} was full, images spent {of:.1%} of their time beyond the router waiting for an "
    "instance",
    "narrow": "expected accuracy {expected:.2%}: the narrowest widths have {narrowest:.2%}, the best tuple {best:.2%}",
    "one server": "{share:.1%} of the passes ran on {server}, which has {speed:.1%} of the speed; {suffers}",
    "never finished": "{of:.1%} of the images were never finished",
    "waiting": "images spent {of:.1%} of their time waiting",
    "slower": "mean latency is {times:.1f} times that of {other[router]}",
}
REFUSALS: Final = (OUT_OF_MEMORY, "instance_too_large")  # reasons of failed requests


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What a server could do.

    Attributes:
        speed: its device's share of the cluster's speed (full width, full batches); a shared device's, divided.
        cap_bytes: M_max.
        one_of_each_bytes: the context and an instance of every segment and width.
        largest_bytes: of one instance.
    """

    speed: float
    cap_bytes: int
    one_of_each_bytes: int
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class SignatureContext:
    """What the numbers are held against.

    Attributes:
        segments: S.
        narrowest_accuracy: p_acc of the narrowest width in every segment.
        best_accuracy: of the most accurate tuple.
        servers: in the result's order.
    """

    segments: int
    narrowest_accuracy: float
    best_accuracy: float
    servers: tuple[ServerContext, ...]


def context_of(cluster: ClusterSpec, costs: CostModel) -> SignatureContext:
    """Return the reference values for the numbers of a cluster's runs."""
    config, prior = cluster.router, cluster.prior
    sharing = Counter(server.device for server in cluster.servers)
    on_device = [sharing[server.device] for server in cluster.servers]
    speeds = [1 / _image_s(cluster, costs, server) / sharing for server, sharing in enumerate(on_device)]
    servers = tuple(
        ServerContext(
            speed=speed / sum(speeds),
            cap_bytes=server.params.vram_cap_bytes,
            one_of_each_bytes=server.params.context_bytes + sum(server.params.instance_bytes.values()),
            largest_bytes=max(server.params.instance_bytes.values()),
        )
        for server, speed in zip(cluster.servers, speeds, strict=True)
    )
    narrowest = min(prior((widths[0],) * config.segments) for widths in config.model_widths)
    return SignatureContext(config.segments, narrowest, max(prior.accuracies.values()), servers)


def _image_s(cluster: ClusterSpec, costs: CostModel, server: int) -> float:
    """Add up the time of all segments at full width, in full batches."""
    full, segments = cluster.router.widths[-1], range(1, cluster.router.segments + 1)
    return sum(costs.image_s(server, WorkKey(s, full, IMAGE if s == 1 else full)) for s in segments)


def signatures(result: Result, context: SignatureContext, reference: Result | None = None) -> tuple[Signature, ...]:
    """Return the failures that a run shows.

    Args:
        result: of the run.
        context: of its cluster and network.
        reference: the run of a router that keeps images on their server (`sticky`), on the same arrivals. With one,
            moves that bring more throughput than it has are not reward hacking, and twice its latency is a sign that
            one server is too few.
    """
    signs = (
        _reward_hacking(result, context, reference),
        _vram_exhaustion(result, context),
        _accuracy_collapse(result, context),
        _one_server_collapse(result, context, reference),
    )
    return tuple(signature for signature in signs if signature is not None)


def diagnosed(result: Result, context: SignatureContext) -> Result:
    """Return the same result with the failures that it shows alone, without a reference run."""
    return {**result, "signatures": list(signatures(result, context))}


def against_reference(results: Sequence[Result], context: SignatureContext, reference: str = REFERENCE) -> list[Result]:
    """Return the results, with signatures relative to the reference router's run of the same seed, if there is one.

    Results without signatures that were looked for stay as they are.
    """
    reference_runs = {result["seed"]: result for result in results if result["router"] == reference}
    with_signatures: list[Result] = []
    for result in results:
        reference_run = reference_runs.get(result["seed"])
        if reference_run is not None and result["signatures"] is not None:
            result = {**result, "signatures": list(signatures(result, context, reference_run))}
        with_signatures.append(result)
    return with_signatures


def _signature(name: SignatureName, value: float, threshold: float, reason: str, **numbers: Any) -> Signature:
    return Signature(name=name, value=value, threshold=threshold, reason=_REASONS[reason].format(**numbers))


def _reward_hacking(result: Result, context: SignatureContext, reference: Result | None) -> Signature | None:
    """Detect moves on purpose that can improve nothing but the imbalance term.

    A router that ignores an image's server leaves it there with the probability that two draws of a server agree: the
    sum of the squares of the servers' shares. One that leaves it there less than half as often sends it away.
    """
    moves, steps = result["moves_per_image"], context.segments - 1
    shares = _shares(result["servers"])
    if moves is None or steps == 0 or len(shares) < 2 or _is_small(result):
        return None
    by_chance = sum(share * share for share in shares)
    stays, least = 1 - moves / steps, CHANCE_STAYS * by_chance
    if stays >= least:
        return None
    numbers = {"moves": moves, "stays": stays, "by_chance": by_chance}
    if reference is None:
        return _signature("reward hacking", stays, least, "moves", **numbers)
    if result["throughput_img_s"] > GAIN * reference["throughput_img_s"]:
        return None
    return _signature("reward hacking", stays, least, "moves for nothing", **numbers, result=result, other=reference)


def _vram_exhaustion(result: Result, context: SignatureContext) -> Signature | None:
    """Detect that loads are refused, or that what waits at the servers waits for memory."""
    images, stages = result["images"], result["stages_s"]
    if images["arrived"] < MIN_IMAGES:
        return None
    refused = sum(result["failures"].get(reason, 0) for reason in REFUSALS)
    pairs = zip(result["servers"], context.servers, strict=True)
    full = [server for server, limits in pairs if _was_full(server, limits)]
    if (share := refused / images["arrived"]) >= REFUSED:
        return _signature("VRAM exhaustion", share, REFUSED, "refused", refused=refused, images=images)
    if not full:
        return None
    sign = "unfinished", images["in_flight"] / images["arrived"], UNFINISHED
    if sign[1] < UNFINISHED and stages is None:
        loads = sum(server["loads"] for server in full) / max(1, sum(server["batches"] for server in full))
        sign = "loads", loads, LOADS_PER_BATCH
    elif sign[1] < UNFINISHED and stages is not None:
        beyond_s = sum(stages.values()) - stages["router_wait"]
        sign = "memory", (stages["queue"] + stages["load"]) / beyond_s, MEMORY_WAITS
    reason, value, threshold = sign
    where = ", ".join(server["name"] for server in full)
    if value < threshold:
        return None
    return _signature("VRAM exhaustion", value, threshold, reason, where=where, of=value)


def _was_full(metrics: ServerMetrics, server: ServerContext) -> bool:
    """Check that not every instance has room, and that at some time the largest would have been refused."""
    is_tight = server.one_of_each_bytes > server.cap_bytes
    return is_tight and metrics["vram_peak_bytes"] + server.largest_bytes > server.cap_bytes


def _accuracy_collapse(result: Result, context: SignatureContext) -> Signature | None:
    """Detect that nearly everything ran at the narrowest widths."""
    expected, narrowest = result["expected_accuracy"], context.narrowest_accuracy
    reach = context.best_accuracy - narrowest
    if expected is None or reach <= 0 or _is_small(result):
        return None
    gained = (expected - narrowest) / reach
    if gained >= NEAR_NARROWEST:
        return None
    return _signature(
        "accuracy collapse", gained, NEAR_NARROWEST, "narrow", expected=expected, narrowest=narrowest,
        best=context.best_accuracy,
    )  # fmt: skip


def _one_server_collapse(result: Result, context: SignatureContext, reference: Result | None) -> Signature | None:
    """Detect that one server gets most of the others' share of the work too, they idle, and images wait.

    With empty queues it is not a failure: at light load, or on a slow network, one server may well be the best place.
    """
    shares, speeds = _shares(result["servers"]), [server.speed for server in context.servers]
    if len(shares) < 2 or _is_small(result):
        return None
    busy = max(range(len(shares)), key=lambda i: shares[i])
    takeover = (shares[busy] - speeds[busy]) / (1 - speeds[busy]) if speeds[busy] < 1 else 0.0
    other_ratios = [shares[i] / speeds[i] for i in range(len(shares)) if i != busy]
    if takeover < TAKEN_OVER or max(other_ratios) > IDLE * shares[busy] / speeds[busy]:
        return None
    suffers = _suffering(result, reference)
    if suffers is None:
        return None
    return _signature(
        "one-server collapse", shares[busy], speeds[busy] + TAKEN_OVER * (1 - speeds[busy]), "one server",
        share=shares[busy], server=result["servers"][busy]["name"], speed=speeds[busy], suffers=suffers,
    )  # fmt: skip


def _suffering(result: Result, reference: Result | None) -> str | None:
    """Describe what is the worse for it; None if nothing is."""
    images, stages = result["images"], result["stages_s"]
    if images["in_flight"] >= UNFINISHED * images["arrived"]:
        return _REASONS["never finished"].format(of=images["in_flight"] / images["arrived"])
    if stages is not None:
        waits = (stages["router_wait"] + stages["queue"]) / sum(stages.values())
        if waits >= WAITS:
            return _REASONS["waiting"].format(of=waits)
    mean_s = result["latency_s"]["mean"]
    other_s = None if reference is None else reference["latency_s"]["mean"]
    if reference is not None and mean_s is not None and other_s is not None and mean_s * WAITS >= other_s:
        return _REASONS["slower"].format(times=mean_s / other_s, other=reference)
    return None


def _shares(servers: Sequence[ServerMetrics]) -> list[float]:
    """Return each server's share of the segment passes; none if nothing ran."""
    passes = sum(server["images"] for server in servers)
    return [server["images"] / passes for server in servers] if passes else []


def _is_small(result: Result) -> bool:
    return result["images"]["completed"] < MIN_IMAGES


def signature_counts(of_runs: Iterable[Sequence[Signature] | None]) -> dict[str, int]:
    """Count how many of some runs show each signature, in the order of their first appearance; none is not counted."""
    counts: dict[str, int] = {}
    for signs in of_runs:
        for signature in signs or ():
            counts[signature["name"]] = counts.get(signature["name"], 0) + 1
    return counts


def signature_text(counts: Mapping[str, int], runs: int) -> str:
    """Return `accuracy collapse (3 of 5 runs), ...`."""
    return ", ".join(f"{name} ({count} of {runs} run{'s' if runs > 1 else ''})" for name, count in counts.items())


# ---------------------------------------------------------------------------------------------------- unserved requests


LIMIT: Final = 0.01  # of what arrived
CARRIED: Final = 0.9  # of what is offered: a router that completes less meanwhile has a growing queue, drained or not
FLAG: Final = " !"  # behind a flagged router's name


class Served(Shares):
    """Means over runs; null if a run has none. `failures`: shares of what arrived, by reason."""

    failures: dict[str, float]


def served(results: Sequence[Result]) -> Served:
    """Return the mean shares over the runs of one router, all simulated or all on executors."""
    runs: list[Mapping[str, Any]] = [result["shares"] for result in results]
    shares = {key: _mean([run[key] for run in runs]) for key in Shares.__annotations__}
    failures: dict[str, float] = {}
    for result in results:
        for reason, count in result["failures"].items():
            failures[reason] = failures.get(reason, 0.0) + count / result["images"]["arrived"] / len(results)
    return cast(Served, {**shares, "failures": dict(sorted(failures.items(), key=lambda item: -item[1]))})


def leaves_many(shares: Mapping[str, Any]) -> bool:
    """Return whether more than `LIMIT` was not served: such a router is flagged, and wins nothing."""
    losses = [share for share in (shares["unserved"], shares["failed"]) if share is not None]
    return max(losses, default=0.0) > LIMIT


def is_saturated(offered_img_s: float | None, completed_img_s: float | None) -> bool:
    """Return whether so much less is completed than arrives that a queue grows; unknown is not."""
    return None not in (offered_img_s, completed_img_s) and (completed_img_s or 0.0) < CARRIED * (offered_img_s or 0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def completed_nothing(result: Result) -> bool:
    """Return whether a run completed nothing."""
    return not result["images"]["completed"]
