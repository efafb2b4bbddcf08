"""The Coordinator port on one link to ZooKeeper: futures, deadlines, order, read-back, watches, session states.

Knows nothing of kazoo: `adapters/zookeeper/client.py` supplies the link. Three kinds of threads meet here under one lock: callers,
the link's thread (answers, states), and the guard's (`Guard`), which ends operations past their deadline and revives a dead link.
Futures are resolved and listeners called outside the lock.

The guard sleeps exactly until an operation may be past its deadline. It used to look ten times a second: in five idle daemons that was a
quarter of the cost of an idle cluster.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from enum import Enum
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from rmgr.adapters.zookeeper import wire
from rmgr.adapters.zookeeper.acl import AccessLists, lists_of
from rmgr.coord.protocol.multi import Multi, Outcome, Stamped, Stat, Unknown
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.readback import Answer, Order, Pending, Pipeline, Prove, Refuse, SendOperation, Sync
from rmgr.errors import CoordinationUnavailable, PermissionDenied, QuotaReached, RmgrError
from rmgr.model.units import format_duration

T = TypeVar("T")

#: Longest piece of a wait for the session (s).
_LOOK_S = 0.25

_LOG = logging.getLogger("rmgr.zookeeper")


class LinkTrouble(Enum):
    """Meaning of a server's error for the operation."""

    LOST = "lost"
    ABSENT = "absent"
    EXISTS = "exists"
    DENIED = "denied"
    FULL = "full"
    OTHER = "other"


