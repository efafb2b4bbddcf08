"""Certificates of signers by key id from `/identities`, revocations from `/revoked`, kept and watched.

A certificate there vouches for itself (the cluster's authority signed it), so whoever wrote the znode does not matter. What
was revoked is known by the transaction of the revocation: what was committed before it stays believed.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rmgr.coord.ops.membership import identify
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, PermissionDenied, RmgrError, WrongCluster
from rmgr.model.cluster.identity import Revocation

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.pki import Certified

#: Certificates kept.
_KEEP = 4096
#: How long an unknown key is believed unknown.
_UNKNOWN_S = 2.0
#: Revocations are read again this often, should a watch be lost.
_RESYNC_S = 30.0
_KEY = re.compile(r"[0-9a-f]{32}")


class RevokedKey(NamedTuple):
    """A revocation: its record, the transaction that wrote it last, and the one since which the key is revoked (0: not known)."""

    record: bytes
    zxid: int
    since_zxid: int


class Keys(Protocol):
    """Where certificates and revocations are read. Its calls never wait; what they promise is called on any thread."""

    resync_s: float  #: revocations are asked for again when they are so old

    def certificate(self, key_id: str) -> Future[bytes | None]:
        """What stands under a key, None: nothing."""

    def revocations(
        self, known: Container[str], changed: Callable[[], None], take: Callable[[dict[str, RevokedKey | None] | None], None]
    ) -> None:
        """`take` is called once with every revoked key, None for one of `known`; or with None: they could not be read.

        changed: called when there may be others than these, as far as one is told.
        """


class ZooKeeperKeys:
    """`Keys` in ZooKeeper."""

    resync_s = _RESYNC_S

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def certificate(self, key_id: str) -> Future[bytes | None]:
        """See `Keys`."""
        answer: Future[bytes | None] = Future()

        def arrived(done: Future[Stamped | None]) -> None:
            try:
                found = done.result()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told to who waits
                answer.set_exception(error)
            else:
                answer.set_result(found.data if found is not None else None)

        self._coordinator.get(paths.identity(key_id)).add_done_callback(arrived)
        return answer

    def revocations(
        self, known: Container[str], changed: Callable[[], None], take: Callable[[dict[str, RevokedKey | None] | None], None]
    ) -> None:
        """See `Keys`."""

        def listed(done: Future[list[str] | None]) -> None:
            try:
                names = done.result() or []
            except RmgrError:
                take(None)
                return
            missing = [name for name in names if name not in known]

            def read(answer: Future[list[Stamped | None]]) -> None:
                gone = RevokedKey(b"", 0, 0)  # certainly revoked, at a time that is not known
                found: dict[str, RevokedKey | None] = {name: None if name in known else gone for name in names}
                with suppress(RmgrError):
                    for name, one in zip(missing, answer.result(), strict=True):
                        if one is not None:
                            found[name] = RevokedKey(one.data, one.stat.mzxid, one.stat.czxid or one.stat.mzxid)
                take(found)

            self._coordinator.get_many([paths.revoked(name) for name in missing]).add_done_callback(read)

        self._coordinator.children(paths.REVOKED, watch=changed).add_done_callback(listed)


class Trust:
    """Signers of this cluster. Thread-safe.

    Args:
        keys: where they are read. ca_pem: the cluster's authority.
    Attributes: revocations: how many keys were revoked, as far as is known; they are for ever.
    """

    def __init__(self, keys: Keys, ca_pem: bytes) -> None:
        self._keys = keys
        self._ca_pem = ca_pem
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._here: OrderedDict[str, Certified | tuple[float, str]] = OrderedDict()
        self._coming: dict[str, Future[bytes | None]] = {}
        self.revocations = 0
        self._revoked: dict[str, int] | None = None  #: key id -> transaction of its revocation; None: not read yet
        self._names: dict[str, tuple[str, int]] = {}  #: key id -> whose it was, and until which transaction
        self._reading = False
        self._since_s: dict[str, float] = {}  #: key id -> when it was revoked (wall clock)
        self._again = False  #: they changed while they were being read
        self._read_s = -math.inf  #: when the list of revocations was asked for that `_revoked` is (monotonic)

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called (on any thread) whenever an answer has come."""
        self._listeners.append(listener)

    def is_revoked(self, key_id: str) -> bool:
        """The key counts no more, as far as is known. Never waits."""
        with self._lock:
            revoked = self._revoked
        self._refresh()
        return revoked is not None and key_id in revoked

    def was_key_of(self, key_id: str, zxid: int) -> str:
        """Who held a key at that transaction that was revoked since, with all of his; "" if it was not. Never waits. Cost: 1 us."""
        with self._lock:
            name, until = self._names.get(key_id, ("", 0))
        self._refresh()
        return name if zxid < until else ""

    def look(self, key_id: str, *, at_s: float, zxid: int = 0, dated: bool = False) -> Certified | str | None:
        """Whose key it is, why it is not to be believed, or None: the answer is on its way. Never waits.

        Args:
            at_s: when the certificate must have been valid (wall clock).
            zxid: transaction that committed what it signed; a revocation after it does not matter. 0: it does.
            dated: neither does one after at_s, which whoever holds the key could have chosen.
        """
        with self._lock:
            revoked, known = self._revoked, self._here.get(key_id)
            since_s = self._since_s.get(key_id, -math.inf)
        self._refresh()
        if revoked is None:
            return None
        if key_id in revoked and not 0 < zxid < revoked[key_id] and not (dated and at_s < since_s):
            return f"the key {key_id} was revoked"
        if known is None or (isinstance(known, tuple) and time.monotonic() > known[0]):
            self._ask(key_id)
            return None
        if isinstance(known, tuple):
            return known[1]
        who = known.identity
        if not known.not_before_s <= at_s <= known.not_after_s:
            return f"the certificate of {who.role} {who.name} was not valid then"
        return known

    def ends_s(self, key_id: str) -> float | None:
        """When the certificate of a key that counts ends (wall clock), None: not known, or not yet. Never waits."""
        self.look(key_id, at_s=time.time())
        with self._lock:
            known, revoked = self._here.get(key_id), self._revoked or {}
        return None if known is None or isinstance(known, tuple) or key_id in revoked else known.not_after_s

    def find(self, key_id: str, *, at_s: float, zxid: int = 0, dated: bool = False, timeout_s: float = 10.0) -> Certified | str:
        """As `look`, and waits for the answer. Raises: CoordinationUnavailable."""
        deadline_s = time.monotonic() + timeout_s
        while (found := self.look(key_id, at_s=at_s, zxid=zxid, dated=dated)) is None:
            left_s = deadline_s - time.monotonic()
            with self._lock:
                coming = self._coming.get(key_id)
            if left_s <= 0:
                raise CoordinationUnavailable(f"it cannot be read whose key {key_id} is", hint="rmgr doctor")
            if coming is not None:
                with suppress(TimeoutError, RmgrError):
                    coming.result(min(left_s, 0.5))
            time.sleep(0.002)  # what came is being taken in by its callback
        return found

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _ask(self, key_id: str) -> None:
        with self._lock:
            if key_id in self._coming:
                return
            if not _KEY.fullmatch(key_id):  # it comes from whoever wrote the block
                self._keep(key_id, "its key has no name that a key can have")
                return
            future = self._coming[key_id] = self._keys.certificate(key_id)
        future.add_done_callback(partial(self._arrived, key_id))

    def _arrived(self, key_id: str, done: Future[bytes | None]) -> None:
        found: Certified | str | None = None
        try:
            pem = done.result()
            if pem is None:
                found = f"nobody is known by the key {key_id}"
            else:
                found = _parsed(pem, self._ca_pem)
                if not isinstance(found, str) and found.identity.key_id != key_id:
                    found = f"the certificate under the key {key_id} is that of another key"
        except RmgrError:
            pass  # asked again at the next look
        finally:
            with self._lock:
                self._coming.pop(key_id, None)
                if found is not None:
                    self._keep(key_id, found)
        self._wake()

    def _keep(self, key_id: str, found: Certified | str) -> None:
        self._here[key_id] = (time.monotonic() + _UNKNOWN_S, found) if isinstance(found, str) else found
        while len(self._here) > _KEEP:
            self._here.popitem(last=False)

    def _refresh(self) -> None:
        """Sees to it that the revocations are known, and not older than `_RESYNC_S`."""
        with self._lock:
            if self._reading or (self._revoked is not None and time.monotonic() - self._read_s < self._keys.resync_s):
                return
            self._reading, self._again = True, False
            known = frozenset(name for name, zxid in (self._revoked or {}).items() if zxid)  # else it is asked again when that was
        self._keys.revocations(known, self._changed, self._listed)

    def _changed(self) -> None:
        with self._lock:
            self._read_s = -math.inf
            self._again = True
        self._refresh()

    def _listed(self, found: dict[str, RevokedKey | None] | None) -> None:
        if found is None:
            self._failed()
            return
        with self._lock:
            revoked = self._revoked or {}
            for name, one in found.items():
                if one is not None and one.record:
                    self._names[name] = _holder(one.record, name), one.since_zxid
                    self._since_s[name] = _since_s(one.record, name)
            revoked = {name: revoked.get(name, 0) if one is None else one.zxid for name, one in found.items()}
        self._take(revoked)

    def _take(self, revoked: dict[str, int]) -> None:
        with self._lock:
            again = self._again  # the watch of this list is spent: nothing else would tell of what came after it
            self._revoked, self._read_s, self._reading = revoked, -math.inf if again else time.monotonic(), False
            self.revocations = len(revoked)
        if again:
            self._refresh()
        self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener()

    def _failed(self) -> None:
        with self._lock:
            self._reading = False


