"""Commits of the SQLite store sync the disk, except those of keys whose callers go on once they are decided.

Writes without a waiting thread are tested, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import queue
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.sqlite.file import StoreFile
from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import KeyExists, RmgrError, UsageError
from tests.harness.waiting import eventually

POINTER = Encoding.POINTER


class Traced:
    """A store, and the statements of its writer that decide or end a commit."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        opened = StoreFile.connect

        def connect(file: StoreFile, *, writes: bool = False) -> sqlite3.Connection:
            connection = opened(file, writes=writes)
            if writes:
                connection.set_trace_callback(self.statements.append)
            return connection

        self.path = path
        self.store = SqliteStore(path)
        monkeypatch.setattr(StoreFile, "connect", connect)

    def levels(self) -> list[str]:
        """Of the commits so far, in order: FULL syncs the log of writes, NORMAL leaves that to whoever syncs next."""
        level, is_open, found = "FULL", False, []
        for statement in self.statements:
            if statement.startswith("PRAGMA synchronous="):
                level = statement.partition("=")[2]
            elif statement == "BEGIN IMMEDIATE":
                is_open = True
            elif statement == "COMMIT" or (statement.startswith("INSERT INTO manifest") and not is_open):
                is_open = False
                found.append(level)
        return found

    def claim(self, key: str) -> None:
        self.store.put_many([(key, b"mine")], encoding=POINTER, overwrite=False, decided=lambda: None)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    made = Traced(tmp_path / "store.db", monkeypatch)
    yield made
    made.store.close()


@contextlib.contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """Writes gather meanwhile."""
    with path.with_name(path.name + ".lock").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_claim_is_seen_at_once_and_synced_with_the_next_write(traced: Traced) -> None:
    traced.claim("name/a")
    with SqliteStore(traced.path) as other:
        assert other.get("name/a") == (b"mine", POINTER)
        with pytest.raises(KeyExists, match="name/a"):
            other.put_many([("name/a", b"another's")], encoding=POINTER, overwrite=False, decided=lambda: None)
    traced.store.put("value", b"1")
    traced.claim("name/b")
    assert traced.levels() == ["NORMAL", "NORMAL", "FULL", "NORMAL"]  # the second one is the other's, and empty


def test_without_a_caller_who_goes_on_new_keys_are_synced(traced: Traced) -> None:
    traced.store.put_many([("name/a", b"mine")], encoding=POINTER, overwrite=False)
    traced.store.put("value", b"1", overwrite=False)
    assert traced.levels() == ["FULL", "FULL"]


def test_a_group_is_synced_if_one_of_its_writes_is(traced: Traced) -> None:
    """The claim comes first, and shares its commit with a value."""
    traced.claim("name/first")
    with lock_held(traced.path):
        writers = [threading.Thread(target=traced.claim, args=("name/a",)), threading.Thread(target=traced.store.put, args=("value", b"1"))]
        for writer in writers:
            writer.start()
        eventually(lambda: len(traced.store._writer._queue) == len(writers), "both wait for the lock")
    for writer in writers:
        writer.join(60)
    assert traced.store.get("name/a") == (b"mine", POINTER)
    assert traced.store.get("value") == (b"1", Encoding.RAW)
    assert traced.levels() == ["NORMAL", "FULL"]


# -- begun, and not waited for -----------------------------------------------------------------------------------------------


class Told:
    """Hears how writes ended."""

    def __init__(self) -> None:
        self.answers: queue.Queue[RmgrError | None] = queue.Queue()

    def begin(self, store: SqliteStore, rows: list[tuple[str, bytes]], *, overwrite: bool = True) -> bool:
        return store.put_soon(rows, encoding=POINTER, notes=(), done=self.answers.put, overwrite=overwrite)

    def heard(self) -> RmgrError | None:
        return self.answers.get(timeout=30)


def test_what_was_begun_is_durable_when_it_is_said(traced: Traced) -> None:
    told = Told()
    assert traced.store.puts_soon
    assert told.begin(traced.store, [("value", b"1"), ("other", b"2")])
    assert told.heard() is None
    assert told.begin(traced.store, [("name/a", b"mine")], overwrite=False)
    assert told.heard() is None
    with SqliteStore(traced.path) as other:
        assert other.get_many(["value", "other", "name/a"]) == {
            "value": (b"1", POINTER), "other": (b"2", POINTER), "name/a": (b"mine", POINTER)
        }  # fmt: skip
    assert traced.levels() == ["FULL", "NORMAL"]


def test_a_key_that_is_there_is_refused_and_nothing_is_written(traced: Traced) -> None:
    told = Told()
    traced.claim("name/a")
    assert told.begin(traced.store, [("name/b", b"mine"), ("name/a", b"mine, too")], overwrite=False)
    assert isinstance(error := told.heard(), KeyExists)
    assert "name/a" in error.message
    assert traced.store.get("name/b") is None


def test_what_is_large_or_comes_too_late_is_not_begun(traced: Traced) -> None:
    told = Told()
    assert not told.begin(traced.store, [("value", bytes(64 * 1024 + 1))])
    assert not told.begin(traced.store, [])
    with pytest.raises(UsageError):
        told.begin(traced.store, [("", b"1")])
    traced.store.close()
    assert not told.begin(traced.store, [("value", b"1")])
    assert told.answers.empty()


def test_what_waits_for_the_lock_of_another_process_is_written_after_it(traced: Traced) -> None:
    told = Told()
    traced.store.put("value", b"0")
    with lock_held(traced.path):
        assert told.begin(traced.store, [("value", b"1")])
        with pytest.raises(queue.Empty):
            told.answers.get(timeout=0.2)
    assert told.heard() is None
    assert traced.store.get("value") == (b"1", POINTER)


def test_a_listener_that_raises_does_not_stop_the_writer(traced: Traced) -> None:
    told = Told()

    def raising(_error: RmgrError | None) -> None:
        raise RuntimeError("its loop has ended")

    traced.store.put("value", b"0")
    with lock_held(traced.path):
        assert traced.store.put_soon([("first", b"1")], encoding=POINTER, notes=(), done=raising)
        assert told.begin(traced.store, [("second", b"2")])
    assert told.heard() is None
    traced.store.put("value", b"3")
    assert traced.store.get_many(["first", "second", "value"]) == {
        "first": (b"1", POINTER), "second": (b"2", POINTER), "value": (b"3", Encoding.RAW)
    }  # fmt: skip
