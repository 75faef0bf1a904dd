"""The learned router (Eq. 1-13). Whoever only decides never imports torch, and numba at the first decision alone.

What is to be read is `network`, `distribution`, `update` and `trainer` in torch, `acting` in numpy. The same in compiled
code, for millions of decisions: `kernels` on rows that `layout` describes, `compiled` (a router that decides),
`compiled_update` and `compiled_trainer`. Tests hold each against its readable twin.
"""

from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPOKnobs", "PPORouter", "PolicySpec"]
