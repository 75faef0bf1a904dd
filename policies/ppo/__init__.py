"""The learned router (Eq. 1-13). Whoever only decides never imports torch, and numba at the first decision alone.

`trainer` collects decisions and has `learner` update the policy; `kernels` has the network, drawing from it and the
gradient, in compiled code on rows that `layout` describes; `compiled` is a router that decides. Tests hold the kernels
against torch.
"""

from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPOKnobs", "PPORouter", "PolicySpec"]