class LinkState(Enum):
    """States of a link. DEAD: the link never recovers by itself."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    EXPIRED = "expired"
    DEAD = "dead"


class ZookeeperLink(Protocol):
    """Link that `adapters/zookeeper/client.py` implements. Requests are opaque; replies have `set(value)` and `set_exception(error)`."""

    session_timeout_s: float

    @property
    def session(self) -> tuple[int, bytes]: ...
    @property
    def last_answer_s(self) -> float: ...
    @property
    def last_error(self) -> str: ...
    def push(self, request: Any, reply: Any) -> None: ...
    def drop_link(self) -> None: ...
    def end(self, timeout_s: float) -> None: ...
    def get_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def stat_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def children_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def sync_request(self, path: str) -> Any: ...
    def create_request(self, path: str, acl: tuple[wire.Acl, ...]) -> Any: ...
    def trouble(self, error: Exception) -> LinkTrouble: ...


class SessionCoordinator(abc.ABC):
    """`coord.ports.Coordinator` on a `ZookeeperLink`.

    Args:
        chroot: absolute path of the cluster in the ensemble, "" or "/a/b".
        acl: access list of every created znode, or one list for each place.
        window: most operations under way at once; beyond the server's 1,000 outstanding requests they would only wait there.
        clock: monotonic seconds.
        guarded: whether to start the guard thread; if not, the owner calls `guard` (single-threaded tests).
    """

    def __init__(
        self,
        chroot: str,
        *,
        acl: tuple[wire.Acl, ...] | AccessLists = wire.OPEN_ACL,
        window: int = 256,
        clock: Callable[[], float] = time.monotonic,
        guarded: bool = True,
    ) -> None:
        self.root = "/" + chroot.strip("/") if chroot.strip("/") else ""
        self.lists = lists_of(acl)
        self.clock = clock
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
        self.deadlines = Guard(self._lock, self.guard, clock, self._put_off)
        self._link_lock = threading.Lock()  # held to replace the link, or to end the last one; never taken while another lock is held
        self.link = self._open(None)
        if guarded:
            self.deadlines.start()

    @abc.abstractmethod
    def _open(self, session: tuple[int, bytes] | None) -> ZookeeperLink:
        """Returns a new link that connects in the background, and continues `session` if given."""

    # -- the port

    @property
    def session_id(self) -> int:
        return self._session[0]

    @property
    def session_timeout_s(self) -> float:
        return self.link.session_timeout_s

    @property
    def state(self) -> SessionState:
        """Returns the state that the listeners were told last."""
        return self._state

    def last_answer_s(self) -> float:
        return max(self._answered_before_s, self.link.last_answer_s)

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        op = Commit(self, multi, wire.encode_multi(multi, self.root, self.lists.encoded), self.clock() + timeout_s)
        self._give(op)
        return op.future

    def get(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stamped | None]:
        full, watcher = self._absolute(path), Watch(watch) if watch else None
        return self._read(self.link.get_request(full, watcher), to_stamped, timeout_s, full, watcher)

    def get_many(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> Future[list[Stamped | None]]:
        full = [self._absolute(path) for path in paths]
        requests = [wire.BulkRead(full[at : at + wire.MOST]) for at in range(0, len(full), wire.MOST)]
        parts = [self._read(one, partial(allowed, one.paths), timeout_s, f"{one.paths[0]} and others") for one in requests]
        return parts[0] if len(parts) == 1 else gather(parts)

    def at_one_moment(
        self, paths: Sequence[str], lists: Sequence[str], *, timeout_s: float = 10.0
    ) -> Future[list[Stamped | list[str] | None]]:
        request = wire.BulkRead([self._absolute(path) for path in paths], [self._absolute(path) for path in lists])
        every = [*request.paths, *request.lists]
        return self._read(request, partial(allowed, every), timeout_s, f"{every[0]} and others")

    def stat(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stat | None]:
        full = self._absolute(path)
        request = self.link.stat_request(full, Watch(watch) if watch else None)
        return self._read(request, lambda raw: None if raw is None else to_stat(raw), timeout_s, full)

    def children(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[list[str] | None]:
        full, watcher = self._absolute(path), Watch(watch) if watch else None
        return self._read(self.link.children_request(full, watcher), lambda names: names, timeout_s, full, watcher)

    def sync(self, *, timeout_s: float = 10.0) -> Future[None]:
        return self._read(self.link.sync_request(self.root or "/"), lambda _path: None, timeout_s, self.root)

    def ensure(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> None:
        # Blocks: never call it from a callback, which runs on the thread that would bring the answers.
        wanted: dict[str, None] = {}
        for path in paths:
            parts = self._absolute(path).strip("/").split("/")
            wanted.update(("/" + "/".join(parts[: depth + 1]), None) for depth in range(len(parts)) if parts[0])
        ordered = sorted(wanted, key=lambda path: (path.count("/"), path))
        requests = [self.link.create_request(path, self._list_for(path)) for path in ordered]
        futures = [self._read(request, lambda _path: None, timeout_s, path) for request, path in zip(requests, ordered, strict=True)]
        refused: dict[str, PermissionDenied] = {}
        for path, future in zip(ordered, futures, strict=True):
            try:
                future.result(timeout_s + 5)  # its own deadline is earlier
            except PermissionDenied as denied:  # the server checks the rights before it checks whether the znode exists
                refused[path] = denied
        for path, denial in refused.items():
            found = self._read(self.link.stat_request(path, None), lambda raw: raw, timeout_s, path).result(timeout_s + 5)
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
            self.deadlines.stop()
            told = self._carry_out(self._pipe.close("this client was closed"))
        _tell(told)
        with self._link_lock:  # wait for the guard, which may be opening another link that nobody would end
            link = self.link
        link.end(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- for tests and daemons beyond the port

    def drop_link(self) -> None:
        """Breaks the connection, but not the session."""
        self.link.drop_link()

    def wait_connected(self, timeout_s: float) -> bool:
        """Waits until the session is usable; returns whether it was within `timeout_s`, in which this process did not stand still."""
        return any(map(self._usable.wait, parts_of_wait(timeout_s, _LOOK_S)))

    # -- operations

    def _list_for(self, absolute: str) -> tuple[wire.Acl, ...]:
        if absolute == (self.root or "/"):
            return self.lists.entries("/")
        inside = absolute.startswith(f"{self.root}/")
        return self.lists.entries(absolute[len(self.root) :]) if inside else self.lists.above

    def _absolute(self, path: str) -> str:
        return (self.root if path == "/" else self.root + path) or "/"

    def _read(self, request: Any, finish: Callable[[Any], object], timeout_s: float, path: str, watch: Watch | None = None) -> Future[Any]:
        op = Read(self, request, finish, self.clock() + timeout_s, path, watch)
        self._give(op)
        return op.future

    def _give(self, op: Commit | Read) -> None:
        with self._lock:
            closed = self._closing.is_set()
            if op.deadline_s < self.deadlines.until_s:
                self.deadlines.at(op.deadline_s)
            if not closed and self._pipe.give(op):
                self.link.push(op.request, op)
        if closed:
            op.refuse("this client was closed")

    def _carry_out(self, orders: list[Order]) -> list[Answer | Refuse]:
        """Sends what the orders say and returns the answers to deliver outside the lock. Called under the lock."""
        told: list[Answer | Refuse] = []
        for order in orders:
            match order:
                case Answer() | Refuse():
                    told.append(order)
                case SendOperation(op):
                    self.link.push(op.request, op)  # type: ignore[attr-defined]
                case Sync():
                    self.link.push(self.link.sync_request(self.root or "/"), Nobody())
                case Prove():
                    proof = Proof(self, order)
                    for index, path in enumerate(order.paths):
                        self.link.push(self.link.get_request(self.root + path, None), ProofPart(proof, index))
        return told

    # -- the link's thread

    def trouble(self, error: Exception) -> LinkTrouble:
        """Classifies an error of the link."""
        return self.link.trouble(error)

    def on_answer(self, op: Commit | Read, value: object) -> None:
        """Delivers the server's answer to `op`."""
        with self._lock:
            told = self._carry_out(self._pipe.answered(op, value))
        _tell(told)

    def on_next_step(self, op: Read, request: Any) -> None:
        """Sends another request for `op`, whose first one was answered."""
        with self._lock:
            op.request = request
            if self._pipe.again(op):
                self.link.push(request, op)

    def on_error(self, op: Commit | Read, error: Exception) -> None:
        """Handles an error for `op`: the server refused it, or the link went down under it."""
        trouble = self.link.trouble(error)
        if trouble is LinkTrouble.LOST:
            # With the link down this is expected. With the link up (SessionMoved) only a new connection helps.
            if self._usable.is_set():
                self.link.drop_link()
        elif trouble is LinkTrouble.ABSENT and isinstance(op, Read) and op.watch is not None:
            self.on_next_step(op, self.link.stat_request(op.path, op.watch))
        else:
            self.on_answer(op, op.on_trouble(trouble, error))

    def on_proof(self, proof: Proof) -> None:
        """Decides `op` once all reads of its proof have come."""
        with self._lock:
            orders = self._pipe.unprovable(proof.op, proof.cause) if proof.cause else self._pipe.proved(proof.op, proof.seen)
            told = self._carry_out(orders)
        _tell(told)

    def link_changing(self, link: ZookeeperLink, state: LinkState) -> None:
        """Prepares for a change of the link to `state`; unless that is CONNECTED, nothing is sent from here on."""
        if state is not LinkState.CONNECTED and link is self._current():
            with self._lock:
                self._usable.clear()
                self._pipe.down()

    def link_changed(self, link: ZookeeperLink, state: LinkState) -> None:
        """Acts on a link that has changed to `state`."""
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
                    self._dead_since_s = self.clock()
                    self.deadlines.at(self._revive_s(self._dead_since_s))
                if not self._closing.is_set():
                    self._announce(SessionState.SUSPENDED)

    def _current(self) -> ZookeeperLink | None:
        return getattr(self, "link", None)

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
        """Ends operations past their deadline; replaces a dead link.

        Returns: when to call again (s on the clock), or None if only a new operation can make that necessary. Called by `Guard`.
        """
        now = self.clock()
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

    def _put_off(self, by_s: float) -> None:
        for op in self._pipe.unresolved():
            op.deadline_s += by_s  # type: ignore[attr-defined]

    def _revive_s(self, dead_s: float) -> float:
        """Returns when to replace a link that died at `dead_s`."""
        return dead_s + min(5.0, float(0.2 * 2**self._revivals))

    def _why(self) -> str:
        if self._usable.is_set():
            return "connected, the server is slow"
        return f"not connected: {self.link.last_error or 'no server answers'}"

    def _revive(self) -> None:
        """Opens another link for the same session: the link's thread has ended (authentication refused, an error in kazoo)."""
        with self._link_lock:
            if self._closing.is_set():
                return
            _LOG.warning("zookeeper_link_revived")
            self._dead_since_s = None
            self._revivals += 1
            old = self.link
            self._answered_before_s = self.last_answer_s()
            session = self._session
            try:
                self.link = self._open(session if session[0] else None)
            except Exception:
                self._dead_since_s = self.clock()  # retried, later each time
                raise
        old.end(1.0)


