"""Each failure's router is told by its signature; routers that do well, and figures that are close, are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from policies.vocabulary import Choice, ClusterView
from scenarios.metrics.failure_signs import SignatureContext, against_reference, context_of, signatures
from scenarios.metrics.router_comparison import compare_results
from scenarios.metrics.run_result import Result, Signature
from scenarios.show.command_tables import format_result
from scenarios.show.comparison_table import comparison_table
from scenarios.show.report import build_report
from sim.device_tables import ProfileCosts
from sim.simulated_cluster import ClusterSpec, Simulation
from slimsched.cli import main
from tests import tiny
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import summary

pytestmark = pytest.mark.usefixtures("undrawn")

SECONDS = 1.0
Rule = Callable[[ClusterView], Choice]


class Ruled:
    """A router that is one function of the view."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return self._rule(view)


def valid(view: ClusterView) -> list[int]:
    return [index for index, server in enumerate(view.servers) if server.valid]


def emptiest(view: ClusterView) -> int:
    return min(valid(view), key=lambda server: view.servers[server].outstanding_requests)


def sticky(view: ClusterView) -> Choice:
    place = view.head.location
    return Choice(place if place in valid(view) else emptiest(view), 1.0, 32)


def narrow(view: ClusterView) -> Choice:
    return Choice(sticky(view).server, 0.25, 32)


def shuffle(view: ClusterView) -> Choice:
    others = [server for server in valid(view) if server != view.head.location]
    return Choice(
        min(others, key=lambda s: view.servers[s].outstanding_requests) if others else emptiest(view), 1.0, 32
    )


def slowest(view: ClusterView) -> Choice:
    return Choice(valid(view)[-1], 1.0, 32)


def fastest(view: ClusterView) -> Choice:
    return Choice(valid(view)[0], 1.0, 32)


def ladder(view: ClusterView) -> Choice:
    load = view.fifo_length + sum(server.outstanding_requests for server in view.servers)
    return Choice(sticky(view).server, 1.0 if load < 48 else 0.5, 32)


def every_width(view: ClusterView) -> Choice:
    return Choice(emptiest(view), (0.25, 0.5, 0.75, 1.0)[view.completed % 4], 4)


def cluster(**greedy: Any) -> ClusterSpec:
    return tiny.cluster(greedy=greedy, router={"outstanding_micro_batches": 1000})


def context(spec: ClusterSpec) -> SignatureContext:
    limits, links = [s.params.batch_limit for s in spec.servers], [s.attachment for s in spec.servers]
    return context_of(spec, ProfileCosts(list(spec.devices), limits, links))


def run(rule: Rule, rate_img_s: float, **greedy: Any) -> Result:
    spec = cluster(**greedy)
    run_spec = tiny.run(spec, tiny.poisson_s(rate_img_s, SECONDS), SECONDS, drain_limit_ns=5 * 10**9)
    record = Simulation(spec, run_spec).run(Ruled(rule), np.random.default_rng(0))
    return summary(record, warmup_s=0.2, horizon_s=SECONDS, prior=spec.prior)


moderate = cache(lambda rule: run(rule, 600))


def names(result: Result, *more: Any, **greedy: Any) -> list[str]:
    return [found["name"] for found in signatures(result, context(cluster(**greedy)), *more)]


@pytest.mark.parametrize("rule", [sticky, ladder, every_width])
def test_routers_that_do_well_show_nothing(rule: Rule) -> None:
    assert names(moderate(rule)) == []
    assert names(moderate(rule), moderate(sticky)) == []


def test_work_that_is_shuffled_about() -> None:
    """Nearly every segment on another server than the one before; with or without a router to hold it against."""
    [found] = signatures(moderate(shuffle), context(cluster()), moderate(sticky))
    assert found["name"] == "reward hacking"
    assert found["value"] < 0.1 < found["threshold"] < 0.25
    assert "moves an image" in found["reason"]
    assert "images/s" in found["reason"]
    assert names(moderate(shuffle)) == ["reward hacking"]


def test_moves_that_pay_are_no_hacking() -> None:
    """More throughput than the router that stays put, by more than 2 %."""
    reference = moderate(sticky)
    paid = edited(moderate(shuffle), throughput_img_s=1.03 * reference["throughput_img_s"])
    assert names(paid, reference) == []
    assert names(edited(paid, throughput_img_s=1.01 * reference["throughput_img_s"]), reference) == ["reward hacking"]


def test_moves_by_chance_are_no_hacking() -> None:
    """Who does not look at where an image is moves it as often as the servers' shares say, and is not accused."""
    result = moderate(sticky)
    passes = [server["images"] for server in result["servers"]]
    by_chance = sum((each / sum(passes)) ** 2 for each in passes)
    assert names(edited(result, moves_per_image=3 * (1 - by_chance))) == []
    assert names(edited(result, moves_per_image=3 * (1 - 0.51 * by_chance))) == []
    assert names(edited(result, moves_per_image=3 * (1 - 0.49 * by_chance))) == ["reward hacking"]


