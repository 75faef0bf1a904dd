"""Commands about networks: model train, evaluate and check."""

from __future__ import annotations

from argparse import Namespace

from kit.errors import InputError
from scenarios.commands.shared import asked_of
from scenarios.show.table import Table, columns, to_text
from scenarios.tasks.asked import Asked, job_of
from scenarios.terminal.output import Output
from scenarios.world.materials import ACCURACY_FILE, read_accuracy


def model_train(arguments: Namespace) -> int:
    """Train the scenario's network and evaluate it."""
    from scenarios.job.network import make_accuracy, make_model

    output = Output(arguments)
    asked = _without_table(asked_of(arguments, output))
    scenario, folder = asked.scenario, asked.folder
    given = scenario.model
    if given.network is None or given.checkpoint is not None:
        found = "missing; it names the network to train" if given.network is None else "a checkpoint is named as well"
        raise InputError(str(arguments.scenario), "model.network", f"{found}; give network and no checkpoint")
    job = job_of(asked)
    with job.folder.opened(arguments.scenario):
        make_model(job)
        make_accuracy(job)
    path = job.model.path
    uniform = {w: v for w, v in read_accuracy(scenario, folder).prior.top1.items() if len(set(w)) == 1}
    rows = [[f"{widths[0]:g}", f"{100 * value:.2f}"] for widths, value in uniform.items()]
    notes = [f"model: {path}", f"accuracy: {folder / ACCURACY_FILE}"]
    text = to_text([Table(columns("uniform width", "top-1 %"), rows, notes=notes)])
    document = [{"widths": list(widths), "top1": value} for widths, value in uniform.items()]
    return output.result(text, {"model": str(path), "accuracy": str(folder / ACCURACY_FILE), "uniform": document})


def _without_table(asked: Asked) -> Asked:
    """The network is to be looked at itself, whatever table the scenario brings."""
    return asked.with_section("model", accuracy=None)


def model_evaluate(arguments: Namespace) -> int:
    """Every width tuple on every test image."""
    from scenarios.job.network import make_accuracy

    output = Output(arguments)
    asked = _without_table(asked_of(arguments, output))
    scenario, folder = asked.scenario, asked.folder
    job = job_of(asked)
    if not job.model.path.is_file():
        remedy = "name the file that you mean" if scenario.model.checkpoint else "`slimsched model train` makes it"
        raise InputError(str(arguments.scenario), "model", f"no {job.model.path} yet; {remedy}")
    with job.folder.opened(arguments.scenario):
        make_accuracy(job)
    top1 = read_accuracy(scenario, folder).prior.top1
    rows = [[", ".join(f"{width:g}" for width in widths), f"{100 * value:.2f}"] for widths, value in top1.items()]
    document = [{"widths": list(widths), "top1": value} for widths, value in top1.items()]
    text = to_text([Table(columns("widths", "top-1 %"), rows, notes=[f"accuracy: {folder / ACCURACY_FILE}"])])
    return output.result(text, {"schema": "slimsched.top1/1", "tuples": document})


def model_check(arguments: Namespace) -> int:
    """The rules of segmented slimmable networks; exit code 1 where one is broken."""
    from hw.networks.conformance import RULES, broken_rules, unchecked_rules
    from hw.networks.registry import Network

    output = Output(arguments)
    network = Network(arguments.network, arguments.options, "NETWORK", "")
    broken = broken_rules(network)
    unchecked = unchecked_rules(broken)
    words = {**dict.fromkeys(RULES, "kept"), **dict.fromkeys(unchecked, "unchecked"), **dict.fromkeys(broken, "broken")}
    lines = [f"{words[name]:<9}  {rule}" for name, rule in RULES.items()]
    lines += [f"{name}: {problem}" for name, problem in broken.items()]
    output.result(
        "\n".join(lines),
        {"schema": "slimsched.conformance/1", "network": network.label, "rules": words, "broken": broken},
    )
    return 1 if broken else 0
