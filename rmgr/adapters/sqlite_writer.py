"""The one thread that writes: takes what all threads of the process have waiting and makes it durable in one commit.

A commit runs under an exclusive `flock` on the side file, so the processes of a machine queue up in the kernel instead
of polling SQLite's own lock (measured: twice the rate, worst case 8 ms instead of 230). While the thread waits for the
lock more writes gather; they all ride in the commit that follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rmgr.adapters.sqlite_file import PAGE_BYTES, StoreFile, is_busy
from rmgr.adapters.store_rules import Deadline
from rmgr.errors import RmgrError, StoreUnavailable, UsageError

T = TypeVar("T")

#: Bytes that may wait for the writer; callers beyond that wait for room (back-pressure).
MAX_QUEUED_BYTES = 32 * 1024 * 1024
#: Size of one commit: enough to hide the fsync, small enough to let other processes in.
MAX_GROUP_OPS = 512
MAX_GROUP_BYTES = 8 * 1024 * 1024
#: Pages this process adds to the WAL before it copies them into the file.
CHECKPOINT_PAGES = 1000
#: Pages in the WAL above which the copying is done under the lock, so that it catches up.
CHECKPOINT_CATCH_UP_PAGES = 16 * 1000
#: How long one try to begin waits for a foreign program that holds SQLite's lock (the `sqlite3` shell, a backup).
FOREIGN_LOCK_MS = 500


@dataclass(slots=True)
class _Write:
    # `run` does its statements in the open transaction. It may run twice (a group that failed is retried one by one) and
    # must have changed nothing when it raises an error of the house.
    run: Callable[[sqlite3.Connection], Any]
    weight_bytes: int
    doing: str
    future: Future[Any] = field(default_factory=Future)


_Ended = tuple[Future[Any], Any, RmgrError | None]


class Writer:
    """Carries out writes of one process on one store, in groups. Thread-safe. Not usable after `fork`."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._waiting: deque[_Write] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._group: list[_Write] = []  # taken and not yet answered
        self._wal_pages = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="store-writer", daemon=True)
        self._thread.start()
        _WRITERS.add(self)

    def write(self, run: Callable[[sqlite3.Connection], T], deadline: Deadline, *, weight_bytes: int, doing: str) -> T:
        """Runs `run` inside a transaction and returns its value once that is durable.

        Args:
            run: does the statements; an error of the house raised by it refuses this write alone, the group goes on.
            weight_bytes: about how much it writes.
            doing: "put 'in/7'", for messages.
        Raises: what `run` raised; `StoreUnavailable` when it could not be made durable in time (if it had begun, the
            message says that the outcome is not known).
        """
        return self.wait(self.begin(run, deadline, weight_bytes=weight_bytes, doing=doing), deadline, doing=doing)

    def begin(self, run: Callable[[sqlite3.Connection], T], deadline: Deadline, *, weight_bytes: int, doing: str) -> Future[T]:
        """Queues a write and returns its future; waits for room in the queue. For writes in several steps."""
        self.check_not_forked()
        write = _Write(run, weight_bytes, doing)
        with self._changed:
            while not self._closed and self._queued_bytes and self._queued_bytes + weight_bytes > MAX_QUEUED_BYTES:
                if not self._changed.wait(deadline.left_s()):
                    deadline.check(f"begin to {doing} (too much is waiting to be written)")
            if self._closed:
                raise StoreUnavailable(f"cannot {doing}: the store {self._file.path} is closed")
            self._waiting.append(write)
            self._queued_bytes += weight_bytes
            self._changed.notify_all()
        return write.future

    def wait(self, future: Future[T], deadline: Deadline, *, doing: str) -> T:
        """Waits for a future of `begin`."""
        try:
            return future.result(deadline.left_s())
        except FutureTimeout:
            if future.cancel():
                raise StoreUnavailable(
                    f"the store {self._file.path} did not begin to {doing} within {deadline.timeout_s:g} s; nothing was written",
                    hint="another process may hold its lock (a stopped one?): `fuser -v` on the .lock file beside it tells which",
                ) from None
            with contextlib.suppress(FutureTimeout):
                return future.result(0)  # it ended just now
            raise StoreUnavailable(
                f"the store {self._file.path} did not {doing} within {deadline.timeout_s:g} s; whether it was written is not known",
                hint="writing the same again is safe",
            ) from None

    def check_not_forked(self) -> None:
        """Raises `UsageError` in a process that inherited the store by `fork`: locks and connections do not survive that."""
        if self._pid != os.getpid():
            raise UsageError("a store cannot be used after fork()", hint="open it again in the child")

    def close(self, timeout_s: float = 10.0) -> None:
        """Writes what is queued, then ends the thread. Idempotent. Leaves a thread behind that is stuck on the lock."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    break
            try:
                self._write_group()
                self._checkpoint()
            except Exception as error:  # noqa: BLE001 - the loop of the writer: whatever happens, the next group is tried
                self._drop_connection()
                failure = StoreUnavailable(f"the writer of {self._file.path} failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._fail(self._group or self._take(), failure)
            self._group = []
        self._drop_connection()
        self._file.close()

    def _write_group(self) -> None:
        """One commit of what is waiting. Nothing is taken before all locks are ours: who gives up till then wrote nothing."""
        fcntl.flock(self._file.lock_fd, fcntl.LOCK_EX)
        try:
            try:
                connection = self._begin()
            except sqlite3.Error as error:
                self._drop_connection()
                if is_busy(error):
                    self._forget_given_up()  # the others are tried again until their deadlines
                else:
                    self._fail(self._take(), error)
                return
            except RmgrError as error:
                self._drop_connection()
                self._fail(self._take(), error)
                return
            self._group = self._take()
            ended = self._commit_group(connection, self._group)
        finally:
            fcntl.flock(self._file.lock_fd, fcntl.LOCK_UN)
        for future, value, refused in ended:
            if refused is None:
                future.set_result(value)
            else:
                future.set_exception(refused)

    def _begin(self) -> sqlite3.Connection:
        self._file.check_in_place()
        connection = self._connection
        if connection is None:
            connection = self._connection = self._file.connect(writes=True)
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA busy_timeout={FOREIGN_LOCK_MS}")
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _take(self) -> list[_Write]:
        """Takes the next group; writes whose callers have given up are dropped."""
        group: list[_Write] = []
        weight = 0
        with self._changed:
            while self._waiting and len(group) < MAX_GROUP_OPS:
                write = self._waiting[0]
                if group and weight + write.weight_bytes > MAX_GROUP_BYTES:
                    break
                self._waiting.popleft()
                self._queued_bytes -= write.weight_bytes
                if write.future.set_running_or_notify_cancel():
                    group.append(write)
                    weight += write.weight_bytes
            self._changed.notify_all()
        return group

    def _forget_given_up(self) -> None:
        with self._changed:
            self._waiting = deque(write for write in self._waiting if not write.future.cancelled())
            self._queued_bytes = sum(write.weight_bytes for write in self._waiting)
            self._changed.notify_all()

    def _commit_group(self, connection: sqlite3.Connection, group: list[_Write]) -> list[_Ended]:
        """Commits all writes of a group at once; if that fails, one by one, so that each gets its own error."""
        try:
            return self._commit(connection, group)
        except sqlite3.Error as error:
            self._drop_connection()
            if len(group) == 1:
                return [(group[0].future, None, self._explain(error, group[0]))]
        ended: list[_Ended] = []
        for write in group:
            try:
                ended += self._commit(self._begin(), [write])
            except (sqlite3.Error, RmgrError) as error:
                self._drop_connection()
                ended.append((write.future, None, self._explain(error, write)))
        return ended

    def _commit(self, connection: sqlite3.Connection, group: list[_Write]) -> list[_Ended]:
        ended: list[_Ended] = []
        try:
            for write in group:
                try:
                    ended.append((write.future, write.run(connection), None))
                except RmgrError as refused:
                    ended.append((write.future, None, refused))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self._wal_pages += 2 * len(group) + sum(write.weight_bytes for write in group) // PAGE_BYTES
        return ended

    def _checkpoint(self) -> None:
        """Copies the WAL into the file, outside the lock: other processes go on writing meanwhile."""
        connection = self._connection
        if connection is None or self._wal_pages < CHECKPOINT_PAGES:
            return
        self._wal_pages = 0
        with contextlib.suppress(sqlite3.OperationalError):  # a full disk here concerns nobody: the WAL holds what was promised
            _, in_wal, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if in_wal > CHECKPOINT_CATCH_UP_PAGES:
                # Under steady writes a passive checkpoint never reaches the end and the WAL grows; nobody writes while we
                # hold the lock, so this one does, and the next commit starts the WAL from its beginning.
                fcntl.flock(self._file.lock_fd, fcntl.LOCK_EX)
                try:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                finally:
                    fcntl.flock(self._file.lock_fd, fcntl.LOCK_UN)

    def _fail(self, group: list[_Write], error: sqlite3.Error | RmgrError) -> None:
        for write in group:
            if not write.future.done():
                write.future.set_exception(self._explain(error, write))

    def _explain(self, error: sqlite3.Error | RmgrError, write: _Write) -> RmgrError:
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
