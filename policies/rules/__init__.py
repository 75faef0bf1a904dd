"""Routers that learn nothing, over the same view as the learned ones: a placement, a width rule and a group rule each.

They know the view and, where they ask for it, expected costs (`CostModel`) and the accuracy prior; never the
simulator's or the hardware's state. A router holds at most its own memory (the round robin's turn), so it serves one
run. Every tie goes to the lowest server index.

So that other code can reproduce a decision to the last bit: chance is drawn one `rng.random()` at a time, in the order
server, width, group; expected times are whole nanoseconds before they are added or compared (`costs`); other sums are
plain, from left to right.

    context       what a router may be built from, and what it is made of
    costs         expected times, speeds, the efficient width tuples
    placements, widths, groups
    slackfit, infaas, milp (and planning, which it solves): each with its parameters
    specs         parameters of a rule, which a rule file holds: what all rules have, and the plain ones
"""
