"""A real Cassandra: its schema, created twice, upgraded, refused; the contents of its tables after writes; how its nodes start."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from rmgr.adapters.cassandra.schema import CHUNKS_PER_PARTITION, MIGRATIONS, NEWEST, VERSION_NAME
from rmgr.adapters.cassandra.setup import init_store
from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.adapters.store_rules import CHUNK_BYTES, CallDeadline, now_ms
from rmgr.adapters.stores import open_store
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.dev.cassandra import CassandraNode, missing_parts
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import ConfigError, KeyExists, StoreUnavailable, Unavailable, WrongCluster
from rmgr.runtime.store_watch import WatchedStore
from tests.harness import cassandra_keyspaces
from tests.harness.cassandra_keyspaces import behind
from tests.harness.cassandra_nodes import SharedNode
from tests.harness.store_adapters import pattern, run_threads, start
from tests.harness.waiting import eventually


@pytest.fixture
def url(cassandra: SharedNode, keyspace: str) -> str:
    """A keyspace of this test's own that does not exist yet."""
    return f"cassandra://{cassandra.contact}/{keyspace}?replication_factor=1"


@contextlib.contextmanager
def opened(url: str, **options: float) -> Iterator[Store]:
    store = open_store(url, **options)
    try:
        yield store
    finally:
        store.close()


# -- made, made again, upgraded, refused -----------------------------------------------------------------------------------------


def test_a_store_without_a_schema_says_what_to_type_and_works_once_that_was_done(url: str) -> None:
    target = parse_url(url)
    with opened(url) as store:
        with pytest.raises(ConfigError, match=f"no keyspace '{target.keyspace}'") as caught:
            store.get("k")
        assert "rmgr admin init-store" in caught.value.hint
        assert "rmgr admin init-store" in (store.health() or "")
        planned = init_store(target, dry_run=True)
        assert planned.statements
        with pytest.raises(ConfigError, match="no keyspace"):
            store.get("k")
        with pytest.raises(ConfigError, match="1 nodes are up in datacenter1, replication factor 3"):
            init_store(target, replication_factor=3)
        init_store(target, migrations=MIGRATIONS[:1])  # as an older release would have
        eventually(lambda: f"needs {NEWEST}" in (store.health() or ""))
        with pytest.raises(ConfigError, match=f"schema version 1, this rmgr needs {NEWEST}"):
            store.get("k")
        with behind(url) as run:
            run("INSERT INTO {ks}.info (name, value) VALUES ('old', 'row')")
        upgraded = init_store(target)
        assert (upgraded.version, bool(upgraded.statements)) == (NEWEST, True)
        eventually(lambda: store.health() is None)  # nobody had to open it again
        store.put("k", b"1", overwrite=False)
        assert store.get("k") == (b"1", Encoding.RAW)
    with behind(url) as run:
        assert run("SELECT value FROM {ks}.info WHERE name = 'old'")[0][0] == "row"
    again = init_store(target)
    assert (again.done, again.statements, again.version) == ((), (), NEWEST)
    with behind(url) as run:
        run("INSERT INTO {ks}.info (name, value) VALUES (%s, %s)", VERSION_NAME, str(NEWEST + 1))
    with opened(url) as store, pytest.raises(ConfigError, match="knows") as caught:
        store.get("k")
    assert "upgrade rmgr" in caught.value.hint


def test_a_data_centre_that_is_not_there_is_named_with_those_that_are(url: str) -> None:
    wrong = url + "&local_dc=nowhere"
    with pytest.raises(ConfigError, match="no data centre 'nowhere': it has datacenter1"):
        init_store(parse_url(wrong), timeout_s=5)
    with opened(wrong) as store, pytest.raises(ConfigError, match="it has datacenter1"):
        store.get("k")


_CLI = "import sys; from rmgr.cli.main import run; sys.exit(run(sys.argv[1:]))"


def test_two_who_prepare_one_store_do_it_one_after_the_other(url: str, zookeeper: ZooKeeperServer, chroot: str) -> None:
    words = ["--zk", f"{zookeeper.hosts}{chroot}", "--store", url, "admin", "init-store"]
    children = [start(_CLI, *words) for _ in range(2)]
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sorted("nothing to do" in text for text in said) == [False, True]
    with opened(url) as store:
        assert store.health() is None


# -- what the tables hold -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(cassandra: SharedNode, tmp_path: Path) -> Iterator[CassandraStore]:
    cassandra_keyspaces.use(cassandra.contact)
    store = open_store(cassandra_keyspaces.fresh(tmp_path), grace_s=0.0, hour_s=0.2)
    assert isinstance(store, CassandraStore)
    yield store
    store.close()


@pytest.fixture
def run(store: CassandraStore) -> Iterator[Callable[..., Any]]:
    with behind(store.url) as run:
        yield run


