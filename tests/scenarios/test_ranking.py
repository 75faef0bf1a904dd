"""Who wins, who ties, and who has lost."""

from __future__ import annotations

from scenarios.metrics.router_comparison import Promise, RankedRouter, Ranking

P99S = (0.0080, 0.0085, 0.0090, 0.0082, 0.0088)


def router(name: str, accuracy: float, slower: float = 1.0) -> RankedRouter:
    values = {seed: slower * p99_s * (1.1 if seed % 2 else 0.9) for seed, p99_s in enumerate(P99S)}
    own = dict(enumerate(P99S)) if slower == 1.0 else values
    return RankedRouter(name, accuracy, max(own.values()), own, {})


def test_who_is_as_quick_and_less_accurate_has_lost_where_no_floor_is_asked_for() -> None:
    """No number of runs would tell; with a floor that both keep, accuracy beyond it decides nothing."""
    routers = [router("ladder", 0.7643), router("own", 0.7299, 1.06), router("near", 0.7638, 1.07)]
    free = Ranking.by(Promise(), routers)
    assert free.first == ("ladder", "near")
    assert Ranking.by(Promise(), routers[:2]).winner is routers[0]
    assert Ranking.by(Promise(floor=0.7), routers).first == ("ladder", "own", "near")
    better = [router("quick", 0.73), router("accurate", 0.76, 1.06)]
    assert Ranking.by(Promise(), better).first == ("quick", "accurate")


def test_of_one_run_nobody_wins_by_accuracy_either() -> None:
    """Without a floor the less accurate one is out, which leaves no tie; but one run tells nothing of chance."""
    one, other = (
        RankedRouter(name, top1, p99_s, {0: p99_s}, {}) for name, top1, p99_s in (("a", 0.73, 1), ("b", 0.69, 2))
    )
    ranking = Ranking.by(Promise(), [one, other])
    assert ranking.is_open
    assert ranking.winner is None


def test_a_p99_at_its_limit_keeps_it() -> None:
    promise = Promise(p99_limit_s=0.1)
    assert not promise.missed_by(RankedRouter("a", 0.7, 0.1, {0: 0.1}, {}))
    assert promise.missed_by(RankedRouter("a", 0.7, 0.1001, {0: 0.1001}, {}))