TIGHT = {"vram_cap_bytes": 400_000_000}


def test_memory_that_is_too_small_for_what_is_asked() -> None:
    """Instances come and go, and images wait for them; a router that asks for few of them does well there."""
    result = run(every_width, 600, **TIGHT)
    [found] = signatures(result, context(cluster(**TIGHT)))
    assert found["name"] == "VRAM exhaustion"
    assert found["value"] > found["threshold"]
    assert "waiting for an instance" in found["reason"]
    assert names(result) == []  # where everything had room the same figures would be another matter
    assert names(run(narrow, 600, **TIGHT), **TIGHT) == ["accuracy collapse"]


def test_always_the_narrowest_widths() -> None:
    [found] = signatures(moderate(narrow), context(cluster()))
    assert found["name"] == "accuracy collapse"
    assert found["value"] == pytest.approx(0)
    assert names(edited(moderate(narrow), expected_accuracy=0.6 + 0.049 * 0.3)) == ["accuracy collapse"]
    assert names(edited(moderate(narrow), expected_accuracy=0.6 + 0.051 * 0.3)) == []
    assert names(edited(moderate(narrow), expected_accuracy=None)) == []


def test_router_using_one_slow_server_shows_one_server_collapse() -> None:
    result = run(slowest, 1000)
    found = signatures(result, context(cluster()))
    assert [each["name"] for each in found] == ["one-server collapse"]
    assert found[0]["value"] > 0.9 > found[0]["threshold"]
    assert "waiting" in found[0]["reason"]


def test_router_using_one_fast_server_at_light_load_shows_no_collapse() -> None:
    """The collapse is shown if another router is at least twice as fast."""
    light = run(fastest, 200)
    assert max(server["images"] for server in light["servers"]) > 0.9 * sum(s["images"] for s in light["servers"])
    assert names(light) == []
    mean_s = light["latency_s"]["mean"]
    assert mean_s is not None
    quicker = edited(light, latency_s={**light["latency_s"], "mean": mean_s / 2})
    assert names(light, quicker) == ["one-server collapse"]
    assert names(light, edited(light, latency_s={**light["latency_s"], "mean": mean_s / 1.9})) == []


def test_few_images_say_nothing() -> None:
    result = moderate(narrow)
    for completed, found in ((99, []), (100, ["accuracy collapse"])):
        assert names(edited(result, images={**result["images"], "completed": completed})) == found


def test_a_comparison_holds_runs_against_the_sticky_one() -> None:
    spec = context(cluster())
    shuffled = edited(moderate(shuffle), router="shuffle", signatures=[])
    slow = edited(moderate(sticky), router="sticky", signatures=[], throughput_img_s=300.0)
    assert [found["name"] for found in told(against_reference([shuffled, edited(slow, seed=1)], spec)[0])] == []
    as_fast = edited(slow, throughput_img_s=shuffled["throughput_img_s"])
    found = against_reference([shuffled, as_fast], spec)
    assert [each["name"] for each in told(found[0])] == ["reward hacking"]
    assert "sticky has" in told(found[0])[0]["reason"]
    assert told(found[1]) == []
    assert told(against_reference([shuffled, slow], spec)[0]) == []
    unseen = edited(shuffled, signatures=None)
    assert against_reference([unseen, as_fast], spec)[0]["signatures"] is None


def test_tables_list_failure_signatures_of_each_router() -> None:
    """A run lists each signature in full, a comparison the number of runs with it; without any there is no note."""
    found = list(signatures(moderate(narrow), context(cluster())))
    result, calm = edited(moderate(narrow), signatures=found), edited(moderate(sticky), signatures=[])
    told = " ".join(format_result(result).split())
    assert f"signature accuracy collapse: {found[0]['reason']}" in told
    assert "signature" not in format_result(calm)
    compared = compare_results([result, edited(calm, seed=1)])
    assert compared["rows"][0]["signatures"] == {"accuracy collapse": 1}
    said = ["Signature of a failure: random shows accuracy collapse (1 of 2 runs)."]
    assert comparison_table(compared).warnings == said
    assert comparison_table(compare_results([calm])).warnings == []


def test_results_of_the_command_line_have_them(tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "run"
    assert main(["simulate", str(path), "--router", "fixed:0.5,0.5", "--json", str(tmp_path / "result.json")]) == 0
    [found] = json.loads((tmp_path / "result.json").read_text())["signatures"]
    assert (found["name"], found["threshold"]) == ("accuracy collapse", 0.05)
    assert main(["compare", str(path), "--router", "fixed:0.5,0.5", "--router", "sticky", "--out", str(folder)]) == 0
    assert "fixed:0.5,0.5 shows accuracy collapse (2 of 2 runs)" in build_report(folder).read_text()


def told(result: Result) -> list[Signature]:
    found = result["signatures"]
    assert found is not None
    return found


def edited(result: Result, **changes: Any) -> Result:
    return cast(Result, {**result, **changes})
