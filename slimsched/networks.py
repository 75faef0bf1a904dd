"""Slimmable networks: trained and evaluated, and checked against the rules."""

from __future__ import annotations

from pathlib import Path

from kit.errors import InputError
from slimsched.arguments import Changes, NewFile, Out, ScenarioLike, network_of
from slimsched.results import CommandResult
from slimsched.working import begin, verb


@verb
def train_model(scenario: ScenarioLike, /, *, out: Out = None, changes: Changes | None = None) -> CommandResult:
    """Train the scenario's network, and fill its accuracy table.

    One that is trained already (`model.checkpoint`) is only evaluated, on every test image at every width tuple.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        out: the run folder, which keeps network and table; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys.

    Raises:
        InputError: the scenario names no network.
    """
    from scenarios.job.network import make_accuracy, make_model
    from scenarios.show.table import UNBROKEN, Table, columns, to_text
    from scenarios.world.materials import ACCURACY_FILE, read_accuracy

    run = begin(scenario, changes, out).with_section("model", accuracy=None)  # the network itself is looked at
    given = run.scenario.model
    if given.network is None and given.checkpoint is None:
        problem = "missing; it names the network to train (or model.checkpoint one that is trained)"
        raise InputError(str(run.source), "model.network", problem)
    with run.opened():
        if given.checkpoint is None:
            make_model(run)
        make_accuracy(run)
    top1 = read_accuracy(run.scenario, run.folder.path).prior.top1
    spec = run.model.build().spec
    rows = [[", ".join(map(spec.name_of, widths)), f"{100 * value:.2f}"] for widths, value in top1.items()]
    notes = [f"model: {run.model.path}", f"accuracy: {run.folder / ACCURACY_FILE}"]
    document = {
        "schema": "slimsched.top1/1",
        "model": str(run.model.path),
        "accuracy": str(run.folder / ACCURACY_FILE),
        "tuples": [{"widths": list(widths), "top1": value} for widths, value in top1.items()],
    }
    return CommandResult(document, to_text([Table(columns("widths", "top-1 %"), rows, notes=notes)], UNBROKEN))


@verb
def check_model(network: str, /) -> CommandResult:
    """Check that a network keeps the rules of slimmable ones.

    The exit code is 1 where one is broken. Segments that CUDA graphs can't capture are a warning: a GPU runs them
    uncaptured.

    Args:
        network: by name, or `module:Class` of your own, with what it is called with as JSON behind it, such as
            'my_net:MyNet {"classes": 10}'; or the file (.safetensors) of one that was made slimmable.

    Raises:
        InputError: there is no such network.
    """
    from hw.networks import capturable
    from hw.networks.conformance import RULES, broken_rules, rules_of, unchecked_rules
    from hw.networks.registry import ModelFile

    named = ModelFile(Path(network)) if network.endswith(".safetensors") else network_of(network, "NETWORK")
    assert named is not None, "it is given"
    broken = broken_rules(named)
    unchecked = unchecked_rules(broken)
    model = named.build().eval()
    rules, uncapturable = rules_of(model), [] if unchecked else capturable.uncapturable(model)
    words = {**dict.fromkeys(rules, "kept"), **dict.fromkeys(unchecked, "unchecked"), **dict.fromkeys(broken, "broken")}
    lines = [f"{words[name]:<9}  {RULES[name][0]}" for name in rules]
    lines += [f"{RULES[name][0]}: {each.problem}\n  remedy: {each.remedy}" for name, each in broken.items()]
    lines += [f"warning: CUDA graphs can't capture segment {each.segment}: {each.problem}" for each in uncapturable]
    lines += [f"  remedy: {capturable.REMEDY}"] if uncapturable else []
    document = {
        "schema": "slimsched.conformance/1",
        "network": named.label,
        "rules": words,
        "broken": {name: each.problem for name, each in broken.items()},
        "uncapturable": {str(each.segment): each.problem for each in uncapturable},
    }
    return CommandResult(document, "\n".join(lines), code=1 if broken else 0)


@verb
def join_models(models: str, /, *, out: NewFile = "models.safetensors") -> CommandResult:
    """Put several trained networks into one file, for one cluster that serves them all.

    In a scenario each class of requests then names its model (docs/models.md#several-models).

    Args:
        models: what each is called and its file, or a shipped one by name, such as
            cnn=slimresnet-pairs,vit=slimvit-pairs.
        out: the file to write.

    Raises:
        InputError: they do not belong together, or a file is none of a network.
    """
    from hw.networks.registry import ModelFile, joined, save_model
    from kit.named_files import plain_name
    from scenarios.files.shipped import weights_file

    files = dict[str, ModelFile]()
    for text in models.split(","):
        name, _, file = text.strip().partition("=")
        if not file or name in files:
            problem = f"{text!r:.80}; name each once, as NAME=FILE, such as cnn=slimresnet-pairs,vit=slimvit-pairs"
            raise InputError("MODELS", "", problem)
        try:
            plain_name(name)
        except ValueError as error:
            raise InputError("MODELS", "", str(error)) from None
        files[name] = ModelFile(Path(weights_file(file, source="MODELS")))
    network, label = joined(files, "MODELS")
    save_model(Path(out), network, label, {})
    spec = network.spec
    document = {"schema": "slimsched.joined/1", "network": label, "model": str(out), "widths": list(spec.labels)}
    lines = [f"model: {out}", f"{spec.segments} segments at each of {', '.join(spec.labels)}"]
    return CommandResult(document, "\n".join(lines))
