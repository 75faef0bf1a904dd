"""Routers in compiled code: what they see as one row of numbers, and the rules of `policies.rules` over it.

The rules are written to be read in `policies.rules`; here they are written to be compiled, so that a whole simulated
run needs no Python. Each is tested to decide the same, bit for bit.

    layout            what stands where: a sheet is what a router sees, a plan what it does and what it remembers
    rules, tide       kernels that decide about a sheet
    plan, compose     plans, from expected costs and from routers
    replanning        where a plan needs Python
    sheet, deciding   one decision at a time, outside of the compiled engine
"""
