"""When compiled code is made anew: when a source that it may hold something of has changed, and not else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASK = "import own.entries; from policies.store import sources_hash; print(sources_hash('own.entries'))"


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
