"""Routers in compiled code: what they see as one row of numbers, and the rules of `policies.rules` over it.

The rules are written to be read in `policies.rules`; here they are written to be compiled, so that a whole simulated run
needs no Python. Each is tested to decide the same, bit for bit.
"""
