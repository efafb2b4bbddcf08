"""Large values of the SQLite store: private files, never left half-made by a crash, and removed by a sweep."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite import values
from rmgr.adapters.sqlite.store import STAGE_BYTES, SqliteStore
from rmgr.adapters.sqlite.writer import Writer
from rmgr.adapters.store_rules import CHUNK_BYTES, CallDeadline
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import DataLost, KeyExists, StoreUnavailable, ValueTooLarge
from tests.harness.store_adapters import flip_bit, pattern, value_file

LARGE = pattern(3 * CHUNK_BYTES + 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path, grace_s=0) as opened:
        yield opened


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql).fetchall()


def files(path: Path) -> set[Path]:
    return set(path.with_name("store.db.values").iterdir())


def broken() -> Iterator[bytes]:
    yield bytes(2 * STAGE_BYTES)
    raise ZeroDivisionError


# -- what is left on the disk ----------------------------------------------------------------------------------------------


def test_a_sweep_leaves_the_files_of_values_and_no_other(store: SqliteStore, path: Path) -> None:
    store.put("stays", LARGE)
    store.put("replaced", LARGE)
    store.put("replaced", b"small")
    store.put("deleted", iter([LARGE] * 3))
    store.delete("deleted")
    with pytest.raises(ZeroDivisionError):
        store.put("broken", broken())
    with pytest.raises(KeyExists):
        store.put("stays", iter([LARGE, LARGE]), overwrite=False)
    assert len(files(path)) == 3, "what was refused has left nothing"
    assert store.sweep() == 2
    assert files(path) == {value_file(path, "stays")}
    assert store.get("stays") == (LARGE, "raw")


def test_who_reads_a_value_that_is_replaced_and_swept_has_the_old_one_whole(store: SqliteStore, path: Path) -> None:
    store.put("k", LARGE)
    stream = store.stream("k")
    assert stream is not None
    first = next(stream)
    store.put("k", b"new")
    assert store.sweep() == 1
    assert files(path) == set()
    assert first + b"".join(stream) == LARGE


def test_a_writer_that_is_killed_leaves_the_old_value_and_a_file_for_the_sweep(store: SqliteStore, path: Path) -> None:
    script = """
import os, signal, sys
from rmgr.adapters.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
store._writer.write = lambda run, *a, write=store._writer.write, **k: (
    os.kill(os.getpid(), signal.SIGKILL) if store._large._free else write(run, *a, **k))
store.put("k", bytes(2_000_000))
"""
    store.put("k", LARGE)
    assert subprocess.run([sys.executable, "-c", script, path], timeout=60, check=False).returncode == -9
    assert store.get("k") == (LARGE, "raw")
    assert len(files(path)) == 2
    assert store.sweep() == 0, "it might be written still"
    query(path, "UPDATE unreferenced SET since_ms = 0")  # an hour later
    assert store.sweep() > 0
    assert files(path) == {value_file(path, "k")}
    with pytest.raises(StoreUnavailable, match="swept away"):
        store.put("late", LARGE)  # with a number that this process had set aside
    assert store.get("late") is None
    assert files(path) == {value_file(path, "k")}, "nor is there a file that no sweep would find"


# -- who may read it -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "folder", "file"), [(0o600, 0o700, 0o400), (0o660, 0o770, 0o440), (0o640, 0o750, 0o440)])
def test_who_may_read_the_store_may_read_its_files_and_nobody_else(path: Path, mode: int, folder: int, file: int) -> None:
    old = os.umask(0)
    try:
        with SqliteStore(path) as store:
            path.chmod(mode)
            store.put("k", LARGE)
    finally:
        os.umask(old)
    value = value_file(path, "k")
    assert value is not None
    assert [stat.S_IMODE(one.stat().st_mode) for one in (value.parent, value)] == [folder, file]


# -- a second name ------------------------------------------------------------------------------------------------------------------


def test_a_value_becomes_a_file_without_a_copy_and_outlives_its_key(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    store.put("k", LARGE)
    store.put("small", b"1")
    name = str(tmp_path / "second")
    assert store.fetch("k", name, largest=1 << 30) == (None, hashlib.sha256(LARGE).digest())
    assert value_file(path, "k").samefile(name)  # type: ignore[union-attr]
    store.delete("k")
    store.sweep()
    assert Path(name).read_bytes() == LARGE
    assert store.fetch("small", name, largest=1 << 30) == (b"1", hashlib.sha256(b"1").digest())
    assert store.fetch("absent", name, largest=1 << 30) is None


def test_a_value_on_another_file_system_is_copied(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store.put("k", LARGE)
    assert store.fetch("k", str(tmp_path / "copy"), largest=1 << 30) == (None, hashlib.sha256(LARGE).digest())
    assert (tmp_path / "copy").read_bytes() == LARGE
    with pytest.raises(FileNotFoundError):
        store.fetch("k", str(tmp_path / "no" / "where"), largest=1 << 30)


def test_a_value_that_is_replaced_while_it_is_fetched_is_the_new_one_and_bounded(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", LARGE)
    select, later = store._select, [LARGE + b"x", LARGE + b"xyz"]

    def replaced(key: str, deadline: CallDeadline) -> Any:
        row = select(key, deadline)
        if later:
            store.put("k", later.pop(0))
            assert row is not None
            store._large._path(row.generation).unlink()  # as a sweep would
        return row

    monkeypatch.setattr(store, "_select", replaced)
    with pytest.raises(ValueTooLarge):
        store.fetch("k", str(tmp_path / "fetched"), largest=len(LARGE) + 1)
    later.append(LARGE + b"!")
    assert store.fetch("k", str(tmp_path / "fetched"), largest=len(LARGE) + 3) == (None, hashlib.sha256(LARGE + b"!").digest())


def test_a_damaged_file_gets_no_second_name(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    store.put("k", LARGE)
    flip_bit(value_file(path, "k"), len(LARGE) - 1)  # type: ignore[arg-type]
    with pytest.raises(DataLost):
        store.fetch("k", str(tmp_path / "second"), largest=1 << 30)
    assert not (tmp_path / "second").exists()


# -- files that become values ----------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file in the directory of the store, as a worker leaves it."""
    file = tmp_path / "made"
    file.write_bytes(LARGE)
    return file


