"""The learned router (Eq. 1-13). Whoever only decides never imports torch, and numba at the first decision alone.

To be read are `network`, `distribution`, `update` and `trainer` (torch) and `acting` (numpy). The same in compiled
code, for millions of decisions, are `kernels` on rows that `layout` describes, `compiled` (a router that decides),
`compiled_update` and `compiled_trainer`. Tests hold each against its readable twin.
"""

from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPOKnobs", "PPORouter", "PolicySpec"]
