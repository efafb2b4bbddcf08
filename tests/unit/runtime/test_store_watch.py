"""A daemon's store: away at the start, away later, back, or another cluster's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol.ports import CLUSTER_ID_KEY, Encoding, Writing
from rmgr.errors import ConfigError, StoreUnavailable, WrongCluster
from rmgr.runtime.store_watch import WatchedStore
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually


class Server:
    """A store that is opened by name, and may be away, before it is opened or after."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.refusal: Exception | None = None

    def __call__(self) -> MemoryStore:
        if self.refusal is not None:
            raise self.refusal
        return self.inner


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def watched(server: Server, events: list[str]) -> Iterator[WatchedStore]:
    def write(_logger: Any, _level: str, event: dict[str, Any]) -> Any:
        events.append(event["event"])
        raise structlog.DropEvent

    store = WatchedStore(server, log=structlog.wrap_logger(None, processors=[write]), calm_s=0.02, away_s=0.02)
    yield store
    store.close()


def test_a_store_that_serves_is_bound_and_used(server: Server, watched: WatchedStore) -> None:
    assert watched.meet() is None
    watched.belong_to("ours")
    watched.put("in/1", b"v")
    assert server.inner.get("in/1") is not None
    assert watched.facts() == {"ok": True}
    assert WatchedStore(server, log=None).meet() == "ours"


def test_away_at_the_start_is_no_error_and_calls_fail_at_once_until_it_is_back(
    server: Server, watched: WatchedStore, events: list[str]
) -> None:
    server.refusal = StoreUnavailable("nobody there")
    assert watched.meet(wait_s=0.0) is None
    watched.belong_to("ours")
    with pytest.raises(StoreUnavailable, match="nobody there"):
        watched.get("in/1")
    facts = watched.facts()
    assert facts["ok"] is False
    assert str(facts["problem"]).startswith("away since ")
    assert watched.note().startswith("data store away since ")
    server.refusal = None
    eventually(lambda: watched.is_up)
    watched.put("in/1", b"v")
    assert events == ["store_away", "store_back"]


def test_a_store_that_goes_later_is_noticed_and_comes_back(server: Server, watched: WatchedStore, events: list[str]) -> None:
    watched.meet()
    watched.belong_to("ours")
    server.inner.outage = "a digger cut the cable"
    eventually(lambda: not watched.is_up)
    assert "digger" in watched.trouble
    server.inner.outage = ""
    eventually(lambda: watched.is_up)
    assert events == ["store_away", "store_back"]


def test_writes_that_nobody_waits_for_reach_the_store_and_one_that_fails_has_it_looked_at(
    server: Server, watched: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[Any, Writing, Any]] = []
    ends: list[Exception | None] = []
    monkeypatch.setattr(MemoryStore, "puts_soon", True)
    monkeypatch.setattr(MemoryStore, "write_soon", lambda _, *asked: begun.append(asked) or True)
    assert not watched.puts_soon, "it is not known whose store it is"
    watched.belong_to("one")
    assert watched.puts_soon
    said = {"encoding": Encoding.POINTER, "notes": [b"n"], "overwrite": False, "decided": lambda: None}
    assert watched.put_soon([("name/a", b"1")], done=ends.append, **said)
    [(rows, how, done)] = begun
    assert (rows, how) == ([("name/a", b"1")], Writing(**said))
    done(None)
    server.inner.outage = "gone"
    done(StoreUnavailable("gone"))
    assert [str(end) for end in ends] == ["None", "gone"]
    eventually(lambda: watched.trouble)


def test_a_store_of_another_cluster_ends_the_start(server: Server, watched: WatchedStore) -> None:
    server.inner.bind_cluster("theirs")
    assert watched.meet() == "theirs"
    with pytest.raises(WrongCluster):
        watched.belong_to("ours")


def test_a_store_that_turns_out_to_be_another_clusters_when_it_is_back_is_never_used(
    server: Server, watched: WatchedStore, events: list[str]
) -> None:
    server.refusal = StoreUnavailable("nobody there")
    watched.meet(wait_s=0.0)
    watched.belong_to("ours")
    server.inner.bind_cluster("theirs")
    server.refusal = None
    eventually(lambda: "theirs" in watched.trouble)
    with pytest.raises(StoreUnavailable, match="theirs"):
        watched.put("in/1", b"v")
    assert server.inner.get("in/1") is None
    assert "store_refused" in events


def test_what_no_waiting_heals_ends_the_start_and_is_only_told_later(server: Server, watched: WatchedStore) -> None:
    server.refusal = ConfigError("there is no keyspace 'rmgr'", hint="rmgr admin init-store")
    with pytest.raises(ConfigError):
        watched.meet()
    server.refusal = StoreUnavailable("nobody there")
    watched.meet(wait_s=0.0)
    watched.belong_to("ours")
    server.refusal = ConfigError("there is no keyspace 'rmgr'", hint="rmgr admin init-store")
    eventually(lambda: "init-store" in watched.trouble)
    with pytest.raises(StoreUnavailable, match="init-store"):
        watched.get("in/1")


def test_a_store_that_was_emptied_ends_the_start_of_a_cluster_that_has_used_one(server: Server, watched: WatchedStore) -> None:
    assert watched.meet() is None
    with pytest.raises(WrongCluster, match="the data store is empty, but cluster ours") as refused:
        watched.belong_to("ours", was_bound=True)
    assert "rmgr admin init-store --accept-loss" in refused.value.hint
    assert server.inner.keys("") == [], "it is left as it was found"


def test_a_store_that_is_emptied_or_comes_back_empty_is_not_used(server: Server, watched: WatchedStore) -> None:
    watched.meet()
    watched.belong_to("ours")
    server.inner.delete(CLUSTER_ID_KEY)
    eventually(lambda: "is empty" in watched.trouble)
    with pytest.raises(StoreUnavailable, match="it was emptied"):
        watched.get("in/1")
    server.inner.outage = "restarting"
    eventually(lambda: "restarting" in watched.trouble)
    server.inner.outage = ""
    eventually(lambda: "is empty" in watched.trouble)
    server.inner.bind_cluster("ours")  # restored
    eventually(lambda: watched.is_up)
    watched.put("in/1", b"v")
