"""`make parity`: the compiled engine against the reference on thousands of drawn scenarios.

`python -m tests.parity --seeds 0:10000` runs that range in several processes; a range is all that resuming needs.
`python -m tests.parity --shrink SEED` makes a scenario that failed as simple as it can and shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from time import perf_counter  # noqa: TID251 - progress is told in seconds
from typing import Any

from sim.compiled import UnsupportedScenario
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.simulated_cluster import ClusterSpec, RunSpec
from tests.parity.compare import Engine, compare, play, reference
from tests.parity.draws import GivenDraws, SeededDraws, shrink
from tests.parity.scenarios import draw_with_compass

CHUNK = 100


@dataclass
class Found:
    done: int = 0
    decisions: int = 0
    requests: int = 0
    differences: dict[int, str] = field(default_factory=dict)

    def add(self, result: dict[str, Any]) -> None:
        self.done += 1
        self.decisions += result["decisions"]
        self.requests += result["requests"]
        if result["difference"]:
            self.differences[result["seed"]] = result["difference"]


def run_seed(seed: int) -> dict[str, Any]:
    scenario = draw_with_compass(SeededDraws(seed), f"seed {seed}")
    moments = list(play(reference, scenario))
    record = moments[-1].record
    assert record is not None
    return {
        "seed": seed,
        "difference": compare(scenario, CompiledSimulation, moments),
        "decisions": record.decisions,
        "requests": len(record.requests),
    }


def work(first: int, end: int) -> None:
    """Run some seeds, a line of JSON each; the seed that is under way is told first, in case that it is the last."""
    for seed in range(first, end):
        print(json.dumps({"begun": seed}), flush=True)
        print(json.dumps(run_seed(seed)), flush=True)


def results(first: int, end: int) -> Iterator[dict[str, Any]]:
    """The results of some seeds, from a process of their own; one that dies costs its seed, and the others go on."""
    while first < end:
        command = [sys.executable, "-m", "tests.parity", "--work", "--seeds", f"{first}:{end}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                result = json.loads(line)
                first = result.get("begun", first)
                if "seed" in result:
                    yield result
        if process.returncode == 0:
            return
        problem = f"the process died with {process.returncode}"
        yield {"seed": first, "difference": problem, "decisions": 0, "requests": 0}
        first += 1


def check(first: int, end: int, jobs: int) -> Found:
    found, began_s = Found(), perf_counter()
    chunks = [(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK)]
    with ThreadPoolExecutor(jobs) as pool:
        for chunk in as_completed([pool.submit(lambda *ends: list(results(*ends)), *ends) for ends in chunks]):
            for result in chunk.result():
                found.add(result)
                if result["difference"]:
                    print(f"seed {result['seed']}: {result['difference']}", flush=True)
            rate = found.done / (perf_counter() - began_s)
            print(f"{found.done}/{end - first}: {len(found.differences)} differ ({rate:.0f} a second)", flush=True)
    return found


def show_smallest(seed: int) -> None:
    def differs(numbers: list[int]) -> bool:
        scenario = draw_with_compass(GivenDraws(numbers), f"seed {seed}, shrunk")
        return compare(scenario, _supported) is not None

    draws = SeededDraws(seed)
    print(compare(draw_with_compass(draws, f"seed {seed}"), CompiledSimulation))
    scenario = draw_with_compass(GivenDraws(shrink(draws.drawn, differs)), f"seed {seed}, shrunk")
    print(compare(scenario, CompiledSimulation))
    for part in (scenario.cluster.router, scenario.cluster.supervision, *scenario.cluster.servers, scenario.run):
        print(part)
    for device in scenario.cluster.devices:
        print({field.name: getattr(device, field.name) for field in fields(device) if field.name not in _LONG})
    print(scenario.policy_name, scenario.cluster.decision_ns, scenario.cluster.host)


_LONG = ("profile", "crowding", "crowding_across", "keys")


def _supported(cluster: ClusterSpec, run: RunSpec) -> Engine:
    """A simpler scenario that is refused has no difference."""
    try:
        return CompiledSimulation(cluster, run)
    except UnsupportedScenario:
        return reference(cluster, run)


def main() -> int:
    """Exit code 1 where the engines differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("--seeds", default="0:10000", help="FROM:TO, the end not included")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="simplify one scenario that differs")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.shrink is not None:
        show_smallest(chosen.shrink)
        return 0
    first, end = (int(number) for number in chosen.seeds.split(":"))
    if chosen.work:
        work(first, end)
        return 0
    found = check(first, end, chosen.jobs)
    print(f"\n{found.done} scenarios, {found.requests} requests, {found.decisions} decisions")
    print(f"{len(found.differences)} of {found.done} scenarios differ: {sorted(found.differences)}")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
