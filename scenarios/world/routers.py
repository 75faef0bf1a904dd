"""A scenario's routers, as objects that decide; refused before the work where they do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from policies.errors import InputError
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.names import make_router
from policies.rules.context import RouterContext
from scenarios.files.documents import with_remedy
from scenarios.files.made_routers import made_file, made_kind
from scenarios.files.router_names import made_by, read_router, router_file
from scenarios.files.spec import Scenario


def require_routers(scenario: Scenario, segments: int, widths: tuple[float, ...]) -> None:
    """Routers' files that the scenario names must be of its cluster.

    Raises:
        InputError: one is of another shape, or damaged.
    """
    servers = len(scenario.cluster.named_servers)
    holds = (((True,) * len(widths),) * segments,) * servers
    config = RouterConfig(segments, widths, holds, scenario.router.groups)
    for router in (*scenario.compare.routers, *scenario.validate_.routers):
        if (path := router_file(router)) is not None:
            read_router(path).check(config, router)


def foreign_routers(routers: Sequence[str], devices: Sequence[str]) -> Iterator[str]:
    """A warning for each router's file that was tuned on another cluster, as far as it says: it fits, but its numbers
    were found elsewhere. (What PPO learned fits no other cluster, and is refused.)"""
    for name in dict.fromkeys(routers):
        tuned = made_by(path).get("devices") if (path := router_file(name)) is not None else None
        if isinstance(tuned, list) and tuned != list(devices):
            there, here = (", ".join(map(str, each)) for each in (tuned, devices))
            yield f"warning: {name} was tuned for other servers ({there:.300}; here: {here:.300}); tune it here as well"


def make_named(
    name: str, scenario: Scenario, context: RouterContext, devices: Sequence[str], made_in: Path | None, key: str
) -> RoutingPolicy:
    """A fresh router by its name in a scenario; see `World.router`."""
    if (kind := made_kind(name)) is not None:
        path = None if made_in is None else made_in / made_file(kind)
        if path is None or not path.is_file():
            raise InputError(scenario.name, key, f"{name}: not made yet for this scenario; run `slimsched train` first")
        with with_remedy("`slimsched train` makes it again"):
            spec = read_router(path, deterministic=scenario.training.deterministic, devices=devices)
        return spec.make(context, str(path))
    if (path := router_file(name)) is not None:  # it has its own mode
        return read_router(path, devices=devices).make(context, name)
    return make_router(name, context, scenario.name, key)
