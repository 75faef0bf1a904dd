"""Where a record of a cluster's row begins, and its calendar: each server's next event, in a tree of winners."""

from __future__ import annotations

from policies.jit import Ints, kernel
from sim.compiled.layout import (
    B_SIZE,
    I_SIZE,
    K_SIZE,
    KINDS,
    M_SIZE,
    P_BLOCK_AT,
    P_BLOCK_SIZE,
    P_DEVICE_AT,
    P_INSTANCES_AT,
    P_KEYS_AT,
    P_LEAVES,
    P_MEMBERS_AT,
    P_REQUEST_SIZE,
    P_REQUESTS_AT,
    P_SERVER_AT,
    P_SERVER_SIZE,
    P_SPECS_AT,
    P_TREE,
    Q_SIZE,
    S_INDEX,
    S_NEXT,
    S_TIMES,
    V_SIZE,
)


@kernel
def server_at(p: Ints, index: int) -> int:
    """A server's record."""
    return p[P_SERVER_AT] + index * p[P_SERVER_SIZE]


@kernel
def key_at(p: Ints, s: int, key: int) -> int:
    """A work key's queue at a server."""
    return s + p[P_KEYS_AT] + key * K_SIZE


@kernel
def spec_at(p: Ints, s: int, spec: int) -> int:
    """The instances of one segment and width at a server."""
    return s + p[P_SPECS_AT] + spec * Q_SIZE


@kernel
def device_at(p: Ints, index: int) -> int:
    """A device's record."""
    return p[P_DEVICE_AT] + index * V_SIZE


@kernel
def request_at(p: Ints, slot: int) -> int:
    """A request's record."""
    return p[P_REQUESTS_AT] + slot * p[P_REQUEST_SIZE]


@kernel
def instance_at(p: Ints, slot: int) -> int:
    """An instance's record."""
    return p[P_INSTANCES_AT] + slot * I_SIZE


@kernel
def block_at(p: Ints, slot: int) -> int:
    """A block's record; its moves follow."""
    return p[P_BLOCK_AT] + slot * p[P_BLOCK_SIZE]


@kernel
def moves_at(b: int) -> int:
    """The moves of a block."""
    return b + B_SIZE


@kernel
def member_at(p: Ints, b: int, position: int) -> int:
    """A member of a block."""
    return b + p[P_MEMBERS_AT] + position * M_SIZE


@kernel
def reschedule(k: Ints, p: Ints, s: int) -> None:
    """Some of a server's times have changed: find its next one, and the cluster's."""
    soonest = k[s + S_TIMES]
    for kind in range(1, KINDS):
        if k[s + S_TIMES + kind] < soonest:
            soonest = k[s + S_TIMES + kind]
    if soonest == k[s + S_NEXT]:
        return
    k[s + S_NEXT] = soonest
    tree = p[P_TREE]
    node = p[P_LEAVES] + k[s + S_INDEX]
    k[tree + node] = soonest
    while node > 1:
        node >>= 1
        left, right = k[tree + 2 * node], k[tree + 2 * node + 1]
        k[tree + node] = left if left <= right else right


@kernel
def soonest_server(k: Ints, p: Ints) -> int:
    """The server whose event is next; the lowest of several at one instant."""
    tree, node = p[P_TREE], 1
    soonest = k[tree + 1]
    while node < p[P_LEAVES]:
        node *= 2
        if k[tree + node] != soonest:
            node += 1
    return node - p[P_LEAVES]
