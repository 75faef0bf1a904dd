"""What the executors cost one real host, for profiles of devices that are not there.

A datasheet says nothing of the process that decides. That process is the same whatever GPUs are behind it, so what it
costs was measured once, and stands in every profile that `profile synth` makes (docs/profiles.md).
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from kit import strict
from kit.strict import StrictModel
from sim.profile import HandoverTimes, RouterHost

STAMP: Final = "router_host_and_handover"  # of a profile: on what another host's were measured


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
        """Raises `InputError` naming `source` and the key where it is none."""
        return strict.parse(cls, text, source)

    def to_yaml(self) -> str:
        """The text that `from_yaml` reads back."""
        return strict.dump(strict.plain(self))
