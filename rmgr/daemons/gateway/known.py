"""Looks things up in the cluster when a gateway builds a client's change anew (`coord/rebuild_parts.Known`).

Numbers and tails are kept by their version: what a znode held at a version it holds for ever. They are learnt from what ZooKeeper has
answered and from one's own commits, so that an honest client's next SUBMIT or ENQUEUE costs no reading here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from rmgr.adapters.access.auth import Caller
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import ConflictKind, Set, Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.rebuild.multis import Built
from rmgr.coord.rebuild.parts import Moved, SubmissionFacts
from rmgr.coord.validity.records import decode
from rmgr.daemons.gateway.owners import Owners
from rmgr.errors import NotConnected, PermissionDenied, RmgrError
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Tail
from rmgr.runtime import machine

_KEEP_NUMBERS, _KEEP_TAILS = 1000, 20_000
_TIMEOUT_S = 5.0
#: How long a SUBMIT may be on its way for others to follow it.
_SENT_S = 10.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Last(Generic[K, V]):
    """The values that were learnt last, so many of them. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            return self._known.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)


class Cluster:
    """Facts about the cluster, whoever asks. Thread-safe.

    Args:
        certify: key id and canonical form of a signing key's certificate (`pki.signing_certificate`), None in an open cluster.
    """

    def __init__(self, coordinator: Coordinator, owners: Owners, certify: Callable[[bytes], tuple[str, bytes]] | None = None) -> None:
        self.owners = owners
        self._certify = certify
        self._coordinator = coordinator
        self._numbers: _Last[int, int] = _Last(_KEEP_NUMBERS)
        self._sent: _Last[int, tuple[int, float]] = _Last(_KEEP_NUMBERS)  #: version -> number, if what was sent is committed; until when
        self._tails: _Last[int, tuple[int, Tail]] = _Last(_KEEP_TAILS)
        self._newest = -1  #: version of /ids that ZooKeeper has surely had
        self._lock = threading.Lock()
        self._settings: ClusterSettings | None = None
        self._settings_read = 0

    def asked_by(self, caller: Caller, *, is_operator: bool = False) -> KnownToCaller:
        """The same for one caller."""
        return KnownToCaller(self, caller, is_operator=is_operator)

    def number(self, version: int) -> int:
        """See `Known`. What a SUBMIT on its way will leave counts: its version exists only if it, or another like it, is committed.
        What is surely over is not asked for: where many submit at once most come too late, and that must cost little."""
        if version < self._newest:
            raise Moved(paths.IDS, ConflictKind.BAD_VERSION)
        known = self._numbers.get(version)
        if known is None:
            sent = self._sent.get(version)
            if sent is not None and machine.monotonic() < sent[1]:
                return sent[0]
            known = decode(self.read(paths.IDS, version).data, int, paths.IDS)
            self._learnt(version, known)
        return known

    def facts(self, submission: int) -> SubmissionFacts:
        """See `Known`."""
        facts = self.owners.facts(submission)
        if facts is None or not facts.queue:
            raise Moved(paths.tail(submission), ConflictKind.NO_NODE)
        return facts

    def tail(self, submission: int, version: int) -> Tail:
        """See `Known`."""
        known = self._tails.get(submission)
        if known is None or known[0] != version:
            path = paths.tail(submission)
            known = version, decode(self.read(path, version).data, Tail, path)
            self._tails.put(submission, known)
        return known[1]

    def read(self, path: str, version: int) -> Stamped:
        """See `Known`. Our server may be behind that of the client: then it is asked to catch up first."""
        found = self._get(path)
        if found is None or found.version < version:
            self._coordinator.sync(timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            found = self._get(path)
        if found is None:
            raise Moved(path, ConflictKind.NO_NODE)
        if found.version != version:
            raise Moved(path, ConflictKind.BAD_VERSION)
        return found

    def settings(self) -> ClusterSettings:
        """See `Known`. Cost: nothing while they do not change."""
        with self._lock:
            known, at = self._settings, self._settings_read
        if known is not None:
            return known
        asked = self._coordinator.get(paths.CONFIG, watch=self._forget, timeout_s=_TIMEOUT_S)
        found = asked.result(_TIMEOUT_S + 1)
        if found is None:
            raise NotConnected("the cluster has no settings", hint="rmgr doctor")
        settings = decode(found.data, ClusterSettings, paths.CONFIG)
        with self._lock:
            if at == self._settings_read:  # else they have changed since
                self._settings = settings
        return settings

    def certified(self, pem: bytes) -> tuple[str, bytes]:
        """The key that a certificate is about, and how it is written. Raises PermissionDenied."""
        if self._certify is None:
            raise PermissionDenied("IDENTIFY: nobody signs in an open cluster")
        return self._certify(pem)

    def saw(self, found: Stamped) -> None:
        """`/ids`, as ZooKeeper has answered."""
        try:
            self._learnt(found.version, decode(found.data, int, paths.IDS))
        except RmgrError:
            return  # whoever uses it is told

    def sends(self, built: Built) -> None:
        """A change is about to be sent, after all that its sender sent before: the next SUBMIT may follow without waiting for it."""
        first = built.multi.ops[0]
        if built.record is not None and isinstance(first, Set):
            self._sent.put(first.version + 1, (built.record.id + 1, machine.monotonic() + _SENT_S))

    def committed(self, built: Built) -> None:
        """A change has been made. Must not block."""
        first = built.multi.ops[0]
        if built.record is not None and built.tail is not None and isinstance(first, Set):
            self._learnt(first.version + 1, built.record.id + 1)
            self.owners.made(built.record)
            self._tails.put(built.record.id, (0, built.tail))
        elif built.tail is not None and isinstance(first, Set):
            self._tails.put(built.number, (first.version + 1, built.tail))

    def _learnt(self, version: int, number: int) -> None:
        self._numbers.put(version, number)
        with self._lock:
            self._newest = max(self._newest, version)

    def _get(self, path: str) -> Stamped | None:
        return self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)

    def _forget(self) -> None:
        with self._lock:
            self._settings = None
            self._settings_read += 1


class KnownToCaller:
    """`Known` of one caller."""

    def __init__(self, cluster: Cluster, caller: Caller, *, is_operator: bool = False) -> None:
        self.is_operator = is_operator
        self._caller = caller
        self._cluster = cluster
        self.user = "" if caller.is_open else caller.user
        self.number, self.facts, self.tail = cluster.number, cluster.facts, cluster.tail
        self.read, self.settings = cluster.read, cluster.settings

    def certificate(self, pem: bytes) -> tuple[str, bytes]:
        """See `Known`: the key that his TLS certificate names."""
        key_id, written = self._cluster.certified(pem)
        mine = self._caller.identity
        if mine is None or not mine.key_id or key_id != mine.key_id:
            raise PermissionDenied("IDENTIFY: that is not the certificate of your own key", hint="every gateway publishes its own")
        return key_id, written
