"""Routers without learning, over the same view as the learned ones: a placement, a width rule and a group rule each.

They use the view and, if needed, expected costs (`CostModel`) and the accuracy prior; never the state of the simulator
or the hardware. A router has at most private memory (the round robin's turn), so it serves one run. Every tie goes to
the lowest server index.

So that other code can reproduce a decision to the last bit: random numbers are drawn one `rng.random()` at a time, in
the order server, width, group; expected times are rounded to whole nanoseconds before they are added or compared
(`costs`); other sums are plain, from left to right.

    context       the data from which a router is built, and its parts
    costs         expected times, speeds, the efficient width tuples
    placements, widths, groups
    slackfit, infaas, milp (and planning, which it solves): each with its parameters
    specs         parameters of a rule, as in a rule file: those of all rules, and the plain rules
"""
