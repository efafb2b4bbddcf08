"""Every data store adapter survives damage, many processes and a writer killed in mid-write; and how stores are opened."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rmgr.adapters.store_rules import CHUNK_BYTES
from rmgr.adapters.stores import open_store
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import DataLost, UsageError
from tests.harness.store_adapters import ADAPTERS, Adapter, pattern, start


def only(adapters: Callable[[Adapter], object]) -> pytest.MarkDecorator:
    """The test is made for these adapters only: a store in the memory of one process has no file to damage and no second process."""
    return pytest.mark.parametrize("adapter", sorted(name for name, one in ADAPTERS.items() if adapters(one)), indirect=True)


durable = only(lambda one: one.is_durable)


# -- damage ----------------------------------------------------------------------------------------------------------------------


@only(lambda one: one.damage)
@pytest.mark.parametrize(("size", "chunk"), [(100, 0), (CHUNK_BYTES, 0), (3 * CHUNK_BYTES + 1, 0), (3 * CHUNK_BYTES + 1, 3)])
def test_a_damaged_value_is_data_lost_and_never_wrong_bytes(adapter: Adapter, store: Store, tmp_path: Path, size: int, chunk: int) -> None:
    assert adapter.damage is not None
    store.put("k", pattern(size))
    store.put("other", b"fine")
    adapter.damage(tmp_path, "k", chunk)
    assert_lost(store, tmp_path)


@only(lambda one: one.remove_chunk)
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_value_with_a_missing_chunk_is_data_lost(adapter: Adapter, store: Store, tmp_path: Path, chunk: int) -> None:
    assert adapter.remove_chunk is not None
    store.put("k", pattern(2 * CHUNK_BYTES + 1))
    store.put("large", pattern(2 * CHUNK_BYTES + 1, 1))  # in SQLite's directory, which is there then
    store.put("other", b"fine")
    adapter.remove_chunk(tmp_path, "k", chunk)
    assert_lost(store, tmp_path)


def assert_lost(store: Store, folder: Path) -> None:
    with pytest.raises(DataLost, match="'k'"):
        store.get("k")
    with pytest.raises(DataLost, match="'k'"):
        store.fetch("k", str(folder / "fetched"), largest=1 << 30)
    assert not (folder / "fetched").exists()
    with pytest.raises(DataLost, match="'k'"):
        store.get_many(["other", "k"])
    with pytest.raises(DataLost, match="'k'"):
        list(store.stream("k") or ())
    assert store.get("other") == (b"fine", Encoding.RAW)
    store.put("k", b"repaired")
    assert store.get("k") == (b"repaired", Encoding.RAW)


# -- processes ---------------------------------------------------------------------------------------------------------------------

_WRITER = """
import sys
from rmgr.adapters.stores import open_store
url, me = sys.argv[1], sys.argv[2]
with open_store(url) as store:
    for n in range(30):
        store.put(f"p/{me}/{n}", f"{me} {n}".encode())
        store.put_many([(f"m/{me}/{n}/{i}", b"x" * i) for i in range(5)])
        if n % 10 == 0:
            store.put(f"big/{me}/{n}", bytes([n]) * (3 * 2**20 + 1))
        try:
            store.put(f"once/{n}", me.encode(), overwrite=False)
            print(f"once/{n}")
        except Exception as error:
            assert type(error).__name__ == "KeyExists", error
"""


@durable
def test_four_processes_write_at_once(adapter: Adapter, store: Store, tmp_path: Path) -> None:
    children = [start(_WRITER, adapter.url(tmp_path), str(n)) for n in range(4)]
    created: list[str] = []
    for child in children:
        out, _ = child.communicate(timeout=100)
        assert child.returncode == 0
        created += out.split()
    assert sorted(created) == sorted(f"once/{n}" for n in range(30)), "each key was created by exactly one process"
    for me in range(4):
        assert store.get(f"p/{me}/29") == (f"{me} 29".encode(), Encoding.RAW)
        assert store.get(f"big/{me}/20") == (bytes([20]) * (3 * 2**20 + 1), Encoding.RAW)
    assert store.usage("p/")[0] == 4 * 30
    assert store.usage("m/")[0] == 4 * 30 * 5


_VICTIM = """
import sys
from rmgr.adapters.stores import open_store
with open_store(sys.argv[1]) as store:
    n = 0
    while True:
        n += 1
        letter = b"ab"[n % 2:][:1]
        store.put("big", (letter * 1_000_000 for _ in range(6)))
        store.put_many([(f"row/{i}", letter * 50) for i in range(200)])
        print(n, flush=True)
"""


@durable
def test_a_writer_killed_in_mid_write_leaves_whole_values_only(adapter: Adapter, store: Store, tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(6):
        child = start(_VICTIM, adapter.url(tmp_path))
        assert child.stdout is not None
        try:
            assert child.stdout.readline()  # the first round is durable
            threading.Event().wait(rng.uniform(0, 0.08))  # any moment of a later round
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait(60)
            child.stdout.close()
        big, _ = store.get("big") or (b"", None)
        assert big in (b"a" * 6_000_000, b"b" * 6_000_000)
        rows = store.get_many([f"row/{i}" for i in range(200)])
        assert len(rows) == 200
        kinds = {value for value, _ in rows.values()}
        assert kinds <= {b"a" * 50, b"b" * 50}
        if adapter.is_atomic:
            assert len(kinds) == 1, "rows of one put_many are seen together"
        store.put("after", b"alive", timeout_s=60)
        assert store.get("after") == (b"alive", Encoding.RAW)


@durable
def test_acknowledged_values_outlive_their_writer(adapter: Adapter, tmp_path: Path) -> None:
    script = """
import os, sys
from rmgr.adapters.stores import open_store
store = open_store(sys.argv[1])
for n in range(50):
    store.put(f"k/{n}", b"%d" % n)
print("done", flush=True)
os.kill(os.getpid(), 9)
"""
    child = start(script, adapter.url(tmp_path))
    out, _ = child.communicate(timeout=60)
    assert out == "done\n"
    store = open_store(adapter.url(tmp_path))
    try:
        assert {key: value for key, (value, _) in store.get_many([f"k/{n}" for n in range(50)]).items()} == {
            f"k/{n}": b"%d" % n for n in range(50)
        }
    finally:
        store.close()


# -- opening -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "store.db", "mysql:x", "sqlite:", "sqlite://host/x", ":x"])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_sqlite_urls_name_a_path(tmp_path: Path) -> None:
    for url in (f"sqlite:{tmp_path}/a b%.db", f"sqlite://{tmp_path}/a%20b%25.db"):
        open_store(url).close()
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a b%.db"]
