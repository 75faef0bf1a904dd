"""Some drawn worlds, in which no law is broken; and that the laws find what was wrong once."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.interfaces import RouterConfig
from tests.swarm.laws import Laws
from tests.swarm.mix import MICRO_BATCH_SIZES, MS, WIDTHS, Mix
from tests.swarm.mutations import mutations
from tests.swarm.play import descriptors_left, play, play_mix

ROOT = Path(__file__).parents[2]
TOGETHER = 25
FIRST_SEEDS = range(0, 50, TOGETHER)
KEPT = {1204: "the first word of a worker came when a run ended, and was lost: the next run waited for it"}
THERE = [mutation.name for mutation in mutations()[:5]]  # faults that were in the product
SHOWN_BY = (0, 0, 264, 0, 4)  # the first seed that showed each; where worlds have changed, another one does
WITHIN = 1000  # seeds


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """What other tests have left is not looked at again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_no_law_is_broken(first: int) -> None:
    """`python -m tests.swarm --show --seeds SEED:SEED+1` shows one that does."""
    for seed in range(first, first + TOGETHER):
        try:
            assert play(seed).steps > 0
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("seed", KEPT, ids=KEPT.values())
def test_seed_of_a_fixed_fault_breaks_no_law(seed: int) -> None:
    assert play(seed).steps > 0


def test_a_seed_does_the_same_again() -> None:
    for seed in (1, 4):
        first, second = play(seed), play(seed)
        assert first.steps == second.steps > 100
        for one, other in zip(first.records, second.records, strict=True):
            assert (one.log, one.worker_logs, one.requests) == (other.log, other.worker_logs, other.requests)


def test_under_overload_arrivals_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 come within 100 ms, one server has one micro-batch at a time for 5 ms: the router waits a few hundred
    times, and each still counts from when it was due."""
    waits = list[float]()
    monkeypatch.setattr(Laws, "looked", lambda laws, has_come, wait_s: waits.append(wait_s))
    router = RouterConfig(
        1, WIDTHS, (((True, True),),), micro_batch_sizes=MICRO_BATCH_SIZES, outstanding_micro_batches=1
    )
    load = {"arrivals_ns": np.arange(2000) * MS // 20, "horizon_ns": 100 * MS, "pass_ns": 5 * MS, "ends": "cut"}
    calm = dict.fromkeys(("kills", "halts", "severs", "cuts", "stalls", "stillborn", "pauses", "has_links", "spins"), 0)
    rest: dict[str, Any] = dict.fromkeys(("faults", "drains", "stops"), ()) | calm | load
    mix = replace(Mix.draw(0), router=router, deadline_ns=None, runs=1, **rest)
    (record,) = play_mix(mix).records
    assert len(record.requests) == 2000
    assert len(waits) < 400
    assert max(record.arrival_lags_ns) < 2 * MS


def test_no_descriptor_is_left() -> None:
    assert descriptors_left(range(10)) == 0


def test_each_fault_has_its_place_in_the_code() -> None:
    sources = {
        mutation: (ROOT / mutation.module.replace(".", "/")).with_suffix(".py").read_text() for mutation in mutations()
    }
    assert {each.name: text.count(each.right) for each, text in sources.items() if text.count(each.right) != 1} == {}


@pytest.mark.mutants
@pytest.mark.parametrize(("number", "first"), [*enumerate(SHOWN_BY)], ids=THERE)
def test_each_fault_that_was_there_is_found(number: int, first: int) -> None:
    options = ["--first", "--mutation", f"{number}", "--seeds", f"{first}:{first + WITHIN}"]
    played = subprocess.run([sys.executable, "-m", "tests.swarm", *options], capture_output=True, text=True)
    assert played.returncode == 1, played.stdout + played.stderr
    assert "BrokenLawError" in played.stdout
