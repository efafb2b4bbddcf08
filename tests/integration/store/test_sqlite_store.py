"""The SQLite store: one file, crashes, full disks, old formats; large values in private files, never half-made, removed by a sweep."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite import file as sqlite_file
from rmgr.adapters.sqlite import rows as sqlite_rows
from rmgr.adapters.sqlite import store as sqlite
from rmgr.adapters.sqlite import writer as sqlite_writer
from rmgr.adapters.sqlite.store import STAGE_BYTES, SqliteStore
from rmgr.adapters.sqlite.writer import Writer
from rmgr.adapters.store_rules import CHUNK_BYTES, CallDeadline
from rmgr.coord.protocol.ports import About, Encoding
from rmgr.errors import DataLost, KeyExists, RmgrError, StoreUnavailable, UsageError, ValueTooLarge
from tests.harness.fair_time import FairTimer
from tests.harness.store_adapters import flip_bit, pattern, value_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path, grace_s=0) as opened:
        yield opened


@contextlib.contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed its first line, killed at the end."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql).fetchall()


# -- hashes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, CHUNK_BYTES + 1, 9 * 2**20], ids=["inline", "file", "large file"])
def test_who_has_hashed_a_value_need_not_do_it_again_and_a_wrong_hash_is_never_believed(store: SqliteStore, size: int) -> None:
    value = os.urandom(size)
    digest = hashlib.sha256(value).digest()
    store.put_hashed("k", (value[:5], value[5:]), digest)
    assert store.get_noted("k") == (value, About(len(value), Encoding.RAW, digest, b""))
    assert store.get_noted("absent") is None
    store.put_hashed("k", (value,), bytes(32))
    with pytest.raises(DataLost, match="hash differs"):
        store.get("k")


# -- locks ----------------------------------------------------------------------------------------------------------------

_HOLD_SIDE_FILE = """
import fcntl, sys
file = open(sys.argv[1] + ".lock")
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""
_HOLD_DATABASE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("script", [_HOLD_SIDE_FILE, _HOLD_DATABASE], ids=["flock", "sqlite"])
def test_a_deadline_holds_while_another_process_keeps_the_lock(store: SqliteStore, path: Path, script: str) -> None:
    told = "nothing was written" if script is _HOLD_SIDE_FILE else r"within 300ms"
    store.put("k", b"old")
    with child(script, path):
        calls: list[Callable[[], object]] = [
            lambda: store.put("k", b"new", timeout_s=0.3),
            lambda: store.put("k", iter([bytes(STAGE_BYTES)] * 2), timeout_s=0.3),
            lambda: store.put_many([("l", b"new")], timeout_s=0.3),
            lambda: store.delete("k", timeout_s=0.3),
            lambda: store.bind_cluster("c", timeout_s=0.3),
        ]
        for call in calls:
            begun = time.monotonic()
            with FairTimer() as timer, pytest.raises(StoreUnavailable, match=told):
                call()
            assert time.monotonic() - begun > 0.2
            assert timer.elapsed_s < 2
        assert store.health(timeout_s=0.2) is not None
        assert store.get("k") == (b"old", "raw"), "readers never wait for writers"
    store.put("k", b"newer", timeout_s=60)
    assert store.get("k") == (b"newer", "raw")
    assert store.get("l") is None, "a write given up before it began is not done later"
    assert store.health() is None


@pytest.mark.parametrize("script", [_HOLD_SIDE_FILE, _HOLD_DATABASE], ids=["flock", "sqlite"])
def test_a_write_waits_for_the_lock_until_its_deadline(store: SqliteStore, path: Path, script: str) -> None:
    with child(script, path) as holder:
        timer = threading.Timer(1.2, holder.kill)
        timer.start()
        store.put("k", b"1", timeout_s=30)
        timer.join()
    assert store.get("k") == (b"1", "raw")


