"""A scenario's routers, as objects that decide; refused before the work where they do not fit."""

from __future__ import annotations

from pathlib import Path

from policies.interfaces import RouterConfig
from policies.ppo.router import PPORouter
from scenarios.files.router_names import ROUTER_SUFFIX, RULE_SUFFIX, read_rule
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
        if router.endswith(ROUTER_SUFFIX):
            PPORouter.load(router, config)
        elif router.endswith(RULE_SUFFIX):
            read_rule(Path(router), scenario.name).check(config, router)
