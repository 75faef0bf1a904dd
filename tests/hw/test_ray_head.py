"""The head of a Ray cluster ends while a run is under way: one line says so, long before Ray would end the process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time  # noqa: TID251 - waits for real processes
from pathlib import Path

import pytest

from hw.router.ray_cluster import while_head_lives
from kit.errors import WorkError
from tests.ray_nodes import ray_nodes

pytestmark = [pytest.mark.workers, pytest.mark.ray, pytest.mark.slow]


@pytest.mark.release
def test_a_run_whose_head_ends_is_told_so(path: Path) -> None:
    with ray_nodes(["alpha", "beta"]) as nodes:
        command = [sys.executable, "-m", "tests.hw.on_hosts", "run", nodes.address, str(path), "90", "beta"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert run.stdout is not None
            assert run.stdout.readline().strip() == "begun"
            time.sleep(2.0)
            nodes.kill("alpha")
            began_s = time.monotonic()
            _, told = run.communicate(timeout=50)
        finally:
            run.kill()
    assert run.returncode == 1
    assert (
        told.strip()
        .splitlines()[-1]
        .startswith(f"kit.errors.WorkError: the Ray cluster at {nodes.address} is gone; what is finished is kept")
    )
    assert "GCS may have been killed" not in told  # Ray's own words, before it ends the process
    assert time.monotonic() - began_s < 40.0


def test_lost_ray_head_wakes_a_waiting_run() -> None:
    """No head listens at the address, and a block that ends earlier is not disturbed."""
    began_s = time.monotonic()
    with pytest.raises(WorkError, match="is gone"), while_head_lives("127.0.0.2:1") as gone:
        time.sleep(60.0)
    assert gone.is_set()
    assert time.monotonic() - began_s < 20.0
    with while_head_lives("127.0.0.2:1") as gone:
        pass
    assert not gone.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "ray-head"]
