"""The connection to Cassandra, which comes and goes: made in the background, retried without end, watched while in trouble.

Opening a store never waits for the cluster. A thread connects, again and again at a constant pace; calls fail at once
while the cluster is known to be away, wait only for the very first verdict, and work again once a probe has passed. Problems that
waiting does not cure (a wrong keyspace, wrong credentials, another schema) have errors of their own, and are retried, too.

There are two nested deadlines. A request has a short one (2 s), after which it is sent again, to another node: all requests are
idempotent. A call of the store has the caller's deadline; it ends earlier if the cluster is known not to serve.

A node that hangs still accepts connections, since its kernel does. The driver gives each such node the whole connect timeout, in the
order of its list, and two of them would use up the time that a command may take. So all nodes are asked at once first (`awake`). A
thread that resolves a name or connects is abandoned when its time is over: it is a daemon, and so are the driver's threads
(`DaemonPool`): waiting for a frozen node must not delay the exit of a command.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rmgr.adapters.cassandra.schema import StatementRequest
from rmgr.adapters.store_rules import CallDeadline
from rmgr.errors import RmgrError, StoreUnavailable
from rmgr.model.units import format_duration

if TYPE_CHECKING:
    from rmgr.adapters.cassandra.driver import DriverConnection

_LOG = logging.getLogger("rmgr.store")
_LOG.addHandler(logging.NullHandler())

#: Seconds between two attempts to connect, and between two probes in trouble.
RECONNECT_S = 2.0
PROBE_S = 0.5
#: Seconds without any node after which a driver is replaced: it does not always notice that all of them came back.
RENEW_S = 5.0
#: Seconds that the first call waits for the first attempt to connect: a refused command must end within 5 s, its own start included.
VERDICT_S = 4.0
#: That wait is counted in parts of this length (s), at least one: the attempt that stood still with the process has not been heard yet.
_PART_S = 0.25
_CLOSE_S = 2.0


class Lost(Exception):
    """A request without an answer, or refused for now. `is_outage`: too few nodes, so the next attempt would end the same way."""

    def __init__(self, reason: str, *, is_outage: bool) -> None:
        super().__init__(reason)
        self.is_outage = is_outage


class CassandraLink:
    """Keeps one `DriverConnection`; the caller that dials loads its module. Thread-safe."""

    def __init__(
        self, dial: Callable[[], DriverConnection], *, where: str, interval_s: float = RECONNECT_S, verdict_s: float = VERDICT_S
    ) -> None:
        """Starts connecting.

        Args:
            dial: makes a verified connection, or raises `Lost` or `RmgrError`. where: for messages.
            verdict_s: time after the opening for which a call waits for the first attempt to end.
        """
        self._dial = dial
        self._where = where
        self._interval_s = interval_s
        self._first = CallDeadline(verdict_s)
        self._lock = threading.Condition()
        self._connection: DriverConnection | None = None
        self._verdict: Exception | None = None  # why there is no connection; None before the first attempt has ended
        self._trouble = {False: "", True: ""}  # why reads (False) and writes (True) are refused for now
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rmgr-store", daemon=True)
        self._thread.start()

    @property
    def serving(self) -> DriverConnection | None:
        """The connection, if any, whatever its state; for requests that may fail."""
        with self._lock:
            return None if self._closed else self._connection

    @property
    def ready(self) -> DriverConnection | None:
        """The connection if it serves reads and writes; otherwise `connection` says what is wrong. Never waits."""
        with self._lock:
            serves = not self._closed and not any(self._trouble.values()) and self._pid == os.getpid()
            return self._connection if serves else None

    def connection(self, deadline: CallDeadline, doing: str, *, is_write: bool) -> DriverConnection:
        """Returns the connection for one request. Waits only until the first attempt to connect has ended.

        Raises: `StoreUnavailable` at once while the cluster is away, closed, or in trouble; `ConfigError` and the like
        for problems that waiting does not cure.
        """
        if self._pid != os.getpid():
            raise StoreUnavailable(f"cannot {doing}: the store was opened before a fork", hint="open it again in the child")
        with self._lock:
            left_s = max(self._first.left_s(), _PART_S)
            while self._connection is None and self._verdict is None and not self._closed:
                if (part_s := min(left_s, _PART_S, deadline.left_s())) > 0:
                    self._lock.wait(part_s)
                    left_s -= part_s
                else:
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
        """Notes that a call gave up: other calls are refused until a probe has passed."""
        with self._lock:
            if self._connection is not None and not self._trouble[is_write]:
                self._trouble[is_write] = str(lost)
                self._lock.notify_all()

    def problem(self) -> str | None:
        """Returns why the store does not serve, as far as the link knows; None if it serves. Never waits."""
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
            ending.join(_CLOSE_S)  # a driver that is just connecting to a frozen node takes longer

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
        except Exception as error:  # noqa: BLE001 - the loop boundary: a surprise from the driver must not end the thread
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

    def _look_again(self, connection: DriverConnection) -> None:
        """Probes what is in trouble, reads first: if a store cannot be read, its writes are in trouble, too."""
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

    def _renew(self, connection: DriverConnection) -> None:
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


# -- requests under a caller's deadline ----------------------------------------------------------------------------------------


Rows = list[Any]

#: Most requests of one call in flight: at first, and the range in which the speed of answers moves it.
WINDOW = 64
SMALLEST_WINDOW, LARGEST_WINDOW = 16, 192
#: Faster answers let the window grow, slower ones than the second shrink it (s): more in flight would only wait in the cluster.
_QUICK_S, _SLOW_S = 0.03, 0.2
#: Seconds of an outage before the call fails and tells the link; a coordinator that was wrong about its peers causes no outage.
PATIENCE_S = 1.5
_FIRST_PAUSE_S = 0.03
_LONGEST_PAUSE_S = 0.5
_GRACE_S = 1.0  # the driver ends a request itself; this is for a driver that does not


class RequestWindow:
    """Number of requests that a call may have in flight, adapted to the cluster's speed. Shared by threads; a lost step matters little."""

    def __init__(self) -> None:
        self._size = float(WINDOW)
        self._shrunk_s = -math.inf

    @property
    def size(self) -> int:
        """Number of requests."""
        return int(self._size)

    def answered(self, after_s: float) -> None:
        """Adapts the window to an awaited answer that took `after_s`."""
        if after_s < _QUICK_S:
            self._size = min(LARGEST_WINDOW, self._size + 8 / self._size)
        elif after_s > _SLOW_S:
            self.shrink()

    def shrink(self) -> None:
        """Shrinks the window: the cluster is overloaded or away. Counts once for all requests that wait at the time."""
        now_s = time.monotonic()
        if now_s - self._shrunk_s > _SLOW_S:
            self._shrunk_s = now_s
            self._size = max(SMALLEST_WINDOW, self._size * 0.7)


