"""`make gpu` on a machine without one: deadlines hold, evidence outlives a kill, and what a CPU can tell is told."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time  # noqa: TID251 - processes run in real time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import correctness, facts, job, serving, wheels
from benchmarks.gpu.asserting import AssertingNet
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.evidence import ROOT, stamps
from benchmarks.gpu.running import in_a_process
from benchmarks.gpu.stand import NETWORKS, Stand
from hw.device_settings import DeviceSpec
from hw.worker.activations import Activations
from scenarios.experiment.scenario_building import _outstanding_micro_batches
from scenarios.files.scenario_reading import load_scenario
from tests.hw.fake_nvml import FakeNvml, FakeNvmlDevice, Handle

PAGE = Path(__file__).parents[1] / "docs" / "gpu-measurements.md"
SECONDS = 530  # of `make gpu`
FAKE = "tests.fake_gpu_checks"
TOLD = {"place": "nowhere"}


def run(out: Path, *names: str, deadline_s: float = 5.0, seconds: float = 60.0) -> dict[str, Any]:
    checks = [Check(name, deadline_s / 2, deadline_s, True, "", "something", "") for name in names]
    gpu.run(checks, seconds, out, "this", TOLD, module=FAKE)
    return {each["id"]: each for each in json.loads((out / "evidence.json").read_text())["found"]}


def has_ended(process: int) -> bool:
    return not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE


def test_gpu_checks_run_the_most_informative_first_within_nine_minutes() -> None:
    """Executors' speed comes first, then a profile and the main job; checks that need the profile follow it."""
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids) == 26
    assert ids.index("F1") < ids.index("E1") < ids.index("F3")
    assert sum(check.expected_s for check in CHECKS[: ids.index("G1")]) <= SECONDS
    assert all(1.2 * check.expected_s <= check.deadline_s for check in CHECKS)


def test_chosen_checks_run_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--list", "--only", "F3", "A1"]) == 0
    *lines, sums = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["F3", "A1"]
    assert sums == "together 2 checks: about 76 s, at most 170 s"
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--only", "F9"])


def test_a_cpu_has_more_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A rehearsal there shall tell whether what is trained comes back, not that it took longer than on a GPU."""
    seconds = []
    for more in ([], ["--emulated"]):
        assert gpu.main(["--list", "--only", "G2", *more]) == 0
        seconds += re.findall(r"at most (\d+) s$", capsys.readouterr().out.splitlines()[0])
    assert seconds == ["90", "270"]


def test_a_check_that_hangs_or_crashes_or_finds_something_is_told(tmp_path: Path) -> None:
    """And the others are done all the same; one that hangs is killed with all that it has started."""
    found = run(tmp_path, "passes", "fails", "has a child", "crashes", "dies", deadline_s=3.0)
    assert [found[name]["verdict"] for name in found] == ["passed", *["failed"] * 4]
    assert [each["numbers"] for each in found.values()] == [{"answer": 42, "none": "NaN"}] * 5  # however it ended
    log = (tmp_path / "evidence.log").read_text()
    assert re.findall(r"^==== (.+)$|^(its own words)$", log, re.MULTILINE)[::2] == [(name, "") for name in found]
    assert (log.count("its own words"), log.count("Traceback")) == (5, 1)
    assert found["has a child"]["reason"] == "not done within 3 s"
    assert "ValueError: on purpose" in found["crashes"]["reason"]
    assert "ended with -9" in found["dies"]["reason"]
    assert "| passes | something | passed |" in (tmp_path / "evidence.md").read_text()
    assert has_ended(int((tmp_path / "child").read_text()))


def test_gpu_check_that_no_longer_fits_is_skipped(tmp_path: Path) -> None:
    found = run(tmp_path, "passes", "fails", deadline_s=100.0, seconds=49.0)
    assert {each["verdict"] for each in found.values()} == {"skipped"}
    assert re.fullmatch(r"\d+ s are left, it takes about 50", found["fails"]["reason"])


def test_the_last_one_has_what_is_left(tmp_path: Path) -> None:
    found = run(tmp_path, "hangs", deadline_s=5.0, seconds=3.0)
    assert re.fullmatch(r"not done within \d s", found["hangs"]["reason"])
    assert found["hangs"]["took_s"] < 5.0
    assert found["hangs"]["numbers"]["answer"] == 42


def test_evidence_survives_a_kill(tmp_path: Path) -> None:
    ended_when_there_is("evidence.json", tmp_path, signal.SIGKILL, "passes", "hangs")
    assert [each["id"] for each in json.loads((tmp_path / "evidence.json").read_text())["found"]] == ["passes"]


def test_gpu_checks_that_are_terminated_end_the_running_check(tmp_path: Path) -> None:
    """Child processes of the check end, too; otherwise they would run alongside the next one."""
    ended_when_there_is("child", tmp_path, signal.SIGTERM, "has a child")
    assert has_ended(int((tmp_path / "child").read_text()))


def test_an_interrupted_wait_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between a lock's taking and the `try` behind it leaves `Popen`'s taken."""

    def wait(process: Any, timeout: float | None = None) -> int:
        assert process._waitpid_lock.acquire(blocking=False), "for ever"
        processes.append(process)
        raise KeyboardInterrupt

    processes = list[Any]()
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        in_a_process([sys.executable, "-c", "import time; time.sleep(600)"], "sleeps", 5.0, tmp_path / "log")
    assert not psutil.pid_exists(processes[0].pid)  # nor is it a zombie


