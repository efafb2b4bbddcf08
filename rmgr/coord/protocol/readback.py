"""Read-back: what a lost answer meant, and in which order operations are sent again. Pure: events in, orders out.

An adapter owns one `Pipeline`. It reports facts (an operation was given, or answered; the link fell, or came back; the session
is gone; a proof was read) and carries out the orders that it gets in return. The rule of every multi:

    sent -> answered                                        Committed or Conflict, as the server says
    sent -> link down -> link up -> sync, read the proof ->
        proven, and the multi's guard holds (if it has one) Committed(resolved=True)
        proven, but the guard does not hold any more        Conflict at the guard: perhaps the successor's doing
        not proven, same session                            sent again, in the order given
        not proven, the session was lost meanwhile          Unknown: nothing is repeated on behalf of a dead session
    sent again -> Conflict -> read the proof once more      proven: Committed(resolved=True), else that Conflict

Why a read after `sync` is final: reliability.md section 5.2, "Why read-back is final". The duty of a multi's giver:
use a proof by absence (`Gone`, `GoneOrHolds`) only for a znode that is *known* to exist, from an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from rmgr.coord.protocol.multi import (
    Check,
    Committed,
    Conflict,
    ConflictKind,
    Create,
    Delete,
    Exists,
    Gone,
    Holds,
    Multi,
    Op,
    Outcome,
    Proof,
    Set,
    Stamped,
    Unknown,
)

# -- the rule for one multi -----------------------------------------------------------------------------------------


class Verdict(Enum):
    """Verdict about one multi, from the znodes that were read back."""

    PROVEN = "proven"
    NOT_PROVEN = "not proven"
    GUARD_FELL = "proven, but the guard does not hold"


def proof_paths(multi: Multi) -> tuple[str, ...]:
    """Returns the paths to read, in this order: proof, then guard (if unmoved *after* the proof was read, it was unmoved before)."""
    return (multi.proof.path,) if multi.guard is None else (multi.proof.path, multi.guard.path)


def judge(multi: Multi, seen: Sequence[Stamped | None]) -> Verdict:
    """Returns the verdict on `multi`, given what was read at `proof_paths(multi)`. Cost: O(operations)."""
    if not _is_proven(multi, seen[0]):
        return Verdict.NOT_PROVEN
    guard = multi.guard
    if guard is None:
        return Verdict.PROVEN
    found = seen[1]
    return Verdict.PROVEN if found is not None and guard.version in {-1, found.version} else Verdict.GUARD_FELL


def _is_proven(multi: Multi, found: Stamped | None) -> bool:
    proof = multi.proof
    if isinstance(proof, Exists):
        return found is not None and (proof.data is None or found.data == proof.data)
    if isinstance(proof, Gone):
        return found is None
    if found is None:
        return not isinstance(proof, Holds)
    # The znode may have held the same bytes before: the version tells, if the multi expected one.
    return found.data == proof.data and found.version > _set_version(multi, proof.path)


def _set_version(multi: Multi, path: str) -> int:
    return next((op.version for op in multi.ops if type(op) is Set and op.path == path), -1)


def implies(later: Op, earlier: Multi) -> bool:
    """Returns whether the success of `later`, sent after `earlier` in the same session, shows that `earlier` was committed.

    Two successive changes of one znode overwrite the first one's proof; servers handle one client's requests in order.
    """
    proof = earlier.proof
    if later.path != proof.path or isinstance(later, Create) or isinstance(proof, Gone):
        return False
    if isinstance(proof, Exists):
        return True
    expected = _set_version(earlier, proof.path)
    return expected >= 0 and later.version > expected


def destroys(op: Op, proof: Proof) -> bool:
    """Returns whether `op` destroys what `proof` needs: if sent before that multi's answer, it would make it unprovable."""
    if op.path != proof.path:
        return False
    if isinstance(op, Delete):
        return isinstance(proof, Exists | Holds)
    return isinstance(op, Create) and isinstance(proof, Gone) and not op.sequence


def resolved(multi: Multi) -> Committed:
    """Returns the answer to a multi that was found committed. Cost: O(operations)."""
    return Committed(paths=tuple(op.path for op in multi.ops), versions=tuple(_version_after(op) for op in multi.ops), resolved=True)


def _guard_conflict(multi: Multi) -> Conflict:
    guard = multi.guard
    assert guard is not None
    index = next((i for i, op in enumerate(multi.ops) if op == guard), 0)
    return Conflict(index=index, path=guard.path, kind=ConflictKind.BAD_VERSION)