class Calls:
    """Sends requests through the link's current connection."""

    def __init__(self, link: CassandraLink, *, request_timeout_s: float) -> None:
        self.window = RequestWindow()
        self._link = link
        self._request_timeout_s = request_timeout_s
        self._forgotten: set[Future[Rows]] = set()

    @property
    def ready(self) -> DriverConnection | None:
        """See `CassandraLink.ready`."""
        return self._link.ready

    def one(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> Rows:
        """Returns the rows of one request. Raises: `StoreUnavailable`, or the link's error."""
        return next(self.each((request,), deadline, doing))

    def all(self, requests: Iterable[StatementRequest], deadline: CallDeadline, doing: str, *, window: int = 0) -> list[Rows]:
        """Returns the rows of every request, in order."""
        return list(self.each(requests, deadline, doing, window=window))

    def each(self, requests: Iterable[StatementRequest], deadline: CallDeadline, doing: str, *, window: int = 0) -> Iterator[Rows]:
        """Yields what `all` returns, one by one while later requests are in flight; takes at most `window` requests ahead.

        window: 0 = as many as the cluster answers quickly; a number for large requests.
        """
        flying: deque[tuple[StatementRequest, Future[Rows], float]] = deque()
        for request in requests:
            flying.append(self._send(request, deadline, doing))
            while len(flying) >= (window or self.window.size):
                yield self._settle(*flying.popleft(), deadline, doing)
        while flying:
            yield self._settle(*flying.popleft(), deadline, doing)

    def elsewhere(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> list[Rows]:
        """Returns the rows of a read as other coordinators see them; coordinators that do not answer are left out."""
        connection = self._connection(deadline, doing, is_write=False)
        answers = []
        for future in connection.send_to_others(request, self._timeout_s(deadline)):
            try:
                answers.append(future.result(self._timeout_s(deadline) + _GRACE_S))
            except (Lost, TimeoutError):
                continue
        return answers

    def forget(self, request: StatementRequest) -> None:
        """Sends a write whose outcome does not matter: the passing of time has the same effect."""
        connection = self._link.serving
        if connection is not None:
            future = connection.send(request, self._request_timeout_s)
            self._forgotten.add(future)
            future.add_done_callback(self._forgotten.discard)

    def settle_forgotten(self, timeout_s: float) -> None:
        """Waits for writes that nobody awaits, so that they go out before the connection is closed."""
        wait([*self._forgotten], timeout_s)

    def _send(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> tuple[StatementRequest, Future[Rows], float]:
        connection = self._connection(deadline, doing, is_write=request.is_write)
        return request, connection.send(request, self._timeout_s(deadline)), time.monotonic()

    def _connection(self, deadline: CallDeadline, doing: str, *, is_write: bool) -> DriverConnection:
        deadline.check(doing)
        return self._link.connection(deadline, doing, is_write=is_write)

    def _timeout_s(self, deadline: CallDeadline) -> float:
        return max(0.05, min(self._request_timeout_s, deadline.left_s()))

    def _settle(self, request: StatementRequest, future: Future[Rows], sent_s: float, deadline: CallDeadline, doing: str) -> Rows:
        """Waits for one request and sends it again, to another node, as long as that may help."""
        first_s, tries, pause_s = sent_s, 0, _FIRST_PAUSE_S
        while True:
            is_waited_for = not future.done()
            try:
                rows = future.result(self._request_timeout_s + _GRACE_S)
                if is_waited_for:
                    self.window.answered(time.monotonic() - sent_s)
                return rows
            except Lost as error:
                lost = error
            except TimeoutError:
                lost = Lost("no answer, not even of the driver", is_outage=False)
            self.window.shrink()
            tries += 1
            spent_s = time.monotonic() - first_s
            if spent_s > PATIENCE_S and (lost.is_outage or tries >= 2):
                self._link.report(lost, is_write=request.is_write)
                raise StoreUnavailable(f"cannot {doing}: {lost}", hint="it is asked again in the background; rmgr doctor looks closer")
            if deadline.left_s() <= pause_s:
                raise StoreUnavailable(
                    f"cannot {doing} within {format_duration(deadline.timeout_s)}: {lost}", hint="try again; rmgr doctor looks closer"
                )
            threading.Event().wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            _, future, sent_s = self._send(request, deadline, doing)


# -- which nodes answer --------------------------------------------------------------------------------------------------------


#: Seconds after the first answer within which further nodes are accepted, too, so that not all clients gather at one node.
_TOGETHER_S = 0.05
_OPTIONS = b"\x05\x00\x00\x00\x05\x00\x00\x00\x00"  # protocol 5, stream 0, opcode OPTIONS, empty body


def awake(hosts: tuple[str, ...], port: int, *, tls: ssl.SSLContext | None, timeout_s: float) -> tuple[str, ...]:
    """Returns those of `hosts` that give any answer, at least one. Raises: `Lost` if none does within `timeout_s`."""
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for host in hosts:
        threading.Thread(target=_look, args=(host, port, tls, timeout_s, answers), name="rmgr-store-awake", daemon=True).start()
    end_s = time.monotonic() + timeout_s
    found: list[str] = []
    problems: dict[str, str] = {}
    while len(found) + len(problems) < len(hosts):
        try:
            host, problem = answers.get(timeout=max(0.0, end_s - time.monotonic()))
        except Empty:
            break
        if problem:
            problems[host] = problem
            continue
        if not found:
            end_s = min(end_s, time.monotonic() + _TOGETHER_S)
        found.append(host)
    if found:
        return tuple(found)
    silent = [host for host in hosts if host not in problems]
    told = [f"{host}: {problem}" for host, problem in problems.items()]
    told += [f"{', '.join(silent)}: no answer in {format_duration(timeout_s)}"] if silent else []
    raise Lost(f"no node can be reached: {'; '.join(told)}", is_outage=True)


def _look(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float, answers: SimpleQueue[tuple[str, str]]) -> None:
    try:
        with socket.create_connection((host, port), timeout_s) as link:
            link.sendall(_hello(tls) if tls else _OPTIONS)
            link.recv(1)  # the end of the stream is an answer as well: the driver finds out what the node objects to
    except ConnectionResetError:
        answers.put((host, ""))
    except TimeoutError:
        pass  # silent: the reader of the queue stops waiting at about the same time
    except OSError as error:
        answers.put((host, error.strerror or str(error)))
    else:
        answers.put((host, ""))


def _hello(tls: ssl.SSLContext) -> bytes:
    """Returns the first message of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="cassandra" if tls.check_hostname else None).do_handshake()
    return outgoing.read()


# -- threads for the driver ----------------------------------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")


class DaemonPool(Executor):
    """An executor whose threads are daemons, made when needed.

    At its end, the interpreter joins the threads of a `ThreadPoolExecutor`, whatever they wait for. Here the driver
    connects to nodes, which takes the whole connect timeout at a node that hangs; none of that needs to finish.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0  #: idle threads minus queued calls
        self._is_over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`. Raises: RuntimeError after `shutdown`."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - as in every executor, it belongs to the caller that asks for the result
                    future.set_exception(error)

        with self._lock:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.put(work)
            self._free -= 1
            if self._free < 0 and self._threads < self._most:
                self._threads += 1
                self._free += 1
                threading.Thread(target=self._run, name=f"rmgr-store-driver-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the interface's
        """Takes no more calls; queued ones are carried out, but not waited for."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                for _ in range(self._threads):
                    self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            with self._lock:
                self._free += 1


def use_daemons(cluster: Any, *, most: int) -> None:
    """Replaces the executor of a driver's Cluster by a `DaemonPool`. The Cluster was just made and has started nothing."""
    own = cluster.executor
    pool = DaemonPool(most)
    cluster.executor = pool
    cluster.scheduler._executor = pool  # noqa: SLF001 - the scheduler got the old executor, and the driver offers no way to name another
    own.shutdown(wait=False)
