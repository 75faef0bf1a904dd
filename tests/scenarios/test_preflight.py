"""What must fit before real executors start: one message with its remedy, exit code 2, and nothing was begun."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from calibrate.device_identity import Interference, require_quiet
from hw.device_settings import DeviceSpec
from hw.networks.accuracy_table import Evaluation, load_accuracy
from hw.telemetry import usable_cores
from kit import checkpoint
from kit.errors import InputError
from policies.interfaces import MICRO_BATCH_SIZES
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
from scenarios.executors import preflight
from scenarios.executors.device_choice import chosen_devices, device_spec
from scenarios.files.scenario_keys import DeviceSection
from scenarios.job import comparing_stage, main_job, network_stages, profile_stages, validation_stage
from scenarios.metrics import fidelity
from slimsched.cli import main
from tests import tiny
from tests.hw.fake_nvml import FakeNvml, FakeNvmlDevice

MODELS = Path(__file__).parents[2] / "scenarios" / "data" / "models"
WIDTHS = (0.25, 0.5, 0.75, 1.0)
SCENARIO = f"""
schema: slimsched.scenario/1
name: ready
model:
  network: slimresnet-tiny
  dataset: cifar100
  checkpoint: {MODELS / "slimresnet-tiny.safetensors"}
  accuracy: {MODELS / "slimresnet-tiny.accuracy.json"}
cluster:
  greedy: {{batch_limit: 16, vram_cap_gb: 3}}
  servers:
  - {{name: a, profile: a.yaml, link: loopback, device: {{vram_gb: 6, cores: [{usable_cores()[0]}]}}}}
  - {{name: b, profile: a.yaml, link: loopback, shares_device_with: a}}
workload: {{kind: poisson, rate_img_s: 20}}
validate: {{routers: [random], duration_s: 1s, warmup_s: 0.1s}}
duration_s: 2
warmup_s: 0.1
"""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was started: the stage that would start executors only notes that it was asked to."""
    names: list[str] = []

    def note(*_: object, **__: object) -> Any:
        names.append("validate")
        raise KeyboardInterrupt

    monkeypatch.setattr(validation_stage, "validate_experiment", note)
    monkeypatch.setattr(preflight, "memory_bytes", lambda device: 8_000_000_000)
    return names