def _version_after(op: Op) -> int:
    match op:
        case Create():
            return -1 if op.sequence else 0
        case Set():
            return op.version + 1 if op.version >= 0 else -1
        case Check():
            return op.version
        case Delete():
            return -1


# -- the order of all operations of one client ----------------------------------------------------------------------


class Pending:
    """One operation under way. Adapters derive from it and add what they need (a future, the encoded request).

    Attributes: `multi` (None: a read, or another operation that may be repeated without harm); `suspect`: was sent once
    without an answer; `orphan`: its session is gone; `conflict`: the answer after a second sending, not yet checked;
    `done`: answered or given up; no more orders about it.
    """

    __slots__ = ("conflict", "done", "multi", "orphan", "suspect", "verdict")

    def __init__(self, multi: Multi | None) -> None:
        self.multi = multi
        self.suspect = False
        self.orphan = False
        self.done = False
        self.conflict: Conflict | None = None
        self.verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class SendOperation:
    """Send the operation now, after everything ordered before it."""

    op: Pending


@dataclass(frozen=True, slots=True)
class Sync:
    """Send a sync now; do not wait for its answer: later reads of this client wait for it."""


@dataclass(frozen=True, slots=True)
class Prove:
    """Read `paths` now, in this order, and report them with `Pipeline.proved`."""

    op: Pending
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the caller the answer: an `Outcome` for a multi, or what the adapter reported for another operation."""

    op: Pending
    value: object


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the caller that the operation has no answer, and why (`Unknown` for a multi, an error for a read)."""

    op: Pending
    cause: str


Order = SendOperation | Sync | Prove | Answer | Refuse


