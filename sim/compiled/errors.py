"""What the compiled engine refuses, and why a run can't go on."""

from __future__ import annotations

from kit.errors import InputError
from sim.compiled.codes import NO_TUPLE


class UnsupportedScenario(InputError):  # noqa: N818 - it names the user's scenario
    """The compiled engine can't do something that the scenario asks for; the reference can.

    Attributes:
        feature: what it is.
    """

    def __init__(self, feature: str) -> None:
        self.feature = feature
        super().__init__("--engine", "", f"the compiled engine can't do {feature}; use --engine simpy")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, ...]]:
        """Made again from the feature where it comes out of another process."""
        return type(self), (self.feature,)


def problem_of(status: int) -> str:
    """Why a run can't go on."""
    what = "width tuple that was not evaluated" if status == NO_TUPLE else "work key without a latency curve"
    return f"the run came to a {what}"
