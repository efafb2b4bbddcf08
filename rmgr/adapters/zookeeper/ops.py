"""Operations under way: each is its request's destination and its caller's future; which thread runs what is in `session.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

from rmgr.adapters.zookeeper.bulk import Refused
from rmgr.adapters.zookeeper.link import LinkTrouble
from rmgr.adapters.zookeeper.wire import OP_MULTI, Failure, decode_multi
from rmgr.coord.protocol.multi import Multi, Outcome, Stamped, Stat, Unknown
from rmgr.coord.protocol.readback import Pending, Prove
from rmgr.errors import CoordinationUnavailable, PermissionDenied, QuotaReached, RmgrError

_NO_AUTH = -102
_OVER_QUOTA = -125
_FULL = (
    "what is there has to go before more is taken: cancel what nobody needs (rmgr jobs), or the cluster's admin revokes who fills it "
    "(rmgr admin revoke) or raises the quota (rmgr admin init --close-root --zookeeper-heap SIZE)"
)
_NO_RIGHT = "what each role may do is in SECURITY.md; are the credentials in [security] dir (RMGR_SECURITY_DIR) the right ones?"


class OperationOwner(Protocol):
    """The session that the operations report to."""

    root: str

    def trouble(self, error: Exception) -> LinkTrouble: ...
    def on_answer(self, op: Commit | Read, value: object) -> None: ...
    def on_next_step(self, op: Read, request: Any) -> None: ...
    def on_error(self, op: Commit | Read, error: Exception) -> None: ...
    def on_proof(self, proof: Proof) -> None: ...


class Watch:
    """Fires once, whichever of its registrations is first."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def __call__(self, _event: object) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Commit(Pending):
    """A multi under way: the request on the wire, the place its answer goes to, and the caller's future, in one object."""

    __slots__ = ("body", "deadline_s", "future", "owner")
    type = OP_MULTI

    def __init__(self, owner: OperationOwner, multi: Multi, body: bytes, deadline_s: float) -> None:
        super().__init__(multi)
        self.owner = owner
        self.body = body
        self.deadline_s = deadline_s
        self.future: Future[Outcome] = Future()

    @property
    def request(self) -> Commit:
        return self

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> list[object]:
        assert self.multi is not None
        return [decode_multi(self.multi, self.owner.root, buffer, offset)]

    def set(self, value: list[object]) -> None:
        self.owner.on_answer(self, value[0])

    def set_exception(self, error: Exception) -> None:
        self.owner.on_error(self, error)

    def on_trouble(self, trouble: LinkTrouble, error: Exception) -> object:
        """The outcome for an error that concerns the request as a whole."""
        assert self.multi is not None
        if trouble is LinkTrouble.DENIED:
            return PermissionDenied(f"{self.multi.name}: ZooKeeper refuses it to this role", hint=_NO_RIGHT)
        return RmgrError(f"{self.multi.name}: ZooKeeper answered {error!r}")

    def resolve(self, value: object) -> None:
        assert self.multi is not None
        with contextlib.suppress(InvalidStateError):  # cancelled by the caller
            if isinstance(value, Failure):
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
        self, owner: OperationOwner, request: Any, finish: Callable[[Any], object], deadline_s: float, path: str, watch: Watch | None = None
    ) -> None:
        super().__init__(None)
        self.owner = owner
        self.first = self.request = request
        self.finish = finish
        self.deadline_s = deadline_s
        self.path = path
        self.watch = watch
        self.future: Future[Any] = Future()

    def set(self, value: Any) -> None:
        if self.request is not self.first:  # the second step: absent still?
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
    """What is said when ZooKeeper takes no more below the root of `path`."""
    return QuotaReached(f"{name}: ZooKeeper's quota of /{path.split('/')[1]} is used up; nothing was changed", hint=_FULL)


def allowed(paths: Sequence[str], found: list[Stamped | None] | Refused) -> list[Stamped | None] | RmgrError:
    """What a bulk read has found, or why none of it is told."""
    if not isinstance(found, Refused):
        return found
    at = paths[found.place]
    if found.code == _NO_AUTH:
        return PermissionDenied(f"{at}: ZooKeeper refuses it to this role", hint=_NO_RIGHT)
    return RmgrError(f"{at}: ZooKeeper's error {found.code}")


class Proof:
    """Gathers the reads of one `Prove` order."""

    def __init__(self, owner: OperationOwner, order: Prove) -> None:
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
    """Takes the answer to a sync that nobody waits for."""

    def set(self, value: object) -> None: ...
    def set_exception(self, error: Exception) -> None: ...


def to_stat(raw: Any) -> Stat:
    """A raw stat as ours. The server reports changes of children, creates * 2 - children; sequences count creates."""
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
    """Data and raw stat as ours."""
    return Stamped(raw[0] or b"", to_stat(raw[1]))
