"""Routers in compiled code: their view as one row of numbers, and the rules of `policies.rules` over it.

`policies.rules` has the rules in readable form, this package in compilable form, so that a whole simulated run needs no
Python. Tests check that each decides the same, bit for bit.

    record            the definition of a record, which declares the order of its fields
    layout, rows      a sheet is a router's view, a plan its rule and memory; the offsets of their records
    rules             kernels that decide about a sheet, with their private records and codes
    plan, milp        write a plan, and (milp) renew it in Python
    sheet, decide     one decision at a time, outside of the compiled engine

From a router to its plan: `policies.plan_of`.
"""
