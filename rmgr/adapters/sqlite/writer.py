"""The one thread that writes: takes what all threads of the process have waiting and makes it durable in one commit.

A commit runs under an exclusive `flock` on the side file, so the processes of a machine queue up in the kernel instead
of polling SQLite's own lock (measured: twice the rate, worst case 8 ms instead of 230). While the thread waits for the
lock more writes gather; they all ride in the commit that follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from rmgr.adapters.sqlite.file import PAGE_BYTES, StoreFile, is_busy
from rmgr.adapters.sqlite.rows import MAX_ROWS, ManifestRow, insert
from rmgr.adapters.store_rules import CallDeadline
from rmgr.errors import RmgrError, StoreUnavailable, UsageError
from rmgr.model.units import format_duration

T = TypeVar("T")

#: Bytes that may wait for the writer; callers beyond that wait for room (back-pressure).
MAX_QUEUED_BYTES = 32 * 1024 * 1024
#: Size of one commit: enough to hide the fsync, small enough to let other processes in.
MAX_GROUP_WRITES = 512
MAX_GROUP_BYTES = 8 * 1024 * 1024
#: Pages this process adds to the WAL before it copies them into the file.
CHECKPOINT_PAGES = 1000
#: Pages in the WAL above which the copying is done under the lock, so that it catches up.
CHECKPOINT_CATCH_UP_PAGES = 4 * 1000
#: How long one try to begin waits for a foreign program that holds SQLite's lock (the `sqlite3` shell, a backup).
FOREIGN_LOCK_MS = 500
#: Seconds between checks that the file is in place: if it was removed under us, all that was ever written is lost with it.
CHECK_IN_PLACE_S = 1.0


_Ended = tuple["Write", Any, RmgrError | None]


class Write:
    """A write on its way: queued, taken by the writer, ended; or given up by its caller while it was queued."""

    __slots__ = ("doing", "ended", "error", "given_up", "is_synced", "rows", "run", "taken", "told", "value", "weight_bytes")

    def __init__(
        self,
        run: Callable[[sqlite3.Connection], Any] | None,
        rows: list[ManifestRow],
        weight_bytes: int,
        doing: str,
        *,
        is_synced: bool = True,
        told: Callable[[RmgrError | None], None] | None = None,
    ) -> None:
        # `run` does its statements in the open transaction. It may run twice (a group that failed is retried one by one)
        # and must have changed nothing when it raises an `RmgrError`. Without it, `rows` are inserted.
        self.run = run
        self.rows = rows
        self.weight_bytes = weight_bytes
        self.doing = doing
        self.is_synced = is_synced  # False: survives the process at once, the machine only after the next synced write of any process
        self.told = told  # called at the end of a write that no thread waits for
        self.taken = False
        self.given_up = False
        self.value: Any = None
        self.error: RmgrError | None = None
        self.ended = threading.Lock()  # released at the end: the cheapest thing to wait for
        self.ended.acquire()

    def end(self, value: Any = None, error: RmgrError | None = None) -> None:
        self.value, self.error = value, error
        if self.told is not None:
            with contextlib.suppress(Exception):  # the receiver may have ended: the others of the group are still told
                self.told(error)
        else:
            self.ended.release()


class Writer:
    """Carries out writes of one process on one store, in groups. Thread-safe. Not usable after `fork`."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._lock = threading.Lock()  # guards the queue and the states of what stands in it
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._queue: deque[Write] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._syncs = True  # commits of the connection
        self._group: list[Write] = []  # taken and not ended
        self._wal_pages = 0
        self._checked_at = -math.inf
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="store-writer", daemon=True)
        self._thread.start()
        _WRITERS.add(self)

    def insert(self, rows: list[ManifestRow], deadline: CallDeadline, *, weight_bytes: int, doing: str) -> None:
        """Inserts rows, replacing existing ones, and returns when they are durable. The fast way: see `_commit_rows`."""
        self.wait(self._enqueue(Write(None, rows, weight_bytes, doing), deadline), deadline)

    def take(self, write: Write) -> bool:
        """Queues a write that nobody waits for: its `told` is called at the end. False: so much is queued that it would have to wait."""
        self.check_not_forked()
        with self._lock:
            if self._closed or self._queued_bytes + write.weight_bytes > MAX_QUEUED_BYTES:
                return False
            self._put(write)
        return True

    def write(
        self, run: Callable[[sqlite3.Connection], T], deadline: CallDeadline, *, weight_bytes: int, doing: str, is_synced: bool = True
    ) -> T:
        """Runs `run` inside a transaction and returns its value once that is durable.

        Args:
            run: does the statements; an `RmgrError` raised by it refuses this write alone, the group goes on.
            weight_bytes: about how much it writes.
            doing: "put 'in/7'", for messages.
            is_synced: False: at once visible to all, durable with the next write of any process that is synced.
        Raises: what `run` raised; `StoreUnavailable` when it could not be made durable in time (if it had begun, the
            message says that the outcome is not known).
        """
        value: T = self.wait(self._enqueue(Write(run, [], weight_bytes, doing, is_synced=is_synced), deadline), deadline)
        return value

    def wait(self, write: Write, deadline: CallDeadline) -> Any:
        """Waits for a write and returns its value; raises its error, or `StoreUnavailable` at the deadline."""
        if not write.ended.acquire(timeout=deadline.left_s()):
            with self._lock:
                begun = write.taken
                write.given_up = True
            within = format_duration(deadline.timeout_s)
            if not begun:
                raise StoreUnavailable(
                    f"the store {self._file.path} did not begin to {write.doing} within {within}; nothing was written",
                    hint="another process may hold its lock (a stopped one?): `fuser -v` on the .lock file beside it tells which",
                )
            if not write.ended.acquire(blocking=False):  # it may have ended just now
                raise StoreUnavailable(
                    f"the store {self._file.path} did not {write.doing} within {within}; it is not known whether it will",
                    hint="writing the same again is safe",
                )
        if write.error is not None:
            raise write.error
        return write.value

    def check_not_forked(self) -> None:
        """Raises `UsageError` in a process that inherited the store by `fork`: locks and connections do not survive that."""
        if self._pid != os.getpid():
            raise UsageError("a store cannot be used after fork()", hint="open it again in the child")

    def close(self, timeout_s: float = 10.0) -> None:
        """Writes what is queued, then ends the thread. Idempotent. Leaves a thread behind that is stuck on the lock."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _enqueue(self, write: Write, deadline: CallDeadline) -> Write:
        self.check_not_forked()
        with self._lock:
            while not self._closed and self._queued_bytes and self._queued_bytes + write.weight_bytes > MAX_QUEUED_BYTES:
                if not self._room.wait(deadline.left_s()):
                    deadline.check(f"begin to {write.doing} (too much is waiting to be written)")
            if self._closed:
                raise StoreUnavailable(f"cannot {write.doing}: the store {self._file.path} is closed")
            self._put(write)
        return write

    def _put(self, write: Write) -> None:
        self._queue.append(write)
        self._queued_bytes += write.weight_bytes
        self._work.notify()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._work.wait()
                if not self._queue:
                    break
            try:
                self._write_group()
                self._checkpoint()
            except Exception as error:  # noqa: BLE001 - the loop of the writer: whatever happens, the next group is tried
                self._drop_connection()
                failure = StoreUnavailable(f"the writer of {self._file.path} failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                if not self._group:
                    self._take()
                self._fail(failure)
            self._group = []
        self._drop_connection()
        self._file.close()

    def _write_group(self) -> None:
        """Commits all waiting writes at once. Takes none before it has the lock: a caller who gives up until then has written nothing."""
        fcntl.flock(self._file.lock_fd, fcntl.LOCK_EX)
        try:
            self._take()
            if not self._group:
                return
            try:
                connection = self._connect()
                self._choose_sync(connection, self._group)
                if self._is_rows_only():
                    ended = self._commit_rows(connection)
                else:
                    connection.execute("BEGIN IMMEDIATE")
                    ended = self._commit(connection, self._group)
            except sqlite3.Error as error:
                self._drop_connection()
                if is_busy(error):
                    self._put_back()  # and try again, until their deadlines
                    return
                if len(self._group) == 1:
                    self._fail(error)
                    return
                ended = self._commit_one_by_one()
            except RmgrError as error:  # it cannot be opened
                self._drop_connection()
                self._fail(error)
                return
        finally:
            fcntl.flock(self._file.lock_fd, fcntl.LOCK_UN)
        self._group = []
        for write, value, refused in ended:
            write.end(value, refused)

    def _connect(self) -> sqlite3.Connection:
        now = time.monotonic()
        if now - self._checked_at > CHECK_IN_PLACE_S:
            self._file.check_in_place()
            self._checked_at = now
        if self._connection is None:
            self._connection = self._file.connect(writes=True)
            self._connection.execute("PRAGMA wal_autocheckpoint=0")
            self._connection.execute(f"PRAGMA busy_timeout={FOREIGN_LOCK_MS}")
            self._syncs = True
        return self._connection

    def _choose_sync(self, connection: sqlite3.Connection, group: list[Write]) -> None:
        """Leaves the sync of the WAL out of the commit unless a write of the group asks for it: the next sync covers the whole file."""
        syncs = any(write.is_synced for write in group)
        if syncs is not self._syncs:
            connection.execute(f"PRAGMA synchronous={'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs

    def _take(self) -> None:
        """Takes the next group from the queue; writes whose callers have given up are dropped."""
        weight = 0
        with self._lock:
            while self._queue and len(self._group) < MAX_GROUP_WRITES:
                write = self._queue[0]
                if self._group and weight + write.weight_bytes > MAX_GROUP_BYTES:
                    break
                self._queue.popleft()
                self._queued_bytes -= write.weight_bytes
                if not write.given_up:
                    write.taken = True
                    weight += write.weight_bytes
                    self._group.append(write)
            self._room.notify_all()

    def _put_back(self) -> None:
        with self._lock:
            for write in reversed(self._group):
                if not write.given_up:
                    write.taken = False
                    self._queued_bytes += write.weight_bytes
                    self._queue.appendleft(write)
            self._group = []
            self._room.wait(0.01)  # the lock may be refused at once: no hot loop

    def _is_rows_only(self) -> bool:
        return sum(len(write.rows) if write.run is None else MAX_ROWS + 1 for write in self._group) <= MAX_ROWS

    def _commit_rows(self, connection: sqlite3.Connection) -> list[_Ended]:
        """Commits everything in one statement, which is its own transaction.

        BEGIN, INSERT and COMMIT would give up the interpreter's lock six times: measured beside a thread that computes,
        18 ms against 5.5 ms (tests/bench/store.py).
        """
        insert(connection, [row for write in self._group for row in write.rows])
        self._count_pages(self._group)
        return [(write, None, None) for write in self._group]

    def _commit(self, connection: sqlite3.Connection, group: list[Write]) -> list[_Ended]:
        """Commits the open transaction with the writes of `group`; rolls it back if one raises."""
        ended: list[_Ended] = []
        try:
            for write in group:
                if write.run is None:
                    insert(connection, write.rows)
                    ended.append((write, None, None))
                    continue
                try:
                    ended.append((write, write.run(connection), None))
                except RmgrError as refused:
                    ended.append((write, None, refused))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self._count_pages(group)
        return ended

    def _commit_one_by_one(self) -> list[_Ended]:
        """Gives each write its own commit and its own error, after the group failed as a whole (for instance on a full disk)."""
        ended: list[_Ended] = []
        for write in self._group:
            try:
                connection = self._connect()
                self._choose_sync(connection, [write])
                connection.execute("BEGIN IMMEDIATE")
                ended += self._commit(connection, [write])
            except (sqlite3.Error, RmgrError) as error:
                self._drop_connection()
                ended.append((write, None, self._explain(error, write)))
        return ended

    def _count_pages(self, group: list[Write]) -> None:
        self._wal_pages += 2 * len(group) + sum(write.weight_bytes for write in group) // PAGE_BYTES

    def _checkpoint(self) -> None:
        """Copies the WAL into the file, outside the lock: other processes go on writing in the meantime."""
        connection = self._connection
        if connection is None or self._wal_pages < CHECKPOINT_PAGES:
            return
        self._wal_pages = 0
        with contextlib.suppress(sqlite3.Error):  # a full disk here is harmless: the WAL holds what was promised
            _, in_wal, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if in_wal > CHECKPOINT_CATCH_UP_PAGES:
                # Under steady writes a passive checkpoint never reaches the end and the WAL grows. No process writes while we
                # hold the lock, so this checkpoint does, and the next commit starts the WAL from its beginning.
                fcntl.flock(self._file.lock_fd, fcntl.LOCK_EX)
                try:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                finally:
                    fcntl.flock(self._file.lock_fd, fcntl.LOCK_UN)

    def _fail(self, error: sqlite3.Error | RmgrError) -> None:
        for write in self._group:
            write.end(None, self._explain(error, write))
        self._group = []

    def _explain(self, error: sqlite3.Error | RmgrError, write: Write) -> RmgrError:
        if isinstance(error, RmgrError):
            return error
        explained = self._file.explain(error, f"{write.doing} in")
        explained.__cause__ = error
        return explained

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _let_go_in_child(self) -> None:
        # A forked child holds the same open file as its parent: were the parent killed in mid-commit, the child would
        # keep the lock for as long as it lives.
        self._file.close()


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_WRITERS):
        writer._let_go_in_child()  # noqa: SLF001 - its own module


os.register_at_fork(after_in_child=_after_fork_in_child)
