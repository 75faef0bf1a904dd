"""The operator's requests: operator requests beside a command that holds the folder, one line where there is nothing to
be drained."""

from __future__ import annotations

import contextlib
import json
import threading
import time  # noqa: TID251 - it waits for a command that runs
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from hw.frontend.router_link import VersionState
from kit.errors import InputError
from policies.rules.rule_params import LadderRule
from scenarios.files.router_files import write_rule
from scenarios.runs.folder import CONTROL, RunFolder
from scenarios.runs.operator_control import Steering, accept_operator_requests, drain
from slimsched.cli import main
from tests.scenarios.test_emulated import scenario

pytestmark = pytest.mark.workers
SERVERS = (("gpu0", "alpha"), ("gpu1", "beta"), ("gpu2", "beta"), ("beta", "gamma"))


def _asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cluster", *words])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_servers_and_hosts_are_drained_and_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host stands for its servers; where a server has the name of a host, the server is meant."""
    with accept_operator_requests(RunFolder(tmp_path), SERVERS[:3]) as steering:
        assert steering() == frozenset()
        assert _asked(capsys, "steer", str(tmp_path), "--drain", "beta")[0] == 0
        assert steering() == {1, 2}
        for _ in range(2):  # twice is once
            code, out, _ = _asked(capsys, "steer", str(tmp_path), "--drain", "gpu1", "--drain", "gpu0", "--json", "-")
            assert (code, json.loads(out)) == (0, {"drain": ["gpu0", "gpu1"]})
            assert steering() == {0, 1}
        assert _asked(capsys, "steer", str(tmp_path), "--drain", "none")[1].startswith("asked for drain none;")
        assert steering() == frozenset()
        assert _asked(capsys, "steer", str(tmp_path), "--drain", "gpu1")[0] == 0
        assert steering() == {1}
    with accept_operator_requests(RunFolder(tmp_path), SERVERS) as steering:
        assert steering() == frozenset()  # an operator request is of one command
        assert drain(tmp_path, ["beta"]) == ["beta"]


def test_steer_that_drains_an_unavailable_server_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and the folder stays empty."""

    def require(said: str, name: str = "gpu0") -> None:
        code, out, err = _asked(capsys, "steer", str(tmp_path), "--drain", name)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert said in err

    require("no command runs in this folder")
    folder = RunFolder(tmp_path)
    with folder.opened():
        require("has no servers up now")
        with accept_operator_requests(folder, SERVERS):
            require("no server or host 'gpu9' serves here; did you mean 'gpu", name="gpu9")
            require("no server or host ''", name="")
        require("has no servers up now")
    require("no command runs in this folder")
    assert list(tmp_path.iterdir()) == []


def test_goals_and_routers_are_asked_for_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = RunFolder(tmp_path), str(tmp_path)
    with accept_operator_requests(folder, SERVERS, may_be_steered=True) as operator_requests:
        assert list(operator_requests.steering()) == []
        assert _asked(capsys, "steer", name, "--floor", "0.76", "--p99", "30ms")[0] == 0
        code, out, _ = _asked(capsys, "steer", name, "--router", "jsq", "--json", "-")
        assert (code, json.loads(out)) == (0, {"router": "jsq"})
        assert list(operator_requests.steering()) == [Steering(floor=0.76, p99_limit_s=0.03), Steering(router="jsq")]
        for path in (folder / CONTROL).glob("steer-*"):
            assert path.name.startswith(("steer-000001-", "steer-000002-")), "no clock is asked, which may step back"
        assert (folder / CONTROL).stat().st_mode & 0o077 == 0, "who writes here names code to run"
        write_rule(tmp_path / "mine.rule.yaml", LadderRule())
        monkeypatch.chdir(tmp_path)  # the run is elsewhere
        assert _asked(capsys, "steer", name, "--router", "a=mine.rule.yaml")[0] == 0
        assert list(operator_requests.steering()) == [Steering(router=f"a={tmp_path / 'mine.rule.yaml'}")]
        assert _asked(capsys, "steer", name, "--energy-weight", "0")[0] == 0
        assert list(operator_requests.steering()) == [Steering(energy_weight=0.0)]
    with accept_operator_requests(folder, SERVERS, may_be_steered=True) as operator_requests:
        assert list(operator_requests.steering()) == [], "an operator request is of one command"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing is asked for: give --drain, --floor, --p99, --energy-weight, --router, --model, --canary"),
        (("--floor", "75"), "75: must be a number from 0 to 1; 75 % is 0.75"),
        (("--energy-weight", "-1"), "--energy-weight: -1: must be"),
        (("--p99", "fast"), "fast"),
        (("--router", "jsk"), "did you mean 'jsq'"),
        (("--floor", "0.7"), "this is another command"),
    ],
)
def test_steer_with_invalid_flags_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with accept_operator_requests(RunFolder(tmp_path), SERVERS):
        code, out, err = _asked(capsys, "steer", str(tmp_path), *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_validation_is_drained_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the operator's words to the result: its cause, its times, and nothing lost."""
    path = scenario(tmp_path, 1, 1)
    given = "{routers: [random], seeds: [0], duration_s: 4s, warmup_s: 0.2s, saturate: false, go_on: true}"
    path.write_text(f"{path.read_text()}validate: {given}\n")
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []

    def operate() -> None:
        while not asked:
            time.sleep(0.05)
            with contextlib.suppress(InputError):
                asked.append(drain(tmp_path / "run", ["slow"]))

    operator = threading.Thread(target=operate, daemon=True)
    operator.start()
    assert main(["validate", "tiny.yaml", "--out", "run"]) == 0
    operator.join(1.0)
    said = capsys.readouterr().err
    assert "validate: random, seed 0: slow: is drained since" in said
    assert "slow: is empty at" in said
    result = json.loads((tmp_path / "run" / "executors" / "random-seed0" / "result.json").read_text())
    assert [(down["server"], down["cause"], down["up_s"]) for down in result["restarts"]] == [("slow", "drained", None)]
    assert result["images"]["completed"] == result["images"]["arrived"]
    assert not (tmp_path / "run" / CONTROL).exists()


def test_a_canary_is_asked_for_and_both_versions_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a canary nothing is asked for; with one, the same command compares."""
    name = str(tmp_path)
    with accept_operator_requests(RunFolder(tmp_path), SERVERS, may_be_steered=True) as operator_requests:
        assert _asked(capsys, "steer", name)[0] == 2
        for words in (["--share", "0.1"], ["--class", "gold"], ["--promote", "--take-back"], ["--share", "2"]):
            code, _, err = _asked(capsys, "steer", name, *words)
            assert (code, len(err.splitlines())) == (2, 1), words
        assert _asked(capsys, "steer", name, "--canary", "b.safetensors", "--class", "gold")[0] == 0
        assert _asked(capsys, "steer", name, "--promote")[0] == 0
        begun, ended = operator_requests.steering()
        assert (begun.canary, begun.service_class, begun.promote) == (
            str(Path("b.safetensors").resolve()),
            "gold",
            None,
        )
        assert (ended.canary, ended.promote, ended.take_back) == (None, True, None)
        state = VersionState("12ab", "canary", 0.25, 1.5, None, 0.75, 8, 0, 4, 3)
        operator_requests.show([to_builtins(state)])
        code, out, _ = _asked(capsys, "steer", name)
        assert (code, out.splitlines()[-1].split()[:4] == ["12ab", "canary", "25.0", "1.5"]) == (0, True), out
        assert "75.0" in out.splitlines()[-1]
        operator_requests.show([])
        assert _asked(capsys, "steer", name)[0] == 2
