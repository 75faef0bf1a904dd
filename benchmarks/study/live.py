"""The live scenarios on executors: who wins there, whether simulation had said so, and by how much.

    slimsched run scenarios/live/bursts.yaml        # one after the other, in any order, in as many sittings as it takes
    python -m benchmarks.study live                  # after each: docs/live.json, and docs/live.md made of it

The runs' figures are kept in the JSON file, so that the page can be made again without them. What has no finished run
here stays as it was measured before; what was never measured is said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.study.live_findings import FELT, Measured
from benchmarks.study.live_page import live_page, summary_text
from benchmarks.study.results import ROOT
from kit.documents import read_json, write_json, write_text
from kit.errors import InputError
from scenarios.files.made_routers import RULE_SUFFIX
from scenarios.files.reading import load_scenario
from scenarios.files.router_names import made_by
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Pair, Validation, was_stopped
from scenarios.runs.folder import RunFolder
from scenarios.runs.provenance import environments
from scenarios.show.validation import disturbance_warnings, emulated_devices
from scenarios.world.materials import default_folder

_ACCURACY: Final = MEASURES["expected_accuracy"]
SCHEMA: Final = "slimsched.live/1"
_OF_ROWS: Final = ("router", "load", "served", "cpu")
_OF_PAIRS: Final = ("router", "seed", "load", "rate_img_s", "repeat", "not_applicable")
_OF_ENVIRONMENTS: Final = ("python", "system", "cores", "code")


def measured_in(folder: RunFolder, file: str) -> Measured | None:
    """What a run folder holds of it; None where its validation is not finished.

    Raises:
        InputError: the validation was changed since it was made, or was run at several loads.
    """
    if not all((folder / name).exists() for name in ("comparison.json", "validation.json")):
        return None
    validation: Validation = folder.read_json("validation.json")
    comparison: Comparison = folder.read_json("comparison.json")
    if was_stopped(validation):
        return None
    if len({row["load"] for row in validation["rows"]}) > 1:
        problem = "was run at several loads, of which this page shows none; leave validate.loads out"
        raise InputError(str(folder / "validation.json"), "", problem)
    service = validation["pairs"][0]["hardware"]["service"]
    return Measured(
        file=file,
        devices=emulated_devices(validation),
        floor=service["floor"],
        p99_limit_s=service["p99_limit_s"],
        accuracy={row["router"]: _ACCURACY.of(row) for row in comparison["rows"]},
        seeds=max(len(row["seeds"]) for row in comparison["rows"]),
        searches=_searches(folder),
        made_with=_made_with(environments(folder).get("validate", {})),
        warnings=disturbance_warnings(validation),
        rows=[{key: row[key] for key in _OF_ROWS if key in row} for row in cast(list[Any], validation["rows"])],
        pairs=[_less_of(pair) for pair in validation["pairs"]],
    )


def _searches(folder: RunFolder) -> int:
    """The fewest by which one of its routers was tuned; 0 where nothing tells."""
    told = [made_by(file).get("searches") for file in folder.path.glob(f"*{RULE_SUFFIX}")]
    return min((count for count in told if count), default=0)


def _made_with(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The machine and the code, without versions of packages."""
    devices = [device["name"] for device in environment.get("devices", [])]
    host = {"host": ", ".join(devices)} if devices else {}
    return {**host, **{key: environment[key] for key in _OF_ENVIRONMENTS if key in environment}}


def _less_of(pair: Pair) -> Pair:
    """With what the page shows alone."""
    kept: dict[str, Any] = {key: value for key, value in pair.items() if key in _OF_PAIRS}
    for world in ("simulated", "hardware"):
        kept[world] = {}
        for measure in FELT:
            place = kept[world]
            for key in measure.keys[:-1]:
                place = place.setdefault(key, {})
            place[measure.keys[-1]] = measure.of(pair[world])
    return cast(Pair, kept)


def collect(files: Sequence[Path], runs: Path, known: Mapping[str, Measured]) -> tuple[dict[str, Measured], list[str]]:
    """By name what was measured of these scenarios, now or before; and a sentence of each that never was.

    Raises:
        InputError: a scenario or a validation can't be read.
    """
    found: dict[str, Measured] = {}
    missing = []
    for file in files:
        scenario = load_scenario(file)
        folder = RunFolder(runs / default_folder(scenario).name)
        now = measured_in(folder, _named(file)) or known.get(scenario.name)
        if now is not None:
            found[scenario.name] = now
        else:
            state = "begun and not finished" if folder.path.exists() else "not measured yet"
            missing.append(f"`{scenario.name}` is {state}: `slimsched run {_named(file)}`")
    return found, missing


def _named(file: Path) -> str:
    """From the project's folder on, where it lies there: pages name no place of one machine."""
    path = file.resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else file).as_posix()


def known_in(path: Path) -> dict[str, Measured]:
    """What a former call has kept.

    Raises:
        InputError: it is no such file.
    """
    if not path.exists():
        return {}
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(str(path), "schema", f"must be {SCHEMA!r}; name another file with --json, or delete it")
    known: dict[str, Measured] = document["scenarios"]
    return known


def make_page(files: Sequence[Path], runs: Path, json: Path, page: Path) -> str:
    """Collects, keeps and writes; returns the table for the terminal, and what is missing.

    Raises:
        InputError: there is no scenario, or one, its validation or what was kept can't be read.
    """
    if not files:
        raise InputError("--scenarios", "", "no *.yaml there; name the folder of the live scenarios, scenarios/live")
    found, missing = collect(files, runs, known_in(json))
    write_json(json, {"schema": SCHEMA, "scenarios": found})
    write_text(page, live_page(found, missing))
    return summary_text(found, missing)
