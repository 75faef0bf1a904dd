"""Is what is accepted also what was meant? It is written out again, and has to read the same.

A reading raises `InputError` where the product does, and `Misread` where it took something for what it is not. It
returns whether the command that follows is affordable: a minute's work is no reading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from hw.networks.accuracy import Evaluation, load_accuracy, save_accuracy
from hw.networks.registry import ModelFile
from kit import checkpoint, strict
from scenarios.files.reading import load_scenario, read_profile
from scenarios.files.router_names import read_router, read_rule, write_rule
from scenarios.files.series import read_rates, read_trace
from scenarios.files.spec import ChaosFault, Scenario
from scenarios.world.materials import default_folder, make_world
from sim.profile import Profile
from tests.fuzz.cases import Case

FEW_IMAGES: Final = 1000
FEW_SERVERS: Final = 12
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_OTHER_BASE: Final = re.compile(r"0[xob][0-9a-fA-F]+")


class Misread(Exception):  # noqa: N818 - what is told, and no error of ours
    """It was accepted, and is not what was given."""


def require(same: bool, problem: str) -> None:
    """Raises `Misread` where it is not so."""
    if not same:
        raise Misread(problem)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


def scenario(here: Path, case: Case) -> bool:
    """Numbers are what their text says; the scenario reads back; its world can be built."""
    path = here / case.argv[1]
    found = load_scenario(path)
    _require_plain_numbers(_read(path))
    again = here.with_name("again") / path.name
    again.parent.mkdir()
    again.write_text(found.to_yaml(), encoding="utf-8")
    try:
        require(load_scenario(again) == found, "the scenario reads back as another")
    finally:
        again.unlink()
        again.parent.rmdir()
    world = make_world(found, default_folder(found))
    images = (world.mean_rate_img_s or 0.0) * found.duration_s * len(found.compare.seeds)
    return images <= FEW_IMAGES and _is_small(found)


def _is_small(found: Scenario) -> bool:
    gaps_s = [fault.mean_gap_s for fault in found.faults if isinstance(fault, ChaosFault)]
    few_faults = all(found.duration_s / gap_s < 100 for gap_s in gaps_s)
    dwell_s = getattr(found.workload, "dwell_s", found.duration_s)
    return (
        found.duration_s <= 60
        and few_faults
        and found.duration_s / dwell_s < 1e4
        and len(found.cluster.named_servers) <= FEW_SERVERS
    )


def _require_plain_numbers(text: str) -> None:
    """YAML 1.1 has more numbers than users know: `1:30` is 90 there, `010` is 8."""
    loader = strict._Loader(text)
    try:
        node = loader.get_single_node()
        for scalar, value in _numbers(loader, node, 0):
            if _OTHER_BASE.fullmatch(scalar):
                continue
            plain = scalar.replace("_", "")
            require(
                bool(_NUMBER.fullmatch(plain)) and math.isclose(float(plain), value, rel_tol=1e-9),
                f"{scalar!r} is taken for {value}",
            )
    finally:
        loader.dispose()


def _numbers(loader: Any, node: yaml.Node | None, depth: int) -> list[tuple[str, float]]:
    if isinstance(node, yaml.ScalarNode):
        tag = node.tag.rpartition(":")[2]
        return [(node.value, float(loader.construct_object(node)))] if tag in ("int", "float") else []
    if isinstance(node, yaml.SequenceNode):
        return [found for part in node.value for found in _numbers(loader, part, depth + 1)]
    if isinstance(node, yaml.MappingNode):
        return [found for _, part in node.value for found in _numbers(loader, part, depth + 1)]
    return []


def profile(here: Path, case: Case) -> bool:
    """It reads back as the same."""
    path = here / case.argv[2]
    found = read_profile(path)
    _require_plain_numbers(_read(path))
    require(Profile.from_yaml(found.to_yaml(), "again") == found, "the profile reads back as another")
    return True


def rule(here: Path, case: Case) -> bool:
    """The same of a rule's file."""
    path = here / _flag(case, "--router")
    found = read_rule(path)
    _require_plain_numbers(_read(path))
    again = here.with_name("again.rule.yaml")
    write_rule(again, found)
    same = read_rule(again) == found
    again.unlink()
    require(same, "the rule reads back as another")
    return True


def accuracy(here: Path, case: Case) -> bool:
    """The same of an accuracy table, bit for bit."""
    found = load_accuracy(here / "accuracy.json")
    path = here.with_name("again.json")
    save_accuracy(path, found)
    again = load_accuracy(path)
    path.unlink()
    require(found.top1() == again.top1(), "the table reads back as another")
    if isinstance(found, Evaluation):
        require(isinstance(again, Evaluation) and bool((found.correct == again.correct).all()), "its bits differ")
    return True


def learned(here: Path, case: Case) -> bool:
    """A learned router: all numbers are numbers, and the file's tensors are what is written again."""
    path = here / _flag(case, "--router")
    read_router(path)
    tensors, metadata = checkpoint.read(path)
    for name, values in tensors.items():
        require(bool(np.isfinite(values.astype(np.float64)).all()), f"{name} holds what is no number")
    again = here.with_name("again.safetensors")
    checkpoint.write(again, tensors, metadata)
    others, _ = checkpoint.read(again)
    again.unlink()
    require(_same(tensors, others), "the router reads back as another")
    return True


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(values, other[name]) for name, values in one.items())


def network(here: Path, case: Case) -> bool:
    """A network's weights: finite, all of them."""
    model, _ = ModelFile(here / "model.safetensors").load()
    for name, values in model.state_dict().items():
        require(bool(values.isfinite().all()), f"{name} holds what is no number")
    return False


def trace(here: Path, case: Case) -> bool:
    """As many arrivals as there are lines below the header, each the number or date that stands there."""
    path = here / "trace.csv"
    found = read_trace(path, "time_s")
    _require_rows(path, len(found), "time_s", found)
    return scenario(here, case)


def rates(here: Path, case: Case) -> bool:
    """The same of a curve."""
    path = here / "rates.csv"
    found = read_rates(path, "count")
    _require_rows(path, len(found), "count", found)
    return scenario(here, case)


def _require_rows(path: Path, rows: int, column: str, values: Any) -> None:
    """A plain reader's view: a line is a row, commas part its fields."""
    lines = [line for line in re.split(r"\r\n|\n|\r", _read(path)) if line.strip(" \t,")]
    require(rows == len(lines) - 1, f"{rows} rows of {len(lines) - 1} lines below the header")
    header = [name.strip().strip('"') for name in lines[0].split(",")]
    require(header.count(column) <= 1, f"{header.count(column)} columns are named {column!r}")
    for line, value in zip(lines[1:], values, strict=True):
        fields = [text.strip().strip('"').strip() for text in line.split(",")]
        require(len(fields) == len(header), f"{line[:80]!r} has {len(fields)} fields, the header {len(header)}")
        text = fields[header.index(column)] if column in header else ""
        plain = text if _NUMBER.fullmatch(text) else None
        require(plain is None or math.isclose(float(plain), value, rel_tol=1e-9), f"{text!r} is taken for {value}")


def _flag(case: Case, name: str) -> str:
    return case.argv[case.argv.index(name) + 1]


READINGS: Final[Mapping[str, Callable[[Path, Case], bool]]] = {
    function.__name__: function for function in (scenario, profile, rule, accuracy, learned, network, trace, rates)
}