def parts_of_wait(timeout_s: float, most_s: float) -> Iterator[float]:
    """Yields the lengths of the parts of a wait, each at most `most_s`; at least one.

    The parts count, not the clock: a process that stood still has not read yet what came meanwhile.
    """
    while True:
        part_s = max(0.0, min(most_s, timeout_s))
        yield part_s
        timeout_s -= part_s
        if timeout_s <= 0.0:
            return


def _tell(told: list[Answer | Refuse]) -> None:
    for order in told:
        op: Any = order.op
        if type(order) is Answer:
            op.resolve(order.value)
        else:
            assert isinstance(order, Refuse)
            op.refuse(order.cause)


# -- operations under way: each receives the answer to its request and holds the future of its caller --------------------------


_NO_AUTH = -102
_OVER_QUOTA = -125
_FULL = (
    "what is there has to go before more is taken: cancel what nobody needs (rmgr jobs), or the cluster's admin revokes who fills it "
    "(rmgr admin revoke) or raises the quota (rmgr admin init --close-root --zookeeper-heap SIZE)"
)
_NO_RIGHT = "what each role may do is in SECURITY.md; are the credentials in [security] dir (RMGR_SECURITY_DIR) the right ones?"


class Watch:
    """Calls its callback once, at the first event of any of its registrations."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def __call__(self, _event: object) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class LateAnswer(CoordinationUnavailable, TimeoutError):
    """Nobody has said in time that ZooKeeper did not answer: this process stood still."""


class Asked(Future[T]):
    """A request under way. What it comes to is known at its deadline at the latest: ends_s, on `clock`.

    In a process that stood still it is known a moment later, once what came meanwhile was read.
    """

    def __init__(self, clock: Callable[[], float], ends_s: float) -> None:
        super().__init__()
        self.clock = clock
        self.ends_s = ends_s

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(timeout)
        except TimeoutError:
            if self.clock() >= self.ends_s:
                with contextlib.suppress(TimeoutError):
                    return super().result(_KNOWN_S)
            raise LateAnswer(f"ZooKeeper has not answered within {format_duration(timeout or 0.0)}", hint="rmgr doctor") from None


class Commit(Pending):
    """A multi under way: the request on the wire, the receiver of its answer, and the caller's future, in one object."""

    __slots__ = ("body", "deadline_s", "future", "owner")
    type = wire.OP_MULTI

    def __init__(self, owner: SessionCoordinator, multi: Multi, body: bytes, deadline_s: float) -> None:
        super().__init__(multi)
        self.owner = owner
        self.body = body
        self.deadline_s = deadline_s
        self.future: Future[Outcome] = Asked(owner.clock, deadline_s)

    @property
    def request(self) -> Commit:
        return self

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> list[object]:
        assert self.multi is not None
        return [wire.decode_multi(self.multi, self.owner.root, buffer, offset)]

    def set(self, value: list[object]) -> None:
        self.owner.on_answer(self, value[0])

    def set_exception(self, error: Exception) -> None:
        self.owner.on_error(self, error)

    def on_trouble(self, trouble: LinkTrouble, error: Exception) -> object:
        """Returns the outcome for an error that concerns the whole request."""
        assert self.multi is not None
        if trouble is LinkTrouble.DENIED:
            return PermissionDenied(f"{self.multi.name}: ZooKeeper refuses it to this role", hint=_NO_RIGHT)
        return RmgrError(f"{self.multi.name}: ZooKeeper answered {error!r}")

    def resolve(self, value: object) -> None:
        assert self.multi is not None
        with contextlib.suppress(InvalidStateError):  # cancelled by the caller
            if isinstance(value, wire.Failure):
                at = f"{self.multi.name}: operation {value.index} on {self.multi.ops[value.index].path}"
                if value.code == _NO_AUTH:
                    self.future.set_exception(PermissionDenied(f"{at} is not allowed to this role", hint=_NO_RIGHT))
                elif value.code == _OVER_QUOTA:
                    self.future.set_exception(over_quota(self.multi.name, self.multi.ops[value.index].path))
                else:
                    self.future.set_exception(RmgrError(f"{at} failed with ZooKeeper's error {value.code}"))
            elif isinstance(value, Exception):
                self.future.set_exception(value)
            else:
                self.future.set_result(value)  # type: ignore[arg-type]

    def refuse(self, cause: str) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(Unknown(cause))


