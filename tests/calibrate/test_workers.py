"""Power is read past its rise, from a counter where there is one; and a real worker can be calibrated end to end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from calibrate import calibrate, check_profile
from calibrate.fit import CONCURRENCY_ERROR, SOLO_ERROR
from calibrate.measure import Progress
from calibrate.probe import Probe, power_model, probe, sensor_model
from calibrate.workers import Watched, mean_power, sampled
from hw.device import DeviceSpec
from hw.networks import ModelFile, save_model
from hw.slimresnet import SlimResNet, SlimResNetConfig
from hw.telemetry import AbsentSensor, Reading, usable_cores
from policies.errors import InputError, WorkError
from policies.vocabulary import Provenance
from sim.profile import DeviceInfo, Profile

POLLED: Mapping[str, Provenance] = {"power_w": Provenance.POLLED}


def looks(powers_w: list[float | None], energies_j: list[float | None]) -> list[Watched]:
    """One look a second."""
    pairs = enumerate(zip(powers_w, energies_j, strict=True))
    return [Watched(float(at), Reading(power, 0.5, None, POLLED), energy) for at, (power, energy) in pairs]


def test_the_counter_is_preferred_to_polling() -> None:
    """Joules over seconds, after the rise."""
    power = mean_power(looks([0.0, 1.0, 1.0, 1.0], [0.0, 500.0, 600.0, 700.0]), 1.0)
    assert (power.power_w, power.provenance, power.utilization) == (100.0, Provenance.MEASURED, 0.5)


def test_polling_drops_the_rise() -> None:
    """The first second still shows what was before."""
    power = mean_power(looks([5.0, 90.0, 110.0], [None] * 3), 1.0)
    assert (power.power_w, power.provenance) == (100.0, Provenance.POLLED)


def test_a_silent_sensor_is_an_error() -> None:
    """No power is not zero power."""
    with pytest.raises(WorkError, match="said nothing"):
        mean_power(looks([None, None, None], [None] * 3), 1.0)
    with sampled(AbsentSensor(), period_s=0.001) as take:
        while len(take()) < 2:
            pass
        assert all(look.reading.power_w is None for look in take())


def test_power_model_keeps_idle_below_context_below_cap() -> None:
    """A noisy sensor may see less under a context, or more than the limit; the weakest provenance wins."""
    found = Probe(DeviceInfo(kind="cpu", name="x", vram_bytes=1, stamps={"power_limit_mw": "25000"}), True, 1.0)
    measured, polled = (30.0, Provenance.MEASURED), (28.0, Provenance.POLLED)
    power = power_model(DeviceSpec(), found, measured, polled)
    assert (power.bare_idle_w, power.context_idle_w, power.cap_w) == (28.0, 28.0, 28.0)
    assert power.provenance == Provenance.POLLED


def test_a_probe_says_what_the_device_is() -> None:
    """Name, date, versions, and for each sensor where it comes from; bandwidth is that of a real memory."""
    found = probe(DeviceSpec(cores=usable_cores()[:1]))
    assert {"date", "torch", "cpu", "telemetry_power"} <= set(found.info.stamps)
    assert 1e8 < found.bandwidth_bytes_s < 1e13
    assert sensor_model(DeviceSpec(), 0.2).power_window_s == 0.2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two segments and two widths, random weights."""
    torch.manual_seed(0)
    config = SlimResNetConfig(1, 8, 10, 8, 1, 2, widths=(0.5, 1.0), strides=(1, 2))
    path = tmp_path_factory.mktemp("model") / "two.safetensors"
    save_model(path, SlimResNet(config), "two", {})
    return path


@pytest.mark.slow
def test_a_real_worker_is_calibrated_and_resumes(model: Path, tmp_path: Path) -> None:
    """A whole profile of this CPU with stated errors; a second sitting repeats nothing; a check runs."""
    device, log = DeviceSpec(cores=usable_cores()[:1]), tmp_path / "log"
    seen: list[Progress] = []

    def run(device: DeviceSpec) -> Profile:
        return calibrate(
            ModelFile(model), device, budget_s=7.0, batch_limit=8, log_path=log, peer=device, on_progress=seen.append
        )

    profile = run(device)
    assert {SOLO_ERROR, CONCURRENCY_ERROR} <= {error.figure for error in profile.errors}
    assert profile.batch_limit == 8
    assert profile.link is not None
    assert all(a.load_s > 0 for a in profile.memory.instances)
    assert Profile.from_yaml(profile.to_yaml(), "profile.yaml") == profile
    assert [progress.done for progress in seen] == list(range(len(seen)))
    lines = log.read_text().splitlines()
    again = run(device)
    later = log.read_text().splitlines()
    assert later[: len(lines)] == lines
    steps = [json.loads(line)["step"] for line in later[1:]]
    assert len(set(steps)) == len(steps)  # nothing that was finished is measured again
    assert again.memory == profile.memory
    checked = {f.figure: f for f in check_profile(ModelFile(model), device, profile, points=3)}
    assert len(checked[SOLO_ERROR].pairs) == 3
    assert len(checked[CONCURRENCY_ERROR].pairs) == 1
    with pytest.raises(InputError, match=r"stamp\.execution\.onednn"):
        run(DeviceSpec(cores=device.cores, onednn=False))


def test_senseless_requests_are_refused(model: Path, tmp_path: Path) -> None:
    """Before anything is started."""
    for budget_s, limit, key in ((0.0, 8, "budget"), (float("nan"), 8, "budget"), (10.0, 0, "batch_limit")):
        with pytest.raises(InputError) as refused:
            calibrate(ModelFile(model), DeviceSpec(), budget_s=budget_s, batch_limit=limit, log_path=tmp_path / "log")
        assert refused.value.key == key
    with pytest.raises(InputError):
        calibrate(ModelFile(tmp_path / "none"), DeviceSpec(), budget_s=1.0, batch_limit=1, log_path=tmp_path / "log")
    assert not (tmp_path / "log").exists()
