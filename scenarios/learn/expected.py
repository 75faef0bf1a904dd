"""How many decisions tuning will simulate, about, said before it begins; and a bar that covers all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from policies.rules.specs import FixedRule, RuleSpec
from scenarios.learn.evaluator import Decisions, Evaluator, OnMeasured, search_threads
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.settings import options_of
from scenarios.learn.tune import able_tuples, require_possible, space_of
from scenarios.terminal.progress import Progress, Say
from scenarios.world.world import World

USUAL_TRIES: Final = 5  # of accuracy matching, each on all its runs


def expected_decisions(world: World, kind: str, knobs: TuningKnobs) -> Decisions:
    """Return about what tuning will simulate, from a run of each slice with the router that the search begins with.

    Others make larger or smaller blocks, searches settle early, and accuracy matching takes more tries or fewer.

    Raises:
        InputError: unknown kind; a floor that no width tuple reaches.
    """
    require_possible(world, kind, knobs)
    space = space_of(world, kind, knobs)
    with search_threads() as workers:
        evaluator = Evaluator(world, knobs, workers)
        tuples = able_tuples(evaluator, evaluator.knobs.floor)
        spec: RuleSpec = FixedRule(tuple=tuples[-1]) if space is None else space.spec(space.start)
        runs = [evaluator.trace_slice(f"expected:{part}", part) for part in range(knobs.episodes)]
        evaluator.measure([(spec, run) for run in runs])
    slices = evaluator.decisions
    full = knobs.matching_runs * slices / knobs.episodes * max(1.0, world.scenario.duration_s / knobs.episode_s)
    halved = (1 + max(knobs.episodes - 1, 0) / 2) / knobs.episodes  # half of the options have the first run alone
    options = round(halved * slices) * sum(len(each) for _, each in options_of(spec, evaluator))
    if space is None:
        return Decisions(settings=len(tuples) * options, final_evaluation=round(len(tuples) * full))
    return Decisions(
        search=knobs.searches * knobs.decisions,
        settings=(knobs.searches + 1) * options,
        matching=round(knobs.searches * USUAL_TRIES * full),
        final_evaluation=round(knobs.searches * full),
    )


@contextmanager
def announced(world: World, kind: str, knobs: TuningKnobs, *, say: Say, quiet: bool) -> Iterator[OnMeasured]:
    """Print what is expected, and show a bar over all of it, which is updated with what was simulated so far."""
    expected = expected_decisions(world, kind, knobs)
    say(f"tune {kind}: about {expected.text}")
    spent = Decisions()
    with Progress(f"tune {kind}", expected.in_all, unit="decision", quiet=quiet) as bar:

        def tell(now: Decisions) -> None:
            nonlocal spent
            spent = now
            bar.set(now.in_all, now.at_least(expected).in_all)

        yield tell
        bar.set(spent.in_all, spent.in_all)
