"""A trained router in compiled code. It needs numba, so whoever may do without imports it late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.ppo import kernels
from policies.ppo.layout import Layout
from policies.ppo.spec import PolicySpec
from policies.vocabulary import Choice, ClusterView

_DRAWS = 3  # uniform numbers, before what is seen of the view


class _Codes(dict[tuple[bool, ...], int]):
    """The widths that a server can hold, as the bits of a number."""

    def __missing__(self, widths: tuple[bool, ...]) -> int:
        return self.setdefault(widths, code_of(widths))


def code_of(widths: Iterable[bool]) -> int:
    """Bit w says whether width w may be chosen."""
    return sum(1 << w for w, may in enumerate(widths) if may)


class CompiledRouter:
    """One decision in a few microseconds: the view is read into one row of memory, which the kernel decides about.

    Not for two threads at once: they would share that memory.

    Attributes:
        weights, sizes: what `kernels.decide` takes.
        limits_w: (N,) each server's power limit.
        scratch: memory for one caller.
    """

    def __init__(self, spec: PolicySpec, hidden: tuple[int, ...], tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        layout = Layout.of(spec, hidden)
        self.weights, self.sizes = layout.pack(tensors), layout.sizes()
        self.limits_w = np.array(spec.power_limits_w)
        self.scratch = np.zeros(layout.scratch, np.float32)
        servers = range(spec.servers)
        self._choices = [Choice(*each) for each in product(servers, spec.widths, spec.groups)]
        self._codes = _Codes()
        of_server = "dddq"  # outstanding requests, power, utilization, code
        self._write = Struct(f"=dd{of_server * spec.servers}").pack_into
        self._view = np.zeros(_DRAWS + 2 + len(of_server) * spec.servers)
        self._uniforms, self._seen = self._view[:_DRAWS], self._view[_DRAWS:].data
        self._compile()

    def choose(self, view: ClusterView, rng: np.random.Generator, greedy: bool) -> Choice:
        """Decide about a view of N servers; draws three numbers unless greedy."""
        codes = self._codes
        seen = [
            number
            for each in view.servers
            for number in (
                each.outstanding_requests,
                each.power_w,
                each.utilization,
                codes[each.widths] if each.valid else 0,
            )
        ]
        self._write(self._seen, 0, view.fifo_length, view.completed, *seen)
        if not greedy:
            rng.random(out=self._uniforms)
        return self._choices[self._decide(greedy)]

    def _decide(self, greedy: bool) -> int:
        return int(kernels.choose(self.weights, self.sizes, self.limits_w, self._view, greedy, self.scratch))

    def _compile(self) -> None:
        """Now rather than at the first decision: the first server, with the first width."""
        self._view.view(np.int64)[_DRAWS + 2 + 3] = 1
        self._decide(True)
