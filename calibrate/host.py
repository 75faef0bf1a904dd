"""Costs of the executors on one real host, for profiles of devices that are not available.

A datasheet has no data on the routing process. That process is the same for all GPUs, so its costs were measured once,
and are in every profile that `profile synth` creates (docs/profiles.md).
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from kit import strict
from kit.strict import StrictModel
from sim.profile import HandoverTimes, RouterHost

STAMP: Final = "router_host_and_handover"  # a profile's stamp: where another host's costs were measured


class MeasuredHost(StrictModel):
    """What one host was measured to cost.

    Attributes:
        measured: on what, when, and by which command; profiles repeat it.
        spread: how far single runs lay apart, in words.
    """

    schema_: Literal["slimsched.host/1"] = Field(alias="schema")
    measured: str
    spread: str
    router_host: RouterHost
    handover: HandoverTimes

    @classmethod
    def from_yaml(cls, text: str, source: str) -> MeasuredHost:
        """Parse YAML; raises `InputError` naming `source` and the key if it is invalid."""
        return strict.parse(cls, text, source)

    def to_yaml(self) -> str:
        """Return the text that `from_yaml` reads back."""
        return strict.dump(strict.plain(self))
