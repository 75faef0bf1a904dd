"""The accuracy of every width tuple, its file `slimsched.accuracy/2`, and the settings that identify a network.

The module reads, checks and writes tables. It runs no network, so that a simulation can have a table without torch.

The file is JSON. Its key `correct` holds the matrix of bits image by image (most significant bit first), compressed by
zlib and encoded in base64. An image's tuples are together because they mostly agree, which improves compression.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kit import strict
from kit.documents import no_number
from kit.errors import InputError
from kit.files import atomic_path, read_bytes
from kit.plugins import is_own, source_hash
from kit.strict import StrictModel

SCHEMA: Final = "slimsched.accuracy/2"
MEASURED: Final = "measured"
PAPER: Final = "paper"
MIN_IMAGES: Final = 100  # sqrt(0.25 / 100): the standard error of a share of so few is up to 5 points
MAX_BITS: Final = 10**9  # images x tuples; one byte each once read
MAX_SEGMENTS: Final = 32
TOLERANCE: Final = 1e-6  # of top1 against the bits, for a table that was rounded

AccuracyProvenance: TypeAlias = Literal["measured", "paper"]
Widths: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """The test images that a network classifies correctly: a `measured` table.

    Attributes:
        tuples: (T,) width tuples of length S.
        correct: (images, T) bool.
        hash: of the network's weights.
        dataset: the data set's name; its images are in the set's order.
        made_with: settings of the scenario that it was made for, in words; empty if unknown.
    """

    tuples: tuple[Widths, ...]
    correct: NDArray[np.bool_]
    hash: str
    dataset: str
    made_with: Mapping[str, str] = field(default_factory=dict)

    def top1(self) -> dict[Widths, float]:
        """Return the share of images that each tuple classifies correctly."""
        return dict(zip(self.tuples, self.correct.mean(axis=0).tolist(), strict=True))


@dataclass(frozen=True)
class PaperTable:
    """Published accuracies of a network that is not available here: no images, no weights.

    Attributes:
        tuples: (T,) width tuples of length S.
        shares: (T,) top-1 in [0, 1].
        dataset: the data set's name.
    """

    tuples: tuple[Widths, ...]
    shares: tuple[float, ...]
    dataset: str

    def top1(self) -> dict[Widths, float]:
        """Return the published share of images that each tuple classifies correctly."""
        return dict(zip(self.tuples, self.shares, strict=True))


AccuracyTable: TypeAlias = Evaluation | PaperTable


# ------------------------------------------------------------------------------------------------------------- writing


def accuracy_text(table: AccuracyTable) -> str:
    """Return the file's text: one line per tuple, and the bits in one."""
    measured = table if isinstance(table, Evaluation) else None
    fields = {
        "schema": json.dumps(SCHEMA),
        "provenance": json.dumps(MEASURED if measured else PAPER),
        "model": json.dumps(measured.hash if measured else None),
        "dataset": json.dumps(table.dataset),
        "images": json.dumps(len(measured.correct) if measured else None),
        **({"made_with": json.dumps(dict(measured.made_with))} if measured and measured.made_with else {}),
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
    """Load a table that `save_accuracy` wrote, with all checks.

    Raises:
        InputError: the file is missing, foreign, incomplete or contradicts itself.
    """
    content, raw = read_bytes(path, hint="; `slimsched model train` writes one"), dict[str, Any]()
    try:
        document = json.loads(content)
        raw = document if isinstance(document, dict) else raw
        return _table(strict.validate(_Document, raw, str(path)), str(path))
    except InputError as error:
        remedy = "delete the file and write it again with `slimsched model train`"
        if raw.get("provenance") == PAPER:
            remedy = "correct the file, or write the paper's with `python -m benchmarks paper-table`"
        raise InputError(str(path), error.key, f"{error.problem}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        problem = f"is not a table of accuracies: cannot be read as JSON ({error}); `slimsched model train` writes one"
        raise InputError(str(path), "", problem) from None


_Name = Annotated[str, Field(min_length=1)]
_Row = Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1, max_length=MAX_SEGMENTS)]


class _Document(StrictModel):
    """A table's JSON, whose parts may contradict each other still."""

    schema_: Literal["slimsched.accuracy/2"] = Field(alias="schema")
    provenance: AccuracyProvenance
    model: _Name | None
    dataset: _Name
    images: Annotated[int, Field(ge=MIN_IMAGES)] | None
    made_with: dict[str, str] = Field(default_factory=dict)
    tuples: Annotated[tuple[_Row, ...], Field(min_length=1)]
    top1: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    correct: str | None


