"""Commands for who runs a cluster of training jobs: what if, what it carries, its log's own waits, tuned numbers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml

from kit import strict
from kit.documents import write_text
from kit.errors import InputError
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file
from scenarios.terminal.progress import Progress

if TYPE_CHECKING:
    from jobs.case import JobsCase

_COMPARE: Final = "`slimsched jobs compare SCENARIO --policy A --policy B` sets policies beside each other"


def jobs_whatif(arguments: Namespace) -> int:
    """The same jobs before and after a change."""
    from hw.host.limits import core_count
    from jobs.operating import WhatIf
    from slimsched.jobs.texts import whatif_text

    output = Output(arguments)
    if not arguments.change:
        raise InputError("--change", "", f"is missing: KEY=VALUE, such as cluster.nodes.0.count=74; {_COMPARE}")
    changes = _changes(arguments.change)
    both = WhatIf(_case(arguments, output), _case(arguments, output, changes))
    runs = 2 * len(both.now.policies)
    with Progress("what if", runs, unit="run", quiet=output.quiet) as progress:
        found = both.document(arguments.jobs or min(core_count(), runs))
        progress.update(runs)
    found["changes"] = changes
    return output.result(whatif_text(found, arguments.change), found)


def jobs_capacity(arguments: Namespace) -> int:
    """The largest load, or the fewest nodes, at which waits keep a limit."""
    from jobs.operating import Limit, Tried, capacity_document, fewest_nodes, largest_load
    from slimsched.jobs.texts import load_text, nodes_text, tried_text

    output = Output(arguments)
    case = _case(arguments, output)
    if case.found is not None:
        raise InputError(case.source, "begin", "what the log found does not fit another load or cluster; begin empty")
    limit = Limit(arguments.of, arguments.wait)

    def told(tried: Tried) -> None:
        output.remark(tried_text(tried, arguments.by))

    if arguments.by == "nodes":
        found = capacity_document(case, limit, nodes=fewest_nodes(case, limit, told))
        return output.result(nodes_text(found, limit), found)
    low, high = largest_load(case, limit, arguments.precision, told)
    found = capacity_document(case, limit, load_kept=low, load_broken=high)
    return output.result(load_text(found, limit), found)


def jobs_validate_log(arguments: Namespace) -> int:
    """Simulated waits beside the recorded ones."""
    from jobs.operating import validation_document
    from slimsched.jobs.texts import validation_text

    output = Output(arguments)
    case = _case(arguments, output)
    with Progress("replaying the log", 1, unit="run", quiet=output.quiet) as progress:
        found = validation_document(case, case.policies[0])
        progress.update()
    return output.result(validation_text(found), found)


def jobs_tune(arguments: Namespace) -> int:
    """Numbers of a policy, sought on earlier jobs and judged on later ones."""
    from hw.host.limits import core_count
    from jobs.operating import TUNING_SCHEMA, policy_document, ranges_of, tune
    from jobs.spec import POLICY_SUFFIX
    from slimsched.jobs.texts import tuning_text

    output = Output(arguments)
    if not arguments.out.name.endswith(POLICY_SUFFIX):
        raise InputError("--out", "", f"{arguments.out.name!r}: the file of a policy ends in {POLICY_SUFFIX}")
    out = writable_file(arguments.out)
    whole = _case(arguments, output)
    ranges_of(whole.policies[0].policy)
    cut_s = _cut_s(whole, arguments.split)
    earlier = _case(arguments, output, {"window.until_s": cut_s}, is_told=False)
    later = _case(arguments, output, {"window.from_s": cut_s}, is_told=False)
    with Progress("tries", arguments.tries + 1, unit="try", quiet=output.quiet) as progress:
        processes = arguments.jobs or core_count()
        key = {"wait": "wait_s", "jct": "jct_s", "slowdown": "slowdown"}[arguments.objective]
        found = tune(earlier, later, arguments.tries, processes, key, lambda numbers, figure: progress.update())
    write_text(out, yaml.safe_dump(policy_document(found.best.policy), sort_keys=False))
    best, figure = min(found.tried, key=lambda tried: tried[1])
    own, own_figure = found.tried[0]
    document = {
        "schema": TUNING_SCHEMA,
        "policy": found.best.name,
        "key": arguments.objective,
        "tries": arguments.tries,
        "own": dict(own),
        "own_figure": own_figure,
        "best": dict(best),
        "best_figure": figure,
        "judged": found.judged,
        "file": str(out),
    }
    return output.result(tuning_text(document), document)


def jobs_train(arguments: Namespace) -> int:
    """RLTune, as it was run or mended, on windows of a scenario's trace; judged on windows that it has not seen."""
    from hw.host.limits import core_count
    from jobs.learning.course import Course, Windows, train
    from jobs.learning.judging import BASELINES, judge, learned_choice, table_of
    from jobs.learning.learned import FAITHFUL, FIXED, LearnedSpec
    from jobs.spec import LEARNED_SUFFIX

    output = Output(arguments)
    if not arguments.out.name.endswith(LEARNED_SUFFIX):
        raise InputError("--out", "", f"{arguments.out.name!r}: what is learned goes into a file {LEARNED_SUFFIX}")
    out = writable_file(arguments.out)
    if arguments.kind == FIXED and arguments.reward is not None:
        problem = f"{FIXED} is rewarded for job seconds after each choice; only {FAITHFUL} has a score at the end"
        raise InputError("--reward", "", problem)
    case = _case(arguments, output)
    earlier, later = Windows.to_learn_and_judge(case.jobs, case.world, arguments.kind == FAITHFUL, arguments.window)
    course = Course(
        LearnedSpec(arguments.kind, base=arguments.base, trace=case.scenario.name),
        earlier,
        score=(arguments.reward or "bounded-slowdown").replace("-", " "),
        epochs=arguments.epochs,
        episodes=arguments.episodes,
        seed=case.scenario.seed,
    )
    processes = arguments.jobs or core_count()
    with Progress("epochs", arguments.epochs, unit="epoch", quiet=output.quiet) as progress:
        learned = train(
            course, out, processes, told=lambda epoch, stats, own, base: progress.set(epoch + 1, arguments.epochs)
        )
    contenders = [*BASELINES, learned_choice(arguments.kind, learned)]
    starts = later.drawn(arguments.judged, case.scenario.seed, "judging").tolist()
    folder = out.with_suffix(".windows")
    waits = {each.name: found for each, found in judge(contenders, later, starts, folder, jobs=processes)}
    document = {
        "schema": "slimsched.jobstraining/1",
        "file": str(out),
        "kind": arguments.kind,
        "windows": len(starts),
        "mean_wait_s": {name: float(found.mean()) for name, found in waits.items()},
    }
    head = f"written: {out}\n{len(starts)} later windows of {arguments.window} jobs, above it: than {arguments.kind}"
    return output.result(f"{head}\n\n{table_of(waits, arguments.kind)}", document)


