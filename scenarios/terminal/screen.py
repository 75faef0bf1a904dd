r"""A terminal: its width, names and messages, questions, and how a command ends, by an exit code and one message.

Names and messages (`visible`, `visible_text`): characters that a terminal would interpret, and that no page may
contain, are written out (`\x1b`).

Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 130 interrupted.

Questions (`ask`) are on standard error: standard output stays free for results.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from kit.errors import InputError, WorkError

LEAST: Final = 40  # characters: no table can be read in less
PIPED: Final = 100  # if standard output is not a terminal: longer lines are hard to read
LONGEST: Final = 2000  # characters of a message
_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\x9f"  # control characters: a terminal's escape sequences begin with one
    r"\u2028\u2029"  # line breaks by other names
    r"\u202a-\u202e\u2066-\u2069"  # they turn the order of adjacent characters
    r"\ud800-\udfff\ufffe\uffff"  # not characters: of bytes that are not text; neither UTF-8 nor XML has them
)
_IN_NAMES: Final = re.compile(f"[{_UNSEEN}]")
_IN_TEXT: Final = re.compile(f"(?![\n\t])[{_UNSEEN}]")


def screen_width() -> int:
    """Return characters of a line of standard output, a terminal or not: people read a log, programs take `--json`."""
    return max(LEAST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPED


def visible(name: str) -> str:
    """Return a name in one line."""
    return _IN_NAMES.sub(lambda match: _escaped(match[0]), name)


def visible_text(text: str) -> str:
    """Return lines of text, which stay lines."""
    return _IN_TEXT.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    """Return a message of any bytes in one line: unprintable bytes are written out, and a long one loses its middle."""
    shortened = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return "".join(character if character.isprintable() else _escaped(character) for character in shortened)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


RESUMES: Final = "interrupted; the same command resumes"
BEGINS_ANEW: Final = "interrupted; nothing of it is kept, the same command starts from scratch"


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
        return _complain(name, _error_text(error) if isinstance(error, OSError) else str(error), 1)
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


def _error_text(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    helps = "; make room, and give the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{where}{error.strerror or error}{helps}"


def _complain(name: str, problem: str, code: int) -> int:
    text = one_line(problem)
    sys.stderr.write(f"{'' if text.startswith(name) else f'{name}: '}{text}\n")
    return code


Answer = TypeVar("Answer")


def can_ask() -> bool:
    """Check for an interactive user: both the questions and the answers go by a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, default: str, read: Callable[[str], Answer]) -> Answer:
    """Return the answer as `read` makes it of a line; what it refuses is reported, and asked again.

    Args:
        read: raises `ValueError` for an invalid one.
    """
    while True:
        sys.stderr.write(f"{question} [{default}]: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:  # the end of what is typed: as an interruption
            raise KeyboardInterrupt
        try:
            return read(line.strip() or default)
        except ValueError as error:
            sys.stderr.write(f"  {visible_text(str(error))}\n")
