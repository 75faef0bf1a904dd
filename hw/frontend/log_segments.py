"""The log of a server that runs for days: segments on disk, each of which replays alone.

A segment is a file of frames, each a length and that number of bytes of compressed msgpack. The first is its header,
with a snapshot of the router's core; the others hold the core's steps since then; one without steps ends it. A full
disk or a kill may cut off the last frame only. A thread compresses and writes, so the router never waits for the disk.
Nothing that is read can execute code.
"""

from __future__ import annotations

import os
import threading
import time  # noqa: TID251 - old segments go
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.router_core import RouterCore
from policies.run_records import LoggedStep
from policies.vocabulary import NS_PER_S, RouterCommand, RouterEvent

SUFFIX: Final = ".segment"
FRAME_BYTES: Final = 1 << 17  # before they are compressed
FRAME_NS: Final = NS_PER_S  # at most this is lost if the router's process is killed
BACKLOG_BYTES: Final = 1 << 26  # the most that may wait for the disk
_LENGTH: Final = 4
_SCHEMA: Final = "slimsched.segment/1"
_ARRAY: Final = b"\xdd"  # msgpack's array of up to 2**32 items, whose number follows


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Limits of all segments' size, and of one segment's size and age."""

    total_bytes: float
    age_s: float

    @property
    def segment_bytes(self) -> float:
        """The size at which a segment ends."""
        return min(64e6, self.total_bytes / 16)

    @property
    def segment_ns(self) -> int:
        """The age at which a segment ends."""
        return round(min(900.0, self.age_s / 16) * NS_PER_S)


class SegmentHeader(msgspec.Struct, frozen=True):
    """The header of a segment.

    Attributes:
        served: when the command began to serve (UTC, ISO 8601): segments of one command continue each other.
        began: the same, of this segment.
        router: the settings of the core.
        snapshot: of the core; see `RouterCore.snapshot`.
    """

    schema: str
    served: str
    began: str
    router: RouterConfig
    snapshot: bytes


class _Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    now_ns: int
    event: RouterEvent
    commands: Sequence[RouterCommand]


_encoder = msgspec.msgpack.Encoder()
_header_of = msgspec.msgpack.Decoder(SegmentHeader).decode
_steps_of = msgspec.msgpack.Decoder(list[_Step]).decode
_END: Final = _ARRAY + bytes(4)  # no steps


def _packed(frame: bytes) -> bytes:
    body = zlib.compress(frame, 1)
    return len(body).to_bytes(_LENGTH, "little") + body


# ------------------------------------------------------------------------------------------------------------- writing


class _File:
    """A segment as a thread writes it.

    Attributes:
        bytes: that it has on disk.
        problem: the reason for writing no more; empty while all is well.
    """

    def __init__(self, folder: Path, bounds: LogBounds) -> None:
        self.bytes = 0
        self.problem = ""
        self._folder, self._bounds = folder, bounds
        self._fd, self._path = -1, folder

    def put(self, frame: bytes) -> None:
        """Write the next frame; the last one closes the file."""
        if not self.problem:
            try:
                self._write(frame)
            except OSError as error:
                self.problem = error.strerror or str(error)
            if self.problem or frame == _END:
                self.close()

    def _write(self, frame: bytes) -> None:
        if self._fd < 0:
            self._open()
        packed = _packed(frame)
        data = memoryview(packed)
        while data:
            data = data[os.write(self._fd, data) :]
        self.bytes += len(packed)

    def _open(self) -> None:
        """Make room for the file, and create it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        segments = segments_in(self._folder)
        left_bytes, oldest_s = self._bounds.total_bytes - self._bounds.segment_bytes, time.time() - self._bounds.age_s
        for segment in reversed(segments):
            about = segment.stat()
            left_bytes -= about.st_size
            if left_bytes < 0 or about.st_mtime < oldest_s:
                segment.unlink()
        number = int(segments[-1].stem) + 1 if segments else 1
        self._path = self._folder / f"{number:08d}{SUFFIX}"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if not self.bytes:  # it has no header
                self._path.unlink()


