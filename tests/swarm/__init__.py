"""A virtual world for the code that has races: the router's loop, its servers and transfers, workers, ports and hosts.

All of it is the product's own code, in one process and one thread. Clock, waits, sockets and other hosts are virtual,
and every event is drawn from one seed: messages come late or in pieces, workers are killed at any step, stopped, slow
or cut off, and the router itself is stopped. Each seed draws its own mix of faults (swarm testing). `laws` are asked at
every step; after the last fault all must drain. What a seed does it does again.

    python -m tests.swarm --seeds 0:2000         # play these
    python -m tests.swarm --seeds 17:18 --show   # one of them, with what happened
    python -m tests.swarm --mutations            # each known fault put back: after how many seeds is it found?

After TigerBeetle's VOPR and FoundationDB's simulation; swarm testing: Groce et al., ISSTA 2012.
"""