def test_a_large_value_lies_in_partitions_below_10_mb_and_its_manifest_is_one_cell(store: CassandraStore, run: Callable[..., Any]) -> None:
    value = pattern(20 * CHUNK_BYTES + 5)
    store.put("big", value)
    rows = run("SELECT bucket, number, data FROM {ks}.chunk")
    assert sorted(number for _, number, _ in rows) == list(range(21))
    for bucket in {bucket for bucket, _, _ in rows}:
        sizes = [len(data) for at, _, data in rows if at == bucket]
        assert len(sizes) <= CHUNKS_PER_PARTITION
        assert sum(sizes) < 10_000_000
    ((manifest,),) = run("SELECT manifest FROM {ks}.value")
    assert (manifest[0], manifest[5], manifest[6]) == (len(value), 21, b"")


def test_a_time_to_live_is_set_on_every_row_of_a_value(store: CassandraStore, run: Callable[..., Any]) -> None:
    store.put("small", b"1", ttl_s=1000)
    store.put("large", pattern(2 * CHUNK_BYTES), ttl_s=1000)
    store.put("kept", b"1")
    for cql in ("SELECT key, TTL(manifest) FROM {ks}.value", "SELECT key, TTL(entry) FROM {ks}.key_index"):
        found = dict(map(tuple, run(cql)))
        assert found.pop("kept") is None
        assert all(800 < ttl <= 1001 for ttl in found.values())
        assert len(found) == 2
    assert all(800 < ttl <= 1001 for (ttl,) in run("SELECT TTL(data) FROM {ks}.chunk"))


def test_a_deleted_value_is_a_marker_that_expires_and_its_index_entry_is_gone(store: CassandraStore, run: Callable[..., Any]) -> None:
    store.put_many([(f"out/0000000001/{n}", b"x") for n in range(50)])
    for key in store.keys("out/0000000001/"):
        assert store.delete(key)
    found = run("SELECT manifest, TTL(manifest) FROM {ks}.value")
    assert len(found) == 50
    assert all(manifest[0] == -1 and 0 < ttl <= 86_400 for manifest, ttl in found)
    eventually(lambda: run("SELECT key FROM {ks}.key_index") == [])


