"""Keyspaces in the shared Cassandra for tests of the data store: one per process, emptied for each test; and ways to damage values."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmgr.adapters.cassandra.schema import FOUNDED_NAME, MIGRATIONS, NEWEST, VERSION_NAME, ask
from rmgr.adapters.cassandra.url import parse_url
from rmgr.adapters.store_rules import now_ms
from tests.harness.fair_time import undisturbed

#: The partition key of each table.
TABLES = {
    "info": ("name",),
    "value": ("key",),
    "chunk": ("generation", "bucket"),
    "key_index": ("scope", "bucket"),
    "scope": ("family",),
    "claim": ("key",),
    "journal": ("hour", "part"),
}
assert TABLES.keys() == {table.name for migration in MIGRATIONS for table in migration.tables}
#: Most partitions of a table that are deleted one by one, in a millisecond each; to truncate a table takes seventy.
_MOST_DELETED = 40
_OPTIONS = "replication_factor=1&request_timeout=5"


class Keyspaces:
    """The keyspace of this process. Creating it takes 3 s, emptying it 20 ms."""

    def __init__(self, contact: str) -> None:
        self.url = f"cassandra://{contact}/store_{os.getpid()}?{_OPTIONS}"
        self._made = False
        self._seen: set[Path] = set()

    def fresh(self, folder: Path) -> str:
        """Returns the URL of the keyspace, and empties it at the first call with this `folder`."""
        if not self._made:
            from rmgr.adapters.cassandra.setup import init_store

            undisturbed(init_store)(parse_url(self.url))  # its nodes agree on the schema within 10 s, or it gives up
            self._made = True
        elif folder not in self._seen:
            self.empty()
        self._seen.add(folder)
        return self.url

    def empty(self) -> None:
        """Deletes everything; truncates if there is much, or if a clock that is ahead has written something, which outlives deletion."""
        run = self._run
        if not all(self._delete(table) for table in TABLES):
            for table in TABLES:
                run(f"TRUNCATE {{ks}}.{table}")
        run("INSERT INTO {ks}.info (name, value) VALUES (%s, %s)", VERSION_NAME, str(NEWEST))
        run("INSERT INTO {ks}.info (name, value) VALUES (%s, %s)", FOUNDED_NAME, str(now_ms()))

    def _delete(self, table: str) -> bool:
        """Deletes the partitions of a table if they are few; returns whether it is empty now."""
        run, names = self._run, TABLES[table]
        partitions = f"SELECT DISTINCT {', '.join(names)} FROM {{ks}}.{table} LIMIT"
        found = run(f"{partitions} {_MOST_DELETED + 1}")
        if len(found) <= _MOST_DELETED:
            for partition in found:
                run(f"DELETE FROM {{ks}}.{table} WHERE " + " AND ".join(f"{name} = %s" for name in names), *partition)
            found = found and run(f"{partitions} 1")
        return not found

    @functools.cached_property
    def _run(self) -> Any:
        """The one connection of this process, kept until its end."""
        stack = contextlib.ExitStack()
        atexit.register(stack.close)
        return stack.enter_context(behind(self.url))


@contextlib.contextmanager
def behind(url: str) -> Iterator[Any]:
    """Yields `run(cql, *values)`, which bypasses the store; `{ks}` in the CQL becomes the keyspace."""
    from rmgr.adapters.cassandra.driver import enter

    target = parse_url(url)
    connection = enter(target)
    try:
        yield lambda cql, *values: connection.run(cql.format(ks=target.keyspace), values)
    finally:
        connection.close()


_of_this_run: list[Keyspaces] = []


def use(contact: str) -> Keyspaces:
    """Returns the keyspaces of this process in the node of this run, made at the first call."""
    if not _of_this_run:
        _of_this_run.append(Keyspaces(contact))
    return _of_this_run[0]


def fresh(folder: Path) -> str:
    """As `Keyspaces.fresh`, after a call of `use`."""
    return _of_this_run[0].fresh(folder)


def damage(folder: Path, key: str, number: int) -> None:
    """Flips a bit in chunk `number` of a value."""
    with behind(fresh(folder)) as run:
        manifest = list(run("SELECT manifest FROM {ks}.value WHERE key = %s", key)[0][0])
        if manifest[5]:
            place = (manifest[4], number // 16, number)
            where = "WHERE generation = %s AND bucket = %s AND number = %s"
            data = run("SELECT data FROM {ks}.chunk " + where, *place)[0][0]
            run("UPDATE {ks}.chunk SET data = %s " + where, _flipped(data), *place)
        else:
            manifest[6] = _flipped(manifest[6])
            set_manifest(fresh(folder), key, tuple(manifest))


def set_manifest(url: str, key: str, manifest: tuple[Any, ...]) -> None:
    """Overwrites the manifest of `key` in the table `value`."""
    from rmgr.adapters.cassandra.driver import dial

    connection = dial(parse_url(url))
    try:
        connection.send(ask("set_value", key, manifest, time.time_ns() // 1000, 0), 5.0).result(60)
    finally:
        connection.close()


def remove_chunk(folder: Path, key: str, number: int) -> None:
    with behind(fresh(folder)) as run:
        manifest = run("SELECT manifest FROM {ks}.value WHERE key = %s", key)[0][0]
        run("DELETE FROM {ks}.chunk WHERE generation = %s AND bucket = %s AND number = %s", manifest[4], number // 16, number)


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]
