"""The Coordinator port on a tree in memory, with faults on demand: for unit tests, property tests and simulations of daemons.

Everything above the link (futures, order, deadlines, read-back, watches) is the same code as on ZooKeeper; only the link
and the server are replaced. It runs in two ways:
- `auto=True`: every request is executed and answered at once in the caller's thread; lost links come back at once;
- `auto=False`: the test makes every step. `server_step` executes the next request, `client_step` delivers the next answer,
  `cut` breaks the link, `reconnect` restores it, `guard` ends requests past their deadline (pass a `clock`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmgr.adapters.zookeeper.session import Commit, LinkState, LinkTrouble, SessionCoordinator, to_stamped
from rmgr.adapters.zookeeper.wire import OPEN_ACL, Acl, BulkRead
from rmgr.coord.protocol.multi import Stamped
from tests.harness.memory_tree import Event, MemoryTree, NoZnode, SessionGone


@dataclass(frozen=True, slots=True)
class _Request:
    kind: str
    path: str
    watch: Callable[[object], None] | None = None


class _LinkLost(Exception):
    """The error that kazoo gives to all requests under way."""


class _MemoryLink:
    """Two queues between a coordinator and the tree; a `ZookeeperLink`."""

    last_error = "the link is down"

    def __init__(self, owner: MemoryCoordinator, tree: MemoryTree, session_timeout_s: float, clock: Callable[[], float]) -> None:
        self.session_timeout_s = session_timeout_s
        self.last_answer_s = -math.inf
        self._owner = owner
        self._tree = tree
        self._clock = clock
        self._session = 0
        self.up = False
        self.requests: deque[tuple[Any, Any, float]] = deque()
        self.answers: deque[Callable[[], None]] = deque()
        self._watchers: dict[tuple[str, str], list[Callable[[object], None]]] = {}

    @property
    def session(self) -> tuple[int, bytes]:
        return self._session, b"\0" * 16

    def push(self, request: Any, reply: Any) -> None:
        self.requests.append((request, reply, self._clock()))

    def drop_link(self) -> None:
        self._owner.cut()

    def end(self, _timeout_s: float) -> None:
        self.requests.clear()
        self.answers.clear()
        self.up = False
        self._owner.tell(self._tree.end_session(self._session))

    # -- the server's side

    def serve(self) -> bool:
        """Executes the next request. Returns False if there is none."""
        if not self.requests:
            return False
        request, reply, sent_s = self.requests.popleft()
        try:
            value, events = self._execute(request)
        except (NoZnode, SessionGone, FileExistsError) as error:
            failure = error
            self._answer(sent_s, lambda: reply.set_exception(failure))
        else:
            self._owner.tell(events)  # watches hear of a change before its author gets the answer

            def deliver() -> None:
                reply.set(value)
                self._register(request)

            self._answer(sent_s, deliver)
        return True

    def _register(self, request: Any) -> None:
        """Registers a request's watch, which counts from the arrival of its answer, as in kazoo."""
        watch = getattr(request, "watch", None)
        if watch is not None:
            table = "child" if request.kind == "children" else "data"
            self._watchers.setdefault((table, request.path), []).append(watch)

    def event(self, table: str, path: str) -> None:
        """Reports a change to the watchers of a path."""
        for callback in self._watchers.pop((table, path), []):
            callback(None)

    def _answer(self, sent_s: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            self.last_answer_s = max(self.last_answer_s, sent_s)
            deliver()

        self.answers.append(arrive)

    def _execute(self, request: Any) -> tuple[Any, list[Event]]:
        if isinstance(request, Commit):
            assert request.multi is not None
            outcome, events = self._tree.apply(self._session, request.multi, self._owner.root)
            return [outcome], events
        if not self._tree.is_alive(self._session):
            raise SessionGone
        if isinstance(request, BulkRead):
            return [*map(self._found, request.paths), *map(self._names, request.lists)], []
        watch = None if request.watch is None else self
        match request.kind:
            case "get":
                return self._tree.get(request.path, watch), []
            case "stat":
                return self._tree.exists(request.path, watch), []
            case "children":
                return self._tree.children(request.path, watch), []
            case "create":
                created, events = self._tree.create(self._session, request.path)
                if not created:
                    raise FileExistsError
                return request.path, events
            case _:
                return request.path, []

    def _names(self, path: str) -> list[str] | None:
        try:
            return self._tree.children(path)
        except NoZnode:
            return None

    def _found(self, path: str) -> Stamped | None:
        try:
            return to_stamped(self._tree.get(path))
        except NoZnode:
            return None

    # -- the link's states

    def connect(self) -> None:
        """Brings the link up: with the old session if it is alive, else with a new one after EXPIRED."""
        if self._session and not self._tree.is_alive(self._session):
            self._owner.link_changing(self, LinkState.EXPIRED)
            self._owner.link_changed(self, LinkState.EXPIRED)
            self._session = 0
        if not self._session:
            self._session = self._tree.open_session()
        self.up = True
        self.last_answer_s = max(self.last_answer_s, self._clock())
        self._owner.link_changing(self, LinkState.CONNECTED)
        self._owner.link_changed(self, LinkState.CONNECTED)

    def cut(self) -> None:
        """Takes the link down: both queues are lost, and watches are told."""
        if not self.up:
            return
        self.up = False
        self._owner.link_changing(self, LinkState.CONNECTING)
        lost = [reply for _request, reply, _sent in self.requests]
        self.requests.clear()
        self.answers.clear()
        for reply in lost:
            reply.set_exception(_LinkLost())
        self._tree.drop_watches(self)
        for table, path in list(self._watchers):
            self.event(table, path)
        self._owner.link_changed(self, LinkState.CONNECTING)

    # -- requests

    def get_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("get", path, watch)

    def stat_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("stat", path, watch)

    def children_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("children", path, watch)

    def sync_request(self, path: str) -> _Request:
        return _Request("sync", path)

    def create_request(self, path: str, acl: tuple[Acl, ...]) -> _Request:
        del acl
        return _Request("create", path)

    def trouble(self, error: Exception) -> LinkTrouble:
        match error:
            case _LinkLost() | SessionGone():
                return LinkTrouble.LOST
            case NoZnode():
                return LinkTrouble.ABSENT
            case FileExistsError():
                return LinkTrouble.EXISTS
            case _:
                return LinkTrouble.OTHER


class MemoryCoordinator(SessionCoordinator):
    """A session on a `MemoryTree`.

    Args:
        tree: shared with the other coordinators of the test; None: one of its own.
        auto: see the module. guarded: whether a thread ends requests past their deadline; default: in auto mode.
    """

    link: _MemoryLink

    def __init__(
        self,
        tree: MemoryTree | None = None,
        chroot: str = "",
        *,
        auto: bool = True,
        session_timeout_s: float = 10.0,
        window: int = 256,
        clock: Callable[[], float] = time.monotonic,
        guarded: bool | None = None,
    ) -> None:
        self.tree = tree or MemoryTree()
        self.auto = auto
        self.paused = False
        self._wanted_timeout_s = session_timeout_s
        self._lose_reply = 0
        self._lose_request = 0
        self._pump_lock = threading.Lock()
        self._pumping = False
        super().__init__(chroot, acl=OPEN_ACL, window=window, clock=clock, guarded=auto if guarded is None else guarded)
        self.link.connect()

    def _open(self, session: tuple[int, bytes] | None) -> _MemoryLink:
        del session
        return _MemoryLink(self, self.tree, self._wanted_timeout_s, self.clock)

    # -- faults

    def lose_reply(self, nth: int = 1) -> None:
        """Executes the n-th multi from now, and cuts the link before its answer."""
        self._lose_reply = nth

    def lose_request(self, nth: int = 1) -> None:
        """Cuts the link before the n-th multi from now is executed."""
        self._lose_request = nth

    def pause(self) -> None:
        """Stops the server from executing requests (auto mode)."""
        self.paused = True

    def resume(self) -> None:
        """Ends `pause`."""
        self.paused = False
        self.pump()

    def cut(self) -> None:
        """Cuts the link; in auto mode it comes back at once."""
        self.link.cut()
        if self.auto:
            self.reconnect()

    def lose_watches(self) -> None:
        """Makes the server forget the client's watches, as when the link falls."""
        self.tree.drop_watches(self.link)

    def reconnect(self) -> None:
        """Restores the link, with the same session if that is alive."""
        if not self.link.up and not self._closing.is_set():
            self.link.connect()
            self.pump()

    def ping(self) -> bool:
        """Sends the link's heartbeat, which the server answers. Returns False if the link is down or the session has ended."""
        if not self.link.up or self.paused or not self.tree.is_alive(self.session_id):
            return False
        self.link.last_answer_s = max(self.link.last_answer_s, self.clock())
        return True

    def expire(self) -> None:
        """Ends the session on the server; the client learns it when it connects again (auto mode: at once)."""
        self.tell(self.tree.end_session(self.session_id))
        self.cut()

    # -- movement

    def server_step(self) -> bool:
        """Executes the next request, with faults. Returns False if there was none."""
        if not self.link.up or not self.link.requests:
            return False
        is_multi = isinstance(self.link.requests[0][0], Commit)
        if is_multi and self._lose_request:
            self._lose_request -= 1
            if not self._lose_request:
                self.cut()
                return True
        self.link.serve()
        if is_multi and self._lose_reply:
            self._lose_reply -= 1
            if not self._lose_reply:
                self.cut()
        return True

    def client_step(self) -> bool:
        """Delivers the next answer or event. Returns False if there was none."""
        if not self.link.answers:
            return False
        self.link.answers.popleft()()
        return True

    def run(self) -> None:
        """Steps until nothing moves."""
        while self.client_step() or self.server_step():
            pass

    def tell(self, events: list[Event]) -> None:
        """Passes events to the links whose watches they trigger."""
        for link, table, path in events:
            assert isinstance(link, _MemoryLink)
            link.answers.append(partial(link.event, table, path))
            if link._owner is not self and link._owner.auto:
                link._owner.pump()

    def pump(self) -> None:
        """In auto mode, steps until nothing moves; one thread at a time, to which other threads leave their work."""
        if not self.auto:
            return
        while True:
            with self._pump_lock:
                if self._pumping or not self._movable():
                    return
                self._pumping = True
            try:
                while self.client_step() or (not self.paused and self.server_step()):
                    pass
            finally:
                self._pumping = False

    def _movable(self) -> bool:
        return bool(self.link.answers or (self.link.requests and self.link.up and not self.paused))

    def _give(self, op: Any) -> None:
        super()._give(op)
        self.pump()
