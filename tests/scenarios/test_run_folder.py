"""Four laws of the run folder, held for the commands that write into it.

A stage whose inputs or outputs have changed runs again, and nothing else does. A foreign file is never written. Of two
processes at once the second is refused. A run that was killed at any write resumes, and ends in the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.documents import Memo
from scenarios.runs import simulated_runs
from scenarios.runs.folder import FILES, OWN, RunFolder
from slimsched.cli import main
from tests.scenarios.files import write_scenario

pytestmark = pytest.mark.usefixtures("undrawn")
SHORT = ("duration_s: 1\n", "duration_s: 0.3\n")


def tree(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(paths)}


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture(autouse=True, scope="module")
def same_wall_time() -> Iterator[None]:
    """Of every run, so that the same results are the same bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_runs, "time", SimpleNamespace(monotonic_ns=lambda: 0))
        yield


@pytest.fixture(scope="module")
def made(same_wall_time: None, undrawn: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `run` was at work, with its scenario."""
    folder = tmp_path_factory.mktemp("made")
    write_scenario(folder, *SHORT)
    assert main(["run", str(folder / "tiny.yaml"), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with new times, in which the user is."""
    shutil.copytree(made, tmp_path / "here", copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def replaced(name: str, old: bytes, new: bytes) -> Callable[[], None]:
    def change() -> None:
        text = Path(name).read_bytes()
        assert old in text
        Path(name).write_bytes(text.replace(old, new))

    return change


STAGES = {"compare", "records"}
CHANGES: dict[str, tuple[Callable[[], None], set[str]]] = {
    "nothing": (lambda: None, set()),
    "the place of the scenario's file": (lambda: Path("fast.yaml").touch(), set()),
    "a key that it reads": (replaced("tiny.yaml", b"rate_img_s: 200", b"rate_img_s: 210"), STAGES),
    "a key that it does not read": (
        replaced("tiny.yaml", b"name: tiny", b"name: tiny\ncalibration: {budget: 9s}"),
        set(),
    ),
    "content of the same size and time": (lambda: _edit_unseen(Path("run/results.json")), {"compare"}),
    "an output that is gone": (lambda: Path("run/simulation/jsq-seed0/requests.parquet").unlink(), {"records"}),
    "a damaged mark": (lambda: _write(Path("run/.stages/compare.json"), '{"inputs": "1", "outputs": 3}'), {"compare"}),
    "an empty mark": (lambda: _write(Path("run/.stages/records.json"), ""), {"records"}),
}


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _edit_unseen(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_run_after_a_change_repeats_only_stages_that_read_it(
    change: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, stages = CHANGES[change]
    before = tree(here / "run")
    make()
    assert main(["run", "tiny.yaml", "--out", "run"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("compare: ", "records: "))]
    assert {line.partition(":")[0] for line in lines if "skipped, done before" not in line} == stages
    if not change.startswith("a key"):
        assert {**tree(here / "run"), "report.html": b""} == {**before, "report.html": b""}
    capsys.readouterr()
    assert main(["run", "tiny.yaml", "--out", "run"]) == 0
    assert ": begins" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "run", "train", "simulate", "suite"])
@pytest.mark.parametrize("name", ["thesis.txt", "comparison.json", "simulation/holiday/photo.jpg"])
def test_a_foreign_folder_is_never_written(
    command: str, name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine" / name).parent.mkdir(parents=True)
    (here / "mine" / name).write_text("mine")
    before = tree(here)
    words = ["--router", "jsq"] if command == "suite" else ["tiny.yaml"]
    assert "mine: holds files and is not a run folder" in refused([command, *words, "--out", "mine"], capsys)
    assert tree(here) == before


def test_a_users_files_in_a_run_folder_stay(here: Path) -> None:
    """And what `simulate` has kept there; of `compare`, what it does not compare any more goes."""
    folder = here / "run"
    names = ["notes.txt", ".slimsched-notes.tmp", "simulation/mine/x.txt", "simulation/jsq-seed0/x.txt"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    assert main(["simulate", "tiny.yaml", "--router", "sticky", "--out", "run", "--quiet"]) == 0
    stays = {name: content for name, content in tree(folder).items() if name in names or "sticky" in name}
    assert len(stays) > len(names)
    assert main(["compare", "tiny.yaml", "--out", "run", "--router", "random", "--quiet"]) == 0
    assert stays.items() <= tree(folder).items()
    assert not (folder / "simulation" / "jsq-seed0" / "result.json").exists()


def test_links_in_a_run_folder_are_not_written_through(here: Path) -> None:
    Path("thesis.txt").write_text("mine")
    links = [here / "run" / name for name in (".slimsched/lock", "comparison.json", "simulation/jsq-seed0/result.json")]
    for link in links:
        link.unlink(missing_ok=True)
        link.symlink_to(here / "thesis.txt")
    assert main(["compare", "tiny.yaml", "--out", "run", "--quiet"]) == 0
    assert Path("thesis.txt").read_text() == "mine"
    assert not any(link.is_symlink() for link in links)


@pytest.mark.parametrize("name", ["tiny.yaml", "link.yaml", "hard.yaml", *(f"run/{name}" for name in FILES)])
def test_no_result_replaces_what_is_read_or_a_runs_file(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("link.yaml").symlink_to("tiny.yaml")
    Path("hard.yaml").hardlink_to("tiny.yaml")
    before = tree(here)
    assert name in refused(["simulate", "tiny.yaml", "--json", name], capsys)
    assert tree(here) == before
    assert main(["simulate", "tiny.yaml", "--json", "run/mine.json", "--quiet"]) == 0


def test_work_that_makes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (RunFolder(tmp_path / "new"), RunFolder(tmp_path / "there")):
        assert not folder.is_in_use
        assert not folder.is_done("x", "1")
        with folder.opened():
            assert folder.is_flagged
            assert folder.is_in_use
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_outputs_of_an_interrupted_try_are_removed_with_its_memo(tmp_path: Path) -> None:
    folder, output = RunFolder(tmp_path), tmp_path / "hardware" / "run.jsonl"
    output.parent.mkdir()
    output.touch()
    memo = folder.memo("validate", "0" * 12)
    memo.add({"outputs": ["hardware/run.jsonl"]})
    folder.remove_outputs("validate")
    assert [*tmp_path.rglob("*")] == [memo.path.parent]


def test_scenarios_of_one_name_dont_share_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default the second is refused while both are there; with `--out` a line reports it."""
    (here / "other").mkdir()
    other = write_scenario(here / "other", *SHORT)
    assert main(["compare", "tiny.yaml", "--quiet"]) == 0
    for command in ("compare", "capacity"):
        assert "runs/tiny: is of tiny.yaml, a scenario of the same name" in refused([command, str(other)], capsys)
    assert main(["compare", str(other), "--out", "runs/tiny"]) == 0
    assert f"runs/tiny: of the scenario tiny.yaml so far, now of {other}" in capsys.readouterr().err
    other.unlink()
    assert main(["compare", "tiny.yaml", "--quiet"]) == 0


def test_a_report_of_damaged_files_names_the_remedy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("simulation/jsq-seed0/telemetry.parquet", "comparison.json"):
        (here / "run" / name).write_text("{")
        said = refused(["report", "run"], capsys)
        assert f"run/{name}: no" in said
        assert "`slimsched compare tiny.yaml --out run`, with the flags that it had, makes it again" in said


@pytest.fixture
def holder(here: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder open, and is in the middle of writing a file."""
    code = "import sys; from kit.files import atomic_path; from scenarios.runs.folder import RunFolder\n"
    code += "folder = RunFolder(sys.argv[1])\n"
    code += "with folder.opened(), atomic_path(folder / 'report.html'):\n    print('open', flush=True)\n"
    code += "    sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, "new"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_at_once(
    holder: subprocess.Popen[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the first one's process, command and start; killed, it leaves no lock and no half a file."""
    before = tree(here)
    for words in (["compare", "tiny.yaml", "--out", "new"], ["report", "new"], ["train", "tiny.yaml", "--out", "new"]):
        assert f"new: in use by process {holder.pid} (`-c new`, since 20" in refused(words, capsys)
    assert tree(here) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert list(Path("new").glob(".*.tmp"))
    assert main(["compare", "tiny.yaml", "--out", "new", "--quiet"]) == 0
    assert not list(Path("new").glob(".*.tmp"))


def started(words: list[str], stops_at: int) -> int:
    """Return the exit code of a command in a process that is gone at this write: before it, or just after it."""
    if (child := os.fork()) == 0:
        writes = 0

        def counted(write: Callable[..., object]) -> Callable[..., object]:
            def counting(*args: object) -> object:
                nonlocal writes
                writes += 1
                if writes == stops_at and stops_at % 2:
                    os._exit(99)
                found = write(*args)
                if writes == stops_at:
                    os._exit(99)
                return found

            return counting

        Path.replace, Memo.add = counted(Path.replace), counted(Memo.add)  # type: ignore[method-assign, assignment]
        os._exit(main(words))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_write_a_run_resumes_and_ends_in_the_same_bytes(here: Path) -> None:
    """One folder is killed at every sixth write in turn, and a chain of kills at each first, second ... write ends."""
    words = ["compare", "tiny.yaml", "--jobs", "1", "--quiet", "--out"]
    assert started([*words, "whole"], 0) == 0
    whole = tree(here / "whole")
    stops_at = 1
    while started([*words, f"once{stops_at}"], stops_at) == 99:
        assert (started([*words, f"once{stops_at}"], 0), tree(here / f"once{stops_at}")) == (0, whole)
        stops_at += 6
    assert stops_at > len(whole)
    kills = 0
    while started([*words, "often"], kills + 1) == 99:
        kills += 1
    assert kills > 3
    assert (tree(here / "often"), json.loads(whole[f"{OWN}/run.json"])["scenario"]) == (whole, "../tiny.yaml")
