"""Runs on the hosts of a Ray cluster by joblib's own backend, as docs/cluster.md says."""

from __future__ import annotations

from pathlib import Path

import joblib
import pytest
from ray.util.joblib import register_ray

from hw.router.ray_cluster import joined
from kit.errors import InputError
from kit.parallel import each
from scenarios.runs.simulated_runs import simulate_all
from tests.ray_nodes import RayNodes
from tests.scenarios.tasks import answer
from tests.scenarios.test_engines import SIDES, experiment_of

pytestmark = [pytest.mark.workers, pytest.mark.ray]


def test_runs_are_the_same_to_the_last_bit(
    ray_hosts: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is begun here for them; what is wrong with the input there comes through."""
    experiment = experiment_of(tmp_path, SIDES["bursts"])
    alone = simulate_all(experiment, ["random", "jsq"], [3, 1])
    register_ray()  # type: ignore[no-untyped-call]
    monkeypatch.setattr("joblib.externals.loky.process_executor.ProcessPoolExecutor", None)
    with joined(ray_hosts.address, "cluster", "address"), joblib.parallel_config(backend="ray", n_jobs=2):
        spread = simulate_all(experiment, ["random", "jsq"], [3, 1], jobs=2)
        with pytest.raises(InputError, match="is wrong; write another"):
            list(each(answer, 7, ["wrong", "a"], 2))
    assert [{**result, "wall_s": 0} for result in spread] == [{**result, "wall_s": 0} for result in alone]
