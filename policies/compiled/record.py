"""Records: numbers in a row, declared once by name and type, and read by name in Python and in compiled code.

A row is one array of 8-byte numbers, and a record is a few consecutive ones:

    class Move(Record):
        end_ns = source = INT

    move = Move(block, p.moves_at, 2)     # the third of the moves at offset `p.moves_at` from the block
    move.end_ns = now + 5                # compiled, this is one store

A field is declared by its initial value: a whole number (INT is 0), a float (REAL is 0.0), or another record, which is
then nested (`times = Times.blank()`). Fields with the same initial value may share a line. A record is made from an
array of numbers, from the address of its first number, or from another record with an offset and, if several are
consecutive, an index. Nothing is copied: a record is a pointer, and it has no bounds in compiled code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kit.jit import python_view
from kit.jit_cache import IS_ON

INT: int = 0
REAL: float = 0.0


class Record:
    """The base class of records.

    Attributes:
        size: its length in numbers.
        offsets: the offset of each of its fields.
        dtype: the numpy type, for lists of records in Python.
        integers, floats, begin: in Python, its memory, read either way, and its offset there.
    """

    size: ClassVar[int] = 0
    offsets: ClassVar[dict[str, int]] = {}
    dtype: ClassVar[np.dtype[Any]]
    _first: ClassVar[npt.NDArray[np.int64]]
    __slots__ = ("begin", "floats", "integers")
    begin: int
    integers: Any
    floats: Any

    def __init__(self, base: Record | npt.NDArray[Any] | int, at: int = 0, number: int = 0) -> None:
        self.begin = int(at + number * self.size)
        if isinstance(base, Record):
            self.integers, self.floats, self.begin = base.integers, base.floats, self.begin + base.begin
        else:
            self.integers, self.floats = python_view(base, "q"), python_view(base, "d")

    def __init_subclass__(cls) -> None:
        given = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
        kinds = [(name, type(value)) for name, value in given.items()]
        fields = [(name, kind) for name, kind in kinds if kind in (int, float) or issubclass(kind, Record)]
        cls.offsets, cls.size = {}, 0
        for name, kind in fields:
            setattr(cls, name, _property(cls.size, kind))
            cls.offsets[name] = cls.size
            cls.size += kind.size if issubclass(kind, Record) else 1
        cls.dtype = np.dtype([(name, _dtype(kind)) for name, kind in fields], align=True)
        cls._first = np.zeros(cls.size, np.int64)
        for name, kind in fields:
            if issubclass(kind, Record):
                getattr(cls(cls._first), name).numbers[:] = given[name].numbers
            else:
                setattr(cls(cls._first), name, given[name])
        if IS_ON:
            _teach(cls)

    @classmethod
    def blank(cls) -> Self:
        """Return a new record with initial values."""
        return cls(cls._first.copy())

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The record's numbers."""
        return self.following[: self.size]

    @property
    def following(self) -> npt.NDArray[np.int64]:
        """All numbers from its first one on."""
        return np.asarray(self.view_as("q"))

    def view_as(self, kind: str) -> Any:
        """Return the same as Python's numbers; `kind` as in `struct`."""
        return (self.integers if kind == "q" else self.floats)[self.begin :]


def _dtype(kind: type) -> Any:
    return kind.dtype if issubclass(kind, Record) else np.float64 if kind is float else np.int64


def _property(offset: int, kind: type) -> property:
    if issubclass(kind, Record):
        return property(lambda self: kind(self, offset))
    if kind is float:

        def get_real(self: Any) -> float:
            return self.floats[self.begin + offset]

        def set_real(self: Any, value: float) -> None:
            self.floats[self.begin + offset] = value

        return property(get_real, set_real)

    def get(self: Any) -> int:
        return self.integers[self.begin + offset]

    def put(self: Any, value: int) -> None:
        self.integers[self.begin + offset] = value

    return property(get, put)


if IS_ON:
    from numba.core import types
    from numba.core.typing.templates import signature
    from numba.extending import lower_builtin, type_callable
    from numba.np.numpy_support import from_dtype

    def _teach(record: type[Record]) -> None:
        """Let compiled code create a record: as numpy's structured type, whose fields Numba reads and writes."""
        pointer = from_dtype(record.dtype)

        @type_callable(record)
        def _type(context: Any) -> Any:
            def typer(base: Any, at: Any = None, number: Any = None) -> Any:
                return signature(pointer, *[types.unliteral(each) for each in (base, at, number) if each is not None])

            return typer

        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind, *kinds = signature.args
            base, *counts = arguments
            numbers = context.get_value_type(types.CPointer(types.int64))
            if isinstance(kind, types.Array):
                base = context.make_array(kind)(context, builder, base).data
            base = (builder.inttoptr if isinstance(kind, types.Integer) else builder.bitcast)(base, numbers)
            for count, kind, size in zip(counts, kinds, (1, record.size), strict=False):
                steps = builder.mul(
                    context.cast(builder, count, kind, types.int64), context.get_constant(types.int64, size)
                )
                base = builder.gep(base, [steps])
            return builder.bitcast(base, context.get_value_type(pointer))

        for given in range(3):
            lower_builtin(record, types.Any, *[types.Integer] * given)(make)
