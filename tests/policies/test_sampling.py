"""Which servers a decision looks at: as many as asked for, only those that can take it, and all in turn."""

from __future__ import annotations

from collections import Counter

import numpy as np

from policies.router_queue import sampled_servers


def test_sample_of_all_servers_or_without_a_size_considers_every_server() -> None:
    assert sampled_servers(1, -1, (), lambda server: True, 16, 16) == ()
    assert sampled_servers(1, -1, (), lambda server: True, 16, 0) == ()


def test_the_activations_server_is_first_and_others_can_take_the_block() -> None:
    for decision in range(200):
        sample = sampled_servers(decision, 3, (), lambda server: server % 2 == 0, 100, 8)
        assert sample[0] == 3, "also where it can't: rules ask about it"
        assert len(sample) == len(set(sample)) <= 8
        assert all(server % 2 == 0 for server in sample[1:])


def test_sample_without_an_eligible_server_considers_every_server() -> None:
    assert sampled_servers(5, 3, (7,), lambda server: False, 100, 8) == ()


def test_every_server_is_drawn_as_often() -> None:
    """Chi-squared of 20,000 draws over 50 servers: its mean is 49, and its deviation 9.9."""
    counts = Counter(server for decision in range(2500) for server in sampled_servers(decision, -1, (), bool, 51, 8))
    assert set(counts) == set(range(1, 51))
    drawn = np.array(list(counts.values()))
    assert ((drawn - drawn.mean()) ** 2 / drawn.mean()).sum() < 49 + 5 * 9.9


def test_half_of_them_have_ended_a_block_last() -> None:
    """Each once, the last one first, and only those that can take this one."""
    sample = sampled_servers(9, 3, (20, 20, 21, 3, 22, 24, 26, 28), lambda server: server % 2 == 0, 1000, 8)
    assert sample[:5] == (3, 20, 22, 24, 26)
    assert 28 not in sample
    assert len(sample) == 8
