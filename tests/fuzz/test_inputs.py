"""Whatever is in a file or among a command's words, reading it gives what was meant, or one line that names the place.

Hypothesis draws documents by the schema of their model, damaged files, and flags; `make fuzz` draws more of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from calibrate.datasheet import DataSheet
from hw.networks.accuracy_table import load_accuracy
from hw.networks.network_files import ModelFile
from jobs.job_scenario import read_case, read_scenario
from jobs.job_scenario_keys import JobsScenario
from policies.router_kinds import KINDS
from scenarios.experiment.scenario_building import default_folder, make_experiment
from scenarios.files.router_files import read_router, read_rule, write_rule
from scenarios.files.scenario_keys import ChaosFault, Scenario
from scenarios.files.scenario_reading import load_scenario, read_profile
from scenarios.files.series_files import read_rates, read_trace
from scenarios.learn.drawn_clusters import Clusters, read_clusters
from scenarios.terminal.screen import exit_code
from sim.device_profile import Profile
from slimsched.cli import main
from slimsched.commands import COMMANDS
from slimsched.jobs.verbs import profile_images_s
from slimsched.launching import flags_of, launch
from tests.fuzz.base import MAX_CHARACTERS, RULES, base
from tests.fuzz.strategies import NAMES, ODD, TEXTS, changed, damaged

FEW_IMAGES = 1000
drawn = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _folder() -> Iterator[None]:
    """The current folder has all that documents may name."""
    with tempfile.TemporaryDirectory() as text, contextlib.chdir(text):
        for name, content in base().items():
            Path(name).write_bytes(content)
        yield


def require_clear(work: Callable[[], object]) -> None:
    """Do it: it succeeds in silence, or is refused in one short, printable line that begins with a place."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = exit_code("slimsched", lambda: code if isinstance(code := work(), int) else 0)
    line = said.getvalue()
    assert code == (2 if line else 0), line
    if code:
        assert line.startswith("slimsched"), line
        assert ": " in line.removeprefix("slimsched: "), line
        assert line.count("\n") == 1, line
        assert line[:-1].isprintable(), line
        assert len(line) < MAX_CHARACTERS, line


# ---------------------------------------------------------------------------------------------------------- documents


def _scenario(path: Path) -> int:
    """Read a scenario, which reads back the same; build its world, and simulate it if that is short."""
    found = load_scenario(path)
    again = path.with_name("again.yaml")
    again.write_text(found.to_yaml(), encoding="utf-8")
    assert load_scenario(again) == found
    experiment = make_experiment(found, default_folder(found))
    gaps_s = [fault.mean_gap_s for fault in found.faults if isinstance(fault, ChaosFault)]
    is_short = (
        (experiment.mean_rate_img_s or 0.0) * found.duration_s <= FEW_IMAGES
        and found.duration_s <= min([60.0, *(100 * gap_s for gap_s in gaps_s)])
        and found.duration_s <= 1e4 * getattr(found.workload, "dwell_s", 1.0)
        and len(found.cluster.named_servers) <= 12
    )
    if not is_short:
        return 0
    if code := main(["simulate", str(path), "--quiet", "--engine", "simpy", "--json", "done.json"]):
        return code
    images = json.loads(Path("done.json").read_text())["images"]
    assert images["arrived"] == sum(images.values()) / 2
    return 0


def _profile(path: Path) -> None:
    found = read_profile(path)
    assert Profile.from_yaml(found.to_yaml(), "again") == found


def _rule(path: Path) -> None:
    found = read_rule(path)
    again = path.with_name("again.rule.yaml")
    write_rule(again, found)
    assert read_rule(again) == found


def _jobs(path: Path) -> None:
    read_case(read_scenario(path), str(path), profile_images_s)


def _sheet(path: Path) -> None:
    DataSheet.from_yaml(path.read_text(), str(path))


FORMS: dict[str, tuple[Callable[[], type[BaseModel]], Callable[[Path], object]]] = {
    "tiny.yaml": (lambda: Scenario, _scenario),
    "fast.yaml": (lambda: Profile, _profile),
    "jobs.yaml": (lambda: JobsScenario, _jobs),
    "sheet.yaml": (lambda: DataSheet, _sheet),
    "clusters.yaml": (lambda: Clusters, lambda path: read_clusters(path, {})),
    **{f"{kind}.rule.yaml": (KINDS[kind].load, _rule) for kind in RULES},
}


@pytest.mark.parametrize("name", FORMS)
@drawn
@given(st.data())
def test_a_document_reads_back_or_is_refused(name: str, data: st.DataObject) -> None:
    """Some of its values are others that the schema allows, or none that it does."""
    model, read = FORMS[name]
    valid = {key: value for key, value in yaml.safe_load(base()[name]).items() if key != "checksum"}
    document = data.draw(changed(valid, model().model_json_schema()))
    path = Path(f"drawn-{name}")
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    require_clear(lambda: read(path))


# -------------------------------------------------------------------------------------------------------------- files


def _network(path: Path) -> None:
    model, _ = ModelFile(path).load()
    assert all(values.isfinite().all() for values in model.state_dict().values())


FILES: dict[str, Callable[[Path], object]] = {
    **{name: read for name, (_, read) in FORMS.items() if name in ("tiny.yaml", "fast.yaml", "ladder.rule.yaml")},
    "trace.csv": lambda path: read_trace(path, "time_s"),
    "rates.csv": lambda path: read_rates(path, "count"),
    "accuracy.json": load_accuracy,
    "ppo.safetensors": read_router,
    "model.safetensors": _network,
}


@pytest.mark.parametrize("name", FILES)
@drawn
@given(st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Without its checksum, or nothing that is changed would be read."""
    content = re.sub(rb'(?m)^checksum: .*\n|"checksum":"[^"]*",?', b"", base()[name])
    path = Path(f"drawn-{name}")
    path.write_bytes(data.draw(damaged(content)))
    require_clear(lambda: FILES[name](path))


# -------------------------------------------------------------------------------------------------------------- words


@drawn
@given(st.data())
def test_words_are_taken_or_refused(data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(list(COMMANDS)))
    flags = st.sampled_from([*flags_of(command), "--json", "--quiet", "--help"])
    words = data.draw(st.lists(st.one_of(flags, st.sampled_from(NAMES), TEXTS, ODD.map(str)), max_size=6))
    require_clear(lambda: launch(command, words, lambda *_, **__: 0))
