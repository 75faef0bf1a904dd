"""What is the user's stays his: run folders that are marked, locked, and know what was made in them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.runs.layout import OWN, fits
from scenarios.runs.manifest import Contents, Entry, Journal, read_manifest

from kit.errors import InputError, WorkError
from kit.files import file_hash
from scenarios.cli import main
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import LOG_FILE
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_folder


def tree(folder: Path) -> dict[str, str]:
    """Every file and link below a folder, but for its own mark, with its content."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else file_hash(path)
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and OWN not in path.relative_to(folder).parts
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `compare` was at work, with its scenario beside it."""
    folder = tmp_path_factory.mktemp("made")
    path = write_scenario(folder, "duration_s: 1\n", "duration_s: 0.3\n")
    assert main(["run", str(path), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled: its scenario is `tiny.yaml`, its folder `run`."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def run(folder: Path) -> int:
    return main(["run", str(folder / "tiny.yaml"), "--out", str(folder / "run")])


# ------------------------------------------------------------------------------------------------------ what is foreign


@pytest.mark.parametrize("command", ["compare", "run", "train", "simulate", "report"])
def test_a_folder_of_the_users_is_refused(
    command: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever lies in it, even under names of ours; nothing in it is touched."""
    mine = tmp_path / "mine"
    for name in ("simulation/holiday/photo.jpg", "hardware/notes.txt", "scenario.yaml"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(name)
    (mine / "comparison.json").write_text("{}")
    before = tree(mine)
    words = [command, str(mine)] if command == "report" else [command, str(scenario), "--out", str(mine)]
    said = refused(words, capsys)
    assert "report" in command or "name an empty or a new folder" in said
    assert tree(mine) == before
    assert not (mine / OWN).exists()


@pytest.mark.parametrize("environment", [None, "{}", "[]", "junk"])
def test_a_users_scenario_and_profiles_are_no_run_folder(
    environment: str | None, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names alone prove nothing: what `describe` would write lies there as the user wrote it."""
    mine = tmp_path / "mine"
    (mine / "profiles").mkdir(parents=True)
    (mine / "scenario.yaml").write_text("# my comment\n")
    (mine / "profiles" / "fast.yaml").write_text("x")
    if environment is not None:
        (mine / "environment.json").write_text(environment)
    assert "is no run folder" in refused(["compare", str(scenario), "--out", str(mine)], capsys)
    assert (mine / "scenario.yaml").read_text() == "# my comment\n"


def test_what_a_removal_midway_has_left_is_taken_over(scenario: Path, tmp_path: Path) -> None:
    """A command may write its mark of a stage while somebody removes the folder: nobody else has such a file."""
    left = tmp_path / "run" / ".stages" / "compare-ffcf3a547017.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    assert main(["compare", str(scenario), "--out", str(tmp_path / "run"), "--router", "jsq", "--quiet"]) == 0


@pytest.mark.parametrize(
    "name",
    ["result.json", "requests.parquet", *(f"../../training/{it}" for it in ("mydata/x.csv", "model-final.pt", "1/a"))],
)
def test_names_alone_do_not_make_a_run_folder(
    name: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result says that it is one; of training, only what it makes is known, whatever lies beside it."""
    mine = (tmp_path / "mine" / "simulation" / "jsq-seed0" / name).resolve()
    mine.parent.mkdir(parents=True)
    mine.write_text('{"mine": 1}')
    words = ["compare", str(scenario), "--out", str(tmp_path / "mine"), "--router", "jsq"]
    assert f"is no run folder ({mine.relative_to(tmp_path / 'mine')})" in refused(words, capsys)
    if name.startswith(".."):
        (tmp_path / "mine" / "environment.json").write_text(json.dumps({"schema": "slimsched.environment/2"}))
        assert str(mine.relative_to(tmp_path / "mine")) in refused(words, capsys)
    assert mine.read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    "name",
    ["model-0123456789ab.safetensors", "model-0123456789ab/events.out.tfevents.1700000000.host.7.0",
     "0123456789ab/checkpoint.safetensors", "0123456789ab/scalars.json", "0123456789ab/scalars.json.damaged",
     "0123456789ab/events.out.tfevents.1700000000.host.7.0"],
)  # fmt: skip
def test_what_training_makes_is_known_by_name(name: str) -> None:
    assert fits(f"training/{name}")


def test_a_users_files_in_a_marked_folder_are_left_alone(finished: Path) -> None:
    """They are no reason to refuse; neither are his folders, links among them."""
    folder = finished / "run"
    (folder / "notes.txt").write_text("mine")
    (folder / "simulation" / "mine").mkdir()
    (folder / "simulation" / "mine" / "x.txt").write_text("mine")
    (folder / "elsewhere").symlink_to(finished)
    assert main(["compare", str(finished / "tiny.yaml"), "--out", str(folder), "--router", "jsq", "--quiet"]) == 0
    assert (folder / "notes.txt").read_text() == (folder / "simulation" / "mine" / "x.txt").read_text() == "mine"
    assert (folder / "elsewhere").is_symlink()
    assert not (folder / "simulation" / "random-seed0").exists()  # what the stage made before is gone


def test_compare_keeps_what_simulate_kept(finished: Path) -> None:
    scenario, folder = str(finished / "tiny.yaml"), finished / "run"
    assert main(["simulate", scenario, "--router", "sticky", "--out", str(folder), "--quiet"]) == 0
    before = tree(folder / "simulation" / "sticky-seed0")
    assert before
    assert main(["compare", scenario, "--out", str(folder), "--router", "jsq", "--quiet"]) == 0
    assert tree(folder / "simulation" / "sticky-seed0") == before


@pytest.mark.parametrize("name", ["simulation", "results.json", "report.html", "profiles", ".stages"])
def test_no_link_in_the_folder_is_followed(name: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told before the work; what it leads to stays as it was."""
    outside, path = finished / "outside", finished / "run" / name
    shutil.move(path, outside)
    path.symlink_to(outside)
    before = tree(finished)
    for words in (["compare", "--router", "jsq"], ["run"]):
        said = refused([*words, str(finished / "tiny.yaml"), "--out", str(finished / "run")], capsys)
        assert f"{path}: this is a link" in said
    assert tree(finished) == before


def test_a_file_of_the_users_under_our_name_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a marked folder, too; and a folder in the place of a file."""
    path = finished / "run" / "score.json"
    path.write_text("mine")
    assert f"{path}: this was not made by slimsched" in refused(["report", str(finished / "run")], capsys)
    path.unlink()
    (finished / "run" / "report.html").unlink()
    (finished / "run" / "report.html").mkdir()
    assert "this folder is in the way of a file" in refused(["report", str(finished / "run")], capsys)


def test_the_folder_itself_may_be_a_link(made: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert main(["compare", str(made / "tiny.yaml"), "--out", str(tmp_path / "link"), "--quiet"]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "results.json").is_file()


def test_work_that_makes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    """What was made for it is gone again; a folder that was there stays."""
    (tmp_path / "there").mkdir()
    for folder in (RunFolder(tmp_path / "a" / "b"), RunFolder(tmp_path / "there")):
        with folder.opened():
            assert (folder / OWN).is_dir()
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


# ---------------------------------------------------------------------------------------------------------- two at once


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder open."""
    code = "import sys; from scenarios.runs.folder import RunFolder; folder = RunFolder(sys.argv[1])\n"
    code += "with folder.opened():\n    folder.write_text(folder / 'report.html', 'x'); print('open', flush=True)\n"
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
    """With the first one's process, command and start; killed, it leaves no lock behind."""
    words = ["compare", str(scenario), "--out", str(tmp_path / "run"), "--quiet"]
    said = refused(words, capsys)
    assert f"in use by process {holder.pid} (`-c {tmp_path / 'run'}`, since 20" in said
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert main(words) == 0


def test_what_a_command_starts_does_not_hold_its_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").opened():
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    with RunFolder(tmp_path / "run").opened():
        pass
    child.kill()
    child.wait()


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


# ------------------------------------------------------------------------------------------------------- former folders


def test_a_folder_of_a_former_version_is_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing foreign is in it; what it holds can then be replaced."""
    folder = run_folder(tmp_path / "run", routers=("random",), seeds=(0,))
    known = set(folder.entries)
    shutil.rmtree(folder / OWN)
    (folder / "notes.txt").write_text("mine")
    said = refused(["report", str(folder.path)], capsys)
    assert "has lost its mark (.slimsched), and notes.txt is none of a run's files; move that elsewhere\n" in said
    assert not (folder / OWN).exists()
    (folder / "notes.txt").unlink()
    with folder.opened():
        assert folder.entries.keys() == known
        folder.write_text(folder / "scenario.yaml", "name: another\n")


def test_stages_of_a_former_version_are_done(tmp_path: Path) -> None:
    """Their marks had no hashes."""
    folder = RunFolder(tmp_path / "run")
    (folder / ".stages").mkdir(parents=True)
    (folder / "score.json").write_text("{}")
    (folder / ".stages" / "train.json").write_text(json.dumps({"inputs": "1", "outputs": ["score.json"]}))
    assert folder.stage("train", "1").is_done
    (folder / "score.json").unlink()
    assert folder.stage("train", "1").reason == "score.json is missing"


# --------------------------------------------------------------------------------------------------------- the manifest


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    journal = Journal(path, Contents("../a.yaml", {"a.json": Entry("train", "1")}))
    journal.put("b.json", Entry("compare"))
    journal.put("b.json", Entry("compare", "2", 7))
    journal.drop("a.json")
    found = read_manifest(path)
    assert found == Contents("../a.yaml", {"b.json": Entry("compare", "2", 7)}, is_clean=False)
    journal.close()
    found = read_manifest(path)
    assert found is not None
    assert found.is_clean


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a", "a\0b", 7, None])
def test_a_manifest_names_nothing_outside(name: object, tmp_path: Path) -> None:
    """Whoever wrote it: what is removed or replaced is in it."""
    path = tmp_path / "manifest.jsonl"
    lines = [{"schema": "slimsched.run-folder/1"}, {"path": name, "by": "compare"}, {"closed": True}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_manifest(path)
    assert found is not None
    assert found.entries == {}


def test_a_killed_write_is_no_foreign_file(tmp_path: Path) -> None:
    """A file is claimed before it is there; what it left beside is cleaned up when the folder is next opened."""
    code = "import os, sys; from scenarios.runs.folder import RunFolder; folder = RunFolder(sys.argv[1])\n"
    code += "with folder.opened(), folder.making(folder / 'score.json') as made:\n"
    code += "    made.path.write_text('half'); (folder / ('.slimsched-' + 32 * 'a' + '.tmp')).touch(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")]).returncode == 9
    folder = RunFolder(tmp_path / "run")
    (folder / ".my.tmp").touch()
    folder.write_text(folder / "score.json", "whole")
    assert sorted(tree(folder.path)) == [".my.tmp", "score.json"]


@pytest.mark.parametrize("cut", [0, 1, 40, -1, -20, -300, None])
def test_a_damaged_manifest_is_made_again(cut: int | None, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From what is there, where that is all a run's; with something else beside, one line says what to do."""
    path = finished / "run" / OWN / "manifest.jsonl"
    path.write_bytes(b"\0junk" if cut is None else path.read_bytes()[:cut])
    assert run(finished) == 0
    found = read_manifest(path)
    assert found is not None
    assert {"results.json", "simulation/jsq-seed0/result.json"} <= found.entries.keys()
    path.write_bytes(b"junk")
    (finished / "run" / "notes.txt").write_text("mine")
    assert "notes.txt was not; move that elsewhere" in refused(["report", str(finished / "run")], capsys)


def test_half_a_manifest_beside_a_users_files_is_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose the files are that it lacks is not known; but a torn line that lost nothing stops nobody."""
    path = finished / "run" / OWN / "manifest.jsonl"
    whole = path.read_bytes()
    (finished / "run" / "notes.txt").write_text("mine")
    path.write_bytes(whole[: len(whole) // 2])
    words = ["run", str(finished / "tiny.yaml"), "--out", str(finished / "run")]
    assert "notes.txt was not; move that elsewhere" in refused(words, capsys)
    path.write_bytes(whole + b'{"path": "sco')
    assert run(finished) == 0


def test_a_folder_that_vanishes_is_one_line(tmp_path: Path) -> None:
    """It is not made again, half and without its mark."""
    folder = RunFolder(tmp_path / "run")
    with folder.opened():
        shutil.rmtree(folder)
        for write in (folder.write_text, folder.write_partial):
            with pytest.raises(WorkError, match="was removed or moved while a command wrote into it"):
                write(folder / "score.json", "x")
    assert not folder.path.exists()


def test_a_folder_that_is_being_removed_is_one_line(tmp_path: Path) -> None:
    """Its mark may be gone first, or what a stage has just made: nothing is written that the next try would refuse."""
    folder = RunFolder(tmp_path / "run")
    with folder.opened():
        with pytest.raises(WorkError, match=r"score\.json was removed as soon as it was made"):
            folder.finish("train", "0", [folder / "score.json"])
        shutil.rmtree(folder / OWN)
        with pytest.raises(WorkError, match="was removed or moved while a command wrote into it"):
            folder.write_text(folder / "score.json", "x")
    assert tree(folder.path) == {}


# ----------------------------------------------------------------------------------------------------- state that heals


@pytest.mark.parametrize("how", ["cut", "junk", "edited"])
def test_a_damaged_output_is_made_again_and_kept_beside(
    how: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is done before that is not as it was left."""
    for name in ("results.json", "simulation/jsq-seed0/requests.parquet", "comparison.json", "scenario.yaml"):
        path = finished / "run" / name
        whole = path.read_bytes()
        spoiled = {"cut": whole[: len(whole) // 2], "junk": b"\xff" * 100, "edited": whole + b" "}[how]
        path.write_bytes(spoiled)
        assert run(finished) == 0
        assert "was changed or damaged since it was made: it is kept as" in capsys.readouterr().err
        assert path.with_name(f"{path.name}.damaged").read_bytes() == spoiled
        assert how == "edited" or path.read_bytes() != spoiled
    assert run(finished) == 0
    assert "compare: skipped, done before" in capsys.readouterr().err


@pytest.mark.parametrize("junk", [b"", b"5", b"[]", b"{", b"\xff\0"])
def test_a_damaged_mark_is_a_stage_that_is_not_done(junk: bytes, finished: Path) -> None:
    (finished / "run" / ".stages" / "compare.json").write_bytes(junk)
    assert run(finished) == 0


@pytest.mark.parametrize("junk", [b"", b"5", b'{"sha256": "1", "content": []}', b"\xff\0"])
def test_a_damaged_partial_file_is_begun_anew_with_a_word(junk: bytes, tmp_path: Path) -> None:
    said: list[str] = []
    folder = RunFolder(tmp_path / "run", said.append)
    partial = folder / ".stages" / "compare-1.json"
    assert folder.read_partial(partial) is None
    folder.write_partial(partial, [{"a": 1.5}])
    assert folder.read_partial(partial) == [{"a": 1.5}]
    assert said == []
    partial.write_bytes(junk)
    assert folder.read_partial(partial) is None
    assert said[0].endswith("it is kept as compare-1.json.damaged; this begins anew")


@pytest.mark.parametrize(
    "name", ["comparison.json", "simulation/jsq-seed0/result.json", "simulation/jsq-seed0/telemetry.parquet"]
)
def test_a_report_of_damaged_files_names_the_remedy(
    name: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid JSON that says something else is as bad."""
    path = finished / "run" / name
    path.write_text("[5]")
    said = refused(["report", str(finished / "run")], capsys)
    assert f"{path}: was changed or damaged since it was made; `slimsched " in said
    assert f"tiny.yaml --out {finished / 'run'}`, with the flags that it had, makes it again" in said


def test_what_reads_a_damaged_file_names_the_remedy(made: Path, tmp_path: Path) -> None:
    """A folder of a former version is read by what stands in it."""
    folder = run_folder(tmp_path / "run", routers=("random",), seeds=(0,))
    shutil.rmtree(folder / OWN)
    for text in ("[5]", "5", "{"):
        (folder / "comparison.json").write_text(text)
        assert main(["report", str(folder.path)]) == 2


# --------------------------------------------------------------------------------------------------------------- replay


@pytest.fixture
def logged(made: Path, tmp_path: Path) -> Path:
    """A folder with an event log of a real run's length."""
    from scenarios.files.reading import load_scenario
    from scenarios.runs.logs import write_cores
    from scenarios.runs.records import write_run
    from scenarios.runs.simulate import run_simulation
    from scenarios.world.materials import make_world

    world = make_world(load_scenario(made / "tiny.yaml"), made)
    folder = RunFolder(tmp_path / "run")
    write_run(folder, *run_simulation(world, world.router("jsq"), "jsq", 0, keep_log=True))
    write_cores(folder, world.cluster.router, [server.knobs for server in world.cluster.servers])
    return folder.path


def test_replay_knows_how_long_a_log_is(logged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that ends too early is incomplete, whether its compression is whole or not; so is one that is gone."""
    path = logged / "simulation" / "jsq-seed0" / LOG_FILE
    whole, lines = path.read_bytes(), gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    assert main(["replay", str(logged)]) == 0
    assert "identical commands" in capsys.readouterr().out
    for content, read in (
        (gzip.compress(b"".join(lines[:-1])), len(lines) - 1),
        (gzip.compress(b""), 0),
        (b"junk", 0),
        (b"", 0),
        (whole[: len(whole) // 2], None),
        (None, 0),
    ):
        path.write_bytes(content) if content is not None else path.unlink()
        assert main(["replay", str(logged)]) == 1
        out = capsys.readouterr().out
        assert len(out.splitlines()) == 1
        assert (
            f"simulation/jsq-seed0/{LOG_FILE}: incomplete: {'' if read is None else f'{read} of {len(lines)} steps'}"
            in out
        )
        assert "makes it again" in out


def test_a_pipe_is_no_place_for_a_folder(tmp_path: Path, scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "name a folder" in refused(["compare", str(scenario), "--out", str(tmp_path / "pipe")], capsys)


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


def test_a_folder_that_is_read_is_not_marked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.entries == {}
    assert not folder.stage("x", "1").is_done
    assert not folder.path.exists()
    with pytest.raises(InputError, match="no such file"):
        folder.read_json("score.json")
