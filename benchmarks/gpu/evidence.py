"""What was seen, kept after each check: `evidence.json`, `evidence.md` and `evidence.tgz`, whole at any time."""

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
from scenarios.show.table import Table, columns, to_markdown

SCHEMA: Final = "slimsched.gpu/1"
ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = (".gz", ".parquet", ".safetensors")  # of runs and networks: too large to travel
Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        reason: why it failed or was skipped; empty where it passed.
        numbers: what it measured, by name, units last.
        took_s: of its process, the start included.
    """

    id: str
    verdict: Verdict
    reason: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


def stamps(place: str, commit: str = "") -> dict[str, str]:
    """Of what and where everything was seen; git is asked for a commit that is not given, and need not be there."""
    stamp = {
        "place": place,
        "commit": commit or commit_here() or "unknown",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
    }
    return {**stamp, "gpu": torch.cuda.get_device_name(0)} if place == "cuda" else stamp


def write(
    folder: Path, command: str, told: Mapping[str, str], whats: Mapping[str, str], evidence: Sequence[Finding]
) -> None:
    """The files, for all that was found so far; the archive has what checks left in this folder (E1's profile, say).

    Args:
        command: that was given.
        told: see `stamps`.
        whats: what each check looks at, by its id.
    """
    findings = [asdict(each) for each in evidence]
    write_json(
        folder / "evidence.json", {"schema": SCHEMA, "command": command, "stamps": dict(told), "found": findings}
    )
    rows = [
        [each.id, whats[each.id], each.verdict, each.reason, _words(each.numbers), f"{each.took_s:.1f}"]
        for each in evidence
    ]
    table = to_markdown(Table(columns("id", "what", "verdict", "reason", "numbers", "s"), rows))
    heads = "\n".join(f"- {name}: {value}" for name, value in told.items())
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
