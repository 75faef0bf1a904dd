"""Rollouts for `ppo`: each cluster runs through its decisions by itself, the network in its plan, all in compiled code.

There are no rewards here. A decision leaves a row: when it was, how much was inside, what had been served, what
the network was told of every candidate, and which one was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import exp, inf

import numpy as np

from kit.jit import Ints, Reals, entry, kernel, reals
from policies.compiled.compass import CompassMemory, settle, weigh
from policies.compiled.layout import Plan, Sheet, blank_sheet
from policies.plan_of import CompiledRouter
from policies.ppo.candidate_experience import HEAD, MASKED, CandidateExperience, CandidateRow
from policies.rules.candidates import CandidateNetwork
from sim.cluster import ClusterSpec, RunSpec
from sim.compiled.agenda import advance, decide
from sim.compiled.chance import hashed_share
from sim.compiled.codes import ASKED, ENDED, NONE
from sim.compiled.decide import write_sheet
from sim.compiled.layout import Cluster, Parameters
from sim.compiled.rollout import Episodes
from sim.compiled.run import RunRow


@kernel
def _draw(plan: Plan, its: CompassMemory, uniform: float) -> int:
    """A candidate by its preference, from a uniform number."""
    costs, candidates = reals(plan), plan.servers * plan.widths
    least, total, reached, drawn = costs[its.costs_at + its.best], 0.0, 0.0, its.best
    for place in range(candidates):
        total += exp(least - costs[its.costs_at + place])
    for place in range(candidates):
        if costs[its.costs_at + place] < inf:
            drawn = place
            reached += exp(least - costs[its.costs_at + place])
            if reached > uniform * total:
                return drawn
    return drawn


@kernel
def _note(c: Cluster, plan: Plan, sheet: Sheet, its: CompassMemory, out: Reals, at: int) -> None:
    """The decision's row, but for what is drawn."""
    row, candidates = CandidateRow(out, at), plan.servers * plan.widths
    row.time_ns, row.in_flight, row.completed, row.accuracy = c.now_ns, c.in_flight, c.completed, sheet.accuracy_sum
    row.segment, row.ended = sheet.segment, 0
    inputs = its.reluctance_at - its.inputs_at
    for n in range(inputs):
        out[at + HEAD + n] = reals(plan)[its.inputs_at + n]
    for n in range(candidates):
        is_one = reals(plan)[its.costs_at + n] < inf
        out[at + HEAD + inputs + n] = reals(plan)[its.reluctance_at + n] if is_one else MASKED


@entry
def roll_candidates(
    row_at: int, parameters_at: int, plan_row: Ints, sheet_row: Ints, out: Reals, todo: int, made: Ints
) -> int:
    """Let a cluster make decisions by its plan's network, drawn.

    Args:
        row_at, parameters_at: addresses of the cluster's row and parameters.
        plan_row, sheet_row: its plan, and room for a sheet.
        out: (todo, R) a `CandidateRow` of each decision, the network's inputs, and how dear each candidate is.
        made: (1,) how many of them there are; counted up.

    Returns:
        Why it stops (`advance`), or NONE when all are made.
    """
    c, p, plan, sheet = Cluster(row_at), Parameters(parameters_at), Plan(plan_row), Sheet(sheet_row)
    its, flat = CompassMemory(plan, plan.memory_at), reals(out)
    while made[0] < todo:
        if c.asked == 0:
            status = advance(c, p)
            if status != ASKED:
                return status
        c.credits = 0
        write_sheet(c, p, plan, sheet)
        weigh(plan, sheet)
        at = made[0] * out.shape[1]
        _note(c, plan, sheet, its, flat, at)
        drawn = _draw(plan, its, hashed_share(c.draws_salt, c.decision, 0))
        settle(plan, sheet, drawn)
        row = CandidateRow(flat, at)
        row.chosen, row.images = drawn, min(plan.group, sheet.candidates)
        decide(c, p, plan.server, plan.width, plan.group)
        made[0] += 1
    return NONE


class CandidateRollouts(Episodes):
    """Of `ppo`.

    Args:
        cluster, run_of, seed, clusters, first_episode: as in `Episodes`.
        planned: the router to begin with; its network's weights are replaced for each collection.
        threads: how many work at once.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        run_of: Callable[[int], RunSpec],
        planned: CompiledRouter,
        seed: int,
        *,
        clusters: int = 64,
        threads: int = 1,
        first_episode: int = 0,
    ) -> None:
        self._planned, self._threads = planned, threads
        self._plans = [planned.row.copy() for _ in range(clusters)]
        super().__init__(cluster, run_of, seed, clusters, first_episode)

    def collect(self, network: CandidateNetwork, decisions: int) -> CandidateExperience:
        """Let all clusters together make about so many decisions: as many each."""
        each = -(-decisions // len(self._runs))
        head, memory = Plan(self._planned.row), self._memory(self._planned.row)
        candidates, numbers = head.servers * head.widths, network.numbers
        inputs = memory.reluctance_at - memory.inputs_at
        rows = np.zeros((len(self._runs), each, HEAD + inputs + candidates))
        for plan in self._plans:
            its = self._memory(plan)
            plan[its.network_at : its.network_at + len(numbers)] = numbers.view(np.int64)
            its.sharpness = network.sharpness

        def carry_on(index: int) -> None:
            made, sheet = np.zeros(1, np.int64), blank_sheet(head.servers)
            while True:
                plan, at, parameters_at = self._plans[index], self._rows_at[index], self._parameters_at[index]
                status = roll_candidates(int(at), int(parameters_at), plan, sheet, rows[index], each, made)
                if status == NONE:
                    return
                if status == ENDED and made[0]:
                    CandidateRow(rows[index, made[0] - 1].view(np.int64)).ended = 1
                self._help(index, status)

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(carry_on, range(len(self._runs))))
        self.decisions += each * len(self._runs)
        return CandidateExperience(rows, head.servers, head.widths)

    def _memory(self, plan: Ints) -> CompassMemory:
        return CompassMemory(plan, Plan(plan).memory_at)

    def new_run(self, index: int) -> RunRow:
        """With the plan as it was at first, but for the network, and with what its router holds."""
        run = super().new_run(index)
        its = self._memory(self._plans[index])
        network = slice(its.network_at, its.inputs_at)
        fresh = self._planned.row.copy()
        fresh[network] = self._plans[index][network]
        self._memory(fresh).sharpness = its.sharpness
        self._plans[index] = fresh
        if self._planned.hold is not None:
            run.set_hold_rule(self._planned.hold)
        return run
