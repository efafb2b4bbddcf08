"""The link to a Cassandra that comes and goes: answering contacts, repeated requests, and the number in flight."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.cassandra import link as cassandra_calls
from rmgr.adapters.cassandra.link import (
    LARGEST_WINDOW,
    SMALLEST_WINDOW,
    WINDOW,
    Calls,
    CassandraLink,
    DaemonPool,
    Lost,
    RequestWindow,
    awake,
)
from rmgr.adapters.cassandra.reading import Reader
from rmgr.adapters.cassandra.rows import Lifetime, ValueManifest, small
from rmgr.adapters.cassandra.schema import StatementRequest, ask
from rmgr.adapters.store_rules import CallDeadline
from rmgr.coord.protocol.ports import About, Encoding
from rmgr.errors import ConfigError, DataLost, StoreUnavailable
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually, stand_still

_READ, _WRITE = ask("value", "k"), ask("set_info", "n", "v", 1, 0)
_FOR_EVER = Lifetime(expires_ms=None, ttl_s=0)


class FakeCluster:
    """A cluster and every connection to it. `refuses`: what dialling raises; `answers`: what a request gets."""

    def __init__(self) -> None:
        self.refuses: Exception | None = None
        self.answers: Callable[[StatementRequest], Any] = lambda _: []
        self.others: Callable[[StatementRequest], list[Any]] = lambda _: []
        self.up = 1
        self.dialled = self.closed = self.sent = 0

    def dial(self) -> FakeCluster:
        self.dialled += 1
        if self.refuses is not None:
            raise self.refuses
        return self

    def send(self, request: StatementRequest, timeout_s: float) -> Future[list[Any]]:
        self.sent += 1
        return self._future(self.answers, request)

    def send_to_others(self, request: StatementRequest, timeout_s: float) -> list[Future[list[Any]]]:
        return [self._future(lambda _, rows=rows: rows, request) for rows in self.others(request)]

    def nodes_up(self) -> int:
        return self.up

    def probe(self, timeout_s: float, *, write: bool) -> None:
        self.answers(_WRITE if write else _READ)

    def close(self) -> None:
        self.closed += 1

    def _future(self, answers: Callable[[StatementRequest], Any], request: StatementRequest) -> Future[list[Any]]:
        future: Future[list[Any]] = Future()
        try:
            future.set_result(answers(request))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def links() -> Iterator[list[CassandraLink]]:
    made: list[CassandraLink] = []
    yield made
    for link in made:
        link.close()


@pytest.fixture
def link(cluster: FakeCluster, links: list[CassandraLink]) -> Callable[[], CassandraLink]:
    def make() -> CassandraLink:
        links.append(CassandraLink(cluster.dial, where="h1 (port 9042)", interval_s=0.05))
        return links[-1]

    return make


def ask_for(link: CassandraLink, *, is_write: bool = False, timeout_s: float = 60.0) -> Any:
    return link.connection(CallDeadline(timeout_s), "read 'k'", is_write=is_write)


def outage(_: StatementRequest) -> Any:
    raise Lost("1 of the 2 replicas are up", is_outage=True)


def test_the_first_call_waits_for_the_verdict_and_later_ones_do_not(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    verdict, second = threading.Event(), threading.Event()
    cluster.refuses = Lost("refused", is_outage=True)
    dial = cluster.dial
    cluster.dial = lambda: ((second if cluster.dialled else verdict).wait(60), dial())[1]  # type: ignore[method-assign]
    made = link()
    assert made.problem() == "not connected yet"
    threading.Timer(0.1, verdict.set).start()
    with pytest.raises(StoreUnavailable, match=r"cannot read 'k': Cassandra at h1 \(port 9042\) is away: refused"):
        ask_for(made)
    with pytest.raises(StoreUnavailable, match="is away: refused"):
        ask_for(made)  # the second attempt has no verdict yet: nobody waits for it
    second.set()


def test_a_first_attempt_that_does_not_end_is_not_waited_out(cluster: FakeCluster, links: list[CassandraLink]) -> None:
    held = threading.Event()
    links.append(CassandraLink(lambda: (held.wait(60), cluster.dial())[1], where="h1", verdict_s=0.05))
    for _ in range(2):
        with FairTimer() as timer, pytest.raises(StoreUnavailable, match=r"has not answered in 50ms"):
            ask_for(links[0])
        assert timer.elapsed_s < 1.0
    held.set()
    eventually(lambda: links[0].problem() is None)


def test_a_first_attempt_that_stood_still_with_the_process_is_waited_for(cluster: FakeCluster, links: list[CassandraLink]) -> None:
    begun = threading.Event()

    def dial() -> Any:
        begun.wait(60)
        stand_still(2)
        return cluster.dial()

    links.append(CassandraLink(dial, where="h1", verdict_s=1.0))
    threading.Timer(0.3, begun.set).start()
    assert ask_for(links[-1]) is cluster


def test_it_connects_when_the_cluster_comes(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    cluster.refuses = Lost("refused", is_outage=True)
    made = link()
    eventually(lambda: cluster.dialled > 2)
    cluster.refuses = None
    eventually(lambda: made.problem() is None)
    assert ask_for(made) is cluster


def test_what_time_does_not_heal_is_its_own_error_until_somebody_heals_it(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    cluster.refuses = ConfigError("no tables", hint="rmgr admin init-store")
    made = link()
    with pytest.raises(ConfigError, match="no tables") as caught:
        ask_for(made)
    assert caught.value.hint == "rmgr admin init-store"
    assert made.problem() == "no tables (rmgr admin init-store)"
    cluster.refuses = None
    eventually(lambda: made.problem() is None)


def test_a_surprise_of_the_driver_does_not_end_the_thread(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    cluster.refuses = ZeroDivisionError("surprise")
    made = link()
    eventually(lambda: "ZeroDivisionError" in (made.problem() or ""))
    cluster.refuses = None
    eventually(lambda: made.problem() is None)


def test_a_call_gives_up_an_outage_and_others_are_refused_until_a_probe_passes(
    cluster: FakeCluster, link: Callable[[], CassandraLink]
) -> None:
    made = link()
    calls = Calls(made, request_timeout_s=2.0)
    eventually(lambda: made.problem() is None)
    cluster.answers = outage
    begun = time.monotonic()
    with FairTimer() as timer, pytest.raises(StoreUnavailable, match="1 of the 2 replicas"):
        calls.one(_READ, CallDeadline(60), "read 'k'")
    assert time.monotonic() - begun > 1.0
    assert timer.elapsed_s < 3.0
    sent = cluster.sent
    with pytest.raises(StoreUnavailable, match="1 of the 2 replicas"):
        calls.one(_READ, CallDeadline(60), "read 'k'")
    assert cluster.sent == sent, "the network was not asked"
    cluster.answers = lambda _: [("back",)]
    eventually(lambda: made.problem() is None)
    assert calls.one(_READ, CallDeadline(60), "read 'k'") == [("back",)]


def test_reads_go_on_where_only_writes_fail(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    made = link()
    eventually(lambda: made.problem() is None)
    calls = Calls(made, request_timeout_s=2.0)
    cluster.answers = lambda request: outage(request) if request.is_write else [(1,)]
    with pytest.raises(StoreUnavailable):
        calls.one(_WRITE, CallDeadline(60), "write")
    assert "reads work, writes do not" in (made.problem() or "")
    assert calls.one(_READ, CallDeadline(60), "read") == [(1,)]
    with pytest.raises(StoreUnavailable, match="reads work, writes do not"):
        ask_for(made, is_write=True)


def test_a_driver_that_finds_no_node_again_is_replaced(
    cluster: FakeCluster, link: Callable[[], CassandraLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmgr.adapters.cassandra.link.RENEW_S", 0.1)
    monkeypatch.setattr("rmgr.adapters.cassandra.link.PROBE_S", 0.02)
    made = link()
    eventually(lambda: made.problem() is None)
    cluster.answers, cluster.up = outage, 0
    made.report(Lost("gone", is_outage=True), is_write=False)
    eventually(lambda: cluster.dialled >= 2 and cluster.closed >= 1)
    assert made.problem() is None


def test_a_request_that_times_out_is_sent_again(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    made = link()
    left = [Lost("no answer from h1", is_outage=False)] * 2

    def answers(_: StatementRequest) -> Any:
        if left:
            raise left.pop()
        return [("late",)]

    cluster.answers = answers
    assert Calls(made, request_timeout_s=2.0).one(_READ, CallDeadline(60), "read") == [("late",)]


def test_no_more_requests_fly_than_the_window_allows(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    calls = Calls(link(), request_timeout_s=2.0)
    taken = 0

    def requests() -> Iterator[StatementRequest]:
        nonlocal taken
        for _ in range(20):
            taken += 1
            yield _READ

    answers = calls.each(requests(), CallDeadline(60), "read", window=4)
    next(answers)
    assert taken == 4
    assert len(list(answers)) == 19


def test_a_store_opened_before_a_fork_says_so(link: Callable[[], CassandraLink], monkeypatch: pytest.MonkeyPatch) -> None:
    made = link()
    ask_for(made)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreUnavailable, match="before a fork"):
        ask_for(made)


# -- bytes that are not what they were ------------------------------------------------------------------------------------------


def test_a_damaged_value_is_taken_from_another_node(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    good = small(b"value", Encoding.RAW, _FOR_EVER)
    bad = good._replace(inline=b"walue")
    reader = Reader(Calls(link(), request_timeout_s=2.0))
    cluster.answers = lambda _: [(tuple(bad),)]
    with pytest.raises(DataLost, match="'k'"):
        reader.get_noted_many(["k"], CallDeadline(60), largest=1000)
    cluster.others = lambda _: [[(tuple(bad),)], [], [(tuple(good),)]]
    assert reader.get_noted_many(["k"], CallDeadline(60), largest=1000)["k"] == (b"value", About(5, Encoding.RAW, good.digest, b""))


def test_a_chunk_is_taken_from_another_node_and_wrong_bytes_from_none(cluster: FakeCluster, link: Callable[[], CassandraLink]) -> None:
    from hashlib import sha256
    from uuid import uuid4

    data = b"x" * 100
    manifest = ValueManifest(100, sha256(data).digest(), "raw", None, uuid4(), 1, b"")
    chunk = {"rows": [(b"y" * 100, sha256(data).digest())]}
    cluster.answers = lambda request: [(tuple(manifest),)] if request.name == "value" else chunk["rows"]
    reader = Reader(Calls(link(), request_timeout_s=2.0))
    for rows, what in (([(b"y" * 100, sha256(data).digest())], "damaged"), ([], "missing")):
        chunk["rows"] = rows
        cluster.others = lambda _: []
        with pytest.raises(DataLost, match=what):
            reader.get_noted_many(["k"], CallDeadline(60), largest=1000)
        cluster.others = lambda _: [[], [(data, sha256(data).digest())]]
        about = About(100, Encoding.RAW, sha256(data).digest(), b"")
        assert reader.get_noted_many(["k"], CallDeadline(60), largest=1000) == {"k": (data, about)}
        assert b"".join(reader.stream("k", 5.0) or ()) == data
    chunk["rows"] = [(b"z" * 100, sha256(b"z" * 100).digest())]  # a chunk of its own kind: only the whole tells
    with pytest.raises(DataLost):
        reader.get_noted_many(["k"], CallDeadline(60), largest=1000)
    with pytest.raises(DataLost, match="hash differs"):
        list(reader.stream("k", 5.0) or ())


def test_of_several_hosts_those_that_say_something_are_found_at_once() -> None:
    with socket.create_server(("127.0.0.2", 0)) as hangs:
        port = hangs.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)) as serves:

            def answer() -> None:
                link, _ = serves.accept()
                with link:
                    link.sendall(b"\x85")

            threading.Thread(target=answer, daemon=True).start()
            with FairTimer() as timer:
                assert awake(("127.0.0.2", "127.0.0.1", "127.0.0.3"), port, tls=None, timeout_s=60.0) == ("127.0.0.1",)
            assert timer.elapsed_s < 2.0


def test_when_nobody_answers_each_host_is_told_with_why() -> None:
    with socket.create_server(("127.0.0.2", 0)) as hangs:
        told = r"127\.0\.0\.3: Connection refused; 127\.0\.0\.2: no answer in 300ms"
        with FairTimer() as timer, pytest.raises(Lost, match=told) as caught:
            awake(("127.0.0.2", "127.0.0.3"), hangs.getsockname()[1], tls=None, timeout_s=0.3)
        assert caught.value.is_outage
        assert timer.elapsed_s < 2.0


def test_work_of_a_pool_is_done_by_as_many_threads_as_it_needs_and_may_have() -> None:
    pool = DaemonPool(3)
    meeting = threading.Barrier(3)
    assert sorted(future.result(60) for future in [pool.submit(meeting.wait, 60) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_a_process_ends_while_its_pool_is_at_work() -> None:
    code = "import time; from rmgr.adapters.cassandra.link import DaemonPool; DaemonPool(1).submit(time.sleep, 60)"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


def test_a_window_grows_while_answers_are_quick_and_shrinks_once_when_they_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cassandra_calls.time, "monotonic", lambda: now[0])
    window = RequestWindow()
    assert window.size == WINDOW
    for _ in range(10_000):
        window.answered(0.005)
    assert window.size == LARGEST_WINDOW
    window.answered(0.1)  # neither
    assert window.size == LARGEST_WINDOW
    for _ in range(LARGEST_WINDOW):  # what was in flight: one look at one time
        window.answered(0.5)
    assert window.size == int(LARGEST_WINDOW * 0.7)
    for _ in range(100):
        now[0] += 1.0
        window.shrink()
    assert window.size == SMALLEST_WINDOW
    window.answered(0.005)
    assert SMALLEST_WINDOW <= window.size <= WINDOW


class _Cluster:
    """Answers each request after some time, from a thread; counts how many wait."""

    def __init__(self, after_s: float) -> None:
        self.most = self._now = 0
        self._after_s = after_s
        self._lock = threading.Lock()

    def connection(self, *_: Any, **__: Any) -> _Cluster:
        return self

    def send(self, _request: Any, _timeout_s: float) -> Future[list[Any]]:
        future: Future[list[Any]] = Future()
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

        def answer() -> None:
            with self._lock:
                self._now -= 1
            future.set_result([])

        timer = threading.Timer(self._after_s, answer)
        timer.daemon = True
        timer.start()
        return future


def test_no_call_has_more_in_flight_than_its_window() -> None:
    cluster = _Cluster(0.3)
    calls = Calls(cluster, request_timeout_s=2.0)  # type: ignore[arg-type]
    started_s = time.monotonic()
    calls.all([ask("value", f"k{n}") for n in range(150)], CallDeadline(60.0), "read")
    assert cluster.most <= WINDOW
    assert calls.window.size < WINDOW  # 0.3 s are slow
    assert time.monotonic() - started_s < 30
    fixed = _Cluster(0.001)
    Calls(fixed, request_timeout_s=2.0).all([ask("value", f"k{n}") for n in range(50)], CallDeadline(60.0), "read", window=4)  # type: ignore[arg-type]
    assert fixed.most <= 4
