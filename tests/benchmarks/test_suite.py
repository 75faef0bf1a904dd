"""The ablation of Compass: what is run, and what its rows compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.study import suite
from policies.router_kinds import COMPASS
from policies.rules.compass import CompassRule, Numbers
from scenarios.files.router_files import display_name, read_rule
from scenarios.metrics.result_documents import Case, Equal, Run, SuiteScore
from scenarios.runs.folder import RunFolder


def equal(p99_s: float, unserved: float = 0.0) -> Equal:
    runs = [Run(seed, 0.75, p99_s / 2, p99_s * (1 + seed / 1000), 0.1, unserved) for seed in (300, 301)]
    return Equal(0.1, is_kept=True, runs=tuple(runs))


def test_each_number_but_the_dial_is_set_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its changes are those of its own runs against the defaults', scenarios and drawn clusters apart."""
    defaults, played = Numbers().model_dump(), dict[str, dict[str, Any]]()

    def race(routers: Sequence[str], folder: RunFolder, only: Sequence[str] = ()) -> SuiteScore:
        assert (routers[0], folder.path, only) == (COMPASS, tmp_path / "runs", ("one",))
        for router in routers[1:]:
            rule = read_rule(Path(router.partition("=")[2]))
            assert isinstance(rule, CompassRule)
            played[display_name(router)] = rule.numbers.model_dump()
        ratios = {COMPASS: 1.0, **dict.fromkeys(played, 1.0), "no-rise": 1.5}
        lost = {COMPASS: 0.0, **dict.fromkeys(played, 0.0), "no-batching_delay_arrivals": 0.5}
        cases = [
            Case(name, 0.75, 0.001, {ratio: equal(0.01 * ratios[ratio], lost[ratio]) for ratio in ratios})
            for name in ("one", "drawn-2")
        ]
        return SuiteScore(published=(), entrants=tuple(ratios), cases=tuple(cases))

    monkeypatch.setattr("benchmarks.study.suite.comparing_stage.race", race)
    rows = suite.ablate(("one",), tmp_path / "runs").splitlines()
    assert played == {f"no-{name}": defaults | {name: 0.0} for name in defaults if name != "level"}
    of = {row.split()[0]: row for row in rows[1:]}
    assert [*of] == [name for name in defaults if name != "level"]
    assert of["rise"].count("behind for certain in 1 of 1 cases, ahead in 0; median +50.0 % (+50 to +50)") == 4
    assert of["batching_delay_arrivals"].count("1 not compared: floor missed, or images unserved") == 4
