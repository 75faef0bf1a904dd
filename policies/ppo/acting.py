"""Drawing choices from logits, in numpy: one decision or a batch of them. It knows no network and computes no gradient.

`policies.ppo.distribution` has the same probabilities for torch; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.observation import Bools

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


class Acted(NamedTuple):
    """What was drawn: (E, 3) indices, or (E, 4) with that of the hold, and (E,) the joint log-probability of Eq. 6."""

    actions: npt.NDArray[np.int64]
    log_prob: Doubles


def masked_softmax(logits: Array, mask: Bools) -> Doubles:
    """Softmax over the last axis; exactly 0 where masked. Each row needs one that isn't."""
    kept = np.where(mask, logits, -np.inf).astype(np.float64)
    kept = np.exp(kept - kept.max(axis=-1, keepdims=True))
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def mixed(probabilities: Doubles, mask: Bools, eps: float) -> Doubles:
    """Eq. 5: pi~ = (1 - eps) pi + eps / N, N counting the valid servers."""
    return np.asarray((1 - eps) * probabilities + eps * mask / mask.sum(axis=-1, keepdims=True))


def draw(probabilities: Doubles, uniforms: Doubles) -> npt.NDArray[np.int64]:
    """The index that each uniform number in [0, 1) falls on, by the inverse of the distribution; never one of 0."""
    cumulative = probabilities.cumsum(axis=-1)
    return np.asarray((uniforms[..., None] * cumulative[..., -1:] >= cumulative).sum(axis=-1))


def act(
    logits: Array,
    sizes: tuple[int, ...],
    server_mask: Bools,
    width_mask: Bools,
    eps: float,
    uniforms: Doubles,
    hold_mask: Bools | None = None,
) -> Acted:
    """Draw server, then width among those it can hold, then group, and whether to hold where that is a head.

    Args:
        logits: (E, L), the heads side by side.
        sizes: (N, W, G), or (N, W, G, 1 + H).
        server_mask, width_mask: (E, N), and (E, N, W) for every server.
        eps: the share of uniform exploration in the server head.
        uniforms: (E, 3 or 4) in [0, 1), one for each head.
        hold_mask: (E, 1 + H), where there is a fourth head.
    """
    servers, widths, groups, *holds = sizes
    rows = np.arange(len(logits))
    by_server = mixed(masked_softmax(logits[:, :servers], server_mask), server_mask, eps)
    server = draw(by_server, uniforms[:, 0])
    by_width = masked_softmax(logits[:, servers : servers + widths], width_mask[rows, server])
    width = draw(by_width, uniforms[:, 1])
    group_logits = logits[:, servers + widths : servers + widths + groups]
    by_group = masked_softmax(group_logits, np.ones(group_logits.shape, dtype=np.bool_))
    group = draw(by_group, uniforms[:, 2])
    log_prob = np.log(by_server[rows, server]) + np.log(by_width[rows, width]) + np.log(by_group[rows, group])
    drawn = [server, width, group]
    if holds:
        assert hold_mask is not None, "a policy that may hold needs to know when"
        by_hold = masked_softmax(logits[:, -holds[0] :], hold_mask)
        drawn.append(draw(by_hold, uniforms[:, 3]))
        log_prob += np.log(by_hold[rows, drawn[3]])
    return Acted(np.stack(drawn, axis=1), log_prob)
