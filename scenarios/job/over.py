"""The stage `train-compass` of a run folder without a scenario: Compass, trained over drawn clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hw.version import code_here
from kit.documents import inputs_hash, write_json
from kit.memo import Memo
from policies.registry import COMPASS
from policies.rules.compass import CompassRule, Numbers
from scenarios.files.made_routers import made_file, score_file, training_file
from scenarios.files.router_names import write_rule
from scenarios.learn.clusters import Clusters, ClusterTraining, Generation
from scenarios.metrics.result import ClustersScore
from scenarios.metrics.statistics import estimate
from scenarios.runs.folder import RunFolder
from scenarios.terminal.progress import Progress


def make_compass(given: Clusters, folder: RunFolder, *, quiet: bool = False) -> tuple[Path, ClustersScore]:
    """Train it unless it is trained; returns its file, and its gain on clusters that training did not see.

    Raises:
        InputError: the distribution draws a cluster that can't run.
    """
    path, target, steps = (folder / name(COMPASS) for name in (made_file, score_file, training_file))
    start = Numbers().model_dump(mode="json") | given.start  # the bundled ones may be others tomorrow
    drawn_from = given.model_copy(update={"start": start}).model_dump(mode="json", by_alias=True)
    fingerprint = inputs_hash(drawn_from, code_here())

    def work() -> Sequence[Path]:
        history: list[dict[str, float]] = []
        with Progress("train over clusters", given.rounds * given.generations, unit="generation", quiet=quiet) as bar:

            def tell(generation: Generation) -> None:
                history.append({"decisions": float(generation.decisions), "objective": generation.median})
                bar.set(generation.number + 1)

            memo = Memo(folder / "training" / fingerprint[:12] / "scores.jsonl", fingerprint)
            result = ClusterTraining(given, tell, memo).run()
        change = estimate(result.costs.tolist())
        score = ClustersScore(
            schema="slimsched.clusters-score/1",
            router=COMPASS,
            seed=given.seed,
            decisions=result.decisions,
            clusters=given.clusters,
            held_back=len(result.costs),
            change=change["mean"],
            change_ci95=change["ci95"],
        )
        command = f"slimsched train --over {given.name}"
        made_by = {"command": command, **score, "drawn_from": drawn_from}
        write_rule(path, CompassRule(numbers=result.numbers, made_by=made_by))
        write_json(steps, history)
        write_json(target, score)
        return [path, steps, target]

    folder.run_stage(f"train-{COMPASS}", fingerprint, work)
    document: ClustersScore = folder.read_json(target.name)
    return path, document
