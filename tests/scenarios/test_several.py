"""Several routers as real processes, with emulated servers: one is killed, and nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from policies.division import Territory
from policies.records import STAGES, RunRecord
from policies.vocabulary import NS_PER_S
from scenarios.executors.run import RealRun, RunObserver, without_faults
from scenarios.executors.several import division_of, router_processes
from scenarios.files.reading import load_scenario
from scenarios.world.materials import make_world
from tests.scenarios.files import write_scenario
from tests.scenarios.test_emulated import SERVERS

pytestmark = pytest.mark.workers

KILLED_S = 1.0
FOUR = "".join(
    f"  - {{name: {name}{number}, device: {{emulated: {name}.yaml, slowdown: 5}}, link: loopback}}\n"
    for name in ("fast", "slow")
    for number in range(2)
)
MORE = f"""\
routers: {{count: 2}}
faults: [{{kind: router_killed, router: 0, at_s: {KILLED_S}}}]
supervision: {{hang_s: 30}}
"""
RUN_S = 12.0  # an agent that is started anew takes some seconds on a busy machine
CALM_S = 3.0


def test_a_killed_router_leaves_all_to_the_other_and_is_there_in_the_next_run(tmp_path: Path) -> None:
    world = make_world(load_scenario(several(tmp_path)), tmp_path / "run")
    owner = Territory(division_of(world), 0).owner
    said: list[str] = []
    wanted = RealRun("jsq", world.router("jsq"), 0, RUN_S, 0.1)
    with router_processes(world, None, None) as processes:
        result, record = processes.run(world, wanted, RunObserver(say=said.append))
        short = replace(wanted, duration_s=CALM_S)
        _, calm = processes.run(without_faults(world), short, RunObserver(say=said.append))
    for found, length_s in ((record, RUN_S), (calm, CALM_S)):
        arrivals_ns = world.run_spec(0, duration_s=length_s).arrivals_ns
        assert sorted(each.request for each in found.requests) == list(range(len(arrivals_ns)))
        assert {each.status for each in found.requests} == {"completed"}
        assert all(each.arrived_ns >= arrivals_ns[each.request] for each in found.requests)
    assert result["images"]["completed"] > 0
    assert [line.partition(" at ")[0] for line in said] == ["router 0: dead"]
    assert served_after(record, KILLED_S) == served_after(calm, KILLED_S) == {0, 1, 2, 3}
    adopted = {server for server in range(4) if owner[server] == 0}
    assert first_batch_s(record, adopted) > KILLED_S  # of what a killed router has seen nothing is kept
    assert first_batch_s(calm, adopted) < KILLED_S
    assert not record.log  # of a part of what happened
    assert not record.agent_logs
    lost = [each.stages_ns[STAGES.index("lost")] for each in record.requests]
    assert any(lost)
    assert not any(each.stages_ns[STAGES.index("lost")] for each in calm.requests)


SCRIPT = """\
import sys
from pathlib import Path
from scenarios.executors.run import RealRun, RunObserver
from scenarios.executors.several import router_processes
from scenarios.files.reading import load_scenario
from scenarios.world.materials import make_world
if __name__ == "__main__":
    world = make_world(load_scenario(Path(sys.argv[1])), Path("run"))
    with router_processes(world, None, None) as processes:
        print("they open", file=sys.stderr, flush=True)
        wanted = RealRun("jsq", world.router("jsq"), 0, 600.0, 0.1)
        processes.run(world, wanted, RunObserver(say=lambda text: print(text, file=sys.stderr, flush=True)))
"""


@pytest.mark.parametrize(
    ("moment", "end"),
    [
        ("they open", signal.SIGINT),
        pytest.param("router 0: dead", signal.SIGINT, marks=pytest.mark.release),
        ("dead", signal.SIGKILL),
    ],
)
@pytest.mark.usefixtures("usual_interrupts")
def test_routers_and_their_agents_end_with_the_command(moment: str, end: signal.Signals, tmp_path: Path) -> None:
    """Soon, however it ends; a killed router's agents end with that. Where the user interrupts, only he is answered."""
    path, told = several(tmp_path), tmp_path / "told"
    (tmp_path / "script.py").write_text(SCRIPT)
    with told.open("w") as stderr:
        command = psutil.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stderr=stderr,
            start_new_session=True,
        )
    family: set[psutil.Process] = set()
    while moment not in told.read_text():
        assert command.poll() is None, told.read_text()
        family.update(command.children(recursive=True))
        threading.Event().wait(0.05)
    os.killpg(command.pid, end) if end == signal.SIGINT else command.kill()
    command.wait(60)  # far less than the run
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert told.read_text().count("Traceback") == (end == signal.SIGINT)  # the script's own


def several(folder: Path) -> Path:
    """A scenario whose first router is killed."""
    path = write_scenario(folder, SERVERS, FOUR)
    path.write_text(path.read_text().replace("rate_img_s: 200", "rate_img_s: 20") + MORE)
    return path


def served_after(record: RunRecord, at_s: float) -> set[int]:
    return {batch.server for batch in record.batches if batch.started_ns > at_s * NS_PER_S}


def first_batch_s(record: RunRecord, servers: set[int]) -> float:
    return min(batch.started_ns for batch in record.batches if batch.server in servers) / NS_PER_S
