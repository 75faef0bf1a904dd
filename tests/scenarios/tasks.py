"""What processes of a test are given to do. Nothing heavy is imported: each process would wait for it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from kit.errors import InputError
from kit.parallel import ONE_THREAD


def wait_marked(folder: str, task: int) -> int:
    """Note who begins it; all but the first then wait until the folder has a file `go`."""
    (Path(folder) / f"{task}-{os.getpid()}").touch()
    while task and not (Path(folder) / "go").exists():
        threading.Event().wait(0.05)
    return task


def answer(common: int, task: str) -> tuple[int, str, dict[str, str | None]]:
    """Some fail, each in its own way; the others tell what they were given, and their settings."""
    match task:
        case "wrong":
            raise InputError("a file", "a.key", "is wrong; write another")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "endless":
            signal.pause()
    return common, task, {name: os.environ.get(name) for name in ONE_THREAD}