def test_a_file_becomes_a_value_without_being_copied(store: SqliteStore, path: Path, made: Path) -> None:
    digest = hashlib.sha256(LARGE).digest()
    store.put("replaced", bytes(CHUNK_BYTES + 1))
    for key, known in (("new", b""), ("replaced", digest)):
        assert store.adopt(key, str(made), encoding=Encoding.PICKLE, sha256=known) == (len(LARGE), digest)
        assert store.get(key) == (LARGE, "pickle")
        file = value_file(path, key)
        assert file.samefile(made)
        assert stat.S_IMODE(file.stat().st_mode) == 0o400
    made.unlink()
    assert store.get("new") == (LARGE, "pickle")
    store.sweep()
    assert len(files(path)) == 2


def test_a_file_whose_hash_was_said_wrong_cannot_be_read(store: SqliteStore, made: Path) -> None:
    store.adopt("k", str(made), sha256=bytes(32))
    with pytest.raises(DataLost, match="'k'"):
        store.get("k")


def test_a_small_file_and_one_of_another_file_system_are_to_be_put(store: SqliteStore, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write_bytes(bytes(CHUNK_BYTES))
    assert store.adopt("small", str(made)) is None
    made.write_bytes(LARGE)
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EXDEV, "Invalid cross-device link")))
    assert store.adopt("large", str(made)) is None
    assert store.keys() == []
    with pytest.raises(FileNotFoundError):
        store.adopt("none", str(made.with_name("none")))


def test_a_file_that_is_exchanged_meanwhile_becomes_no_value(
    store: SqliteStore, path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def exchanged(source: str, *args: Any, **options: Any) -> None:
        made.with_name("other").write_bytes(LARGE[::-1])
        made.with_name("other").replace(made)
        real(source, *args, **options)

    monkeypatch.setattr(os, "link", exchanged)
    assert store.adopt("k", str(made)) is None
    assert store.get("k") is None
    assert files(path) == set()


def test_directories_of_its_own_file_system_are_worth_files(store: SqliteStore, tmp_path: Path) -> None:
    assert store.adopts_above(str(tmp_path)) == CHUNK_BYTES
    assert store.adopts_above("/proc") is None


def test_a_value_that_is_fetched_by_who_compares_it_is_not_read(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    store.put("k", LARGE)
    damaged = value_file(path, "k")
    assert damaged is not None
    flip_bit(damaged, 7)
    assert store.fetch("k", str(tmp_path / "here"), largest=1 << 30, is_compared=False) == (None, hashlib.sha256(LARGE).digest())
    with pytest.raises(DataLost, match="hash differs"):
        store.fetch("k", str(tmp_path / "there"), largest=1 << 30)
    damaged.chmod(0o600)
    os.truncate(damaged, 9)
    with pytest.raises(DataLost, match="9 of 1,"):
        store.fetch("k", str(tmp_path / "again"), largest=1 << 30, is_compared=False)
    assert [name.exists() for name in (tmp_path / "here", tmp_path / "there", tmp_path / "again")] == [True, False, False]


# -- while others wait, or nothing can be made --------------------------------------------------------------------------------


def test_who_needs_a_number_waits_for_others_no_longer_than_it_may(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = threading.Event()
    write = Writer.write

    def told(self: Writer, *args: Any, **options: Any) -> Any:
        asks.set()
        return write(self, *args, **options)

    monkeypatch.setattr(Writer, "write", told)
    with open(path.with_name("store.db.lock"), "rb") as stopped:  # another process, which was stopped in mid-commit
        fcntl.flock(stopped, fcntl.LOCK_EX)
        patient = threading.Thread(target=store.put, args=("patient", LARGE), kwargs={"timeout_s": 120.0})
        patient.start()
        assert asks.wait(60)
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not begin"):
            store.put("hasty", LARGE, timeout_s=0.5)
        assert time.monotonic() - began_s < 30
        fcntl.flock(stopped, fcntl.LOCK_UN)
    patient.join(60)
    assert store.head("patient") == (len(LARGE), Encoding.RAW)


def test_files_that_cannot_be_handed_over_leave_no_descriptor_open(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    store.put("k", LARGE)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(values, "_hand_over", refused)
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="no space left"):
            store.put("k", LARGE)
    assert len(os.listdir("/proc/self/fd")) == before
