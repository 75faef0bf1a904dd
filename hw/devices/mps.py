"""Shares of a GPU's multiprocessors, by NVIDIA's Multi-Process Service (MPS).

This command has a separate control daemon, with pipes in a separate folder: an administrator's settings are untouched.
MPS limits each *process* to its share, so servers with shares have a process each.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from typing import Final

from kit.errors import in_a_line

CONTROL: Final = "nvidia-cuda-mps-control"
SHARE_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # read by CUDA as a process opens it
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_START_S: Final = 5.0


@cache
def start_daemon() -> str:
    """Start the daemon unless one is named in the environment; it ends with this process.

    Returns:
        Why there is none; empty if it answers. Processes that this one starts from then on are its clients.
    """
    if _PIPES in os.environ:
        return ""
    control = shutil.which(CONTROL)
    if control is None:
        return f"{CONTROL} is not installed"
    folder = tempfile.mkdtemp(prefix="mps-")
    named = {_PIPES: folder, _LOGS: folder}

    def end() -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _run([control], "quit\n", named)
        shutil.rmtree(folder, ignore_errors=True)

    try:
        _run([control, "-d"], "", named)
        float(_run([control], "get_default_active_thread_percentage\n", named))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        end()
        return f"{CONTROL} does not come up within {_START_S:.0f} s: {in_a_line(str(error))}"
    atexit.register(end)
    os.environ.update(named)
    return ""


def _run(words: list[str], told: str, named: dict[str, str]) -> str:
    environment = {**os.environ, **named}
    done = subprocess.run(  # noqa: S603 - NVIDIA's program
        words, input=told, env=environment, timeout=_START_S, check=True, capture_output=True, text=True
    )
    return done.stdout
