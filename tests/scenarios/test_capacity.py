"""The largest stable rate: bracketed by bisection, by most of the seeds, of a load that can last."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.errors import InputError, WorkError
from policies.run_records import RunColumns
from policies.vocabulary import NS_PER_S
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.metrics.result_documents import Capacity
from scenarios.metrics.slo import Slo
from scenarios.runs.capacity_search import RateReading, Search, TriedRate, capacity, p99_of, read
from scenarios.runs.fluid_bound import FluidModel
from scenarios.runs.simulated_runs import simulate_metrics
from scenarios.show.wording import say
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.test_result import record, request

POISSON = "{kind: poisson, rate_img_s: 200}"


def experiment_of(folder: Path, workload: str = POISSON, more: str = "") -> Experiment:
    path = write_scenario(folder, POISSON, workload)
    path.write_text(path.read_text() + more)
    return load_experiment(path)


def search(experiment: Experiment, read: Any = read, **changes: Any) -> Capacity:
    settings = replace(Search("sticky", (0,), duration_s=0.4, precision=0.25), **changes)
    return capacity(experiment, lambda: experiment.router("sticky"), settings, read=read)


def test_capacity_search_brackets_the_rate_and_stays_near_the_fluid_bound(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    found = search(experiment, precision=0.2)
    assert 0 < found.stable_img_s < found.unstable_img_s <= 1.3 * found.stable_img_s
    # a short run's backlog may grow unnoticed
    assert found.stable_img_s <= 1.1 * FluidModel(experiment).capacity_img_s()
    assert (found.workload, found.seeds) == ("poisson", (0,))


def test_run_that_sheds_beyond_its_capacity_is_not_steady(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, more="deadline_s: 20ms\nshed: true\n")
    patient = experiment_of(tmp_path)
    far = 20 * experiment.capacity_img_s / (experiment.rate_img_s or 1.0)
    wanted = Search("sticky", (0,), duration_s=0.4)
    for engine in ("simpy", "compiled"):
        found = [
            read(each, each.router("sticky"), scale, 0, replace(wanted, engine=engine)).is_steady
            for each in (experiment, patient)
            for scale in (0.2, far)
        ]
        assert found == [True, False, True, False]


class Limits:
    """Instead of simulating: a run is stable below its seed's limit. `asked` are the runs."""

    def __init__(self, limits_img_s: dict[int, float]) -> None:
        self.limits_img_s = limits_img_s
        self.asked: list[tuple[int, float]] = []

    def __call__(self, experiment: Experiment, policy: Any, scale: float, seed: int, search: Search) -> RateReading:
        self.asked.append((seed, scale * (experiment.rate_img_s or 0.0)))
        return RateReading(self.asked[-1][1] < self.limits_img_s[seed])


