"""A folder of its own for a call, with a user's files in it and beside it, none of which may change."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Special:
    """What lies in a folder and is not a regular file; `to` is where a link points."""

    kind: Literal["link", "pipe", "device", "folder", "gone"]
    to: str = ""


Content = bytes | Special

HERE = "here"
BESIDE = "beside"  # its neighbour, seen from `HERE`: ../beside
# A user's own, beside the folder that he works in and below it, and links that lead from one to the other.
SENTINELS: Mapping[str, Content] = {
    "beside/thesis.txt": b"three years of work\n",
    "beside/simulation/ppo-seed0/result.json": b'{"mine": true}\n',
    "beside/link": Special("link", "thesis.txt"),
    f"{HERE}/notes.txt": b"mine\n",
    f"{HERE}/full/simulation/mine/notes.txt": b"mine, too\n",
    f"{HERE}/full/executors/notes.txt": b"and this\n",
    f"{HERE}/full/profiles/own.txt": b"and that\n",
    f"{HERE}/full/simulation/away": Special("link", "../../../beside"),
    f"{HERE}/away": Special("link", "../beside"),
    f"{HERE}/link.json": Special("link", "notes.json"),
    f"{HERE}/notes.json": b'{"mine": 1}\n',
    f"{HERE}/dangling": Special("link", "nowhere"),
    f"{HERE}/loop": Special("link", "loop"),
    f"{HERE}/pipe": Special("pipe"),
    f"{HERE}/null": Special("device"),
    f"{HERE}/folder": Special("folder"),
}
MADE_BY_ITSELF = ("runs", "profiles")  # below the user's folder, where no flag says otherwise
Tree = dict[str, tuple[object, ...]]


class Box:
    """A folder of its own for a call, with sentinels; `changes` tells which of them did not stay as they were."""

    def __init__(self, root: Path, files: Mapping[str, Content]) -> None:
        self.root, self.here = root, root / HERE
        self._pipes: list[int] = []
        self._ours: frozenset[str] = frozenset()
        for name, content in {**SENTINELS, **{f"{HERE}/{name}": content for name, content in files.items()}}.items():
            self._make(root / name, content)
        self.look()

    def look(self, ours: Iterable[str] = ()) -> None:
        """What is there now is the user's, and is to stay; but for what the program made, which it may make again."""
        self.before, self._ours = tree(self.root), frozenset(ours)

    def _make(self, path: Path, content: Content) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.kind == "link":
            path.symlink_to(content.to)
        elif content.kind == "folder":
            path.mkdir(exist_ok=True)
        elif content.kind == "device" and os.geteuid() == 0:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        else:  # who may make no device has a pipe for one
            os.mkfifo(path)
            self._pipes.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # so that no writer waits for a reader

    def changes(self, outputs: tuple[str, ...]) -> list[str]:
        """What of the user's is gone or another now, and what was made where nobody asked for it."""
        named = [name for name in (*outputs, *MADE_BY_ITSELF) if name and "\0" not in name]
        after, where = tree(self.root), [os.path.normpath(f"{HERE}/{name}") for name in named]
        targets = {os.path.relpath(self.root / name, self.root) for name in where}
        targets |= {os.path.relpath(os.path.realpath(self.root / name), os.path.realpath(self.root)) for name in where}
        found = []
        for name in sorted(self.before.keys() | after.keys()):
            old, new = self.before.get(name), after.get(name)
            if old == new or name in self._ours:
                continue
            if old is None:
                if not any(f"{name}/".startswith(f"{target}/") or target.startswith(f"{name}/") for target in targets):
                    found.append(f"made {name}")
            elif not (name in targets and old[0] == "file" and new is not None and new[0] == "file"):
                found.append(f"{'lost' if new is None else 'changed'} {name}")
        return found

    def remove(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)
        shutil.rmtree(self.root, ignore_errors=True)


def tree(root: Path) -> Tree:
    """What lies below a folder; links are not followed."""
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            found[os.path.relpath(path, root)] = _entry(path)
    return found


def _entry(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if stat.S_ISREG(status.st_mode):
        return ("file", status.st_mode, path.read_bytes())
    if stat.S_ISLNK(status.st_mode):
        return ("link", str(path.readlink()))
    return ("folder",) if stat.S_ISDIR(status.st_mode) else ("special", stat.S_IFMT(status.st_mode), status.st_rdev)