@pytest.fixture
def no_work(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same, and neither is a network trained nor a device calibrated."""

    def note(*_: object, **__: object) -> None:
        begun.append("work")
        raise KeyboardInterrupt

    monkeypatch.setattr(network_stages, "train_model", note)
    monkeypatch.setattr(profile_stages, "calibrate_device", note)
    return begun


def validate(
    folder: Path, old: str = "", new: str = "", model_hash: str = "", verb: str = "validate", *, quiet: bool = True
) -> int:
    """`slimsched validate` (or `run`) of the scenario with one text replaced; returns the exit code."""
    assert old in SCENARIO, f"{old!r} is not in the scenario"
    table = load_accuracy(MODELS / "slimresnet-tiny.accuracy.json")
    assert isinstance(table, Evaluation)
    model = {**tiny.profile().model.model_dump(mode="json"), "hash": model_hash or table.hash}
    errors = [
        {
            "metric": "solo latency",
            "kind": "held out",
            "median_abs_pct": 0.9,
            "mean_abs_pct": 2.5,
            "p90_abs_pct": 5.0,
            "max_abs_pct": 7.0,
            "points": 12,
        }
    ]
    profile = tiny.profile("a", provenance="measured", errors=errors, model=model)
    (folder / "a.yaml").write_text(profile.to_yaml())
    (folder / "ready.yaml").write_text(SCENARIO.replace(old, new, 1) if old else SCENARIO)
    return main([verb, str(folder / "ready.yaml"), "--out", str(folder / "run"), *(["--quiet"] if quiet else [])])


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *built_for: str) -> None:
    for name, told in {
        "is_available": True,
        "device_count": 1,
        "get_device_name": "GeForce GTX 980 Ti",
        "get_device_capability": capability,
        "get_arch_list": list(built_for),
    }.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, told=told: told)


def test_preflight_that_passes_starts_the_validation(tmp_path: Path, begun: list[str]) -> None:
    assert (validate(tmp_path), begun) == (130, ["validate"])


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        (
            "cores: [",
            "cores: [98765, ",
            ["servers.0.device.cores (a)", "no core 98765 for this process", f"expected {usable_cores()[0]}"],
        ),
        ("[random]", "[random, segments.safetensors]", ["segments", "train a router for this cluster"]),
        ("[random]", "[random, widths.safetensors]", ["widths", "train a router for this cluster"]),
        ("device: {", "device: {kind: cuda, index: 77, ", ["cluster.servers.0.device.index", "no cuda:77"]),
        ("vram_cap_gb: 3", "vram_cap_gb: 3.7", ["vram_cap_gb", "8.20 GB together", "8.00 GB"]),
        ("vram_gb: 6, ", "", ["servers.0.greedy.vram_cap_gb", "3.00 GB", "1.07 GB", "device.vram_gb"]),
        (f", device: {{vram_gb: 6, cores: [{usable_cores()[0]}]}}", "", ["validate", "a device for each server"]),
    ],
)
def test_preflight_that_fails_is_one_line_and_starts_no_work(
    old: str, new: str, wanted: list[str], tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Causes are an absent device, too little memory, no device at all, and a router of another cluster."""
    router_file(tmp_path / "segments.safetensors", segments=2)
    router_file(tmp_path / "widths.safetensors", widths=(0.5, 1.0))
    assert validate(tmp_path, old, new) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert [part for part in wanted if part not in err] == []
    assert begun == []


def test_a_router_file_of_another_kind_is_told_before_the_work(
    tmp_path: Path, no_work: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = calibrated_here(SCENARIO).replace("[random]", "[random, old.safetensors]")
    monkeypatch.setattr(sys.modules[__name__], "SCENARIO", text)
    path = tmp_path / "old.safetensors"
    checkpoint.write(path, {"old.values": np.zeros(33)}, {"kind": "old", "segments": "4"})
    assert validate(tmp_path, verb="run") == 2
    error = capsys.readouterr().err
    assert "old.safetensors: not a router of this version, or damaged" in error
    assert "Traceback" not in error
    path.write_bytes(path.read_bytes()[:-9])
    assert validate(tmp_path, verb="run") == 2
    assert "damaged" in capsys.readouterr().err
    assert no_work == []


def calibrated_here(text: str) -> str:
    """The scenario with a network to be trained and devices to be calibrated first."""
    for part in ("checkpoint", "accuracy"):
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{part}:"))
        text = text.replace(f"{line}\n", "")
    return text.replace("profile: a.yaml, ", "")


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("duration_s: 1s", "duration_s: 0.05s", ["validate.warmup_s", "0.1 s", "0.05 s"]),
        ("kind: poisson, rate_img_s: 20", "kind: trace, file: t.csv", ["validate.loads", "a trace has no rate"]),
        ("vram_cap_gb: 3", "vram_cap_gb: 5", ["10.80 GB together (a 5.00, b 5.00, and 0.40 for", "8.00 GB; lower"]),
        ("vram_gb: 6, ", "vram_gb: 2, ", ["servers.0.greedy.vram_cap_gb", "2.00 GB of the device of 'a'"]),
        ("[random]", "[random, other.safetensors]", ["servers: expected 2, found 3"]),
        ("vram_cap_gb: 3", "vram_cap_gb: 3, preload: [[9, 1.0]]", ["greedy.preload", "no instance [9, 1.0]", "1 to 4"]),
        ("vram_cap_gb: 3", "preload: [[1, 0.3]]", ["servers.0.greedy.preload", "no instance [1, 0.3]", "0.25, 0.5"]),
    ],
)
def test_a_run_refuses_before_it_trains_or_measures(
    old: str, new: str, wanted: list[str], tmp_path: Path, no_work: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What needs no profile is said at once, and not after hours of training and calibrating."""
    router_file(tmp_path / "other.safetensors", servers=3)
    (tmp_path / "t.csv").write_text("time_s\n0.5\n")
    text = calibrated_here(SCENARIO).replace("routers: [random],", "routers: [random], loads: [0.5],")
    monkeypatch.setattr(sys.modules[__name__], "SCENARIO", text)
    assert (validate(tmp_path, verb="run"), no_work) == (130, ["work"])
    no_work.clear()
    capsys.readouterr()
    assert validate(tmp_path, old, new, verb="run") == 2
    err = capsys.readouterr().err
    assert [part for part in wanted if part not in err] == []
    assert no_work == []


@pytest.mark.parametrize(
    "cap, preload, code",
    [("0.5", "none", 2), ("0.601", "all", 2), ("0.601", "none", 130), ("0.7", "all", 130), ("null", "all", 130)],
)
def test_a_cap_below_a_gpus_context_is_refused_before_any_work(
    cap: str, preload: str, code: int, tmp_path: Path, no_work: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A large GPU's context takes more than half a GB, and the weights to preload come on top."""
    pretend_gpu(monkeypatch, (9, 0), "sm_90")
    monkeypatch.setattr(preflight, "context_bytes", lambda device: 600_000_000 if device.kind == "cuda" else 0)
    device = f"vram_gb: 6, cores: [{usable_cores()[0]}]"
    text = calibrated_here(SCENARIO).replace(device, "vram_gb: 6, kind: cuda")
    text = text.replace("vram_cap_gb: 3", f"vram_cap_gb: {cap}, preload: {preload}")
    monkeypatch.setattr(sys.modules[__name__], "SCENARIO", text)
    assert validate(tmp_path, verb="run") == code
    err = capsys.readouterr().err
    assert no_work == ([] if code == 2 else ["work"])
    if code == 2:
        assert len(err.splitlines()) == 1
        wanted = [
            "servers.0.greedy.vram_cap_gb",
            f"{cap} GB is less than 'a'",
            "0.60 GB for its context",
            "leave it out",
        ]
        assert [part for part in wanted if part not in err] == []


def test_a_device_without_room_is_refused_before_any_work(
    tmp_path: Path, no_work: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = calibrated_here(SCENARIO).replace("vram_cap_gb: 3", "preload: none")
    monkeypatch.setattr(sys.modules[__name__], "SCENARIO", text)
    assert (validate(tmp_path, verb="run"), no_work) == (130, ["work"])
    no_work.clear()
    capsys.readouterr()
    assert validate(tmp_path, "vram_gb: 6", "vram_gb: 0.00001", verb="run") == 2
    assert "servers.0.device.vram_gb (a): 1e-05 GB is less than 'a' takes" in capsys.readouterr().err
    assert no_work == []


def test_a_run_refuses_a_profile_of_another_network_before_it_serves(
    tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as profiles are there: neither is a router compared nor an executor started."""
    monkeypatch.setattr(comparing_stage, "simulate_all", lambda *_, **__: begun.append("compare"))
    paper = "slimresnet18-paper.accuracy.json"
    monkeypatch.setattr(main_job, "require_accuracy", lambda job: None)
    assert validate(tmp_path, "slimresnet-tiny.accuracy.json", paper, model_hash="0123456789abcdef", verb="run") == 2
    assert "calibrate again" in capsys.readouterr().err
    assert begun == []


def test_other_programs_are_told_before_executors_start(
    tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[str, tuple[int, ...]]] = []

    def interference(device: DeviceSpec, _: object) -> Interference:
        looked.append(device.physical)
        return Interference(0.97, location="core 0", users=("busy (42) 95 %",))

    monkeypatch.setattr(preflight, "interference", interference)
    assert (validate(tmp_path, "name: ready", "name: ready", quiet=False), begun) == (130, ["validate"])
    assert looked == [("cpu", (usable_cores()[0],))]
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "other programs" in line]
    assert told.startswith("warning: other programs use 97 % of the device (core 0; most of it by busy (42) 95 %)")
    assert told.endswith(", more than 30 %: what is measured would be theirs, too; stop them"), "as calibrate says it"


@pytest.mark.parametrize(("share", "is_busy"), [(0.30, False), (0.31, True)])
def test_validating_and_calibrating_mean_the_same_by_busy(
    share: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One threshold and the same words: refused there, warned of here, and `busy` in tables and in the result."""
    found = Interference(share)
    monkeypatch.setattr(preflight, "interference", lambda *_: found)
    (warning,) = preflight.other_programs(DeviceSpec())
    assert ("stop them" in warning) is is_busy
    with pytest.raises(InputError) if is_busy else nullcontext() as refused:
        require_quiet("cpu", found, allow_busy=False)
    if refused is not None:
        assert found.warning in str(refused.value)
        assert found.warning in warning
    assert fidelity.is_busy({"programs": share, "stolen": 0.0}) is is_busy


def test_a_quiet_device_and_one_that_nothing_tells_of_are_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "interference", lambda *_: Interference(0.04))
    assert preflight.other_programs(DeviceSpec()) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert preflight.other_programs(DeviceSpec(kind="cuda")) == ()


def test_a_gpu_is_asked_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scenario gives none; a given one counts, and a GPU that is not here changes nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=80 * 10**9))
    assert device_spec(DeviceSection(kind="cuda")).vram_bytes == 80 * 10**9
    assert device_spec(DeviceSection(kind="cuda", vram_gb=5)).vram_bytes == 5 * 10**9
    assert device_spec(DeviceSection(kind="cuda", index=1)).vram_bytes == DeviceSpec().vram_bytes
    assert device_spec(DeviceSection()).vram_bytes == DeviceSpec().vram_bytes


