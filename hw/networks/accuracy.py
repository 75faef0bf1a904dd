"""The accuracy of every width tuple, and its file `slimsched.accuracy/2`: measured on a network, or the paper's.

It reads, checks and writes. It runs no network, so that a simulation can have a table without torch.

The file is JSON. `correct` is the matrix of bits image by image (most significant bit first; an image's tuples stand
together because they mostly agree, which is what compresses), then zlib, then base64.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from reprlib import repr as shown
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kit.errors import InputError, nearest
from kit.files import atomic_path, read_bytes

SCHEMA: Final = "slimsched.accuracy/2"
KEYS: Final = ("schema", "provenance", "model", "dataset", "images", "tuples", "top1", "correct")
MEASURED: Final = "measured"
PAPER: Final = "paper"
FEWEST_IMAGES: Final = 100  # sqrt(0.25 / 100): the standard error of a share of so few is up to 5 points
MOST_BITS: Final = 10**9  # images x tuples; one byte each once read
MOST_SEGMENTS: Final = 32
TOLERANCE: Final = 1e-6  # of top1 against the bits, for a table that was rounded

AccuracyProvenance: TypeAlias = Literal["measured", "paper"]
Widths: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """Which test images a network gets right: a `measured` table.

    Attributes:
        tuples: (T,) width tuples of length S.
        correct: (images, T) bool.
        hash: of the network's weights.
        dataset: the data set's name; its images are in its own order.
    """

    tuples: tuple[Widths, ...]
    correct: NDArray[np.bool_]
    hash: str
    dataset: str

    def top1(self) -> dict[Widths, float]:
        """Share of images that each tuple gets right."""
        return dict(zip(self.tuples, self.correct.mean(axis=0).tolist(), strict=True))


@dataclass(frozen=True)
class PaperTable:
    """Published accuracies of a network that nobody has here: no images, no weights.

    Attributes:
        tuples: (T,) width tuples of length S.
        shares: (T,) top-1 in [0, 1].
        dataset: the data set's name.
    """

    tuples: tuple[Widths, ...]
    shares: tuple[float, ...]
    dataset: str

    def top1(self) -> dict[Widths, float]:
        """Published share of images that each tuple gets right."""
        return dict(zip(self.tuples, self.shares, strict=True))


AccuracyTable: TypeAlias = Evaluation | PaperTable


# ------------------------------------------------------------------------------------------------------------- writing


def accuracy_text(table: AccuracyTable) -> str:
    """The file's text: a tuple a line, and the bits in one."""
    measured = table if isinstance(table, Evaluation) else None
    fields = {
        "schema": json.dumps(SCHEMA),
        "provenance": json.dumps(MEASURED if measured else PAPER),
        "model": json.dumps(measured.hash if measured else None),
        "dataset": json.dumps(table.dataset),
        "images": json.dumps(len(measured.correct) if measured else None),
        "tuples": _lines(table.tuples),
        "top1": _lines(table.top1().values()),
        "correct": json.dumps(_packed(measured.correct) if measured else None),
    }
    body = ",\n".join(f' "{key}": {text}' for key, text in fields.items())
    return f"{{\n{body}\n}}\n"


def _lines(values: Iterable[Any]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(value, allow_nan=False)}" for value in values) + "\n ]"


def _packed(correct: NDArray[np.bool_]) -> str:
    return base64.b64encode(zlib.compress(np.packbits(correct).tobytes(), 9)).decode()


