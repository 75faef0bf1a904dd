"""Evidence, stored after each check: `evidence.json`, `evidence.md` and `evidence.tgz`, complete at any time."""

from __future__ import annotations

import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch

from benchmarks.marked import commit_here
from kit.documents import write_json, write_text
from kit.files import atomic_path
from scenarios.show.tables import Table, columns, to_markdown

SCHEMA: Final = "slimsched.gpu/1"
ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = (".gz", ".parquet", ".safetensors")  # of runs and networks: too large to transfer
Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        reason: why it failed or was skipped; empty if it passed.
        numbers: its measurements, by name, units last.
        took_s: time of its process, the start included.
    """

    id: str
    verdict: Verdict
    reason: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


def stamps(kind: str, commit: str = "") -> dict[str, str]:
    """Return what was measured and where; without a given commit git is queried, and may be missing."""
    stamp = {
        "place": kind,
        "commit": commit or commit_here() or "unknown",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
    }
    return {**stamp, "gpu": torch.cuda.get_device_name(0)} if kind == "cuda" else stamp


def write(
    folder: Path, command: str, stamp: Mapping[str, str], whats: Mapping[str, str], evidence: Sequence[Finding]
) -> None:
    """Write the files for all results so far; the archive has the checks' files in this folder (E1's profile, say).

    Args:
        command: the command that was given.
        stamp: see `stamps`.
        whats: what each check inspects, by its id.
    """
    findings = [asdict(each) for each in evidence]
    write_json(
        folder / "evidence.json", {"schema": SCHEMA, "command": command, "stamps": dict(stamp), "found": findings}
    )
    rows = [
        [each.id, whats[each.id], each.verdict, each.reason, _words(each.numbers), f"{each.took_s:.1f}"]
        for each in evidence
    ]
    table = to_markdown(Table(columns("id", "what", "verdict", "reason", "numbers", "s"), rows))
    heads = "\n".join(f"- {name}: {value}" for name, value in stamp.items())
    write_text(folder / "evidence.md", f"# Evidence\n\n`{command}`\n\n{heads}\n\n{table}\n")
    with atomic_path(folder / "evidence.tgz") as temporary, tarfile.open(temporary, "w:gz") as archive:
        for path in sorted(folder.glob("*/**/*")):
            if path.is_file() and path.suffix not in LEFT_OUT:
                archive.add(path, path.relative_to(folder))


def _words(numbers: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {_word(value)}" for name, value in numbers.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
