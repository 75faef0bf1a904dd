"""Faults that a scenario plans: when a server is down or slow. Nouns only; `sim.cluster` makes them happen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outage:
    """A server dies at `start_ns` and is back, empty, at `end_ns` (None: never)."""

    server: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Slowness:
    """A server's batches run `factor` times slower from `start_ns` to `end_ns`."""

    server: int
    start_ns: int
    end_ns: int
    factor: float


Fault = Outage | Slowness
