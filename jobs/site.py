"""Inference of a site's policy from its log: the policy that Slurm runs whose simulated waits are nearest the log's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal

import numpy as np
from jinja2 import Environment, PackageLoader

from jobs.case import JobsCase, read_case, require_a_fit
from jobs.comparing import SAME_S, log_error, run_policy
from jobs.figures import NEAR, by_job
from jobs.learning.learned import NamedPolicy
from jobs.policies.cluster import NodeGroup
from jobs.policies.history import HISTORY, REQUESTED
from jobs.policies.slurm import SLURM
from jobs.slurm_conf import SlurmConf
from jobs.spec import SCHEMA, JobsScenario
from jobs.trace import JobTrace
from kit import strict
from kit.errors import InputError
from kit.parallel import each

MOST_JOBS: Final = 3500  # with 1,500, 3 of 10 generated logs were attributed to another policy; with 3,500 none
MOST_WAITING: Final = 20.0  # jobs on average: reservations for more of them take minutes
FEW_JOBS: Final = 300  # a log this short, however many jobs wait
_OVERFULL_SHARE: Final = 0.1  # of the starts; requeued jobs, with all their attempts in one run time, cause a few


@dataclass(frozen=True, slots=True)
class Site:
    """The result of the inference.

    Attributes:
        case: whether the log determines a policy, or why it does not.
        errors: by policy, the nearest first (`comparing.log_error`); empty if nothing was simulated.
        busy_gpus: the most that were busy at once in the log's last part.
        limited_share: share of the jobs with a time limit; backfilling uses limits if all have one.
        conf: the content of `slurm.conf`, if it was read.
    """

    case: Literal["near", "far", "no waits", "nobody waited", "too few nodes"]
    errors: Mapping[str, float]
    busy_gpus: float
    limited_share: float
    conf: SlurmConf | None = None

    @property
    def policy(self) -> str:
        """The nearest policy; if the log determines none, that of `slurm.conf`, or Slurm's default, backfilling."""
        return next(iter(self.errors)) if self.case == "near" else self.told or f"fifo-easy-{self.estimate}"

    @property
    def told(self) -> str:
        """The policy of `slurm.conf`, with the available estimate of run times; empty if none was read."""
        return "" if self.conf is None else self.conf.policy.replace(REQUESTED, self.estimate)

    @property
    def estimate(self) -> str:
        """The estimate of run times for backfilling."""
        return REQUESTED if self.limited_share == 1 else HISTORY


def site_of(
    trace: JobTrace,
    path: Path,
    nodes: tuple[NodeGroup, ...],
    jobs: int,
    conf: SlurmConf | None = None,
    on_policy: Callable[[int, int], object] = lambda done, count: None,
) -> Site:
    """Simulate the log's last jobs under each policy that Slurm runs, from the log's running and waiting jobs then.

    Args:
        path: the trace's file.
        jobs: number of processes.
        conf: settings whose policy is one of them, with its numbers.
        on_policy: is called with the number of finished policies, and of all.

    Raises:
        InputError: no job fits on these nodes.
    """
    untold = Site("no waits", {}, 0.0, float(np.isfinite(trace.requested_s).mean()), conf)
    waits_s = trace.recorded_wait_s[-MOST_JOBS:]
    if np.isfinite(waits_s).sum() < 2:
        return untold
    gpus, from_s = sum(group.nodes * group.gpus for group in nodes), float(trace.submit_s[-MOST_JOBS:][0])
    busy_gpus, overfull_share = busy_of(trace, gpus, from_s)
    untold = replace(untold, busy_gpus=busy_gpus)
    if overfull_share > _OVERFULL_SHARE:
        return replace(untold, case="too few nodes")
    span_s = float(trace.submit_s[-1]) - from_s
    are_few = float(np.nansum(waits_s)) <= MOST_WAITING * span_s  # Little's law
    can_tell = are_few or len(waits_s) <= FEW_JOBS or not untold.told.endswith("conservative")
    known = [name.replace(REQUESTED, untold.estimate) for name in SLURM if are_few or not name.endswith("conservative")]
    names = list(dict.fromkeys([*filter(None, [untold.told] if can_tell else []), *known]))
    case = _case(trace, path, nodes, names, conf)
    require_a_fit(case)
    found = dict[int, float | None]()
    on_policy(0, len(names))
    for place, error in each(_error, case, case.policies, jobs):
        found[place] = error
        on_policy(len(found), len(names))
    errors = {name: error for place, name in enumerate(names) if (error := found[place]) is not None}
    if not errors:
        return replace(untold, case="nobody waited")
    nearest = dict(sorted(errors.items(), key=itemgetter(1)))
    return replace(untold, case="near" if min(errors.values()) <= NEAR else "far", errors=nearest)


def busy_of(trace: JobTrace, gpus: int, from_s: float = 0.0) -> tuple[float, float]:
    """Return the most GPUs busy at once in the log, and the share of its last starts at which more were than `gpus`.

    If that share is not small, the log's cluster had more nodes.
    """
    has_start = np.isfinite(trace.recorded_start_s)
    begun_s = np.where(has_start, trace.recorded_start_s, trace.submit_s + trace.recorded_wait_s)
    known = np.isfinite(begun_s)
    start_s, used = begun_s[known], trace.gpus_used[known]
    end_s = start_s + trace.run_s[known] - SAME_S  # logs have whole seconds: a job may get its GPUs as another ends
    is_late = np.sort(start_s) >= from_s
    if not is_late.any():
        return 0.0, 0.0
    started, ended = np.argsort(start_s), np.argsort(end_s)
    over = np.concatenate([[0.0], np.cumsum(used[ended])])[np.searchsorted(end_s[ended], start_s[started], "right")]
    busy = (np.cumsum(used[started]) - over)[is_late]
    return float(busy.max()), float((busy > gpus).mean())


