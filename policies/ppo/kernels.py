"""The policy in compiled code: the network, and sampling from it.

The policy is a product of three categoricals (Eq. 2-6): server, width among those that the server can hold, and group;
if the policy may hold there is a fourth, over 1 + H outcomes (`policies.waits`). It is one more factor, independent of
the others: server, width and group are drawn and scored in a decision to hold, too.

The network processes a tile of decisions at a time, weights are one row of float32 (`layout.Layout`), and nothing is
allocated: a caller passes `Layout.scratch` float32 numbers, separate ones for each thread.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kit.jit import Ints, Reals, Singles, entry, ints, kernel, reals, singles
from policies.observation import Bools
from policies.ppo.layout import (
    BIAS,
    FIRST,
    GROUPS,
    HOLDS,
    INPUTS,
    LAYERS,
    OBSERVED,
    OUTPUT,
    OUTPUTS,
    RECTIFIED,
    SERVERS,
    SOURCE,
    STRIDE,
    TARGET,
    TILE,
    WEIGHT,
    WIDTHS,
)
from policies.ppo.vectors import exp, multiply, tanh

_MASKED = np.float32(-1e9)  # exp of it is exactly 0
_ZERO = np.float32(0)

# --------------------------------------------------------------------------------------------------------- the network


@kernel
def observe(observation: Singles, at: int, sizes: Ints, scratch: Singles, row: int) -> None:
    """Write one observation into the network's inputs; the padding is 0."""
    width = sizes[FIRST + INPUTS]
    observed = sizes[OBSERVED]
    for k in range(observed):
        scratch[row * width + k] = observation[at + k]
    for k in range(observed, width):
        scratch[row * width + k] = _ZERO


@kernel
def forward(weights: Singles, sizes: Ints, scratch: Singles, rows: int) -> None:
    """Compute logits and value, at `sizes[OUTPUT]` of the scratch memory, of at most TILE decisions.

    A row's outputs have the same bits whatever the number of rows.
    """
    layers = sizes[LAYERS]
    for layer in range(layers):
        at = FIRST + STRIDE * layer
        inputs, outputs, target = sizes[at + INPUTS], sizes[at + OUTPUTS], sizes[at + TARGET]
        bias = sizes[at + BIAS]
        for row in range(rows):
            for column in range(outputs):
                scratch[target + row * outputs + column] = weights[bias + column]
        source, weight = sizes[at + SOURCE], sizes[at + WEIGHT]
        multiply(scratch, target, scratch, source, inputs, 1, weights, weight, rows, inputs, outputs)
        if layer < layers - 1:
            for i in range(target, target + rows * outputs):
                scratch[i] = max(_ZERO, scratch[i]) if sizes[RECTIFIED] else tanh(scratch[i])


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
def _mask_holds(logits: Singles, at: int, holds: int, may_hold: bool) -> None:
    """Mask all outcomes but the first if no hold is allowed."""
    if not may_hold:
        for k in range(1, holds):
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
    may_hold: Bools,
    hold_mask: Bools,
) -> None:
    """Sample server, then width among those it can hold, then group (then hold, if any), for each of R decisions.

    A decision's data are stored in rows of large arrays, here called (B, ...); `rows` has their indices.

    Args:
        weights, sizes: the network.
        rows: (R,) the decisions' rows in the arrays of B.
        observation: (B, 2 + 3N).
        codes: (R, N), bit w of each is whether that server may be chosen with width w; 0: it may not be chosen.
        uniforms: (R, 3 or 4) in [0, 1), one for each head.
        eps: the share of uniform exploration in the server head.
        scratch: `Layout.scratch` numbers.
        actions, log_prob, value, server_mask, width_mask, hold_mask: the outputs, as in `Experience`.
        may_hold: (R,) whether the candidates may be held.
    """
    servers, widths, groups, holds = sizes[SERVERS], sizes[WIDTHS], sizes[GROUPS], sizes[HOLDS]
    logits = servers + widths + groups + holds
    columns, output = sizes[FIRST + STRIDE * (sizes[LAYERS] - 1) + OUTPUTS], sizes[OUTPUT]
    memory, parameters, seen, bits = singles(scratch), singles(weights), singles(observation), ints(codes.reshape(-1))
    for start in range(0, len(rows), TILE):
        tile = min(TILE, len(rows) - start)
        for i in range(tile):
            observe(seen, rows[start + i] * sizes[OBSERVED], sizes, memory, i)
        forward(parameters, sizes, memory, tile)
        for i in range(tile):
            row, first, at = rows[start + i], (start + i) * servers, output + i * columns
            value[row] = memory[at + logits]
            server, of_server = _draw_server(memory, at, servers, bits, first, 1, eps, uniforms[start + i, 0])
            code = bits[first + server]
            _mask_widths(memory, at + servers, widths, code)
            width, of_width = _draw_head(memory, at + servers, widths, uniforms[start + i, 1])
            group, of_group = _draw_head(memory, at + servers + widths, groups, uniforms[start + i, 2])
            actions[row, 0], actions[row, 1], actions[row, 2] = server, width, group
            of_all = of_server * of_width * of_group
            if holds:
                first_hold, may = at + servers + widths + groups, may_hold[start + i]
                _mask_holds(memory, first_hold, holds, may)
                hold, of_hold = _draw_head(memory, first_hold, holds, uniforms[start + i, 3])
                actions[row, 3] = hold
                of_all *= of_hold
                for k in range(holds):
                    hold_mask[row, k] = may or k == 0
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
    may_hold: bool,
    greedy: bool,
    scratch: Singles,
) -> tuple[int, int, int, int]:
    """Return a stored router's decision, for the input of `observe` in row 0: indices of server, width, group and hold.

    All rows are raw memory (`jit.singles`, `jit.ints`, `jit.reals`); codes as in `act`, of server i at `codes_at + i
    codes_step`. Greedy: the most probable of each head, ties to the lowest index; otherwise sampled with the uniform
    numbers at `uniforms_at`, one for each head. Without a fourth head the hold is 0.
    """
    servers, widths, groups, holds = sizes[SERVERS], sizes[WIDTHS], sizes[GROUPS], sizes[HOLDS]
    forward(weights, sizes, scratch, 1)
    first = sizes[OUTPUT]
    second = first + servers
    third = second + widths
    fourth = third + groups
    hold = 0
    if holds:
        _mask_holds(scratch, fourth, holds, may_hold)
    if greedy:
        _mask_servers(scratch, first, servers, codes, codes_at, codes_step)
        server = _largest(scratch, first, servers)
        _mask_widths(scratch, second, widths, codes[codes_at + server * codes_step])
        if holds:
            hold = _largest(scratch, fourth, holds)
        return server, _largest(scratch, second, widths), _largest(scratch, third, groups), hold
    at = uniforms_at
    server, _ = _draw_server(scratch, first, servers, codes, codes_at, codes_step, 0.0, uniforms[at])
    _mask_widths(scratch, second, widths, codes[codes_at + server * codes_step])
    width, _ = _draw_head(scratch, second, widths, uniforms[at + 1])
    group, _ = _draw_head(scratch, third, groups, uniforms[at + 2])
    if holds:
        hold, _ = _draw_head(scratch, fourth, holds, uniforms[at + 3])
    return server, width, group, hold


