"""Routers as files: safetensors with a description in the header, and a checksum over both.

Reading a file executes nothing and requires no cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kit.errors import InputError
from kit.files import atomic_path, require_file, same_header

SCHEMA = "slimsched.router/1"
ROUTERS: Final = "a router's file is what `slimsched train` wrote"
CHECKSUM: Final = "checksum"  # the header's key
MAX_BYTES: Final = 1_000_000_000
MOST: Final = 1e9  # of a number: training produces none above it, and computing with one overflows
POLICY = "policy."  # prefix of the network's tensors; a training checkpoint also has the optimizer's

Tensors = dict[str, npt.NDArray[Any]]


def write(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], schema: str = SCHEMA
) -> None:
    """Write a file atomically: a reader finds the complete old file or the complete new one."""
    plain = {name: np.array(value, order="C") for name, value in tensors.items()}
    fields = {**metadata, "schema": schema}
    content = save(plain, {**fields, CHECKSUM: _checksum(plain, fields)})
    with atomic_path(path) as temporary:
        temporary.write_bytes(same_header(content))


def read(path: Path, schema: str = SCHEMA, made_by: str = ROUTERS) -> tuple[Tensors, dict[str, str]]:
    """Return tensors and header (without its checksum).

    Args:
        made_by: the commands that write such files.

    Raises:
        InputError: the file is missing, is not of the schema, was changed after it was written, or contains values that
            are not numbers or are out of range.
    """
    require_file(path, MAX_BYTES, hint=f"; {made_by}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
    except (SafetensorError, OSError, TypeError, ValueError) as error:  # the last two: a type that numpy lacks
        problem = f"not a safetensors file, or damaged ({error}); remove or replace it"
        raise InputError(str(path), "", problem) from error
    if metadata.get("schema") != schema:
        file_schema = metadata.get("schema", "none")
        file_kind, kind = (each.removeprefix("slimsched.").split("/")[0] for each in (file_schema, schema))
        problem = f"not a {kind} of this version" if file_kind == kind else f"this is not a {kind}; {made_by}"
        raise InputError(str(path), "schema", f"found {file_schema}, expected {schema}: {problem}")
    stored = metadata.pop(CHECKSUM, None)
    if stored != (computed := _checksum(tensors, metadata)):
        problem = f"is {stored!r:.40}, the content has {computed!r}: it was damaged or changed after it was written"
        raise InputError(str(path), CHECKSUM, f"{problem}; copy the file again, or train it again")
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not (np.abs(tensor) <= MOST).all():
            problem = f"holds numbers that are not finite, or beyond {MOST:g}; train it again"
            raise InputError(str(path), name[:100], problem)
    return tensors, metadata


def header(path: Path) -> dict[str, str]:
    """Return the header of a file of weights, a router's or a network's, without checking the weights.

    Raises:
        InputError: the file can't be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(str(path), "", f"not a safetensors file, or damaged ({error})") from None


def _checksum(tensors: Tensors, metadata: Mapping[str, str]) -> str:
    """Return 16 hex digits of the header, and of the tensors' names, types, shapes and values."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()[:16]
