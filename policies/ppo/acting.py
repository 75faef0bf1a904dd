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
    """What was drawn: (E, 3) indices of server, width and group, and (E,) the joint log-probability of Eq. 6."""

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
    sizes: tuple[int, int, int],
    server_mask: Bools,
    width_mask: Bools,
    eps: float,
    uniforms: Doubles,
) -> Acted:
    """Draw server, then width among those it can hold, then group.

    Args:
        logits: (E, N + W + G), the three heads side by side.
        sizes: (N, W, G).
        server_mask, width_mask: (E, N), and (E, N, W) for every server.
        eps: the share of uniform exploration in the server head.
        uniforms: (E, 3) in [0, 1).
    """
    servers, widths, _ = sizes
    rows = np.arange(len(logits))
    by_server = mixed(masked_softmax(logits[:, :servers], server_mask), server_mask, eps)
    server = draw(by_server, uniforms[:, 0])
    by_width = masked_softmax(logits[:, servers : servers + widths], width_mask[rows, server])
    width = draw(by_width, uniforms[:, 1])
    group_logits = logits[:, servers + widths :]
    by_group = masked_softmax(group_logits, np.ones(group_logits.shape, dtype=np.bool_))
    group = draw(by_group, uniforms[:, 2])
    log_prob = np.log(by_server[rows, server]) + np.log(by_width[rows, width]) + np.log(by_group[rows, group])
    return Acted(np.stack([server, width, group], axis=1), log_prob)
