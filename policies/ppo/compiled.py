"""A trained router in compiled code. It needs numba, so other modules import it late."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.compiled.layout import bits
from policies.ppo import kernels
from policies.ppo.layout import Layout
from policies.ppo.spec import PolicySpec
from policies.vocabulary import Choice, ClusterView, Hold, ServerView

_SEEN = 3  # numbers of the view, after the uniform ones; those of each server follow
_write_counts = Struct("=ddd").pack_into
_write_server = Struct("=dddq").pack_into


class _Page:
    """The input of `kernels.choose`, and the servers' views in it."""

    def __init__(self, servers: int, heads: int) -> None:
        self.numbers = np.zeros(heads + _SEEN + 4 * servers)
        self.uniforms, self.seen = self.numbers[:heads], self.numbers[heads:].data
        self.views: list[ServerView | None] = [None] * servers


class CompiledRouter:
    """A router that decides in a few microseconds: the view is copied into a row of memory, which the kernel reads.

    A server's view that is the very object of the segment's last decision is not read again. Not thread-safe: threads
    would share that memory.

    Attributes:
        weights, sizes: as for `kernels.decide`.
        limits_w: (N,) each server's power limit.
        scratch: memory for one caller.
    """

    def __init__(self, spec: PolicySpec, hidden: tuple[int, ...], tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        layout = Layout.of(spec, hidden)
        self.weights, self.sizes = layout.pack(tensors), layout.sizes()
        self.limits_w = np.array(spec.power_limits_w)
        self.scratch = np.zeros(layout.scratch, np.float32)
        self._choices = [Choice(*each) for each in product(range(spec.servers), spec.widths, spec.groups)]
        self._heads, self._waits = len(spec.head_sizes), spec.waits
        self._pages: dict[int, _Page] = {}
        self._decide(_Page(spec.servers, self._heads), True)  # compiles now rather than at the first decision

    def choose(self, view: ClusterView, rng: np.random.Generator, greedy: bool) -> Choice | Hold:
        """Decide about a view of N servers; draws a number for each head unless greedy."""
        page = self._pages.get(view.head.segment)
        if page is None:
            page = self._pages[view.head.segment] = _Page(len(self.limits_w), self._heads)
        self._read(view, page)
        if not greedy:
            rng.random(out=page.uniforms)
        joint = self._decide(page, greedy)
        if self._waits.choices:
            joint, hold = divmod(joint, self._waits.choices)
            if hold:
                return self._waits.hold(hold, view)
        return self._choices[joint]

    def _read(self, view: ClusterView, page: _Page) -> None:
        seen, known = page.seen, page.views
        _write_counts(seen, 0, view.fifo_length, view.completed, self._waits.may(view))
        for i, server in enumerate(view.servers):
            if server is not known[i]:
                known[i] = server
                code = bits(server.widths) if server.valid else 0
                _write_server(
                    seen, 8 * _SEEN + 32 * i, server.outstanding_requests, server.power_w, server.utilization, code
                )

    def _decide(self, page: _Page, greedy: bool) -> int:
        return int(kernels.choose(self.weights, self.sizes, self.limits_w, page.numbers, greedy, self.scratch))
