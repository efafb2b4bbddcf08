"""The data store adapters for the conformance suite, and helpers of its tests.

A new adapter needs one entry in `ADAPTERS`; tests get it from `ready`, which starts the server that it needs.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmgr.adapters.store_rules import CHUNK_BYTES
from rmgr.adapters.stores import open_store
from rmgr.coord.protocol.ports import Store
from rmgr.errors import StoreUnavailable
from tests.harness import cassandra_keyspaces
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How the suite opens and damages one kind of store."""

    url: Callable[[Path], str]
    options: dict[str, float]
    is_durable: bool  # rows outlive the process, and other processes may open the store meanwhile
    damage: Callable[[Path, str, int], None] | None  # flips a bit in chunk n of a value behind the store's back
    remove_chunk: Callable[[Path, str, int], None] | None
    sweeps_expired: bool = True  # else expired rows vanish by themselves, uncounted by `sweep`
    is_atomic: bool = True  # the rows of one put_many become visible together


def value_file(store: Path, key: str) -> Path | None:
    """Returns the file that holds a large value in a SQLite store, or None if the value is in its row."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        generation, chunks = connection.execute("SELECT generation, chunks FROM manifest WHERE key = ?", (key,)).fetchone()
    return store.with_name(store.name + ".values") / f"{generation:012d}" if chunks else None


def flip_bit(path: Path, at: int) -> None:
    """Flips a bit of a read-only file."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(0o400)


def _sqlite_damage(folder: Path, key: str, number: int) -> None:
    path = value_file(folder / "store.db", key)
    if path is not None:
        flip_bit(path, number * CHUNK_BYTES)
        return
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as connection, connection:
        (data,) = connection.execute("SELECT inline FROM manifest WHERE key = ?", (key,)).fetchone()
        connection.execute("UPDATE manifest SET inline = ? WHERE key = ?", (bytes([data[0] ^ 1]) + data[1:], key))


def _sqlite_remove_chunk(folder: Path, key: str, number: int) -> None:
    """Removes the whole file for chunk 0, else cuts it at the start of the chunk."""
    path = value_file(folder / "store.db", key)
    assert path is not None
    if number:
        path.chmod(0o600)
        os.truncate(path, number * CHUNK_BYTES)
    else:
        path.unlink()


_MEMORY = "memory:"

ADAPTERS = {
    "sqlite": Adapter(
        url=lambda folder: f"sqlite:{folder / 'store.db'}", options={"grace_s": 0.0}, is_durable=True, damage=_sqlite_damage,
        remove_chunk=_sqlite_remove_chunk,
    ),
    "memory": Adapter(url=lambda _: _MEMORY, options={}, is_durable=False, damage=None, remove_chunk=None),
    "cassandra": Adapter(
        url=cassandra_keyspaces.fresh, options={"grace_s": 0.0, "hour_s": 0.2}, is_durable=True, damage=cassandra_keyspaces.damage,
        remove_chunk=cassandra_keyspaces.remove_chunk, sweeps_expired=False, is_atomic=False,
    ),
}


def open_adapter(adapter: Adapter, folder: Path) -> Store:
    """Opens a store of this kind in `folder`. The one in memory is not for users, so `open_store` does not know its URL."""
    url = adapter.url(folder)
    if url == _MEMORY:
        return MemoryStore()
    store = open_store(url, **adapter.options)
    eventually(lambda: _is_reached(store), "its node is reached: where the machine stands still meanwhile, the first calls are refused")
    return store


def _is_reached(store: Store) -> bool:
    with contextlib.suppress(StoreUnavailable):
        store.get("nothing")
        return True
    return False


def ready(request: pytest.FixtureRequest) -> Adapter:
    """Returns the adapter of a parametrised test, ready for use."""
    if request.param == "cassandra":
        cassandra_keyspaces.use(request.getfixturevalue("cassandra").contact)
    return ADAPTERS[request.param]


def pattern(size: int, seed: int = 0) -> bytes:
    """Returns bytes that differ from chunk to chunk, so that a swapped or repeated chunk is noticed."""
    return random.Random(seed).randbytes(size)


def run_threads(work: Callable[[int], None], count: int) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
