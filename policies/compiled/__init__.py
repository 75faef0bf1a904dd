"""Routers in compiled code: what they see as one row of numbers, and the rules of `policies.rules` over it.

The rules are written to be read in `policies.rules`; here they are written to be compiled, so that a whole simulated
run needs no Python. Each is tested to decide the same, bit for bit.

    record            what a record is; what stands where is declared as such
    layout, rows      a sheet is what a router sees, a plan what it does and remembers; where their records begin
    rules             kernels that decide about a sheet, with the records and codes that are theirs alone
    plan, milp        a plan is written, and (milp) made anew in Python
    sheet, decide     one decision at a time, outside of the compiled engine

From a router to its plan: `policies.plan_of`.
"""
