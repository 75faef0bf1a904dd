"""Where nothing can be written: every command says so in one line, with exit code 2, before it opens anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimsched.cli import main
from slimsched.commands import COMMANDS
from slimsched.launching import flags_of

GIVEN = {
    "profile check": ["--model", "x"],
    "model check": ["x"],
    "model add": ["--weights", "x", "--images", "x"],
    "model slim": ["--weights", "x", "--images", "x"],
    "jobs init": ["--nodes", "1x1"],
    "jobs whatif": ["--change", "a=1"],
    "jobs capacity": ["--wait", "1m"],
}
NAMES = {"--plot": "x.png"}  # that end as they must
WITHOUT = ("profile synth", "calibrate", "model check", "jobs generate", "list", "init")
FILES = ("profile synth", "model slim", "model join", "jobs import", "jobs generate", "jobs init")  # whose --out is one
WRITTEN = ("--json", "--out", "--plot", "--logs", "--trace-file")


def _flags(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    """Of each command, the flags that name what it writes: (command, flag, FILE or DIR)."""
    found = [(command, "--json", "FILE") for command in COMMANDS]
    for command in COMMANDS:
        for flag in {*flags_of(command)} & {*WRITTEN}:
            is_file = command in FILES or (flag in ("--plot", "--trace-file") and command != "profile show")
            found.append((command, flag, "FILE" if is_file else "DIR"))
    return found


def _refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert len(streams.err.strip().splitlines()) == 1, streams.err
    return streams.err


def test_no_command_works_towards_what_cant_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scenario is not even opened: there is none. The flags come from each command's help, so none is forgotten."""
    (tmp_path / "file").write_text("x")
    for name in NAMES.values():
        (tmp_path / "folder" / name).mkdir(parents=True)
    flags = _flags(capsys)
    assert {flag for _, flag, _ in flags} == {*WRITTEN}
    for command, flag, kind in flags:
        name = NAMES.get(command if flag == "--out" else flag, "x")
        there = (
            tmp_path / "file" if kind == "DIR" else tmp_path / "folder" / name if name != "x" else tmp_path / "folder"
        )
        words = [*command.split(), *([] if command in WITHOUT else ["no.yaml"]), *GIVEN.get(command, [])]
        words += ["rtx-2080-ti"] if command == "profile synth" else []
        for place, said in (
            (tmp_path / "file" / "below" / name, "file"),
            (there, "this is a f"),
            (Path("/proc") / name, "can't be written"),
            (tmp_path / ("n" * 300) / name, "n"),
        ):
            assert said in _refused([*words, flag, str(place)], capsys), (command, flag, place)
        assert "empty" in _refused([*words, flag, ""], capsys), (command, flag)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
