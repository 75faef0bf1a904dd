"""Arithmetic on rows of float32: matrix products in a fixed order, exp and tanh, for any network.

Every sum has one order and one rounding for each term (fused multiply-add), whatever the tile of a row and the width of
the machine's registers. So a row has the same bits alone, in a tile and in training.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from kit.jit import Singles, kernel
from kit.jit_cache import IS_ON

LANES = 16  # columns of a block; rows of weights are padded to a multiple of it
_ROWS, _VECTORS = 4, 4  # of a block of several rows, and of a single row: this number of sums stays in registers

if IS_ON:
    _FLOAT, _INT = ir.FloatType(), ir.IntType(32)
    _VECTOR = ir.VectorType(_FLOAT, LANES)
    _code: Any = cgutils

    def _block(rows: int, vectors: int) -> Any:
        """Return an intrinsic: C[i, :] += A[i, k] B[k, :] for `rows` rows i, `vectors` times 16 columns and all k,
        ascending.

        A's element (i, k) is at `a_at + i row_step + k k_step`; rows of B and C have `columns` numbers.
        """

        # fmt: off
        def block(
            context: Any, c: Any, c_at: Any, a: Any, a_at: Any, row_step: Any, k_step: Any, b: Any, b_at: Any,
            terms: Any, columns: Any,
        ) -> Any:
            signature = types.void(c, c_at, a, a_at, row_step, k_step, b, b_at, terms, columns)
            return signature, lambda context, builder, _, values: _block_code(context, builder, rows, vectors, *values)
        # fmt: on

        return intrinsic(block)

    def _block_code(context: Any, builder: Any, rows: int, vectors: int, *values: Any) -> Any:
        """Generate code: the sums are loaded, stay in registers through the loop over k, and are stored."""
        c, c_at, a, a_at, row_step, k_step, b, b_at, terms, columns = values

        def vector(base: Any, at: Any, index: Any, part: int) -> Any:
            start = builder.add(at, at.type(part * LANES))
            return builder.bitcast(_place(builder, base, start, columns, index), _VECTOR.as_pointer())

        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        add_product = _code.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        parts = [(row, part) for row in range(rows) for part in range(vectors)]
        places = [vector(c, c_at, columns.type(row), part) for row, part in parts]
        sums = [_code.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
        with _code.for_range(builder, terms) as loop:
            b_row = [builder.load(vector(b, b_at, loop.index, part), align=4) for part in range(vectors)]
            a_k = builder.add(a_at, builder.mul(k_step, loop.index))
            column = [builder.load(_place(builder, a, a_k, row_step, row_step.type(row))) for row in range(rows)]
            factors = [_in_all_lanes(builder, factor) for factor in column]
            for (row, part), total in zip(parts, sums, strict=True):
                builder.store(builder.call(add_product, [factors[row], b_row[part], builder.load(total)]), total)
        for place, total in zip(places, sums, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    def _place(builder: Any, base: Any, at: Any, step: Any, index: Any) -> Any:
        return builder.gep(base, [builder.add(at, builder.mul(step, index))])

    def _in_all_lanes(builder: Any, number: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(nothing, number, _INT(0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, LANES), None))

    _block_of_4 = _block(_ROWS, 1)
    _block_of_1 = _block(1, 1)
    _line = _block(1, _VECTORS)

    def _fused(context: Any, a: Any, b: Any, c: Any) -> Any:
        return types.float32(a, b, c), lambda _, builder, __, values: builder.fma(*values)

    def _power_of_two(context: Any, exponent: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(builder.shl(builder.add(values[0], _INT(127)), _INT(23)), _FLOAT)

        return types.float32(types.int32), generate

    fused: Any = intrinsic(_fused)
    power_of_two: Any = intrinsic(_power_of_two)
else:

    def _interpreted(rows: int, vectors: int) -> Any:
        def block(
            c: Any,
            c_at: int,
            a: Any,
            a_at: int,
            row_step: int,
            k_step: int,
            b: Any,
            b_at: int,
            terms: int,
            columns: int,
        ) -> None:
            for i in range(rows):
                to = slice(c_at + i * columns, c_at + i * columns + vectors * LANES)
                for k in range(terms):
                    row = b[b_at + k * columns : b_at + k * columns + vectors * LANES]
                    c[to] = a[a_at + i * row_step + k * k_step].astype(np.float64) * row + c[to]

        return block

    _block_of_4 = _interpreted(_ROWS, 1)
    _block_of_1 = _interpreted(1, 1)
    _line = _interpreted(1, _VECTORS)

    def fused(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
        """Compute A b + c, rounded once (except for rare double rounding)."""
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))

    def power_of_two(exponent: np.int32) -> np.float32:
        """Compute 2 to the power of an int32 in [-126, 127], as float32."""
        return np.float32(math.ldexp(1.0, int(exponent)))


@kernel
def multiply(
    c: Singles,
    c_at: int,
    a: Singles,
    a_at: int,
    row_step: int,
    k_step: int,
    b: Singles,
    b_at: int,
    rows: int,
    terms: int,
    columns: int,
) -> None:
    """Compute C += A B, for A (rows, terms), B (terms, columns) and C (rows, columns), each at its offset in memory.

    B and C are row-major; A's element (i, k) is at `a_at + i row_step + k k_step`, so A may be a transpose. `columns`
    is a multiple of `LANES`. Each element of C is a sum over k, ascending, that starts from its present value.
    """
    whole = rows - rows % _ROWS
    for i in range(0, whole, _ROWS):
        for column in range(0, columns, LANES):
            to, from_a = c_at + i * columns + column, a_at + i * row_step
            _block_of_4(c, to, a, from_a, row_step, k_step, b, b_at + column, terms, columns)
    in_lines = columns - columns % (_VECTORS * LANES)
    for i in range(whole, rows):
        for column in range(0, in_lines, _VECTORS * LANES):
            to, from_a = c_at + i * columns + column, a_at + i * row_step
            _line(c, to, a, from_a, row_step, k_step, b, b_at + column, terms, columns)
        for column in range(in_lines, columns, LANES):
            to, from_a = c_at + i * columns + column, a_at + i * row_step
            _block_of_1(c, to, a, from_a, row_step, k_step, b, b_at + column, terms, columns)


# -------------------------------------------------------------------------------------------------- exp, tanh

LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)  # exp is a normal float32 in between
_LOG2_E = np.float32(math.log2(math.e))
_LN2_HIGH = np.float32(0.693359375)  # nine bits: times a whole number below 2^15 it is exact
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_TO_WHOLE = np.float32(1.5 * 2**23)  # adding and subtracting it rounds to a whole number
_ZERO = np.float32(0)
_ONE = np.float32(1)
_TWO = np.float32(2)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@kernel
def exp(x: np.float32) -> np.float32:
    """Compute e^x for x up to 88; 0 below -87. Relative error below 1.2e-7.

    x = n ln 2 + r with |r| <= ln 2 / 2: 2^n times Taylor's polynomial of degree 7 (its remainder is below 6e-9).
    """
    inside = min(max(x, LOWEST), _HIGHEST)
    n = (inside * _LOG2_E + _TO_WHOLE) - _TO_WHOLE
    r = fused(n, -_LN2_LOW, fused(n, -_LN2_HIGH, inside))
    tail = fused(r, fused(r, fused(r, fused(r, fused(r, _C7, _C6), _C5), _C4), _C3), _C2)
    power = fused(r, fused(r, tail, _ONE), _ONE) * power_of_two(np.int32(n))
    return power if x >= LOWEST else _ZERO


@kernel
def tanh(x: np.float32) -> np.float32:
    """Compute 1 - 2 / (e^2x + 1). Absolute error below 2e-7; exactly 0 at 0."""
    return _ONE - _TWO / (exp(x + x) + _ONE)
