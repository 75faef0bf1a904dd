"""Who is told of a server's state: people, programs and systemd."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hw.door.journal import Journal, Sparing, notify


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
    """The next second's first line says how many were left out; then all is told again."""
    now_s, lines = [5.0], list[str]()
    monkeypatch.setattr("hw.door.journal.time.monotonic", lambda: now_s[0])
    sparing = Sparing(Journal(lines.append, as_json=True))
    for _ in range(1000):
        sparing.note("request_failed")
    assert len(lines) == 10
    now_s[0] = 6.0
    sparing.note("request_failed", reason="deadline")
    sparing.note("request_failed")
    assert [json.loads(line).get("left_out") for line in lines[10:]] == [990, None]
