"""What `slurm.conf` says, and what backfilling now and then, and a delay at each start, do; by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.job_records import by_job
from jobs.policies.job_cluster import NodeGroup
from jobs.policy_comparison import run_policy
from jobs.slurm_conf import SlurmConf, hosts, read_slurm_conf
from tests.jobs.experiments import case_of, trace_of


def read(folder: Path, text: str) -> SlurmConf:
    path = folder / "slurm.conf"
    path.write_text(text)
    return read_slurm_conf(path)


@pytest.mark.parametrize(
    "text, names",
    [
        ("n1", ["n1"]),
        ("n[1-3],login", ["n1", "n2", "n3", "login"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert hosts(text, "x") == names


def test_nodes_by_gpus_type_and_partition(tmp_path: Path) -> None:
    conf = read(
        tmp_path,
        "NodeName=n[1-8] Gres=gpu:a100:4(S:0-1),nvme\nNodeName=m[1-2] gres=gpu:v100:no_consume:2\n"
        "NodeName=cpu[1-99] CPUs=64\nPartitionName=DEFAULT State=UP\nPartitionName=a Nodes=n[1-8],cpu1\n"
        "PartitionName=b Nodes=m[1-2]\nPartitionName=c Nodes=cpu[1-99]\n",
    )
    assert conf.nodes == (NodeGroup(8, 4, "a100", "a"), NodeGroup(2, 2, "v100", "b"))
    assert conf.notes == ()


def test_partitions_by_node_sets(tmp_path: Path) -> None:
    """By their nodes, by a feature, several, and beside names of nodes: as if all were written out."""
    nodes = "NodeName=n[1-4] Gres=gpu:a100:8 Feature=big,ib\nNodeName=m[1-6] Gres=gpu:t4:1 Features=small\n"
    flat = read(tmp_path, f"{nodes}PartitionName=train Nodes=n[1-4]\nPartitionName=infer Nodes=m[1-6]\n")
    assert flat.nodes == (NodeGroup(4, 8, "a100", "train"), NodeGroup(6, 1, "t4", "infer"))
    for sets in (
        "NodeSet=T Nodes=n[1-4]\nNodeSet=I Feature=small\nPartitionName=train Nodes=T\nPartitionName=infer Nodes=I\n",
        "NodeSet=T Nodes=n[1-3]\nPartitionName=train Nodes=T,n4\nPartitionName=infer Nodes=m[1-6]\n",
        "nodeset=I nodes=m[1-2]\nNodeSet=I Nodes=m[3-6]\nPartitionName=default Nodes=I\nPartitionName=infer\n"
        "PartitionName=train Nodes=n[1-4]\n",
    ):
        found = read(tmp_path, nodes + sets)
        assert set(found.nodes) == set(flat.nodes), sets
        assert found.notes == ()


def test_defaults_add_up_whatever_their_case(tmp_path: Path) -> None:
    conf = read(
        tmp_path,
        "NodeName=DEFAULT Gres=gpu:a100:4\nnodename=default RealMemory=512000\nNodeName=Default RealMemory=512000\n"
        "NodeName=n[1-2] CPUs=64\nNodeName=old1 Gres=gpu:v100:2\n",
    )
    assert conf.nodes == (NodeGroup(2, 4, "a100", ""), NodeGroup(1, 2, "v100", ""))


def test_nodes_that_are_not_there_are_told(tmp_path: Path) -> None:
    conf = read(
        tmp_path,
        "NodeName=n[1-4] Gres=gpu:4\nNodeName=f[1-8] Gres=gpu:4 State=FUTURE\nNodeName=c1 Gres=gpu:4 State=CLOUD\n"
        "NodeName=sold Gres=gpu:4 State=DOWN\nDownNodes=n4 State=DOWN\nPartitionName=a Nodes=n[1-4],f[1-8],x,y\n",
    )
    assert conf.nodes == (NodeGroup(4, 4, "", ""),)
    assert conf.notes == (
        "State=FUTURE: 8 nodes are left out (f1, ...)",
        "State=DOWN: 2 nodes are left out (n4, ...)",
        "PartitionName: a names x and 1 more, which is not a node",
    )


def test_slurm_conf_notes_list_settings_that_are_not_simulated(tmp_path: Path) -> None:
    conf = read(
        tmp_path,
        "NodeName=n1 Gres=gpu:a100:4,gpu:v100:2\nPartitionName=a Nodes=n1\nPartitionName=b Nodes=ALL\n"
        "PreemptType=preempt/qos\nPriorityWeightQOS=5\nPriorityWeightFairshare=9\n",
    )
    assert conf.nodes == (NodeGroup(1, 4, "a100", ""), NodeGroup(1, 2, "v100", ""))
    told = ("Gres", "PartitionName", "PriorityWeightQOS", "PriorityWeightFairshare", "PreemptType")
    assert [note.partition(":")[0] for note in conf.notes] == list(told)


@pytest.mark.parametrize(
    "text, policy, interval_s",
    [
        ("", "fifo-requested-conservative", 30),
        ("SchedulerParameters=bf_interval=60,bf_job_part_count_reserve=1", "fifo-easy-requested", 60),
        ("SchedulerParameters=bf_job_part_count_reserve=0", "fifo-requested-conservative", 30),
        ("schedulertype=sched/builtin", "fifo", 0),
        ("PriorityWeightAge=10", "multifactor-requested-conservative", 30),
        ("PriorityType=priority/basic\nPriorityWeightAge=10", "fifo-requested-conservative", 30),
    ],
)
def test_the_policy(text: str, policy: str, interval_s: float, tmp_path: Path) -> None:
    conf = read(tmp_path, f"NodeName=n1 Gres=gpu:1\n{text}\n")
    assert (conf.policy, conf.bf_interval_s) == (policy, interval_s)


def test_priorities(tmp_path: Path) -> None:
    conf = read(
        tmp_path,
        "NodeName=n1 Gres=gpu\nPriorityWeightJobSize=1000\nPriorityFavorSmall=YES\nPriorityMaxAge=1-12\n"
        "PriorityCalcPeriod=2:30\nPriorityDecayHalfLife=14-00:00:10\n",
    )
    assert conf.nodes == (NodeGroup(1, 1, "", ""),)
    assert conf.multifactor == {
        "weight_age": 0,
        "weight_size": 1000,
        "weight_fairshare": 0,
        "max_age_s": 129_600,
        "period_s": 150,
        "half_life_s": 1_209_610,
        "fair_tree": True,
        "favors_small": True,
        "damping": 1,
    }


@pytest.mark.parametrize("interval_s, waits_s", [(0, [0, 9, 0, 0]), (4, [0, 9, 2, 1]), (1000, [0, 9, 20, 19])])
def test_backfilling_plans_now_and_then(interval_s: float, waits_s: list[float], tmp_path: Path) -> None:
    """Four GPUs: two are busy until 10, who asks for four waits from 1 on; the others fit beside, and end in time.

    They come at 2 and 3: with an interval of 4 s they begin at 4; where none comes, after the second has ended.
    """
    rows = [(0.0, 10.0, 2), (1.0, 12.0, 4), (2.0, 5.0, 1), (3.0, 5.0, 1)]
    trace = trace_of(rows, requested_s=[10.0, 12.0, 5.0, 5.0])
    slurm = {"bf_interval_s": interval_s}
    case = case_of(tmp_path, trace, policies=["fifo-easy-requested", "fifo-requested-conservative"], slurm=slurm)
    for policy in case.policies:
        assert by_job(run_policy(case, policy), 4)["wait_s"].tolist() == waits_s


def test_a_job_holds_its_gpus_before_it_works(tmp_path: Path) -> None:
    """Two of four GPUs, one after another: each start takes 1.5 s, which is not a run time."""
    trace = trace_of([(0.0, 10.0, 4), (0.0, 10.0, 4)])
    case = case_of(tmp_path, trace, policies=["fifo"], slurm={"start_delay_s": 1.5})
    record = run_policy(case, case.policies[0])
    assert (by_job(record, 4)["wait_s"].tolist(), (record.held_ns / 1e9).tolist()) == ([1.5, 13.0], [11.5, 11.5])
