"""Clients are served by a scenario's executors: what `validate` runs, with a door in place of planned arrivals."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from hw.door.app import Limits
from hw.door.clients import Clients
from hw.door.ingress import IngressSpec, ingress
from hw.door.protocol import Served
from hw.door.slots import SlotImages, slots_of
from hw.door.tally import Tally
from hw.door.words import Status
from hw.host.clock import RunClock
from hw.router.loop import Routing, RunProgress
from kit.chance import stream
from kit.errors import InputError
from kit.units import nanoseconds
from policies.vocabulary import GoalSet
from scenarios.executors.emulation import served_of
from scenarios.executors.preflight import require_devices, require_ready
from scenarios.executors.run import real_cluster, without_faults
from scenarios.files.router_names import display_name
from scenarios.job.job import ScenarioJob
from scenarios.job.network import load_measured
from scenarios.job.validation import warn_of_another_stack
from scenarios.runs.control import accept_wishes
from scenarios.world.world import World

SLOTS = 4  # times what the servers can have outstanding: so many images may be inside


def serve(
    job: ScenarioJob, world: World, router: str, listening: socket.socket, limits: Limits, tokens: tuple[bytes, ...]
) -> RunProgress:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted.

    Args:
        listening: where clients connect.
        tokens: one of which they must bear; empty: none.

    Raises:
        InputError: the scenario does not fit this machine.
        WorkError: executors or the ingress failed.
    """
    scenario, model = job.scenario, job.model_to_serve
    require_devices(scenario)
    require_ready(world, model, (router,), job.folder.path)
    warn_of_another_stack(job, world)
    if scenario.faults or scenario.slo.schedule:
        job.warn("serve: faults and changes of `slo` in mid-run are of simulations and `validate`; none is played here")
    config = replace(world.cluster.router, shed_expired=True)
    routing = Routing(
        world.router(router, job.folder.path),
        stream(scenario.seed, f"router:{display_name(router)}"),
        world.cluster.weights,
        world.cluster.prior,
    )
    slots = SLOTS * config.servers * config.outstanding_blocks * config.groups[-1]
    door = IngressSpec(_served(job, world, slots), limits, tokens)
    with (
        real_cluster(without_faults(world), model) as cluster,
        accept_wishes(job.folder, [(server.name, server.host) for server in cluster.servers]) as drained,
        ingress(door, listening, slots) as (port, arena),
        _stopping() as wants_stop,
    ):
        tally = Tally([server.name for server in cluster.servers], config)
        known = said = False

        def tell(progress: RunProgress) -> None:
            nonlocal known, said
            if known != said:  # the ingress has heard of it by now
                said = known
                job.say("serve: ready" if said else "serve: not ready, for no server is up that can serve it all")
            known = tally.is_ready
            port.post(Status(tally.is_ready, progress.in_flight, progress.busy_ns, tally.servers))

        images = SlotImages(slots_of(arena, door.served.shape), door.served.shape)

        def traffic(_: object, __: object, clock: RunClock) -> Clients:
            return Clients(port, images, wants_stop, clock)

        return cluster.serve(traffic, config, routing, _goal(world), tally, tell, job.say, drained)


def _served(job: ScenarioJob, world: World, slots: int) -> Served:
    """What clients are told of it."""
    name, model = job.scenario.name, job.model_to_serve
    if model is None:
        network = served_of(world)
        return Served(name, network.input_shape, network.segments, 0, (), (), slots)
    if (evaluation := world.accuracy.evaluation) is None:
        raise InputError(name, "model.accuracy", "real executors need the network's own evaluation")
    dataset, (built, _) = load_measured(job.scenario, evaluation), model.load()
    spec = built.spec
    return Served(name, spec.input_shape, spec.segments, spec.classes, dataset.mean, dataset.deviation, slots)


def _goal(world: World) -> GoalSet:
    """What the scenario asks for at its start."""
    asked = world.scenario.slo.goals(world.scenario.tuning.floor)[0]
    return GoalSet(asked.floor, nanoseconds(asked.p99_limit_s), asked.energy_weight)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Within it SIGTERM and Ctrl-C are a wish to stop, which it yields; the second one ends the work at once."""
    wished = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        if wished:
            raise KeyboardInterrupt
        wished = True

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: wished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
