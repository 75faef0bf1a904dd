"""Before a calibration: what it will do, what it costs, what is done already; a senseless budget is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.calibration_log import Log
from calibrate.device_opening import FALL_LOAD_S
from calibrate.measurement_bench import TimesResult
from calibrate.measurement_plan import CalibrationPlan, Extras, PlannedStep, full_grid, make_plan
from calibrate.session import START_S, fall_look_of, idle_look_s
from kit.errors import InputError
from scenarios.executors.device_calibration import SENSIBLE_STEP_S, announcement, require_budget, span
from tests.calibrate.fake import all_keys


def plan(forward_s: float = 1e-3) -> CalibrationPlan:
    extras = Extras(power=True, peer=True)
    return make_plan("cpu", all_keys(), full_grid(32), extras, lambda _: forward_s, np.random.default_rng(0))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log", {}) as opened:
        yield opened


def finish(log: Log, steps: Sequence[PlannedStep], elapsed_s: float = 0.0) -> None:
    for planned in steps:
        log.append(planned.id, elapsed_s, TimesResult((1.0,)))


def announced(made: CalibrationPlan, budget_s: float, log: Log, **more: Any) -> str:
    return "\n".join(announcement(made, log, budget_s=budget_s, **more))


def test_announcement_states_measured_keys_and_time_per_round(log: Log) -> None:
    made = plan()
    text = announced(made, 30, log)
    required = sum(planned.required for planned in made.steps)
    assert f"{required} in any case, {len(made.steps) - required} more while time is left: 6 keys x 6 batch" in text
    assert f"(1, 2, 4, 8, 16, 32), about {span(made.round_s)} a round" in text


def test_time_is_what_is_left_within_the_budget(log: Log) -> None:
    """Steps of the log cost nothing any more; optional steps end with the budget, required ones do not."""
    made = plan()
    needed_s = sum(planned.estimated_s for planned in made.steps if planned.required)
    assert f"about {span(needed_s)}, all of which is required; the budget is 1 s" in announced(made, 1.0, log)
    assert needed_s < 30 < sum(planned.estimated_s for planned in made.steps)
    assert "about 30 s; the budget is 30 s" in announced(made, 30, log)
    half = len(made.steps) // 2
    finish(log, made.steps[:half])
    left_s = sum(planned.estimated_s for planned in made.steps[half:])
    assert f"about {span(min(left_s, 30))}; the budget is 30 s" in announced(made, 30, log)
    assert f"{half} of {len(made.steps)} steps are done" in announced(made, 30, log)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_budget_for_nothing_is_refused_with_a_sensible_one(log: Log, kind: str) -> None:
    """One second for minutes of work: it is said how long a round takes; the budget that is named is the smallest that
    pays for the start, too, and one that is merely tight is taken as well."""
    slow = plan(forward_s=0.5)  # with power points: a sensor tells power
    needed_s = sum(planned.estimated_s for planned in slow.steps if planned.required)
    words = rf"--budget: 1 s is too little: every combination .*, {span(slow.round_s)} a round; give \d+s or more"
    with pytest.raises(InputError, match=words) as refused:
        require_budget(slow, log, 1.0, "--budget", "", kind)
    sensible_s = float(refused.value.problem.split("give ")[1].split("s")[0])

    def left_s(budget_s: float) -> float:
        fall_look_s = fall_look_of(kind, budget_s)
        fall_s = fall_look_s + FALL_LOAD_S if fall_look_s else 0.0
        return budget_s - START_S[kind] - 2 * idle_look_s(budget_s) - fall_s

    assert left_s(sensible_s) >= needed_s > left_s(sensible_s - SENSIBLE_STEP_S)
    require_budget(slow, log, sensible_s, "--budget", "", kind)
    require_budget(slow, log, needed_s / 1.9, "--budget", "", kind)
    finish(log, slow.steps)
    require_budget(slow, log, 1.0, "--budget", "", kind)  # all that is required is there


def test_a_budget_that_the_log_has_used_is_said_to_be_used(log: Log) -> None:
    """All that is required is done, and the steps took the whole budget: it shows how much, and to give more."""
    made = plan()
    required = [planned for planned in made.steps if planned.required]
    assert len(required) < len(made.steps)
    finish(log, required, 10 / len(required))
    assert "give more" not in announced(made, 60, log)
    log.spent_s = 59
    assert "nothing more fits: give more to continue" in announced(made, 60, log)
    assert "the budget is 1 min 12 s, of which the log has used 59 s" in announced(made, 60, log, reserved_s=12)
    finish(log, made.steps)
    assert "finished already; nothing is left to do" in announced(made, 60, log)
