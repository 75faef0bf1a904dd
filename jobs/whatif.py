"""What would another cluster do? One policy on the same jobs before and after a change, paired job by job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jobs.case import JobsCase
from jobs.comparing import against, run_policy
from jobs.figures import figures, job_columns
from jobs.resampling import Blocks
from jobs.sim.record import JobsRecord
from kit.errors import InputError
from kit.parallel import Jobs, each
from kit.units import NS_PER_S

SCHEMA: Final = "slimsched.jobswhatif/1"


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The scenario as it is, and as it would be; with the same policies, in the same order."""

    now: JobsCase
    then: JobsCase

    def __post_init__(self) -> None:
        if len(self.now.jobs) != len(self.then.jobs):
            problem = f"the change makes {len(self.then.jobs):,} jobs of {len(self.now.jobs):,}"
            raise InputError(self.now.source, "window", f"{problem}: no job could be set against itself")

    def document(self, jobs: Jobs) -> dict[str, Any]:
        """Both runs of each policy in numbers, and the change: as a share with its interval, and as a difference."""
        tasks = [(is_then, place) for is_then in (False, True) for place in range(len(self.now.policies))]
        made = dict(each(_run, self, tasks, jobs))
        records = {task: made[place] for place, task in enumerate(tasks)}
        rows = []
        for place, named in enumerate(self.now.policies):
            now, then = records[False, place], records[True, place]
            rows.append({"policy": named.name, **self._change(now, then)})
        return {
            "schema": SCHEMA,
            "scenario": self.now.scenario.name,
            "jobs": len(self.now.jobs),
            "days": self.now.jobs.days,
            "run_cv2": self.now.jobs.run_cv2,
            "gpus": [case.scenario.cluster.gpus for case in (self.now, self.then)],
            "load": [case.load for case in (self.now, self.then)],
            "policies": rows,
        }

    def _change(self, now: JobsRecord, then: JobsRecord) -> dict[str, Any]:
        gpus = [case.scenario.cluster.gpus for case in (self.now, self.then)]
        before, after = job_columns(now, gpus[0]), job_columns(then, gpus[1])
        blocks = Blocks.of(now.submit_ns / NS_PER_S)
        return {
            "now": figures(now, gpus[0]),
            "then": figures(then, gpus[1]),
            "change": against(after, before, blocks),
            "block_s": blocks.block_s,
        }


def _run(case: WhatIf, task: tuple[bool, int]) -> JobsRecord:
    is_then, place = task
    chosen = case.then if is_then else case.now
    return run_policy(chosen, chosen.policies[place])