def ended_when_there_is(name: str, folder: Path, by: signal.Signals, *checks: str) -> None:
    """These checks in a process of their own, which this signal ends."""
    code = f"from pathlib import Path; from tests.test_gpu_checks import run; run(Path({str(folder)!r}), *{checks!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    for _ in range(300):
        if (folder / name).exists():
            break
        time.sleep(0.1)
    process.send_signal(by)
    process.wait()


def test_gpu_checks_return_their_files_in_one_archive(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "cuda0.yaml").write_text("measured")
    (tmp_path / "profiles" / "requests.parquet").write_bytes(b"many")
    run(tmp_path, "passes")
    with tarfile.open(tmp_path / "evidence.tgz") as archive:
        assert archive.getnames() == ["profiles/cuda0.yaml"]


def test_a_check_leaves_its_network_in_the_evidence_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, for commands run elsewhere; a machine's own folder for temporary files stays as it was."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    stand = Stand("cpu", Path("evidence"))
    assert (stand.file.path, stand.file.label) == (tmp_path / "evidence" / "model.safetensors", NETWORKS["cpu"])
    monkeypatch.setattr(job, "evaluate", lambda *_, **__: SimpleNamespace(correct=torch.ones(2).numpy()))
    monkeypatch.setattr(job, "load_dataset", lambda name: None)
    kept = []

    def train(*_: object, checkpoint: Path | None = None, on_epoch: object = None) -> torch.nn.Module:
        if checkpoint:
            kept.append(checkpoint.exists())
            checkpoint.touch()
        return torch.nn.Identity()

    monkeypatch.setattr(job, "train", train)
    assert [job.trained(stand), job.trained(stand)] == ["", ""]
    assert kept == [False, True] * 2  # the second time it starts from scratch
    assert [each.name for each in tmp_path.glob("*/*")] == ["model.safetensors"]


def test_evidence_lies_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("evidence"), "has a child", deadline_s=3.0)
    assert sorted(each.name for each in (tmp_path / "evidence").iterdir() if each.suffix != ".log") == [
        "child",
        "evidence.json",
        "evidence.md",
        "evidence.tgz",
    ]


def test_a_machine_without_git_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [stamps("cpu")["commit"], stamps("cpu", "abc")["commit"]] == ["unknown", "abc"]


def test_a_validation_without_a_profile_says_so(tmp_path: Path) -> None:
    """F3 goes on from what E1 left in the same folder."""
    assert gpu.main(["--emulated", "--only", "F3", "--out", str(tmp_path)]) == 0
    (found,) = json.loads((tmp_path / "evidence.json").read_text())["found"]
    assert (found["verdict"], found["reason"]) == ("skipped", f"no profile of E1 in {tmp_path / 'profiles'}")


