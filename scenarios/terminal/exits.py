"""How a command ends: an exit code, and for what went wrong one message and no traceback.

Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kit.errors import InputError, WorkError
from scenarios.terminal.screen import one_line

RESUMES: Final = "interrupted; the same command goes on from what is finished"
BEGINS_ANEW: Final = "interrupted; nothing of it is kept, the same command begins anew"


def exit_code(name: str, work: Callable[[], int], interrupted: Callable[[], str] = lambda: RESUMES) -> int:
    """Return the exit code of some work.

    Args:
        name: of the command, before a message.
        interrupted: the message for an interrupted one.
    """
    try:
        return work()
    except InputError as error:
        return _complain(name, str(error), 2)
    except (MemoryError, OverflowError) as error:
        return _complain(name, f"the work is too large for this machine ({str(error) or 'out of memory'})", 1)
    except (WorkError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `slimsched ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _complain(name, _said(error) if isinstance(error, OSError) else str(error), 1)
    except KeyboardInterrupt:
        return _complain(name, interrupted(), 130)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end the work as Ctrl-C does; in the main thread alone."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _said(error: OSError) -> str:
    """Describe which file, what is wrong with it, and what helps."""
    where = f"{error.filename}: " if error.filename is not None else ""
    helps = "; make room, and give the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{where}{error.strerror or error}{helps}"


def _complain(name: str, problem: str, code: int) -> int:
    text = one_line(problem)
    sys.stderr.write(f"{'' if text.startswith(name) else f'{name}: '}{text}\n")
    return code
