"""Links between gateways and servers of calls: lives of servers, and answers while the server's machine lacks a resource."""

from __future__ import annotations

import errno
import math
import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.calls import links as links_module
from rmgr.adapters.calls import serving
from rmgr.adapters.calls.links import VERSION, Links, ServerLink
from rmgr.adapters.calls.serving import CallEnd, GatewayLine, Given
from rmgr.coord.calls.ledger import OVER_US, Life, Standing
from rmgr.errors import UsageError
from rmgr.v1 import calls_pb2 as pb


class Server:
    """A server's end of its stream: it has said hello, and been answered."""

    def __init__(self, links: Links, **crooked: Any) -> None:
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.said.put(pb.FromServer(hello=hello(**crooked)))
        context: Any = SimpleNamespace(add_callback=lambda _: True, cancel=lambda: None)
        self.told = links.served(iter(self.said.get, None), context, "", "g1")
        self.refused = next(self.told).welcome.refused

    def leave(self) -> None:
        self.said.put(None)
        self.told.close()


@pytest.fixture
def links() -> Links:
    return Links(lambda: None)


def test_a_server_that_keeps_its_stream_is_heard_although_nobody_asks_for_a_minute(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    life, server = Life("s1", 7), Server(links)
    assert server.refused == ""
    assert links.standing(life) is Standing.HEARD
    later_ns = time.monotonic_ns() + (OVER_US + 1) * 1000
    monkeypatch.setattr(links_module, "time", SimpleNamespace(monotonic=lambda: later_ns / 1e9, monotonic_ns=lambda: later_ns))
    (link,) = links.all()
    link.take_in(pb.FromServer(beat=True))
    assert links.gone() == []
    assert links.standing(life) is Standing.HEARD
    again = Server(links)
    assert again.refused == "", "its stream broke, and it comes back"
    for one in (server, again):
        one.leave()


def test_a_life_whose_stream_is_gone_is_over_once_its_server_begins_another(links: Links) -> None:
    Server(links).leave()
    assert links.standing(Life("s1", 7)) is Standing.HEARD
    assert [one.life for one in links.gone()] == [7]
    successor = Server(links, life=8)
    assert successor.refused == ""
    assert links.standing(Life("s1", 7)) is Standing.OVER
    assert "another server" in Server(links).refused
    successor.leave()
    assert "begin another life" in Server(links).refused


def test_a_life_that_is_over_elsewhere_and_is_here_all_the_same_is_told_to_begin_another(links: Links) -> None:
    server = Server(links)
    links.heard_elsewhere(Life("s1", 6), 0, is_over=True)
    (link,) = links.all()
    assert link.out.empty(), "another life"
    links.heard_elsewhere(Life("s1", 7), 0, is_over=True)
    (told,) = server.told  # its stream ends with it
    assert told.welcome.over
    assert "begin another life" in told.welcome.refused
    server.leave()


@pytest.mark.parametrize("round_trip_s", [0.0005, 0.05])
def test_probes_of_a_long_way_keep_its_rate_and_see_it_slow_down(monkeypatch: pytest.MonkeyPatch, round_trip_s: float) -> None:
    now_s = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr("rmgr.adapters.calls.links.time", clock)
    one = a_link()

    def looks(times: int, rate: float) -> float:
        for _ in range(times):
            while not one.out.empty():
                one.out.get()
            one.probe(1.0)
            probe = one.out.get_nowait().probe
            now_s[0] += round_trip_s
            assert one.probe_pieces(probe.key) is not None
            now_s[0] += round_trip_s + 2 * probe.bytes / rate
            assert one.probe_given(probe.key, iter(()), probe.bytes)
            now_s[0] += 1.0
        return one.link.bytes_per_s

    one.transferred(10_000_000, 1.0)
    assert 5e6 < looks(30, 10e6) < 20e6
    assert 0.5e6 < looks(2, 1e6) < 2e6
    assert 0.5e6 < looks(30, 1e6) < 2e6


def a_link() -> ServerLink:
    return ServerLink("s1", "", 7, 1, 100.0, True, (), 10)


def test_who_ends_calls_in_plenty_displaces_no_offer_of_others() -> None:
    link = a_link()
    for number in range(20_000):
        link.tell(cancel=pb.CallId(user="mallory", guid=b"g" * 16, number=number))
    link.tell(closed=pb.Closed(user="mallory", guid=b"g" * 16, lowest=1))
    link.tell(offer=pb.Offer(key=b"k" * 16))
    link.tell(arguments=pb.GivePart(key=b"k" * 16))
    there = [link.out.get_nowait().WhichOneof("what") for _ in range(link.out.qsize())]
    assert there[-2:] == ["offer", "arguments"]
    assert set(there[:-2]) == {"cancel"}


def hello(**crooked: Any) -> Any:
    return pb.ServerHello(**{"version": VERSION, "name": "s1", "life": 7, "slots": 1, "mops": 100.0} | crooked)


@pytest.mark.parametrize(
    ("crooked", "words"),
    [
        ({"name": ""}, "cannot be the name of a server"),
        ({"name": "s1\x1b[2J"}, "cannot be the name of a server"),
        ({"life": 0}, "no life"),
        ({"slots": 0}, "0 slots"),
        ({"slots": 10**9}, "1,000,000,000 slots"),
        ({"mops": math.nan}, "a speed of nan"),
        ({"mops": -1.0}, "a speed of -1.0"),
        ({"mops": 0.0}, "a speed of 0.0"),
        ({"mops": math.inf}, "a speed of inf"),
        ({"site": "etl\n\x1b[31m"}, "printable"),
        ({"site": "x" * 65}, "at most 64"),
        ({"functions": [b"{}"] * 10_000}, "10,000 functions"),
        ({"functions": [b"x" * (1 << 20)]}, "the largest of 1,048,576"),
        ({"functions": [b"x" * 1000] * 300}, "interfaces of 300,000 bytes"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_in_words(links: Links, crooked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        Server(links, **crooked)
    assert refused.value.message.isprintable()


def test_measured_transfers_count_from_64_kib_on() -> None:
    one = a_link()
    one.transferred(64 * 1024 - 1, 1.0)
    assert one.link.bytes_per_s == 0.0
    one.transferred(1 << 20, 0.5)
    assert one.link.bytes_per_s == 2 * (1 << 20)


# -- a server of calls handles answers while its machine lacks a resource


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_answer_outlives_a_lack_of_descriptors_and_is_lost_only_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "answer").write_bytes(b"42")
    lacks = 2

    def opened(*given: Any, **named: Any) -> Any:
        nonlocal lacks
        lacks -= 1
        if lacks >= 0:
            raise OSError(code, "refused")
        return open(*given, **named)

    monkeypatch.setattr(serving, "open", opened, raising=False)
    told: list[Any] = []
    waiting: list[Callable[[], None]] = []
    givers: Any = SimpleNamespace(submit=waiting.append)
    line: Any = GatewayLine("g1:1", None, None, told.append, givers, givers)  # type: ignore[arg-type]  # it is not started
    line.give(b"key", CallEnd(kind="OK", bytes=2), str(tmp_path / "answer"), said_bytes=100)
    if code == errno.EIO:
        assert (told[0].is_taken, told[0].is_ours, waiting) == (False, True, [])
        return
    assert told == [], "whoever owns the calls does not wait, and does not give the answer up"
    (work,) = waiting
    work()
    assert told == [Given(b"key", True)]
    assert line.out.get_nowait().answer.data == b"42"
