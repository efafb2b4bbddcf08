"""The znode tree in memory, which handles multis, reads, watches and expired sessions exactly as a ZooKeeper server does.

The order of checks and the numbering follow the server's source (PrepRequestProcessor, DataTree, DataNode);
tests/integration/zookeeper/test_coordinator_conformance.py compares both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rmgr.adapters.zookeeper.wire import Failure
from rmgr.coord.protocol.multi import Check, Committed, Conflict, ConflictKind, Create, Delete, Multi, Op, Set

_NO_CHILDREN_FOR_EPHEMERALS = -108
_BAD_ARGUMENTS = -8

#: A notice of a change: (link, table "data" or "child", path). The link knows its watchers.
Event = tuple[object, str, str]


@dataclass(frozen=True, slots=True)
class RawStat:
    """A znode's stat under the server's own names."""

    version: int
    mzxid: int
    mtime: int
    cversion: int
    numChildren: int  # noqa: N815 - as on the wire
    ephemeralOwner: int  # noqa: N815
    czxid: int
    ctime: int


@dataclass(slots=True)
class _Znode:
    data: bytes
    mzxid: int
    mtime: int
    owner: int = 0
    version: int = 0
    creates: int = 0
    children: set[str] = field(default_factory=set)
    czxid: int = 0
    ctime: int = 0

    def stat(self) -> RawStat:
        count = len(self.children)
        return RawStat(self.version, self.mzxid, self.mtime, self.creates * 2 - count, count, self.owner, self.czxid, self.ctime)


class NoZnode(Exception):
    """The path does not exist."""


class SessionGone(Exception):
    """The session has expired or was closed."""


class _Refused(Exception):
    def __init__(self, answer: Conflict | Failure) -> None:
        super().__init__()
        self.answer = answer


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class MemoryTree:
    """The znodes of one ensemble, shared by the coordinators of a test. Thread-safe; makes no callbacks.

    Args:
        now_ms: wall clock for ctime and mtime; None = the number of the transaction, which keeps runs identical.
    """

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._lock = threading.RLock()
        self.now_ms = now_ms
        self._zxid = 0
        self._nodes: dict[str, _Znode] = {"/": _Znode(b"", 0, 0)}
        self._sessions: set[int] = set()
        self._next_session = 1
        self._watches: dict[str, dict[str, dict[object, None]]] = {"data": {}, "child": {}}
        self.commits: list[tuple[int, Multi]] = []  #: (session, multi) in order, against which tests check outcomes

    # -- sessions

    def open_session(self) -> int:
        """Opens a session; returns its id."""
        with self._lock:
            session = self._next_session
            self._next_session += 1
            self._sessions.add(session)
            return session

    def is_alive(self, session: int) -> bool:
        """Whether the session has neither expired nor been closed."""
        return session in self._sessions

    def end_session(self, session: int) -> list[Event]:
        """Deletes a session and its ephemerals as one transaction."""
        with self._lock:
            if session not in self._sessions:
                return []
            self._sessions.discard(session)
            self._zxid += 1
            events: list[Event] = []
            for path in sorted(path for path, node in self._nodes.items() if node.owner == session):
                self._remove(path)
                events += self._triggered([("delete", path)])
            return events

    # -- writes

    def apply(self, session: int, multi: Multi, root: str = "") -> tuple[Committed | Conflict | Failure, list[Event]]:
        """Executes a multi, whole or not at all; paths are below `root`, and answers are relative to it. Raises: SessionGone."""
        with self._lock:
            if session not in self._sessions:
                raise SessionGone
            undo: list[Callable[[], None]] = []
            paths: list[str] = []
            versions: list[int] = []
            changes: list[tuple[str, str]] = []
            self._zxid += 1
            try:
                for index, op in enumerate(multi.ops):
                    path, version = self._apply(session, index, op, root, undo, changes)
                    paths.append(path[len(root) :])
                    versions.append(version)
            except _Refused as refused:
                for step in reversed(undo):
                    step()
                return refused.answer, []
            self.commits.append((session, multi))
            return Committed(paths=tuple(paths), versions=tuple(versions)), self._triggered(changes)

    def _apply(
        self, session: int, index: int, op: Op, root: str, undo: list[Callable[[], None]], changes: list[tuple[str, str]]
    ) -> tuple[str, int]:
        path = root + op.path

        def refuse(kind: ConflictKind) -> _Refused:
            return _Refused(Conflict(index=index, path=op.path, kind=kind))

        if not path.startswith("/") or (path.endswith("/") and path != "/") or "//" in path:
            raise _Refused(Failure(index, _BAD_ARGUMENTS))
        if isinstance(op, Create):
            parent = self._nodes.get(_parent(path))
            if parent is None:
                raise refuse(ConflictKind.NO_NODE)
            if op.sequence:
                path = f"{path}{parent.creates:010d}"
            if path in self._nodes:
                raise refuse(ConflictKind.NODE_EXISTS)
            if parent.owner:
                raise _Refused(Failure(index, _NO_CHILDREN_FOR_EPHEMERALS))
            undo.append(partial(self._uncreate, path, parent))
            owner, now = session if op.ephemeral else 0, self._time()
            self._nodes[path] = _Znode(op.data, self._zxid, now, owner, czxid=self._zxid, ctime=now)
            parent.children.add(path.rpartition("/")[2])
            parent.creates += 1
            changes.append(("create", path))
            return path, 0
        node = self._nodes.get(path)
        if node is None:
            raise refuse(ConflictKind.NO_NODE)
        if op.version not in {-1, node.version}:
            raise refuse(ConflictKind.BAD_VERSION)
        if isinstance(op, Check):
            return path, op.version
        if isinstance(op, Set):
            undo.append(partial(_unset, node, node.data, node.mzxid, node.mtime, node.version))
            node.data, node.mzxid, node.mtime = op.data, self._zxid, self._time()
            node.version += 1
            changes.append(("set", path))
            return path, node.version
        assert isinstance(op, Delete)
        if node.children:
            raise refuse(ConflictKind.NOT_EMPTY)
        undo.append(partial(self._undelete, path, node))
        self._remove(path)
        changes.append(("delete", path))
        return path, -1

    def _uncreate(self, path: str, parent: _Znode) -> None:
        self._remove(path)
        parent.creates -= 1

    def _undelete(self, path: str, node: _Znode) -> None:
        self._nodes[path] = node
        self._nodes[_parent(path)].children.add(path.rpartition("/")[2])

    def create(self, session: int, path: str) -> tuple[bool, list[Event]]:
        """Creates a persistent znode without data. Returns False if it exists. Raises: NoZnode without a parent, SessionGone."""
        with self._lock:
            multi = Multi(name="CREATE", ops=(Create(path),), proof=None)  # type: ignore[arg-type]
            answer, events = self.apply(session, multi)
            if isinstance(answer, Committed):
                self.commits.pop()
                return True, events
            if isinstance(answer, Conflict) and answer.kind is ConflictKind.NODE_EXISTS:
                return False, []
            raise NoZnode

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        parent = self._nodes.get(_parent(path))
        if parent is not None:
            parent.children.discard(path.rpartition("/")[2])

    def _time(self) -> int:
        return self._zxid if self.now_ms is None else self.now_ms()

    # -- reads and watches

    def get(self, path: str, watcher: object = None) -> tuple[bytes, RawStat]:
        """Returns data and stat, and leaves a watch for the link `watcher` if the znode exists. Raises: NoZnode."""
        with self._lock:
            node = self._nodes.get(path)
            if node is None:
                raise NoZnode
            self._watch("data", path, watcher)
            return node.data, node.stat()

    def exists(self, path: str, watcher: object = None) -> RawStat | None:
        """Returns the stat, or None if absent, and leaves a watch either way."""
        with self._lock:
            node = self._nodes.get(path)
            self._watch("data", path, watcher)
            return None if node is None else node.stat()

    def children(self, path: str, watcher: object = None) -> list[str]:
        """Returns the names of the children, in no particular order. Raises: NoZnode."""
        with self._lock:
            node = self._nodes.get(path)
            if node is None:
                raise NoZnode
            self._watch("child", path, watcher)
            return sorted(node.children, reverse=True)

    def watches(self, table: str) -> int:
        """Returns the number of watches in the table "data" or "child"."""
        with self._lock:
            return sum(len(links) for links in self._watches[table].values())

    def drop_watches(self, watcher: object) -> None:
        """Forgets the watches of a broken link."""
        with self._lock:
            for table in self._watches.values():
                for links in table.values():
                    links.pop(watcher, None)

    def dump(self) -> dict[str, bytes]:
        """Returns every path and its data, for assertions."""
        with self._lock:
            return {path: node.data for path, node in sorted(self._nodes.items())}

    def _watch(self, table: str, path: str, watcher: object) -> None:
        if watcher is not None:
            self._watches[table].setdefault(path, {})[watcher] = None

    def _triggered(self, changes: list[tuple[str, str]]) -> list[Event]:
        events: list[Event] = []
        for kind, path in changes:
            hit = [("data", path)]
            if kind != "set":
                hit.append(("child", _parent(path)))
            if kind == "delete":
                hit.append(("child", path))
            for table, watched in hit:
                events += [(link, table, watched) for link in self._watches[table].pop(watched, {})]
        return events


def _unset(node: _Znode, data: bytes, mzxid: int, mtime: int, version: int) -> None:
    node.data, node.mzxid, node.mtime, node.version = data, mzxid, mtime, version