def test_most_seeds_decide_and_no_more_are_run_than_needed(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    limits = Limits({0: 100.0, 1: 300.0, 2: 200.0})
    three, asked = search(experiment, limits, seeds=(0, 1, 2), precision=0.01), limits.asked
    assert three.stable_img_s < 200 <= three.unstable_img_s <= 1.011 * three.stable_img_s
    assert three.runs == len(asked)
    rates = {rate for _, rate in asked}
    assert len(asked) < 3 * len(rates)
    assert sum(rate >= 300 for _, rate in asked) == 2 * len({rate for rate in rates if rate >= 300})
    two = search(experiment, limits, seeds=(1, 2), precision=0.01)
    assert two.stable_img_s < 200 <= two.unstable_img_s


def test_rates_below_the_answer_are_looked_at_again(tmp_path: Path) -> None:
    """A router may hold at a rate by chance and fall at lower ones: with two other seeds, at 0.97 and 0.9 of it."""
    limits = Limits({0: 100.0, 1: 95.0, 2: 50.0})
    found = search(experiment_of(tmp_path), limits, is_checked=True, precision=0.01)
    assert 99 < found.stable_img_s < 100
    assert found.checks == 4
    assert [(each.seed, round(each.rate_img_s / found.stable_img_s, 2)) for each in found.fell] == [
        (1, 0.97), (2, 0.97), (2, 0.9),
    ]  # fmt: skip
    assert found.runs == len(limits.asked)
    text = say("capacity", "found", found, 0.03)
    assert f"3 fell ({0.97 * found.stable_img_s:.1f} images/s with seed 1" in " ".join(text.split())
    sound = search(experiment_of(tmp_path), Limits({0: 100.0, 1: 100.0, 2: 100.0}), is_checked=True)
    assert (sound.checks, sound.fell) == (4, ())


def test_the_p99_there_is_a_range_over_new_seeds(tmp_path: Path) -> None:
    """Where one is asked for: the least and the greatest of 19 runs; one without a p99 leaves none."""
    p99s_s: dict[int, float | None] = {seed: 0.004 + 0.001 * (7 * seed % 20) for seed in range(1, 20)}

    def drawn(experiment: Experiment, policy: Any, scale: float, seed: int, search: Search) -> RateReading:
        return RateReading(scale * (experiment.rate_img_s or 0.0) < 1000, p99s_s.get(seed, 0.0))

    limit = Slo(p99_limit_s=0.02)
    found = search(experiment_of(tmp_path), drawn, is_checked=True, slo=limit)
    assert found.p99_range_s == {"low": 0.005, "median": pytest.approx(0.014), "high": 0.023}
    assert "(5.00 ms to 23.00 ms in 90 % of runs)" in say("capacity", "found", found, 0.03)
    assert search(experiment_of(tmp_path), drawn, is_checked=True).p99_range_s is None
    p99s_s[19] = None
    assert search(experiment_of(tmp_path), drawn, is_checked=True, slo=limit).p99_range_s is None


def test_bursts_and_faults_do_not_count(tmp_path: Path) -> None:
    """A rate that can last is that of the cluster, whatever the scenario's arrivals do on it."""
    plain = search(experiment_of(tmp_path))
    bursts = "{kind: mmpp, rate_img_s: 50, burst_factor: 1.5, burst_share: 0.5, dwell_s: 0.02}"
    moving = experiment_of(tmp_path, bursts, "faults: [{kind: server_down, server: fast, start_s: 0.05}]\n")
    assert search(moving) == plain


def rising(experiment: Experiment, policy: Any, scale: float, seed: int, search: Search) -> RateReading:
    """Instead of simulating: p99 rises and accuracy falls with the rate; stable below 400 images/s."""
    rate_img_s = scale * (experiment.rate_img_s or 0.0)
    return RateReading(rate_img_s < 400, 0.005 + rate_img_s / 1e5, 0.9 - rate_img_s / 1e3, 2.0)


def test_a_limit_and_a_floor_are_kept_besides(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    for slo, most_img_s in (
        (Slo(), 400.0),
        (Slo(p99_limit_s=0.008), 300.0),
        (Slo(floor=0.701), 200.0),  # kept to a tenth of a point
        (Slo(0.701, 0.008), 200.0),
        (Slo(0.701, 0.006), 100.0),
    ):
        found = search(experiment, rising, duration_s=20.0, precision=0.01, slo=slo)
        assert found.stable_img_s <= most_img_s <= found.unstable_img_s <= 1.011 * found.stable_img_s
        assert (found.floor, found.p99_limit_s) == (slo.floor, slo.p99_limit_s)
        assert found.p99_s == pytest.approx(0.005 + found.stable_img_s / 1e5)
        assert found.accuracy == pytest.approx(0.9 - found.stable_img_s / 1e3)
        assert found.energy_per_image_j == 2.0


def test_capacity_search_reports_the_nearest_value_when_no_rate_meets_the_slo(tmp_path: Path) -> None:
    experiment, tries = experiment_of(tmp_path), list[TriedRate]()
    for slo, told in (
        (Slo(p99_limit_s=0.004), r"no rate keeps a p99 of 4 ms: the lowest seen is 5\.\d\d ms, at \d"),
        (Slo(floor=0.9), r"accuracy of 90 %: the highest seen is 8\d\.\d\d %, at .* tuple has 90\.00 %"),
    ):
        tries.clear()
        with pytest.raises(WorkError, match=told):
            capacity(
                experiment,
                lambda: experiment.router("sticky"),
                Search("sticky", (0,), slo=slo),
                read=rising,
                on_progress=tries.append,
            )
        assert tries[-1].rate_img_s < 200 / 20 <= tries[-2].rate_img_s
    with pytest.raises(WorkError, match="no stable rate above"):
        search(experiment, Limits({0: 0.0}), slo=Slo(p99_limit_s=1.0))
    most = r"the most accurate width tuple that the servers can hold; expected up to 0\.9"
    with pytest.raises(InputError, match=rf"--floor: 0\.95 is beyond {most}"):
        search(experiment, rising, slo=Slo(floor=0.95))


def test_p99_includes_failed_requests_and_waits_beyond_the_limit() -> None:
    """A failed image has an endless wait, one in flight its wait so far; images of the first half don't count."""
    quick = [request(number, 5.5, 0.1) for number in range(98)]
    for others, limit_s, p99_s in (
        ([request(98, 0.5, 3.0)], 1.0, 0.1),
        ([request(98, 6.0, 4.0, "in_flight")], None, 0.1),
        ([request(98, 6.0, 4.0, "in_flight")], 5.0, 0.1),
        ([request(98, 6.0, 4.0, "in_flight")], 1.0, 4.0),
        ([request(98, 6.0, 0.1, "failed")], None, None),
        ([request(98, 6.0, 0.1, "failed"), request(99, 6.0, 0.1)], None, 0.1),  # one of a hundred
    ):
        columns = RunColumns.of(record(*quick, *others))
        assert p99_of(columns.requests, 5 * NS_PER_S, limit_s) == (None if p99_s is None else pytest.approx(p99_s))
    assert p99_of(RunColumns.of(record()).requests, 5 * NS_PER_S, None) is None


def test_a_run_is_read_by_its_second_half(tmp_path: Path) -> None:
    """Both engines alike; overload is over any limit, though the few that are completed may be quick."""
    experiment = experiment_of(tmp_path)
    for widths, accuracy in (("0.5,0.5", 0.7), ("1,1", 0.9)):
        wanted = Search("fixed", (0,), duration_s=1.0, slo=Slo(p99_limit_s=0.05))
        found = [
            read(experiment, experiment.router(f"fixed:{widths}"), 0.5, 0, replace(wanted, engine=engine))
            for engine in ("simpy", "compiled")
        ]
        assert found[0] == found[1]
        assert found[0].accuracy == pytest.approx(accuracy)
        assert found[0].energy_per_image_j is not None
        result = simulate_metrics(
            experiment,
            experiment.router(f"fixed:{widths}"),
            "fixed",
            0,
            scale=0.5,
            duration_s=1.0,
            warmup_s=0.5,
            end="cut",
        )
        assert found[0].p99_s == pytest.approx(result["latency_s"]["p99"], rel=0.3)  # by arrival, not by completion
        far = 20 * experiment.capacity_img_s / (experiment.rate_img_s or 1.0)
        flooded = read(experiment, experiment.router(f"fixed:{widths}"), far, 0, wanted)
        assert not flooded.is_steady
        assert flooded.p99_s is not None
        assert flooded.p99_s > 0.5  # of those that wait for the first half's end and longer


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_scenario(tmp_path))
    flags = ["--router", "sticky", "--seed", "3", "--seed", "4", "--duration", "200ms", "--precision", "0.4"]
    assert main(["capacity", path, *flags, "--json", "-"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out)
    assert (found["seeds"], found["workload"], found["engine"]) == ([3, 4], "poisson", "compiled")
    assert "(poisson arrivals, 0.2 s, seeds 3, 4)" in streams.err
    told = streams.err.splitlines()[-3]
    assert re.fullmatch(r"  there: p99 [\d.]+ ms, accuracy [\d.]+ %, [\d.]+ J/image", told)
    assert {found["floor"], found["p99_limit_s"]} == {None}
    asked = ["capacity", path, "--router", "fixed:0.5,0.5", "--precision", "0.4", "--duration", "1s"]
    assert main([*asked, "--p99", "50ms", "--floor", "0.69"]) == 0
    streams = capsys.readouterr()
    assert "checked: 4 runs at 0.97 and 0.9 of it, with other seeds," in streams.out
    assert "images/s at a p99 of at most 50.00 ms and an accuracy of at least 69.00 %, not" in streams.out
    assert "stable, and keeps what is asked" in streams.err
    assert main([*asked, "--floor", "0.8"]) == 1
    streams = capsys.readouterr()
    assert "stable, but accuracy 70.00 %" in streams.err
    assert "no rate keeps an accuracy of 80 %: the highest seen is 70.00 %" in streams.err