def _case(
    trace: JobTrace, path: Path, nodes: tuple[NodeGroup, ...], policies: list[str], conf: SlurmConf | None
) -> JobsCase:
    """Build a case of the last jobs, from the log's state then if it has all starts; a tenth of it is not measured."""
    from_s = float(trace.submit_s[-MOST_JOBS:][0])
    has_starts = np.isfinite(trace.recorded_start_s[trace.submit_s < from_s]).all()
    groups = [{"count": each.nodes, "gpus": each.gpus, "type": each.gpu_type, "vc": each.vc} for each in nodes]
    raw = {
        "schema": SCHEMA,
        "name": "site",
        "trace": str(path),
        "cluster": {"nodes": groups},
        "window": {"from_s": from_s},
        "begin": "snapshot" if from_s > 0 and has_starts else "empty",
        "warmup_s": (float(trace.submit_s[-1]) - from_s) / 10,
        "policies": policies,
        **({} if conf is None else {"multifactor": conf.multifactor, "slurm": {"bf_interval_s": conf.bf_interval_s}}),
    }
    return read_case(strict.validate(JobsScenario, raw, str(path)), str(path))


def _error(case: JobsCase, named: NamedPolicy) -> float | None:
    return log_error(case, by_job(run_policy(case, named), case.scenario.cluster.gpus))


# -------------------------------------------------------------------------------------------------------------- starter
# A first scenario for a trace, for users to edit, with a comment at each choice.


_NODES: Final = re.compile(r"(?P<count>\d{1,7})x(?P<gpus>\d{1,4})(?::(?P<type>[^:=]+))?(?:=(?P<vc>.+))?")
_MAX_NAMED: Final = 5


def nodes_of(text: str) -> NodeGroup:
    """Parse `64x8`, `64x8:v100`, `16x4:a100=prod`: nodes x GPUs of each, their type (empty: unknown), their VC.

    Raises:
        InputError: it has none of these forms.
    """
    match = _NODES.fullmatch(text)
    if match is None or not int(match["count"]) or not int(match["gpus"]):
        raise InputError("--nodes", "", f"{text!r:.80} is no group of nodes; such are 64x8, 64x8:v100, 16x4:a100=VC")
    return NodeGroup(int(match["count"]), int(match["gpus"]), match["type"] or "", match["vc"] or "")


def typed(nodes: tuple[NodeGroup, ...], trace: JobTrace) -> tuple[NodeGroup, ...]:
    """Give groups without a type the only one that jobs of the trace request.

    Raises:
        InputError: a group names no type and the trace has several; or no group has a type that jobs ask for, and no
            job does without.
    """
    kinds = sorted(trace.asked_types)
    if not kinds:
        return tuple(replace(group, gpu_type=group.gpu_type or "gpu") for group in nodes)
    first = nodes[0]
    such = ", ".join(f"--nodes {first.nodes}x{first.gpus}:{kind}" for kind in kinds[:_MAX_NAMED])
    such += " and so on" if len(kinds) > _MAX_NAMED else ""
    if len(kinds) > 1 and not all(group.gpu_type for group in nodes):
        raise InputError("--nodes", "", f"jobs ask for several types of GPUs: say which type the nodes have: {such}")
    groups = tuple(replace(group, gpu_type=group.gpu_type or kinds[0]) for group in nodes)
    named = {group.gpu_type for group in groups}
    if "" not in trace.gpu_types and not named & set(kinds):
        types = ", ".join(map(repr, sorted(named)))
        raise InputError("--nodes", "", f"no job asks for GPUs of type {types}, and each asks for some; write {such}")
    return groups


def starter(trace: JobTrace, path: Path, nodes: tuple[NodeGroup, ...], site: Site) -> str:
    """Return the scenario's text; its baseline is the site's inferred policy.

    Raises:
        InputError: the file's name is not valid as a scenario's name.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.name.partition(".")[0]).strip("-._")
    if not name:
        raise InputError(
            str(path), "", "its name makes no name of a scenario; rename it, such as cluster.jobtrace.parquet"
        )
    templates = Environment(loader=PackageLoader("jobs"), trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    templates.filters["quoted"] = _quoted
    facts = {"name": name, "trace": str(path), "nodes": nodes, "warmup": _warmup(trace), "site": site}
    return templates.get_template("starter.yaml.j2").render(facts) + "\n"


def _warmup(trace: JobTrace) -> str:
    """Return a tenth of the trace, a week at most."""
    tenth_s = min(float(trace.submit_s[-1]) / 10, 7 * 86400.0)
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if tenth_s >= unit_s:
            return f"{round(tenth_s / unit_s)}{unit}"
    return f"{int(tenth_s)}s"


def _quoted(text: str) -> str:
    """Return a text as quoted YAML, whatever its content."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", text) else "'" + text.replace("'", "''") + "'"