def router_file(path: Path, *, servers: int = 2, segments: int = 4, widths: tuple[float, ...] = WIDTHS) -> Path:
    spec = PolicySpec(segments, widths, MICRO_BATCH_SIZES, (100.0,) * servers)
    sizes = {"trunk.0": (spec.observation.size, 4), "heads": (4, sum(spec.head_sizes))}
    weights: dict[str, Any] = {f"{name}.weight": np.zeros((b, a), np.float32) for name, (a, b) in sizes.items()}
    weights |= {f"{name}.bias": np.zeros(fan_out, np.float32) for name, (_, fan_out) in sizes.items()}
    PPORouter(spec, weights).save(path)
    return path


FULL = (8 << 30) - 300_000_000


@pytest.mark.parametrize(
    "gpu, capability, built_for, workers, said",
    [
        ({"compute_mode": 3}, (5, 2), "sm_50", 1, ""),
        ({"compute_mode": 3}, (5, 2), "sm_50", 2, r"GTX 980 Ti.*'exclusive process', and 2 processes"),
        ({}, (5, 2), "sm_75", 1, r"mine.yaml: servers.0.device.index: cuda:0 \(GeForce GTX 980 Ti\): .*sm_52"),
        ({"vram_used_bytes": FULL, "processes": [71, 12]}, (9, 0), "sm_75", 1,
         r"cuda:0: 0\.30 GB of 8\.6 are free \(processes 12, 71 use it\); end what holds it"),
        ({"vram_used_bytes": FULL}, (9, 0), "sm_75", 1,
         r"0\.30 GB of 8\.6 are free \(NVML reports no process\)"),  # a container's ids
        ({"vram_used_bytes": 6 << 30, "processes": [71]}, (9, 0), "sm_75", 1, ""),
    ],
)  # fmt: skip
def test_gpu_that_cannot_serve_is_refused_before_anything_starts(
    gpu: dict[str, Any], capability: tuple[int, int], built_for: str, workers: int, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An old one by what torch was built for; one for a single process by the servers that are to share it."""
    nvml_device = FakeNvmlDevice(**gpu)
    monkeypatch.setattr("scenarios.executors.device_choice.load_nvml", lambda: FakeNvml(nvml_device))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pretend_gpu(monkeypatch, capability, built_for, "sm_90")
    with pytest.raises(InputError, match=said) if said else nullcontext():
        preflight.require_device(DeviceSection(kind="cuda"), "mine.yaml", "servers.0.device", workers)


def test_a_gpu_that_torch_does_not_see_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.executors.device_choice.load_nvml", lambda: FakeNvml(FakeNvmlDevice()))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    device = DeviceSection(kind="cuda")
    said = r"no cuda:0 in this machine; the driver 999\.10 serves CUDA 12\.4, torch is built for 13\.0; install a newer"
    with pytest.raises(InputError, match=said):
        preflight.require_device(device, "mine.yaml", "servers.0.device")
    with pytest.raises(InputError, match=r"no device 'cuda:0' here \(the driver 999\.10 serves CUDA 12\.4"):
        chosen_devices("cuda:0")
    monkeypatch.setattr("scenarios.executors.device_choice.load_nvml", lambda: None)
    with pytest.raises(InputError, match="none is here; use kind: cpu"):
        preflight.require_device(device, "mine.yaml", "servers.0.device")
