"""Several routers on real executors: each in a process of its own, with the servers that are dealt to it.

The process of the command is the front end: it deals images, hears what has ended, and hands what a dead router leaves
to the others. A router's agents end with its process, so no server ever serves two.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time  # noqa: TID251 - one clock for all routers of this host
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from hw.networks.datasets import Dataset
from hw.networks.registry import ModelFile
from hw.router.front_end import FrontEnd
from hw.router.local_agents import die_with_parent, no_interrupts
from hw.router.merging import merged
from hw.router.share import Share
from kit.chance import derived_seed, stream
from kit.errors import InputError, WorkError
from policies.division import ROUTERS, Division, Territory
from policies.records import RunRecord
from scenarios.executors.run import Part, RealRun, RunObserver, carried_out, real_cluster, summarised
from scenarios.metrics.result import Result
from scenarios.world.world import World

_ENDING_S = 10.0


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a router's process has for all its runs."""

    world: World
    model: ModelFile | None
    dataset: Dataset | None


@dataclass(frozen=True, slots=True)
class _Order:
    """A run, as a router's process is told of it: `world` may have faults, or none; `plan`: what is dealt to it."""

    world: World
    wanted: RealRun
    plan: tuple[int, ...]


class RouterProcesses:
    """The routers of a cluster, each with its servers' agents, for any number of runs.

    Args:
        model, dataset: see `scenarios.executors.run`.
    """

    def __init__(self, world: World, model: ModelFile | None, dataset: Dataset | None) -> None:
        self._setting = _Setting(world, model, dataset)
        self._processes = [_RouterProcess(place) for place in range(division_of(world).count)]
        for process in self._processes:  # all of them open meanwhile
            process.tell(self._setting)

    def close(self) -> None:
        """End them, with their agents, in the middle of a run, too."""
        for process in self._processes:
            process.hang_up()
        until_s = time.monotonic() + _ENDING_S
        for process in self._processes:
            process.end(until_s - time.monotonic())

    def run(self, world: World, wanted: RealRun, observer: RunObserver) -> tuple[Result, RunRecord]:
        """One run, in real time; a router that was killed in an earlier one is there again.

        Raises:
            WorkError: a router could not be made ready, all have died, or one's clock is another one.
        """
        began_ns = time.monotonic_ns()
        for place, process in enumerate(self._processes):
            if not process.is_there:
                process.hang_up()
                process.end(_ENDING_S)
                self._processes[place] = _RouterProcess(place)
                self._processes[place].tell(self._setting)
        division = division_of(world)
        territory = Territory(division, derived_seed(wanted.seed, ROUTERS))
        run = world.run_spec(wanted.seed, duration_s=wanted.duration_s, scale=wanted.scale, end=wanted.end)
        arrivals_ns: list[int] = run.arrivals_ns.tolist()
        front_end = FrontEnd(
            arrivals_ns,
            division,
            territory,
            [process.words for process in self._processes],
            lambda place: self._processes[place].kill(),
            world.cluster.supervision,
            time.monotonic_ns,
            observer.say,
        )
        for place, process in enumerate(self._processes):
            process.tell(_Order(world, replace(wanted, keep_log=False), front_end.plan_of(place)))
        fates = front_end.carry_out()
        records = {place: self._processes[place].record() for place in territory.alive}
        record = merged(records, fates, territory.owner, arrivals_ns, division.count)
        return summarised(
            world, wanted, record, self._setting.dataset is None, (time.monotonic_ns() - began_ns) / 1e9
        ), record


class _RouterProcess:
    """One router's process, and both ends of what it is told."""

    def __init__(self, place: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._place = place
        self._orders, its_orders = context.Pipe()
        self.words, its_words = context.Pipe()
        self._process = context.Process(
            target=_main,
            args=(place, its_orders, its_words),
            name=f"slimsched-router-{place}",
        )
        with no_interrupts():
            self._process.start()
        its_orders.close()
        its_words.close()

    @property
    def is_there(self) -> bool:
        """Whether it can be told of a run."""
        return self._process.is_alive() and not self.words.closed

    def tell(self, word: _Setting | _Order) -> None:
        """Whoever has died meanwhile is missed when the run begins."""
        with suppress(ConnectionError):
            self._orders.send(word)

    def record(self) -> RunRecord:
        """Of the run that it has left."""
        try:
            record: RunRecord = self._orders.recv()
        except (EOFError, ConnectionError):
            raise WorkError(f"router {self._place} died as it told what it had done") from None
        return record

    def kill(self) -> None:
        """By force."""
        self._process.kill()
        self._process.join()

    def hang_up(self) -> None:
        """It ends when it sees this."""
        self._orders.close()
        self.words.close()

    def end(self, wait_s: float) -> None:
        """Wait for its end, which is brought about by force where it does not come."""
        self._process.join(max(0.0, wait_s))
        self.kill()


def division_of(world: World) -> Division:
    """Of a world with several routers."""
    division = world.division
    assert division is not None, "of several routers"
    return division


def _main(place: int, orders: Connection, words: Connection) -> None:
    """A router's process: its agents, and one run after the other until nobody orders any."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end's business
    observer = RunObserver(say=lambda text: print(f"router {place}: {text}", file=sys.stderr))
    try:
        with suppress(EOFError, ConnectionError):  # the front end hangs up where it wants no more
            _serve(place, orders, words, observer)
    except (InputError, WorkError) as error:
        observer.say(str(error))
        sys.exit(1)


def _serve(place: int, orders: Connection, words: Connection, observer: RunObserver) -> None:
    setting: _Setting = orders.recv()
    owned = [server for server, owner in enumerate(Territory(division_of(setting.world), 0).owner) if owner == place]
    with real_cluster(setting.world, setting.model, owned=owned) as cluster:
        while True:
            order: _Order = orders.recv()
            wanted, division = order.wanted, division_of(order.world)
            territory = Territory(division, derived_seed(wanted.seed, ROUTERS))
            rng = stream(wanted.seed, f"router:{wanted.router}")
            part = Part(
                Share(place, order.plan, words, division, territory),
                rng.spawn(division.count - 1)[place - 1] if place else rng,
            )
            orders.send(carried_out(order.world, cluster, setting.dataset, wanted, observer, part=part))


@contextmanager
def router_processes(world: World, model: ModelFile | None, dataset: Dataset | None) -> Iterator[RouterProcesses]:
    """The routers of a cluster; gone when the block ends."""
    with closing(RouterProcesses(world, model, dataset)) as processes:
        yield processes
