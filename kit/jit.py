"""Compiled kernels: Numba's decorators with a cache keyed by all sources, and rows of raw memory.

A kernel is written as plain Python over records (`policies.compiled.plan_layout`) and *rows*: `request.retries += 1`,
`ints(p)[at + n]`. Compiled, both are pointers without bounds. With `SLIMSCHED_JIT=0` in the environment nothing is
compiled: they are views of the same memory, and the same source runs (slowly, with bounds) in the interpreter, to debug
it and to break it on purpose.

Numba's cache depends on the age of one file, and misses a change of a callee in another file. So a module's compiled
code is kept in a folder whose name is a hash of the module and of all that it imports (`kit.jit_cache`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

from kit.jit_cache import IS_ON, folder_of

Function = TypeVar("Function", bound=Callable[..., Any])

_njit: Any = numba.njit
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}


def kernel(function: Function) -> Function:
    """Compile a function that other compiled functions call."""
    return _linked(function) if IS_ON else function


def kernel_of(function: Callable[..., Any], **callees: Any) -> Any:
    """Compile a plain function, with these kernels instead of its functions of the same names."""
    return kernel(FunctionType(function.__code__, {**function.__globals__, **callees}))


def entry(function: Function) -> Function:
    """Compile a function that Python calls; its code, callees included, is cached on disk if possible."""
    if not IS_ON:
        return function
    folder = folder_of(function.__module__)
    if folder is None:
        return cast(Function, _njit(**_OPTIONS)(function))
    settings: Any = numba.config  # read when a function is decorated, and restored for other users of Numba
    previous, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        return cast(Function, _njit(cache=True, **_OPTIONS)(function))
    finally:
        settings.CACHE_DIR = previous


# --------------------------------------------------------------------------------------------------- linked, not built


class _Unset:
    """A code generator that leaves a function's environment unset: only code that raises uses it, and no kernel
    raises."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing."""


class _LinkedLibrary(JITCodeLibrary):
    """Code of a function that only compiled functions call: linked into theirs, and optimized there.

    Numba optimizes every function with all its callees and generates machine code for it each time it meets one. For a
    hundred and fifty small functions that call each other, this dominates the compile time.
    """

    @property
    def codegen(self) -> Any:
        """Return a code generator that sets nothing in machine code."""
        return _Unset(super().codegen)

    def add_llvm_module(self, module: Any) -> None:
        self._final_module.link_in(module)

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0 for no machine code, as Python can't call the function."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _LinkedCompiler(Compiler):
    def define_pipelines(self) -> Any:
        state = self.state
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


def _linked(function: Function) -> Function:
    """Compile once for all values of the arguments: Numba would compile again for each constant argument."""
    dispatcher = _njit(**_OPTIONS, pipeline_class=_LinkedCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    get_template = dispatcher.get_call_template

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return get_template(tuple(types.unliteral(argument) for argument in arguments), keywords)

    dispatcher.get_call_template = get_call_template
    return cast(Function, dispatcher)


# ---------------------------------------------------------------------------------------------------------------- rows


Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


def python_view(row: npt.NDArray[Any] | int, kind: Literal["q", "d", "B"]) -> Any:
    """Return an array's numbers, or those at an address, as Python's numbers; `kind` as in `struct`."""
    if not isinstance(row, np.ndarray):  # the length at an address is unknown
        return memoryview((ctypes.c_uint8 * (1 << 35)).from_address(int(row))).cast("B").cast(kind)
    return row.reshape(-1).view(np.uint8).data.cast(kind)


if IS_ON:

    def _pointer_to(number: types.Type) -> Any:
        """Return an intrinsic: array of numbers of this size, or a record -> pointer to its first one, read as
        `number`."""

        def row(typing_context: Any, array: Any) -> Any:
            pointer = types.CPointer(number)

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                first = arguments[0]
                if isinstance(array, types.Array):
                    first = context.make_array(signature.args[0])(context, builder, first).data
                return builder.bitcast(first, context.get_value_type(pointer))

            return pointer(array), generate

        return intrinsic(row)

    def _pointer_at(number: types.Type) -> Any:
        """Return an intrinsic: the address of the first of such numbers -> pointer to it."""

        def row(typing_context: Any, address: Any) -> Any:
            pointer = types.CPointer(number)

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return builder.inttoptr(arguments[0], context.get_value_type(pointer))

            return pointer(types.int64), generate

        return intrinsic(row)

    ints = _pointer_to(types.int64)
    reals = _pointer_to(types.float64)
    singles = _pointer_to(types.float32)
    ints_at = _pointer_at(types.int64)
    reals_at = _pointer_at(types.float64)
    bytes_at = _pointer_at(types.uint8)
else:

    def ints(row: Any) -> Ints:
        """Return the numbers of an array, or of a record and all that follows it, as int64."""
        return cast(Ints, row.view_as("q") if hasattr(row, "view_as") else python_view(row, "q"))

    def reals(row: Any) -> Reals:
        """Return the same memory, read as float64."""
        return cast(Reals, row.view_as("d") if hasattr(row, "view_as") else python_view(row, "d"))

    def singles(array: npt.NDArray[Any]) -> Singles:
        """Return a row of float32, whatever the array's shape."""
        return array.reshape(-1)

    def ints_at(address: int) -> Ints:
        """Return the row of int64 that begins at this address."""
        return cast(Ints, python_view(address, "q"))

    def reals_at(address: int) -> Reals:
        """Return the row of float64 that begins at this address."""
        return cast(Reals, python_view(address, "d"))

    def bytes_at(address: int) -> npt.NDArray[np.uint8]:
        """Return the row of bytes that begins at this address."""
        return cast(npt.NDArray[np.uint8], python_view(address, "B"))
