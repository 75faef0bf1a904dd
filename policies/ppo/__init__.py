"""The learned router (Eq. 1-13). Code that only decides never imports torch, and imports numba at the first decision.

`trainer` collects decisions and has `learner` update the policy; `kernels` has the network, its sampling and the
gradient, in compiled code on rows that `layout` describes; `compiled` is a router that decides. Tests compare the
kernels with torch.
"""

from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPOKnobs", "PPORouter", "PolicySpec"]