class Read(Pending):
    """An operation that may be repeated: a read, a sync, the creation of a path that may exist.

    With a `watch`, an absent path takes two steps: the read leaves no watch there, `exists` does.
    """

    __slots__ = ("deadline_s", "finish", "first", "future", "owner", "path", "request", "watch")

    def __init__(
        self,
        owner: SessionCoordinator,
        request: Any,
        finish: Callable[[Any], object],
        deadline_s: float,
        path: str,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(None)
        self.owner = owner
        self.first = self.request = request
        self.finish = finish
        self.deadline_s = deadline_s
        self.path = path
        self.watch = watch
        self.future: Future[Any] = Asked(owner.clock, deadline_s)

    def set(self, value: Any) -> None:
        if self.request is not self.first:  # the second step: is the znode still absent?
            if value is None:
                self.owner.on_answer(self, None)
            else:
                self.owner.on_next_step(self, self.first)
        else:
            self.owner.on_answer(self, self.finish(value))

    def set_exception(self, error: Exception) -> None:
        self.owner.on_error(self, error)

    def on_trouble(self, trouble: LinkTrouble, error: Exception) -> object:
        if trouble in {LinkTrouble.ABSENT, LinkTrouble.EXISTS}:
            return None
        if trouble is LinkTrouble.DENIED:
            return PermissionDenied(f"{self.path}: ZooKeeper refuses it to this role", hint=_NO_RIGHT)
        if trouble is LinkTrouble.FULL:
            return over_quota("ENSURE", self.path.removeprefix(self.owner.root))
        return RmgrError(f"{self.path}: ZooKeeper answered {error!r}")

    def resolve(self, value: object) -> None:
        with contextlib.suppress(InvalidStateError):
            if isinstance(value, Exception):
                self.future.set_exception(value)
            else:
                self.future.set_result(value)

    def refuse(self, cause: str) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(CoordinationUnavailable(f"ZooKeeper: {cause}", hint="is the ensemble up? `rmgr doctor` tells"))


def over_quota(name: str, path: str) -> QuotaReached:
    """Returns the error for a write that ZooKeeper refuses because the quota of the subtree of `path` is used up."""
    return QuotaReached(f"{name}: ZooKeeper's quota of /{path.split('/')[1]} is used up; nothing was changed", hint=_FULL)


def allowed(paths: Sequence[str], found: list[Stamped | None] | wire.Refused) -> list[Stamped | None] | RmgrError:
    """Returns the result of a bulk read, or the error that replaces it."""
    if not isinstance(found, wire.Refused):
        return found
    at = paths[found.place]
    if found.code == _NO_AUTH:
        return PermissionDenied(f"{at}: ZooKeeper refuses it to this role", hint=_NO_RIGHT)
    return RmgrError(f"{at}: ZooKeeper's error {found.code}")


class Proof:
    """Gathers the reads of one `Prove` order."""

    def __init__(self, owner: SessionCoordinator, order: Prove) -> None:
        self.owner = owner
        self.op = order.op
        self.seen: list[Stamped | None] = [None] * len(order.paths)
        self.missing = len(order.paths)
        self.cause = ""

    def put(self, index: int, found: Stamped | None) -> None:
        self.seen[index] = found
        self.missing -= 1
        if self.missing == 0:
            self.owner.on_proof(self)


class ProofPart:
    def __init__(self, proof: Proof, index: int) -> None:
        self.proof = proof
        self.index = index

    def set(self, value: Any) -> None:
        self.proof.put(self.index, to_stamped(value))

    def set_exception(self, error: Exception) -> None:
        trouble = self.proof.owner.trouble(error)
        if trouble is LinkTrouble.LOST:
            return  # the link fell: the proof is ordered again
        if trouble is not LinkTrouble.ABSENT:
            self.proof.cause = f"the proof cannot be read: {error!r}"
        self.proof.put(self.index, None)


class Nobody:
    """Receiver of the answer to a sync that nobody waits for."""

    def set(self, value: object) -> None: ...
    def set_exception(self, error: Exception) -> None: ...


def to_stat(raw: Any) -> Stat:
    """Converts kazoo's stat. The server reports changes of children, creates * 2 - children; sequence numbers count creates."""
    return Stat(
        version=raw.version,
        mzxid=raw.mzxid,
        children=raw.numChildren,
        creates=(raw.cversion + raw.numChildren) // 2,
        ephemeral_owner=raw.ephemeralOwner,
        mtime_ms=raw.mtime,
        czxid=raw.czxid,
        ctime_ms=raw.ctime,
    )


def to_stamped(raw: tuple[bytes | None, Any]) -> Stamped:
    """Converts kazoo's data and stat."""
    return Stamped(raw[0] or b"", to_stat(raw[1]))


def gather(parts: Sequence[Future[Any]]) -> Future[list[Stamped | None]]:
    """Joins several reads into one list, done when the last is done; fails with the first error. Without parts, it is done at once."""
    last = max((part for part in parts if isinstance(part, Asked)), key=lambda part: part.ends_s, default=None)
    whole: Future[list[Stamped | None]] = Asked(*((last.clock, last.ends_s) if last else (time.monotonic, math.inf)))
    arrived = itertools.count(1)  # callbacks come on several threads

    def one(_: object) -> None:
        if next(arrived) >= len(parts) and whole.set_running_or_notify_cancel():
            error = next((error for part in parts if (error := part.exception()) is not None), None)
            if error is not None:
                whole.set_exception(error)
            else:
                whole.set_result([found for part in parts for found in part.result()])

    for part in parts:
        part.add_done_callback(one)
    if not parts:
        one(None)
    return whole


# -- the guard -----------------------------------------------------------------------------------------------------------------


#: Least time between two looks: a deadline may be noticed that much late, and a busy client looks at this pace.
PACE_S = 0.1
#: A guard that wakes this much late stood still with its process. Deadlines are put off by that time and as much again: answers that came
#: meanwhile come first.
STOOD_S = 1.0
#: While something is due, the guard wakes this often, or it would not notice that it stood still before a deadline.
_WAKES_S = 2.0
#: By then, one who stood still with the guard is told by it what an operation has come to.
_KNOWN_S = 30.0


class Guard:
    """Calls `look` at the earliest time named through `at` or returned by `look` itself.

    Args:
        lock: held by callers of `at`. look: called without the lock; returns when to call it again, or None if only `at` decides.
        put_off: called under the lock with the seconds by which all that is due is due later.
        clock: monotonic seconds, the base of all these times.
    """

    def __init__(
        self,
        lock: threading.Lock,
        look: Callable[[], float | None],
        clock: Callable[[], float],
        put_off: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.until_s = math.inf  #: the next look; a caller that adds something due earlier calls `at`
        self._look = look
        self._put_off = put_off
        self._clock = clock
        self._turn = threading.Condition(lock)
        self._earliest_s = -math.inf
        self._stopped = False

    def start(self) -> None:
        """Starts the thread, whose first look comes by itself."""
        with self._turn:
            self.at(self._clock() + PACE_S)
        threading.Thread(target=self._run, name="zookeeper-guard", daemon=True).start()

    def at(self, due_s: float) -> None:
        """Notes that something may be due at `due_s`. Called under the lock. Cost: a switch of threads if nothing was due earlier."""
        due_s = max(due_s, self._earliest_s)
        if due_s < self.until_s:
            self.until_s = due_s
            self._turn.notify()

    def stop(self) -> None:
        """Ends the thread. Called under the lock. Idempotent."""
        self._stopped = True
        self._turn.notify()

    def _run(self) -> None:
        while self._sleep():
            try:
                again_s = self._look()
            except Exception:  # noqa: BLE001 - without its guard, no operation of this client would have a deadline
                _LOG.exception("zookeeper_guard_raised")
                again_s = self._clock()
            if again_s is not None:
                with self._turn:
                    self.at(again_s)

    def _sleep(self) -> bool:
        """Sleeps until the next look, which covers everything given before it. Returns False when the guard has stopped."""
        with self._turn:
            wakes_s = self.until_s
            while not self._stopped:
                now_s = self._clock()
                late_s = now_s - min(wakes_s, self.until_s)
                if late_s > STOOD_S:
                    self._put_off(late_s + STOOD_S)
                if self.until_s <= now_s:
                    self.until_s = math.inf  # operations given from here on call `at` themselves
                    self._earliest_s = now_s + PACE_S
                    return True
                wakes_s = min(self.until_s, now_s + _WAKES_S) if self.until_s < math.inf else math.inf
                self._turn.wait(None if wakes_s == math.inf else wakes_s - now_s)
        return False
