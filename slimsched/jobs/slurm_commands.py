"""The input and output of `slimsched jobs advise`: what it asks of Slurm's commands, and writes to disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from jobs.advice import FACTORS_COMMAND, QUEUE_COMMAND, Change, Journal, LiveJob, live_jobs, read_journal
from kit.errors import InputError, in_a_line

PATIENCE_S: Final = 60.0
_JOB_IS_GONE: Final = ("invalid job id", "already finished", "no longer pending")
_PING: Final = "`scontrol ping` shows whether the controller runs"
Write = Callable[[Change], None]


class Slurm:
    """Its commands, on this machine."""

    def ask(self, *arguments: str) -> str:
        """Return what a command prints.

        Raises:
            InputError: there is none, or it fails, or it gets no answer.
        """
        done = self._done(arguments)
        if done.returncode:
            self._refuse(arguments, done)
        return done.stdout

    def change(self, change: Change) -> bool:
        """Write a SiteFactor: whether its job is still there.

        Raises:
            InputError: as for `ask`.
        """
        done = self._done(change.command)
        is_gone = any(text in done.stderr.lower() for text in _JOB_IS_GONE)
        if done.returncode and not is_gone:
            self._refuse(change.command, done)
        return not done.returncode

    def _refuse(self, arguments: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        remedy = _PING
        if "ermission denied" in done.stderr:
            remedy = "an operator may (`sacctmgr modify user NAME set AdminLevel=Operator`), or root"
        raise InputError(" ".join(arguments[:2]), "", f"{in_a_line(done.stderr or done.stdout)}; {remedy}")

    def _done(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # would hide jobs
        environment = {**own, "SLURM_TIME_FORMAT": "%s"}
        try:
            return subprocess.run(  # noqa: S603 - constants and numbers
                arguments,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE_S,
                check=False,
            )
        except OSError:
            remedy = "run slimsched on a host with Slurm's commands; set SLURM_CONF if slurm.conf is elsewhere"
            raise InputError(arguments[0], "", f"this host has no such command; {remedy}") from None
        except subprocess.TimeoutExpired:
            raise InputError(arguments[0], "", f"Slurm does not answer within {PATIENCE_S:g} s; {_PING}") from None


def queue_of(slurm: Slurm) -> list[LiveJob]:
    """Return jobs that wait and run, and Slurm's weights of them; raises `InputError` as these two do."""
    return live_jobs(slurm.ask(*QUEUE_COMMAND), slurm.ask(*FACTORS_COMMAND))


@contextmanager
def opened_journal(path: Path) -> Iterator[tuple[Journal, Write]]:
    """Yield its lines, and a function that adds one, which is on the disk on return. One command at a time has it.

    Raises:
        InputError: it is not a journal, or another command has it.
    """
    with path.open("a+b") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise InputError(
                str(path), "", "another `jobs advise` writes to it; end that, or wait for its end"
            ) from None
        file.seek(0)
        content = file.read()
        journal = read_journal(content.decode(errors="replace"), str(path))
        file.truncate(content.rfind(b"\n") + 1)  # a line that was cut off

        def write(change: Change) -> None:
            file.write(change.line.encode())
            file.flush()
            os.fsync(file.fileno())
            journal.append(change)

        yield journal, write


def carry_out(slurm: Slurm, changes: Sequence[Change], write: Write) -> dict[str, int]:
    """Record each change, then make it: returns how many were made, and of how many the job was gone."""
    written = 0
    for change in changes:
        write(change)
        if slurm.change(change):
            written += 1
    return {"written": written, "gone": len(changes) - written}
