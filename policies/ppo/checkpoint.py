"""Routers as files: safetensors with what it is in the header. Reading one executes nothing; it knows no cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from policies.errors import InputError
from policies.files import atomic_path

SCHEMA = "slimsched.router/1"
POLICY = "policy."  # what the network's tensors begin with; a training checkpoint has the optimizer's beside them

Tensors = dict[str, npt.NDArray[Any]]


def write(path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Atomically: a reader finds the old file or the new one, whole."""
    content = save(
        {name: np.array(value, order="C") for name, value in tensors.items()}, {**metadata, "schema": SCHEMA}
    )
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Tensors and header; raises `InputError` where the file is missing or is not a router."""
    if not path.is_file():
        raise InputError(str(path), "", "no such file; a router's file is what `slimsched train` wrote")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError) as error:
        raise InputError(str(path), "", f"not a safetensors file, or damaged ({error})") from error
    if metadata.get("schema") != SCHEMA:
        found = metadata.get("schema", "none")
        raise InputError(str(path), "schema", f"found {found}, expected {SCHEMA}: not a router of this version")
    return tensors, metadata


def kind_of(path: Path) -> str:
    """What a router's file says it is: `ppo` where it says nothing; raises `InputError` as `read` does."""
    return read(path)[1].get("kind", "ppo")
