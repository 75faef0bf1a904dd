"""The learned router (Eq. 1-6), and its network in compiled code (`kernels`), which is imported at the first decision.

`scenarios.learn.ppo` trains it. Tests compare the kernels with torch.
"""

from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPORouter", "PolicySpec"]
