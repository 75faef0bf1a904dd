"""A three-headed bandit: a training environment without time, whose best arm is known."""

from __future__ import annotations

from policies.ppo import PolicySpec
from policies.reward import RewardTerms
from policies.vocabulary import Choice, ClusterView, Decide, Hold
from tests.policies.cluster_views import WIDTHS, server, view

SPEC = PolicySpec(segments=4, widths=WIDTHS, groups=(1, 4, 16), power_limits_w=(250.0, 250.0, 100.0))
BEST = Choice(2, 0.75, 4)


class Bandit:
    """Pays 1 for the best server, 1 for the best width, 1 for the best group; the first server is never valid.

    Args:
        episode: decisions until `advance` says None.
        lag: decisions until a reward comes.
        parts: whether rewards come as `RewardTerms`.
    """

    def __init__(self, episode: int = 1000, lag: int = 0, parts: bool = False) -> None:
        self.episode, self.lag, self.parts = episode, lag, parts
        self.seeds: list[int] = []
        self.choices: list[Choice] = []
        self._decision = 0
        self._credits: list[tuple[int, float]] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self._decision = 0
        self._credits = []

    def view(self) -> ClusterView:
        held = (True, True, True, True)
        return view(server(valid=False), server(3, widths=(True, True, False, False)), server(1, widths=held))

    def advance(self) -> Decide | None:
        if self._decision >= self.episode:
            return None
        self._decision += 1
        return Decide(self._decision, self.view())

    def decide(self, choice: Choice | Hold) -> None:
        assert isinstance(choice, Choice), "nobody may be held"
        self.choices.append(choice)
        hits = (choice.server == BEST.server) + (choice.width == BEST.width) + (choice.group == BEST.group)
        self._credits.append((self._decision, float(hits)))

    def take_credits(self) -> list[tuple[int, RewardTerms | float]]:
        due = [credit for credit in self._credits if credit[0] + self.lag <= self._decision]
        self._credits = self._credits[len(due) :]
        if not self.parts:
            return list(due)
        return [(decision, RewardTerms(reward, 0.0, 0.0, 0.0, 0.0)) for decision, reward in due]
