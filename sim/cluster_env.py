"""The simulated cluster as a Gymnasium environment, so that any library can train a router on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from operator import index
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from policies.interfaces import RewardTerms
from policies.observation import ObservationSpec, Waits, masks
from policies.run_records import RunColumns
from policies.vocabulary import BatchingDelay, Choice, ClusterView, Decide
from sim.simulated_cluster import ClusterSpec, RunSpec

Observation = NDArray[np.float32]
Action = NDArray[np.int64]


class Run(Protocol):
    """The part of a simulation that the environment uses: `sim.simulated_cluster.Simulation` and `CompiledSimulation`
    have it."""

    cluster: ClusterSpec
    spec: RunSpec

    @property
    def pending(self) -> Decide | None:
        """The pending decision."""
        ...

    def advance(self) -> Decide | None:
        """Run to the next decision; return None when the run has ended."""
        ...

    def decide(self, choice: Choice | BatchingDelay) -> None:
        """Answer the pending decision."""
        ...

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """Return (decision, reward) of the micro-batches that have ended since the last call."""
        ...

    def columns(self) -> RunColumns:
        """Return the data for a run's figures, once it has ended."""
        ...


Figures = Callable[[RunSpec, RunColumns], Mapping[str, float]]
"""The figures of a run that has ended: numbers by name, the same names for each; not-a-number if one has none."""


class SlimClusterEnv(gymnasium.Env[Observation, Action]):
    """One step is one routing decision.

    Observation: Eq. 1, float32 of shape (2 + 3 N,), scaled as in `policies.observation`.
    Action: (server, width index, micro-batch size index), MultiDiscrete (N, W, G). A masked choice is replaced by a
        legal one (the first valid server; the nearest width that it holds), and `info["replaced"]` is set.
    Reward: the sum of Eq. 7 over the micro-batches that ended since the last step. `info["credits"]` lists them as
        (decision id, reward): the credit belongs to the decision that made the micro-batch.
    Info: `decision` (the id of the pending decision), `server_mask` (N,), `width_mask` (N, W), bool.
    Batching delays: with `batching_delays_s`, H waits in seconds, an action has a fourth index: 0 for no batching
        delay, k delays the candidates until the next larger micro-batch is full, for `batching_delays_s[k - 1]` at
        most; the other three are then ignored. `info` has `batching_delay_mask` (1 + H,), bool; a masked delay is
        replaced by none.
    Episode: one run of `simulate(seed)`; it is truncated when the run ends and never terminates otherwise. The last
        `info` has `figures`, a dictionary of floats: the result of the argument of that name, and `replaced_share`, the
        share of the episode's actions that were masked and replaced.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        simulate: Callable[[int], Run],
        observation: ObservationSpec,
        batching_delays_s: Sequence[float] = (),
        figures: Figures = lambda spec, columns: {},
    ) -> None:
        self._simulate = simulate
        self._observer, self._figures = observation, figures
        self._simulation: Run | None = None  # None until it begins: it could not be pickled
        self._steps = self._replaced = 0
        config = simulate(0).cluster.router
        self._widths, self._micro_batch_sizes = config.widths, config.micro_batch_sizes
        self.observation_space = gymnasium.spaces.Box(0.0, 50.0, (observation.size,), np.float32)  # log1p, shares
        self._waits = Waits.within(batching_delays_s, config)
        batching_delays = (self._waits.choices,) if batching_delays_s else ()
        self._choices = (config.servers, len(self._widths), len(self._micro_batch_sizes), *batching_delays)
        self.action_space = gymnasium.spaces.MultiDiscrete(list(self._choices))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a run; without a seed, the next one of this environment's generator."""
        super().reset(seed=seed)
        self._simulation = self._simulate(int(self.np_random.integers(2**31)))
        self._steps = self._replaced = 0
        return self._observe(self._simulation, replaced=False)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide, and run to the next decision; raises `ValueError` for an action that is not in the space."""
        simulation, request = self._simulation, self._pending
        if simulation is None or request is None:
            raise gymnasium.error.ResetNeeded("a run has ended, or none has begun; call reset() first")
        choice, replaced = self._legal(request.view, action)
        self._steps += 1
        if replaced:
            self._replaced += 1
        simulation.decide(choice)
        observation, info = self._observe(simulation, replaced)
        reward = 0.0
        for _, credit in info["credits"]:  # not sum(): since Python 3.12 it compensates, and the twin adds in order
            reward += credit
        return observation, reward, False, simulation.pending is None, info

    @property
    def _pending(self) -> Decide | None:
        return None if self._simulation is None else self._simulation.pending

    def _observe(self, simulation: Run, replaced: bool) -> tuple[Observation, dict[str, Any]]:
        request = simulation.advance()
        credits = [(decision, terms.total) for decision, terms in simulation.take_credits()]
        info: dict[str, Any] = {"credits": credits, "replaced": replaced}
        if request is None:
            info["figures"] = self._figures_of(simulation)
            return np.zeros(self._observer.size, np.float32), info
        info["decision"] = request.decision
        info["server_mask"], info["width_mask"] = masks(request.view)
        if self._waits.choices:
            info["batching_delay_mask"] = self._waits.mask(request.view)
        return self._observer.observe(request.view), info

    def _figures_of(self, simulation: Run) -> dict[str, float]:
        share = self._replaced / self._steps if self._steps else nan
        return {**self._figures(simulation.spec, simulation.columns()), "replaced_share": share}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the action masks, part by part: (N + W + G,) bool, or (N + W + G + 1 + H,) with `batching_delays_s`.

        sb3-contrib's `MaskablePPO` calls it by this name. A width is allowed if any valid server holds it; with a
        server that lacks it, the nearest held width still replaces it. All is allowed if no decision is pending.
        """
        if (request := self._pending) is None:
            return np.ones(sum(self._choices), np.bool_)
        view = request.view
        servers, widths = masks(view)
        batching_delays = [self._waits.mask(view)] if self._waits.choices else []
        return np.concatenate(
            [servers, widths[servers].any(axis=0), np.ones(len(self._micro_batch_sizes), np.bool_), *batching_delays]
        )

    def _parts(self, action: Action) -> tuple[int, ...]:
        try:
            parts = tuple(index(part) for part in action)  # raises for fractions
        except (TypeError, ValueError):
            parts = ()
        is_one = len(parts) == len(self._choices)
        if not is_one or not all(0 <= part < most for part, most in zip(parts, self._choices, strict=True)):
            names = ("server", "width index", "micro-batch size index", "batching_delay")[: len(self._choices)]
            allowed = f"({', '.join(names)}), whole numbers from 0 and below {self._choices}"
            raise ValueError(f"action {np.asarray(action).tolist()}: expected {allowed}")
        return parts

    def _legal(self, view: ClusterView, action: Action) -> tuple[Choice | BatchingDelay, bool]:
        server, width, micro_batch_size, *batching_delay = self._parts(action)
        if any(batching_delay) and self._waits.may(view):
            return self._waits.batching_delay(batching_delay[0], view), False
        legal = server
        if not view.servers[server].valid:
            legal = next(number for number, state in enumerate(view.servers) if state.valid)
        held = [number for number, is_held in enumerate(view.servers[legal].widths) if is_held]
        nearest = min(held, key=lambda number: (abs(number - width), number))
        choice = Choice(legal, self._widths[nearest], self._micro_batch_sizes[micro_batch_size])
        return choice, (legal, nearest) != (server, width) or any(batching_delay)
