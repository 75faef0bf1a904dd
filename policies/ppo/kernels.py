"""The policy in compiled code: the network, sampling from it, and the router that decides with it.

The policy is a product of three categoricals (Eq. 2-6): server, width among those that the server can hold, and
micro-batch size; if the policy may delay there is a fourth, over 1 + H outcomes (`policies.observation`). It is one
more factor, independent of the others: server, width and micro-batch size are drawn and scored in a decision to delay,
too.

The network processes a tile of decisions at a time, weights are one row of float32 (`Layout`), and nothing is
allocated: a caller passes `Layout.scratch` float32 numbers, separate ones for each thread. Every sum has one order and
one rounding for each term (fused multiply-add), whatever the tile of a row and the width of the machine's registers. So
a row has the same bits alone, in a tile and in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, product
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

from kit.jit import Ints, Reals, Singles, entry, ints, kernel, reals, singles
from kit.jit_cache import IS_ON
from policies.compiled.plan_layout import bits
from policies.observation import Bools, Floats
from policies.ppo.spec import RELU, PolicySpec
from policies.vocabulary import BatchingDelay, Choice, ClusterView, ServerView

TILE: Final = 32  # decisions that pass the network together: their activations stay in the first cache
_MASKED = np.float32(-1e9)  # exp of it is exactly 0
_ZERO = np.float32(0)
_ONE = np.float32(1)
_TWO = np.float32(2)

# Indices into `Layout.sizes`.
SERVERS: Final = 0
WIDTHS: Final = 1
MICRO_BATCH_SIZES: Final = 2
BATCHING_DELAYS: Final = 3  # 1 + H, or 0 if the policy may not delay
OBSERVED: Final = 4  # 2 + 3N
RECTIFIED: Final = 5  # whether hidden layers are rectified (ReLU), otherwise tanh
INPUTS: Final = 6  # padded sizes from here on: of the inputs, and of each layer's outputs


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a network with the shape of `PolicyNetwork`: heads and value are one last layer, in this order.

    A layer's weights are (inputs, outputs) row-major, followed by its biases. Sizes are padded, outputs to a multiple
    of 16; the padding is 0, has no gradient and stays 0.

    Attributes:
        spec: the policy's shape.
        hidden: the sizes of the shared layers.
    """

    spec: PolicySpec
    hidden: tuple[int, ...]

    @property
    def _padded(self) -> list[int]:
        outputs = [-(-size // 16) * 16 for size in (*self.hidden, sum(self.spec.head_sizes) + 1)]
        return [-(-self.spec.observation.size // 4) * 4, *outputs]

    @property
    def parameters(self) -> int:
        """Length of the row of weights, padding included."""
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self._padded))

    @property
    def scratch(self) -> int:
        """Length of the scratch memory for a kernel's call: a tile's activations."""
        return TILE * sum(self._padded)

    def sizes(self) -> Ints:
        """Return the shape for the kernels: (INPUTS + 1 + layers,) int64."""
        spec = self.spec
        heads, batching_delays = spec.head_sizes[:3], sum(spec.head_sizes[3:])
        return np.array(
            [*heads, batching_delays, spec.observation.size, int(spec.activation == RELU), *self._padded], np.int64
        )

    def pack(self, tensors: Mapping[str, npt.NDArray[Any]]) -> Singles:
        """Pack tensors of `PolicyNetwork`'s names into one row; 0 without a value head, `KeyError` for others."""
        row, at = np.zeros(self.parameters, np.float32), 0
        layers = [*([f"trunk.{layer}"] for layer in range(len(self.hidden))), ["heads", "value"]]
        for names, (inputs, outputs) in zip(layers, pairwise(self._padded), strict=True):
            matrix, first = row[at : at + inputs * outputs].reshape(inputs, outputs), 0
            at += inputs * outputs
            for name in names:
                if name == "value" and "value.weight" not in tensors:
                    continue
                weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
                last = first + len(bias)
                matrix[: weight.shape[1], first:last] = weight.T
                row[at + first : at + last] = bias
                first = last
            at += outputs
        return row


@dataclass(frozen=True, slots=True)
class Experience:
    """B rewarded decisions.

    Attributes:
        observation: (B, 2 + 3N) float32.
        server_mask: (B, N) bool.
        width_mask: (B, W) bool, of the chosen server.
        actions: (B, 3) int64 indices of server, width and micro-batch size; (B, 4) with that of the batching delay, if
            any.
        log_prob: (B,) Eq. 6 at sampling.
        eps: (B,) the exploration share at sampling.
        value: (B,) V_old(s).
        reward: (B,) R.
        images: (B,) in the decision's micro-batch; 1 for a batching delay, whose reward is that of its oldest image.
        batching_delay_mask: (B, 1 + H) bool; (B, 0) if the policy may not delay.
    """

    observation: Floats
    server_mask: Bools
    width_mask: Bools
    actions: Ints
    log_prob: Floats
    eps: Floats
    value: Floats
    reward: Floats
    images: Floats
    batching_delay_mask: Bools

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, rows: Ints) -> Experience:
        """Return a copy of these rows, in this order."""
        return Experience(*(getattr(self, field.name)[rows] for field in fields(self)))


def empty(spec: PolicySpec, capacity: int) -> Experience:
    """Return this number of rows of zeros."""
    servers, widths, _, *batching_delays = spec.head_sizes
    return Experience(
        observation=np.zeros((capacity, spec.observation.size), np.float32),
        server_mask=np.zeros((capacity, servers), np.bool_),
        width_mask=np.zeros((capacity, widths), np.bool_),
        actions=np.zeros((capacity, len(spec.head_sizes)), np.int64),
        batching_delay_mask=np.zeros((capacity, sum(batching_delays)), np.bool_),
        **{name: np.zeros(capacity, np.float32) for name in ("log_prob", "eps", "value", "reward", "images")},
    )


def joined(parts: Sequence[Experience]) -> Experience:
    """Return all rows of one part or more, in order."""
    return Experience(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Experience)))


