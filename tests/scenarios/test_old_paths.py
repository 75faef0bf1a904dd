"""What ships with the project lay beside the scenarios, and lies in `data` now: older scenarios find it still."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kit.errors import InputError
from scenarios.files.reading import load_scenario
from scenarios.files.shipped import moved
from slimsched.cli import main
from tests.scenarios.files import write_scenario

SHIPPED = Path("scenarios").absolute()
OLD = """
schema: slimsched.scenario/1
name: old
model: {checkpoint: FOLDER/models/slimresnet-tiny.safetensors, accuracy: FOLDER/models/slimresnet18-paper.accuracy.json}
cluster:
  servers:
  - {name: a, profile: FOLDER/profiles/rtx-2080-ti.yaml, link: 10gbe}
workload: {kind: rates, rate_img_s: 100, file: FOLDER/traces/twitter-2018-day9.csv}
compare: {routers: [random, FOLDER/routers/main-mmpp-10g/ladder.rule.yaml]}
duration_s: 1
warmup_s: 0.1
"""


@pytest.mark.parametrize("folder", [str(SHIPPED), "scenarios"])
def test_a_users_scenario_finds_all_of_it(folder: str, tmp_path: Path) -> None:
    """By an absolute path, or relative to its own folder."""
    if folder == "scenarios":
        (tmp_path / "scenarios").symlink_to(SHIPPED)
    path = tmp_path / "old.yaml"
    path.write_text(OLD.replace("FOLDER", folder))
    found = load_scenario(path)
    data = (tmp_path / "scenarios" if folder == "scenarios" else SHIPPED) / "data"
    assert found.model.checkpoint == str(data / "models" / "slimresnet-tiny.safetensors")
    assert found.model.accuracy == str(data / "models" / "slimresnet18-paper.accuracy.json")
    assert found.cluster.named_servers[0].profile == str(data / "profiles" / "rtx-2080-ti.yaml")
    assert found.workload.file == str(data / "traces" / "twitter-2018-day9.csv")  # type: ignore[union-attr]
    assert found.compare.routers[1] == str(data / "routers" / "main-mmpp-10g" / "ladder.rule.yaml")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as wrong:
        load_scenario(path)
    return str(wrong.value)


def test_a_users_own_folders_are_his_own(tmp_path: Path) -> None:
    """What is there stays; what is missing in his own `models` is missing, and not another file of that name."""
    path = write_scenario(tmp_path, "accuracy: accuracy.json", "accuracy: models/slimresnet18-paper.accuracy.json")
    with pytest.raises(InputError, match=r"tiny\.yaml: model\.accuracy: .*models/slimresnet18.*no such file"):
        load_scenario(path)
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / "slimresnet18-paper.accuracy.json").write_text("{}")
    assert "no such file" in refusal(path), "his own `data` is no place that anything moved to"
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "models").mkdir()
    mine = tmp_path / "models" / "slimresnet18-paper.accuracy.json"
    mine.write_bytes((tmp_path / "accuracy.json").read_bytes())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(SHIPPED / "data" / "models")
    assert load_scenario(path).model.accuracy == str(mine)
    assert moved(Path("ladder:8,32@jsq")) == Path("ladder:8,32@jsq")


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "show", "scenarios/profiles/rtx-2080-ti.yaml"],
        ["simulate", "TINY", "--router", "scenarios/routers/main-mmpp-10g/ladder.rule.yaml"],
        ["compare", "TINY", "--seed", "0", "--router", "scenarios/routers/main-mmpp-10g/ladder.rule.yaml"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_command_line_finds_it(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A router of four segments is read, and then refused for a network of two: it is there."""
    path = str(write_scenario(tmp_path))
    out = ["--out", str(tmp_path / "run")] if "TINY" in arguments else []
    code = main([path if each == "TINY" else each for each in arguments] + out + ["--json", "-"])
    streams = capsys.readouterr()
    if out:
        assert code == 2
        assert "data/routers/main-mmpp-10g/ladder.rule.yaml" in streams.err
        assert "holds 4 segments; the network has 2" in streams.err
    else:
        assert code == 0
        assert json.loads(streams.out)["name"].startswith("rtx-2080-ti")
