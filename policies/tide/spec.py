"""Tide's numbers, as its file holds them and tuning searches over them; numba is opened only to make a router."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from policies.errors import InputError
from policies.goal_control import MOST_SHIFT
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.ppo import checkpoint
from policies.rules.context import RouterContext
from policies.rules.controlled import ControlSpec
from policies.rules.holding import HoldSpec, holding
from policies.rules.specs import Space
from policies.tide.knobs import Reals, knobs, spread, start

MOST: Final = 64  # segments, widths: more has no network
LARGEST: Final = 500.0  # of its numbers; most are logarithms, and tuned ones are below 30

if TYPE_CHECKING:
    from policies.tide.router import TideRouter


@dataclass(frozen=True, slots=True)
class TideSpec:
    """Tide with these numbers, or (None) with those that its tuning begins with.

    Attributes:
        values: (K,) in the order of `knobs.knobs`.
        hold: which lines the router's core holds back.
        control: that it keeps goals, and its own; None where it does not.
        network: the segments and widths that they were learned for; None where they are not from a file.
    """

    values: Reals | None = field(default=None, compare=False)
    network: tuple[int, tuple[float, ...]] | None = None
    hold: HoldSpec | None = None
    control: ControlSpec | None = None

    @classmethod
    def read(cls, path: Path) -> TideSpec:
        """The numbers in a file that `TideRouter.save` wrote; raises `InputError` where it is damaged, or of another
        version."""
        tensors, header = checkpoint.read(path)
        try:
            network = (int(header["segments"]), tuple(json.loads(header["widths"])))
            found, values = json.loads(header["names"]), tensors["tide.values"]
            hold = HoldSpec.model_validate_json(header["hold"]) if "hold" in header else None
            control = ControlSpec.model_validate_json(header["control"]) if "control" in header else None
            if not (1 <= network[0] <= MOST and 1 <= len(network[1]) <= MOST and values.dtype == np.float64):
                raise ValueError(f"{network[0]} segments, {len(network[1])} widths, numbers of {values.dtype}")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(str(path), "", f"not a router of this version, or damaged ({error!r:.300})") from error
        names = [knob.name for knob in knobs(network[0], len(network[1]))]
        if found != names:
            known = {str(name) for name in found} if isinstance(found, list) else set()
            differ = ", ".join(sorted(known ^ set(names))) or "their order"
            problem = f"made by another version of Tide, whose knobs differ ({differ:.300})"
            raise InputError(str(path), "", f"{problem}. Tune it anew: slimsched tune")
        if values.shape != (len(names),):
            raise InputError(str(path), "tide.values", f"has the shape {values.shape}, not {(len(names),)}: damaged")
        if (largest := float(np.abs(values).max())) > LARGEST:
            problem = f"holds {largest:.3g}: damaged (of tuned numbers none is beyond {LARGEST:g})"
            raise InputError(str(path), "tide.values", problem)
        return cls(values, network, hold, control)

    @classmethod
    def space(cls, context: RouterContext, floor: float, without: Sequence[str] = ()) -> Space:
        """All its numbers but those that are switched off; accuracy rises as the level of its price falls."""
        size = (context.config.segments, len(context.config.widths))
        first = start(*size, tuple(without))
        accurate = np.zeros(len(first))
        accurate[0] = -1.0
        return Space("TideSpace", first, spread(*size, tuple(without)), accurate, cls)

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Whether it was learned for the cluster's network; raises `InputError` if not."""
        if self.network not in (None, (config.segments, config.widths)):
            segments, widths = self.network or (0, ())
            problem = f"trained for {segments} segments at widths {list(widths)}"
            here = f"the scenario has {config.segments} at {list(config.widths)}"
            raise InputError(source, key, f"{problem}; {here}. Train one for this network: slimsched tune")
        if self.hold is not None:
            self.hold.check(config, source, key)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """A fresh router for a cluster; raises `InputError` as `check` does."""
        return holding(self.chooser(context, source, key), self.hold)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> TideRouter:
        """That router without what is held."""
        self.check(context.config, source, key)
        from policies.tide.router import TideRouter  # it needs numba, which rules must not wait for

        size = (context.config.segments, len(context.config.widths))
        control = (
            None if self.control is None else self.control.make(context.config, source, key, MOST_SHIFT, weighs=True)
        )
        return TideRouter(start(*size) if self.values is None else self.values, context, control=control)
