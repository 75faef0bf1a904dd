"""The learned router (Eq. 1-13). Deciding needs numpy alone; `network`, `distribution`, `update`, `trainer` need torch.

`from policies.ppo.trainer import train` is apart for that reason: whoever only decides never imports torch.
"""

from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec

__all__ = ["PPOKnobs", "PPORouter", "PolicySpec"]
