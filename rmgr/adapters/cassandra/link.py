"""The connection to Cassandra as a thing that comes and goes: made in the background, without end, and watched while in trouble.

Nobody who opens a store waits for the cluster. A thread connects, again and again at a constant pace; calls fail at once
while the cluster is known to be away, wait only for the very first verdict, and work again when a probe has passed. What
no time will heal (a wrong keyspace, wrong credentials, another schema) is an error of its own, and is tried again, too.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from rmgr.adapters.cassandra.statements import StatementRequest
from rmgr.adapters.store_rules import CallDeadline
from rmgr.errors import RmgrError, StoreUnavailable
from rmgr.model.base.units import format_duration

_LOG = logging.getLogger("rmgr.store")
_LOG.addHandler(logging.NullHandler())

#: Between two attempts to connect, and between two probes in trouble (s).
RECONNECT_S = 2.0
PROBE_S = 0.5
#: A driver that found no node again for so long is replaced (s): it does not always notice that all of them came back.
RENEW_S = 5.0
#: How long the first call waits for the first attempt to connect (s): a command is to be refused within 5 s, its own start included.
VERDICT_S = 4.0
_CLOSE_S = 2.0


class Lost(Exception):
    """A request without an answer, or refused for now. `is_outage`: too few nodes, so the next attempt would end likewise."""

    def __init__(self, reason: str, *, is_outage: bool) -> None:
        super().__init__(reason)
        self.is_outage = is_outage


class CassandraSession(Protocol):
    """The driver's side of a link. Futures fail with `Lost`, or with an `RmgrError` that time does not heal."""

    def send(self, request: StatementRequest, timeout_s: float) -> Future[list[Any]]:
        """Sends one request."""

    def send_to_others(self, request: StatementRequest, timeout_s: float) -> list[Future[list[Any]]]:
        """Sends a read to some coordinators one by one, those last that the usual way prefers."""

    def nodes_up(self) -> int:
        """How many nodes of the local data centre the driver takes for usable."""

    def probe(self, timeout_s: float, *, write: bool) -> None:
        """Reads, or writes, a row of its own. Raises: `Lost`, `RmgrError`."""

    def close(self) -> None:
        """Lets go."""


