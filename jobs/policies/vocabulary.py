"""The words of the training jobs' scheduler: what happens to jobs and nodes, and what is to be done about it.

As in `policies.vocabulary`: events and the time go into a core (`jobs.policies.scheduler.JobScheduler`), commands come
out. Everything is frozen and made of numbers and names. Times are integer nanoseconds.

Conventions
    job       0, 1, ... in the order of submission; a job's number breaks every tie
    node      0..N-1
    work_ns   run time at the reference type, alone on its GPUs
"""

from __future__ import annotations

import msgspec

Allocation = tuple[tuple[int, int], ...]  # (node, GPUs there), ascending by node
Slots = tuple[tuple[int, ...], ...]  # which GPUs, for each node of an allocation


class JobArrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job was submitted. How long it will run is not known, and is not here.

    Attributes:
        gpus: as many at once, all or none.
        gpu_types: those that it may run on; empty for any.
        requested_ns: the time limit that its user asked for; None where there is none.
        job_class: the row of its speeds by GPU type.
        submit_ns: when it was submitted; not later than now.
        done_ns: work that it has behind it, where it ran before the scheduler knew it.
        gpu_milli: how much of its one GPU it needs, in thousandths; 1000 for all of it, as jobs of several have.
    """

    job: int
    gpus: int
    submit_ns: int
    user: str = ""
    vc: str = ""
    gpu_types: tuple[str, ...] = ()
    requested_ns: int | None = None
    job_class: str = ""
    done_ns: int = 0
    gpu_milli: int = 1000


class JobEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job has done its work: its GPUs are free."""

    job: int


class Preempted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job stands still and waits again: it was asked to (`PreemptJob`), or a node under it died.

    Attributes:
        done_ns: the work that is kept (its last checkpoint).
    """

    job: int
    done_ns: int


class NodeDown(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node died. `Preempted` follows for each job that had GPUs there."""

    node: int


class NodeUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node is in service again, with all its GPUs free."""

    node: int


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The time that `JobScheduler.next_wake_ns` asked for has come, and nothing else happens at this instant."""


class StartJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start a job on these GPUs, all at once; as soon as they are free, where an earlier command frees them.

    Attributes:
        slots: which GPUs of each node, where they are not equally fast; else empty.
    """

    job: int
    allocation: Allocation
    slots: Slots = ()


class PreemptJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop a job and answer with `Preempted`; its GPUs go to a job that a later command of the same list starts."""

    job: int


class RefuseJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job can never run here, for a reason in words."""

    job: int
    reason: str


JobEvent = JobArrived | JobEnded | Preempted | NodeDown | NodeUp | Wake
JobCommand = StartJob | PreemptJob | RefuseJob
