"""Agents on this host: each a process of its own, joined by a pair of sockets; all map the same arenas.

Processes are spawned, never forked (CUDA). An agent ignores Ctrl-C and leaves when the router's end of its port is
gone, so that nothing is left behind however the router's process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import Final

from hw.agent.outfit import AgentSpec
from hw.agent.process import Agent
from hw.router.agents import AgentHandle
from hw.transport.arena import Arena
from hw.transport.messages import FromAgent, Refused, ToAgent
from hw.transport.port import AgentEnd, PortBrokenError, PortClosedError, RouterEnd, socket_pair
from hw.transport.step_log import EpochLog, StepLog

_ENDING_S: Final = 5.0
_KILLING_S: Final = 1.0  # a killed process is gone within milliseconds
_PR_SET_PDEATHSIG: Final = 1
_SWITCH_S: Final = 5e-4  # a thread that wants to answer must not wait 5 ms (Python's default) for one that computes


def die_with_parent() -> None:
    """An agent that is stopped does not see the end of its port: on Linux the system kills it with who started it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(spec: AgentSpec, end: socket.socket, log: EpochLog) -> None:
    """The agent's process."""
    die_with_parent()
    live(spec, AgentEnd(ToAgent, end), log)


def live(spec: AgentSpec, port: AgentEnd, log: StepLog, fence: Callable[[int], object] = lambda _: None) -> None:
    """An agent's whole life, in a process of its own, which ends with it; where it can't begin this returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        agent = Agent(port, spec.outfit, spec.service, log, fence=fence)
    except Exception as error:
        port.post(Refused("internal_error", f"{type(error).__name__}: {error}"))
        with contextlib.suppress(PortClosedError):
            port.flush()
        return
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # what is here lives as long as the process: no collection has to look at it again
    code = 0
    try:
        agent.loop()
    except PortBrokenError as error:
        print(f"agent {spec.name}: {error}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # threads may be in the middle of a pass: nothing of it is wanted


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """What is started meanwhile hears no Ctrl-C until it says so: it is the router's business, even while it opens."""
    resource_tracker.ensure_running()  # it would start with the first process, and let interrupts through after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class AgentProcess(AgentHandle):
    """An agent in a process of its own on this host.

    Args:
        spec: what to start.
        hands: starts it beside the caller (a spawn takes milliseconds, and as long as its child takes to read what it
            is given); its thread must outlive the agent, which dies with it. None: it is started here.
        wait: whether to return only when it is ready (else call `wait_until_ready`).

    Raises:
        WorkError: it could not start, and why.
    """

    def __init__(self, spec: AgentSpec, hands: Executor | None = None, *, wait: bool = True) -> None:
        end, remote = socket_pair()
        super().__init__(spec, RouterEnd(FromAgent, end), shares_clock=True)
        self._log = EpochLog()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_main, args=(spec, remote, self._log), name=f"slimsched-{spec.name}", daemon=True
        )
        self._hands = hands  # whose thread must not end before
        self._start = None if hands is None else hands.submit(self._begin, remote)
        if hands is None:
            self._begin(remote)
        if wait:
            self.wait_until_ready()

    def _begin(self, remote: socket.socket) -> None:
        """Where it fails the port ends, as with an agent that dies at once."""
        with contextlib.closing(remote), no_interrupts():
            self._process.start()

    def _has_begun(self) -> bool:
        """Whether there is, or was, a process; one that is being started is waited for, and one that isn't never is."""
        if self._start is not None and not self._start.cancel():
            self._start.exception()
        return self._process.pid is not None

    @property
    def pid(self) -> int:
        """See `AgentHandle`: 0 before it has begun."""
        return self._process.pid or 0

    def log(self) -> Callable[[], bytes]:
        """See `AgentHandle`."""
        return self._log.read

    def send_signal(self, number: signal.Signals) -> None:
        """See `AgentHandle`."""
        assert self.pid, "it has not begun, and 0 is everybody"
        os.kill(self.pid, number)

    def kill(self) -> None:
        """See `AgentHandle`."""
        if self._has_begun():
            self._process.kill()
            self._process.join(_KILLING_S)  # from here on it writes to nobody's arena
        self.port.close()

    def close(self) -> None:
        """See `AgentHandle`."""
        self.say_goodbye()
        if self._has_begun():
            self._process.join(_ENDING_S)
            for end in (self._process.terminate, self._process.kill):
                if self._process.is_alive():
                    end()
                    self._process.join(_ENDING_S)
        self._log.close()

    def _how_it_died(self) -> str:
        if not self._has_begun():
            error = None if self._start is None or self._start.cancelled() else self._start.exception()
            return f"it could not be started: {error}" if error else "it was ended before it began"
        self._process.join(_KILLING_S)
        return f"exit code {self._process.exitcode}"


@contextlib.contextmanager
def start_agents(specs: Sequence[AgentSpec]) -> Iterator[list[AgentProcess]]:
    """Start agents side by side; all have ended when the context ends."""
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(AgentProcess(spec, wait=False)) for spec in specs]
        for agent in agents:
            agent.wait_until_ready()
        yield agents


class OneHost:
    """Agents that are processes of this host: all map the same arenas."""

    def __init__(self) -> None:
        self._arenas: tuple[Arena, ...] = ()
        self._hands: Executor | None = None

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """See `Carrier`."""
        self._arenas = tuple(Arena(size_bytes) for _ in range(count))
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="agents")
        return self._arenas

    def arenas_of(self, agent: int) -> tuple[Arena, ...]:
        """See `Carrier`."""
        return self._arenas

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        """See `Carrier`."""
        return AgentProcess(spec, self._hands, wait=False)

    def close(self) -> None:
        """See `Carrier`."""
        if self._hands is not None:
            self._hands.shutdown()
        for arena in self._arenas:
            arena.close()