def test_an_image_breaks_its_device_and_not_the_host() -> None:
    """On a device that computes nothing, as on a GPU, nobody can look at an index in time to refuse it."""
    with torch.device("meta"):
        net = AssertingNet("digit-pairs").eval()
        assert net.forward_segment(torch.empty(2, *net.spec.input_shape), 1, 1.0, 0.0).shape[0] == 2


def test_a_move_that_brings_other_bits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B4 looks at what has come."""
    monkeypatch.setattr(correctness, "ROUNDS", 1)
    assert correctness.races(Stand("cpu", tmp_path)) == ""
    whole = Activations.send
    monkeypatch.setattr(
        Activations, "send", lambda store, message: whole(store, msgspec.structs.replace(message, offset=64))
    )
    found = correctness.races(Stand("cpu", tmp_path))
    assert re.search(r"^shipped: 0 of \d+ labels, (\d+) of \1 moves differ, compacted: 0 of ", found)


def test_wheels_missing_on_another_machine_are_named_with_dependencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in wheels.lacking({}) if name != "pydantic-core"]
    (tmp_path / "names").write_text("\n".join(f"{name}=={metadata.version(name)}" for name in names))
    assert wheels.main(["--has", str(tmp_path / "names")]) == 0
    assert "pydantic" in wheels.lacking({})
    assert "-d wheels \n" in capsys.readouterr().out  # it is needed by pydantic alone, which is there
    assert "pydantic-core" in wheels.lacking({"torch": ""})
    assert not {"nvidia-cublas", "sympy", "torch"} & set(wheels.lacking({"torch": "", "torchvision": ""}))


def test_wheels_too_old_on_another_machine_are_named() -> None:
    """Requirements of fetched packages count, too; a vendor's build counts as its version."""
    here = dict.fromkeys(wheels.lacking({}), "")
    assert list(wheels.lacking({**here, "rich": "13.9.4"})) == ["rich"]
    without = {name: version for name, version in here.items() if name != "pydantic"}
    assert list(wheels.lacking({**without, "pydantic-core": "2.1"})) == ["pydantic", "pydantic-core"]
    assert not wheels.lacking({**here, "torch": "2.11.0a0+b4cad1f", "numpy": "2.5.2"})


def test_needs_are_those_of_the_other_machines_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = "[project]\ndependencies = ['filelock; python_version < \"3\"', 'psutil; python_version >= \"3.99\"']"
    (tmp_path / "pyproject.toml").write_text(given)
    monkeypatch.setattr(wheels, "PYPROJECT", tmp_path / "pyproject.toml")
    assert (list(wheels.lacking({})), list(wheels.lacking({}, "3.99"))) == ([], ["psutil"])


def test_wheels_missing_here_too_get_no_download_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command would lack the version and the dependencies; without `--has` the usage is printed."""
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['no-such-package']")
    monkeypatch.setattr(wheels, "PYPROJECT", tmp_path / "pyproject.toml")
    (tmp_path / "names").write_text("numpy==2.5.2\n")
    with pytest.raises(SystemExit, match="2"):
        wheels.main(["--has", str(tmp_path / "names")])
    told = capsys.readouterr()
    assert (told.out, "no-such-package" in told.err) == ("", True)
    assert wheels.main([]) == 1
    assert re.fullmatch(r"no-such-package\n.*--has NAMES\n", capsys.readouterr().out)


def test_gpu_facts_check_reports_the_time_of_each_board_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check A2 times the sensor and the counters that the router reads for the load of other programs."""
    nvml_device = FakeNvmlDevice()
    monkeypatch.setattr(facts, "load_nvml", lambda: FakeNvml(nvml_device))
    monkeypatch.setattr(facts, "nvml_handle", lambda nvml, index: Handle(nvml_device))
    monkeypatch.setattr(facts, "COUNTER_LOOKS_S", 0.0)
    assert facts.calls(Stand("cuda", tmp_path)) == ""
    assert set(re.findall(r'"(\w+)_p99_ms"', capsys.readouterr().out)) == {"sample", "energy", "details", "watch"}


