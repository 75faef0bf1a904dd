"""The definitions of backfilling carried out literally, second by second: what the scheduler must come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Free = list[int]
Place = list[tuple[int, int]]


@dataclass
class Job:
    number: int
    submit: int
    run: int
    gpus: int
    estimate: int
    nodes: int = 1
    start: int = -1
    place: Place = field(default_factory=list)
    promised: int | None = None  # the start of its first reservation

    def end(self) -> int:
        return self.start + self.run

    def foretold(self, now: int) -> int:
        end = self.start + self.estimate
        return end if end > now else now + 1


def fit(free: Free, job: Job, size: int) -> Place | None:
    """Best fit: evenly, the larger parts first, where several nodes are asked for; else as few as can be."""
    if job.nodes > 1:
        return even(free, job.gpus, max(job.nodes, -(-job.gpus // size)))
    whole, rest = divmod(job.gpus, size)
    empty = [node for node, left in enumerate(free) if left == size][:whole]
    if len(empty) < whole:
        return None
    place = [(node, size) for node in empty]
    if rest:
        able = [(left, node) for node, left in enumerate(free) if left >= rest and node not in empty]
        if not able:
            return None
        place.append((min(able)[1], rest))
    return sorted(place)


def even(free: Free, gpus: int, nodes: int) -> Place | None:
    place: Place = []
    for part in sorted((gpus // nodes + (number < gpus % nodes) for number in range(nodes)), reverse=True):
        able = [(left, node) for node, left in enumerate(free) if left >= part and node not in dict(place)]
        if not able:
            return None
        place.append((min(able)[1], part))
    return sorted(place)


def minus(free: Free, place: Place) -> Free:
    left = list(free)
    for node, gpus in place:
        left[node] -= gpus
    return left


def free_at(time: int, now: int, running: list[Job], free: Free) -> Free:
    left = list(free)
    for job in running:
        if job.foretold(now) <= time:
            left = [gpus + sum(used for node, used in job.place if node == at) for at, gpus in enumerate(left)]
    return left


def easy(now: int, queue: list[Job], running: list[Job], free: Free, size: int) -> list[Job]:
    """The jobs that start now, with their places."""
    started: list[Job] = []
    head = None
    for position, job in enumerate(queue):
        place = fit(free, job, size)
        if place is None:
            head, behind = job, queue[position + 1 :]
            break
        job.start, job.place, free = now, place, minus(free, place)
        started.append(job)
    if head is None:
        return started
    at = now + 1
    while (place := fit(free_at(at, now, running + started, free), head, size)) is None:
        at += 1
    head.promised = at if head.promised is None else head.promised
    extra = minus(free_at(at, now, running + started, free), place)
    for job in behind:
        is_long = now + job.estimate > at
        place = fit([min(pair) for pair in zip(free, extra, strict=True)] if is_long else free, job, size)
        if place is not None:
            job.start, job.place, free = now, place, minus(free, place)
            extra = minus(extra, place) if is_long else extra
            started.append(job)
    return started


def conservative(now: int, queue: list[Job], running: list[Job], free: Free, size: int) -> list[Job]:
    """The same: every job is promised the earliest time that those before it leave."""
    horizon = (
        now + 1 + sum(job.estimate for job in queue) + max([job.foretold(now) - now for job in running], default=0)
    )
    plan = {time: free_at(time, now, running, free) for time in range(now, horizon + 1)}
    started = []
    for job in queue:
        for at in range(now, horizon + 1):
            span = range(at, min(at + job.estimate, horizon + 1))
            place = fit([min(plan[time][node] for time in span) for node in range(len(free))], job, size)
            if place is not None:
                break
        else:
            raise AssertionError("no time was found")
        for time in span:
            plan[time] = minus(plan[time], place)
        job.promised = at if job.promised is None else job.promised
        if at == now:
            job.start, job.place = now, place
            started.append(job)
    return started


Rule = Callable[[int, list[Job], list[Job], Free, int], list[Job]]


def simulate(jobs: list[Job], nodes: int, size: int, rule: Rule, key: Callable[[Job], tuple[float, int]]) -> list[Job]:
    """From second to second until all have started; decisions only where something arrives or ends."""
    free, running, now = [size] * nodes, list[Job](), 0
    while any(job.start < 0 for job in jobs):
        ended = [job for job in running if job.end() <= now]
        running = [job for job in running if job.end() > now]
        for job in ended:
            free = minus(free, [(node, -gpus) for node, gpus in job.place])
        if ended or any(job.submit == now for job in jobs):
            queue = sorted((job for job in jobs if job.submit <= now and job.start < 0), key=key)
            for job in rule(now, queue, running, free, size):
                free = minus(free, job.place)
                running.append(job)
        now += 1
    return jobs
