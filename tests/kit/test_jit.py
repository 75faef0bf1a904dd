"""When compiled code is made again: when a source that it may hold something of has changed, and not else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.jit_cache import IS_ON

ASK = "import own.entries; from kit.jit_cache import sources_hash; print(sources_hash('own.entries'))"


def hash_of(folder: Path, **changed: str) -> str:
    """The hash of a package's entries as a new process sees it, after these sources were written."""
    (folder / "own").mkdir(exist_ok=True)
    for name, source in changed.items():
        (folder / "own" / f"{name}.py").write_text(source)
    done = subprocess.run([sys.executable, "-c", ASK], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_code_is_kept_until_something_that_it_imports_has_changed(tmp_path: Path) -> None:
    sources = {
        "entries": "from own.kernels import (\n    double,\n)\n",
        "kernels": "from own import numbers\ndouble = numbers.TWO\n",
        "numbers": "TWO = 2\n",
        "other": "",
    }
    before = hash_of(tmp_path, **sources)
    assert hash_of(tmp_path, other='"""Only a docstring, and nobody imports it."""\n') == before
    assert hash_of(tmp_path, numbers="TWO = 3\n") != before, "a constant of a callee's callee"
    assert hash_of(tmp_path, numbers="TWO = 2\n") == before


def test_sources_of_the_compiled_engine_are_complete() -> None:
    """The rules in `policies` are sources as well, whether they are imported yet or not."""
    code = "from kit.jit_cache import sources_of; print(*sources_of('sim.compiled.event_loop'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"policies.compiled.rule_kernels", "sim.compiled.event_loop", "kit.jit", "kit.random_streams"} <= {
        *done.stdout.split()
    }


ENTRIES = """\
import numpy as np
from own.kernels import FACTOR
from kit.jit import entry

@entry
def times(numbers):
    return FACTOR * numbers[0]
"""
IS_KEPT = "import sys, own; from kit.jit_cache import is_kept; print(is_kept('own.entries', 'times'), *sys.modules)"
ON_ANOTHER = f"from kit import jit_cache; jit_cache._processor = lambda: 'another'; {IS_KEPT}"


def asked(folder: Path, code: str = IS_KEPT, **environment: str) -> bool:
    """Whether a new process knows that the entry's code is kept; it opens neither the entry nor Numba."""
    environment = {**os.environ, "SLIMSCHED_CACHE": str(folder / "kept"), **environment}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    answer, *opened = done.stdout.split()
    assert not {"numba", "own.entries"} & {*opened}
    return answer == "True"


@pytest.mark.skipif(not IS_ON, reason="nothing is compiled with SLIMSCHED_JIT=0")
def test_whether_code_is_kept_is_known_without_numba(tmp_path: Path) -> None:
    """Of these sources, on this processor, where Numba put it: it is asked before Numba is opened."""
    (tmp_path / "own").mkdir()
    for name, source in {"__init__": "", "entries": ENTRIES, "kernels": "FACTOR = 2\n", "other": ""}.items():
        (tmp_path / "own" / f"{name}.py").write_text(source)
    compiling = "import numpy as np, own.entries; assert own.entries.times(np.array([21])) == 42"
    environment = {**os.environ, "SLIMSCHED_CACHE": str(tmp_path / "kept")}
    assert not asked(tmp_path)
    subprocess.run([sys.executable, "-c", compiling], cwd=tmp_path, env=environment, check=True)
    assert asked(tmp_path)
    assert not asked(tmp_path, SLIMSCHED_CACHE=str(tmp_path / "elsewhere"))
    assert not asked(tmp_path, SLIMSCHED_JIT="0")
    assert not asked(tmp_path, ON_ANOTHER)
    assert not asked(tmp_path, IS_KEPT.replace("times", "other"))
    os.utime(tmp_path / "own" / "entries.py", (2e9, 2e9))  # installed again
    assert asked(tmp_path)
    (tmp_path / "own" / "kernels.py").write_text("FACTOR = 3\n")
    assert not asked(tmp_path)
