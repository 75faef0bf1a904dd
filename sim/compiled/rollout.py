"""Rollouts for PPO: a chunk of clusters runs through a horizon of decisions inside compiled code.

The policy decides for the whole chunk at once, then each cluster runs to its next decision: its row stays in the cache.
Python is needed if an episode ends (random numbers are drawn outside) or a pool must grow. Each thread has separate
chunks, and every draw is a hash of episode and decision, so the collected data do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np

from kit.errors import WorkError
from kit.jit import Ints, Reals, Singles, entry, kernel, reals, singles
from kit.random_streams import derived_seed
from policies.interfaces import RewardTerms
from policies.observation import Bools
from policies.ppo.kernels import Experience, Layout, act, empty
from policies.ppo.spec import PolicySpec
from sim.compiled.cluster_rows import Numbers, addressed, program_of
from sim.compiled.compiled_run import RunRow
from sim.compiled.event_loop import advance, decide, decide_to_delay
from sim.compiled.row_access import (
    hashed_share,
    member_at,
    micro_batch_at,
    request_at,
    server_at,
    write_codes,
    write_observation,
)
from sim.compiled.row_layout import (
    ASKED,
    ENDED,
    INSTANCES_FULL,
    MESSAGES_FULL,
    MICRO_BATCHES_FULL,
    NONE,
    REQUESTS_FULL,
    BatchingDelayMade,
    Cluster,
    Credit,
    Member,
    Parameters,
    Request,
    Terms,
    problem_of,
)
from sim.simulated_cluster import ClusterSpec, RunSpec

_TERMS = Terms.size
_OF_REQUEST, _OF_MEMBER = Request.offsets["first_batching_delay"], Member.offsets["first_batching_delay"]
_MAX_EMPTY = 10
CHUNK = 8  # clusters that run together: their rows stay in the second cache


@kernel
def _run_to_questions(
    rows_at: Ints,
    parameters_at: Ints,
    todo: Ints,
    status: Ints,
    reward: Singles,
    complete: Ints,
    completed: Ints,
    terms: Reals,
) -> int:
    """Run every cluster with decisions to make to its next one; returns the first that can't reach it, or NONE."""
    most = len(complete) // len(todo)
    for e in range(len(todo)):
        c, p = Cluster(rows_at[e]), Parameters(parameters_at[e])
        if todo[e] == 0 or c.asked:
            continue
        status[e] = advance(c, p)
        for n in range(c.credits):
            credit = Credit(c, p.credits_at, n)
            reward[credit.tag] = credit.total
            complete[e * most + completed[e]] = credit.tag
            completed[e] += 1
            for term in range(_TERMS):
                terms[e, term] += reals(credit.terms)[term]
        c.credits = 0
        if status[e] != ASKED:
            return e
    return NONE


@kernel
def _ask(
    rows_at: Ints,
    parameters_at: Ints,
    todo: Ints,
    next_row: Ints,
    eps: float,
    observation: Singles,
    eps_of: Singles,
    clusters: Ints,
    rows: Ints,
    codes: Ints,
    uniforms: Reals,
    may_delay: Bools,
) -> int:
    """Write observations, codes and draws of every cluster with decisions to make; returns their number."""
    observed, observations = observation.shape[1], singles(observation)
    count = 0
    for e in range(len(todo)):
        if todo[e] == 0:
            continue
        c, p = Cluster(rows_at[e]), Parameters(parameters_at[e])
        row = next_row[e]
        write_observation(c, p, observations, row * observed)
        write_codes(c, p, codes[count], 0)
        may_delay[count] = c.batching_delay_left_ns > 0
        for head in range(uniforms.shape[1]):
            uniforms[count, head] = hashed_share(c.draws_salt, c.decision, head)
        eps_of[row] = eps
        c.tag = row
        clusters[count], rows[count] = e, row
        next_row[e] += 1
        count += 1
    return count


