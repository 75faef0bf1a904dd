"""Runs a case on the null CUDA: in a process of its own, since the library must be there before torch is imported.

A case is a function of `tests.nullcuda.cases`; what it returns is read back as JSON. Processes that it starts, such as
workers, are on the null CUDA, too. `counts` reads what any of them asked for.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tests.nullcuda.build import LIBRARY, build, missing

ROOT: Final = Path(__file__).resolve().parents[2]
NULLCUDA: Final = [pytest.mark.nullcuda, pytest.mark.skipif(bool(missing()), reason=missing())]
LIMIT_S: Final = 200.0
_COUNTS: Final = "NULLCUDA_COUNTS"
_RECORD: Final = struct.Struct("24sq")  # as `Record` of nullcuda.cpp
_COUNTED: Final = 12
_TRACE: Final = 1 << 16


def environment(counted: Path, op_ns: int = 0, capture_ns: int = 0) -> dict[str, str]:
    """What a process needs to be on the null CUDA, with all that it starts.

    Args:
        counted: a folder, for a file of counts for each process.
        op_ns: how long the device takes for an operation.
        capture_ns: how long the host takes to instantiate a graph.
    """
    folder = build()
    return {
        **os.environ,
        "LD_PRELOAD": str(folder / LIBRARY),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        _COUNTS: str(counted),
        "NULLCUDA_OP_NS": str(op_ns),
        "NULLCUDA_CAPTURE_NS": str(capture_ns),
    }


def run_case(case: Callable[..., Any], *arguments: Any, op_ns: int = 0, capture_ns: int = 0) -> Any:
    """What a case returns.

    Args:
        arguments: plain data.
        op_ns, capture_ns: see `environment`.

    Raises:
        AssertionError: the case failed; the text is what its process printed.
    """
    with tempfile.TemporaryDirectory() as made:
        result = Path(made, "result.json")
        command = [sys.executable, "-m", __name__, case.__module__, case.__qualname__, json.dumps(arguments)]
        done = subprocess.run(
            [*command, str(result)],
            env=environment(Path(made), op_ns, capture_ns),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{case.__qualname__}{arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return json.loads(result.read_text())


def counts(pid: int | None = None) -> dict[str, int]:
    """What a process (this one, if none is given) has asked of the null CUDA so far, by name: see nullcuda.cpp."""
    data = _file(pid).read_bytes()[: _COUNTED * _RECORD.size]
    return {name.rstrip(b"\0").decode(): value for name, value in _RECORD.iter_unpack(data)}


def since(before: Mapping[str, int], pid: int | None = None) -> dict[str, int]:
    """What has been added to earlier counts."""
    return {name: value - before[name] for name, value in counts(pid).items()}


def trace(first: int) -> str:
    """What this process asked for, a letter each, from a count of `traced` on: k a kernel, g a graph, m an asynchronous
    copy, p a copy of pageable memory, w a wait, c the begin of a capture."""
    data = _file(None).read_bytes()[_COUNTED * _RECORD.size :]
    return "".join(chr(data[at % _TRACE]) for at in range(first, counts()["traced"]))


def _file(pid: int | None) -> Path:
    return Path(os.environ[_COUNTS], str(pid or os.getpid()))


if __name__ == "__main__":
    _, _module, _name, _arguments, _result = sys.argv
    Path(_result).write_text(json.dumps(getattr(import_module(_module), _name)(*json.loads(_arguments))))
