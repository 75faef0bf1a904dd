"""Mistakes that a newcomer makes: each is one message with the place, the value, what is allowed and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from slimsched.cli import main
from tests.scenarios.files import write_scenario

JOBS = """\
schema: slimsched.jobs/1
name: jobs
trace: mine.jobtrace.parquet
cluster: {nodes: [{count: 2, gpus: 8}]}
policies: [fifo]
"""
OTHERS_RULE = """\
schema: slimsched.rule/1
kind: fixed
tuple: [0.5, 0.5]
hold: {requests: [4, 4, 4, 4], wait_s: [0.01, 0.01, 0.01, 0.01]}
"""


@dataclass(frozen=True)
class Mistake:
    """One of them.

    Attributes:
        words: of the message, in their order: place, value, what is allowed, remedy.
        old, new: what the scenario has instead of what.
        command: what is typed.
        prepare: makes what else lies in the folder.
    """

    words: tuple[str, ...]
    old: str = ""
    new: str = ""
    command: str = "simulate tiny.yaml"
    prepare: Callable[[Path], object] = lambda folder: None


def _file(name: str, content: bytes | str) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def _foreign_folder(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("x")


IN_THE_SCENARIO = {
    "a key mistyped": Mistake(
        ("tiny.yaml: worklaod: unknown key", "did you mean 'workload'?"), "workload:", "worklaod:"
    ),
    "a server's key mistyped": Mistake(
        ("tiny.yaml: cluster.servers.1.profil (slow): unknown key", "did you mean 'profile'?"),
        "profile: slow.yaml",
        "profil: slow.yaml",
    ),
    "a unit written out": Mistake(("tiny.yaml: warmup_s: ", "'10 sec'", "45s, 5m, 1h", "write 10s"), "100ms", "10 sec"),
    "milliseconds written out": Mistake(
        ("tiny.yaml: warmup_s: ", "'50 milliseconds'", "write 50ms"), "100ms", "50 milliseconds"
    ),
    "10 in place of 10ms": Mistake(
        ("tiny.yaml: warmup_s (10) must be below duration_s (1)",), "warmup_s: 100ms", "warmup_s: 10"
    ),
    "a negative rate": Mistake(
        ("tiny.yaml: workload.rate_img_s: ", "greater than 0", "-5"), "rate_img_s: 200", "rate_img_s: -5"
    ),
    "a rate with its unit": Mistake(
        ("tiny.yaml: workload.rate_img_s: ", "'200 img/s'", "write the number alone, without unit and quotes: 200"),
        "rate_img_s: 200",
        "rate_img_s: 200 img/s",
    ),
    "a rate with a comma": Mistake(
        ("tiny.yaml: workload.000: ", "a number has no comma (1000, not 1,000)"),
        "rate_img_s: 200",
        "rate_img_s: 1,000",
    ),
    "a width that the network has not": Mistake(
        ("tiny.yaml: cluster.greedy.preload: no instance [1, 0.7] of 'fast'", "widths [0.5, 1.0]"),
        "preload: all",
        "preload: [[1, 0.7]]",
    ),
    "80 in place of 0.8": Mistake(
        ("tiny.yaml: cluster.greedy.utilization_block: ", "found 80", "80 % is 0.8"),
        "preload: all",
        "preload: all, utilization_block: 80",
    ),
    "80 % in place of 0.8": Mistake(
        ("tiny.yaml: tuning.floor: ", "found '80%'", "write 0.8"),
        "duration_s: 1",
        "duration_s: 1\ntuning: {floor: 80%}",
    ),
    "an unknown router": Mistake(
        ("tiny.yaml: compare.routers.1: ", "'jqs'", "did you mean 'jsq'?", "round-robin"),
        "[random, jsq]",
        "[random, jqs]",
    ),
    "a router's width 0.7": Mistake(
        ("tiny.yaml: compare.routers.1: 'fixed:0.7,0.7': ", "[0.7, 0.7]", "one of 0.5, 1.0 for each of 2 segments"),
        "[random, jsq]",
        "[random, 'fixed:0.7,0.7']",
    ),
    "a word in place of a list": Mistake(
        ("tiny.yaml: compare.routers: ", "'jsq'", "a list stands in brackets: [jsq]"), "[random, jsq]", "jsq"
    ),
    "a range in place of a list": Mistake(
        ("tiny.yaml: compare.seeds: ", "(found '0-3')", "; write each number of a list: [0, 1, 2, 3]"), "[0, 1]", "0-3"
    ),
    "a long range within a list": Mistake(
        ("tiny.yaml: compare.seeds.0: ", "[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, ...]"), "[0, 1]", "[5..99]"
    ),
    "a number in place of a text": Mistake(
        ("tiny.yaml: name: ", "(found 123)", 'in quotes it is a text: "123"'), "name: tiny", "name: 123"
    ),
    "a yes in place of a text": Mistake(
        ("tiny.yaml: name: ", "(found True)", 'in quotes it is a text, such as "yes"'), "name: tiny", "name: yes"
    ),
    "a key without its unit": Mistake(
        ("tiny.yaml: workload.rate: ", "unknown key", "did you mean 'rate_img_s'"), "rate_img_s:", "rate:"
    ),
    "two servers of one name": Mistake(
        ("tiny.yaml: cluster.servers.1.name (fast): ", "'fast' is given twice", "rename one of the two"),
        "name: slow",
        "name: fast",
    ),
    "a blank in a server's name": Mistake(
        ("tiny.yaml: cluster.servers.1.name (slow gpu): ", "letters, digits", "such as slow-gpu"),
        "name: slow",
        "name: slow gpu",
    ),
    "a tab": Mistake(
        ("tiny.yaml: line 7: ", "the line has a tab: indent with spaces"), "  - {name: fast", "\t- {name: fast"
    ),
    "brackets that don't match": Mistake(
        ("tiny.yaml: line", "not valid YAML", "look at indentation, brackets and quotes"), "compare: {", "compare: {{"
    ),
    "a link as a number": Mistake(
        ("tiny.yaml: cluster.servers.0.link (fast): ", "10gbe, 1gbe, loopback", "found 10"), "link: 10gbe", "link: 10"
    ),
    "no such GPU": Mistake(
        (
            "tiny.yaml: cluster.servers.0.profile (fast): rtx-5090: no such profile; those that ship are a10, ",
            "for a GPU of your own: `slimsched profile synth --from sheet.yaml`",
        ),
        "fast.yaml",
        "rtx-5090",
    ),
    "a GPU nearly right": Mistake(
        ("cluster.servers.0.profile (fast): rtx2080ti: no such profile; did you mean 'rtx-2080-ti'?",),
        "fast.yaml",
        "rtx2080ti",
    ),
    "a profile in a folder that is not there": Mistake(
        ("tiny.yaml: cluster.servers.0.profile (fast): ", "no such file", "no folder", "count from its folder"),
        "fast.yaml",
        "profiles/fast.yaml",
    ),
    "a profile of another network": Mistake(
        (
            "tiny.yaml: cluster.servers.1.profile (slow): 'rtx-2080-ti-slimresnet18' is of slimresnet18, 4 segments",
            "'fast' has another network: toy, 2 segments",
            "profile synth --network",
        ),
        "slow.yaml",
        "rtx-2080-ti",
    ),
    "a scenario in place of a profile": Mistake(
        (
            "schema: ",
            "a scenario of serving",
            "wanted here is 'slimsched.profile/2'",
            "cluster.servers.1.profile (slow)",
        ),
        "slow.yaml",
        "tiny.yaml",
    ),
    "a batch that one profile does not cover": Mistake(
        ("tiny.yaml: cluster.greedy.batch_limit: 64", "of 'fast'", "1 to 16"), "batch_limit: 16", "batch_limit: 64"
    ),
    "no accuracy file": Mistake(
        ("tiny.yaml: model.accuracy: ", "no such file", "did you mean 'accuracy.json'?", "slimresnet18-paper"),
        "accuracy.json",
        "acuracy.json",
    ),
    "a profile in place of accuracies": Mistake(
        ("fast.yaml: is no table of accuracies", "`slimsched model train` writes one"), "accuracy.json", "fast.yaml"
    ),
    "no schema": Mistake(
        ("tiny.yaml: schema: missing", "`schema: slimsched.scenario/1`"), "schema: slimsched.scenario/1\n", ""
    ),
}
ON_THE_COMMAND_LINE = {
    "no file": Mistake(("tinny.yaml: no such file; in ", "did you mean 'tiny.yaml'?"), command="simulate tinny.yaml"),
    "no folder": Mistake(("there/tiny.yaml: no such file", "there is no folder "), command="simulate there/tiny.yaml"),
    "a folder in place of a file": Mistake(
        ("mine: this is a folder; name a file in it",), command="simulate mine", prepare=_foreign_folder
    ),
    "an empty file": Mistake(
        ("x.yaml: ", "the file is empty", "`slimsched init`"), command="simulate x.yaml", prepare=_file("x.yaml", "")
    ),
    "a binary file": Mistake(
        ("x.yaml: not UTF-8 text (byte 128)", "is it the file that you mean?"),
        command="simulate x.yaml",
        prepare=_file("x.yaml", bytes(range(256))),
    ),
    "an archive": Mistake(
        ("x.yaml: not valid YAML", "is it the file that you mean?"),
        command="simulate x.yaml",
        prepare=_file("x.yaml", b"PK\x03\x04\x00\x00"),
    ),
    "training jobs to serve": Mistake(
        (
            "jobs.yaml: schema: found 'slimsched.jobs/1'",
            "`slimsched jobs compare`",
            "wanted here is 'slimsched.scenario/1'",
        ),
        command="simulate jobs.yaml",
        prepare=_file("jobs.yaml", JOBS),
    ),
    "serving as training jobs": Mistake(
        (
            "tiny.yaml: schema: found 'slimsched.scenario/1'",
            "`slimsched simulate`",
            "wanted here is 'slimsched.jobs/1'",
        ),
        command="jobs compare tiny.yaml",
    ),
    "a profile in place of a scenario": Mistake(
        ("fast.yaml: schema: ", "a device's profile", "wanted here is 'slimsched.scenario/1'"),
        command="simulate fast.yaml",
    ),
    "no trace": Mistake(
        ("jobs.yaml: trace: ", "mine.jobtrace.parquet: no such file", "`slimsched jobs import LOG`"),
        command="jobs compare jobs.yaml",
        prepare=_file("jobs.yaml", JOBS),
    ),
    "a rule for another network": Mistake(
        ("other.rule.yaml: hold: ", "holds 4 segments; the network has 2", "`slimsched train`"),
        command="simulate tiny.yaml --router other.rule.yaml",
        prepare=_file("other.rule.yaml", OTHERS_RULE),
    ),
    "a width 0.7": Mistake(
        ("--router: 'fixed:0.7,0.7': ", "[0.7, 0.7]", "one of 0.5, 1.0 for each of 2 segments"),
        command="simulate tiny.yaml --router fixed:0.7,0.7",
    ),
    "a width 0.7 to compare": Mistake(
        ("--router: 'fixed:0.7,0.7': ", "[0.7, 0.7]", "one of 0.5, 1.0 for each of 2 segments"),
        command="compare tiny.yaml --router random --router fixed:0.7,0.7",
    ),
    "a width 0.7 to look for capacity": Mistake(
        ("--router: 'fixed:0.7,0.7': ", "[0.7, 0.7]", "one of 0.5, 1.0 for each of 2 segments"),
        command="capacity tiny.yaml --router fixed:0.7,0.7",
    ),
    "a rule's file of another ending": Mistake(
        ("--router: mine.yaml: ", "ends in .rule.yaml: rename it"), command="simulate tiny.yaml --router mine.yaml"
    ),
    "a router that no one trained": Mistake(
        ("--router: mine.safetensors: no such router file", "`slimsched train` writes one"),
        command="simulate tiny.yaml --router mine.safetensors",
    ),
    "a seed of letters": Mistake(("--seed", '"abc"', "into int"), command="simulate tiny.yaml --seed abc"),
    "a share of 80": Mistake(("--floor: 80", "from 0 to 1", "80 % is 0.8"), command="capacity tiny.yaml --floor 80"),
    "an unknown measure": Mistake(
        ("--of: unknown 'p95'", "did you mean 'p99'?", "p50, p90"), command="jobs capacity x.yaml --wait 10m --of p95"
    ),
    "a flag nearly right": Mistake(
        ("'--routers'", "did you mean '--router'?"), command="compare tiny.yaml --routers jsq"
    ),
    "a command nearly right": Mistake(("'similate'", "did you mean 'simulate'?"), command="similate tiny.yaml"),
    "an output that is a file": Mistake(
        ("--out: fast.yaml: this is a file; name a folder",), command="simulate tiny.yaml --out fast.yaml"
    ),
    "an output that can't be written": Mistake(
        ("--out: /proc/x: can't be written", "name another place"), command="simulate tiny.yaml --out /proc/x"
    ),
    "an output with something else in it": Mistake(
        ("mine: holds files and is no run folder", "name an empty or a new folder"),
        command="simulate tiny.yaml --out mine",
        prepare=_foreign_folder,
    ),
    "a picture of another kind": Mistake(
        ("--plot: x.pdf: ", "name a .png or .svg file"), command="compare tiny.yaml --plot x.pdf"
    ),
}
MISTAKES = {**IN_THE_SCENARIO, **ON_THE_COMMAND_LINE}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_newcomers_mistake_has_its_remedy(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; one line on standard error that says these words in this order, and no result."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path, mistake.old, mistake.new)
    mistake.prepare(tmp_path)
    assert main(mistake.command.split()) == 2
    streams = capsys.readouterr()
    (said,) = streams.err.splitlines()
    assert streams.out == ""
    place = 0
    for words in mistake.words:
        assert words in said[place:]
        place = said.index(words, place) + len(words)
