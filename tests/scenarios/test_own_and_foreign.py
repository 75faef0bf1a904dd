"""What is the user's stays his: run folders are marked, locked, and know which of their files are as they were made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.documents import write_text
from kit.files import file_hash
from scenarios.runs.folder import OWN, RunFolder
from slimsched.cli import main
from tests.scenarios.files import write_scenario

pytestmark = pytest.mark.usefixtures("undrawn")


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, but for its own mark, with its content."""
    return {
        str(path.relative_to(folder)): file_hash(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and OWN not in path.relative_to(folder).parts
    }


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "of").mkdir()
    return write_scenario(tmp_path / "of", "duration_s: 1\n", "duration_s: 0.3\n")


@pytest.fixture(scope="module")
def made(undrawn: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `run` was at work, with its scenario beside it."""
    folder = tmp_path_factory.mktemp("made")
    path = write_scenario(folder, "duration_s: 1\n", "duration_s: 0.3\n")
    assert main(["run", str(path), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled: its scenario is `tiny.yaml`, its folder `run`."""
    shutil.copytree(made, tmp_path / "copy", copy_function=shutil.copyfile)  # with new times
    return tmp_path / "copy"


def run(folder: Path) -> int:
    return main(["run", str(folder / "tiny.yaml"), "--out", str(folder / "run")])


# ------------------------------------------------------------------------------------------------------ what is foreign


def test_what_others_made_in_the_folder_stays(finished: Path) -> None:
    """A user's files, and what `simulate` kept; of `compare`, what it does not compare any more goes."""
    scenario, folder = str(finished / "tiny.yaml"), finished / "run"
    for name in ("notes.txt", "simulation/mine/x.txt"):
        write_text(folder / name, "mine")
    assert main(["simulate", scenario, "--router", "sticky", "--out", str(folder), "--quiet"]) == 0
    stays = {name: hash for name, hash in tree(folder).items() if "mine" in name or "notes" in name or "sticky" in name}
    assert (folder / "simulation" / "random-seed0").exists()
    assert main(["compare", scenario, "--out", str(folder), "--router", "jsq", "--quiet"]) == 0
    assert stays.items() <= tree(folder).items()
    assert not (folder / "simulation" / "random-seed0").exists()


def test_work_that_makes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    """What was made for it is gone again; a folder that was there stays."""
    (tmp_path / "there").mkdir()
    for folder in (RunFolder(tmp_path / "new"), RunFolder(tmp_path / "there")):
        with folder.opened():
            assert folder.is_flagged
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_folder_that_is_looked_at_is_not_made(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert not folder.stage("x", "1").is_done
    assert not folder.is_in_use
    assert not folder.path.exists()


# ---------------------------------------------------------------------------------------------------------- two at once


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder open, and is in the middle of writing a file."""
    code = "import sys; from pathlib import Path; from scenarios.runs.folder import RunFolder\n"
    code += "from kit.files import atomic_path; folder = RunFolder(sys.argv[1])\n"
    code += "with folder.opened(), atomic_path(folder / 'report.html'):\n    print('open', flush=True)\n"
    code += "    sys.stdin.read()"
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_command_is_refused_at_once(
    holder: subprocess.Popen[str], scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the first one's process, command and start; killed, it leaves no lock and no half a file behind."""
    words = ["compare", str(scenario), "--out", str(tmp_path / "run"), "--quiet"]
    assert f"in use by process {holder.pid} (`-c {tmp_path / 'run'}`, since 20" in refused(words, capsys)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert list((tmp_path / "run").glob(".*.tmp"))
    assert main(words) == 0
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_scenarios_of_one_name_dont_share_a_folder(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default one of them is refused, where both are there; with `--out` a line says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    other = write_scenario(tmp_path / "other", "duration_s: 1\n", "duration_s: 0.3\n")
    assert main(["compare", str(scenario), "--quiet"]) == 0
    for command in ("compare", "capacity"):
        said = refused([command, str(other)], capsys)
        assert "runs/tiny: is of of/tiny.yaml, a scenario of the same name; change `name:` in one" in said
    assert main(["compare", str(other), "--out", "runs/tiny"]) == 0
    assert f"runs/tiny: of the scenario of/tiny.yaml so far, now of {other}" in capsys.readouterr().err
    other.unlink()
    assert main(["compare", str(scenario), "--quiet"]) == 0


# ----------------------------------------------------------------------------------------------------- state that heals


def test_a_copy_of_a_folder_is_as_done_as_the_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(finished) == 0
    assert "compare: skipped, done before" in capsys.readouterr().err


def _edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))


@pytest.mark.parametrize(
    "name, spoil, told",
    [
        ("results.json", _edit, "was changed or damaged since"),
        ("simulation/jsq-seed0/requests.parquet", Path.unlink, "is missing"),
    ],
)
def test_a_damaged_output_is_made_again(
    name: str, spoil: Callable[[Path], None], told: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "run" / name
    spoil(path)
    spoiled = path.read_bytes() if path.exists() else b""
    assert run(finished) == 0
    assert f"{name} {told}" in capsys.readouterr().err
    assert path.read_bytes() != spoiled
    assert run(finished) == 0
    assert "begins" not in capsys.readouterr().err


@pytest.mark.parametrize("junk", [b"", b'{"inputs": "1", "outputs": 3}'])
def test_a_damaged_mark_is_a_stage_that_is_not_done(junk: bytes, finished: Path) -> None:
    (finished / "run" / ".stages" / "compare.json").write_bytes(junk)
    assert run(finished) == 0


@pytest.mark.parametrize("name", ["comparison.json", "simulation/jsq-seed0/telemetry.parquet"])
def test_a_report_of_damaged_files_names_the_remedy(
    name: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "run" / name
    path.write_text("{")
    said = refused(["report", str(finished / "run")], capsys)
    assert f"{path}: no" in said
    assert "; `slimsched compare " in said
    assert f"tiny.yaml --out {finished / 'run'}`, with the flags that it had, makes it again" in said


# --------------------------------------------------------------------------------------------------------------- replay


def test_json_goes_to_what_is_there(scenario: Path, tmp_path: Path) -> None:
    """`--json` to a pipe and to a link."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("target.json")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    for name in ("pipe", "link.json"):
        assert main(["simulate", str(scenario), "--json", str(tmp_path / name), "--quiet"]) == 0
    piped = json.loads(reader.communicate()[0])
    assert piped["router"] == json.loads((tmp_path / "target.json").read_text())["router"] == "random"
    assert (tmp_path / "link.json").is_symlink()
