"""What is told when something must be compiled before it runs. It needs numba, so it is imported late.

Whether that is so is known when numba begins, and not before: what it keeps is for one kind of processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.event import Listener, install_listener

from kit.jit_cache import IS_ON, cache_folder, cache_problem
from scenarios.terminal.progress import Say

_PARTS = {
    "sim.compiled.rollout": "the engine's rollouts: 10 to 20 s",
    "sim.compiled": "the engine: 10 to 20 s",
    "jobs.sim": "the bound: some seconds",
    "policies.ppo": "the router: some seconds",
}


class _Teller(Listener):
    """Tells of each part once; what it calls is compiled with it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._depth = 0
        self._told: set[str] = set()

    def on_start(self, event: Any) -> None:
        """Tell of it before numba compiles a function; those that it calls come within."""
        if self._depth == 0:
            text = compiling_text(event.data["dispatcher"].py_func.__module__)
            if text not in self._told:
                self._told.add(text)
                self._say(text)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Note that a function is compiled."""
        self._depth -= 1


@contextmanager
def telling(say: Say) -> Iterator[None]:
    """Within it, what must be compiled is told in a line beforehand, and that `SLIMSCHED_JIT=0` forbids it, at once."""
    if not IS_ON:
        say("SLIMSCHED_JIT=0: nothing is compiled, and the compiled engine is no faster than the reference")
    with install_listener("numba:compile", _Teller(say)):
        yield


def compiling_text(module: str) -> str:
    """What is said before an entry of this module is compiled."""
    what = next((text for part, text in _PARTS.items() if module.startswith(part)), module)
    return f"compiling {what}; {cache_problem() or f'once, it is kept in {cache_folder()}'}"
