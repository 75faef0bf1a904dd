"""The refusals of the compiled engine, and the reasons for which a run can't continue."""

from __future__ import annotations

from kit.errors import InputError
from sim.compiled.codes import NO_TUPLE


class UnsupportedScenario(InputError):  # noqa: N818 - it names the user's scenario
    """A feature of the scenario that the compiled engine lacks and the reference has.

    Attributes:
        feature: the name of the feature.
    """

    def __init__(self, feature: str) -> None:
        self.feature = feature
        super().__init__("--engine", "", f"the compiled engine can't do {feature}; use --engine simpy")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, ...]]:
        """Rebuild the error from the feature when it crosses a process boundary."""
        return type(self), (self.feature,)


def problem_of(status: int) -> str:
    """Return why a run can't continue."""
    what = "width tuple that was not evaluated" if status == NO_TUPLE else "work key without a latency curve"
    return f"the run came to a {what}"
