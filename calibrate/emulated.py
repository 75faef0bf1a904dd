"""Opens an emulated device for calibration: an agent that plays a profile is measured as a real one is, by the clock.

What a driver would tell is taken from the profile: the device's name, its memory and that memory's bandwidth, idle
powers, the power limit, how its sensor averages. All else must be found.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median

from calibrate.agents import AgentBench
from calibrate.bench import SteadyLoad
from calibrate.calibration import CalibrationRequest, Played
from calibrate.fit import DeviceFacts
from calibrate.meter import Meter, Watched
from calibrate.opening import Opened
from calibrate.probe import Probe
from hw.agent.emulated import EmulatedDevice
from hw.agent.emulated_outfit import EmulatedOutfit
from hw.agent.outfit import AgentSpec
from hw.router.local_agents import start_agents
from hw.telemetry import Details, Reading, Sensor
from hw.transport.arena import Arena
from hw.transport.messages import Point
from policies.vocabulary import NS_PER_S, Provenance
from sim.profile import DeviceInfo, Power, Profile

ARENA_BYTES = 1 << 26
_PROVENANCE = dict.fromkeys(("power_w", "utilization"), Provenance.EMULATED)


@dataclass(frozen=True, slots=True)
class EmulatedBench(AgentBench):
    """`calibrate.bench.Bench` on an agent of an emulated device, whose sensor nobody else can read."""

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """See `Bench`."""
        pause_s = self.pause_s(point, duty)
        result = self.timed(point, 5, 2, duration_s, pause_s)
        watched = [
            Watched(
                s.sampled_ns / NS_PER_S, Reading(s.power_w, s.utilization, None, _PROVENANCE), s.energy_j, Details()
            )
            for s in result.sampled
        ]
        return replace(self.mean_load(point, duration_s, result, watched), provenance=Provenance.EMULATED)


@contextmanager
def opened_emulated(wanted: CalibrationRequest) -> Iterator[Opened]:
    """An agent that plays the device, ready to be measured, and a place to move activations to.

    Raises:
        WorkError: its process could not start.
    """
    device, played = wanted.device, wanted.played
    assert isinstance(device, EmulatedDevice), "asked before"
    assert played is not None, "asked before"
    profile, sensor = played.profile, played.profile.sensor
    with contextlib.ExitStack() as stack:
        arenas = tuple(stack.enter_context(contextlib.closing(Arena(ARENA_BYTES))) for _ in range(2))
        spec = AgentSpec("calibrated", EmulatedOutfit(device, arenas, 0))
        (agent,) = stack.enter_context(start_agents([spec]))
        rise_s = sensor.lag_s + max(sensor.power_window_s, sensor.utilization_window_s)
        info = DeviceInfo(
            kind=profile.device.kind,
            name=profile.device.name,
            vram_bytes=profile.device.vram_bytes,
            emulated_slowdown=profile.device.emulated_slowdown,
            stamps={"source": f"emulated after {profile.name}", "date": datetime.now(UTC).date().isoformat()},
        )
        facts = DeviceFacts(
            info=info,
            execution=device.execution(),
            cores=1,
            bandwidth_bytes_s=bandwidth_of(played),
            power=Power(
                bare_idle_w=profile.power.bare_idle_w,
                context_idle_w=profile.power.context_idle_w,
                cap_w=profile.power.cap_w,
                provenance=Provenance.EMULATED,
            ),
            sensor=sensor,
            context_bytes=agent.context_bytes,
        )
        meter = Meter(f"emulated {device.label}", Sensor(), profile.power.cap_w, rise_s)
        yield Opened(EmulatedBench(agent, 1, meter), Probe(info, metered=True), facts)


def bandwidth_of(played: Played) -> float:
    """What the profile's shares of bandwidth are shares of, in bytes a second; they are rounded."""
    bandwidths = [
        played.costs.keys[curve.segment, curve.width, curve.previous_width].batch_bytes(batch) / mean_s / share
        for curve in played.profile.latency
        for batch, mean_s, share in zip(curve.batches, curve.mean_s, curve.bandwidth_share, strict=True)
        if share > 0
    ]
    return median(bandwidths) if bandwidths else float("inf")


def of_an_emulated_device(profile: Profile) -> Profile:
    """A fitted profile as one of a device that is emulated."""
    sharing = profile.concurrency.model_copy(update={"provenance": Provenance.EMULATED})
    return profile.model_copy(update={"provenance": Provenance.EMULATED, "concurrency": sharing})


def stamp_of(device: EmulatedDevice) -> dict[str, str]:
    """What must agree for a log to be continued."""
    return {"played": hashlib.sha256(device.data).hexdigest()[:16]}
