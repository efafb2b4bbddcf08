"""Connections that only read: one for each thread that is reading right now, kept for the next."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rmgr.adapters.sqlite.file import StoreFile, is_corrupt
from rmgr.adapters.store_rules import CallDeadline, data_lost
from rmgr.errors import RmgrError, StoreUnavailable

_BUSY_MS = 5000
_STEPS_BETWEEN_CHECKS = 20_000  # of SQLite's machine: under a millisecond


class Readers:
    """A pool of read connections on one store. Thread-safe."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def reading(self, deadline: CallDeadline, doing: str, key: str = "") -> Iterator[sqlite3.Connection]:
        """A connection for the length of the block; its statements are cut off at the deadline.

        Args:
            doing: completes "cannot ... the store", e.g. "list 'a/' in".
            key: whose value is read, for `DataLost` when the file is damaged there.
        Raises: `StoreUnavailable`, `DataLost`.
        """
        deadline.check(doing.removesuffix(" from").removesuffix(" in"))
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"cannot {doing} the store {self._file.path}: it is closed")
            reader = self._idle.pop() if self._idle else None
        reader = reader or _Reader(self._file)
        try:
            reader.until(deadline)
            yield reader.connection
        except sqlite3.Error as error:
            reader.close()
            if key and is_corrupt(error):
                raise data_lost(key, f"the store {self._file.path} is damaged ({error})") from error
            raise self._file.explain(error, doing) from error
        except RmgrError:
            self._give_back(reader)
            raise
        except BaseException:  # Ctrl-C, say, in mid-statement: a snapshot may still be open
            reader.close()
            raise
        self._give_back(reader)

    def close(self) -> None:
        """Closes the idle connections now, the others when they are given back. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _give_back(self, reader: _Reader) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(reader)
                return
        reader.close()


class _Reader:
    """A connection with a deadline that also ends a long scan."""

    __slots__ = ("_busy_ms", "_deadline", "connection")

    def __init__(self, file: StoreFile) -> None:
        self.connection = file.connect()
        self._busy_ms = -1
        self._deadline = CallDeadline(0)
        self.connection.set_progress_handler(self._too_late, _STEPS_BETWEEN_CHECKS)

    def until(self, deadline: CallDeadline) -> None:
        self._deadline = deadline
        busy_ms = min(int(deadline.left_s() * 1000), _BUSY_MS)
        if busy_ms != self._busy_ms:
            self._busy_ms = busy_ms
            self.connection.execute(f"PRAGMA busy_timeout={busy_ms}")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.connection.close()

    def _too_late(self) -> bool:
        return self._deadline.passed()
