"""The stages that make routers, trained in simulation and scored: for one scenario, or over drawn clusters.

For one scenario (`make_routers`), `ppo` learns by gradients (`scenarios.learn.ppo`), and rules (`tuned:KIND`) by direct
search over whole runs (`scenarios.learn.tune`): all with the same settings, runs and floor of accuracy.

Over drawn clusters (`make_compass`), Compass is trained; a scenario is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from kit.documents import Memo, inputs_hash, read_json, write_json
from kit.plugins import code_here
from policies.router_kinds import COMPASS
from policies.rules.compass import CompassRule, Numbers
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_routers import MADE_WITH
from scenarios.files.bundled_files import PPO, made_file, made_name, score_file, training_file
from scenarios.files.router_files import write_rule
from scenarios.job.job_stages import Run
from scenarios.learn.drawn_clusters import Clusters, ClusterTraining, Generation
from scenarios.learn.ppo_training import require_one_class, require_trainable, score_router
from scenarios.learn.tune import params_of, tune_experiment
from scenarios.learn.tuned_files import announced, save_tuned, tuned_text
from scenarios.metrics.run_result import ClustersScore, Score
from scenarios.metrics.statistics import estimate
from scenarios.runs.folder import RunFolder
from scenarios.show.command_tables import format_score
from scenarios.terminal.progress import Progress

SCORES = "scores.jsonl"  # of a direct search, so far


def make_routers(
    run: Run, experiment: Experiment, kinds: Sequence[str], *, says_scores: bool = False
) -> dict[str, Score]:
    """Make the routers of these kinds; returns what each was scored, by kind.

    Args:
        says_scores: print the score of what learned by gradients once it is trained; not if the caller has other
            results to show.

    Raises:
        InputError: the compiled engine, on which routers are trained, can't do what the scenario asks for.
        FloorError: no setting of a kind keeps the accuracy that is asked for.
    """
    return {kind: _made(run, experiment, kind, says_scores) for kind in kinds}


def _made(run: Run, experiment: Experiment, kind: str, says_score: bool) -> Score:
    """Run the stage of one kind, which scores its router on both engines."""
    scenario = run.scenario
    settings = (scenario.training if kind == PPO else scenario.tuning).model_dump(mode="json")
    length = (scenario.duration_s, scenario.warmup_s)  # of what slices are taken from, and of the run that scores
    fingerprint = run.fingerprint(*run.experiment_parts(is_training=True), settings, length, scenario.seed, kind)
    path = run.made(kind)
    steps = run.folder / training_file(kind)
    target = run.folder / score_file(kind)

    def work() -> Sequence[Path]:
        require_trainable(experiment)
        folder, name = run.folder / "training" / fingerprint[:12], made_name(kind)
        if kind == PPO:
            history = train_router(run, experiment, folder)
        else:
            history = _tuned(run, experiment, kind, Memo(folder / SCORES, fingerprint))
        score = score_router(experiment, lambda: experiment.router(name, run.folder.path), name, scenario.seed)
        write_json(steps, history)
        write_json(target, score)
        if says_score and kind == PPO:
            run.say(f"train: {format_score(score)}")
        return [path, steps, target]

    run.stage(f"train-{kind}", fingerprint, work)
    document: Score = run.folder.read_json(target.name)
    return document


def _tuned(run: Run, experiment: Experiment, kind: str, memo: Memo) -> list[dict[str, float]]:
    """Tune a rule by direct search, and write it; return the cost of each generation."""
    params = params_of(experiment)
    with announced(experiment, kind, params, say=run.say, quiet=run.quiet) as tell:
        tuned = tune_experiment(experiment, kind, params, on_progress=tell, memo=memo)
    run.say(f"train: {tuned_text(tuned)}")
    save_tuned(run.made(kind), tuned, experiment, run.scenario.name, is_of_a_run=True)
    return [{"decisions": float(done), "objective": cost} for done, cost in tuned.history if isfinite(cost)]


def train_router(run: Run, experiment: Experiment, folder: Path) -> list[dict[str, float]]:
    """Train `ppo` in simulation, and write it; return the scalars of every update."""
    from scenarios.learn.ppo import train_experiment  # torch and numba are slow to import

    require_one_class(run.scenario)
    history = folder / "scalars.json"
    scalars: list[dict[str, float]] = read_json(history) if history.exists() else []
    with Progress("train the router", run.scenario.training.decisions, unit="decision", quiet=run.quiet) as progress:

        def tell(done: int, figures: Mapping[str, float]) -> None:
            while scalars and scalars[-1]["decisions"] >= done:
                scalars.pop()  # what was logged after the checkpoint that an interrupted training resumes from
            scalars.append({"decisions": float(done), **figures})
            write_json(history, scalars)
            progress.set(done)

        router = train_experiment(experiment, folder, seed=run.scenario.seed, on_progress=tell)
    router.save(run.made(PPO), made_by={MADE_WITH: dict(experiment.made_with)})
    return scalars


def make_compass(clusters: Clusters, folder: RunFolder, *, quiet: bool = False) -> tuple[Path, ClustersScore]:
    """Train it unless it is trained; returns its file, and its gain on clusters that training did not see.

    Raises:
        InputError: the distribution draws a cluster that can't run.
    """
    path, target, steps = (folder / name(COMPASS) for name in (made_file, score_file, training_file))
    start = Numbers().model_dump(mode="json") | clusters.start  # the bundled ones may be others tomorrow
    drawn_from = clusters.model_copy(update={"start": start}).model_dump(mode="json", by_alias=True)
    fingerprint = inputs_hash(drawn_from, code_here())

    def work() -> Sequence[Path]:
        history: list[dict[str, float]] = []
        with Progress(
            "train over clusters", clusters.rounds * clusters.generations, unit="generation", quiet=quiet
        ) as bar:

            def tell(generation: Generation) -> None:
                history.append({"decisions": float(generation.decisions), "objective": generation.median})
                bar.set(generation.number + 1)

            memo = Memo(folder / "training" / fingerprint[:12] / "scores.jsonl", fingerprint)
            result = ClusterTraining(clusters, tell, memo).run()
        change = estimate(result.costs.tolist())
        score = ClustersScore(
            schema="slimsched.clusters-score/1",
            router=COMPASS,
            seed=clusters.seed,
            decisions=result.decisions,
            clusters=clusters.clusters,
            held_back=len(result.costs),
            change=change["mean"],
            change_ci95=change["ci95"],
        )
        command = f"slimsched train --over {clusters.name}"
        made_by = {"command": command, **score, "drawn_from": drawn_from}
        write_rule(path, CompassRule(numbers=result.numbers, made_by=made_by))
        write_json(steps, history)
        write_json(target, score)
        return [path, steps, target]

    folder.run_stage(f"train-{COMPASS}", fingerprint, work)
    document: ClustersScore = folder.read_json(target.name)
    return path, document
