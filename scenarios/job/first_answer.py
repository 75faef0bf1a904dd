"""A first answer, before anything here is measured: a short comparison over profiles that ship.

It says nothing of the user's devices. It shows within half a minute what the job is to end with.
"""

from __future__ import annotations

from time import monotonic  # noqa: TID251 - how long it took
from typing import Any, Final

from scenarios.files.reading import load_scenario, scenario_path
from scenarios.metrics.comparison import compare_results
from scenarios.runs.simulate import simulate_all
from scenarios.show.summary import format_summary
from scenarios.show.wording import lines_of
from scenarios.world.materials import default_folder, make_world

SHIPPED: Final = "paper"
ROUTERS: Final = ("random", "jsq", "ladder")
_SHORT: Final[dict[str, Any]] = {"duration_s": 2, "warmup_s": 0.5, "compare.baseline": None, "workload.rate_img_s": 900}


def first_answer() -> str:
    """Rules on three GPUs of datasheets, one short run each."""
    began_s = monotonic()
    scenario = load_scenario(scenario_path(SHIPPED), _SHORT)
    results = simulate_all(make_world(scenario, default_folder(scenario)), ROUTERS, scenario.compare.seeds[:1])
    took_s = monotonic() - began_s
    table = format_summary(compare_results(results), None)
    head = lines_of("run", "first_answer", SHIPPED, len(scenario.cluster.named_servers), scenario.duration_s, took_s)
    return "\n".join([*head, "", table, ""])
