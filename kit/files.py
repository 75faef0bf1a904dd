"""Files that are written atomically to their own path, and read only if their size is reasonable."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kit.errors import InputError

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4000
MAX_BYTES: Final = 256_000_000  # of a text file: reading it takes about ten times as much memory
TEMPORARY = re.compile(r"\.slimsched-[0-9a-f]{32}\.tmp")
_REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device"}
_CHUNK_BYTES = 1 << 20


# ------------------------------------------------------------------------------------------------------------- writing


@contextmanager
def atomic_path(path: Path, *, is_synced: bool = True) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    Only a regular file is replaced: it is synced (unless it may be lost), and gets the mode of any new file. A link is
    replaced, too: the file that it leads to may be the user's. A device, a pipe or a descriptor (`/dev/stdout`) is
    written to.

    Raises:
        InputError: the path is a folder, a socket or a block device.
    """
    with _named(path), _poured(path) if is_stream(path) else _replacing(path, is_synced) as temporary:
        yield temporary


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield the path of a folder to make, which becomes `path` when the block ends without an error; that must not
    exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".slimsched-") as temporary:
        whole = Path(temporary) / path.name
        yield whole
        whole.rename(path)


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe or an open descriptor, which are written to and not replaced.

    Raises:
        InputError: it leads to a folder, a socket or a block device.
        OSError: links form a circle, or the path can't be looked up.
    """
    if _descriptor(path) is not None:
        return True
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if kind in _REFUSED:
        raise InputError(str(path), "", f"this is {_REFUSED[kind]}; name a file")
    return kind != stat.S_IFREG


def _descriptor(path: Path) -> int | None:
    """Return the number of a descriptor of this process that a path names."""
    if path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) and path.name.isdigit():
        return int(path.name)
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


def same_header(content: bytes) -> bytes:
    """Return what the safetensors library has written with its metadata sorted, as the library's order varies.

    The same weights then are the same bytes, and stages that read them don't run again unnecessarily.
    """
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[size:]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the user's file in an error of the system."""
    try:
        yield
    except OSError as error:
        if error.filename is None or TEMPORARY.fullmatch(Path(error.filename).name):
            error.filename = str(path)
        raise


@contextmanager
def _poured(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        yield temporary
        number = _descriptor(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY) if number is None else os.dup(number)  # which stays open
        with temporary.open("rb") as file, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(file, target)


@contextmanager
def _replacing(path: Path, is_synced: bool) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".slimsched-{secrets.token_hex(16)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.close(descriptor)
    try:
        yield temporary
        temporary.chmod(mode)  # some libraries recreate the file
        if is_synced:
            sync(temporary)
        temporary.replace(path)
        if is_synced:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Sync a file, or a folder's names, to disk; folders are skipped on file systems that can't sync them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def set_aside(path: Path, ending: str) -> Path:
    """Rename a file with an ending in the same folder, numbered if that name is taken; returns the new path."""
    number, aside = 1, path.with_name(path.name + ending)
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}{ending}-{number}")
    path.rename(aside)
    return aside


# ----------------------------------------------------------------------------------------------- where files can go


def writable_file(path: Path) -> Path:
    """Return the path, if a file can be created or written there; missing folders would be made.

    Raises:
        InputError: it can't; nothing was created.
    """
    with _refused(path):
        if not is_stream(path):
            _require_writable(path, path.absolute().parent)
        elif not os.access(path, os.W_OK):
            raise InputError(str(path), "", "can't be written (Permission denied); name another place")
    return path


def writable_folder(path: Path) -> Path:
    """Return the path, if files can be written into a folder there; it would be made if it is missing.

    Raises:
        InputError: they can't; nothing was created.
    """
    with _refused(path):
        if path.exists() and not path.is_dir():
            raise InputError(str(path), "", "this is a file; name a folder")
        _require_writable(path, path.absolute())
    return path


def in_a_folder(path: Path) -> Path:
    """Return the path, if its folder exists: a mistyped path makes no folders; raises `InputError` if it is not."""
    with _refused(path):
        if not path.absolute().parent.is_dir():
            problem = f"the folder {path.parent} does not exist; make it, or name another"
            raise InputError(str(path), "", problem)
    return path


def _require_writable(path: Path, folder: Path) -> None:
    """Check that files can be written into the folder, or into its nearest existing parent."""
    while not (folder.exists() or folder.is_symlink()):
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(str(path), "", f"{folder} is not a folder: it can hold nothing; name another place")
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(str(path), "", f"can't be written ({error.strerror}); name another place") from None


# ------------------------------------------------------------------------------------------------------------ contents


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def folder_hash(folder: Path) -> str:
    """Return the hash of the names and contents of all files in a folder and its subfolders."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)).encode(), hashlib.sha256(path.read_bytes()).digest()
        digest.update(len(name).to_bytes(8, "big") + name + content)
    return digest.hexdigest()


def read_bytes(path: Path, limit: int = MAX_BYTES, *, source: str = "", key: str = "", hint: str = "") -> bytes:
    """Return a file's content.

    Args:
        limit: the largest size in bytes.
        source, key: what names the path, if anything does; for messages.
        hint: what to do if the file does not exist.

    Raises:
        InputError: as for `require_file`, or the file can't be read.
    """
    require_file(path, limit, source=source, key=key, hint=hint)
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, f"can't be read: {error.strerror}", source, key) from None


def require_file(path: Path, limit: int, *, source: str = "", key: str = "", hint: str = "") -> None:
    """Raise `InputError` unless a path is a plain file (a pipe would block, a device never ends) of at most
    `limit` bytes; the arguments are those of `read_bytes`."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _unreadable(path, f"no such file{hint}", source, key) from None
    except (OSError, ValueError) as error:  # a loop of links; a name that is too long or contains a NUL
        raise _unreadable(path, f"can't be read: {getattr(error, 'strerror', error)}", source, key) from None
    if stat.S_ISDIR(status.st_mode):
        raise _unreadable(path, "this is a folder; name a file in it", source, key)
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "this is a device or a pipe; name a file", source, key)
    if status.st_size > limit:
        problem = (
            f"has {status.st_size / 1e6:,.0f} MB; expected at most {limit / 1e6:,.0f}: is it the file that you mean?"
        )
        raise _unreadable(path, problem, source, key)


def lies_there(path: Path) -> bool:
    """Return whether a path exists, whatever its name (`Path.exists` raises for invalid names)."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def possible_path(text: str) -> str:
    """Return a text that is a valid path on any system; raises `ValueError` if it isn't."""
    if not text:
        raise ValueError("is empty; name a file")
    parts = [os.fsencode(part) for part in (text, *Path(text).parts)] if text.isprintable() else [b""]
    if not text.isprintable() or max(map(len, parts[1:]), default=0) > LONGEST_NAME or len(parts[0]) > LONGEST_PATH:
        problem = f"expected printable characters, {LONGEST_NAME} bytes in a name and {LONGEST_PATH} in all"
        raise ValueError(f"{text!r:.80} can't be a path; {problem}")
    return text


def _unreadable(path: Path, problem: str, source: str, key: str) -> InputError:
    return InputError(source, key, f"{path}: {problem}") if source else InputError(str(path), "", problem)
