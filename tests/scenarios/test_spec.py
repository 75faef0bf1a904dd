"""The scenario file: what is wrong is refused at once, in one message that names the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.keys_page import pages
from kit import strict
from kit.errors import InputError
from kit.units import parse_duration
from scenarios.files.reading import load_scenario
from scenarios.files.series import read_trace
from scenarios.files.spec import Scenario
from slimsched.cli import main
from tests.scenarios.files import SCENARIO, profile_text, write_scenario

MISTAKES = {
    "unknown key": ("duration_s: 1", "duratio_s: 1", ["duratio_s", "did you mean 'duration_s'"]),
    "unknown key below": ("{kind: poisson, rate", "{kind: poisson, cv: 1, rate", ["workload.cv", "rate_img_s"]),
    "unknown kind": ("kind: poisson", "kind: poison", ["workload.kind", "'poison'", "did you mean 'poisson'"]),
    "no kind": ("kind: poisson, ", "", ["workload.kind", "missing"]),
    "unknown router": ("[random, jsq]", "[random, jqs]", ["compare.routers.1", "'jqs'", "did you mean 'jsq'"]),
    "no router file": ("[random, jsq]", "[a.safetensors]", ["compare.routers.0", "a.safetensors", "slimsched train"]),
    "negative rate": ("rate_img_s: 200", "rate_img_s: -5", ["workload.rate_img_s", "-5", "greater than 0"]),
    "two rates": ("rate_img_s: 200", "rate_img_s: 200, load: 0.5", ["workload", "one of rate_img_s"]),
    "duplicate key": ("duration_s: 1", "duration_s: 1\nduration_s: 2", ["line", "'duration_s' is given twice"]),
    "wrong type": ("rate_img_s: 200", "rate_img_s: many", ["workload.rate_img_s", "'many'", "number"]),
    "bad duration": ("100ms", "100 parsecs", ["warmup_s", "'100 parsecs'", "45s"]),
    "no YAML": ("compare: {", "compare: {{", ["line", "not valid YAML"]),
    "another version": ("scenario/1", "scenario/9", ["schema", "slimsched.scenario/9", "slimsched.scenario/1"]),
    "unknown link": ("10gbe", "10gb", ["cluster.servers.0.link", "'10gb'", "'10gbe'"]),
    "no measured link": ("10gbe", "measured", ["cluster.servers.0.link", "measured", "wifi5"]),
    "two of a name": ("name: slow", "name: fast", ["cluster.servers.1.name", "'fast'", "twice"]),
    "no such profile": ("fast.yaml", "fats.yaml", ["cluster.servers.0.profile", "fats.yaml", "'fast.yaml'"]),
    "batch beyond profile": ("batch_limit: 16", "batch_limit: 17", ["batch_limit", "17", "1 to 16"]),
    "preload of nothing": ("preload: all", "preload: [[3, 0.5]]", ["preload", "[3, 0.5]", "segments 1 to 2"]),
    "negative decision time": (
        "duration_s: 1",
        "duration_s: 1\nrouter: {decision_s: -1}",
        ["router.decision_s: ", "-1", "greater than or equal to 0"],
    ),
    "long warm-up": ("warmup_s: 100ms", "warmup_s: 2s", ["warmup_s (2)", "duration_s (1)"]),
    "waits without a limit": (
        "duration_s: 1",
        "duration_s: 1\ntraining: {holds_s: [0.01]}",
        ["training.holds_s", "nobody may be held", "set router.hold_limit_s above 0"],
    ),
    "waits beyond the limit": (
        "duration_s: 1",
        "duration_s: 1\nrouter: {hold_limit_s: 0.01}\ntraining: {holds_s: [0.01, 0.02]}",
        ["training.holds_s", "0.02 is longer", "at most router.hold_limit_s (0.01)"],
    ),
    "waits that don't ascend": (
        "duration_s: 1",
        "duration_s: 1\nrouter: {hold_limit_s: 0.1}\ntraining: {holds_s: [0.02, 0.01]}",
        ["training.holds_s", "must ascend"],
    ),
    "shed without deadline": ("duration_s: 1", "duration_s: 1\nshed: true", ["shed needs a deadline_s"]),
    "no server of the fault": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: server_down, server: fst, start_s: 0.5}]",
        ["faults.0.server", "'fst'", "did you mean 'fast'"],
    ),
    "no server of the kill": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: worker_killed, server: slwo, at_s: 0.5}]",
        ["faults.0.server", "'slwo'", "did you mean 'slow'"],
    ),
    "span in another": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: out_of_memory, server: fast, start_s: 0.2, end_s: 0.5, batch: 0}, "
        "{kind: out_of_memory, server: fast, start_s: 0.4, end_s: 0.6, batch: 2}]",
        ["faults.1.start_s", "0.4", "previous out_of_memory of 'fast'"],
    ),
    "backwards": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: out_of_memory, server: fast, start_s: 2, end_s: 1, batch: 0}]",
        ["faults.0", "end_s (1)", "start_s (2)"],
    ),
    "too much poison": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: poisoned, share: 1.5}]",
        ["faults.0.share", "1.5", "less than or equal to 1"],
    ),
    "unknown chaos": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: chaos, mean_gap_s: 1, kinds: [server_down]}]",
        ["faults.0.kinds.0", "server_down", "worker_killed"],
    ),
    "chaos of one kind twice": (
        "duration_s: 1",
        "duration_s: 1\nfaults: [{kind: chaos, mean_gap_s: 1, kinds: [worker_hung, worker_hung]}]",
        ["faults.0.kinds", "'worker_hung' is given twice"],
    ),
    "back-off beyond its limit": (
        "duration_s: 1",
        "duration_s: 1\nsupervision: {backoff_s: 9}",
        ["supervision", "backoff_limit_s (5)", "backoff_s (9)"],
    ),
    "a hang sooner than a worker can answer": (
        "duration_s: 1",
        "duration_s: 1\nsupervision: {hang_s: 50ms}",
        ["supervision.hang_s", "50ms", "greater than or equal to 0.1"],
    ),
    "stuck at once": (
        "duration_s: 1",
        "duration_s: 1\nsupervision: {stuck_s: 0.5}",
        ["supervision.stuck_s", "0.5", "greater than or equal to 1"],
    ),
    "everything lost": (
        "bandwidth_bytes_s: 1e9",
        "bandwidth_bytes_s: 1e9, loss: 1",
        ["cluster.servers.1.link.loss", "less than 1"],
    ),
    "a NUL in a path": (
        "fast.yaml",
        '"fa\\0st.yaml"',
        ["cluster.servers.0.profile", "'fa\\x00st.yaml'", "printable"],
    ),
    "a name too long for a file": (
        "name: fast,",
        f"name: {'f' * 101},",
        ["cluster.servers.0.name", "up to 100 letters"],
    ),
    "a path too long": ("fast.yaml", "f" * 300, ["cluster.servers.0.profile", "can't be a path", "255 bytes"]),
    "no such profile to emulate": (
        "profile: fast.yaml",
        "device: {emulated: rtx-2080ti}",
        ["cluster.servers.0.device.emulated", "rtx-2080ti", "did you mean 'rtx-2080-ti'"],
    ),
    "nothing to emulate": (
        "profile: fast.yaml",
        'device: {emulated: ""}',
        ["cluster.servers.0.device.emulated", "is empty; name a file"],
    ),
    "an emulated device quicker than its profile": (
        "profile: fast.yaml",
        "device: {emulated: fast.yaml, slowdown: 0.5}",
        ["cluster.servers.0.device.slowdown", "0.5", "greater than or equal to 1"],
    ),
    "a slowdown of a real device": (
        "profile: fast.yaml",
        "device: {slowdown: 2}, profile: fast.yaml",
        ["cluster.servers.0.device", "slowdown is of an emulated device"],
    ),
    "a GPU's order of memory on a CPU": (
        "profile: fast.yaml",
        "device: {memory_format: contiguous, graphs: true}, profile: fast.yaml",
        ["cluster.servers.0.device", "memory_format, graphs: of a GPU alone", "kind: cuda"],
    ),
    "threads of an emulated device": (
        "profile: fast.yaml",
        "device: {emulated: fast.yaml, threads: 2}",
        ["cluster.servers.0.device", "leave out threads"],
    ),
    "a profile beside an emulated one": (
        "profile: fast.yaml",
        "profile: fast.yaml, device: {emulated: fast.yaml}",
        ["cluster.servers.0.profile", "beside an emulated device"],
    ),
    "an emulated device beside a real one": (
        "profile: fast.yaml, link: 10gbe}",
        "device: {emulated: fast.yaml}, link: 10gbe}\n  - {name: real, device: {}, profile: fast.yaml, link: 10gbe}",
        ["cluster.servers.0.device.emulated", "'real', whose device is real", "emulate all devices or none"],
    ),
    "an emulated device for two": (
        "profile: fast.yaml, link: 10gbe}",
        "device: {emulated: fast.yaml}, link: 10gbe}\n  - {name: other, shares_device_with: fast, link: 10gbe}",
        ["cluster.servers.1.shares_device_with", "the device of 'fast' is emulated", "a device of its own"],
    ),
    "an emulated device of another network": (
        "profile: fast.yaml",
        "device: {emulated: rtx-2080-ti}",
        ["cluster.servers.1.profile", "'fast' has another network"],
    ),
    "an emulated device that covers too small batches": (
        "profile: fast.yaml, link: 10gbe",
        "device: {emulated: fast.yaml}, link: 10gbe, greedy: {batch_limit: 99}",
        ["cluster.servers.0.greedy.batch_limit", "99", "1 to 16"],
    ),
    "a seed of octal digits": ("[0, 1]", "[010]", ["compare.seeds.0", "'010'", "integer"]),
    "endless": ("duration_s: 1", "duration_s: 1e400", ["duration_s", "finite", "inf"]),
    "a date": ("duration_s: 1", "duration_s: 2024-01-01", ["duration_s", "'2024-01-01'"]),
    "shares with nobody": (
        "{name: fast, ",
        "{name: fast, shares_device_with: fast, ",
        ["cluster.servers.0.shares_device_with", "'fast'", "known: slow"],
    ),
}


@pytest.mark.parametrize("old, new, wanted", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_message(
    old: str, new: str, wanted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake in a scenario is one line that names file, key, value and what is allowed; exit code 2."""
    path = write_scenario(tmp_path, old, new)
    assert main(["simulate", str(path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert len(streams.err.strip().splitlines()) == 1
    assert "tiny.yaml" in streams.err or "fats.yaml" in streams.err
    assert [word for word in wanted if word not in streams.err] == []


@pytest.mark.parametrize(
    "make, wanted",
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "this is a folder"),
        (lambda path: path.write_bytes(b"name: \xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text(""), "expected keys and values"),
        (lambda path: path.write_text("- 1\n"), "expected keys and values"),
    ],
    ids=["missing", "folder", "bytes", "empty", "list"],
)
def test_a_file_that_is_no_scenario(
    make: object, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can't be read as a scenario is said in one line, with exit code 2."""
    path = tmp_path / "x.yaml"
    make(path)  # type: ignore[operator]
    assert main(["compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert "x.yaml" in error
    assert "Traceback" not in error


def test_a_profile_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile of another version is refused by its file, key, value and the version that is allowed."""
    path = write_scenario(tmp_path)
    (tmp_path / "fast.yaml").write_text(profile_text("fast", 1.0).replace("profile/2", "profile/7"))
    assert main(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in ("fast.yaml", "schema", "slimsched.profile/7", "slimsched.profile/2"))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("", "is empty; it needs a header line"),
        ("time_s\n", "no arrival"),
        ("when\n1\n", "no column 'time_s'; known: when"),
        ("time_s\n1\nsoon\n", "line 3: 'soon' is no time"),
        ("time_s\nnan\n", "line 2: 'nan' is no time"),
    ],
)
def test_a_bad_trace(text: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty or broken trace is found when the scenario is read, with its line."""
    path = write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", "{kind: trace, file: trace.csv}")
    (tmp_path / "trace.csv").write_text(text)
    assert main(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert "trace.csv" in error
    assert wanted in error


def test_a_trace_of_dates(tmp_path: Path) -> None:
    """Dates become seconds: only differences count."""
    path = tmp_path / "trace.csv"
    path.write_text("id, at\n1, 2023-11-16 18:17:03.5\n2, 2023-11-16 18:17:05\n")
    times_s = read_trace(path, "at")
    assert times_s[1] - times_s[0] == 1.5


@given(st.floats(0.001, 1e5), st.sampled_from([("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)]))
def test_durations(value: float, unit: tuple[str, float]) -> None:
    """A number with a unit is that many seconds, and a plain number is itself."""
    text = f"{value:.3f}"
    assert parse_duration(text + unit[0]) == float(text) * unit[1]
    assert parse_duration(text) == float(text)


def test_a_scenario_survives_being_written(tmp_path: Path) -> None:
    """What was read, written and read again is the same scenario, from any folder."""
    scenario = load_scenario(write_scenario(tmp_path, "preload: all", "idle_unload_s: null, preload: [[1, 0.5]]"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "again.yaml").write_text(scenario.to_yaml())
    assert load_scenario(other / "again.yaml") == scenario


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user stands does not matter to the paths in a scenario."""
    path = write_scenario(tmp_path)
    monkeypatch.chdir("/")
    assert load_scenario(path).cluster.named_servers[0].profile == str(tmp_path / "fast.yaml")


def test_a_servers_knobs_go_over_the_clusters() -> None:
    """A server has its own knobs where it gives them (null and false among them), else the cluster's."""
    text = SCENARIO.replace("10gbe}", "10gbe, greedy: {idle_unload_s: null, batch_limit: 4}}")
    cluster = strict.parse(Scenario, text, "x").cluster
    fast, slow = (cluster.greedy_of(server) for server in cluster.named_servers)
    assert (fast.batch_limit, fast.idle_unload_s, fast.preload) == (4, None, "all")
    assert (slow.batch_limit, slow.idle_unload_s, slow.preload) == (16, 5.0, "all")


def test_a_cluster_needs_a_server() -> None:
    """An empty list of servers is not `auto`."""
    start, end = SCENARIO.index("  servers:"), SCENARIO.index("workload:")
    with pytest.raises(InputError, match=r"cluster\.servers"):
        strict.parse(Scenario, SCENARIO[:start] + "  servers: []\n" + SCENARIO[end:], "x")


@pytest.mark.parametrize("name", pages())
def test_the_pages_of_keys_are_up_to_date(name: str) -> None:
    """They are what `python -m benchmarks.study.keys_page` writes, and every key has a meaning."""
    assert Path("docs", name).read_text(encoding="utf-8") == pages()[name]
    assert "|  |" not in pages()[name]


def test_the_scenarios_of_the_project_are_valid() -> None:
    """Every scenario file that is shipped can be read."""
    paths = sorted(Path("scenarios").glob("*.yaml"))
    assert [load_scenario(path).name for path in paths] == [path.stem for path in paths]


def test_half_a_character_is_no_yaml() -> None:
    """libyaml complains of it in its own way."""
    with pytest.raises(InputError, match="not valid YAML"):
        strict.mapping("a: \ud800", "x.yaml")
