"""The same drawn jobs as a log of every format: what `jobs import` must find again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kit.random_streams import stream

START = np.datetime64("2023-01-01T00:00:00")
SACCT = (
    "JobIDRaw|User|Account|Partition|QOS|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|State|NNodes|ReqTRES|"
    "AllocTRES"
)
TYPES = ("T4", "MISC", "P100", "V100-16", "V100-32")


@dataclass(frozen=True)
class Jobs:
    """Drawn jobs; times in whole seconds from `START`."""

    submit_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    run_s: NDArray[np.int64]
    gpus: NDArray[np.int64]
    user: NDArray[np.int64]
    kind: NDArray[np.int64]
    limit_min: NDArray[np.int64]
    has_failed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def start_s(self) -> NDArray[np.int64]:
        return self.submit_s + self.wait_s

    @cached_property
    def end_s(self) -> NDArray[np.int64]:
        return self.start_s + self.run_s

    def status(self, good: str, bad: str) -> list[str]:
        return [bad if failed else good for failed in self.has_failed.tolist()]


def drawn(count: int, seed: int = 0) -> Jobs:
    rng = stream(seed, "logs")
    return Jobs(
        submit_s=np.sort(rng.integers(1000, 20_000_000, count)),
        wait_s=rng.integers(0, 5000, count),
        run_s=rng.integers(1, 90_000, count),
        gpus=rng.choice([1, 2, 4, 8], count),
        user=rng.integers(0, 300, count),
        kind=rng.integers(0, len(TYPES), count),
        limit_min=rng.choice([60, 120, 1440], count),
        has_failed=rng.random(count) < 0.3,
    )


def iso(seconds: NDArray[np.int64], between: str = "T") -> list[str]:
    return [text.replace("T", between) for text in np.datetime_as_string(START + seconds, unit="s").tolist()]


def sacct(jobs: Jobs) -> Iterator[str]:
    yield SACCT
    times = zip(iso(jobs.submit_s), iso(jobs.start_s), iso(jobs.end_s), jobs.run_s.tolist(), strict=True)
    ends = jobs.status("COMPLETED", "CANCELLED by 1000")
    for i, (submit, start, end, run_s) in enumerate(times):
        common, tres = (
            f"|u{jobs.user[i]}|lab{jobs.user[i] % 9}|p{jobs.kind[i]}|normal",
            f"billing=8,cpu={i % 64},node=1",
        )
        given = f"{tres},gres/gpu:a100={jobs.gpus[i]},gres/gpu={jobs.gpus[i]}"
        yield f"{i}{common}|{submit}|{submit}|{start}|{end}|{run_s}|{jobs.limit_min[i]}|{ends[i]}|1|{tres}|{given}"


def jobcomp(jobs: Jobs) -> Iterator[str]:
    times = zip(iso(jobs.submit_s), iso(jobs.start_s), iso(jobs.end_s), strict=True)
    ends = jobs.status("COMPLETED", "CANCELLED")
    for i, (submit, start, end) in enumerate(times):
        who = f'JobId={i} UserId=u{jobs.user[i]}(1000) GroupId=g(100) Name=train a|b "{i}" JobState={ends[i]}'
        when = f"Partition=p{jobs.kind[i]} TimeLimit={jobs.limit_min[i]} StartTime={start} EndTime={end}"
        where = (
            f"NodeList=n[1-2] NodeCnt=1 ProcCnt=8 WorkDir=/home/x y ReservationName= Tres=cpu=8,gres/gpu={jobs.gpus[i]}"
        )
        rest = f"Account=lab QOS=normal WcKey= Cluster=c SubmitTime={submit} EligibleTime={submit}"
        yield f"{who} {when} {where} {rest} DerivedExitCode=0:0 ExitCode=0:0 "


def swf(jobs: Jobs) -> Iterator[str]:
    yield "; Version: 2.2"
    yield f"; UnixStartTime: {int((START - np.datetime64(0, 's')).astype(int))}"
    for i, end in enumerate(jobs.status("1", "5")):
        when = f"{i:>6} {jobs.submit_s[i]:>9} {jobs.wait_s[i]:>6}   {jobs.run_s[i]}"
        rest = f"{60 * jobs.limit_min[i]} -1 {end}  {jobs.user[i]} 1 -1 {jobs.kind[i]} -1 -1 -1 "
        yield f"{when} {jobs.gpus[i]} -1 -1 {jobs.gpus[i]} {rest}"


def philly(jobs: Jobs) -> Iterator[str]:
    """As it is published: over many lines, every second job with two attempts, names with brackets and quotes."""
    times = zip(iso(jobs.submit_s, " "), iso(jobs.start_s, " "), iso(jobs.end_s, " "), strict=True)
    middles, ends = iso(jobs.start_s + jobs.run_s // 2, " "), jobs.status("Pass", "Killed")
    yield "["
    for i, (submit, start, end) in enumerate(times):
        detail = [{"ip": "m1", "gpus": [f"gpu{k}" for k in range(jobs.gpus[i])]}]
        spans = [(start, middles[i]), (middles[i], end)] if i % 2 else [(start, end)]
        job = {
            "status": ends[i],
            "vc": f'v"{{{jobs.kind[i]}',
            "jobid": f"j{i}",
            "attempts": [{"start_time": begin, "end_time": stop, "detail": detail} for begin, stop in spans],
            "submitted_time": submit,
            "user": f"u{jobs.user[i]}",
        }
        yield json.dumps(job, indent=4) + ("," if i + 1 < len(jobs) else "")
    yield "]"


def helios(jobs: Jobs) -> Iterator[str]:
    yield "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    times = zip(iso(jobs.submit_s, " "), iso(jobs.start_s, " "), iso(jobs.end_s, " "), strict=True)
    ends = jobs.status("COMPLETED", "CANCELLED")
    for i, (submit, start, end) in enumerate(times):
        who = f"{i},u{jobs.user[i]},vc{jobs.kind[i]},{jobs.gpus[i]},8,1,{ends[i]}"
        yield f"{who},{submit},{start},{end},{jobs.run_s[i]},{jobs.wait_s[i]}"


def pai_jobs(jobs: Jobs) -> Iterator[str]:
    for i, end in enumerate(jobs.status("Terminated", "Failed")):
        yield f"job{i},inst{i},u{jobs.user[i]},{end},{jobs.submit_s[i]}.0,{jobs.end_s[i]}.0"


def pai_tasks(jobs: Jobs) -> Iterator[str]:
    for i in range(len(jobs)):
        yield f"job{i},ps,1.0,Terminated,{jobs.start_s[i] + 1}.0,{jobs.end_s[i]}.0,600.0,29.3,,"
        last = f"{jobs.start_s[i]}.0,{jobs.end_s[i]}.0,600.0,29.3,100.0,{TYPES[jobs.kind[i]]}"
        yield f"job{i},worker,{jobs.gpus[i]}.0,Terminated,{last}"


def share_milli(jobs: Jobs, i: int) -> int:
    """Of its one GPU; two in three jobs of one GPU need not all of it."""
    return (1000, 470, 50)[i % 3] if jobs.gpus[i] == 1 else 1000


def openb(jobs: Jobs) -> Iterator[str]:
    asks = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
    yield f"name,{asks},qos,pod_phase,creation_time,deletion_time,scheduled_time"
    for i, end in enumerate(jobs.status("Succeeded", "Failed")):
        asked = f"{jobs.gpus[i]},{share_milli(jobs, i)},{TYPES[jobs.kind[i]]}|A10,LS,{end}"
        yield f"pod{i},12000,16384,{asked},{jobs.submit_s[i]},{jobs.end_s[i]},{jobs.start_s[i]}.0"


def rltune(jobs: Jobs, with_think_time: bool = False) -> Iterator[str]:
    for i in range(len(jobs)):
        when = f"{i},{jobs.submit_s[i]},{jobs.wait_s[i]},{jobs.run_s[i]},{jobs.gpus[i]}"
        who = f"-1,-1,-1,{60 * jobs.limit_min[i]},-1,2,{jobs.user[i]},1,-1,0,-1,-1"
        yield f"{when},{who}{',-1' if with_think_time else ''},-1,{jobs.kind[i]}"


def own_csv(jobs: Jobs) -> Iterator[str]:
    yield "submit_s;run_s;gpus;user;recorded_wait_s;status;requested_s;gpu_types;job_class;gpu_share"
    for i, end in enumerate(jobs.status("done", "killed")):
        when = f'{jobs.submit_s[i]};{jobs.run_s[i]};{jobs.gpus[i]};"u;{jobs.user[i]}";{jobs.wait_s[i]}'
        kind, share = jobs.kind[i], share_milli(jobs, i) / 1000
        yield f"{when};{end};{60 * jobs.limit_min[i]};{TYPES[kind]};c{kind};{share}"


WRITERS: dict[str, Callable[[Jobs], Iterator[str]]] = {
    "sacct": sacct,
    "jobcomp": jobcomp,
    "swf": swf,
    "philly": philly,
    "helios": helios,
    "alibaba-pai": pai_jobs,
    "openb": openb,
    "rltune": rltune,
    "csv": own_csv,
}


def write_log(folder: Path, name: str, jobs: Jobs) -> Path:
    path = folder / f"{name}.log"
    path.write_text("\n".join(WRITERS[name](jobs)) + "\n", encoding="utf-8")
    if name == "alibaba-pai":
        (folder / "tasks.csv").write_text("\n".join(pai_tasks(jobs)) + "\n", encoding="utf-8")
    return path
