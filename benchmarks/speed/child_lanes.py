"""A prototype: an agent whose passes run in a child process of it. For `benchmarks.speed.lanes` only.

The agent keeps its loop, its scheduler and its port. The child has the model, the activations and the arenas. Between
them is a pair of sockets as between router and agent. The child runs all in its main thread, as it comes: nothing there
has to wake up twice. A thread of the agent reads what has ended and takes the scheduler's next step itself.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time  # noqa: TID251 - lanes live in real time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import torch

import hw.agent.torch_lanes
from benchmarks.speed.tiny import AGENT_NICENESS
from hw.agent.lanes import BatchBroken, BatchEnded, LaneEvent, LoadBroken, LoadEnded, Tell, UnloadEnded
from hw.agent.outfit import AgentSpec, Fitting
from hw.agent.torch_lanes import explain
from hw.agent.torch_outfit import TorchOutfit, sensor_of
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.router.agents import AgentHandle
from hw.router.local_agents import OneHost
from hw.transport.arena import Arena
from hw.transport.messages import FromAgent, Input, Measurement, Message, Move, Moved
from hw.transport.port import Port, PortClosedError, socket_pair
from policies.faults import Impairment
from policies.vocabulary import RunBatch


class Load(Message, frozen=True):
    instance: int
    segment: int
    width: float
    from_disk: bool


class Unload(Message, frozen=True):
    instance: int


class Run(Message, frozen=True):
    batch: RunBatch


class Take(Message, frozen=True):
    inputs: tuple[Input, ...]


class Forget(Message, frozen=True):
    requests: tuple[int, ...]


class Slow(Message, frozen=True):
    factor: float
    room_images: int | None


class Reset(Message, frozen=True):
    """Answered with `Answer`, like a measurement and a move."""


class Measure(Message, frozen=True):
    asked: Measurement


class Write(Message, frozen=True):
    move: Move


class Answer(Message, frozen=True):
    word: FromAgent | int


class Ran(Message, frozen=True):
    """An event: those of lanes have no tags of their own."""

    event: BatchEnded


class Broke(Message, frozen=True):
    event: BatchBroken


class Loaded(Message, frozen=True):
    event: LoadEnded


class NotLoaded(Message, frozen=True):
    event: LoadBroken


class Unloaded(Message, frozen=True):
    event: UnloadEnded


ToChild = Load | Unload | Run | Take | Forget | Slow | Reset | Measure | Write
FromChild = Answer | Ran | Broke | Loaded | NotLoaded | Unloaded
WORDS: dict[type, Any] = {
    BatchEnded: Ran, BatchBroken: Broke, LoadEnded: Loaded, LoadBroken: NotLoaded, UnloadEnded: Unloaded
}  # fmt: skip


class _Line:
    """An end that several threads may send from, and which waits for room."""

    def __init__(self, end: socket.socket, kind: object) -> None:
        self._port: Port[Any, Any] = Port(kind, end)
        self._lock = threading.Lock()
        self.receive, self.fileno = self._port.receive, self._port.fileno

    def send(self, message: Message) -> None:
        with self._lock:
            self._port.post(message)
            while not self._port.flush():
                select.select((), (self._port,), (), 1.0)


# --------------------------------------------------------------------------------------------------- in the agent


class ChildLanes:
    """`hw.agent.lanes.Lanes` by messages."""

    next_ns: int | None = None

    def __init__(self, line: _Line, tell: Tell) -> None:
        self._line = line
        self._tell = tell
        self._answers: SimpleQueue[FromAgent | int] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            select.select((self._line,), (), ())
            try:
                heard = cast("Sequence[FromChild]", self._line.receive())
            except PortClosedError:
                os._exit(1)
            for message in heard:
                if isinstance(message, Answer):
                    self._answers.put(message.word)
                else:
                    self._tell(message.event)

    def ask(self, message: Reset | Measure | Write) -> Any:
        self._line.send(message)
        return self._answers.get()

    def ring(self, now_ns: int) -> None: ...

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        self._line.send(Load(instance, segment, width, from_disk))

    def unload(self, instance: int) -> None:
        self._line.send(Unload(instance))

    def run(self, command: RunBatch) -> None:
        self._line.send(Run(command))

    def take(self, inputs: Sequence[Input]) -> None:
        self._line.send(Take(tuple(inputs)))

    def retain(self, requests: Sequence[int]) -> None:
        raise AssertionError("nothing is rejected here")

    def forget(self, requests: Iterable[int]) -> None:
        self._line.send(Forget(tuple(requests)))

    def move(self, message: Move) -> Moved:
        return cast(Moved, self.ask(Write(message)))

    def impair(self, impairment: Impairment) -> None:
        self._line.send(Slow(impairment.slow_factor, impairment.room_images))

    def reset(self) -> int:
        return cast(int, self.ask(Reset()))


@dataclass(frozen=True, slots=True)
class ChildOutfit:
    """Travels to the agent's process, which starts the child."""

    device: DeviceSpec
    model: Path
    arenas: tuple[Arena, ...]
    own: int

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        if self.device.cores:
            os.sched_setaffinity(0, self.device.cores)
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.device.threads)}
        end, remote = socket_pair()
        fds = [arena._fd for arena in self.arenas]
        given = {
            "device": asdict(self.device), "model": str(self.model), "own": self.own, "end": remote.fileno(),
            "arenas": [[fd, arena.size_bytes] for fd, arena in zip(fds, self.arenas, strict=True)],
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.speed.child_lanes", json.dumps(given)]
        subprocess.Popen(command, pass_fds=(remote.fileno(), *fds), env=environment)
        os.nice(AGENT_NICENESS)  # only now: the child does so itself
        remote.close()
        lanes = ChildLanes(_Line(end, FromChild), tell)
        return Fitting(
            lanes=lanes,
            sensor=partial(sensor_of, self.device),
            measure=lambda asked: cast(FromAgent, lanes.ask(Measure(asked))),
            explain=explain,
            context_bytes=0,
            execution=self.device.execution(),
            computes_here=len(self.device.cores) == 1,
        )


class ChildHost(OneHost):
    """Agents of this host, whose lanes are children of theirs."""

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        outfit = spec.outfit
        assert isinstance(outfit, TorchOutfit)
        child = ChildOutfit(outfit.device, outfit.model.path, outfit.arenas, outfit.own)
        return super().start(agent, AgentSpec(spec.name, child, spec.service))


# --------------------------------------------------------------------------------------------------- in the child


class _Inline:
    """Takes the place of a lane's thread: runs at once."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, job: Callable[[], None]) -> None:
        with torch.inference_mode():
            job()

    def end(self) -> None: ...

    def stop(self) -> None: ...


def _arena(fd: int, size_bytes: int) -> Arena:
    arena = Arena.__new__(Arena)
    arena.__setstate__({"size_bytes": size_bytes, "fd": SimpleNamespace(detach=lambda: fd)})
    return arena


def main(given: dict[str, Any]) -> None:
    """The child's process; it ends with the agent."""
    setattr(hw.agent.torch_lanes, "Lane", _Inline)  # noqa: B010 - it is nobody else's to replace
    line = _Line(socket.socket(fileno=given["end"]), ToChild)
    device = DeviceSpec(**{**given["device"], "cores": tuple(given["device"]["cores"])})
    arenas = tuple(_arena(fd, size_bytes) for fd, size_bytes in given["arenas"])

    def tell(event: LaneEvent) -> None:
        line.send(WORDS[type(event)](event))

    fitting = TorchOutfit(device, ModelFile(Path(given["model"])), arenas, given["own"]).fit(tell, time.monotonic_ns)
    try:
        while True:
            select.select((line,), (), ())
            for message in line.receive():
                _obey(fitting, cast(ToChild, message), line)
    except PortClosedError:
        os._exit(0)


def _obey(fitting: Fitting, message: ToChild, line: _Line) -> None:
    lanes = fitting.lanes
    match message:
        case Run(batch):
            lanes.run(batch)
        case Take(inputs):
            lanes.take(inputs)
        case Forget(requests):
            lanes.forget(requests)
        case Load(instance, segment, width, from_disk):
            lanes.load(instance, segment, width, from_disk)
        case Unload(instance):
            lanes.unload(instance)
        case Slow(factor, room_images):
            lanes.impair(Impairment(factor, room_images))
        case Reset():
            line.send(Answer(lanes.reset()))
        case Measure(asked):
            line.send(Answer(fitting.measure(asked)))
        case Write(move):
            moved = lanes.move(move)
            assert moved is not None, "these copy at once"
            line.send(Answer(moved))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