@entry
def roll(
    rows_at: Ints,
    parameters_at: Ints,
    todo: Ints,
    next_row: Ints,
    status: Ints,
    weights: Singles,
    sizes: Ints,
    micro_batch_sizes: Ints,
    waits_ns: Ints,
    eps: float,
    observation: Singles,
    server_mask: Bools,
    width_mask: Bools,
    actions: Ints,
    log_prob: Singles,
    eps_of: Singles,
    value: Singles,
    reward: Singles,
    images: Singles,
    batching_delay_mask: Bools,
    complete: Ints,
    completed: Ints,
    terms: Reals,
    clusters: Ints,
    rows: Ints,
    codes: Ints,
    uniforms: Reals,
    may_delay: Bools,
    scratch: Singles,
) -> int:
    """Run a chunk of clusters until each has made the decisions in its `todo`.

    Args:
        rows_at, parameters_at: (C,) addresses of the clusters' rows and parameters.
        todo: (C,) decisions to make; counted down.
        next_row: (C,) row of each cluster's next decision in the columns; counted up.
        status: (C,) why each returned last.
        weights, sizes, micro_batch_sizes, waits_ns: the policy.
        observation, ..., batching_delay_mask: the columns of an `Experience`.
        complete: (C * M,) rows with a reward, M entries for each cluster; `completed`: (C,) their number.
        terms: (C, 5) sums of the rewards' terms.
        clusters, rows, codes, uniforms, may_delay, scratch: memory for one sweep.

    Returns:
        The cluster that needs Python (its episode has ended, or something must grow), or NONE when all is done.
    """
    while True:
        stuck = _run_to_questions(rows_at, parameters_at, todo, status, reward, complete, completed, terms)
        if stuck != NONE:
            return stuck
        count = _ask(
            rows_at, parameters_at, todo, next_row, eps, observation, eps_of, clusters, rows, codes, uniforms, may_delay
        )
        if count == 0:
            return NONE
        act(
            weights, sizes, rows[:count], observation, codes[:count], uniforms[:count], eps, scratch,
            actions, log_prob, value, server_mask, width_mask, may_delay[:count], batching_delay_mask,
        )  # fmt: skip
        for n in range(count):
            e, row = clusters[n], rows[n]
            c, p = Cluster(rows_at[e]), Parameters(parameters_at[e])
            batching_delay = actions[row, 3] if len(waits_ns) else 0
            images[row] = 1 if batching_delay else min(micro_batch_sizes[actions[row, 2]], c.candidates)
            if batching_delay:
                decide_to_delay(c, p, micro_batch_sizes, waits_ns[batching_delay - 1])
            else:
                decide(c, p, actions[row, 0], actions[row, 1], micro_batch_sizes[actions[row, 2]])
            todo[e] -= 1


@entry
def waiting_rows(row: Numbers, parameters: Numbers, out: Ints, first: int) -> int:
    """Move the rows of decisions without a reward to `out`; from now on they begin at `first`."""
    c, p = Cluster(row), Parameters(parameters)
    count = 0
    if c.slot != NONE and c.asked == 0:
        out[0] = c.tag
        c.tag = first
        count = 1
    for index in range(p.servers):
        number = server_at(c, p, index).first_micro_batch
        while number != NONE:
            micro_batch = micro_batch_at(c, p, number)
            out[count] = micro_batch.tag
            micro_batch.tag = first + count
            count += 1
            if c.pending_batching_delays:
                for position in range(micro_batch.count):
                    member = member_at(p, micro_batch, position)
                    for n in range(member.batching_delays):
                        batching_delay = BatchingDelayMade(member, _OF_MEMBER, n)
                        out[count] = batching_delay.tag
                        batching_delay.tag = first + count
                        count += 1
            number = micro_batch.next
    return _waiting_batching_delays(c, p, out, first, count) if c.pending_batching_delays else count


@kernel
def _waiting_batching_delays(c: Cluster, p: Parameters, out: Ints, first: int, count: int) -> int:
    """Move the rows of decisions that delayed requests still in the FIFO; returns the new number of rows."""
    slot = c.fifo_head
    while slot != NONE:
        request = request_at(c, p, slot)
        for n in range(request.batching_delays):
            batching_delay = BatchingDelayMade(request, _OF_REQUEST, n)
            out[count] = batching_delay.tag
            batching_delay.tag = first + count
            count += 1
        slot = request.fifo_next
    return count


