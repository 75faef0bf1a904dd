"""Which files a scenario names: each key says so itself, and whoever asks whether a file changed asks here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel

from kit.errors import InputError
from kit.strict import FilePath, StrictModel, marker_of, named_files, with_paths
from policies.rules.rule_params import LadderRule
from scenarios.files.bundled_files import SHIPPED
from scenarios.files.router_files import write_rule
from scenarios.files.scenario_keys import Scenario
from scenarios.files.scenario_reading import load_scenario
from slimsched.cli import main
from tests.scenarios.files import write_scenario

POISSON = "{kind: poisson, rate_img_s: 200}"
RATES = "{kind: rates, rate_img_s: 200, file: report.csv, tuning_file: tuning.csv, period_s: 1}"
TRACE = "{kind: trace, file: report.csv, time_column: minute}"
NO_FILES = {  # keys of text that name something else
    "schema_", "name", "kind", "network", "device", "medium", "server", "column", "time_column", "shares_device_with",
    "options", "kinds", "decision_s", "servers", "link", "preload", "address", "host", "rack", "model",
}  # fmt: skip


def scenario_with(folder: Path, workload: str) -> Path:
    """The tiny scenario with a workload that names files, and a rule's file among its routers."""
    (folder / "report.csv").write_text("minute,count\n0,1\n0.5,9\n")
    (folder / "tuning.csv").write_text("minute,count\n0,9\n0.5,1\n")
    write_rule(folder / "mine.rule.yaml", LadderRule())
    path = write_scenario(folder, POISSON, workload)
    path.write_text(path.read_text().replace("[random, jsq]", "[jsq, mine.rule.yaml]"))
    return path


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model, and all that may stand in it."""
    yield model
    for field in model.model_fields.values():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models(part)


def parts(annotation: Any) -> Iterator[Any]:
    """A type, and those that it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from parts(part)


def test_every_key_of_text_says_whether_it_names_a_file() -> None:
    """A new key is marked as a file's (and so is hashed and made absolute), or listed above as another thing's."""
    for model in models(Scenario):
        for name, field in model.model_fields.items():
            if str in parts(field.annotation):
                assert (marker_of(field) is not None) != (name in NO_FILES), f"{model.__name__}.{name}"


class Part(StrictModel):
    """Marks in a list, and in a type that may be null."""

    files: tuple[FilePath, ...] = ()
    other: FilePath | None = None


class Whole(StrictModel):
    title: str
    parts: tuple[Part, ...] | Literal["none"]


def test_a_mark_is_found_wherever_it_stands() -> None:
    """In lists, unions and parts of parts; renaming changes these alone, and leaves the rest as it is."""
    whole = Whole(title="x", parts=(Part(), Part(files=("a", "b"), other="c")))
    assert [(file.key, str(file.path)) for file in named_files(whole)] == [
        ("parts.1.files.0", "a"),
        ("parts.1.files.1", "b"),
        ("parts.1.other", "c"),
    ]
    renamed = with_paths(whole, lambda text: f"/{text}")
    assert renamed == Whole(title="x", parts=(Part(), Part(files=("/a", "/b"), other="/c")))
    assert renamed.model_dump(exclude_unset=True) == {
        "title": "x",
        "parts": ({}, {"files": ("/a", "/b"), "other": "/c"}),
    }


def test_files_of_a_scenario_are_listed_in_order_with_their_keys(tmp_path: Path) -> None:
    """A bundled profile is listed at its installed path, and names of rules are not files."""
    path = scenario_with(tmp_path, RATES)
    path.write_text(path.read_text().replace("profile: slow.yaml", "profile: rtx-2080-ti"))
    text = path.read_text().replace("batch_limit: 16, preload: all", "batch_limit: 16")
    path.write_text(text)
    (tmp_path / "fast.yaml").write_text((Path("scenarios/data/profiles/rtx-2080-ti.yaml")).read_text())
    found = {file.key: file.path for file in named_files(load_scenario(path))}
    shipped = Path("scenarios/data/profiles/rtx-2080-ti.yaml").absolute()
    assert list(found.items()) == [
        ("model.accuracy", tmp_path / "accuracy.json"),
        ("cluster.servers.0.profile", tmp_path / "fast.yaml"),
        ("cluster.servers.1.profile", shipped),
        ("workload.file", tmp_path / "report.csv"),
        ("workload.tuning_file", tmp_path / "tuning.csv"),
        ("compare.routers.1", tmp_path / "mine.rule.yaml"),
    ]


@pytest.mark.parametrize(
    ("workload", "file"), [(RATES, "report.csv"), (TRACE, "report.csv"), (RATES, "mine.rule.yaml")]
)
def test_a_stage_is_made_anew_when_a_file_that_it_used_has_changed(
    workload: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the files that the scenario names; a curve for tuning is none of a comparison."""
    path = scenario_with(tmp_path, workload)
    told = []
    for _ in range(2):
        assert main(["compare", str(path), "--out", str(tmp_path / "run"), "--seed", "0"]) == 0
        told.append(capsys.readouterr().err)
    assert "compare: begins" in told[0]
    assert "compare: skipped, done before" in told[1]
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace("0.5,", "0.6,").replace("thresholds: [16", "thresholds: [15"))
    assert (tmp_path / file).read_text() != text
    assert main(["compare", str(path), "--out", str(tmp_path / "run"), "--seed", "0"]) == 0
    assert "compare: its inputs have changed" in capsys.readouterr().err


def test_a_shipped_table_of_accuracies_has_a_name(tmp_path: Path) -> None:
    """From any folder; a file that lies there by this name is the one that is meant, and another word is none."""
    path = write_scenario(tmp_path, "accuracy: accuracy.json", "accuracy: slimresnet18-paper")
    named = load_scenario(path).model.accuracy
    assert named is not None
    assert Path(named) == SHIPPED / "models" / "slimresnet18-paper.accuracy.json"
    (tmp_path / "accuracy.json").rename(tmp_path / "slimresnet18-paper")
    assert load_scenario(path).model.accuracy == str(tmp_path / "slimresnet18-paper")
    path = write_scenario(tmp_path, "accuracy: accuracy.json", "accuracy: slimresnet18-papers")
    with pytest.raises(InputError, match=r"model.accuracy: .*slimresnet18-papers: no such file"):
        load_scenario(path)
