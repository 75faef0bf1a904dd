"""Many simulated clusters as one Gymnasium vector environment: all of them take a step in one compiled call.

Every cluster does what `sim.cluster_env.SlimClusterEnv` does, number for number: the equivalent of `SyncVectorEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from kit.errors import WorkError
from kit.jit import Ints, Reals, Singles, entry, ints, kernel, singles
from policies.observation import Waits
from sim.cluster_env import Figures
from sim.compiled.cluster_rows import addressed, program_of
from sim.compiled.compiled_run import RunRow
from sim.compiled.event_loop import advance, decide, decide_to_delay
from sim.compiled.row_access import code_of, params_of, place_of, request_at, server_at, write_observation
from sim.compiled.row_layout import ASKED, ENDED, NO_CURVE, NO_TUPLE, Cluster, Credit, Parameters, problem_of
from sim.compiled.run_figures import run_columns
from sim.simulated_cluster import ClusterSpec, RunSpec

Observations = NDArray[np.float32]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]

_REST, _GO_ON, _ANSWER = range(3)  # a cluster's task in a call


class _Outputs:
    """The outputs of a call, for each cluster."""

    def __init__(self, clusters: int, servers: int, widths: int, batching_delays: int) -> None:
        self.observations = np.zeros((clusters, 2 + 3 * servers), np.float32)
        self.rewards = np.zeros(clusters)
        self.replaced = np.zeros(clusters, np.bool_)
        self.decisions = np.zeros(clusters, np.int64)
        self.server_masks = np.zeros((clusters, servers), np.bool_)
        self.width_masks = np.zeros((clusters, servers, widths), np.bool_)
        self.batching_delay_masks = np.zeros((clusters, batching_delays), np.bool_)
        self.counts = np.zeros(clusters, np.int64)  # of the credits
        self.credited, self.credits = np.zeros((clusters, 0), np.int64), np.zeros((clusters, 0))

    def masks(self, micro_batch_sizes: int) -> Bools:
        """Return `SlimClusterEnv.action_masks` of each cluster with a pending decision: (E, N + W + G [+ 1 + H])."""
        widths = (self.width_masks & self.server_masks[:, :, None]).any(axis=1)
        free = np.ones((len(self.counts), micro_batch_sizes), np.bool_)
        return np.concatenate([self.server_masks, widths, free, self.batching_delay_masks], axis=1)

    def make_room(self, credits: int) -> None:
        """Allocate for this number of credits of each cluster."""
        more = ((0, 0), (0, max(0, credits - self.credits.shape[1])))
        self.credited, self.credits = np.pad(self.credited, more), np.pad(self.credits, more)


@kernel
def _legal(c: Cluster, p: Parameters, server: int, width: int) -> int:
    """Return the choice made legal (`SlimClusterEnv._legal`), as one number: server x widths + width."""
    place = place_of(p, request_at(c, p, c.slot))
    code = code_of(c, p, server, place)
    if code == 0:
        server = 0
        code = code_of(c, p, server, place)
        while code == 0:
            server += 1
            code = code_of(c, p, server, place)
    widths, distance = p.widths, 0
    while True:
        if width >= distance and (code >> (width - distance)) & 1:
            return server * widths + width - distance
        if width + distance < widths and (code >> (width + distance)) & 1:
            return server * widths + width + distance
        distance += 1


@kernel
def _write_masks(
    c: Cluster, p: Parameters, e: int, server_masks: Bools, width_masks: Bools, batching_delay_masks: Bools
) -> None:
    """Write the action masks (`policies.observation.masks`, `Waits.mask`)."""
    for batching_delay in range(batching_delay_masks.shape[1]):
        batching_delay_masks[e, batching_delay] = batching_delay == 0 or c.batching_delay_left_ns > 0
    place = place_of(p, request_at(c, p, c.slot))
    for index in range(p.servers):
        held = ints(p)[params_of(p, server_at(c, p, index)).codes_at + place]
        server_masks[e, index] = code_of(c, p, index, place) != 0
        for width in range(p.widths):
            width_masks[e, index, width] = (held >> width) & 1 == 1


@kernel
def _take_credits(c: Cluster, p: Parameters, e: int, credited: Ints, credits: Reals) -> float:
    """Move a cluster's credits out of its row; returns their sum, in their order."""
    reward = 0.0
    for number in range(c.credits):
        credit = Credit(c, p.credits_at, number)
        credited[e, number], credits[e, number] = credit.decision, credit.total
        reward += credit.total
    c.credits = 0
    return reward


