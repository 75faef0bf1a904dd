"""Learning curves: of one run folder's trainings, and of several folders' in one chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from kit.errors import InputError
from scenarios.files.made_routers import MADE_KINDS, made_name, training_file
from scenarios.runs.folder import RunFolder
from scenarios.show import charts

Steps = Sequence[Mapping[str, float]]  # what a learner reported, update by update, or generation by generation
Trained = tuple[Mapping[str, Any], Mapping[str, Steps]]  # a run folder's scenario, and its trainings by kind
PANELS = 4  # the number of scalars that fit on a page
FIRST = ("reward", "accuracy", "inside")  # what is learned, before how
LABELS = {"objective": "cost", "inside": "images inside"}
_UNLEARNED = {"seed", "name", "compare", "validate"}  # of a scenario: what trainings may differ by


def trainings_in(folder: RunFolder) -> dict[str, Steps]:
    """Return what a run folder keeps of its trainings, by the kind of router."""
    files = {kind: training_file(kind) for kind in MADE_KINDS if (folder / training_file(kind)).exists()}
    return {kind: steps for kind, name in files.items() if (steps := folder.read_json(name))}


def curves_of(runs: Sequence[Steps]) -> dict[str, list[charts.Line]]:
    """Return a line a training, by the scalar: the first with each beginning (`reward/mean`, `loss/value` ...)."""
    first: dict[str, str] = {}
    for name in runs[0][0]:
        first.setdefault(name.partition("/")[0], name)
    names = sorted(
        (name for name in first.values() if name != "decisions"), key=lambda name: not name.startswith(FIRST)
    )
    return {
        LABELS.get(name, name): [
            ([step["decisions"] for step in of], [step.get(name, nan) for step in of]) for of in runs
        ]
        for name in names[:PANELS]
    }


def save_curves(trained: Mapping[Path, Trained], picture: Path, say: Callable[[str], None]) -> None:
    """Draw the curves of all trainings in these run folders, kind by kind (PNG or SVG, by the file's ending).

    Raises:
        InputError: nothing was trained in one of them.
    """
    for folder, (_, trainings) in trained.items():
        if not trainings:
            problem = "no router was trained here, so there is no learning curve"
            problem += "; `slimsched train SCENARIO --out DIR` keeps one"
            raise InputError(str(folder), "", problem)
    columns = {}
    for kind in MADE_KINDS:
        of = {folder: trainings[kind] for folder, (_, trainings) in trained.items() if kind in trainings}
        if of:
            columns[made_name(kind)] = curves_of(list(of.values()))
            for doubt in _doubts({folder: trained[folder][0] for folder in of}):
                say(f"warning: {doubt}")
    charts.save(charts.training_curves(columns), picture)


def _doubts(scenarios: Mapping[Path, Mapping[str, Any]]) -> Iterator[str]:
    """Yield why a mean over these trainings may mean little: in all but the seed they should be the same."""
    first, one = next(iter(scenarios.items()))
    seeds: dict[Any, Path] = {}
    for folder, other in scenarios.items():
        unlike = sorted(key for key in {*one, *other} - _UNLEARNED if _said(one, key) != _said(other, key))
        if unlike:
            yield f"{folder}: other {', '.join(unlike)} than in {first}, so the mean is of unlike trainings"
        elif other and (same := seeds.setdefault(other.get("seed"), folder)) != folder:
            yield f"{folder}: the seed of {same}, and so the same curve; train it with --set seed=N"


def _said(scenario: Mapping[str, Any], key: str) -> str:
    """Return a key's text; a file that both name has another relative path from another folder."""
    return str(scenario.get(key)).replace("../", "")
