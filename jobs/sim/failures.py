"""Nodes that fail and return: outages by the hour they happened, or drawn."""

from __future__ import annotations

from dataclasses import dataclass

from kit.chance import stream
from kit.errors import InputError
from kit.units import NS_PER_S


@dataclass(frozen=True, slots=True, order=True)
class Outage:
    """A node is out of service from `from_ns` until `to_ns`."""

    from_ns: int
    to_ns: int
    node: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_ns < self.to_ns:
            raise InputError("failures", f"node {self.node}", f"is down from {self.from_ns} until {self.to_ns} ns")


def drawn_outages(nodes: int, up_s: float, down_s: float, horizon_s: float, seed: int) -> tuple[Outage, ...]:
    """Each node works for an exponential time of mean `up_s`, then is down for one of mean `down_s`, and so on.

    Raises:
        InputError: for means that are not above 0.
    """
    if not (up_s > 0 and down_s > 0):
        raise InputError("failures", "", f"means of {up_s} s up and {down_s} s down: both must be above 0")
    rng, outages = stream(seed, "job node failures"), []
    for node in range(nodes):
        at_s = rng.exponential(up_s)
        while at_s < horizon_s:
            until_s = at_s + rng.exponential(down_s)
            from_ns = round(at_s * NS_PER_S)
            outages.append(Outage(from_ns, max(round(until_s * NS_PER_S), from_ns + 1), node))
            at_s = until_s + rng.exponential(up_s)
    return tuple(sorted(outages))
