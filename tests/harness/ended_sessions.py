"""Ends ZooKeeper sessions from outside, as an expiry does: a test that has killed a process need not wait for the session timeout T.

So T need not be short. If the machine stands still for longer than T, all processes and the test itself lose their sessions, and the test's
assertions on attempts, incarnations and epochs fail. Therefore sessions last `LONG_S`, and `Expiry` ends those of killed and stopped
processes. Tests about T itself, or about a ZooKeeper that is away for longer, use a short T.

A server derives a session's password from its id with java.util.Random and a constant (`ZooKeeperServer.generatePasswd`), so a test can
compute it without asking the process.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError, Unavailable, WrongCluster
from rmgr.model.node import EpochRecord, StarterEntry, SubmitterEntry
from rmgr.runner.host.contain import state_of

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster

#: T (s) for tests in which no session may expire: longer than a machine may stand still.
LONG_S = 30.0
#: Time (s, counted in looks) after which `Expiry` ends the session of a silent process; also T in tests about T.
AFTER_S = 3.0
_LOOK_S = 0.5
_ENTRIES: dict[str, type[StarterEntry | EpochRecord | SubmitterEntry]] = {
    paths.STARTERS: StarterEntry,
    paths.WATCHDOGS: EpochRecord,
    paths.SUBMITTERS: SubmitterEntry,
}
_INT = struct.Struct("!i")
_SECRET = 0xB3415C00
_MULTIPLIER, _ADDEND, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1


def end_session(host: str, port: int, session_id: int, passwd: bytes, *, timeout_s: float = 5.0) -> None:
    """Ends a session as an expiry does: connects as its owner, and closes it.

    Raises: Unavailable if the server does not confirm within `timeout_s`.
    """
    connect = struct.pack("!iqiqi", 0, 0, 10_000, session_id, len(passwd)) + passwd + b"\x00"
    close = struct.pack("!ii", 1, -11)
    deadline = time.monotonic() + timeout_s
    received = b""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as link:
            # Both in one write: otherwise the owner, which reconnects within a tenth of a second, would take the session back.
            link.sendall(_INT.pack(len(connect)) + connect + _INT.pack(len(close)) + close)
            while len(received) < 4 or len(received) < 8 + _INT.unpack_from(received)[0]:
                link.settimeout(max(0.001, deadline - time.monotonic()))
                part = link.recv(65536)
                if not part:
                    break
                received += part
    except OSError as error:
        msg = f"ZooKeeper at {host}:{port} did not end session 0x{session_id:x}: {error}"
        raise Unavailable(msg) from error


def password_of(session_id: int) -> bytes:
    """Returns the 16 bytes of the password that the server has given to a session."""
    state = ((session_id ^ _SECRET) ^ _MULTIPLIER) & _MASK
    made = b""
    while len(made) < 16:
        state = (state * _MULTIPLIER + _ADDEND) & _MASK
        made += (state >> 16).to_bytes(4, "little")
    return made


def sessions(coordinator: Coordinator) -> dict[str, int]:
    """Returns the session ids of all Starters, WatchDogs and Submitters, by the path of their entry."""
    found = {}
    for parent in (paths.STARTERS, paths.WATCHDOGS, paths.SUBMITTERS):
        for name in coordinator.children(parent).result(60) or ():
            stat = coordinator.stat(f"{parent}/{name}").result(60)
            if stat is not None and stat.ephemeral_owner:
                found[f"{parent}/{name}"] = stat.ephemeral_owner
    return found


def expire(hosts: str, session_id: int) -> None:
    """Ends the session `session_id`, as an expiry does."""
    host, _, port = hosts.partition(":")
    end_session(host, int(port), session_id, password_of(session_id))


def expire_all(hosts: str, coordinator: Coordinator, known: Iterable[str] = ()) -> None:
    """Ends the sessions of all Starters, WatchDogs and Submitters except those with entries in `known`: those of killed processes."""
    for path, session_id in sessions(coordinator).items():
        if path not in known:
            expire(hosts, session_id)


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process on this machine, and its session."""

    session_id: int
    pid: int

    def is_silent(self) -> bool:
        """Whether the process is dead or stopped."""
        return state_of(self.pid) in "TtZX"


class Expiry:
    """Replaces T in a cluster with long sessions: ends the sessions of dead or stopped Starters, WatchDogs and Submitters.

    It counts its own looks, so a process that stands still with the whole machine does not count as silent.
    Do not use it for work whose attempts must never overlap: a Starter trusts its session for the T that ZooKeeper knows. It ignores
    sessions of gateways, which their clients' entries name: a test that kills a gateway ends that session itself.
    """

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._holders: dict[str, dict[str, _Holder | None]] = {parent: {} for parent in _ENTRIES}
        self._changed = {parent: threading.Event() for parent in _ENTRIES}
        self._silent: Counter[int] = Counter()
        self._over = threading.Event()

    def start(self) -> None:
        """Once the cluster runs."""
        for changed in self._changed.values():
            changed.set()
        threading.Thread(target=self._watch, args=(self._cluster.coordinator,), name="expiry", daemon=True).start()

    def stop(self) -> None:
        """Before the cluster ends. Idempotent."""
        self._over.set()

    def _watch(self, coordinator: Coordinator) -> None:
        while not self._over.wait(_LOOK_S):
            with contextlib.suppress(RmgrError):  # ZooKeeper is away, or the test has taken it away
                self._look(coordinator)

    def _look(self, coordinator: Coordinator) -> None:
        for parent, changed in self._changed.items():
            if changed.is_set():
                self._read(coordinator, parent, changed)
        for holder in {holder for holders in self._holders.values() for holder in holders.values() if holder is not None}:
            self._silent[holder.session_id] = self._silent[holder.session_id] + 1 if holder.is_silent() else 0
            if self._silent[holder.session_id] * _LOOK_S >= AFTER_S:
                expire(self._cluster.zookeeper.hosts, holder.session_id)

    def _read(self, coordinator: Coordinator, parent: str, changed: threading.Event) -> None:
        changed.clear()
        before = self._holders[parent]
        try:
            there = [f"{parent}/{name}" for name in coordinator.children(parent, watch=changed.set).result(60) or ()]
            self._holders[parent] = {path: before[path] if path in before else _holder(coordinator, path) for path in there}
        except RmgrError:
            changed.set()
            raise


def _holder(coordinator: Coordinator, path: str) -> _Holder | None:
    """Returns the process of an entry, or None if it is a gateway's or cannot be found out."""
    found = coordinator.get(path).result(60)
    if found is None:
        return None
    try:
        entry = decode_record(found.data, _ENTRIES[path.rpartition("/")[0]])
    except WrongCluster:  # written by another release
        return None
    is_ours = entry.host == socket.gethostname() and not getattr(entry, "user", "")
    return _Holder(found.stat.ephemeral_owner, entry.pid) if is_ours else None


@contextlib.contextmanager
def expiring(cluster: DevCluster) -> Iterator[DevCluster]:
    """Yields a running cluster whose silent processes lose their sessions."""
    expiry = Expiry(cluster)
    expiry.start()
    try:
        yield cluster
    finally:
        expiry.stop()
