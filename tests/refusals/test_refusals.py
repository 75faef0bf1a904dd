"""What a user gets wrong is refused in one line. The tables of this folder have each mistake and its line.

A case is what is typed, and the line; or it has a name and these keys:

    scenario: texts of the scenario `tiny.yaml` (tests/scenarios/files.py), and what stands there instead
    more:     what stands below it
    profile:  as `scenario`, of the profile `fast.yaml` that it names
    jobs:     keys of a scenario of training jobs, `s.yaml`; `jobs compare s.yaml` is typed where nothing is said
    files:    what else lies in the folder, by name; a name that ends with / is a folder
    run:      what is typed, `simulate tiny.yaml` where nothing is said
    code:     the exit code, 2 where nothing is said
    line:     what is printed on standard error; `...` stands for anything, HERE for the folder, and, here as in the
              other texts, SCENARIOS for what ships
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from slimsched.cli import main
from tests.jobs.experiments import trace_of, write_case
from tests.scenarios.files import write_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CASES = {
    f"{table.stem}: {name}": case if isinstance(case, dict) else {"run": name, "line": case}
    for table in sorted(Path(__file__).parent.glob("*.yaml"))
    for name, case in yaml.safe_load(table.read_text(encoding="utf-8")).items()
}
FOUR = trace_of([(0, 100, 1), (10, 50, 2), (20, 50, 4), (30, 10, 1)])
MAX_CHARACTERS = 2100


def prepare(case: dict[str, Any], folder: Path) -> None:
    """Write the files of a case."""
    scenario = write_scenario(folder)
    for path, replaced in ((scenario, "scenario"), (folder / "fast.yaml", "profile")):
        for old, new in case.get(replaced, {}).items():
            assert old in path.read_text(), f"{old!r} is not in {path.name}"
            path.write_text(path.read_text().replace(old, new.replace("SCENARIOS", str(SCENARIOS)), 1))
    scenario.write_text(scenario.read_text() + case.get("more", ""))
    if "jobs" in case:
        write_case(folder, FOUR, **case["jobs"])
    for name, content in case.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file and folder that is a user's: what a run folder is made of lies in `runs`."""
    every = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    return {path: content for path, content in every.items() if not {"runs", "__pycache__"} & {*path.parts}}


def refusal_of(case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line without the program's name; nothing else may be printed, and no file touched."""
    prepare(case, folder)
    before, modules = contents(folder), set(sys.modules)
    typed = case.get("run", "jobs compare s.yaml" if "jobs" in case else "simulate tiny.yaml")
    words = shlex.split(typed.replace("SCENARIOS", str(SCENARIOS)))
    assert main(words) == case.get("code", 2)
    for name in {*sys.modules} - modules:  # a user's own
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    streams = capsys.readouterr()
    assert streams.out == ""
    assert contents(folder) == before
    assert streams.err.count("\n") == 1, streams.err
    assert streams.err[:-1].isprintable()
    assert len(streams.err) < MAX_CHARACTERS
    return (
        streams.err[:-1].removeprefix("slimsched: ").replace(str(SCENARIOS), "SCENARIOS").replace(str(folder), "HERE")
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mistake_has_its_line(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place, the value, what is allowed, and what to do."""
    monkeypatch.chdir(tmp_path)
    files = case.get("files", {})  # another test may have left one of that name, or a folder that has it
    monkeypatch.setattr(
        sys, "path", [part for part in sys.path if not any(Path(part, name).exists() for name in files)]
    )
    for name in files:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    line = refusal_of(case, tmp_path, capsys)
    pattern = ".*".join(map(re.escape, case["line"].split("...")))
    assert line == case["line"] or re.fullmatch(pattern, line)
