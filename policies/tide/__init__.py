"""Tide: a router that sets a price for GPU time by the load, and buys accuracy with what is left (docs/tide.md).

    price = exp(w . features of the load)                          how much accuracy a unit of device time must bring
    width = argmax over w of worth(segment, w) - price cost(server, segment, previous width, w)
    server = argmin of expected end: outstanding work, own batch, transfer, each learned to be weighed
    group = the smallest that holds a learned share of the candidates

About thirty numbers are learned, by direct search on whole runs (`scenarios.learn.search`): what a decision costs those
that come later is in a run's figures, and in no single reward. Costs and accuracies come from profiles and the accuracy
table, so the numbers mean the same on any cluster of the same network.
"""
