"""A finished run folder with one file cut, or filled with junk: what each command makes of it, and whether it heals.

`report`, `replay`, `simulate` or `compare`, in turn, looks at the torn folder; `run` then mends it. What it leaves must
be what the undisturbed run left, to the last bit but for wall times; who can't go on shows why, and names the file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from matplotlib.figure import Figure

from kit.random_streams import stream
from slimsched.cli import main
from tests.fuzz.box import BESIDE, Box, Special
from tests.fuzz.finished import NAME, Finished
from tests.fuzz.trial import Outcome, judge, watched

RUN: Final = "run"
CUTS: Final = 10
LOOKING: Final = (
    ("report", RUN),
    ("replay", RUN),
    ("simulate", NAME, "--out", RUN, "--router", "ppo", "--seed", "5"),  # beside what the run has kept
    ("compare", NAME, "--out", RUN),
)
MENDING: Final = ("run", NAME, "--out", RUN)
MADE_ANEW: Final = (
    "results.json",
    "comparison.json",
    "validation.json",
    "score-ppo.json",
    "accuracy.json",
    "training-ppo.json",
)
_TIMES: Final = ("wall_s",)


@dataclass(frozen=True)
class Damage:
    """One file, and what lies in its place now."""

    name: str
    how: str
    content: bytes | Special


def damages(folder: Path, seed: int) -> Iterator[Damage]:
    """Every file of a run folder: ten cuts, junk of three kinds, and what is not a file."""
    rng = stream(seed, "fuzz:state")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(folder)), path.read_bytes()
        at = {0, 1, len(data) - 1, *(len(data) * part // (CUTS - 2) for part in range(1, CUTS - 2))}
        for size in sorted(size for size in at if 0 <= size < len(data)):
            yield Damage(name, f"cut at {size}", data[:size])
        yield Damage(name, "random bytes", rng.bytes(len(data)))
        yield Damage(name, "zeros", bytes(len(data)))
        yield Damage(name, "another document", b"[]" if data[:1] == b"{" else b"{}")
        flipped = bytearray(data)
        for place in rng.integers(0, max(1, len(data)), 3 if data else 0):
            flipped[place] ^= 1 << int(rng.integers(8))
        yield Damage(name, "three bits", bytes(flipped))
        yield Damage(name, "a folder", Special("folder"))
        yield Damage(
            name, "a link", Special("link", os.path.relpath(folder.parents[1] / BESIDE / "thesis.txt", path.parent))
        )
        yield Damage(name, "gone", Special("gone"))


class Torn:
    """A copy of a finished run with one file damaged, and the commands that look at it."""

    def __init__(self, finished: Finished, root: Path) -> None:
        self.finished, self.root = finished, root
        self.whole = documents(finished.folder)

    def trials(self, damage: Damage, looking: tuple[str, ...]) -> Iterator[tuple[str, Outcome]]:
        """A command that looks at a torn folder, and the one that mends it."""
        box = Box(self.root, {NAME: (self.finished.folder.parent / NAME).read_bytes()})
        try:
            shutil.copytree(self.finished.folder, box.here / RUN)
            _damage(box.here / RUN / damage.name, damage.content)
            (box.here / RUN / "mine.txt").write_text("a user's own\n")
            box.look(ours={f"{box.here.name}/{RUN}/{name}" for name in names_below(self.finished.folder)})
            for command in (looking, MENDING):
                yield f"state {command[0]}", self._judged((*command, "--quiet"), damage, box)
        finally:
            box.remove()

    def _judged(self, argv: tuple[str, ...], damage: Damage, box: Box) -> Outcome:
        def work() -> int:
            with self.finished.replayed(), patch.object(Figure, "savefig", scribble):
                return main(argv)

        ended = watched(work, box.here, self.root.with_name(f"{self.root.name}.said"))
        found = judge(ended, box.changes((RUN,)), argv)
        if argv[0] == "replay" and ended.code == 1 and found.kind == "ok":
            found = Outcome("refused", _wrong_logs(ended.out)[-300:], ended)  # its answer is that a log is not whole
        where = f"{damage.name}, {damage.how}"
        if found.kind == "refused" and not _names(found.note, damage) and "slimsched " not in found.note[11:]:
            return Outcome("unclear", f"neither file nor remedy: {found.note} [{where}]", ended)
        if found.kind == "ok" and (problem := self._problem(argv[0], damage, box)):
            return Outcome("misread", f"{problem} [{where}]", ended)
        return Outcome(found.kind, f"{found.note} [{where}]", ended)

    def _problem(self, command: str, damage: Damage, box: Box) -> str:
        """What is wrong though the command ended well."""
        if command == "replay" and damage.name.endswith(".jsonl.gz") and not _same_log(self.finished, damage, box):
            return "a damaged log is replayed as if it were whole"
        if command == "run":
            after = documents(box.here / RUN)
            differ = [name for name in self.whole if after.get(name) != self.whole[name]]
            return f"not healed: {', '.join(differ)}" if differ else ""
        return ""


def _wrong_logs(text: str) -> str:
    """What `replay` says, but for the runs whose logs are well, and the logs of those."""
    return "\n".join(x for x in text.splitlines() if "identical commands in" not in x and not x.startswith("  events"))


def scribble(figure: Figure, file: Any, **_: Any) -> None:
    """In the place of a figure's drawing, which takes most of a report's time."""
    text = "<svg xmlns='http://www.w3.org/2000/svg'/>"
    file.write(text if isinstance(file, io.TextIOBase) else text.encode())


def _names(note: str, damage: Damage) -> bool:
    return any(part in note for part in (Path(damage.name).name, str(Path(damage.name).parent)))


def _damage(path: Path, content: bytes | Special) -> None:
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content.kind == "folder":
        path.mkdir()
    elif content.kind == "link":
        path.symlink_to(content.to)


def _same_log(finished: Finished, damage: Damage, box: Box) -> bool:
    """Whether what a reader finds in it is what was in it."""
    texts = []
    for path in (finished.folder / damage.name, box.here / RUN / damage.name):
        with contextlib.suppress(OSError, EOFError, Exception):
            texts.append(gzip.decompress(path.read_bytes()))
    return len(texts) == 2 and texts[0] == texts[1]


def names_below(folder: Path) -> set[str]:
    """The names of all files and folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def documents(folder: Path) -> dict[str, Any]:
    """What must be the same in every run: results and tables without wall times, and the bytes of what was learned."""
    found: dict[str, Any] = {}
    for name in MADE_ANEW:
        with contextlib.suppress(OSError, ValueError):
            found[name] = without_times(json.loads((folder / name).read_text()))
    for path in (folder / "ppo.safetensors", folder / "model.safetensors", *(folder / "profiles").glob("*.yaml")):
        with contextlib.suppress(OSError):
            found[str(path.relative_to(folder))] = path.read_bytes()
    for path in folder.glob("*/*/*.parquet"):
        with contextlib.suppress(Exception):
            found[str(path.relative_to(folder))] = _columns(path)
    return found


def without_times(document: Any) -> Any:
    """A document without what a clock has measured of the work itself."""
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if key not in _TIMES}
    return [without_times(part) for part in document] if isinstance(document, list) else document


def _columns(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path).to_pydict()


def trials(finished: Finished, seed: int, root: Path) -> Iterator[tuple[str, Outcome]]:
    """All damages in a random order, so that a part of them is a part of everything."""
    torn, every = Torn(finished, root), list(damages(finished.folder, seed))
    stream(seed, "fuzz:order").shuffle(every)
    for number, damage in enumerate(every):
        yield from torn.trials(damage, LOOKING[number % len(LOOKING)])