class Rollouts:
    """Many clusters of one kind, each in a separate episode, which the paper's policy decides for.

    Args:
        cluster: the cluster to simulate.
        run_of: returns an episode's run by its seed; cut at its horizon.
        spec: the policy's shape.
        hidden: the sizes of its shared layers.
        seed: seed of the episodes, and of the policy's draws in them.
        clusters: number of clusters.
        threads: number of threads.
        first_episode: the number of the first; a resumed training continues with the next.

    Raises:
        UnsupportedScenario: a feature that only the reference has.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        run_of: Callable[[int], RunSpec],
        spec: PolicySpec,
        hidden: tuple[int, ...],
        seed: int,
        *,
        clusters: int = 8 * CHUNK,
        threads: int = 1,
        first_episode: int = 0,
    ) -> None:
        self.decisions = 0
        self._rounds, self._empty = np.zeros(clusters, np.int64), np.zeros(clusters, np.int64)
        self._first_episode, self._run_of = first_episode, run_of
        self._seed = seed
        self._program = program_of(cluster)
        self._runs: list[RunRow] = []
        self._rows_at, self._parameters_at = np.zeros(clusters, np.int64), np.zeros(clusters, np.int64)
        for index in range(clusters):
            self._runs.append(self._new_run(index))
            self._place(index)
        self._forgotten, self._spec = np.zeros(clusters, np.int64), spec
        self._layout = Layout(spec, hidden)
        self._sizes, self._micro_batch_sizes = self._layout.sizes(), np.array(spec.micro_batch_sizes, np.int64)
        self._waits_ns = np.array(spec.waits.waits_ns, np.int64)
        self._terms = np.zeros((clusters, _TERMS))
        self._credited = 0
        self._columns: Experience | None = None
        self._threads = threads
        self._chunks = [slice(first, min(first + CHUNK, clusters)) for first in range(0, clusters, CHUNK)]

    @property
    def episodes(self) -> int:
        """An unused episode number. Each cluster has every C-th, so that none depends on another's speed."""
        return self._first_episode + len(self._rounds) * int(self._rounds.max())

    @property
    def forgotten(self) -> int:
        """Number of decisions without a reward, since the beginning: their episode ended before, or their server had
        failed."""
        return int(self._forgotten.sum()) + sum(run.cluster.dropped for run in self._runs)

    @property
    def waiting(self) -> int:
        """Number of decisions whose reward is to come."""
        return sum(map(_count_waiting, self._runs))

    def take_terms(self) -> RewardTerms | None:
        """Return means of the terms of all rewards since the last call; None if there were none."""
        if self._credited == 0:
            return None
        means = self._terms.sum(axis=0) / self._credited
        self._terms[:], self._credited = 0.0, 0
        return RewardTerms(*means.tolist())

    def collect(self, weights: Singles, eps: float, decisions: int) -> Experience:
        """Let all clusters make about `decisions` decisions; returns those with a reward, in a fixed order.

        Args:
            weights: the row that `Layout` packs.
            eps: the share of uniform exploration in the server head.
            decisions: their number, rounded up to the same number for each cluster.
        """
        share = -(-decisions // len(self._runs))
        most = share + max(map(_count_waiting, self._runs))  # rows of a cluster, and rewards that may come for it
        columns, next_row = self._carry(most)
        clusters = len(self._runs)
        todo, status = np.full(clusters, share, np.int64), np.zeros(clusters, np.int64)
        complete, completed = np.zeros(clusters * most, np.int64), np.zeros(clusters, np.int64)

        def carry_on(chunk: slice) -> None:
            room = _Room(chunk.stop - chunk.start, self._spec, self._layout)
            while True:
                stuck = roll(
                    self._rows_at[chunk], self._parameters_at[chunk], todo[chunk], next_row[chunk], status[chunk],
                    weights, self._sizes, self._micro_batch_sizes, self._waits_ns, eps,
                    columns.observation, columns.server_mask, columns.width_mask, columns.actions, columns.log_prob,
                    columns.eps, columns.value, columns.reward, columns.images, columns.batching_delay_mask,
                    complete[chunk.start * most : chunk.stop * most], completed[chunk], self._terms[chunk],
                    room.clusters, room.rows, room.codes, room.uniforms, room.may_delay, room.scratch,
                )  # fmt: skip
                if stuck == NONE:
                    return
                self._help(chunk.start + stuck, int(status[chunk.start + stuck]))

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(carry_on, self._chunks))
        self._columns = columns
        self.decisions += share * clusters
        self._credited += int(completed.sum())
        rows = complete.reshape(clusters, most)
        return columns.rows(np.concatenate([rows[c, :n] for c, n in enumerate(completed.tolist())]))

    def _new_run(self, index: int) -> RunRow:
        number = self._first_episode + index + len(self._rounds) * int(self._rounds[index])
        self._rounds[index] += 1
        run = RunRow(self._program, self._run_of(derived_seed(self._seed, f"ppo:episode:{number}")), keeps=False)
        run.cluster.draws_salt = derived_seed(self._seed, f"ppo:draws:{number}")
        if self._rounds[index] == 1:  # cut at another time in each cluster, so that later episodes are out of step
            run.cluster.horizon_ns = run.cluster.horizon_ns * (index + 1) // len(self._rounds)
        return run

    def _place(self, index: int) -> None:
        run = self._runs[index]
        self._rows_at[index], self._parameters_at[index] = addressed(run.row), addressed(run.shape.parameters)

    def _help(self, index: int, status: int) -> None:
        """Begin the next episode, or enlarge pools: the work that compiled code can't do."""
        run = self._runs[index]
        if status == ENDED:
            self._forgotten[index] += _count_waiting(run) + run.cluster.dropped
            self._empty[index] = self._empty[index] + 1 if run.cluster.decision == 0 else 0
            if self._empty[index] > _MAX_EMPTY:
                raise WorkError(
                    f"{_MAX_EMPTY} episodes in a row ended without a single decision: there is nothing to learn from"
                )
            self._runs[index] = self._new_run(index)
        elif status in (REQUESTS_FULL, INSTANCES_FULL, MICRO_BATCHES_FULL, MESSAGES_FULL):
            run.grow(status)
        else:
            raise WorkError(problem_of(status))
        self._place(index)

    def _carry(self, stride: int) -> tuple[Experience, Numbers]:
        """Return new columns, with the pending decisions at the start of each cluster's part."""
        clusters, old = len(self._runs), self._columns
        columns = empty(self._spec, clusters * stride)
        next_row = np.arange(0, clusters * stride, stride)
        for index, run in enumerate(self._runs):
            first = index * stride
            waiting = np.zeros(_count_waiting(run), np.int64)
            waiting_rows(run.row, run.shape.parameters, waiting, first)
            if len(waiting) and old is not None:
                for field in fields(columns):
                    getattr(columns, field.name)[first : first + len(waiting)] = getattr(old, field.name)[waiting]
            next_row[index] += len(waiting)
        return columns, next_row


def _count_waiting(run: RunRow) -> int:
    """Return a cluster's number of decisions without a reward: the one in progress, of open micro-batches, and of
    batching delays."""
    c = run.cluster
    deciding = 1 if c.slot != NONE and not c.asked else 0
    return run.shape.micro_batches - c.free_micro_batches + deciding + c.pending_batching_delays


class _Room:
    """The memory for one chunk's sweep."""

    def __init__(self, clusters: int, spec: PolicySpec, layout: Layout) -> None:
        self.clusters, self.rows = np.zeros(clusters, np.int64), np.zeros(clusters, np.int64)
        self.codes = np.zeros((clusters, spec.servers), np.int64)
        self.uniforms = np.zeros((clusters, len(spec.head_sizes)))
        self.may_delay = np.zeros(clusters, np.bool_)
        self.scratch = np.zeros(layout.scratch, np.float32)
