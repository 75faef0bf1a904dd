"""`slimsched init` writes a scenario that runs: from flags, from answers, or as it is by default; never over a file."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.files.scenario_reading import load_scenario
from slimsched.cli import main
from tests.scenarios.files import write_scenario


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_without_flags_writes_a_scenario_whose_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--duration", "500ms"]) == 0
    assert capsys.readouterr().out == "scenario: scenario.yaml\nnext: slimsched compare scenario.yaml\n"
    text = Path("scenario.yaml").read_text()
    scenario = load_scenario("scenario.yaml")
    assert [server.profile for server in scenario.cluster.named_servers] == ["rtx-2080-ti", "rtx-2080-ti", "gtx-980-ti"]
    assert scenario.compare.routers == scenario.validate_.routers == ("random", "jsq", "sticky", "ladder")
    commands = [line.split("  #")[0][4:].split() for line in text.splitlines() if line.startswith("#   slimsched")]
    assert [words[1] for words in commands] == ["simulate", "compare", "list"]
    assert all(main([*words[1:], "--quiet"]) == 0 for words in commands)


def test_every_choice_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpu", "T4", "--gpu", "h100", "--link", "10gbe", "--rate", "77.5", "--duration", "1m"]
    assert main(["init", "sub folder.yaml", *flags, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"schema": "slimsched.init/1", "scenario": "sub folder.yaml", "name": "sub-folder"}
    scenario = load_scenario("sub folder.yaml")
    assert scenario.name == "sub-folder"
    assert [(server.name, server.profile, server.link) for server in scenario.cluster.named_servers] == [
        ("t4-1", "t4", "10gbe"), ("h100-1", "h100", "10gbe"),
    ]  # fmt: skip
    assert scenario.workload.base_img_s(1.0) == 77.5
    assert (scenario.duration_s, scenario.warmup_s) == (60, 6)


@pytest.mark.parametrize("name", ["null.yaml", "1e3", "ä ö.yaml", "-x.yaml"])
def test_a_file_may_have_any_name(name: str) -> None:
    assert main(["init", "--duration", "200ms", "--quiet", "--", name]) == 0
    assert load_scenario(Path(name)).cluster.named_servers[0].name == "rtx-2080-ti-1"


def test_profiles_and_accuracies_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named from the scenario's folder; those of two networks do not go together, and nothing is left of them."""
    (tmp_path / "my 1 own").mkdir()
    (tmp_path / "out").mkdir()
    write_scenario(tmp_path / "my 1 own")
    words = ["init", "out/own.yaml", "--gpu", "my 1 own/fast.yaml", "--duration", "300ms", "--quiet"]
    assert main(words) == 2
    assert "the profile of 'fast-1' has 2 segments" in capsys.readouterr().err
    assert not Path("out/own.yaml").exists()
    assert main([*words, "--accuracy", "my 1 own/accuracy.json"]) == 0
    assert "  greedy: {batch_limit: 16}" in Path("out/own.yaml").read_text()
    assert main(["simulate", "out/own.yaml", "--quiet"]) == 0


@pytest.mark.timeout(60)  # one that waits for another answer would wait for ever
def test_on_a_terminal_it_asks(tmp_path: Path) -> None:
    """What no flag says; Enter takes what stands in brackets, and what is none is asked again."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "slimsched", "init", "asked.yaml", "--gpu", "t4"]
    begun = subprocess.Popen(words, cwd=tmp_path, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True)
    os.close(theirs)
    os.write(ours, b"wifi\n10gbe\n\nrandom sticky\n2s\n")
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    assert begun.wait(60) == 0
    assert begun.stdout is not None
    assert begun.stdout.read().startswith("scenario: asked.yaml\n")
    begun.stdout.close()
    os.close(ours)
    text = seen.decode()
    assert [text.count(question) for question in ("GPUs", "links to", "images a second [1000]", "length of")] == [
        0,
        2,
        1,
        1,
    ]
    assert "did you mean 'wifi5'" in text
    scenario = load_scenario(tmp_path / "asked.yaml")
    assert [(server.profile, server.link) for server in scenario.cluster.named_servers] == [("t4", "10gbe")]
    assert (scenario.compare.routers, scenario.duration_s) == (("random", "sticky"), 2)