# ---------------------------------------------------------------------------------------------------------- arithmetic

if IS_ON:

    def _fused(context: Any, a: Any, b: Any, c: Any) -> Any:
        return types.float32(a, b, c), lambda _, builder, __, values: builder.fma(*values)

    fused: Any = intrinsic(_fused)
else:

    def fused(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
        """Compute A b + c, rounded once (except for rare double rounding)."""
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@kernel
def multiply(
    c: Singles, c_at: int, a: Singles, a_at: int, b: Singles, b_at: int, rows: int, terms: int, columns: int
) -> None:
    """Compute C += A B, for A (rows, terms), B (terms, columns) and C (rows, columns), each at its offset in memory.

    All are row-major. `terms` is a multiple of 4: an element of C is loaded and stored once for four of them. It is a
    sum over all terms, ascending, that starts from its present value.
    """
    for i in range(rows):
        to = c_at + i * columns
        for k in range(0, terms, 4):
            at, b0 = a_at + i * terms + k, b_at + k * columns
            a0, a1 = a[at], a[at + 1]
            a2, a3 = a[at + 2], a[at + 3]
            b1, b2 = b0 + columns, b0 + 2 * columns
            b3 = b0 + 3 * columns
            for j in range(columns):
                two = fused(a1, b[b1 + j], fused(a0, b[b0 + j], c[to + j]))
                c[to + j] = fused(a3, b[b3 + j], fused(a2, b[b2 + j], two))


_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)  # exp is a normal float32 in between
_LOG2_E = np.float32(math.log2(math.e))
_LN2_HIGH = np.float32(0.693359375)  # nine bits: times a whole number below 2^15 it is exact
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_TO_WHOLE = np.float32(1.5 * 2**23)  # adding and subtracting it rounds to a whole number
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@kernel
def exp(x: np.float32) -> np.float32:
    """Compute e^x for x up to 88; 0 below -87. Relative error below 1.2e-7.

    x = n ln 2 + r with |r| <= ln 2 / 2: 2^n times Taylor's polynomial of degree 7 (its remainder is below 6e-9).
    """
    inside = min(max(x, _LOWEST), _HIGHEST)
    n = (inside * _LOG2_E + _TO_WHOLE) - _TO_WHOLE
    r = fused(n, -_LN2_LOW, fused(n, -_LN2_HIGH, inside))
    tail = fused(r, fused(r, fused(r, fused(r, fused(r, _C7, _C6), _C5), _C4), _C3), _C2)
    power = fused(r, fused(r, tail, _ONE), _ONE) * np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return power if x >= _LOWEST else _ZERO


