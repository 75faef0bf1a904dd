"""Tensors of the Open Inference Protocol: numpy's arrays, their datatypes, and their bytes as Triton's binary extension
has them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

BYTES: Final = "BYTES"
DATATYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "FP32": np.dtype("<f4"),
    "UINT8": np.dtype("u1"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "FP64": np.dtype("<f8"),
    "BOOL": np.dtype("?"),
    BYTES: np.dtype("O"),  # each value is `bytes`
}
_NAMES: Final = {datatype: name for name, datatype in DATATYPES.items()}
_LENGTH: Final = 4  # bytes of a value's length in front of it
_IN_JSON: Final[Mapping[str, tuple[set[type], str]]] = {
    "f": ({int, float}, "numbers"),
    "b": ({bool}, "true or false"),
    "O": ({str, bytes}, "texts"),
}
_WHOLE: Final[tuple[set[type], str]] = ({int}, "whole numbers")

Arrays = Mapping[str, NDArray[Any]]


class TensorError(ValueError):
    """Values that do not fit their datatype or shape."""


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """A tensor as it travels between processes of this host."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def of(cls, value: Any) -> Tensor:
        """Return an array, or what makes one; text becomes `BYTES`. Raises `TensorError` for any other kind."""
        array = np.asarray(value)
        if array.dtype.kind in "OSU":
            flat = [each.encode() if isinstance(each, str) else each for each in array.ravel().tolist()]
            array = np.array(flat, object).reshape(array.shape)
        return cls(datatype_of(array), array.shape, raw_of(array))

    @property
    def array(self) -> NDArray[Any]:
        """The array."""
        return from_raw(self.raw, DATATYPES[self.datatype], int(np.prod(self.shape))).reshape(self.shape)


def datatype_of(array: NDArray[Any]) -> str:
    """Return the protocol's name of an array's datatype; raises `TensorError` for one without a name here."""
    if (name := _NAMES.get(array.dtype.newbyteorder("<"))) is None:
        raise TensorError(f"found an array of {array.dtype}, expected one of {', '.join(DATATYPES)}")
    return name


def raw_of(array: NDArray[Any]) -> bytes:
    """Return an array's bytes; values of `BYTES` have their length in front."""
    if array.dtype.kind != "O":
        return array.tobytes()
    if not all(isinstance(value, bytes) for value in array.flat):
        raise TensorError("found an array of Python's objects, expected text or bytes")
    return b"".join(len(value).to_bytes(_LENGTH, "little") + value for value in array.flat)


def from_raw(raw: bytes | memoryview, datatype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return that number of values; raises `TensorError` if the bytes are others."""
    if datatype.kind != "O":
        if len(raw) != count * datatype.itemsize:
            raise TensorError(f"found {len(raw)} bytes, its shape makes {count * datatype.itemsize}")
        return np.frombuffer(raw, datatype)
    values, rest = list[bytes](), memoryview(raw)
    while len(rest) >= _LENGTH and len(values) < count:
        end = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
        values.append(bytes(rest[_LENGTH:end]))
        rest = rest[end:] if end <= len(rest) else memoryview(b"?")
    if len(rest) or len(values) != count:
        raise TensorError(f"expected {count} values of {BYTES}, each after its length in {_LENGTH} bytes")
    return np.array(values, datatype)


def from_json(data: list[Any] | None, datatype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return that number of values, flat or nested in JSON; raises `TensorError` if they are others."""
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise TensorError("lists next to numbers")
        data = list(chain.from_iterable(data))
    if data is None or len(data) != count:
        raise TensorError(f"found {len(data or ())} values, its shape makes {count}")
    kinds, expected = _IN_JSON.get(datatype.kind, _WHOLE)
    if not kinds.issuperset(map(type, data)):
        raise TensorError(f"expected {expected}")
    if datatype.kind == "O":
        return np.array([each.encode() if isinstance(each, str) else each for each in data], datatype)
    if datatype.kind in "iu" and not np.iinfo(datatype).min <= min(data) <= max(data) <= np.iinfo(datatype).max:
        raise TensorError(f"expected {np.iinfo(datatype).min} to {np.iinfo(datatype).max}")
    try:
        with np.errstate(over="ignore"):  # infinity, which is refused
            return np.array(data, datatype)
    except OverflowError:
        raise TensorError("holds a number that is too large") from None


def to_json(array: NDArray[Any]) -> list[Any]:
    """Return all values, flat; those of `BYTES` as text."""
    values = array.ravel().tolist()
    return [value.decode(errors="replace") for value in values] if array.dtype.kind == "O" else values
