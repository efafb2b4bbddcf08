"""The Coordinator port on top of one link to ZooKeeper: futures, deadlines, order, read-back, watches, session states.

Knows nothing of kazoo: `adapters/zookeeper/client.py` supplies the link. Three kinds of threads meet here under one lock: callers,
the link's thread (answers, states), and a guard's (`zookeeper/guard.py`) that ends what is past its deadline and revives a dead link.
Futures are resolved and listeners called outside the lock.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from rmgr.adapters.zookeeper.acl import AccessLists, lists_of
from rmgr.adapters.zookeeper.bulk import MOST, BulkRead, flatten, gather
from rmgr.adapters.zookeeper.guard import Guard
from rmgr.adapters.zookeeper.link import LinkState, LinkTrouble, ZookeeperLink
from rmgr.adapters.zookeeper.ops import Commit, Nobody, Proof, ProofPart, Read, Watch, allowed, to_stamped, to_stat
from rmgr.adapters.zookeeper.wire import OPEN_ACL, Acl, encode_multi
from rmgr.coord.protocol.multi import Multi, Outcome, Stamped, Stat
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.readback import Answer, Order, Pipeline, Prove, Refuse, SendOperation, Sync
from rmgr.errors import PermissionDenied

_LOG = logging.getLogger("rmgr.zookeeper")


class SessionCoordinator(abc.ABC):
    """`coord.ports.Coordinator` on a `ZookeeperLink`.

    Args:
        chroot: absolute path of the cluster in the ensemble, "" or "/a/b".
        acl: access list of every znode created, or the lists by place.
        window: most operations on the way at once; more than the server's 1,000 outstanding would only wait there.
        clock: monotonic seconds.
        guarded: starts the guard thread; False: the owner calls `guard` (single-threaded tests).
    """

    def __init__(
        self,
        chroot: str,
        *,
        acl: tuple[Acl, ...] | AccessLists = OPEN_ACL,
        window: int = 256,
        clock: Callable[[], float] = time.monotonic,
        guarded: bool = True,
    ) -> None:
        self.root = "/" + chroot.strip("/") if chroot.strip("/") else ""
        self.lists = lists_of(acl)
        self._clock = clock
        self._lock = threading.Lock()
        self._pipe = Pipeline(window)
        self._session: tuple[int, bytes] = (0, b"")
        self._listeners: list[Callable[[SessionState], None]] = []
        self._tell_lock = threading.RLock()  # never taken while _lock is held
        self._state = SessionState.LOST
        self._closing = threading.Event()
        self._usable = threading.Event()
        self._dead_since_s: float | None = None
        self._revivals = 0
        self._answered_before_s = -math.inf
        self._guard = Guard(self._lock, self.guard, clock)
        self._link_lock = threading.Lock()  # who replaces the link, or ends the last one; never taken while another lock is held
        self._link = self._open(None)
        if guarded:
            self._guard.start()

    @abc.abstractmethod
    def _open(self, session: tuple[int, bytes] | None) -> ZookeeperLink:
        """A new link that connects in the background, continuing `session` if given."""

    # -- the port

    @property
    def session_id(self) -> int:
        return self._session[0]

    @property
    def session_timeout_s(self) -> float:
        return self._link.session_timeout_s

    @property
    def state(self) -> SessionState:
        """What the listeners were told last."""
        return self._state

    def last_answer_s(self) -> float:
        return max(self._answered_before_s, self._link.last_answer_s)

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        op = Commit(self, multi, encode_multi(multi, self.root, self.lists.encoded), self._clock() + timeout_s)
        self._give(op)
        return op.future

    def get(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stamped | None]:
        full, watcher = self._absolute(path), Watch(watch) if watch else None
        return self._read(self._link.get_request(full, watcher), to_stamped, timeout_s, full, watcher)

    def get_many(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> Future[list[Stamped | None]]:
        full = [self._absolute(path) for path in paths]
        requests = [BulkRead(full[at : at + MOST]) for at in range(0, len(full), MOST)]
        parts = [self._read(one, partial(allowed, one.paths), timeout_s, f"{one.paths[0]} and others") for one in requests]
        return parts[0] if len(parts) == 1 else gather(parts, flatten)

    def at_one_moment(
        self, paths: Sequence[str], lists: Sequence[str], *, timeout_s: float = 10.0
    ) -> Future[list[Stamped | list[str] | None]]:
        """See `coord.ports.MomentReader`."""
        request = BulkRead([self._absolute(path) for path in paths], [self._absolute(path) for path in lists])
        every = [*request.paths, *request.lists]
        return self._read(request, partial(allowed, every), timeout_s, f"{every[0]} and others")

    def stat(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stat | None]:
        full = self._absolute(path)
        request = self._link.stat_request(full, Watch(watch) if watch else None)
        return self._read(request, lambda raw: None if raw is None else to_stat(raw), timeout_s, full)

    def children(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[list[str] | None]:
        full, watcher = self._absolute(path), Watch(watch) if watch else None
        return self._read(self._link.children_request(full, watcher), lambda names: names, timeout_s, full, watcher)

    def sync(self, *, timeout_s: float = 10.0) -> Future[None]:
        return self._read(self._link.sync_request(self.root or "/"), lambda _path: None, timeout_s, self.root)

    def ensure(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> None:
        # Blocks: never from a callback, which runs on the thread that would bring the answers.
        wanted: dict[str, None] = {}
        for path in paths:
            parts = self._absolute(path).strip("/").split("/")
            wanted.update(("/" + "/".join(parts[: depth + 1]), None) for depth in range(len(parts)) if parts[0])
        ordered = sorted(wanted, key=lambda path: (path.count("/"), path))
        requests = [self._link.create_request(path, self._list_for(path)) for path in ordered]
        futures = [self._read(request, lambda _path: None, timeout_s, path) for request, path in zip(requests, ordered, strict=True)]
        refused: dict[str, PermissionDenied] = {}
        for path, future in zip(ordered, futures, strict=True):
            try:
                future.result(timeout_s + 5)  # its own deadline is earlier
            except PermissionDenied as denied:  # the server looks at the rights first, and then whether it is there already
                refused[path] = denied
        for path, denial in refused.items():
            found = self._read(self._link.stat_request(path, None), lambda raw: raw, timeout_s, path).result(timeout_s + 5)
            if found is None:
                raise denial

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._tell_lock:
            self._listeners.append(listener)
            listener(self._state)

    def close(self, *, timeout_s: float = 5.0) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            self._guard.stop()
            told = self._carry_out(self._pipe.close("this client was closed"))
        _tell(told)
        with self._link_lock:  # the guard is not halfway through opening another, which nobody would end
            link = self._link
        link.end(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- for tests and daemons beyond the port

    def drop_link(self) -> None:
        """Breaks the connection, not the session."""
        self._link.drop_link()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether the session was usable within `timeout_s`."""
        return self._usable.wait(timeout_s)

    # -- operations

    def _list_for(self, absolute: str) -> tuple[Acl, ...]:
        if absolute == (self.root or "/"):
            return self.lists.entries("/")
        inside = absolute.startswith(f"{self.root}/")
        return self.lists.entries(absolute[len(self.root) :]) if inside else self.lists.above

    def _absolute(self, path: str) -> str:
        return (self.root if path == "/" else self.root + path) or "/"

    def _read(self, request: Any, finish: Callable[[Any], object], timeout_s: float, path: str, watch: Watch | None = None) -> Future[Any]:
        op = Read(self, request, finish, self._clock() + timeout_s, path, watch)
        self._give(op)
        return op.future

    def _give(self, op: Commit | Read) -> None:
        with self._lock:
            closed = self._closing.is_set()
            if op.deadline_s < self._guard.until_s:
                self._guard.at(op.deadline_s)
            if not closed and self._pipe.give(op):
                self._link.push(op.request, op)
        if closed:
            op.refuse("this client was closed")

    def _carry_out(self, orders: list[Order]) -> list[Answer | Refuse]:
        """Under the lock: sends what is to be sent; returns what is to be told outside it."""
        told: list[Answer | Refuse] = []
        for order in orders:
            match order:
                case Answer() | Refuse():
                    told.append(order)
                case SendOperation(op):
                    self._link.push(op.request, op)  # type: ignore[attr-defined]
                case Sync():
                    self._link.push(self._link.sync_request(self.root or "/"), Nobody())
                case Prove():
                    proof = Proof(self, order)
                    for index, path in enumerate(order.paths):
                        self._link.push(self._link.get_request(self.root + path, None), ProofPart(proof, index))
        return told

    # -- the link's thread

    def trouble(self, error: Exception) -> LinkTrouble:
        """What an error of the link means."""
        return self._link.trouble(error)

    def on_answer(self, op: Commit | Read, value: object) -> None:
        """The server answered `op`."""
        with self._lock:
            told = self._carry_out(self._pipe.answered(op, value))
        _tell(told)

    def on_next_step(self, op: Read, request: Any) -> None:
        """`op` was answered and needs another request."""
        with self._lock:
            op.request = request
            if self._pipe.again(op):
                self._link.push(request, op)

    def on_error(self, op: Commit | Read, error: Exception) -> None:
        """The server refused `op`, or the link fell under it."""
        trouble = self._link.trouble(error)
        if trouble is LinkTrouble.LOST:
            # With the link down this is no news. With the link up (SessionMoved) only a new connection helps.
            if self._usable.is_set():
                self._link.drop_link()
        elif trouble is LinkTrouble.ABSENT and isinstance(op, Read) and op.watch is not None:
            self.on_next_step(op, self._link.stat_request(op.path, op.watch))
        else:
            self.on_answer(op, op.on_trouble(trouble, error))

    def on_proof(self, proof: Proof) -> None:
        """All reads of a proof are there."""
        with self._lock:
            orders = self._pipe.unprovable(proof.op, proof.cause) if proof.cause else self._pipe.proved(proof.op, proof.seen)
            told = self._carry_out(orders)
        _tell(told)

    def link_changing(self, link: ZookeeperLink, state: LinkState) -> None:
        """The link is about to change to `state`; nothing is sent from here on until CONNECTED."""
        if state is not LinkState.CONNECTED and link is self._current():
            with self._lock:
                self._usable.clear()
                self._pipe.down()

    def link_changed(self, link: ZookeeperLink, state: LinkState) -> None:
        """The link has changed to `state`."""
        if link is not self._current():
            return
        match state:
            case LinkState.CONNECTED:
                self._connected(link)
            case LinkState.CONNECTING:
                self._announce(SessionState.SUSPENDED)
            case LinkState.EXPIRED:
                self._lose_session()
            case LinkState.DEAD:
                with self._lock:
                    self._dead_since_s = self._clock()
                    self._guard.at(self._revive_s(self._dead_since_s))
                if not self._closing.is_set():
                    self._announce(SessionState.SUSPENDED)

    def _current(self) -> ZookeeperLink | None:
        return getattr(self, "_link", None)

    def _connected(self, link: ZookeeperLink) -> None:
        if self._session[0] and self._session[0] != link.session[0]:
            self._lose_session()
        with self._lock:
            self._session = link.session
            self._usable.set()
            told = self._carry_out(self._pipe.up())
        self._revivals = 0
        self._announce(SessionState.CONNECTED)
        _tell(told)

    def _lose_session(self) -> None:
        with self._lock:
            self._session = (0, b"")
            told = self._carry_out(self._pipe.session_lost())
        self._announce(SessionState.LOST)
        _tell(told)

    def _announce(self, state: SessionState) -> None:
        with self._tell_lock:
            if state is self._state or (state is SessionState.SUSPENDED and self._state is SessionState.LOST):
                return
            self._state = state
            for listener in self._listeners:
                try:
                    listener(state)
                except Exception:  # noqa: BLE001 - a raising listener must not end the connection thread
                    _LOG.exception("listener_raised")

    # -- the guard's thread

    def guard(self) -> float | None:
        """Ends what is past its deadline; replaces a link that is dead for good.

        Returns: when there may be more to do (s on the clock); None: not before something is given. Called by `Guard`.
        """
        now = self._clock()
        with self._lock:
            waiting: list[Any] = list(self._pipe.unresolved())
            late = [op for op in waiting if op.deadline_s <= now]
            for op in late:
                self._pipe.give_up(op)
        for op in late:
            op.refuse(f"no answer within the deadline ({self._why()})")
        if self._dead_since_s is not None and now > self._revive_s(self._dead_since_s):
            self._revive()
        times_s = [op.deadline_s for op in waiting if op.deadline_s > now]
        if (dead_s := self._dead_since_s) is not None:
            times_s.append(self._revive_s(dead_s))
        return min(times_s, default=None)

    def _revive_s(self, dead_s: float) -> float:
        """When a link that died at `dead_s` is replaced."""
        return dead_s + min(5.0, float(0.2 * 2**self._revivals))

    def _why(self) -> str:
        if self._usable.is_set():
            return "connected, the server is slow"
        return f"not connected: {self._link.last_error or 'no server answers'}"

    def _revive(self) -> None:
        """The link's thread has ended (authentication refused, an error in kazoo): another link, the same session."""
        with self._link_lock:
            if self._closing.is_set():
                return
            _LOG.warning("zookeeper_link_revived")
            self._dead_since_s = None
            self._revivals += 1
            old = self._link
            self._answered_before_s = self.last_answer_s()
            session = self._session
            try:
                self._link = self._open(session if session[0] else None)
            except Exception:
                self._dead_since_s = self._clock()  # tried again, later each time
                raise
        old.end(1.0)


def _tell(told: list[Answer | Refuse]) -> None:
    for order in told:
        op: Any = order.op
        if type(order) is Answer:
            op.resolve(order.value)
        else:
            assert isinstance(order, Refuse)
            op.refuse(order.cause)