def _changes(given: list[str]) -> dict[str, Any]:
    """`cluster.nodes.0.count=74`: values as a scenario's file would have them."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise InputError("--change", "", f"{text!r:.80}: must be KEY=VALUE, such as cluster.nodes.0.count=74")
        if key.strip().partition(".")[0] in ("policy", "policies"):
            raise InputError("--change", key.strip(), f"a cluster is changed here; {_COMPARE}")
        if value.strip().startswith("+"):
            problem = f"{value.strip()!r:.80} is taken for the new number, not for what is added"
            raise InputError("--change", key.strip(), f"{problem}: write the new number, without +")
        found[key.strip()] = strict.mapping(f"value: {value}", "--change")["value"]
    return found


def _cut_s(case: JobsCase, share: float) -> float:
    """The time of the trace by which so much of the window's time is over."""
    if case.found is not None:
        raise InputError(case.source, "begin", "what the log found is of one time; begin empty")
    if case.scenario.load is not None:
        raise InputError(case.source, "load", "weeks are told apart by the trace's own times; leave load out")
    first, last = float(case.jobs.submit_s[0]), float(case.jobs.submit_s[-1])
    return first + share * (last - first)


def _case(
    arguments: Namespace, output: Output, changes: Mapping[str, Any] | None = None, is_told: bool = True
) -> JobsCase:
    """The scenario, changed, with the policies and the load that flags give instead of its own."""
    from jobs.case import doubts, read_case, read_scenario, require_a_fit, with_flags
    from slimsched.jobs.profiles import profile_images_s

    named = getattr(arguments, "policy", None) or ()
    policies = (named,) if isinstance(named, str) else tuple(named)
    scenario = with_flags(read_scenario(arguments.scenario, changes), policies, arguments.load)
    case = read_case(scenario, str(arguments.scenario), profile_images_s)
    require_a_fit(case)
    for doubt in doubts(case) if is_told else ():
        output.remark(f"warning: {doubt}")
    return case