def test_chunks_of_replaced_deleted_and_abandoned_values_are_freed_and_live_ones_are_not(
    store: CassandraStore, run: Callable[..., Any]
) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield pattern(3 * CHUNK_BYTES)
        raise ZeroDivisionError

    live = pattern(2 * CHUNK_BYTES, 2)
    store.put("replaced", pattern(2 * CHUNK_BYTES, 1), timeout_s=10.0)
    store.put("replaced", live, timeout_s=10.0)
    store.put("deleted", pattern(2 * CHUNK_BYTES), timeout_s=10.0)
    store.delete("deleted")
    with pytest.raises(ZeroDivisionError):
        store.put("abandoned", breaks_off(), timeout_s=10.0)
    assert store.sweep(now_ms=now_ms() - 86_400_000) == 0, "by the cluster's clock they may be read or written still"
    freed = 0

    def are_freed() -> bool:
        nonlocal freed
        freed += store.sweep()
        return len([data for (data,) in run("SELECT data FROM {ks}.chunk") if data]) == 2

    eventually(are_freed)
    assert freed >= 3  # one that is noted twice, as written and as replaced, may be counted twice
    assert store.get("replaced") == (live, Encoding.RAW)
    assert store.sweep() == 0


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_chunks_are_freed_although_a_sweep_came_before_their_slow_writer_was_ready(
    change: str, store: CassandraStore, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("key", pattern(2 * CHUNK_BYTES, 1), timeout_s=10.0)
    note = store._journal.note

    def slow(generation: UUID, key: str, **how: Any) -> Any:
        """After the old generation was noted, and before its value goes, hours pass and other sweeps look at all of them."""
        store._calls.one(noted := note(generation, key, **how), CallDeadline(10.0), "note")
        time.sleep(0.5)
        store.sweep()
        return noted

    with monkeypatch.context() as patch:
        patch.setattr(store._journal, "note", slow)
        if change == "replaced":
            store.put("key", pattern(CHUNK_BYTES + 1, 2), timeout_s=10.0)
        else:
            store.delete("key", timeout_s=10.0)

    def are_freed() -> bool:
        store.sweep()
        return len([data for (data,) in run("SELECT data FROM {ks}.chunk") if data]) == 2 * (change == "replaced")

    eventually(are_freed)


def test_a_scope_without_keys_leaves_the_register_a_day_after_its_last_write(store: CassandraStore, run: Callable[..., Any]) -> None:
    store.put_many([(f"out/{sub:010d}/x", b"1") for sub in (1, 2, 3)])
    for sub in (1, 3):
        store.delete(f"out/{sub:010d}/x")
    eventually(lambda: store.keys("out/") == ["out/0000000002/x"])
    assert store.sweep() == 0, "they were written to just now"
    for sub in (1, 2):
        run("UPDATE {ks}.scope SET since_ms = 1 WHERE family = 'out/' AND scope = %s", f"out/{sub:010d}/")
    assert store.sweep() == 1

    def registered() -> list[str]:
        return [scope for (scope,) in run("SELECT scope FROM {ks}.scope WHERE family = 'out/'")]

    eventually(lambda: registered() == ["out/0000000002/", "out/0000000003/"])
    assert store.keys("out/") == ["out/0000000002/x"]


def test_a_key_whose_writer_died_before_the_value_can_be_deleted(store: CassandraStore, run: Callable[..., Any]) -> None:
    store.put("other", b"1")
    run("TRUNCATE {ks}.value")
    assert store.keys() == ["other"]  # the index was written, the value never
    assert store.get("other") is None
    assert store.delete("other") is False
    eventually(lambda: store.keys() == [])


def test_a_writer_whose_clock_is_behind_replaces_and_deletes_all_the_same(store: CassandraStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_us = 120_000_000
    monkeypatch.setattr(store._clock, "_last_us", store._clock.next_us() + ahead_us)
    store.put("name/x", b"from two minutes ahead")
    with opened(store.url) as behind_in_time:
        behind_in_time.put("name/x", b"newer")
        assert store.get("name/x") == (b"newer", Encoding.RAW)
        store.put("name/y", b"1")
        assert behind_in_time.delete("name/y") is True
        assert store.get("name/y") is None
        behind_in_time.put("name/y", b"again", overwrite=False)
        assert store.get("name/y") == (b"again", Encoding.RAW)


def test_a_store_of_another_cluster_is_refused(store: CassandraStore) -> None:
    store.bind_cluster("one")
    with opened(store.url) as other, pytest.raises(WrongCluster, match="one, not to two"):
        other.bind_cluster("two")


def test_tables_that_were_emptied_are_noticed_and_not_used(store: CassandraStore) -> None:
    watched = WatchedStore(lambda: store, log=structlog.get_logger(), calm_s=0.1, away_s=0.1)
    try:
        watched.belong_to("one")
        cassandra_keyspaces.use("").empty()
        eventually(lambda: "the data store is empty, but cluster one" in watched.trouble)
    finally:
        watched._closing.set()
    with pytest.raises(WrongCluster, match="the data store is empty"):
        WatchedStore(lambda: store, log=None).belong_to("one", was_bound=True)


def test_a_claim_that_its_holder_left_behind_blocks_the_key_and_not_for_ever(store: CassandraStore, run: Callable[..., Any]) -> None:
    run("INSERT INTO {ks}.claim (key, claimant, held) VALUES ('name/x', uuid(), true) USING TTL 6")
    with pytest.raises(StoreUnavailable, match=r"others are creating 'name/x'|did not put 'name/x' within"):
        store.put("name/x", b"1", overwrite=False, timeout_s=0.5)
    assert store.get("name/x") is None
    store.put("name/x", b"1", overwrite=False, timeout_s=60)
    assert store.get("name/x") == (b"1", Encoding.RAW)


def test_of_many_stores_that_create_overlapping_keys_each_key_has_one_maker(store: CassandraStore) -> None:
    made: list[tuple[str, int]] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        with opened(store.url) as mine:
            for n in range(3):
                keys = [f"name/{n}/{i}" for i in range(number % 2, 6, 1 + number % 2)]
                with contextlib.suppress(KeyExists):
                    mine.put_many([(key, b"%d" % number) for key in keys], overwrite=False)
                    with lock:
                        made.extend((key, number) for key in keys)

    run_threads(work, 4)
    assert made
    assert len({key for key, _ in made}) == len(made)
    assert all(store.get(key) == (b"%d" % number, Encoding.RAW) for key, number in made)


def test_a_listing_goes_through_scopes_and_pages_in_order(store: CassandraStore) -> None:
    names = [f"out/{sub:010d}/{n:010d}/00001/00000" for sub in range(5) for n in range(60)]
    others = ["out", "out/", "out/x", "outer", "hist/1", "name/a", "z"]
    store.put_many([(name, b"12") for name in [*names, *others]])
    everything = sorted([*names, *others])
    found: list[str] = []
    while page := store.keys("", after=found[-1] if found else "", limit=70):
        found += page
    assert found == everything
    assert store.keys("out/0000000003/", limit=100) == [name for name in names if name.startswith("out/0000000003/")]
    assert store.keys("out/", after="out/0000000002/9999999999", limit=1) == ["out/0000000003/0000000000/00001/00000"]
    assert store.keys("out/00000000", after=names[-1]) == []
    assert store.usage("out/") == (302, 604)


def test_the_shared_node_serves_and_is_one_process_for_the_run(cassandra: SharedNode) -> None:
    assert cassandra.is_alive()
    assert CassandraNode("/nonexistent", address=cassandra.host, port=cassandra.port).is_serving()


def test_a_node_that_cannot_start_says_the_last_lines_of_its_log(cassandra_parts: None, tmp_path: Path) -> None:
    node = CassandraNode(tmp_path, settings={"no_such_setting": 1}, die_with_parent=True)
    with pytest.raises(Unavailable, match="no_such_setting") as caught:
        node.start(wait_s=30)
    assert str(node.log_file) in (caught.value.hint or "")
    assert not node.running


def test_missing_jars_are_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RMGR_CASSANDRA_LIB", str(tmp_path))
    found = missing_parts() or ""
    assert "RMGR_CASSANDRA_LIB" in found
    assert "unset it" in found
    monkeypatch.delenv("RMGR_CASSANDRA_LIB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "-m rmgr.dev.jars cassandra-5.0" in (missing_parts() or "")