@kernel
def tanh(x: np.float32) -> np.float32:
    """Compute 1 - 2 / (e^2x + 1). Absolute error below 2e-7; exactly 0 at 0."""
    return _ONE - _TWO / (exp(x + x) + _ONE)


# --------------------------------------------------------------------------------------------------------- the network


@kernel
def observe(observation: Singles, at: int, sizes: Ints, scratch: Singles, row: int) -> None:
    """Write one observation into the network's inputs; the padding is 0."""
    width = sizes[INPUTS]
    observed = sizes[OBSERVED]
    for k in range(observed):
        scratch[row * width + k] = observation[at + k]
    for k in range(observed, width):
        scratch[row * width + k] = _ZERO


@kernel
def forward(weights: Singles, sizes: Ints, scratch: Singles, rows: int) -> int:
    """Compute logits and value of at most TILE decisions; returns their place in the scratch memory.

    A row's outputs have the same bits whatever the number of rows.
    """
    source = weight = 0
    for layer in range(INPUTS, len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        target, bias = source + TILE * inputs, weight + inputs * outputs
        for row in range(rows):
            for column in range(outputs):
                scratch[target + row * outputs + column] = weights[bias + column]
        multiply(scratch, target, scratch, source, weights, weight, rows, inputs, outputs)
        if layer < len(sizes) - 2:
            for i in range(target, target + rows * outputs):
                scratch[i] = max(_ZERO, scratch[i]) if sizes[RECTIFIED] else tanh(scratch[i])
        source, weight = target, bias + outputs
    return source


# ------------------------------------------------------------------------------------------------------------- drawing


@kernel
def _centre(logits: Singles, at: int, size: int) -> None:
    """Subtract a head's largest logit from all, so that exp never overflows."""
    largest = logits[at]
    for k in range(at + 1, at + size):
        largest = max(largest, logits[k])
    for k in range(at, at + size):
        logits[k] -= largest


@kernel
def _weigh(logits: Singles, at: int, size: int) -> float:
    """Turn a head's logits into numbers proportional to their probabilities, exactly 0 if masked; returns the sum."""
    _centre(logits, at, size)
    total = np.float64(0)
    for k in range(at, at + size):
        logits[k] = exp(logits[k])
        total += logits[k]
    return total


@kernel
def _draw(shares: Singles, at: int, size: int, total: float, uniform: float) -> int:
    """Return the index for `uniform` in [0, 1), by the inverse of the distribution; never one of probability 0."""
    reached, drawn = np.float64(0), 0
    for k in range(size):
        share = shares[at + k]
        if share > _ZERO:
            drawn = k
            reached += share
            if uniform * total < reached:
                break
    return drawn


@kernel
def _largest(logits: Singles, at: int, size: int) -> int:
    """Return the index of the largest; ties to the lowest."""
    best = 0
    for k in range(1, size):
        if logits[at + k] > logits[at + best]:
            best = k
    return best


@kernel
def _mask_servers(logits: Singles, at: int, servers: int, codes: Ints, codes_at: int, codes_step: int) -> int:
    """Mask the servers whose code is 0; returns the number of the others."""
    valid = 0
    for k in range(servers):
        if codes[codes_at + k * codes_step] != 0:
            valid += 1
        else:
            logits[at + k] = _MASKED
    return valid


@kernel
def _mask_widths(logits: Singles, at: int, widths: int, code: int) -> None:
    for k in range(widths):
        if (code >> k) & 1 == 0:
            logits[at + k] = _MASKED


@kernel
def _draw_server(
    logits: Singles, at: int, servers: int, codes: Ints, codes_at: int, codes_step: int, eps: float, uniform: float
) -> tuple[int, float]:
    """Sample a server from Eq. 5; returns it and its probability. Its head's logits become probabilities."""
    valid = _mask_servers(logits, at, servers, codes, codes_at, codes_step)
    total = _weigh(logits, at, servers)
    mixed = np.float64(0)
    for k in range(servers):
        if codes[codes_at + k * codes_step] != 0:
            logits[at + k] = np.float32((1 - eps) * (np.float64(logits[at + k]) / total) + eps / valid)
            mixed += logits[at + k]
    server = _draw(logits, at, servers, mixed, uniform)
    return server, np.float64(logits[at + server])


@kernel
def _draw_head(logits: Singles, at: int, size: int, uniform: float) -> tuple[int, float]:
    """Sample an index from Eq. 3 or 4; returns it and its probability."""
    total = _weigh(logits, at, size)
    drawn = _draw(logits, at, size, total, uniform)
    return drawn, np.float64(logits[at + drawn]) / total


@kernel
def _mask_batching_delays(logits: Singles, at: int, batching_delays: int, may_delay: bool) -> None:
    """Mask all outcomes but the first if no batching delay is allowed."""
    if not may_delay:
        for k in range(1, batching_delays):
            logits[at + k] = _MASKED


@entry
def act(
    weights: Singles,
    sizes: Ints,
    rows: Ints,
    observation: Singles,
    codes: Ints,
    uniforms: Reals,
    eps: float,
    scratch: Singles,
    actions: Ints,
    log_prob: Singles,
    value: Singles,
    server_mask: Bools,
    width_mask: Bools,
    may_delay: Bools,
    batching_delay_mask: Bools,
) -> None:
    """Sample server, then width among those it can hold, then micro-batch size (then batching delay, if any), for each
    of R decisions.

    A decision's data are stored in rows of large arrays, here called (B, ...); `rows` has their indices.

    Args:
        weights, sizes: the network.
        rows: (R,) the decisions' rows in the arrays of B.
        observation: (B, 2 + 3N).
        codes: (R, N), bit w of each is whether that server may be chosen with width w; 0: it may not be chosen.
        uniforms: (R, 3 or 4) in [0, 1), one for each head.
        eps: the share of uniform exploration in the server head.
        scratch: `Layout.scratch` numbers.
        actions, log_prob, value, server_mask, width_mask, batching_delay_mask: the outputs, as in `Experience`.
        may_delay: (R,) whether the candidates may be delayed.
    """
    servers, widths = sizes[SERVERS], sizes[WIDTHS]
    micro_batch_sizes, batching_delays = sizes[MICRO_BATCH_SIZES], sizes[BATCHING_DELAYS]
    logits = servers + widths + micro_batch_sizes + batching_delays
    columns = sizes[len(sizes) - 1]
    memory, parameters = singles(scratch), singles(weights)
    inputs, bits = singles(observation), ints(codes.reshape(-1))
    for start in range(0, len(rows), TILE):
        tile = min(TILE, len(rows) - start)
        for i in range(tile):
            observe(inputs, rows[start + i] * sizes[OBSERVED], sizes, memory, i)
        output = forward(parameters, sizes, memory, tile)
        for i in range(tile):
            row, first = rows[start + i], (start + i) * servers
            at = output + i * columns
            value[row] = memory[at + logits]
            server, of_server = _draw_server(memory, at, servers, bits, first, 1, eps, uniforms[start + i, 0])
            code = bits[first + server]
            _mask_widths(memory, at + servers, widths, code)
            width, of_width = _draw_head(memory, at + servers, widths, uniforms[start + i, 1])
            micro_batch_size, of_micro_batch_size = _draw_head(
                memory, at + servers + widths, micro_batch_sizes, uniforms[start + i, 2]
            )
            actions[row, 0], actions[row, 1] = server, width
            actions[row, 2] = micro_batch_size
            of_all = of_server * of_width * of_micro_batch_size
            if batching_delays:
                first_batching_delay, may = at + servers + widths + micro_batch_sizes, may_delay[start + i]
                _mask_batching_delays(memory, first_batching_delay, batching_delays, may)
                batching_delay, of_batching_delay = _draw_head(
                    memory, first_batching_delay, batching_delays, uniforms[start + i, 3]
                )
                actions[row, 3] = batching_delay
                of_all *= of_batching_delay
                for k in range(batching_delays):
                    batching_delay_mask[row, k] = may or k == 0
            log_prob[row] = np.float32(math.log(of_all))
            for k in range(servers):
                server_mask[row, k] = bits[first + k] != 0
            for k in range(widths):
                width_mask[row, k] = (code >> k) & 1 != 0


@kernel
def decide(
    weights: Singles,
    sizes: Ints,
    codes: Ints,
    codes_at: int,
    codes_step: int,
    uniforms: Reals,
    uniforms_at: int,
    may_delay: bool,
    greedy: bool,
    scratch: Singles,
) -> tuple[int, int, int, int]:
    """Return a stored router's decision, for the input of `observe` in row 0: indices of server, width, micro-batch
    size and batching delay.

    All rows are raw memory (`jit.singles`, `jit.ints`, `jit.reals`); codes as in `act`, of server i at `codes_at + i
    codes_step`. Greedy: the most probable of each head, ties to the lowest index; otherwise sampled with the uniform
    numbers at `uniforms_at`, one for each head. Without a fourth head the batching delay is 0.
    """
    servers, widths = sizes[SERVERS], sizes[WIDTHS]
    micro_batch_sizes, batching_delays = sizes[MICRO_BATCH_SIZES], sizes[BATCHING_DELAYS]
    first = forward(weights, sizes, scratch, 1)
    second = first + servers
    third = second + widths
    fourth = third + micro_batch_sizes
    batching_delay = 0
    if batching_delays:
        _mask_batching_delays(scratch, fourth, batching_delays, may_delay)
    if greedy:
        _mask_servers(scratch, first, servers, codes, codes_at, codes_step)
        server = _largest(scratch, first, servers)
        _mask_widths(scratch, second, widths, codes[codes_at + server * codes_step])
        if batching_delays:
            batching_delay = _largest(scratch, fourth, batching_delays)
        return server, _largest(scratch, second, widths), _largest(scratch, third, micro_batch_sizes), batching_delay
    at = uniforms_at
    server, _ = _draw_server(scratch, first, servers, codes, codes_at, codes_step, 0.0, uniforms[at])
    _mask_widths(scratch, second, widths, codes[codes_at + server * codes_step])
    width, _ = _draw_head(scratch, second, widths, uniforms[at + 1])
    micro_batch_size, _ = _draw_head(scratch, third, micro_batch_sizes, uniforms[at + 2])
    if batching_delays:
        batching_delay, _ = _draw_head(scratch, fourth, batching_delays, uniforms[at + 3])
    return server, width, micro_batch_size, batching_delay


@entry
def choose(weights: Singles, sizes: Ints, limits_w: Reals, view: Reals, greedy: bool, scratch: Singles) -> Any:
    """Return `decide` for a view: the joint index (server W + width) G + size; times 1 + H, + batching delay, if any.

    Args:
        weights, sizes, scratch: the network.
        limits_w: (N,) each server's power limit.
        view: (6 + 4N,): three uniform numbers (four with a fourth head: 7 + 4N), the FIFO's length, requests completed,
            whether the candidates may be delayed; then for each server its outstanding requests, power in watts,
            utilization, and its code (the bits of an int64 here).
        greedy: as in `decide`.
    """
    parameters, memory = singles(weights), singles(scratch)
    numbers, codes = reals(view), ints(view)
    servers, batching_delays = sizes[SERVERS], sizes[BATCHING_DELAYS]
    of_server = 4
    of_view = 4 if batching_delays else 3
    first = of_view + 3
    memory[0] = np.float32(math.log1p(numbers[of_view]))
    memory[1] = np.float32(math.log1p(numbers[of_view + 1]))
    for server in range(servers):
        at = first + of_server * server
        memory[2 + 3 * server] = np.float32(math.log1p(numbers[at]))
        memory[3 + 3 * server] = np.float32(numbers[at + 1] / limits_w[server])
        memory[4 + 3 * server] = np.float32(numbers[at + 2])
    for k in range(sizes[OBSERVED], sizes[INPUTS]):
        memory[k] = _ZERO
    may_delay = numbers[of_view + 2] > 0
    server, width, micro_batch_size, batching_delay = decide(
        parameters, sizes, codes, first + 3, of_server, numbers, 0, may_delay, greedy, memory
    )
    choice = (server * sizes[WIDTHS] + width) * sizes[MICRO_BATCH_SIZES] + micro_batch_size
    return choice * batching_delays + batching_delay if batching_delays else choice


# --------------------------------------------------------------------------------------------------- a stored router

_SEEN = 3  # numbers of the view, after the uniform ones; those of each server follow
_write_counts = Struct("=ddd").pack_into
_write_server = Struct("=dddq").pack_into


class _Page:
    """The input of `choose`, and the servers' views in it."""

    def __init__(self, servers: int, heads: int) -> None:
        self.numbers = np.zeros(heads + _SEEN + 4 * servers)
        self.uniforms, self.data = self.numbers[:heads], self.numbers[heads:].data
        self.views: list[ServerView | None] = [None] * servers


class CompiledRouter:
    """A router that decides in a few microseconds: the view is copied into a row of memory, which the kernel reads.

    A server's view that is the very object of the segment's last decision is not read again. Not thread-safe: threads
    would share that memory.

    Attributes:
        weights, sizes: as for `decide`.
        limits_w: (N,) each server's power limit.
        scratch: memory for one caller.
    """

    def __init__(self, spec: PolicySpec, hidden: tuple[int, ...], tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        layout = Layout(spec, hidden)
        self.weights, self.sizes = layout.pack(tensors), layout.sizes()
        self.limits_w = np.array(spec.power_limits_w)
        self.scratch = np.zeros(layout.scratch, np.float32)
        self._choices = [Choice(*each) for each in product(range(spec.servers), spec.widths, spec.micro_batch_sizes)]
        self._heads, self._waits = len(spec.head_sizes), spec.waits
        self._pages: dict[int, _Page] = {}
        self._decide(_Page(spec.servers, self._heads), True)  # compiles now rather than at the first decision

    def choose(self, view: ClusterView, rng: np.random.Generator, greedy: bool) -> Choice | BatchingDelay:
        """Decide about a view of N servers; draws a number for each head unless greedy."""
        page = self._pages.get(view.head.segment)
        if page is None:
            page = self._pages[view.head.segment] = _Page(len(self.limits_w), self._heads)
        self._read(view, page)
        if not greedy:
            rng.random(out=page.uniforms)
        joint = self._decide(page, greedy)
        if self._waits.choices:
            joint, batching_delay = divmod(joint, self._waits.choices)
            if batching_delay:
                return self._waits.batching_delay(batching_delay, view)
        return self._choices[joint]

    def _read(self, view: ClusterView, page: _Page) -> None:
        data, views = page.data, page.views
        _write_counts(data, 0, view.fifo_length, view.completed, self._waits.may(view))
        for index, server in enumerate(view.servers):
            if server is not views[index]:
                views[index] = server
                code = bits(server.widths) if server.valid else 0
                at = 8 * _SEEN + 32 * index
                _write_server(data, at, server.outstanding_requests, server.power_w, server.utilization, code)

    def _decide(self, page: _Page, greedy: bool) -> int:
        return int(choose(self.weights, self.sizes, self.limits_w, page.numbers, greedy, self.scratch))