def test_writers_wait_for_room_when_too_much_is_queued(store: SqliteStore, path: Path) -> None:
    value = bytes(CHUNK_BYTES)
    refused: list[RmgrError] = []

    def put(number: int) -> None:
        try:
            store.put_many([(f"k{number}/{n}", value) for n in range(4)], timeout_s=4.0)
        except StoreUnavailable as error:
            refused.append(error)

    with child(_HOLD_SIDE_FILE, path):
        threads = [threading.Thread(target=put, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(refused) == 24
    assert sum("too much is waiting" in error.message for error in refused) == 24 - 15  # of 2 MiB and a little, 15 have room in 32 MiB
    store.put("k", b"1")


# -- disks -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB. Needs root and the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if not mount or subprocess.run([mount, "-t", "tmpfs", "-o", "size=3m", "none", folder], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_told_and_survived(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_500_000))
    with SqliteStore(small_disk / "store.db", grace_s=0) as store:
        store.put("k", b"before")
        for value in (bytes(CHUNK_BYTES * 4), iter([bytes(STAGE_BYTES)] * 3)):
            with pytest.raises(StoreUnavailable, match="no space left on the disk"):
                store.put("big", value)
        assert store.get("big") is None
        assert store.get("k") == (b"before", "raw")
        ballast.unlink()
        store.put("k", b"after", timeout_s=60)
        store.sweep()
        store.put("big", bytes(CHUNK_BYTES))
        assert store.get("k") == (b"after", "raw")
        assert store.health() is None


_PUT_MANY = """
import sys
from pathlib import Path
from rmgr.adapters.sqlite.store import SqliteStore
with SqliteStore(Path(sys.argv[1]), grace_s=0) as store:
    for value in (b"x" * 2000, b"y" * 3000):  # so many, and over others, that SQLite would keep a journal of the statement
        store.put_many([(f"k{number:04}", value) for number in range(300)])
print("ready", flush=True)
"""


def test_a_full_directory_for_temporary_files_keeps_nobody_from_a_store_elsewhere(
    small_disk: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(2**24))
    monkeypatch.setenv("TMPDIR", str(small_disk))
    with child(_PUT_MANY, path):
        pass


def test_a_full_disk_refuses_only_the_writes_that_do_not_fit(small_disk: Path) -> None:
    with SqliteStore(small_disk / "store.db", grace_s=0) as store, contextlib.ExitStack() as stack:
        store.put("k", b"1")
        ends: dict[str, Exception | None] = {}

        def put(key: str, size: int) -> None:
            try:
                store.put(key, bytes(size), timeout_s=20)
                ends[key] = None
            except StoreUnavailable as error:
                ends[key] = error

        # held up together at the lock, they become one group
        threads = [threading.Thread(target=put, args=arguments) for arguments in (("a", 100), ("big", STAGE_BYTES + 2**20), ("c", 100))]
        holder = stack.enter_context(child(_HOLD_SIDE_FILE, small_disk / "store.db"))
        for thread in threads:
            thread.start()
        holder.kill()
        for thread in threads:
            thread.join(60)
        assert ends["a"] is None
        assert ends["c"] is None
        assert isinstance(ends["big"], StoreUnavailable)


def test_a_read_only_disk_is_told(small_disk: Path) -> None:
    with SqliteStore(small_disk / "store.db") as store:
        store.put("k", b"1")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreUnavailable, match="Read-only file system"):
        SqliteStore(small_disk / "store.db")
    with pytest.raises(StoreUnavailable, match="Read-only file system"):
        SqliteStore(small_disk / "other.db")


def test_a_write_error_of_the_file_is_told_and_survived(store: SqliteStore, path: Path) -> None:
    # A limit on the size of files stands for any disk that refuses to take more (EFBIG); Python ignores its signal.
    store.put("k", b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(StoreUnavailable, match=str(path)):
            store.put("big", bytes(3 * CHUNK_BYTES), timeout_s=60)
        assert store.get("k") == (b"before", "raw")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.put("big", bytes(3 * CHUNK_BYTES), timeout_s=60)
    assert store.head("big") == (3 * CHUNK_BYTES, "raw")


@contextlib.contextmanager
def as_nobody() -> Iterator[Path]:
    """An empty folder of somebody who is not root, and his rights: root may write everywhere, whatever the mode."""
    folder, root = Path(tempfile.mkdtemp(prefix="rmgr-nobody-")), os.geteuid() == 0
    try:
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_folder_that_may_not_be_written_is_told() -> None:
    with as_nobody() as folder:
        folder.chmod(0o500)
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            SqliteStore(folder / "store.db")


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("nfs4", "cifs", "fuse.sshfs", "lustre"):
        monkeypatch.setattr(sqlite_file, "file_system_of", lambda _, kind=kind: kind)
        with pytest.raises(StoreUnavailable, match=rf"network file system \({kind}\)"):
            SqliteStore(path)
    assert not path.exists()


def test_the_file_system_of_a_folder_is_found() -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("no /proc")
    assert sqlite_file.file_system_of(Path("/proc")) == "proc"


# -- wrong files ----------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"a letter to a friend" * 1000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        SqliteStore(path)
    assert path.read_bytes() == b"a letter to a friend" * 1000


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE friends (name)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [1, 7])
def test_another_schema_version_is_refused(store: SqliteStore, path: Path, version: int) -> None:
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    with pytest.raises(StoreUnavailable, match=f"schema version {version}, this rmgr understands version 2"):
        SqliteStore(path)


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a directory"):
        SqliteStore(tmp_path)
    with pytest.raises(StoreUnavailable, match="there is no directory") as caught:
        SqliteStore(tmp_path / "a" / "b" / "store.db")
    assert caught.value.hint == f"mkdir -p {tmp_path}/a/b"


def test_a_missing_store_is_not_made_when_not_asked_for(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store"):
        SqliteStore(path, create=False)
    assert not path.exists()
    SqliteStore(path).close()
    SqliteStore(path, create=False).close()


def test_a_damaged_page_is_an_error_and_never_wrong_bytes(store: SqliteStore, path: Path) -> None:
    values = {f"k{n:04d}": b"%04d" % n * 100 for n in range(2000)}
    store.put_many(list(values.items()))
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(8, len(content) // 4096, 3):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    outcomes = {"right": 0, "error": 0}
    with SqliteStore(path) as damaged:
        for key, value in values.items():
            try:
                found = damaged.get(key)
            except RmgrError:
                outcomes["error"] += 1
            else:
                assert found is None or found[0] == value
                outcomes["right"] += 1
    assert outcomes["error"] > 0


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_taken_away_under_a_running_store_is_told(store: SqliteStore, path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECK_IN_PLACE_S", 0.0)
    store.put("k", b"1")
    path.unlink()
    if how == "replaced":
        path.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="No such file" if how == "removed" else "replaced while it was in use"):
        store.put("k", b"2")
    assert store.health() is not None


def test_processes_that_make_one_store_at_once_agree(path: Path) -> None:
    script = "import sys\nfrom rmgr.adapters.sqlite.store import SqliteStore\nwith SqliteStore(sys.argv[1]) as s: s.put(sys.argv[2], b'1')"
    children = [subprocess.Popen([sys.executable, "-c", script, str(path), str(n)]) for n in range(4)]
    assert [process.wait(60) for process in children] == [0] * 4
    with SqliteStore(path, create=False) as store:
        assert store.keys() == ["0", "1", "2", "3"]


# -- what it leaves ----------------------------------------------------------------------------------------------------------------


def test_all_its_files_are_for_the_owner_only(store: SqliteStore, path: Path) -> None:
    old = os.umask(0)
    try:
        store.put("k", b"1")
        other = path.with_name("other.db")
        SqliteStore(other).close()
    finally:
        os.umask(old)
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(found.values()) == {0o600}
    assert {"store.db", "store.db-wal", "store.db.lock", "other.db"} <= set(found)


def test_an_upload_under_way_is_not_swept(store: SqliteStore) -> None:
    def parts() -> Iterator[bytes]:
        for n in range(6):
            yield bytes([n]) * STAGE_BYTES
            store.sweep()

    store.put("k", parts())
    assert store.head("k") == (6 * STAGE_BYTES, "raw")
    assert store.get("k") == (b"".join(bytes([n]) * STAGE_BYTES for n in range(6)), "raw")


def test_the_log_of_writes_does_not_grow_without_end(path: Path) -> None:
    with SqliteStore(path) as one, SqliteStore(path) as two:
        for n in range(60):
            for store in (one, two):
                store.put(f"k{n % 4}", bytes([n]) * 1_500_000)
    with SqliteStore(path) as store:
        store.put("last", b"1")
        assert path.with_name("store.db-wal").stat().st_size <= 64 * 2**20


@pytest.mark.slow
def test_a_large_value_is_written_and_read_in_little_memory(path: Path) -> None:
    script = """
import hashlib, resource, sys
from rmgr.adapters.sqlite.store import SqliteStore
from tests.harness.fair_time import FairTimer
def rss(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
size, part = int(sys.argv[2]), bytes(range(256)) * 4096
with SqliteStore(sys.argv[1]) as store:
    before = rss()
    store.put("k", (part for _ in range(size // len(part))), timeout_s=120)
    seen = hashlib.sha256()
    for chunk in store.stream("k"): seen.update(chunk)
    wanted = hashlib.sha256()
    for _ in range(size // len(part)): wanted.update(part)
    assert seen.digest() == wanted.digest()
    print(rss() - before)
"""
    command = [sys.executable, "-c", script, str(path), str(257 * 2**20)]
    grown_mib = int(subprocess.run(command, capture_output=True, text=True, timeout=150, check=True).stdout)
    assert grown_mib < 48


# -- use ------------------------------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_told_to_open_it_again(store: SqliteStore) -> None:
    store.put("k", b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork beside threads: that is the case here
        pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            for call in (lambda: store.get("k"), lambda: store.put("k", b"2")):
                with pytest.raises(UsageError, match="fork"):
                    call()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.put("k", b"2")
    assert store.get("k") == (b"2", "raw")


def test_a_bug_in_one_write_does_not_stop_the_writer(store: SqliteStore) -> None:
    from rmgr.adapters.store_rules import CallDeadline

    def broken(_: sqlite3.Connection) -> None:
        raise AttributeError("a bug")

    with pytest.raises(StoreUnavailable, match="AttributeError: a bug"):
        store._writer.write(broken, CallDeadline(5), weight_bytes=1, doing="fail")
    store.put("k", b"1", timeout_s=60)
    assert store.get("k") == (b"1", "raw")


def test_a_long_listing_ends_at_its_deadline(store: SqliteStore) -> None:
    for start in range(0, 60_000, 20_000):
        store.put_many([(f"k/{n:06d}", b"") for n in range(start, start + 20_000)])
    begun = time.monotonic()
    with FairTimer() as timer, pytest.raises(StoreUnavailable, match=r"deadline passed|within"):
        for _ in range(10_000):
            store.usage("k/", timeout_s=max(0.0, begun + 0.02 - time.monotonic()))
    assert timer.elapsed_s < 1


def test_close_finishes_what_is_being_written(path: Path) -> None:
    store = SqliteStore(path)
    written: list[int] = []
    begun = threading.Event()

    def put() -> None:
        with contextlib.suppress(StoreUnavailable):
            for n in range(10_000):
                store.put(f"k{n:05d}", b"1")
                written.append(n)
                begun.set()

    thread = threading.Thread(target=put)
    thread.start()
    assert begun.wait(60)
    store.close()
    thread.join(60)
    with SqliteStore(path) as again:
        assert again.usage()[0] == len(written)


LARGE = pattern(3 * CHUNK_BYTES + 5)


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
    rows(path, "UPDATE unreferenced SET since_ms = 0")  # an hour later
    assert store.sweep() > 0
    assert files(path) == {value_file(path, "k")}
    with pytest.raises(StoreUnavailable, match="swept away"):
        store.put("late", LARGE)  # with a number that this process had set aside
    assert store.get("late") is None
    assert files(path) == {value_file(path, "k")}, "nor is there a file that no sweep would find"


@pytest.mark.parametrize("leaves", ["nothing", "a mount point"])
def test_large_values_are_not_lost_while_their_directory_is_away(store: SqliteStore, path: Path, tmp_path: Path, leaves: str) -> None:
    store.put("small", b"1")
    store.put("k", LARGE)
    store.put("deleted", LARGE)
    store.delete("deleted")
    folder, away = path.with_name("store.db.values"), tmp_path / "away"
    folder.rename(away)
    if leaves == "a mount point":
        folder.mkdir()
    for use in (
        lambda: store.get("k"),
        lambda: store.stream("k"),
        lambda: store.fetch("k", str(tmp_path / "fetched"), largest=1 << 30),
        lambda: store.put("new", LARGE),
        store.sweep,
    ):
        with pytest.raises(StoreUnavailable, match=rf"{folder}, the directory of its large values, is (missing|empty)"):
            use()
    assert store.get("small") == (b"1", "raw")
    if leaves == "a mount point":
        folder.rmdir()
    away.rename(folder)
    assert store.get("k") == (LARGE, "raw")
    assert store.sweep() > 0
    store.put("new", LARGE)
    value_file(path, "k").unlink()  # type: ignore[union-attr]
    with pytest.raises(DataLost, match="is missing"):
        store.get("k")


@pytest.mark.parametrize("leaves", ["nothing", "a mount point"])
def test_a_sweep_while_the_directory_is_away_forgets_no_file_of_the_last_value(store: SqliteStore, path: Path, leaves: str) -> None:
    store.put("k", LARGE)
    store.delete("k")
    folder, away = path.with_name("store.db.values"), path.with_name("away")
    folder.rename(away)
    if leaves == "a mount point":
        folder.mkdir()
    assert store.sweep() == 0
    if leaves == "a mount point":
        folder.rmdir()
    away.rename(folder)
    assert store.sweep() == 1
    assert files(path) == set()


def test_first_large_values_of_two_processes_do_not_take_each_other_for_lost(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_large = sqlite_rows.has_large

    def meanwhile(connection: sqlite3.Connection) -> bool:
        monkeypatch.undo()
        with SqliteStore(path) as other:
            other.put("other", LARGE)
        return has_large(connection)

    monkeypatch.setattr(sqlite_rows, "has_large", meanwhile)
    store.put("k", LARGE)
    assert store.get("k") == store.get("other") == (LARGE, "raw")


def test_a_sweep_of_a_store_without_large_values_searches_for_none(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_rows, "has_large", lambda _connection: pytest.fail("it takes a look at each value"))
    store.put("small", b"1")
    store.sweep()


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
    monkeypatch.setattr(sqlite, "_hand_over", refused)
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="no space left"):
            store.put("k", LARGE)
    assert len(os.listdir("/proc/self/fd")) == before