def _parsed(pem: bytes, ca_pem: bytes) -> Certified | str:
    """The certificate, whenever it is or was valid (`look` compares the time); or why it is none of this cluster."""
    from rmgr.adapters.identity.pki import load_certificate, verify_certificate

    try:
        at_s = load_certificate(pem).not_valid_before_utc.timestamp()
        return verify_certificate(pem, ca_pem, at_s)
    except PermissionDenied as error:
        return error.message
    except ValueError as error:
        return f"not a certificate: {error}"


def _since_s(data: bytes, key_id: str) -> float:
    """When a key was revoked, -inf where that cannot be read."""
    try:
        return decode_record(data, Revocation, paths.revoked(key_id)).since_us / 1e6
    except WrongCluster:
        return -math.inf


def _holder(data: bytes, key_id: str) -> str:
    """Whose last key a revocation revokes, "" = it does not say, or he has others."""
    try:
        record = decode_record(data, Revocation, paths.revoked(key_id))
        return "" if record.others else record.name
    except WrongCluster:
        return ""


def publish(coordinator: Coordinator, credentials: Credentials, *, timeout_s: float = 10.0) -> None:
    """IDENTIFY: the certificate of this process's signing key is there for all to read. Idempotent.

    Raises: CoordinationUnavailable, PermissionDenied.
    """
    publish_certificate(coordinator, credentials.identity.key_id, credentials.certificate_pem, timeout_s=timeout_s)


def publish_certificate(coordinator: Coordinator, key_id: str, pem: bytes, *, timeout_s: float = 10.0) -> None:
    """The same of any certificate, in its canonical form. Raises as `publish`."""
    path = paths.identity(key_id)
    deadline_s = time.monotonic() + timeout_s
    while (found := coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1)) is None:
        outcome = coordinator.commit(identify(key_id, pem), timeout_s=timeout_s).result(timeout_s + 1)
        if isinstance(outcome, Committed):
            return
        if not isinstance(outcome, Conflict) or time.monotonic() > deadline_s:
            raise CoordinationUnavailable("it is not known whether this process's certificate was published", hint="try again; rmgr doctor")
        # Somebody with the same bundle was first and our server may not know it yet; or a new cluster's tree is being made.
        coordinator.sync(timeout_s=timeout_s).result(timeout_s + 1)
        if outcome.kind is ConflictKind.NO_NODE:
            time.sleep(0.05)
    if found.data != pem:
        raise PermissionDenied(f"{path} holds another certificate for that key", hint="ask the cluster's admin to delete it")