class Pipeline:
    """All operations of one client in the order given, across lost connections. Not thread-safe.

    Args:
        window: most operations under way to the server at once; the rest waits here.
    """

    def __init__(self, window: int = 256) -> None:
        self._window = window
        self._up = False
        self._proving = 0  # proofs ordered and not yet read; nothing else is sent meanwhile
        self._flight: deque[Pending] = deque()  # under way; answers come in this order
        self._waiting: deque[Pending] = deque()  # not under way, in the order given
        self._limbo: list[Pending] = []  # sent, then the link fell before the answer; in the order sent
        self._rechecks: list[Pending] = []  # answered Conflict after a second sending; the proof is being read
        self._proofs: dict[str, Proof] = {}  # by path, of the multis in flight and in recheck

    # -- from the caller

    def give(self, op: Pending) -> bool:
        """Accepts an operation. True: send it now; False: an order will send it later. Cost: O(1)."""
        self._waiting.append(op)
        if len(self._waiting) > 1 or not self._may_send(op):
            return False
        self._launch()
        return True

    def give_up(self, op: Pending) -> None:
        """Gives up an operation whose caller no longer waits (deadline): it is not sent again, and a late answer is ignored."""
        op.done = True

    def unresolved(self) -> Iterator[Pending]:
        """Yields all operations with a waiting caller."""
        for group in (self._flight, self._limbo, self._rechecks, self._waiting):
            for op in group:
                if not op.done:
                    yield op

    # -- from the server

    def answered(self, op: Pending, value: object) -> list[Order]:
        """Takes the server's answer to `op`. Ignores answers of a link that has fallen. Cost: O(1)."""
        if not self._flight or self._flight[0] is not op:
            return []
        self._flight.popleft()
        orders: list[Order] = []
        if op.multi is not None:
            self._forget_proof(op.multi)
        if op.multi is not None and op.suspect and isinstance(value, Conflict):
            if not op.done:
                op.conflict = value
                self._rechecks.append(op)
                self._proofs[op.multi.proof.path] = op.multi.proof
                orders.append(Prove(op, proof_paths(op.multi)))
        elif not op.done:
            op.done = True
            orders.append(Answer(op, value))
        if self._waiting:
            self._refill(orders)
        return orders

    def again(self, op: Pending) -> bool:
        """Gives an answered `op` again, at the end: its second request (a read in two steps). Returns as `give`."""
        if not self._flight or self._flight[0] is not op:
            return False
        self._flight.popleft()
        return False if op.done else self.give(op)

    def proved(self, op: Pending, seen: Sequence[Stamped | None]) -> list[Order]:
        """Takes what was read at the paths of a `Prove` order."""
        assert op.multi is not None
        op.verdict = judge(op.multi, seen)
        return self._read(op)

    def unprovable(self, op: Pending, cause: str) -> list[Order]:
        """Notes that the proof cannot be read (no permission): the outcome stays unknown."""
        orders: list[Order] = []
        if not op.done:
            op.done = True
            orders.append(Refuse(op, cause))
        return orders + self._read(op)

    def _read(self, op: Pending) -> list[Order]:
        if op in self._rechecks:
            assert op.multi is not None
            self._rechecks.remove(op)
            self._forget_proof(op.multi)
            orders: list[Order] = []
            self._conclude(op, orders)
            self._refill(orders)
            return orders
        if self._proving == 0:
            return []
        self._proving -= 1
        return self._settle() if self._proving == 0 else []

    # -- from the link

    def down(self) -> None:
        """Notes that the connection is gone: everything under way is in doubt."""
        self._up = False
        self._proving = 0
        # Multis without a waiting caller stay: their fate may prove earlier multis.
        lost = [op for op in (*self._limbo, *self._rechecks, *self._flight) if not op.done or op.multi is not None]
        for op in lost:
            op.suspect = True
            op.verdict = None
        self._limbo = lost
        self._rechecks = []
        self._flight.clear()
        self._proofs.clear()

    def session_lost(self) -> list[Order]:
        """Notes that the session is gone: what was sent is only read back; unsent operations and reads are refused at once."""
        self.down()
        orders: list[Order] = []
        for op in (*self._limbo, *self._waiting):
            if op.multi is not None and op.suspect:
                op.orphan = True
            elif not op.done:
                op.done = True
                orders.append(Refuse(op, "the session was lost"))
        self._limbo = [op for op in (*self._limbo, *self._waiting) if op.multi is not None and op.suspect]
        self._waiting.clear()
        return orders

    def up(self) -> list[Order]:
        """Notes a connection (again, or the first): resolves doubts first, then sends what waits."""
        self._up = True
        doubts = [op for op in self._limbo if op.multi is not None]
        if all(op.done for op in doubts):
            return self._settle()
        self._proving = len(doubts)
        return [Sync(), *(Prove(op, proof_paths(op.multi)) for op in doubts if op.multi is not None)]

    def close(self, cause: str) -> list[Order]:
        """Refuses everything unresolved, at the end."""
        self._up = False
        orders: list[Order] = [Refuse(op, cause) for op in self.unresolved()]
        for op in self.unresolved():
            op.done = True
        return orders

    def _settle(self) -> list[Order]:
        """Answers what is proven once all proofs are read, lines up the rest in the old order, and goes on."""
        presupposed: dict[str, list[Op]] = {}
        for op in reversed(self._limbo):
            if op.multi is None:
                continue
            if op.verdict is Verdict.NOT_PROVEN and any(implies(later, op.multi) for later in presupposed.get(op.multi.proof.path, ())):
                op.verdict = Verdict.PROVEN
            if op.verdict is Verdict.PROVEN:
                for done in op.multi.ops:
                    presupposed.setdefault(done.path, []).append(done)
        orders: list[Order] = []
        again: list[Pending] = []
        for op in self._limbo:
            if op.done:
                continue
            if op.multi is None or (op.verdict is Verdict.NOT_PROVEN and not op.orphan and op.conflict is None):
                again.append(op)
            else:
                self._conclude(op, orders)
        self._limbo = []
        self._waiting.extendleft(reversed(again))
        self._refill(orders)
        return orders

    def _conclude(self, op: Pending, orders: list[Order]) -> None:
        if op.done:
            return
        assert op.multi is not None
        op.done = True
        value: Outcome
        if op.verdict is Verdict.PROVEN:
            value = resolved(op.multi)
        elif op.verdict is Verdict.GUARD_FELL:
            value = _guard_conflict(op.multi)
        elif op.conflict is not None:
            value = op.conflict
        else:
            value = Unknown("the session was lost before it was committed")
        orders.append(Answer(op, value))

    def _refill(self, orders: list[Order]) -> None:
        while self._waiting:
            op = self._waiting[0]
            if op.done:
                self._waiting.popleft()
            elif self._may_send(op):
                self._launch()
                orders.append(SendOperation(op))
            else:
                return

    def _may_send(self, op: Pending) -> bool:
        if not self._up or self._proving or len(self._flight) >= self._window:
            return False
        if op.multi is not None and self._proofs:
            for part in op.multi.ops:
                proof = self._proofs.get(part.path)
                if proof is not None and destroys(part, proof):
                    return False  # wait for that multi's answer first
        return True

    def _launch(self) -> None:
        op = self._waiting.popleft()
        self._flight.append(op)
        if op.multi is not None:
            self._proofs[op.multi.proof.path] = op.multi.proof

    def _forget_proof(self, multi: Multi) -> None:
        if self._proofs.get(multi.proof.path) is multi.proof:  # else it is the proof of a later multi of the same znode
            del self._proofs[multi.proof.path]