@entry
def choose(weights: Singles, sizes: Ints, limits_w: Reals, view: Reals, greedy: bool, scratch: Singles) -> Any:
    """Return `decide` for a view: the joint index (server W + width) G + group; times 1 + H, + hold, if any.

    Args:
        weights, sizes, scratch: the network.
        limits_w: (N,) each server's power limit.
        view: (6 + 4N,): three uniform numbers (four with a fourth head: 7 + 4N), the FIFO's length, requests completed,
            whether the candidates may be held; then for each server its outstanding requests, power in watts,
            utilization, and its code (the bits of an int64 here).
        greedy: as in `decide`.
    """
    parameters, memory, numbers, codes = singles(weights), singles(scratch), reals(view), ints(view)
    servers, holds, of_server = sizes[SERVERS], sizes[HOLDS], 4
    of_view = 4 if holds else 3
    first = of_view + 3
    memory[0] = np.float32(math.log1p(numbers[of_view]))
    memory[1] = np.float32(math.log1p(numbers[of_view + 1]))
    for i in range(servers):
        at = first + of_server * i
        memory[2 + 3 * i] = np.float32(math.log1p(numbers[at]))
        memory[3 + 3 * i] = np.float32(numbers[at + 1] / limits_w[i])
        memory[4 + 3 * i] = np.float32(numbers[at + 2])
    for k in range(sizes[OBSERVED], sizes[FIRST + INPUTS]):
        memory[k] = _ZERO
    may_hold = numbers[of_view + 2] > 0
    server, width, group, hold = decide(
        parameters, sizes, codes, first + 3, of_server, numbers, 0, may_hold, greedy, memory
    )
    choice = (server * sizes[WIDTHS] + width) * sizes[GROUPS] + group
    return choice * holds + hold if holds else choice
