"""What stands where a file is written: regular files are replaced, whole; anything else is written to, or refused."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit.errors import InputError
from kit.files import TEMPORARY, atomic_path, is_stream, set_aside


def write(path: Path, text: str = "new") -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def test_a_link_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    """The link may be in a run folder, and its target a user's file; a link to a folder leads there as ever."""
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "users").write_text("thesis")
    (tmp_path / "real" / "link").symlink_to(tmp_path / "users")
    (tmp_path / "real" / "circle").symlink_to("circle2")
    (tmp_path / "real" / "circle2").symlink_to("circle")
    for text in ("one", "two"):
        write(tmp_path / "folder" / "link", text)
        assert (tmp_path / "real" / "link").read_text() == text
    assert (tmp_path / "users").read_text() == "thesis"
    with pytest.raises(OSError, match=r"symbolic links|loop"):
        write(tmp_path / "folder" / "circle")


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """A device would be, too: what is not a regular file is never renamed over."""
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write(path)
    reader.join(10)
    assert read == ["new"]
    assert stat.S_ISFIFO(path.lstat().st_mode)
    write(Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").lstat().st_mode)


def test_descriptors_are_written_to(tmp_path: Path) -> None:
    """`> file` and then `/dev/stdout`: the shell's file keeps what stands in it, and what comes later."""
    code = "import os; from pathlib import Path; from tests.kit.test_files import write; os.write(1, b'before ');"
    code += "write(Path('/dev/stdout'), 'json '); write(Path('/dev/fd/1'), 'more '); os.write(1, b'after')"
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before json more after"


def test_write_to_a_folder_or_a_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name, said in (("folder", "a folder"), ("link", "a folder"), ("socket", "a socket")):
            with pytest.raises(InputError, match=f"this is {said}; name a file"):
                write(tmp_path / name)
            with pytest.raises(InputError, match=said):
                is_stream(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "socket"]


def test_modes_are_one_and_names_cannot_be_guessed(tmp_path: Path) -> None:
    """As any new file's, whatever made it; two temporary names have nothing in common."""
    (tmp_path / "any").touch()
    names = []
    for _ in range(2):
        with atomic_path(tmp_path / "x") as temporary:
            names.append(temporary.name)
            temporary.unlink()
            temporary.touch(0o600)  # as some libraries do
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "any").stat().st_mode
    assert names[0] != names[1]
    assert all(TEMPORARY.fullmatch(name) for name in names)


def test_a_file_is_synced_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append("replace")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write(tmp_path / "x")
    assert done == ["file", "replace", "folder"]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    for number, filename in enumerate((None, str(tmp_path / f".slimsched-{32 * 'a'}.tmp"), "other")):
        with pytest.raises(OSError, match="full") as caught, atomic_path(tmp_path / "x"):
            raise OSError(28, "full", filename)
        assert caught.value.filename == ("other" if number == 2 else str(tmp_path / "x"))
    with pytest.raises(OSError, match="No space") as caught:
        write(Path("/dev/full"))
    assert caught.value.filename == "/dev/full"


def test_file_set_aside_does_not_replace_an_earlier_one(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        (tmp_path / "x.json").write_text(text)
        set_aside(tmp_path / "x.json", ".damaged")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"x.json.damaged": "one", "x.json.damaged-2": "two", "x.json.damaged-3": "three"}
