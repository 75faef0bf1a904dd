"""A cluster of training jobs as a Gymnasium environment: a step says whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import NAMES, WAIT, Choosing, View
from jobs.sim.world import JobSimulation
from kit.units import NS_PER_S

Observation = NDArray[np.float32]
VISIBLE: Final = 128
PADDING: Final = (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)  # of the slots that nobody has
_HOUR_NS = 3600 * NS_PER_S


class JobClusterEnv(gymnasium.Env[Observation, np.int64]):
    """One step is one choice.

    Observation: eight numbers of each of the first 128 jobs that wait, in the policy's order; float32 of shape
        (1024,), as `jobs.policies.choices` says, with its padding.
    Action: Discrete(129), the slot of the job whose turn it is, or 128 to wait until something happens. One that is
        masked is replaced by the first that is not, and `info["replaced"]` says so. Where all are masked, as nobody
        runs and of the first 128 nobody fits, the first that fits is started.
    Reward: minus the job hours spent in the system since the last choice, over the number of jobs. Their sum is minus
        the mean completion time in hours, of jobs that were not refused.
    Info: `action_mask` (129,), int8: 1 for what may be chosen; `time_s`, since the first submission.
    Episode: one run of `simulate(seed, choosing)`, whose policy leaves choices open; it terminates with the last job.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, simulate: Callable[[int, Choosing], JobSimulation]) -> None:
        self._simulate = simulate
        self.observation_space = gymnasium.spaces.Box(0.0, 1.5, (VISIBLE * len(NAMES),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(VISIBLE + 1)
        self._view: View | None = None  # what is asked; None while nothing is
        self._answer: int | None = None  # whom to start of the view, or `WAIT`
        self._simulation: JobSimulation | None = None
        self._spent_ns = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a run; without a seed, the next one of this environment's own generator."""
        super().reset(seed=seed)
        self._view, self._answer, self._spent_ns = None, None, 0
        self._simulation = self._simulate(int(self.np_random.integers(2**31)), Choosing(self._choose))
        is_asked = self._simulation.advance()
        assert is_asked, "a run without a choice"
        return self._observed(), self._info(replaced=False)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Choose, and run to the next choice; raises `ValueError` for an action that is not in the space."""
        simulation, view = self._simulation, self._view
        if simulation is None or view is None:
            raise gymnasium.error.ResetNeeded("the run has ended; call reset() first")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r}: allowed are whole numbers from 0 to {VISIBLE}")
        mask = _mask(view)
        legal = int(action) if mask[action] else int(mask.argmax())
        self._answer = WAIT if legal == VISIBLE else legal
        if not mask.any():  # while nobody runs there is no waiting, and of the visible nobody fits
            self._answer = int(view.may.argmax())
        is_over = not simulation.advance()
        spent_ns = simulation.in_system_ns
        reward = -(spent_ns - self._spent_ns) / _HOUR_NS / len(simulation.spec.jobs)
        self._spent_ns = spent_ns
        return self._observed(), reward, is_over, False, self._info(replaced=legal != action)

    def action_masks(self) -> NDArray[np.bool_]:
        """What may be chosen now, (129,), as sb3-contrib's `MaskablePPO` asks for it; all where nothing is asked."""
        view = self._view
        return np.ones(VISIBLE + 1, np.bool_) if view is None else _mask(view).astype(np.bool_)

    def _choose(self, view: View) -> int | None:
        """The answer, if there is one; else the question is kept."""
        answer, self._answer = self._answer, None
        self._view = view if answer is None else None
        return answer

    def _observed(self) -> Observation:
        slots = np.tile(np.array(PADDING, np.float32), (VISIBLE, 1))
        if self._view is not None:
            rows = self._view.seen[:VISIBLE]
            slots[: len(rows)] = rows
        return slots.reshape(-1)

    def _info(self, replaced: bool) -> dict[str, Any]:
        mask = np.zeros(VISIBLE + 1, np.int8) if self._view is None else _mask(self._view)
        assert self._simulation is not None, "reset comes first"
        return {"action_mask": mask, "replaced": replaced, "time_s": self._simulation.elapsed_s}


def _mask(view: View) -> NDArray[np.int8]:
    mask = np.zeros(VISIBLE + 1, np.int8)
    may = view.may[:VISIBLE]
    mask[: len(may)] = may
    mask[VISIBLE] = view.can_wait
    return mask