def test_executors_are_timed_as_a_scenario_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _outstanding_micro_batches(load_scenario(ROOT / "scenarios" / "gpu.yaml")) == serving.GPU_MICRO_BATCHES
    stand = Stand("cpu", tmp_path)
    vars(stand)["device"] = DeviceSpec(kind="cuda")
    monkeypatch.setattr(serving, "usable_cores", lambda: range(11))
    servers = serving.cluster_of(stand, stand.file, 2).servers
    assert [server.device.cores for server in servers] == [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]


def test_the_trimmed_quickstart_is_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1 writes it for another reader, which is stricter."""
    monkeypatch.setattr(job, "_slimsched", lambda *words: f"read {load_scenario(words[1]).name}")
    assert job.quickstart(Stand("cpu", tmp_path)) == "read quickstart"


def test_a_saturated_run_may_leave_a_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`validate` makes one for each router beside those at a load, which drain: G1 counts what these lost."""
    images = {"arrived": 10, "completed": 7, "failed": 1}
    row = {"router": "jsq", "throughput_img_s": 5.0, "latency_s": {"p99": 0.1}, "images": images}

    def runs(*ends: str) -> str:
        for number, end in enumerate(ends):
            folder = tmp_path / "quickstart" / "run" / "executors" / f"{number}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text(json.dumps({**row, "end": end}))
        return job.quickstart(Stand("cpu", tmp_path))

    monkeypatch.setattr(job, "_slimsched", lambda *words: "")
    assert (runs(), [runs("cut"), runs("cut", "drain")]) == ("no run on executors", ["", "2 have no end"])


def _validation(lost: int = 0, routers: tuple[str, ...] = job.ROUTERS, mean_s: float | None = 0.01) -> Any:
    images = {"arrived": 10 + lost, "completed": 9, "failed": 1}
    told = {"latency_mean": mean_s, "latency_p99": 0.02, "energy_per_image": 0.5}
    keys = [(router, load) for load in job.LOADS for router in routers]
    row = {
        "executors": {name: {"mean": value} for name, value in told.items()},
        "error_pct": dict.fromkeys(told, 3.0),
        "coverage": {each: {"inside": 4, "of": 5, "least": 3} for each in told},
    }
    rows = [{"router": router, "load": load, **row} for router, load in keys]
    return {"pairs": [{"executors": {"images": images, "end": "drain"}} for _ in keys], "rows": rows}


def test_a_validation_is_told_beside_what_is_promised() -> None:
    """Wrong is what has no end, a router that completed nothing, a load that was not run; errors are told."""
    wrong, numbers = job.told(_validation())
    assert wrong == ""
    assert (numbers["promised_latency_p99_pct"], numbers["jsq_0.8_latency_p99_error_pct"]) == (10.0, 3.0)
    assert (numbers["ladder_0.3_mean_ms"], numbers["ladder_0.3_p99_ms"]) == (10.0, 20.0)
    assert numbers["random_0.6_energy_j_image"] == 0.5
    assert numbers["random_0.6_latency_mean_inside"] == {"inside": 4, "of": 5, "least": 3}
    assert job.told(_validation(lost=2))[0] == "18 have no end"
    assert job.told(_validation(mean_s=None))[0].endswith("ladder completed nothing")
    assert job.told(_validation(routers=("random", "jsq")))[0] == "3 rows are missing"


def test_gpu_check_list_has_all_checks_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The page names the checks' letters and their number."""
    assert all(callable(check.look()) for check in CHECKS)
    assert gpu.main(["--list"]) == 0
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert ids == [check.id for check in CHECKS]
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| ([A-Z]) \|", page, re.MULTILINE) == sorted({each[0] for each in ids})
    assert f"Each of the {len(ids)} checks" in page
