"""One command a run folder: a lock of the kernel's, gone with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from kit.errors import InputError

_CANT_LOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_MOST_CHARACTERS = 200  # of a command line


@contextmanager
def locked(path: Path, folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock, a file, for a folder; what is started meanwhile does not inherit it.

    Args:
        folder: as the user named it.
        say: told where the file system knows no locks.

    Raises:
        InputError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path, folder) from None
        except OSError as error:
            if error.errno not in _CANT_LOCK:
                raise
            say(f"warning: {folder}: this file system has no locks: take care that no other command writes here")
        if not _is_at(descriptor, path):
            raise _in_use(path, folder)  # its holder has just removed it
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_this_process()).encode() + b"\n", 0)
        yield
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock; where the file system knows none, whether the file is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in _CANT_LOCK
    finally:
        os.close(descriptor)
    return False


def _this_process() -> dict[str, str | int]:
    program = {"cli.py": "slimsched"}.get(Path(sys.argv[0]).name, Path(sys.argv[0]).name)
    command = shlex.join([program, *sys.argv[1:]])
    return {
        "process": os.getpid(),
        "command": command[:_MOST_CHARACTERS],
        "started": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
    }


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path, folder: Path) -> InputError:
    problem = f"in use by {_holder(path)}; wait for it, end it, or name another folder with --out"
    return InputError(str(folder), "", problem)


def _holder(path: Path) -> str:
    """Who holds the lock, as it has written there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(found['process'])} (`{found['command']}`, since {found['started']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