class SegmentLog:
    """Logs a core's steps, and deletes old segments. A disk failure stops the log, but nothing else.

    Args:
        folder: of the segments.
        say: takes a line for people when the log stops, and when it resumes.
    """

    def __init__(self, folder: Path, bounds: LogBounds, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._bounds = bounds
        self._say = say
        self._served = _now()
        self._core: RouterCore | None = None
        self._file: _File | None = None  # none while it does not write
        self._frame, self._steps = bytearray(), 0
        self._now_ns = self._framed_ns = self._until_ns = 0
        self._has_stopped = False
        self._queued_bytes = self._written_bytes = 0  # bytes of frames
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="segments", daemon=True)
        self._writer.start()

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    @property
    def _behind(self) -> int:
        """The bytes of all segments that were handed over, and are not compressed and written yet."""
        return self._queued_bytes - self._written_bytes

    def _queue(self, file: _File, frame: bytes) -> None:
        def put() -> None:
            file.put(frame)
            self._written_bytes += len(frame)

        self._queued_bytes += len(frame)
        self._jobs.put(put)

    def watch(self, core: RouterCore) -> None:
        """Begin the first segment with the present state of this core."""
        self._core = core
        self._begin()

    def append(self, now_ns: int, event: RouterEvent, commands: Sequence[RouterCommand]) -> None:
        """Append a step of the core."""
        self._now_ns = now_ns
        if self._file is not None:
            _encoder.encode_into(_Step(now_ns, event, commands), self._frame, -1)
            self._steps += 1

    def caught_up(self) -> None:
        """Note that the core has done exactly what was appended: a segment may end here."""
        file, now_ns = self._file, self._now_ns
        if file is not None:
            if len(self._frame) >= FRAME_BYTES or now_ns >= self._framed_ns + FRAME_NS:
                self._hand_over(file)
            self._look_after(file)
        elif self._behind:  # a disk that hangs is given nothing more
            return
        is_full = file is not None and file.bytes >= self._bounds.segment_bytes
        if is_full or now_ns >= self._until_ns:
            self._end()
            self._begin()

    def _look_after(self, file: _File) -> None:
        problem = file.problem or ("the disk is too slow" if self._behind > BACKLOG_BYTES else "")
        if problem:
            self._jobs.put(file.close)
            self._file = None
            if not self._has_stopped:
                left_s = max(0, self._until_ns - self._now_ns) // NS_PER_S
                self._say(f"{self._folder}: {problem}: nothing is logged; it is tried again in {left_s} s")
            self._has_stopped = True
        elif self._has_stopped and file.bytes:
            self._has_stopped = False
            self._say(f"{self._folder}: what is served is logged again")

    def _hand_over(self, file: _File) -> None:
        if self._steps:
            self._queue(file, _ARRAY + self._steps.to_bytes(4, "big") + self._frame)
        self._frame, self._steps = bytearray(), 0
        self._framed_ns = self._now_ns

    def _begin(self) -> None:
        assert self._core is not None, "watch a core first"
        self._frame, self._steps = bytearray(), 0
        self._framed_ns = self._now_ns
        self._until_ns = self._now_ns + self._bounds.segment_ns
        self._file = _File(self._folder, self._bounds)
        header = SegmentHeader(_SCHEMA, self._served, _now(), self._core.config, self._core.snapshot())
        self._queue(self._file, _encoder.encode(header))

    def _end(self) -> None:
        if self._file is not None:
            self._hand_over(self._file)
            self._queue(self._file, _END)
            self._file = None

    def close(self) -> None:
        """Wait, for some seconds at most, until the disk has everything that was appended."""
        self._end()
        self._jobs.put(None)
        self._writer.join(10.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# ------------------------------------------------------------------------------------------------------------- reading


def segments_in(folder: Path) -> list[Path]:
    """Return a folder's segments, the oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


class Segment:
    """A segment for reading.

    Raises:
        InputError: it has no header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.header = _header_of(next(_frames(path), b""))
        except (msgspec.DecodeError, zlib.error) as error:
            raise self._damage(error) from None
        if self.header.schema != _SCHEMA:
            raise InputError(str(path), "schema", f"expected {_SCHEMA!r} (found {self.header.schema!r:.80})")

    @property
    def is_whole(self) -> bool:
        """Whether it has an end; otherwise it was cut off, or is being written."""
        end = _packed(_END)
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - len(end)))
            return file.read() == end

    def core(self) -> RouterCore:
        """Return the core as it was when the segment began; raises `InputError` if its snapshot is not valid."""
        core = RouterCore(self.header.router)
        try:
            core.resume(self.header.snapshot)
        except msgspec.DecodeError as error:
            raise self._damage(error) from None
        return core

    def steps(self) -> Iterator[LoggedStep]:
        """Yield the router core's steps, in order; raises `InputError` if they are not valid."""
        frames = _frames(self.path)
        next(frames)
        try:
            for frame in frames:
                for step in _steps_of(frame):
                    yield LoggedStep(step.now_ns, "router", step.event, tuple(step.commands))
        except (msgspec.DecodeError, zlib.error) as error:
            raise self._damage(error) from None

    def _damage(self, error: Exception) -> InputError:
        return InputError(str(self.path), "", f"is not a segment of a log, or damaged: {error}; remove it")


def _frames(path: Path) -> Iterator[bytes]:
    """Yield the frames; one that was cut off is left out."""
    with path.open("rb") as file:
        while len(length := file.read(_LENGTH)) == _LENGTH:
            size = int.from_bytes(length, "little")
            if len(body := file.read(size)) < size:
                return
            inflating = zlib.decompressobj()
            frame = inflating.decompress(body, BACKLOG_BYTES)
            if not inflating.eof:
                raise zlib.error(f"a frame is incomplete, or has more than {BACKLOG_BYTES} bytes")
            yield frame
