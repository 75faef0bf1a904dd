"""Opening of a device for calibration, in the order that idle powers require: identity, bare idle, then a context.

It composes the probe, the detection of other programs, the meter's self-test and the bench, which are independent.
"""

from __future__ import annotations

import os
import time  # noqa: TID251 - idle power is looked at for a while
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil

from calibrate.agents import AgentBench
from calibrate.bandwidth import bandwidth_bytes_s
from calibrate.calibration import CalibrationRequest
from calibrate.fit import DeviceFacts
from calibrate.interference import Interference, on_cores, on_gpu, require_quiet
from calibrate.meter import (
    Meter,
    SelfTest,
    SensorTrust,
    Watch,
    Watched,
    fall_s,
    past_rise,
    self_test,
    wait_until_flat,
    watch,
)
from calibrate.probe import (
    Probe,
    assumed_power,
    meter_of,
    open_nvml,
    open_sensor,
    power_model,
    probe,
    sensor_model,
)
from hw.agent.torch_outfit import torch_agents
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.router.local_agents import start_agents
from hw.telemetry import Sensor
from hw.telemetry.nvml import other_processes
from hw.transport.messages import Point
from kit.errors import WorkError
from policies.vocabulary import Provenance

IDLE_DROPPED = 0.25  # of an idle measurement: it may still reflect earlier load


@dataclass(frozen=True, slots=True)
class Opened:
    """An open bench, with the known facts of its device.

    Attributes:
        warnings: warnings about measurements on this device, one sentence each.
    """

    bench: AgentBench
    probed: Probe
    facts: DeviceFacts
    warnings: tuple[str, ...] = ()


@contextmanager
def opened(wanted: CalibrationRequest, idle_s: float, load: Point, fall_look_s: float = 0.0) -> Iterator[Opened]:
    """Open a device for measurement, with a second process on it.

    Args:
        idle_s: time for which each idle power is sampled.
        load: the point that keeps the device busy for the sensor's self-test.
        fall_look_s: time for which it is sampled after that, to see how long its clocks stay up; 0 omits this.

    Raises:
        InputError: the device does not exist, or others use it.
        WorkError: the device or a process failed.
    """
    device, file = wanted.device, wanted.file
    sensor = open_sensor(device, ())
    probed = probe(device, sensor)
    meter = meter_of(device, probed, sensor)
    others = interference(device, sensor)
    require_quiet(meter.device, others, wanted.allow_busy)
    _settle(device, meter, probed)
    bare = _idle_looks(meter, probed, idle_s)
    bandwidth = bandwidth_bytes_s(device)  # its process has ended, so memory of contexts is the agents' alone
    with bench_of(file, device, wanted.peer, sibling=True) as bench:
        _settle(device, bench.meter, probed)
        context = _idle_looks(bench.meter, probed, idle_s, settle_s=bench.meter.rise_s)
        tested = sensor_test(bench.meter, probed, context, lambda seconds: bench.solo(load, 1, 2, seconds))
        after = watch(bench.meter.sensor, lambda: time.sleep(fall_look_s)) if probed.metered and fall_look_s else []
        bench = replace(bench, meter=replace(bench.meter, trust=tested.trust))
        probed, meter = _stamped(probed, tested, others), replace(meter, trust=tested.trust)
        facts = DeviceFacts(
            info=probed.info,
            execution=device.execution(),
            cores=len(device.physical[1]) if device.kind == "cpu" else 1,
            bandwidth_bytes_s=bandwidth,
            power=power_model(
                device, probed, _idle_w(device, meter, probed, bare), _idle_w(device, bench.meter, probed, context)
            ),
            sensor=sensor_model(device, wanted.sensor_period_s, sensor),
            context_bytes=bench.agent.wait_until_ready().context_bytes,
            fall_s=fall_s(after, bench.meter.rise_s),
            padded_sizes=device.warm_sizes,
        )
        notable = (f"{others}: what is measured may be theirs, too",) if others.notable else ()
        with naming_a_lost_device(meter):
            yield Opened(bench, probed, facts, (*notable, *tested.warnings))


