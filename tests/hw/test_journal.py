"""Who is told of a server's state: people, programs and systemd."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hw.frontend.client_requests import ServingStats
from hw.frontend.connections import Journal, Sparing, notify
from hw.host_resources import CollectionMeter
from hw.router.router_loop import RunProgress
from policies.vocabulary import (
    GoalSet,
    ModelChanged,
    RequestCompleted,
    RouterTimer,
    ServerDown,
    ServerDraining,
    ServerUp,
)
from tests.hw.tiny import router


@pytest.mark.parametrize("name", ["{folder}/notify", "@slimsched-{folder}"])
def test_systemd_hears_of_ready_and_of_the_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a path, or a name that no file has; without it, or where it does not listen, nobody minds."""
    address = name.format(folder=tmp_path)
    journal = Journal(lambda _: None, as_json=False)
    journal.note("ready")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    journal.note("ready")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0"))
        systemd.setblocking(False)
        for event in ("starting", "ready", "not_ready", "ready", "stopping"):
            journal.note(event, "in words")
        notify("WATCHDOG=1")
        heard = [systemd.recv(100) for _ in range(4)]
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
    assert heard == [b"READY=1\n", b"READY=1\n", b"STOPPING=1\n", b"WATCHDOG=1"]


def test_people_read_words_and_programs_all_of_it() -> None:
    lines = list[str]()
    for as_json in (False, True):
        journal = Journal(lines.append, as_json=as_json)
        journal.note("server_up", server="a")
        journal.note("ready", "serve: ready")
        journal.say("by the way")
    said, told = lines[:2], [json.loads(line) for line in lines[2:]]
    assert said == ["serve: ready", "by the way"]
    assert [{name: value for name, value in each.items() if name != "time"} for each in told] == [
        {"event": "server_up", "server": "a"},
        {"event": "ready", "text": "serve: ready"},
        {"event": "remark", "text": "by the way"},
    ]


def test_thousands_of_failures_are_ten_lines_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next second's first line shows how many were left out; then all is told again."""
    now_s, lines = [5.0], list[str]()
    monkeypatch.setattr("hw.frontend.connections.time.monotonic", lambda: now_s[0])
    sparing = Sparing(Journal(lines.append, as_json=True))
    for _ in range(1000):
        sparing.note("request_failed")
    assert len(lines) == 10
    now_s[0] = 6.0
    sparing.note("request_failed", reason="deadline")
    sparing.note("request_failed")
    assert [json.loads(line).get("left_out") for line in lines[10:]] == [990, None]


def test_goals_of_classes_are_nobodys_but_their_own() -> None:
    """What all images reach is not held against the first class's floor."""
    config = replace(router(2), classes=("gold", "bronze"))
    stats = ServingStats(["a", "b"], config, Journal(lambda _: None, as_json=True), CollectionMeter())
    stats.observe_router(GoalSet(0.76, 50, 0.0, 0), (), 0)
    status = stats.status(RunProgress(0, 0, 0, 0, 0))
    assert (status.floor, status.limit_ns) == (0.0, 0)


def test_servers_that_come_and_go_are_told_and_what_is_served_is_counted() -> None:
    lines = list[str]()
    config = router(2)
    config = replace(config, accuracies=tuple(0.5 + 0.01 * place for place, _ in enumerate(config.width_tuples())))
    stats = ServingStats(["a", "b"], config, Journal(lines.append, as_json=True), CollectionMeter())
    assert not stats.is_ready
    widths = list(config.width_tuples())[3]
    events = (
        ServerUp(0, 1),
        ServerUp(1, 1),
        ServerDraining(1, True),
        ServerDraining(1, False),
        ServerDown(0, 1, "died"),
    )
    for event in events:
        stats.observe_router(event, (), 0)
    stats.observe_router(GoalSet(0.6, 7), (), 0)
    stats.observe_router(RouterTimer(), [RequestCompleted(request, widths, False, 0) for request in range(3)], 0)
    stats.observe_router(ModelChanged((0.25,) * len(config.accuracies)), (), 0)
    stats.observe_router(RouterTimer(), [RequestCompleted(3, widths, False, 0)], 0)
    told = [json.loads(line) for line in lines]
    names = ["server_up", "server_up", "server_drained", "server_returned", "server_down"]
    assert [(each["event"], each["server"]) for each in told] == list(zip(names, "abbba", strict=True))
    assert told[-1]["reason"] == "died"
    status = stats.status(RunProgress(0, 0, 9, 3, 6, 8, 4))
    assert (status.is_ready, status.queued, status.busy_ns) == (True, 4, 8)
    assert (status.completed, status.floor, status.limit_ns) == (4, 0.6, 7)
    assert status.accuracy_sum == pytest.approx(3 * 0.53 + 0.25)
    assert [server.is_up for server in status.servers] == [False, True]
