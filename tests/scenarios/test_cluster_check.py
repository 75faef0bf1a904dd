"""What is asked of the hosts of a cluster before a run, with hosts that only answer as the test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hw.networks.network_files import ModelFile
from hw.router.ray_cluster import HostFacts, RayCluster, require_same_code
from kit.errors import InputError, WorkError
from kit.plugins import code_here, own_version
from scenarios.executors import device_choice, preflight
from scenarios.executors.device_choice import Hosts
from scenarios.executors.preflight import check_cluster
from scenarios.files.scenario_keys import Scenario
from scenarios.files.scenario_reading import load_scenario
from scenarios.metrics.result_documents import CheckedCluster, ClusterMeasurements, HostClock, HostLink
from scenarios.show.command_tables import format_cluster
from sim.device_profile import Link

SCENARIO = """
schema: slimsched.scenario/1
name: two
model: {accuracy: ACCURACY}
cluster:
  backend: ray
  address: 127.0.0.2:6379
  servers:
    - {name: a, host: alpha, device: {emulated: t4}}
    - {name: b, host: beta, device: {emulated: t4}}
    - {name: c, device: {emulated: t4}}
workload: {kind: poisson, rate_img_s: 10}
"""
GOOD = HostFacts("", "m", "3.11", own_version(), code_here(), "2", 4, 10**10, 8 * 10**9, 10**10, ("cpu (x, 10 GB)",))
ACCURACY = Path("scenarios/data/models/slimresnet18-paper.accuracy.json").resolve()


def scenario(tmp_path: Path, text: str = SCENARIO) -> Scenario:
    path = tmp_path / "two.yaml"
    path.write_text(text.replace("ACCURACY", str(ACCURACY)))
    return load_scenario(path)


class Answers:
    """Hosts as `scenarios.executors.device_choice.Hosts` has them; each answers with facts, or with an error."""

    here = "alpha"

    def __init__(self, **of_host: HostFacts | Exception) -> None:
        self._of_host = of_host
        self.asked: list[str] = []

    def names(self) -> list[str]:
        return sorted(self._of_host)

    def facts_of(self, host: str, key: str = "") -> HostFacts:
        answer = self._of_host.get(host, InputError("two", key, f"no host {host!r}"))
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, host=host)

    def ask(self, host: str, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self.asked.append(host)
        return function(*arguments)


@pytest.fixture(autouse=True)
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ClusterMeasurements((HostClock("beta", 0.5, 1e-4),), (HostLink("alpha", "beta", 1e-3, 1e8),))
    monkeypatch.setattr(preflight, "measure_links", lambda *_: found)


def check(tmp_path: Path, hosts: Answers, model: ModelFile | None = None) -> CheckedCluster:
    return check_cluster(scenario(tmp_path), model, cast(Hosts, hosts), lambda _: None)


def test_hosts_that_have_what_they_need_fit(tmp_path: Path) -> None:
    """Each is asked for its own servers; who names no host is where the router is; others are told."""
    hosts = Answers(alpha=GOOD, beta=GOOD, gamma=GOOD)
    found = check(tmp_path, hosts)
    assert found.fits
    assert [(host.host, host.servers) for host in found.hosts] == [("alpha", ("a", "c")), ("beta", ("b",))]
    assert found.others == ("gamma",)
    assert hosts.asked == ["alpha", "beta"]
    text = format_cluster(found)
    assert "all fits" in text
    assert "500.000" in text  # the clock, in ms
    assert json.loads(json.dumps(found.document()))["links"]["clocks"][0]["host"] == "beta"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (InputError("two", "cluster.servers.1.host", "no host 'beta' in the cluster"), "no host 'beta'"),
        (WorkError("host beta has slim-scheduler 0.0, this one 0.1; install the same on both"), "install the same"),
        (replace(GOOD, disk_free_bytes=10), "of disk are free"),
        (replace(GOOD, niceness=15), "RAY_worker_niceness=0"),
    ],
)
def test_cluster_check_with_a_failing_host_names_it_and_checks_the_others(
    answer: HostFacts | Exception, words: str, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(bytes(1000))
    hosts = Answers(alpha=GOOD, beta=answer)
    found = check(tmp_path, hosts, ModelFile(model))
    assert not found.fits
    assert [bool(host.problems) for host in found.hosts] == [False, True]
    assert words in format_cluster(found)
    assert "all fits" not in format_cluster(found)
    assert "alpha" in hosts.asked


def test_workers_of_real_devices_need_memory(tmp_path: Path) -> None:
    text = SCENARIO.replace("model: {accuracy: ACCURACY}", "model: {network: slimresnet-tiny}")
    text = text.replace("device: {emulated: t4}", "device: {kind: cpu}")
    hosts = Answers(alpha=replace(GOOD, free_bytes=10**9 // 2), beta=replace(GOOD, free_bytes=10**9 // 2))
    found = check_cluster(scenario(tmp_path, text), None, cast(Hosts, hosts), lambda _: None)
    assert [bool(host.problems) for host in found.hosts] == [True, False]  # two workers there, one here
    assert "its 2 workers need 0.80" in found.hosts[0].problems[0]


def test_other_code_of_one_version_is_told() -> None:
    require_same_code("beta", own_version(), code_here())
    with pytest.raises(WorkError, match="host beta has other code of slim-scheduler"):
        require_same_code("beta", own_version(), "0123456789abcdef")
    with pytest.raises(WorkError, match=r"host beta has slim-scheduler 0\.0\.0"):
        require_same_code("beta", "0.0.0", code_here())


def test_function_runs_on_a_host_only_with_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(function: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=function))

    ray = SimpleNamespace(remote=lambda **_: task, get=lambda answer: answer)
    cluster = cast(RayCluster, SimpleNamespace(ray=ray, node_of=lambda host: host, on=lambda node: None))
    ran: list[str] = []
    monkeypatch.setattr(device_choice, "facts", lambda host: GOOD)
    Hosts(cluster, "two").ask("alpha", "", ran.append, "alpha")
    monkeypatch.setattr(device_choice, "facts", lambda host: replace(GOOD, code="other"))
    with pytest.raises(WorkError, match="host beta has other code"):
        Hosts(cluster, "two").ask("beta", "", ran.append, "beta")
    assert ran == ["alpha"]


def test_link_into_a_host_is_the_slowest_of_its_measured_links() -> None:
    slow, fast = (1e-3, 1e8), (2e-3, 1e10)
    found = ClusterMeasurements((), (HostLink("a", "b", *slow), HostLink("c", "b", *fast), HostLink("b", "a", *fast)))
    assert found.into("b") == Link(latency_s=1e-3, bandwidth_bytes_s=1e8)  # a mebibyte takes 11.5 ms, and 2.1
    assert found.into("a") == Link(latency_s=2e-3, bandwidth_bytes_s=1e10)
    assert ClusterMeasurements((), (HostLink("a", "a", *slow),)).into("a") == found.into("b")


def test_links_are_the_same_out_of_their_file() -> None:
    found = ClusterMeasurements((HostClock("b", 1.5, 1e-5),), (HostLink("a", "b", 1e-3, 1e8),))
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), ClusterMeasurements) == found
