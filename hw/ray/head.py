"""Whether the head of a Ray cluster is still there, while this process is in the cluster.

Ray itself ends a process whose head has been gone for a minute, whatever it is doing, with a message in Ray's terms.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Final

from kit.errors import WorkError

_LOOK_S: Final = 2.0
_PATIENCE_S: Final = 3.0
_SILENT: Final = 3  # polls in a row
_CALL: Final = signal.SIGUSR1


@contextlib.contextmanager
def while_head_lives(address: str) -> Iterator[threading.Event]:
    """Interrupt the main thread's work some seconds after the head's end; yield an event that is set then.

    Other threads are not watched.

    Raises:
        WorkError: the head is gone.
    """
    over, gone = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield gone
        return

    before = signal.signal(_CALL, signal.default_int_handler)  # while Ray waits, it passes on this exception alone
    watch = threading.Thread(target=_watch, args=(address, over, gone), name="ray-head", daemon=True)
    watch.start()
    try:
        yield gone
    except KeyboardInterrupt:
        if not gone.is_set():
            raise
        remedy = "start its nodes again, then the same command"
        raise WorkError(f"the Ray cluster at {address} is gone; what is finished is kept; {remedy}") from None
    finally:
        over.set()
        watch.join()
        signal.signal(_CALL, before)


def _watch(address: str, over: threading.Event, gone: threading.Event) -> None:
    silent = 0
    while silent < _SILENT:
        if over.wait(_LOOK_S):
            return
        silent = 0 if _listens(address) else silent + 1
    gone.set()
    ident = threading.main_thread().ident
    if ident is not None and not over.is_set():
        signal.pthread_kill(ident, _CALL)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except OSError:
        return False
    return True
