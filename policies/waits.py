"""The waits among which a policy chooses by index: the allowed ones, and their meaning, independent of the policy.

Index 0 is no hold. Index k holds the candidates until the next larger group is full, for the k-th wait at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.observation import Bools
from policies.vocabulary import NS_PER_S, ClusterView, Hold


def problem_with(holds_s: Sequence[float], limit_s: float) -> str | None:
    """Return what is wrong with waits under this limit of the router, with the remedy; None for nothing."""
    if list(holds_s) != sorted(set(holds_s)) or not all(
        isfinite(each * NS_PER_S) and each * NS_PER_S >= 1 for each in holds_s
    ):
        return f"{list(holds_s)} must ascend, each a nanosecond or longer; or leave it empty, to hold nobody"
    if not holds_s or holds_s[-1] <= limit_s:
        return None
    if limit_s == 0:
        return f"{list(holds_s)}: nobody may be held; set router.max_batching_delay_s above 0, or leave holds_s empty"
    allowed = f"at most router.max_batching_delay_s ({limit_s:g})"
    return f"{holds_s[-1]:g} is longer than anybody may be held, {allowed}; raise that limit, or choose shorter waits"


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one policy, in nanoseconds, and the group sizes, ascending. Without waits it never holds."""

    waits_ns: tuple[int, ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, holds_s: Sequence[float], groups: Sequence[int]) -> Waits:
        """Convert waits from seconds."""
        return cls(tuple(round(each * NS_PER_S) for each in holds_s), tuple(groups))

    @classmethod
    def within(cls, holds_s: Sequence[float], config: RouterConfig) -> Waits:
        """Return the waits for a router's core; `InputError` if it does not hold requests that long."""
        problem = problem_with(holds_s, config.max_batching_delay_ns / NS_PER_S)
        if problem:
            raise InputError("environment", "holds_s", problem)
        return cls.of(holds_s, config.groups)

    @property
    def choices(self) -> int:
        """1 + the number of waits; 0 if there are none."""
        return 1 + len(self.waits_ns) if self.waits_ns else 0

    def may(self, view: ClusterView) -> bool:
        """Return whether an index above 0 may be chosen."""
        return view.hold_left_ns > 0 and view.candidates < self.groups[-1]

    def mask(self, view: ClusterView) -> Bools:
        """Return (`choices`,) which indices may be chosen."""
        mask = np.full(self.choices, self.may(view))
        mask[:1] = True
        return mask

    def hold(self, index: int, view: ClusterView) -> Hold:
        """Return the meaning of an index above 0 for a view in which it may be chosen."""
        requests = next(size for size in self.groups if size > view.candidates)
        return Hold(requests, min(self.waits_ns[index - 1], view.hold_left_ns))
