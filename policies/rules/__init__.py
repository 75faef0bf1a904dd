"""Routers without learning, over the same view as the learned ones: a placement, a width rule and a micro-batch size
rule each.

They use the view and, if needed, expected costs (`CostModel`) and the accuracy prior; never the state of the simulator
or executors. A router has at most private memory (the round robin's turn), so it serves one run. Every tie goes to
the lowest server index.

So that other code can reproduce a decision to the last bit: random numbers are drawn one `rng.random()` at a time, in
the order server, width, micro-batch size; expected times are rounded to whole nanoseconds before they are added or
compared (`rule_context`); other sums are plain, from left to right.

    rule_context  the data from which a rule is built: expected times, speeds, efficient width tuples, working sets
    rule_parts    placements, widths, micro-batch sizes
    published_rules, proteus, lookahead, compass: each with its parameters
    rule_params   parameters of a rule, as in a rule file: those of all rules, and the plain rules
"""
