"""Before a calibration: what it will do, what it costs, what is done already; a senseless budget is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibrate.plan import USABLE_SHARE, Extras, Plan, make_plan
from calibrate.session import SELF_TEST_S, START_S, fall_look_of, idle_look_s
from kit.errors import InputError
from scenarios.executors.announce import (
    SENSIBLE_STEP_S,
    announcement,
    read_log,
    require_budget,
    span,
)
from tests.calibrate.fake import all_keys


def plan(budget_s: float, forward_s: float = 1e-3) -> Plan:
    return make_plan(
        all_keys(), 32, budget_s, lambda _: forward_s, Extras(power=True, peer=True), np.random.default_rng(0)
    )


def write_log(path: Path, made: Plan, steps: int) -> None:
    """A log of the first steps, its last line torn."""
    lines = [json.dumps({"schema": "x"}), *(json.dumps({"step": planned.id}) for planned in made.steps[:steps])]
    path.write_text("\n".join(lines) + '\n{"step": "to')


def announced(made: Plan, budget_s: float, log: Path) -> str:
    return announcement(made, name="cpu0", device="A Processor", budget_s=budget_s, log_path=log)


def test_it_says_what_is_measured_and_what_is_left_out(tmp_path: Path) -> None:
    """The device, keys x batch sizes, steps, time, log, and every omission of the plan."""
    made = plan(30)
    text = announced(made, 30, tmp_path / "log")
    required = sum(planned.required for planned in made.steps)
    assert "A Processor" in text
    assert f"{required} in any case, {len(made.steps) - required} more while time is left: 6 keys x " in text
    assert made.omitted
    assert [words for words in made.omitted if f"left out    {words}" not in text] == []


def test_time_is_what_is_left_within_the_budget(tmp_path: Path) -> None:
    """Steps of the log cost nothing any more; optional steps end with the budget, required ones do not."""
    made, log = plan(30), tmp_path / "log"
    assert f"about {span(min(made.estimated_s, 30))}; the budget is 30 s" in announced(made, 30, log)
    half = len(made.steps) // 2
    write_log(log, made, half)
    left_s = sum(planned.estimated_s for planned in made.steps[half:])
    assert f"about {span(min(left_s, 30))}; the budget is 30 s" in announced(made, 30, log)
    assert f"{half} of {len(made.steps)} steps are done" in announced(made, 30, log)
    tight = plan(1.0)
    needed_s = sum(planned.estimated_s for planned in tight.steps if planned.required)
    assert f"about {span(needed_s)}, all of which is required; the budget is 1 s" in announced(
        tight, 1.0, tmp_path / "none"
    )


def test_a_log_is_read_however_it_ended(tmp_path: Path) -> None:
    """No file, an empty one, a torn line, lines that are no steps."""
    made, log = plan(30), tmp_path / "log"
    assert read_log(log) == (set(), 0)
    write_log(log, made, 3)
    assert read_log(log)[0] == {planned.id for planned in made.steps[:3]}
    log.write_bytes(b'[1]\n{"step": 3}\n\xff\xfe\n')
    assert read_log(log) == (set(), 0)


def test_a_budget_for_nothing_is_refused_with_a_sensible_one(tmp_path: Path) -> None:
    """One second for minutes of work; the budget that is named is taken, and one that is merely tight as well."""
    log = tmp_path / "log"
    slow = plan(1.0, forward_s=0.5)
    with pytest.raises(
        InputError, match=r"--budget: 1 s is too little: every combination .* give \d+s or more"
    ) as refused:
        require_budget(slow, 1.0, log, "--budget", "")
    sensible_s = float(refused.value.problem.split("give ")[1].split("s")[0])
    require_budget(plan(sensible_s - 5, forward_s=0.5), sensible_s, log, "--budget", "")
    tight_s = sum(planned.estimated_s for planned in slow.steps if planned.required) / 1.9
    require_budget(slow, tight_s, log, "--budget", "")
    write_log(log, slow, len(slow.steps))
    require_budget(slow, 1.0, log, "--budget", "")  # all that is required is there


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_sensible_budget_pays_for_the_start(tmp_path: Path, kind: str) -> None:
    """Processes, the self-test and two looks at idle power before the first measurement; and it is the smallest."""
    slow = plan(1.0, forward_s=0.5)  # with power points: a sensor tells power
    needed_s = sum(planned.estimated_s for planned in slow.steps if planned.required) / USABLE_SHARE
    with pytest.raises(InputError) as refused:
        require_budget(slow, 1.0, tmp_path / "log", "--budget", "", kind)
    sensible_s = float(refused.value.problem.split("give ")[1].split("s")[0])

    def left_s(budget_s: float) -> float:
        return budget_s - START_S[kind] - SELF_TEST_S - 2 * idle_look_s(budget_s) - fall_look_of(kind, budget_s)

    assert left_s(sensible_s) >= needed_s > left_s(sensible_s - SENSIBLE_STEP_S)


def write_times(path: Path, made: Plan, steps: int, elapsed_s: float) -> None:
    """A log of the first steps, each of which took so long."""
    records = [{"step": planned.id, "elapsed_s": elapsed_s} for planned in made.steps[:steps]]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_budget_that_the_log_has_used_is_said_to_be_used(tmp_path: Path) -> None:
    """All that is required is done, and the steps took the whole budget: it says how much, and to give more."""
    made, log = plan(60), tmp_path / "log"
    required = sum(planned.required for planned in made.steps)
    assert required < len(made.steps)
    write_times(log, made, required, 59 / required)
    assert read_log(log)[1] == pytest.approx(59)
    assert "nothing more fits: give more to go on" in announced(made, 60, log)
    told = announcement(made, name="cpu0", device="x", budget_s=60, log_path=log, reserved_s=12)
    assert "the budget is 1 min 12 s, of which the log has used 59 s" in told
    write_times(log, made, required, 10 / required)
    assert "give more" not in announced(made, 60, log)
    write_times(log, made, len(made.steps), 0.1)
    assert "finished already; nothing is left to do" in announced(made, 60, log)