@contextmanager
def bench_of(
    file: ModelFile, device: DeviceSpec, peer: DeviceSpec | None, sibling: bool = False
) -> Iterator[AgentBench]:
    """Start agents on a device; yields the bench with its meter."""
    named = [("calibrated", device)]
    named += [("sibling", device)] if sibling else []
    has_own_peer = peer is not None and not (sibling and peer == device)
    named += [("peer", peer or device)] if has_own_peer else []
    with torch_agents(named, file) as specs, start_agents(specs) as agents:
        on_device = agents[: 2 if sibling else 1]
        sensor = open_sensor(device, tuple(agent.pid for agent in on_device))
        yield AgentBench(
            agent=agents[0],
            peer=len(agents) - 1 if peer else None,
            meter=meter_of(device, probe(device, sensor), sensor),
            sibling=on_device[-1] if sibling else None,
            cores=device.physical[1] if device.kind == "cpu" else (),
            receiver=agents[-1] if peer and peer.kind == "cuda" else None,
        )


@contextmanager
def naming_a_lost_device(meter: Meter) -> Iterator[None]:
    """Convert errors of a lost device: an agent only detects that its own call failed."""
    try:
        yield
    except WorkError as error:
        if not meter.sensor.sample().lost or str(error).startswith(meter.device):
            raise
        raise WorkError(f"{meter.device} is lost; reset or reboot it ({error})") from error


def interference(device: DeviceSpec, sensor: Sensor) -> Interference:
    """Return others' use of a device that this process has not opened yet."""
    if device.kind == "cpu":
        return on_cores(device.physical[1])
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return on_gpu(sensor, other_processes(*open_nvml(device), pids))


def _settle(device: DeviceSpec, meter: Meter, probed: Probe) -> None:
    """Wait until effects of earlier load have ended: a GPU's clocks take seconds to fall."""
    if device.kind == "cuda" and probed.metered:
        wait_until_flat(meter.sensor)


def _idle_looks(meter: Meter, probed: Probe, idle_s: float, settle_s: float = 0.0) -> list[Watched]:
    return idle_looks(meter, idle_s, settle_s) if probed.metered else []


def idle_looks(
    meter: Meter,
    idle_s: float,
    settle_s: float,
    pause: Callable[[float], object] = time.sleep,
    look: Watch = watch,
) -> list[Watched]:
    """Sample an idle device.

    Args:
        settle_s: time in which readings may still reflect earlier load; these are dropped.
        pause: waits for a number of seconds.
        look: runs an action while sampling the sensor.
    """
    return past_rise(look(meter.sensor, lambda: pause(settle_s + idle_s)), settle_s)


def _idle_w(device: DeviceSpec, meter: Meter, probed: Probe, looks: Sequence[Watched]) -> tuple[float, Provenance]:
    """Return the mean power over these looks; the assumed one without a power sensor."""
    if not probed.metered:
        assumed = assumed_power(device, probed.info.name)
        return assumed.idle_w, assumed.provenance
    lasted_s = looks[-1].at_s - looks[0].at_s if looks else 0.0
    mean = meter.mean(looks, IDLE_DROPPED * lasted_s)
    return mean.power_w, mean.provenance


def sensor_test(
    meter: Meter, probed: Probe, idle: Sequence[Watched], load: Callable[[float], object], look: Watch = watch
) -> SelfTest:
    """Test the bench's own sensor: a sensor without its processes would see a CPU that is never used.

    Args:
        idle: looks at that sensor while the processes are idle.
        load: keeps the device busy for a number of seconds.
    """
    if not probed.metered:
        return SelfTest(SensorTrust(), "no power reading to test")
    return self_test(meter, idle[round(IDLE_DROPPED * len(idle)) :], load, look)


def _stamped(probed: Probe, tested: SelfTest, others: Interference) -> Probe:
    stamps = {**probed.info.stamps, "telemetry_self_test": tested.words, "interference": str(others)}
    stamps |= tested.trust.stamps() if probed.metered else {}
    return Probe(probed.info.model_copy(update={"stamps": stamps}), probed.metered and tested.trust.power)
