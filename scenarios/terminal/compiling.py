"""The message when something must be compiled before it runs. It needs numba, so it is imported late.

The need is known when numba begins, and not before: its cache is for one kind of processor.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from numba.core.event import Listener, install_listener

from kit.jit_cache import IS_ON, cache_folder, cache_problem
from scenarios.terminal.progress import Say

_PARTS = {
    "sim.compiled.rollout": "the engine's rollouts: 10 to 20 s",
    "sim.compiled": "the engine: 10 to 20 s",
    "jobs.wait_bound": "the bound: some seconds",
    "policies.ppo": "the router: some seconds",
}


GRACE_S: Final = 2.0


class _Teller(Listener):
    """Reports each part once, and lets Ctrl-C end its compilation; what it calls is compiled with it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._depth = 0
        self._told: set[str] = set()
        self._signals: _Signals | None = None

    def on_start(self, event: Any) -> None:
        """Report it before numba compiles a function; those that it calls come within."""
        if self._depth == 0:
            if threading.current_thread() is threading.main_thread():
                self._signals = _Signals()
            text = compiling_text(event.data["dispatcher"].py_func.__module__)
            if text not in self._told:
                self._told.add(text)
                self._say(text)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Note that a function is compiled."""
        self._depth -= 1
        if self._depth == 0 and self._signals is not None:
            self._signals.close()
            self._signals = None


class _Signals:
    """Ends the process `GRACE_S` after a SIGINT, until it is closed.

    Python acts on a signal between two of its instructions, and one call of LLVM lasts up to 20 s.
    """

    def __init__(self) -> None:
        self._sender, receiver = socket.socketpair()
        self._sender.setblocking(False)
        self._before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_end_late, args=(receiver,), daemon=True).start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._sender.close()


def _end_late(signals: socket.socket) -> None:
    with signals:
        while (number := signals.recv(1)) and number[0] != signal.SIGINT:
            pass
        if number:
            signals.settimeout(GRACE_S)
            try:
                while signals.recv(1):
                    pass
            except TimeoutError:
                os.write(2, b"\nslimsched: interrupted while compiling\n")
                os._exit(130)


@contextmanager
def telling(say: Say) -> Iterator[None]:
    """Print a line before anything is compiled, or, at once, that `SLIMSCHED_JIT=0` forbids it."""
    if not IS_ON:
        say("SLIMSCHED_JIT=0: nothing is compiled, and the compiled engine is as slow as the reference")
    with install_listener("numba:compile", _Teller(say)):
        yield


def compiling_text(module: str) -> str:
    """Return the message before an entry of this module is compiled."""
    subject = next((text for part, text in _PARTS.items() if module.startswith(part)), module)
    return f"compiling {subject}; {cache_problem() or f'once, it is kept in {cache_folder()}'}"