@kernel
def _answer(c: Cluster, p: Parameters, action: Ints, micro_batch_sizes: Ints, waits_ns: Ints) -> bool:
    """Decide by an action made legal (`SlimClusterEnv._legal`); returns whether it had to be replaced."""
    batching_delay = action[3] if len(waits_ns) else 0
    if batching_delay and c.batching_delay_left_ns > 0:
        decide_to_delay(c, p, micro_batch_sizes, waits_ns[batching_delay - 1])
        return False
    legal = _legal(c, p, action[0], action[1])
    decide(c, p, legal // p.widths, legal % p.widths, micro_batch_sizes[action[2]])
    return bool(batching_delay > 0 or legal != action[0] * p.widths + action[1])


@entry
def step_clusters(
    rows: Ints,
    parameters: Ints,
    tasks: Ints,
    actions: Ints,
    micro_batch_sizes: Ints,
    waits_ns: Ints,
    status: Ints,
    observations: Singles,
    rewards: Reals,
    replaced: Bools,
    decisions: Ints,
    server_masks: Bools,
    width_masks: Bools,
    batching_delay_masks: Bools,
    counts: Ints,
    credited: Ints,
    credits: Reals,
) -> None:
    """Run clusters, given by the addresses of their rows, to their next decisions or ends.

    A cluster whose pools are full stops in between; once they have grown it has to continue.
    """
    size = observations.shape[1]
    out = singles(observations)
    for e in range(len(rows)):
        if tasks[e] == _REST:
            continue
        c, p = Cluster(rows[e]), Parameters(parameters[e])
        if tasks[e] == _ANSWER:
            replaced[e] = _answer(c, p, actions[e], micro_batch_sizes, waits_ns)
        status[e] = advance(c, p)
        if status[e] != ASKED and status[e] != ENDED:
            continue
        counts[e] = c.credits
        rewards[e] = _take_credits(c, p, e, credited, credits)
        if status[e] == ASKED:
            decisions[e] = c.decision
            write_observation(c, p, out, e * size)
            _write_masks(c, p, e, server_masks, width_masks, batching_delay_masks)
        else:
            observations[e] = 0.0
            decisions[e] = 0
            server_masks[e] = width_masks[e] = batching_delay_masks[e] = False


class SlimClusterVectorEnv(VectorEnv[Observations, Actions, NDArray[Any]]):
    """Clusters that are stepped together; see `sim.cluster_env.SlimClusterEnv` for their observations and rewards.

    A step takes actions (E, 3), or (E, 4) with `batching_delays_s`, and returns observations (E, 2 + 3 N) float32,
    rewards (E,) float64, terminations and truncations (E,) bool, and infos: `decision`, `server_mask`, `width_mask`,
    `batching_delay_mask` (with `batching_delays_s`), `replaced` and `credits` (an object array of lists), each with its
    `_key` mask of the clusters that have it; at the end of an episode `figures` as well, a dictionary of arrays. A
    cluster whose episode has ended is reset by the following step, whatever its action (Gymnasium's
    `AutoresetMode.NEXT_STEP`).

    Args:
        cluster: the cluster to simulate.
        plan: returns the run of a seed.
        num_envs: clusters, E.
        batching_delays_s: the waits to choose from, in seconds, ascending; empty for no batching delays.
        figures: returns the figures of a run that has ended; without it runs keep no requests.

    Raises:
        UnsupportedScenario: a feature that only the reference has; use `SyncVectorEnv` of `SlimClusterEnv`.
    """

    autoreset_mode = AutoresetMode.NEXT_STEP  # as in Gymnasium's classes: some libraries read it here
    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": autoreset_mode}  # noqa: RUF012 - theirs

    def __init__(
        self,
        cluster: ClusterSpec,
        plan: Callable[[int], RunSpec],
        num_envs: int = 1,
        batching_delays_s: Sequence[float] = (),
        figures: Figures | None = None,
    ) -> None:
        config = cluster.router
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0.0, 50.0, (2 + 3 * config.servers,), np.float32)
        waits = Waits.within(batching_delays_s, config)
        choices = [
            config.servers,
            len(config.widths),
            len(config.micro_batch_sizes),
            *([waits.choices] if batching_delays_s else []),
        ]
        self.single_action_space = gymnasium.spaces.MultiDiscrete(choices)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._program, self._plan = program_of(cluster), plan
        self._figures = figures
        self._choices, self._micro_batch_sizes = np.array(choices), np.array(config.micro_batch_sizes, np.int64)
        self._waits_ns = np.array(waits.waits_ns, np.int64)
        self._runs = [self._run(0)] * num_envs
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._rows, self._parameters, self._tasks = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._status = np.full(num_envs, ENDED, np.int64)
        self._is_truncated = np.zeros(num_envs, np.bool_)
        self._decided, self._replaced = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._out = _Outputs(num_envs, config.servers, len(config.widths), waits.choices)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start a run in every cluster, or in those of `options["reset_mask"]`, (E,) bool.

        A seed is for the first cluster, the next number for the second, and so on; or there is one for each. A cluster
        without a seed continues with its generator.
        """
        seeds = [seed + e for e in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: {len(seeds)} seeds for {self.num_envs} clusters; give one each, or a number")
        selected = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            selected = np.asarray(options["reset_mask"])
            if selected.shape != (self.num_envs,) or selected.dtype != np.bool_:
                raise ValueError(
                    f"options: reset_mask must be ({self.num_envs},) bool, got {selected.shape} {selected.dtype}"
                )
        self._begin(selected, seeds)
        self._advance()
        self._is_truncated &= ~selected
        return self._out.observations.copy(), self._infos(selected)

    def step(self, actions: Actions) -> tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Decide in every cluster, and run each to its next decision."""
        actions = self._checked(actions)
        over = self._is_truncated
        if ((self._status != ASKED) & ~over).any():
            raise gymnasium.error.ResetNeeded("a run has ended, or none has begun; call reset() first")
        self._tasks[:] = _ANSWER
        if over.any():
            self._begin(over, [None] * self.num_envs)
        self._advance(actions)
        self._is_truncated = (self._status == ENDED) & ~over
        out = self._out
        self._decided += ~over
        self._replaced += out.replaced  # 0 for clusters just reset
        infos = self._infos(np.ones(self.num_envs, np.bool_))
        never = np.zeros(self.num_envs, np.bool_)
        return out.observations.copy(), out.rewards.copy(), never, self._is_truncated.copy(), infos

    def action_masks(self) -> Bools:
        """Return the action masks, part by part; a row is `SlimClusterEnv.action_masks`: (E, N + W + G [+ 1 + H])."""
        is_asked = (self._status == ASKED)[:, None]
        return np.asarray(self._out.masks(len(self._micro_batch_sizes)) | ~is_asked)

    def _checked(self, actions: Any) -> Actions:
        """Raise `ValueError` for actions outside the space, naming the first."""
        shape, array = (self.num_envs, len(self._choices)), np.asarray(actions)
        allowed = f"actions must be {shape} of whole numbers, each from 0 and below {self._choices.tolist()}"
        if array.shape != shape or array.dtype.kind not in "iu":
            raise ValueError(f"{allowed}; found {array.shape} of {array.dtype}")
        wrong = ((array < 0) | (array >= self._choices)).any(axis=1)
        if wrong.any():
            e = int(np.argmax(wrong))
            raise ValueError(f"{allowed}; found {array[e].tolist()} for cluster {e}")
        return np.ascontiguousarray(array, np.int64)

    def _run(self, seed: int) -> RunRow:
        return RunRow(self._program, self._plan(seed), keeps=self._figures is not None)

    def _begin(self, selected: Bools, seeds: Sequence[int | None]) -> None:
        for e in np.flatnonzero(selected).tolist():
            generator = self._generators[e]
            if generator is None or seeds[e] is not None:
                generator = self._generators[e] = gymnasium.utils.seeding.np_random(seeds[e])[0]
            self._runs[e] = self._run(int(generator.integers(2**31)))
            self._place(e)
            self._out.replaced[e] = False
            self._decided[e] = self._replaced[e] = 0
            self._tasks[e] = _GO_ON

    def _place(self, e: int) -> None:
        run = self._runs[e]
        self._rows[e], self._parameters[e] = addressed(run.row), addressed(run.shape.parameters)
        if run.shape.most_credits > self._out.credits.shape[1]:
            self._out.make_room(run.shape.most_credits)

    def _advance(self, actions: Actions | None = None) -> None:
        """Have every cluster do its task, which is then done."""
        out = self._out
        if actions is None:
            actions = np.zeros((self.num_envs, len(self._choices)), np.int64)
        while True:
            step_clusters(
                self._rows, self._parameters, self._tasks, actions, self._micro_batch_sizes, self._waits_ns,
                self._status, out.observations, out.rewards, out.replaced, out.decisions, out.server_masks,
                out.width_masks, out.batching_delay_masks, out.counts, out.credited, out.credits,
            )  # fmt: skip
            stopped = (self._tasks != _REST) & (self._status != ASKED) & (self._status != ENDED)
            self._tasks[:] = _REST
            if not stopped.any():
                return
            for e in np.flatnonzero(stopped).tolist():
                self._grow(e)
                self._tasks[e] = _GO_ON

    def _grow(self, e: int) -> None:
        status, run = int(self._status[e]), self._runs[e]
        if status in (NO_CURVE, NO_TUPLE):
            raise WorkError(problem_of(status))
        run.grow(status)
        self._place(e)

    def _infos(self, selected: Bools) -> dict[str, Any]:
        """Gather them from the wanted clusters as `VectorEnv._add_info` would."""
        out = self._out
        due = selected & (self._status == ASKED)
        infos: dict[str, Any] = {"credits": self._credits(selected), "replaced": out.replaced & selected}
        masks = {"credits": selected.copy(), "replaced": selected.copy()}
        if due.any():
            infos |= {"decision": np.where(due, out.decisions, 0)}
            infos |= {"server_mask": out.server_masks & due[:, None]}
            infos |= {"width_mask": out.width_masks & due[:, None, None]}
            names = ["decision", "server_mask", "width_mask"]
            if len(self._waits_ns):
                infos |= {"batching_delay_mask": out.batching_delay_masks & due[:, None]}
                names.append("batching_delay_mask")
            masks |= {key: due.copy() for key in names}
        ended = selected & (self._status == ENDED)
        if ended.any():
            infos |= {"figures": self._figures_of(ended)}
            masks |= {"figures": ended.copy()}
        return infos | {f"_{key}": mask for key, mask in masks.items()}

    def _figures_of(self, ended: Bools) -> dict[str, Any]:
        """Gather the figures of the clusters that have ended, as `VectorEnv._add_info` does."""
        info: dict[str, Any] = {}
        for e in np.flatnonzero(ended).tolist():
            run, steps = self._runs[e], int(self._decided[e])
            figures = dict(self._figures(run.run, run_columns(run))) if self._figures is not None else {}
            figures["replaced_share"] = int(self._replaced[e]) / steps if steps else nan
            info = self._add_info(info, figures, e)
        return info

    def _credits(self, selected: Bools) -> NDArray[np.object_]:
        """Return each wanted cluster's (decision id, reward) pairs; None for the others."""
        out = self._out
        is_one = np.arange(out.credits.shape[1]) < out.counts[:, None]
        pairs = list(zip(out.credited[is_one].tolist(), out.credits[is_one].tolist(), strict=True))
        ends = np.cumsum(out.counts).tolist()
        credits = np.full(self.num_envs, None, dtype=object)
        for e, (end, count) in enumerate(zip(ends, out.counts.tolist(), strict=True)):
            if selected[e]:
                credits[e] = pairs[end - count : end]
        return credits


__all__ = ["SlimClusterVectorEnv"]
