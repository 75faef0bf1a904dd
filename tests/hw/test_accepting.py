"""Who may come in: strangers that say nothing keep nobody out, and requests that are slow give way."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest

from hw.frontend import admission
from hw.frontend.admission import SHARE, ReadingRoom
from hw.frontend.connections import SILENT_S, Crowd, address_of
from hw.frontend.http_app import is_of_this_host
from hw.frontend.inference_protocol import RequestError

HERE = address_of("127.0.0.1")


class Strangers:
    """Connections to a crowd, by name, each of an address."""

    def __init__(self, most: int, most_each: int = 100, reserve: int = 0) -> None:
        self.crowd = Crowd(most, most_each, reserve)
        self.ended: list[str] = []

    def come(self, name: str, now_s: float, address: bytes = HERE) -> bool:
        if not self.crowd.enter(address, now_s):
            return False

        def end() -> None:
            self.ended.append(name)
            self.crowd.leave(address)

        self.crowd.falls_silent(name, now_s, end)
        return True


def test_the_one_that_was_silent_for_longest_gives_way() -> None:
    found = Strangers(most=3)
    assert [found.come(name, at_s) for name, at_s in (("a", 0.0), ("b", 0.1), ("c", 0.2))] == [True] * 3
    assert not found.come("d", SILENT_S - 0.01)
    found.crowd.speaks("a")
    assert found.come("d", 0.2 + SILENT_S)
    assert found.come("e", 0.2 + SILENT_S)
    assert (found.ended, found.crowd.count) == (["b", "c"], 3)
    assert not found.come("f", 0.3 + SILENT_S), "one is served, two have just come"
    found.crowd.falls_silent("a", 9.0, lambda: found.ended.append("a"))
    assert found.come("f", 9.0)
    assert found.ended == ["b", "c", "d"]


def test_stranger_arriving_after_a_burst_is_within_the_limit_again() -> None:
    """Strangers that came all at once fill the reserve, too; from a second later on none of it is theirs."""
    found = Strangers(most=3, reserve=2)
    assert [found.come(name, 0.0) for name in "abcdef"] == [True] * 5 + [False]
    assert found.crowd.count == 5
    assert found.come("honest", SILENT_S)
    assert (found.ended, found.crowd.count) == (["a", "b", "c"], 3)


def test_an_address_has_no_more_than_its_part() -> None:
    found = Strangers(most=10, most_each=2)
    assert [found.come(name, 0.0) for name in "abc"] == [True, True, False]
    assert found.come("d", 0.0, address_of("10.0.0.1"))
    found.crowd.leave(HERE)
    assert found.come("e", 0.0)


def test_an_address_is_a_site() -> None:
    """Who has IPv6 has as many addresses as it likes."""
    assert address_of("2001:db8::1") == address_of("2001:db8::2:3%eth0")
    assert address_of("2001:db8::1") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:10.0.0.1") == address_of("10.0.0.1") != address_of("::ffff:10.0.0.2")


@pytest.mark.parametrize(
    ("host", "origin", "is_so"),
    [
        ("127.0.0.1:8000", "", True), ("localhost", "", True), ("[::1]:80", "", True), ("", "", True),
        ("127.0.0.1:8000", "http://localhost:3000", True), ("evil.example:8000", "", False),
        ("127.0.0.1.evil.example", "", False), ("127.0.0.1:8000", "https://evil.example", False),
        ("localhost", "null", False),
    ],
)  # fmt: skip
def test_without_tokens_only_this_host_is_meant(host: str, origin: str, is_so: bool) -> None:
    headers = {"host": host, "origin": origin}
    assert is_of_this_host({name: value for name, value in headers.items() if value}) is is_so


# -------------------------------------------------------------------------------------------------------------- reading


class Readers:
    def __init__(self, most_bytes: int) -> None:
        self.room, self.most_bytes, self.held_bytes, self.largest_bytes = ReadingRoom(most_bytes), most_bytes, 0, 0
        self.read: list[Hashable] = []

    async def one(self, client: Hashable, size_bytes: int, took_s: float, patience_s: float = 5.0) -> str:
        try:
            async with self.room.place(client, size_bytes, patience_s):
                self.held_bytes += size_bytes
                self.largest_bytes = max(self.largest_bytes, self.held_bytes)
                try:
                    await asyncio.sleep(took_s)
                finally:
                    self.held_bytes -= size_bytes
        except RequestError as error:
            return f"{error.status}: {error}"
        self.read.append(client)
        return ""


def test_no_more_is_held_than_there_is_room_for_and_all_are_read() -> None:
    async def run() -> Readers:
        readers = Readers(100)
        told = await asyncio.gather(*[readers.one(number % 7, 10 + number % 16, 0.001) for number in range(200)])
        assert set(told) == {""}
        return readers

    readers = asyncio.run(run())
    assert 75 < readers.largest_bytes <= 100
    assert (readers.held_bytes, readers.room._held_bytes.total(), len(readers.read)) == (0, 0, 200)


def test_a_client_holds_no_more_than_its_share() -> None:
    """However many of its requests wait, another one's comes in at once."""

    async def run() -> tuple[list[Hashable], int]:
        readers = Readers(100)
        hogs = [asyncio.ensure_future(readers.one("hog", 20, 0.05)) for _ in range(10)]
        await asyncio.sleep(0)
        assert readers.held_bytes <= 100 // SHARE
        await readers.one("other", 80, 0.0)
        first = list(readers.read)
        await asyncio.gather(*hogs)
        return first, readers.largest_bytes

    assert asyncio.run(run()) == (["other"], 100)


def test_slow_request_of_the_largest_client_gives_way_first_to_a_waiting_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "SLOW_S", 0.05)

    async def run() -> list[str]:
        readers = Readers(100)
        silent = [("a", 25), ("b", 20), ("b", 5), ("c", 25), ("d", 24)]
        slow = [asyncio.ensure_future(readers.one(client, size, 60.0, 0.6)) for client, size in silent]
        await asyncio.sleep(0)
        assert await readers.one("honest", 20, 0.0) == ""
        assert slow[0].done(), "the oldest of those who hold most"
        assert await readers.one("honest", 25, 0.0) == ""
        return list(await asyncio.gather(*slow))

    gone, kept = "408: the request took more than 0.05 s, and others wait", "408: the request took more than 0.6 s"
    assert asyncio.run(run()) == [gone, kept, kept, kept, kept]


def test_a_hog_makes_room_for_itself_and_who_waits_in_vain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SLOW_S", 0.05)

    async def run() -> list[str]:
        readers = Readers(100)
        other = asyncio.ensure_future(readers.one("other", 25, 0.5))
        slow = asyncio.ensure_future(readers.one("hog", 25, 60.0))
        await asyncio.sleep(0)
        told = [await readers.one("hog", 25, 0.0, 0.02), await readers.one("hog", 25, 0.0)]
        return [*told, await slow, await other]

    in_vain, late = "429: full: others send at this moment", "408: the request took more than 0.05 s, and others wait"
    assert asyncio.run(run()) == [in_vain, "", late, ""]
