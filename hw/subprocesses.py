"""Work in a separate process, which ends with it: its device contexts are closed, and its memory is given back."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from kit.errors import InputError, WorkError

Result = TypeVar("Result")
Tell = Callable[[int, int], None]
Work = Callable[[Tell], Result]
"""Reports the done part of a total; can be pickled."""


class Runner(Protocol):
    """Runs work."""

    def __call__(self, work: Work[Result], tell: Tell) -> Result:
        """Run it in any process."""
        ...


def here(work: Work[Result], tell: Tell) -> Result:
    """Run it in this process."""
    return work(tell)


def apart(work: Work[Result], tell: Tell) -> Result:
    """Run work in a new process.

    Raises:
        InputError, WorkError: the work raised it, unchanged.
        WorkError: it died, or raised anything else: that error's text.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_carry_out, args=(work, sender), daemon=True)
    process.start()
    sender.close()
    try:
        result: Result = _listened(receiver, tell)
        return result
    except EOFError:
        process.join()
        raise WorkError(f"the separate process ended unexpectedly (exit code {process.exitcode})") from None
    finally:
        receiver.close()
        process.terminate()
        process.join()


def _listened(receiver: Connection, tell: Tell) -> Any:
    while True:
        kind, value = receiver.recv()
        if kind == "done":
            return value
        if kind == "failed":
            raise value
        tell(*value)


def _carry_out(work: Work[Any], sender: Connection) -> None:
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the parent is gone, or got the signal, too
        try:
            reply = ("done", work(lambda *counts: sender.send(("at", counts))))
        except Exception as error:  # one that is not ours is sent as text, which any process can decode
            is_ours = isinstance(error, InputError | WorkError)
            reply = ("failed", error if is_ours else WorkError(f"{type(error).__name__}: {error}"))
        sender.send(reply)
