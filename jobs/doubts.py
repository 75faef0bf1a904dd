"""What is odd about a scenario of training jobs: warnings in words, and a refusal where no job could run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from jobs.case import JobsCase
from jobs.policies.cluster import Cluster
from kit.errors import InputError, nearest
from kit.units import NS_PER_S

_MOST_NAMED: Final = 5


def doubts(case: JobsCase) -> Iterator[str]:
    """What to know before a figure is believed."""
    cluster = case.scenario.cluster
    if case.load > 1:
        yield (
            f"the load is {case.load:.2f}: more work is submitted than {cluster.gpus:,} GPUs can do, so queues grow as "
            "long as the trace lasts, and waits say more of its length than of a policy"
        )
    yield from _idle_nodes(case)
    yield from _short_rounds(case)
    yield from _whole_for_shares(case)
    unknown = _classes_without_speeds(case)
    if unknown:
        yield f"no throughputs are known of {unknown}: such jobs run equally fast everywhere; a row `*` would be theirs"


def require_a_fit(case: JobsCase) -> None:
    """Before anything is run.

    Raises:
        InputError: no measured job fits into the cluster, by its size, its types or its virtual cluster.
    """
    cluster, rooms = Cluster(case.world.groups), dict[tuple[str, str], int]()
    jobs = case.jobs.rows(case.run_of(case.baseline).is_measured)
    for vc, types, gpus in zip(jobs.vc.tolist(), jobs.gpu_types.tolist(), jobs.gpus.tolist(), strict=True):
        if (vc, types) not in rooms:
            pools = cluster.open_to(vc, types.split("|") if types else ())
            rooms[vc, types] = max((pool.gpus for pool in pools), default=0)
        if gpus <= rooms[vc, types]:
            return
    missing = _missing_types(case)
    why = f"they ask for GPUs of type {_some(missing)}: {_type_remedy(case, missing)}" if missing else ""
    if not why:
        why = (
            f"the smallest asks for {jobs.gpus.min():,} GPUs, and {max(rooms.values()):,} is the most that one may have"
        )
    raise InputError(case.source, "cluster.nodes", f"no job of the trace fits into the cluster; {why}")


def _missing_types(case: JobsCase) -> list[str]:
    """What jobs ask for and no node has."""
    asked = {kind for text in set(case.jobs.gpu_types.tolist()) for kind in text.split("|") if kind}
    return sorted(asked - {group.type for group in case.scenario.cluster.nodes})


def _type_remedy(case: JobsCase, missing: list[str]) -> str:
    """The line to write: in nodes whose type no job asks for, else in new ones."""
    asked = {kind for text in set(case.jobs.gpu_types.tolist()) for kind in text.split("|") if kind}
    unasked = [place for place, group in enumerate(case.scenario.cluster.nodes) if group.type not in asked]
    where = f"in cluster.nodes.{unasked[0]}" if unasked else "in a new group of cluster.nodes"
    return f"write `type: {missing[0]}` {where}"


def _short_rounds(case: JobsCase) -> Iterator[str]:
    """Jobs that are stopped before their first checkpoint after a restart go on for ever without getting anywhere."""
    world = case.world
    needed_ns = world.restart_ns + world.checkpoint_ns
    for each in case.policies:
        knobs = each.policy.knobs
        if each.policy.is_preemptive and needed_ns and max(knobs.round_ns, knobs.least_run_ns) <= needed_ns:
            yield (
                f"{each.name}: a restart and the time to the first checkpoint are {needed_ns / NS_PER_S:g} s, and jobs "
                f"may be stopped after {max(knobs.round_ns, knobs.least_run_ns) / NS_PER_S:g} s: some may never get "
                "anywhere; give preemption.least_run_s more than that"
            )


def _whole_for_shares(case: JobsCase) -> Iterator[str]:
    """Not every policy knows of shares of a GPU."""
    if not (case.jobs.gpu_share < 1).any():
        return
    packs = case.world.variability is None
    if whole := [each.name for each in case.policies if not (packs and each.policy.packs_shares)]:
        yield f"jobs that ask for a share of a GPU hold a whole one under {_some(whole)}"


def _idle_nodes(case: JobsCase) -> Iterator[str]:
    """What jobs ask for that no node has, and nodes that no job may use."""
    groups = case.scenario.cluster.nodes
    jobs, kinds, vcs = case.jobs, {group.type for group in groups}, {group.vc for group in groups}
    if missing := _missing_types(case):
        may = np.array([not text or bool(kinds & set(text.split("|"))) for text in jobs.gpu_types.tolist()])
        lost = f"; {np.sum(~may):,} jobs may run nowhere, and are refused" if not may.all() else ""
        yield f"no node has GPUs of type {_some(missing)}, for which jobs ask{lost}; {_type_remedy(case, missing)}"
    if "" not in vcs:
        without = ~np.isin(jobs.vc.astype(str), sorted(vcs))
        if without.any():
            names = sorted(set(jobs.vc[without].tolist()))
            yield f"{without.sum():,} jobs are of VC {_some(names)}, which has no nodes, and are refused"
    if unused := sorted(vcs - {""} - set(jobs.vc.tolist())):
        yield f"no job is of VC {_some(unused)}, so its nodes stand idle; {nearest(unused[0], set(jobs.vc.tolist()))}"


def _classes_without_speeds(case: JobsCase) -> str:
    if case.scenario.cluster.throughputs is None:
        return ""
    return _some(sorted(set(case.jobs.job_class.tolist()) - set(case.world.speeds.by_class)))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(repr(name) for name in names[:_MOST_NAMED]) + more