def save_accuracy(path: Path, table: AccuracyTable) -> None:
    """Write the file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(accuracy_text(table), encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- reading


def load_accuracy(path: Path) -> AccuracyTable:
    """What `save_accuracy` wrote, checked whole.

    Raises:
        InputError: the file is missing, foreign, incomplete or contradicts itself.
    """
    return _Document.of(path).table()


@dataclass(frozen=True)
class _Document:
    """A table's JSON, not trusted yet; each question answers or refuses with the key at fault."""

    source: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> _Document:
        try:
            found = json.loads(read_bytes(path))
        except InputError as error:
            raise cls(str(path), {}).wrong("", f"cannot be read as JSON ({error.problem})") from None
        except (ValueError, RecursionError) as error:
            problem = f"is no table of accuracies: cannot be read as JSON ({error}); `slimsched model train` writes one"
            raise InputError(str(path), "", problem) from None
        document = cls(str(path), found if isinstance(found, dict) else {})
        if document.fields.get("schema") != SCHEMA:
            what = f"is {shown(document.fields.get('schema'))}" if document.fields else "there is none"
            raise document.wrong("schema", f"{what}; {SCHEMA!r} is wanted")
        for key in document.fields:
            if key not in KEYS:
                raise document.wrong(key, f"unknown key; {nearest(key, KEYS)}")
        return document

    def wrong(self, key: str, problem: str) -> InputError:
        """The error to raise, with the remedy."""
        remedy = "delete the file and write it anew with `slimsched model train`"
        if self.fields.get("provenance") == PAPER:
            remedy = "correct the file, or write the paper's with `python -m benchmarks paper-table`"
        return InputError(self.source, key, f"{problem}; {remedy}")

    def table(self) -> AccuracyTable:
        """All of it, checked."""
        provenance = self.fields.get("provenance")
        if provenance not in (MEASURED, PAPER):
            raise self.wrong("provenance", f"is {shown(provenance)}; allowed are {MEASURED!r} and {PAPER!r}")
        dataset, tuples = self._name("dataset"), self._tuples()
        shares = self._shares(tuples)
        if provenance == PAPER:
            for key in ("model", "images", "correct"):
                if self.fields.get(key) is not None:
                    raise self.wrong(key, f"is {shown(self.fields[key])} in a table of the paper; null is wanted")
            return PaperTable(tuples, shares, dataset)
        correct = self._correct(self._images(len(tuples)), len(tuples))
        self._require_agreement(tuples, shares, correct)
        return Evaluation(tuples, correct, self._name("model"), dataset)

    def _name(self, key: str) -> str:
        found = self.fields.get(key)
        if not isinstance(found, str) or not found:
            raise self.wrong(key, f"is {shown(found)}; a name is wanted")
        return found

    def _list(self, key: str) -> list[Any]:
        found = self.fields.get(key)
        if not isinstance(found, list) or not found:
            raise self.wrong(key, f"is {shown(found)}; a list is wanted")
        return found

    def _tuples(self) -> tuple[Widths, ...]:
        seen: dict[Widths, int] = {}
        for number, row in enumerate(self._list("tuples")):
            key = f"tuples.{number}"
            widths = self._widths(key, row)
            length = len(next(iter(seen), widths))
            if len(widths) != length:
                raise self.wrong(key, f"{shown(row)} has {len(widths)} widths, the first tuple has {length}")
            if widths in seen:
                raise self.wrong(key, f"{shown(row)} stands at tuples.{seen[widths]} already")
            seen[widths] = number
        self._require_grid(seen)
        return tuple(seen)

    def _widths(self, key: str, row: Any) -> Widths:
        if not isinstance(row, list) or not 1 <= len(row) <= MOST_SEGMENTS:
            raise self.wrong(key, f"is {shown(row)}; a list of 1 to {MOST_SEGMENTS} widths is wanted")
        for width in row:
            if not _is_number(width) or not 0 < width <= 1:
                raise self.wrong(key, f"{shown(row)} has the width {shown(width)}; allowed is above 0, up to 1")
        return tuple(float(width) for width in row)

    def _require_grid(self, known: Mapping[Widths, int]) -> None:
        """Every combination of the widths that occur: a router may ask for any."""
        widths, segments = sorted({width for row in known for width in row}), len(next(iter(known)))
        missing = len(widths) ** segments - len(known)
        if missing:
            first = next(row for row in product(widths, repeat=segments) if row not in known)
            problem = f"{missing} of the {len(widths)}^{segments} combinations of {shown(widths)} are missing"
            raise self.wrong("tuples", f"{problem}, first {list(first)}")

    def _shares(self, tuples: tuple[Widths, ...]) -> tuple[float, ...]:
        found = self._list("top1")
        if len(found) != len(tuples):
            raise self.wrong("top1", f"has {len(found)} values for {len(tuples)} tuples")
        for number, (share, widths) in enumerate(zip(found, tuples, strict=True)):
            if not _is_number(share) or not 0 <= share <= 1:
                raise self.wrong(f"top1.{number}", f"is {shown(share)} for {list(widths)}; allowed is 0 to 1")
        return tuple(float(share) for share in found)

    def _images(self, tuples: int) -> int:
        found = self.fields.get("images")
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.wrong("images", f"is {shown(found)}; a measured table has the number of its test images")
        if found < FEWEST_IMAGES:
            problem = f"is {found}; at least {FEWEST_IMAGES} are wanted"
            raise self.wrong("images", f"{problem}, for fewer leave a standard error of 5 points and more")
        if found * tuples > MOST_BITS:
            raise self.wrong("images", f"is {shown(found)}; images x tuples may be {MOST_BITS:.0e}")
        return found

    def _correct(self, images: int, tuples: int) -> NDArray[np.bool_]:
        found, bits = self.fields.get("correct"), images * tuples
        if not isinstance(found, str):
            raise self.wrong("correct", f"is {shown(found)}; a measured table has the correctness bits")
        try:
            packed = _inflated(base64.b64decode(found, validate=True), -(-bits // 8))
        except (ValueError, zlib.error) as error:
            raise self.wrong("correct", f"broken bits of {images} images x {tuples} tuples ({error})") from None
        flat = np.unpackbits(np.frombuffer(packed, np.uint8), count=bits)
        return flat.astype(bool).reshape(images, tuples)

    def _require_agreement(
        self, tuples: tuple[Widths, ...], shares: tuple[float, ...], correct: NDArray[np.bool_]
    ) -> None:
        counted = correct.mean(axis=0)
        for number, (widths, share) in enumerate(zip(tuples, shares, strict=True)):
            if abs(share - counted[number]) > TOLERANCE:
                problem = f"is {share:g} for {list(widths)}, but the bits say {counted[number]:g}"
                raise self.wrong(f"top1.{number}", problem)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _inflated(data: bytes, size: int) -> bytes:
    """Exactly `size` bytes from a zlib stream; never more than one byte beyond it is made."""
    stream = zlib.decompressobj()
    found = stream.decompress(data, size + 1)
    if len(found) > size:
        raise ValueError(f"more than the {size} bytes expected")
    if len(found) < size or not stream.eof:
        raise ValueError(f"cut off after {len(found)} of {size} bytes")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes behind the end")
    return found