class CassandraLink:
    """Keeps one `CassandraSession`. Thread-safe."""

    def __init__(
        self, dial: Callable[[], CassandraSession], *, where: str, interval_s: float = RECONNECT_S, verdict_s: float = VERDICT_S
    ) -> None:
        """Starts connecting.

        Args:
            dial: makes a verified connection, or raises `Lost` or `RmgrError`. where: for messages.
            verdict_s: how long after the opening a call waits for the first attempt to end.
        """
        self._dial = dial
        self._where = where
        self._interval_s = interval_s
        self._first = CallDeadline(verdict_s)
        self._lock = threading.Condition()
        self._connection: CassandraSession | None = None
        self._verdict: Exception | None = None  # why there is no connection; None before the first attempt has ended
        self._trouble = {False: "", True: ""}  # why reads (writes) are refused for now
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rmgr-store", daemon=True)
        self._thread.start()

    @property
    def serving(self) -> CassandraSession | None:
        """The connection if there is one, whatever its state; for what may fail."""
        with self._lock:
            return None if self._closed else self._connection

    @property
    def ready(self) -> CassandraSession | None:
        """The connection where it serves reads and writes; else `connection` says what is wrong. Never waits."""
        with self._lock:
            serves = not self._closed and not any(self._trouble.values()) and self._pid == os.getpid()
            return self._connection if serves else None

    def connection(self, deadline: CallDeadline, doing: str, *, is_write: bool) -> CassandraSession:
        """The connection for one request. Waits only until the first attempt to connect has ended.

        Raises: `StoreUnavailable` at once while the cluster is away, closed, or in trouble; `ConfigError` and its like
        for what no time heals.
        """
        if self._pid != os.getpid():
            raise StoreUnavailable(f"cannot {doing}: the store was opened before a fork", hint="open it again in the child")
        with self._lock:
            while self._connection is None and self._verdict is None and not self._closed:
                if not self._lock.wait(min(deadline.left_s(), self._first.left_s())):
                    deadline.check(doing)
                    raise StoreUnavailable(
                        f"cannot {doing}: Cassandra at {self._where} has not answered in {format_duration(self._first.timeout_s)}",
                        hint="rmgr goes on trying; rmgr doctor looks closer",
                    )
            if self._closed:
                raise StoreUnavailable(f"cannot {doing}: the store is closed")
            if self._connection is None:
                raise self._refusal(doing)
            if self._trouble[is_write]:
                raise StoreUnavailable(f"cannot {doing}: {self._in_trouble(is_write)}", hint="rmgr waits for it; rmgr doctor looks closer")
            return self._connection

    def report(self, lost: Lost, *, is_write: bool) -> None:
        """A call gave up: others are refused until a probe has passed."""
        with self._lock:
            if self._connection is not None and not self._trouble[is_write]:
                self._trouble[is_write] = str(lost)
                self._lock.notify_all()

    def problem(self) -> str | None:
        """Why the store does not serve, as far as the link knows; None when it does. Never waits."""
        with self._lock:
            if self._closed:
                return "the store is closed"
            if self._connection is None:
                return "not connected yet" if self._verdict is None else self._sentence()
            return next((self._in_trouble(is_write) for is_write in (False, True) if self._trouble[is_write]), None)

    def close(self) -> None:
        """Ends the thread and the connection. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connection, self._connection = self._connection, None
            self._lock.notify_all()
        if connection is not None and self._pid == os.getpid():
            ending = threading.Thread(target=connection.close, name="rmgr-store-close", daemon=True)
            ending.start()
            ending.join(_CLOSE_S)  # a driver that is just connecting to a frozen node would take its time

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        unseen_s: float | None = None  # since when no node was up
        while True:
            with self._lock:
                if self._closed:
                    return
                connection = self._connection
            if connection is None:
                self._connect()
                self._pause(self._interval_s, until_connected=True)
                continue
            if not any(self._trouble.values()):
                unseen_s = None
                self._pause(None)
                continue
            self._look_again(connection)
            if connection.nodes_up():
                unseen_s = None
            elif unseen_s is None:
                unseen_s = time.monotonic()
            if unseen_s is not None and time.monotonic() - unseen_s > RENEW_S:
                unseen_s = None
                self._renew(connection)
                continue
            self._pause(PROBE_S)

    def _connect(self) -> None:
        try:
            made = self._dial()
        except (Lost, RmgrError) as error:
            verdict: Exception = error
        except Exception as error:  # noqa: BLE001 - the loop boundary: a surprise of the driver must not end the thread
            verdict = Lost(f"{type(error).__name__}: {error}", is_outage=True)
        else:
            with self._lock:
                if not self._closed:
                    self._connection, self._verdict = made, None
                    self._trouble = {False: "", True: ""}
                    self._lock.notify_all()
                    _LOG.info("store_connected: %s", self._where)
                    return
            made.close()
            return
        with self._lock:
            if str(verdict) != str(self._verdict or ""):
                _LOG.warning("store_away: %s: %s", self._where, verdict)
            self._verdict = verdict
            self._lock.notify_all()

    def _look_again(self, connection: CassandraSession) -> None:
        """Probes what is in trouble, reads first: writes of a store that cannot be read are in trouble, too."""
        for is_write in (False, True):
            if not self._trouble[is_write] and is_write:
                continue
            try:
                connection.probe(PROBE_S * 4, write=is_write)
                found = ""
            except (Lost, RmgrError) as error:
                found = str(error)
            except Exception as error:  # noqa: BLE001 - the loop boundary
                found = f"{type(error).__name__}: {error}"
            with self._lock:
                self._trouble[is_write] = found

    def _renew(self, connection: CassandraSession) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection, self._verdict = None, Lost(self._trouble[False] or "no node answers", is_outage=True)
        _LOG.warning("store_connection_renewed: %s", self._where)
        threading.Thread(target=connection.close, name="rmgr-store-close", daemon=True).start()

    def _pause(self, seconds: float | None, *, until_connected: bool = False) -> None:
        with self._lock:
            if self._closed or (until_connected and self._connection is not None):
                return
            if seconds is None and any(self._trouble.values()):
                return
            self._lock.wait(seconds)

    def _refusal(self, doing: str) -> RmgrError:
        if isinstance(self._verdict, RmgrError):
            return type(self._verdict)(self._verdict.message, hint=self._verdict.hint)
        return StoreUnavailable(f"cannot {doing}: {self._sentence()}", hint="rmgr tries again every 2 s; rmgr doctor looks closer")

    def _in_trouble(self, is_write: bool) -> str:
        only = " (reads work, writes do not)" if is_write and not self._trouble[False] else ""
        return f"Cassandra at {self._where}: {self._trouble[is_write]}{only}"

    def _sentence(self) -> str:
        if isinstance(self._verdict, RmgrError):
            return f"{self._verdict.message} ({self._verdict.hint})" if self._verdict.hint else self._verdict.message
        return f"Cassandra at {self._where} is away: {self._verdict}"
