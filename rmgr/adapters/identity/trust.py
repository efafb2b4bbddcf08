"""Certificates of signers by key id from `/identities`, revocations from `/revoked`, cached and watched.

A certificate there vouches for itself (the cluster's authority signed it), so the writer of the znode does not matter. A
revocation is dated by its transaction: signatures committed before it stay believed.
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
from rmgr.model.identity import Revocation

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.pki import Certified

#: Most certificates cached.
_KEEP = 4096
#: Seconds for which an unknown key is believed unknown.
_UNKNOWN_S = 2.0
#: Seconds after which revocations are read again, in case a watch was lost.
_RESYNC_S = 30.0
_KEY = re.compile(r"[0-9a-f]{32}")


class RevokedKey(NamedTuple):
    """A revocation: its record, the transaction that last wrote it, and the one since which the key is revoked (0: unknown)."""

    record: bytes
    zxid: int
    since_zxid: int


class Keys(Protocol):
    """Source of certificates and revocations. Its calls never wait; their callbacks run on any thread."""

    resync_s: float  #: age (s) at which revocations are read again

    def certificate(self, key_id: str) -> Future[bytes | None]:
        """Returns the certificate under a key, None if absent."""

    def revocations(
        self, known: Container[str], changed: Callable[[], None], take: Callable[[dict[str, RevokedKey | None] | None], None]
    ) -> None:
        """Calls `take` once, with every revoked key (None for those in `known`); or with None if they could not be read.

        changed: called when there may be further revocations, if the source learns of them.
        """


class ZooKeeperKeys:
    """`Keys` in ZooKeeper."""

    resync_s = _RESYNC_S

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def certificate(self, key_id: str) -> Future[bytes | None]:
        answer: Future[bytes | None] = Future()

        def arrived(done: Future[Stamped | None]) -> None:
            try:
                found = done.result()
            except Exception as error:  # noqa: BLE001 - any error goes to the waiter
                answer.set_exception(error)
            else:
                answer.set_result(found.data if found is not None else None)

        self._coordinator.get(paths.identity(key_id)).add_done_callback(arrived)
        return answer

    def revocations(
        self, known: Container[str], changed: Callable[[], None], take: Callable[[dict[str, RevokedKey | None] | None], None]
    ) -> None:

        def listed(done: Future[list[str] | None]) -> None:
            try:
                names = done.result() or []
            except RmgrError:
                take(None)
                return
            missing = [name for name in names if name not in known]

            def read(answer: Future[list[Stamped | None]]) -> None:
                gone = RevokedKey(b"", 0, 0)  # certainly revoked, at an unknown time
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
        keys: the source. ca_pem: the cluster's authority.
    Attributes: revocations: number of known revoked keys; revocations are permanent.
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
        self._names: dict[str, tuple[str, int]] = {}  #: key id -> name of its holder, and the transaction up to which it was theirs
        self._reading = False
        self._since_s: dict[str, float] = {}  #: key id -> when it was revoked (wall clock)
        self._again = False  #: they changed while they were being read
        self._read_s = -math.inf  #: when the list behind `_revoked` was requested (monotonic)
        self._refresh()  # the first look would wait for it

    def listen(self, listener: Callable[[], None]) -> None:
        """Registers `listener`, to be called (on any thread) whenever an answer has come."""
        self._listeners.append(listener)

    def is_revoked(self, key_id: str) -> bool:
        """Returns whether the key is known to be revoked. Never waits."""
        with self._lock:
            revoked = self._revoked
        self._refresh()
        return revoked is not None and key_id in revoked

    def was_key_of(self, key_id: str, zxid: int) -> str:
        """Returns the holder, at that transaction, of a key since revoked with all the holder's keys; else "". Never waits. Cost: 1 us."""
        with self._lock:
            name, until = self._names.get(key_id, ("", 0))
        self._refresh()
        return name if zxid < until else ""

    def look(self, key_id: str, *, at_s: float, zxid: int = 0, dated: bool = False) -> Certified | str | None:
        """Returns the holder of a key, or the reason not to believe it, or None while the answer is on its way. Never waits.

        Args:
            at_s: when the certificate must have been valid (wall clock).
            zxid: transaction that committed the signed data; a later revocation does not matter. 0: any revocation matters.
            dated: a revocation after `at_s` does not matter either, although the holder of the key could have chosen `at_s`.
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
        """Returns when the certificate of a valid key ends (wall clock), None if unknown, or not yet known. Never waits."""
        self.look(key_id, at_s=time.time())
        with self._lock:
            known, revoked = self._here.get(key_id), self._revoked or {}
        return None if known is None or isinstance(known, tuple) or key_id in revoked else known.not_after_s

    def find(self, key_id: str, *, at_s: float, zxid: int = 0, dated: bool = False, timeout_s: float = 10.0) -> Certified | str:
        """Returns the result of `look`, waiting for it. Raises: CoordinationUnavailable."""
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
            time.sleep(0.002)  # its callback is just handling the answer
        return found

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _ask(self, key_id: str) -> None:
        with self._lock:
            if key_id in self._coming:
                return
            if not _KEY.fullmatch(key_id):  # the key id comes from the writer of the block, whoever that is
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
                found = _parse(pem, self._ca_pem)
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
        """Requests the revocations unless they are known and newer than `_RESYNC_S`."""
        with self._lock:
            if self._reading or (self._revoked is not None and time.monotonic() - self._read_s < self._keys.resync_s):
                return
            self._reading, self._again = True, False
            known = frozenset(name for name, zxid in (self._revoked or {}).items() if zxid)  # those without a transaction are read again
        self._keys.revocations(known, self._changed, self._listed)

    def _changed(self) -> None:
        with self._lock:
            self._read_s = -math.inf
            self._again = True
        self._refresh()

    def _listed(self, found: dict[str, RevokedKey | None] | None) -> None:
        with self._lock:
            self._reading = False
            if found is None:
                return
            for name, one in found.items():
                if one is not None and one.record:
                    with suppress(WrongCluster):  # unreadable: revoked at an unknown time, and nobody is named
                        record = decode_record(one.record, Revocation, paths.revoked(name))
                        self._names[name] = "" if record.others else record.name, one.since_zxid  # the holder whose last key it was
                        self._since_s[name] = record.since_us / 1e6
            revoked = self._revoked or {}
            self._revoked = {name: revoked.get(name, 0) if one is None else one.zxid for name, one in found.items()}
            self.revocations = len(found)
            again = self._again  # the watch of this list is spent: nothing else would report later changes
            self._read_s = -math.inf if again else time.monotonic()
        if again:
            self._refresh()
        self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener()


def _parse(pem: bytes, ca_pem: bytes) -> Certified | str:
    """Returns the certificate, whatever its dates (`look` compares them), or why it is not one of this cluster."""
    from rmgr.adapters.identity.pki import load_certificate, verify_certificate

    try:
        at_s = load_certificate(pem).not_valid_before_utc.timestamp()
        return verify_certificate(pem, ca_pem, at_s)
    except PermissionDenied as error:
        return error.message
    except ValueError as error:
        return f"not a certificate: {error}"


def publish(coordinator: Coordinator, credentials: Credentials, *, timeout_s: float = 10.0) -> None:
    """IDENTIFY: publishes the certificate of this process's signing key. Idempotent.

    Raises: CoordinationUnavailable, PermissionDenied.
    """
    publish_certificate(coordinator, credentials.identity.key_id, credentials.certificate_pem, timeout_s=timeout_s)


def publish_certificate(coordinator: Coordinator, key_id: str, pem: bytes, *, timeout_s: float = 10.0) -> None:
    """Publishes any certificate, in its canonical form. Raises as `publish`."""
    path = paths.identity(key_id)
    deadline_s = time.monotonic() + timeout_s
    while (found := coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1)) is None:
        outcome = coordinator.commit(identify(key_id, pem), timeout_s=timeout_s).result(timeout_s + 1)
        if isinstance(outcome, Committed):
            return
        if not isinstance(outcome, Conflict) or time.monotonic() > deadline_s:
            raise CoordinationUnavailable("it is not known whether this process's certificate was published", hint="try again; rmgr doctor")
        # A holder of the same bundle was first and our server may not know it yet; or a new cluster's tree is being made.
        coordinator.sync(timeout_s=timeout_s).result(timeout_s + 1)
        if outcome.kind is ConflictKind.NO_NODE:
            time.sleep(0.05)
    if found.data != pem:
        raise PermissionDenied(f"{path} holds another certificate for that key", hint="ask the cluster's admin to delete it")
