"""Routers in compiled code: their view as one row of numbers, and the rules of `policies.rules` over it.

`policies.rules` has the rules in readable form, this package in compilable form, so that a whole simulated run needs no
Python. Tests check that each decides the same, bit for bit.

    plan_layout       records of observations (a router's view) and plans (its rule and memory), and the writer of plans
    rule_kernels      kernels that decide about an observation, with their private records and codes
    adaptive_kernels  Compass, goal control and the lookahead; Proteus' plan, which is renewed in Python

From a router to its plan: `policies.router_plans`.
"""