def _table(document: _Document, source: str) -> AccuracyTable:
    """Return the table of a document whose parts agree; raises `InputError` with the key at fault."""
    for key in ("model", "images", "correct"):
        if (getattr(document, key) is None) != (document.provenance == PAPER):
            expected = "null in a table of the paper" if document.provenance == PAPER else "given in a measured table"
            raise InputError(source, key, f"must be {expected}")
    _require_grid(document.tuples, source)
    if len(document.top1) != len(document.tuples):
        raise InputError(source, "top1", f"has {len(document.top1)} values for {len(document.tuples)} tuples")
    if document.model is None or document.images is None or document.correct is None:
        return PaperTable(document.tuples, document.top1, document.dataset)
    correct = _bits(document.correct, document.images, len(document.tuples), source)
    for number, (share, counted) in enumerate(zip(document.top1, correct.mean(axis=0), strict=True)):
        if abs(share - counted) > TOLERANCE:
            problem = f"is {share:g} for {list(document.tuples[number])}, but the bits say {counted:g}"
            raise InputError(source, f"top1.{number}", problem)
    return Evaluation(document.tuples, correct, document.model, document.dataset, document.made_with)


def _require_grid(tuples: Sequence[Widths], source: str) -> None:
    """Require each combination of the widths that occur together, once: a router may ask for any. Models have separate
    grids.
    """
    numbers: dict[Widths, int] = {}
    for number, row in enumerate(tuples):
        if len(row) != len(tuples[0]):
            problem = f"{list(row)} has {len(row)} widths, the first tuple has {len(tuples[0])}"
            raise InputError(source, f"tuples.{number}", problem)
        if row in numbers:
            raise InputError(source, f"tuples.{number}", f"{list(row)} is already at tuples.{numbers[row]}")
        numbers[row] = number
    together: list[set[float]] = []
    for row in tuples:
        joined = [widths for widths in together if not widths.isdisjoint(row)]
        together = [widths for widths in together if widths.isdisjoint(row)]
        together.append(set(row).union(*joined))
    for widths in map(sorted, together):
        every = list(product(widths, repeat=len(tuples[0])))
        if missing := [row for row in every if row not in numbers]:
            problem = f"{len(missing)} of the {len(widths)}^{len(tuples[0])} combinations of {widths} are missing"
            raise InputError(source, "tuples", f"{problem}, first {list(missing[0])}")


def _bits(text: str, images: int, tuples: int, source: str) -> NDArray[np.bool_]:
    """Return the bits as (images, tuples)."""
    if images * tuples > MAX_BITS:
        raise InputError(source, "images", f"is {images}; images x tuples may be {MAX_BITS:.0e}")
    try:
        packed = _inflated(base64.b64decode(text, validate=True), -(-images * tuples // 8))
    except (ValueError, zlib.error) as error:
        problem = f"broken bits of {images} images x {tuples} tuples ({error})"
        raise InputError(source, "correct", problem) from None
    flat = np.unpackbits(np.frombuffer(packed, np.uint8), count=images * tuples)
    return flat.astype(bool).reshape(images, tuples)


def _inflated(data: bytes, size: int) -> bytes:
    """Return exactly `size` bytes from a zlib stream; never more than one byte beyond it is made."""
    stream = zlib.decompressobj()
    content = stream.decompress(data, size + 1)
    if len(content) > size:
        raise ValueError(f"more than the {size} bytes expected")
    if len(content) < size or not stream.eof:
        raise ValueError(f"cut off after {len(content)} of {size} bytes")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes behind the end")
    return content


def options_of(text: str) -> dict[str, Any]:
    """Return a class's arguments, from the JSON behind its name; raises `ValueError` if that is not a JSON object."""
    try:
        options = json.loads(text or "{}", parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.80} is not JSON ({error})") from None
    if not isinstance(options, dict):
        raise ValueError(f'{text!r:.80} is not a JSON object, such as {{"classes": 10}}')
    return options


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Return its name and options in one line: two networks are the same if these are."""
    return f"{name} {json.dumps(dict(options), sort_keys=True)}" if options else name


def network_settings(name: str, options: Mapping[str, Any], source: str, key: str) -> dict[str, str]:
    """Return name and options, and the hash of a user's code: results for other values of these are stale.

    Args:
        source, key: of the name, for messages.

    Raises:
        InputError: the code does not exist.
    """
    code = {f"the code of {name}": source_hash(name, source, key)} if is_own(name) else {}
    return {"model.network": label_of(name, options)} | code
