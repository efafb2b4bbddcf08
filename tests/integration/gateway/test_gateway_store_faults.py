"""A store behind gateways that die, are full or refuse: calls go on elsewhere, and nothing is written twice or in part."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.gateway.store import MESSAGE_BYTES, GatewayStore
from rmgr.adapters.stores import open_store
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.daemons.gateway import rows as gateway_rows
from rmgr.errors import KeyExists, PermissionDenied, StoreUnavailable
from tests.harness.fair_time import FairTimer
from tests.harness.gateways import GatewayServer, OpenRows
from tests.harness.memory_store import MemoryStore
from tests.harness.store_adapters import pattern, run_threads

LARGE = 3 * 2**20


class Deadly:
    """The store as a gateway sees it that dies while it carries out a call: before or after the store has done it."""

    def __init__(self, behind: Store, doomed: str, *, after: bool) -> None:
        self._behind = behind
        self._doomed = doomed
        self._after = after
        self.server: GatewayServer | None = None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._behind, name)
        if name != self._doomed:
            return call

        def die(*arguments: Any, **options: Any) -> Any:
            server, self.server = self.server, None
            if server is None:
                return call(*arguments, **options)
            value = call(*arguments, **options) if self._after else None
            server.kill()
            return value

        return die


class Two:
    """Two gateways before one store; the first one is used first."""

    def __init__(self, behind: Store) -> None:
        self.behind = behind
        self.servers: list[GatewayServer] = []
        self.stores: list[GatewayStore] = []

    def store(self, doomed: str = "", *, after: bool = False) -> GatewayStore:
        deadly = Deadly(self.behind, doomed, after=after)
        self.servers = [GatewayServer(OpenRows(store=deadly)), GatewayServer(OpenRows(store=self.behind))]  # type: ignore[arg-type]
        deadly.server = self.servers[0]
        opened = GatewayStore(",".join(server.endpoint for server in self.servers))
        opened._gateways._at = 0
        self.stores.append(opened)
        return opened

    def close(self) -> None:
        for store in self.stores:
            store.close()
        for server in self.servers:
            server.stop(0.1)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:{tmp_path / 'store.db'}", grace_s=0.0)
    yield opened
    opened.close()


@pytest.fixture
def two(behind: Store) -> Iterator[Two]:
    made = Two(behind)
    yield made
    made.close()


def test_a_dead_gateway_is_passed_by(two: Two) -> None:
    store = two.store()
    store.put("k", b"1")
    two.servers[0].kill()
    assert store.get("k") == (b"1", Encoding.RAW)
    store.put("l", (pattern(LARGE) for _ in range(2)))
    assert store.head("l") == (2 * LARGE, Encoding.RAW)


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_put_whose_gateway_died_is_done_once(two: Two, size: int, after: bool, overwrite: bool) -> None:
    store = two.store("put", after=after)
    store.put("k", pattern(size), overwrite=overwrite)
    assert two.behind.get("k") == (pattern(size), Encoding.RAW)
    assert two.behind.usage() == (1, size)


@pytest.mark.parametrize("after", [False, True])
def test_rows_whose_gateway_died_are_all_there(two: Two, after: bool) -> None:
    store = two.store("put_many", after=after)
    rows = [(f"r/{n}", b"%d" % n) for n in range(1000)]
    if not after:
        two.behind.put("r/7", b"7")  # as if the first try had come so far
    store.put_many(rows, overwrite=False)
    assert two.behind.usage("r/")[0] == 1000


def test_who_finds_somebody_elses_value_after_a_lost_answer_has_not_made_it(two: Two) -> None:
    store = two.store("put", after=False)
    two.behind.put("k", b"theirs")
    with pytest.raises(KeyExists):
        store.put("k", b"mine", overwrite=False)
    with pytest.raises(KeyExists):
        store.put("k", b"theirs", overwrite=False)  # the same bytes, but no answer was lost
    assert two.behind.get("k") == (b"theirs", Encoding.RAW)


@pytest.mark.parametrize("call", ["get_noted_many", "about_many", "keys", "usage", "delete_many", "health"])
def test_a_read_whose_gateway_died_is_asked_again(two: Two, call: str) -> None:
    two.behind.put("k", b"1")
    store = two.store(call, after=True)
    answers: dict[str, Any] = {
        "get_noted_many": lambda: store.get_many(["k", "l"]) == {"k": (b"1", Encoding.RAW)},
        "about_many": lambda: store.head("k") == (1, Encoding.RAW),
        "keys": lambda: store.keys() == ["k"],
        "usage": lambda: store.usage() == (1, 1),
        "delete_many": lambda: "k" in store.delete_many(["k", "l"]),
        "health": lambda: store.health() is None,
    }
    assert answers[call]()


def test_a_large_value_is_read_again_from_its_beginning(two: Two) -> None:
    two.behind.put("k", pattern(LARGE))
    store = two.store("stream", after=True)
    assert store.get("k") == (pattern(LARGE), Encoding.RAW)


def test_a_stream_that_breaks_off_says_so(two: Two) -> None:
    two.behind.put("k", pattern(20 * LARGE))
    store = two.store()
    stream = store.stream("k")
    assert stream is not None
    next(stream)
    two.servers[0].kill()
    with pytest.raises(StoreUnavailable):
        list(stream)


def test_a_streamed_put_whose_gateway_dies_leaves_nothing(two: Two) -> None:
    store = two.store()

    def parts() -> Iterator[bytes]:
        for number in range(40):
            if number == 10:
                two.servers[0].kill()
            yield pattern(2**19, number)

    with pytest.raises(StoreUnavailable):
        store.put("k", parts())
    assert two.behind.get("k") is None
    two.behind.sweep()
    assert two.behind.usage() == (0, 0)


def test_without_any_gateway_a_call_ends_in_time(two: Two) -> None:
    store = two.store()
    for server in two.servers:
        server.kill()
    with FairTimer() as timer:
        for call in (lambda: store.get("k", timeout_s=0.4), lambda: store.put("k", b"1", timeout_s=0.4)):
            with pytest.raises(StoreUnavailable, match=r"cannot be reached|did not (read|write) 'k' within"):  # the latter in a stall
                call()
    assert timer.elapsed_s < 2
    assert "cannot be reached" in (store.health(timeout_s=0.4) or "")


def test_refusals_arrive_as_what_they_are(behind: Store) -> None:
    class Strict(OpenRows):
        def permit(self, person: Person, verb: str, keys: Sequence[str]) -> None:
            if verb != "GET":
                raise PermissionDenied(f"{verb} {list(keys)}: not for {person.name}")

    server = GatewayServer(Strict(store=behind))
    store = GatewayStore(server.endpoint)
    for call, what in (
        (lambda: store.put("k", b"1"), r"PUT \['k'\]"),
        (lambda: store.put("k", iter([b"1"])), "PUT"),
        (lambda: store.put("k", pattern(LARGE)), "PUT"),
        (lambda: store.put_many([("a", b"1"), ("b", b"2")]), r"PUT \['a', 'b'\]"),
        (lambda: store.delete("k"), "DELETE"),
        (store.sweep, "sweep"),
        (lambda: store.bind_cluster("c"), r"PUT \['meta/cluster_id'\]"),
    ):
        with pytest.raises(PermissionDenied, match=what):
            call()
    assert store.get("k") is None
    store.close()
    server.stop()


def test_a_full_gateway_makes_clients_wait(behind: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """As many at once as there are places, and a barrier that tells."""

        def __init__(self) -> None:
            self.busy = 0
            self.most = 0
            self.lock = threading.Lock()

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                with self.lock:
                    self.busy += 1
                    self.most = max(self.most, self.busy)
                try:
                    return getattr(behind, name)(*arguments, **options)
                finally:
                    with self.lock:
                        self.busy -= 1

            return call

    monkeypatch.setattr(gateway_rows, "MAX_CALLS", 2)
    slow = Slow()
    server = GatewayServer(OpenRows(store=slow))  # type: ignore[arg-type]
    store = GatewayStore(server.endpoint)

    def work(number: int) -> None:
        for n in range(20):
            store.put(f"{number}/{n}", b"x")

    run_threads(work, 6)
    assert behind.usage()[0] == 120
    assert slow.most <= 2
    store.close()
    server.stop()


class Standing(MemoryStore):
    """Answers nothing until `goes` is set."""

    def __init__(self) -> None:
        super().__init__("")
        self.goes = threading.Event()
        self.asked = 0

    def get_noted_many(self, keys: Any, **options: Any) -> Any:
        self.asked += 1
        self.goes.wait(60)
        return super().get_noted_many(keys, **options)

    def put_many(self, rows: Any, **options: Any) -> None:
        self.asked += 1
        self.goes.wait(60)
        super().put_many(rows, **options)


def test_a_gateway_that_stands_still_is_left_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.adapters.gateway.store._PATIENCE_S", 1.5)  # the one that answers is within it on a busy machine, too
    standing, behind = Standing(), MemoryStore()
    behind.put("k", b"x")
    servers = [GatewayServer(OpenRows(store=standing)), GatewayServer(OpenRows(store=behind))]
    client = GatewayStore(",".join(server.endpoint for server in servers))
    try:
        for _ in range(4):
            client._gateways._at = 0
            assert client.get("k", timeout_s=30) == (b"x", Encoding.RAW)
        client._gateways._at = 0
        client.put_many([("a", b"1"), ("b", b"2")], overwrite=False, timeout_s=30)
        assert standing.asked == 5
        assert behind.get("b") == (b"2", Encoding.RAW)
    finally:
        standing.goes.set()
        client.close()
        for server in servers:
            server.stop(0.1)


class Weighing(MemoryStore):
    """Remembers the most that it has returned at once (bytes)."""

    most = 0

    def get_noted_many(self, keys: Sequence[str], **options: Any) -> Any:
        found = super().get_noted_many(keys, **options)
        self.most = max(self.most, sum(len(value or b"") for value, _ in found.values()))
        return found


def test_a_gateway_reads_as_much_at_once_as_a_message_bears_whatever_comes_after_small_values() -> None:
    behind = Weighing("")
    names = [f"small/{number}" for number in range(8)] + [f"value/{number}" for number in range(30)]
    for name in names:
        behind.put(f"name/{name}", name.encode() * (1 if name.startswith("small") else 100_000))
    server = GatewayServer(OpenRows(store=behind))
    client = GatewayStore(server.endpoint)
    try:
        found = client.get_noted_many([f"name/{name}" for name in names], largest=LARGE)
    finally:
        client.close()
        server.stop(0.1)
    assert list(found) == [f"name/{name}" for name in names]
    assert all(value for value, _ in found.values())
    assert behind.most <= MESSAGE_BYTES
