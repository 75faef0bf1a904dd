"""What a router's own decisions take on a host, as it was measured there: a small file of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from kit.documents import read_json
from kit.errors import InputError
from kit.strict import StrictModel, validate
from sim.profile import Count

SCHEMA: Final = "slimsched.decision-time/1"
MAX_S: Final = 60.0  # as of `router.decision_s`


class DecisionTime(StrictModel):
    """CPU time of one router's decisions, beside that of `random` over the same views, in turns."""

    schema_: Literal["slimsched.decision-time/1"] = Field(alias="schema", description="the form of this file")
    router: str = Field(description="its name in tables", min_length=1)
    provenance: Literal["measured"] = Field(description="where the times come from")
    machine: str = Field(description="the processor")
    cores: tuple[Annotated[int, Field(ge=0)], ...] = Field(description="that it was kept to; empty for any")
    views: Count = Field(description="of how many decisions")
    rounds: Count = Field(description="how often each was made")
    own_s: float = Field(description="mean over views, each the median of its rounds", ge=0, le=MAX_S)
    random_s: float = Field(description="the same of `random`", ge=0, le=MAX_S)

    @property
    def beyond_s(self) -> float:
        """What its decisions take beyond those of `random`, with which the host's costs are measured."""
        return max(0.0, self.own_s - self.random_s)


def read_decision_time(path: Path, router: str) -> DecisionTime:
    """Read that router's; raises `InputError` if it is missing, broken, or another's."""
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(str(path), "", f"must be an object with the schema {SCHEMA}")
    time = validate(DecisionTime, raw, str(path))
    if time.router != router:
        raise InputError(str(path), "router", f"is {time.router!r}, and not {router!r}; remove the file")
    return time
