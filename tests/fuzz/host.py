"""A host that fails: a full disk, a folder that vanishes, few file handles, little memory. Then the same with enough.

The command must end well or in one line; and once the fault is gone, the same command must leave what it leaves
undisturbed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from matplotlib.figure import Figure

from kit.random_streams import stream
from slimsched.cli import main
from tests.fuzz.box import Box
from tests.fuzz.finished import NAME, Finished
from tests.fuzz.state import RUN, documents, scribble
from tests.fuzz.trial import Ended, Outcome, judge, watched

COMMAND: Final = ("run", NAME, "--out", RUN, "--quiet")
MB: Final = 1_000_000


@dataclass(frozen=True)
class Fault:
    """What is wrong with the host.

    Attributes:
        family, words: for the table, and for a message.
        prepare: in the command's process, before it begins.
        disk_bytes: of a small disk that the run folder is on; None: the usual one.
    """

    family: str
    words: str
    prepare: Callable[[], object] = lambda: None
    disk_bytes: int | None = None


def faults(count: int, seed: int) -> Iterator[Fault]:
    """So many, of each kind in turn; sizes and moments are drawn evenly on a scale of their own."""
    rng = stream(seed, "fuzz:host")
    for number in range(count):
        share = float(rng.random())
        yield (_full, _vanishing, _few_handles, _little_memory)[number % 4](share)


def _full(share: float) -> Fault:
    size = int(4096 * (400**share))
    if os.geteuid() == 0:
        return Fault("full disk", f"a disk of {size} bytes", disk_bytes=size)
    return Fault("full disk", f"files of at most {size} bytes", partial(_limit, resource.RLIMIT_FSIZE, size))


def _vanishing(share: float) -> Fault:
    return Fault("vanished folder", f"gone after {share:.2f} s", partial(_remove_later, 1.5 * share))


def _few_handles(share: float) -> Fault:
    handles = 4 + int(40 * share)
    return Fault("few handles", f"{handles} file handles", partial(_limit, resource.RLIMIT_NOFILE, handles))


def _little_memory(share: float) -> Fault:
    size = int(MB * 500**share)
    return Fault("little memory", f"{size / MB:.0f} MB more than now", partial(_limit_memory, size))


def _limit(which: int, value: int) -> None:
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def _limit_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more_bytes)


def _remove_later(seconds: float) -> None:
    timer = threading.Timer(seconds, shutil.rmtree, (Path.cwd() / RUN,), {"ignore_errors": True})
    timer.daemon = True
    timer.start()


def trials(finished: Finished, count: int, seed: int, root: Path) -> Iterator[tuple[str, Outcome]]:
    """Each fault, and the same command after it."""
    whole = documents(finished.folder)
    for fault in faults(count, seed):
        box = Box(root, {NAME: (finished.folder.parent / NAME).read_bytes()})
        try:
            (box.here / RUN).mkdir()
            with _disk(box.here / RUN, fault.disk_bytes) as grow:
                box.look(ours=[f"{box.here.name}/{RUN}"] if fault.family == "vanished folder" else [])
                ended = _run(finished, box, root, fault.prepare)
                found = judge(ended, box.changes((RUN,)), COMMAND)
                if found.kind == "too large" and fault.family == "little memory" and ended.code == 1:
                    found = Outcome("refused", found.note, ended)  # said in words, as it must be here
                yield fault.family, Outcome(found.kind, f"{found.note} [{fault.words}]", ended)
                grow()
                ended = _run(finished, box, root, lambda: None)
                found = judge(ended, box.changes((RUN,)), COMMAND)
                after = documents(box.here / RUN)
                differ = [name for name in whole if after.get(name) != whole[name]]
                if found.kind == "ok" and differ:
                    found = Outcome("misread", f"not healed: {', '.join(differ)}", ended)
                is_made_again = fault.family == "vanished folder" and "is not a run folder" in found.note  # in part
                kind = "unclear" if found.kind == "refused" and not is_made_again else found.kind
                yield f"{fault.family}, after", Outcome(kind, f"{found.note} [{fault.words}]", ended)
        finally:
            box.remove()


def _run(finished: Finished, box: Box, root: Path, prepare: Callable[[], object]) -> Ended:
    def work() -> int:
        with finished.replayed(), patch.object(Figure, "savefig", scribble):
            return main(COMMAND)

    return watched(work, box.here, root.with_name(f"{root.name}.said"), prepare)


@contextlib.contextmanager
def _disk(folder: Path, size_bytes: int | None) -> Iterator[Callable[[], object]]:
    """A small disk at a folder, and what makes it a large one; only who is root may have one."""
    if size_bytes is None:
        yield lambda: None
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=100m", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
