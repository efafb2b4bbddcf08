"""SUBMIT, from a signed record to a durable submission with a number: the one operation that callers wait for.

The nonce makes it idempotent, whatever is lost on the way; a user's token does so across calls of the user.
The record is signed once, before it has a number; the signature does not cover the number.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from rmgr.coord import nonces, validity
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.work import token_digest
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Multi, Outcome, Stamped, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import CoordinationUnavailable, NotConnected, NotFound, SubmitUnknown, UsageError, WrongCluster
from rmgr.model.submission import Submission, Tail
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Backoff
from rmgr.submitter.port import Order, Submitted, gone
from rmgr.submitter.records import read_stored

#: Longest time of one request (s).
_STEP_S = 10.0
#: How long numbers are read after another Submitter was faster (s); longer each time in a row, up to the maximum (s).
_MISSED_S, _MISSED_MOST_S = 0.02, 1.0


class Numbers:
    """Predicts the next number from this process's own SUBMITs: while no other process submits, nothing is read, and many run at once.

    lock: held from `take` until that SUBMIT is sent, so that SUBMITs leave in the order of their numbers.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._next: tuple[int, int] | None = None
        self._pauses = Backoff(_MISSED_S, _MISSED_MOST_S)
        self._not_before_s = -math.inf

    def take(self) -> tuple[int, int] | None:
        """Returns (number, version of /ids) to try; None: read them."""
        known = self._next
        if known is None or machine.monotonic() < self._not_before_s:
            return None
        self._next = known[0] + 1, known[1] + 1
        return known

    def left(self, number: int, version: int) -> None:
        """Notes the next number and version after a SUBMIT of this process."""
        with self.lock:
            self._pauses.reset()
            if self._next is None:
                self._next = number, version

    def missed(self) -> None:
        """Has numbers read for a while, because another process submits, too."""
        with self.lock:
            self._next = None
            self._not_before_s = machine.monotonic() + self._pauses.next_s()


def _multi(order: Order, owner: str, number: int, ids_version: int, *, make_bucket: bool | None) -> tuple[Multi, Submitted]:
    """Builds a SUBMIT under a number, and its result. make_bucket: None = if the number is the first of its directory."""
    record = replace(order.draft, id=number, owner=owner)
    tail = Tail(next=order.tasks, complete=order.complete, reigns=((0, owner),) if owner else ())
    multi = ops.submit(
        record,
        ids_version=ids_version,
        tail=tail,
        blocks=[(replace(key, submission=number), data) for key, data in order.blocks],
        make_bucket=number % 1000 == 0 or number == 1 if make_bucket is None else make_bucket,
        held=order.held,
    )
    return multi, Submitted(submission=record, version=0, tail=tail, tail_version=0, created=True)


def _names(record: Submission) -> list[str]:
    """Returns the znodes that lead to its number once it has one: of its nonce, and of its user's token."""
    tokens = [paths.token(token_digest(record.user, record.token))] if record.token else []
    return [nonces.place_of(record), *tokens]


def submit(
    coordinator: Coordinator,
    order: Order,
    *,
    owner: str,
    deadline_s: float,
    numbers: Numbers | None = None,
    is_repeat: bool = False,
    doubtful: bool = False,
) -> Submitted:
    """Makes a submission of an order (`port.prepared`).

    Args:
        owner: guid of the Submitter that looks after it, "" = the leader.
        deadline_s: monotonic.
        numbers: this process's predictions, for callers that submit repeatedly.
        is_repeat: it may have been sent before, elsewhere. doubtful: and may have been committed.
    Raises: UsageError if it was signed too long ago, or by a wrong clock; WrongCluster;
        CoordinationUnavailable if it was not committed for certain;
        SubmitUnknown if that is not known (repeating it with a token is safe).
    """
    token, names = order.draft.token, _names(order.draft)
    make_bucket: bool | None = None
    known_by = names if doubtful or is_repeat else names[1:]  # no other process can have a nonce drawn here
    is_timely = not nonces.untimely(order.draft, machine.wall_s(), "")  # by this clock; if not, ZooKeeper's clock decides
    guesses = numbers if is_timely and not known_by else None
    while True:
        commit: Future[Outcome] | None = None
        step_s = _left_s(deadline_s, doubtful, token)
        if guesses is not None:
            with guesses.lock:
                guess = guesses.take()
                if guess is not None:
                    number, version = guess
                    multi, submitted = _multi(order, owner, number, version, make_bucket=None)
                    failpoint("submitter.before_submit")
                    commit = coordinator.commit(multi, timeout_s=step_s)
        if commit is None:
            guesses = None
            found = _find_known(coordinator, order.draft, known_by, deadline_s, doubtful)
            if isinstance(found, Submitted):
                return found
            number, version = found
            multi, submitted = _multi(order, owner, number, version, make_bucket=make_bucket)
            failpoint("submitter.before_submit")
            commit = coordinator.commit(multi, timeout_s=step_s)
        was_guessed, guesses, known_by = guesses is not None, None, names
        match commit.result(step_s + 1):
            case Committed():
                failpoint("submitter.after_submit")
                if numbers is not None:
                    numbers.left(number + 1, version + 1)
                return submitted
            case Conflict(path=path, kind=kind):
                make_bucket = None
                if was_guessed and numbers is not None:
                    numbers.missed()
                if path == paths.sub(number) and kind is ConflictKind.NO_NODE:
                    make_bucket = True
                elif path == paths.subs_bucket(number):
                    make_bucket = False
                elif path == paths.IDS and not was_guessed:
                    machine.sleep(machine.uniform(0, 0.002))  # many submit at once: let one of them win
                elif path not in (*names, paths.IDS):
                    raise WrongCluster(f"the submission cannot be recorded: {kind} at {path}", hint="rmgr doctor")
            case Unknown():
                doubtful = True


#: SUBMITs under way at once.
_WINDOW = 100


def submit_many(coordinator: Coordinator, orders: Sequence[Order], *, deadline_s: float) -> list[Submitted]:
    """Makes submissions without owner; in this order, unless others submit meanwhile.

    Predicts the numbers, so that many SUBMITs run at once; makes those alone whose prediction failed.

    Raises: as `submit`; submissions made before stay. Cost: one round trip per `_WINDOW` of them.
    """
    made: list[Submitted] = []
    for start in range(0, len(orders), _WINDOW):
        window = orders[start : start + _WINDOW]
        for order, found in zip(window, _guess(coordinator, window, deadline_s), strict=True):
            if isinstance(found, Submitted):
                made.append(found)
            else:
                made.append(submit(coordinator, order, owner="", deadline_s=deadline_s, doubtful=isinstance(found, Unknown)))
    return made


def _guess(coordinator: Coordinator, window: Sequence[Order], deadline_s: float) -> list[Submitted | Conflict | Unknown]:
    """Returns for each order the submission committed under the predicted number, else the other outcome."""
    step_s = _left_s(deadline_s, False, "")
    ids = coordinator.get(paths.IDS, timeout_s=step_s).result(step_s + 1)
    first, version = _next_number(ids, window[0].draft)
    tried = []
    for at, order in enumerate(window):
        multi, submitted = _multi(order, "", first + at, version + at, make_bucket=None)
        tried.append((submitted, coordinator.commit(multi, timeout_s=step_s)))
    outcomes = [(submitted, future.result(step_s + 1)) for submitted, future in tried]
    return [submitted if isinstance(outcome, Committed) else outcome for submitted, outcome in outcomes]


def _find_known(
    coordinator: Coordinator, record: Submission, known_by: Sequence[str], deadline_s: float, doubtful: bool
) -> Submitted | tuple[int, int]:
    """Returns the submission that a znode of `known_by` names, else (next number, version of /ids)."""
    step_s = _left_s(deadline_s, doubtful, record.token)
    if doubtful:
        coordinator.sync(timeout_s=step_s)
    asked = [coordinator.get(path, timeout_s=step_s) for path in (*known_by, paths.IDS)]
    try:
        *earlier, ids = (future.result(step_s + 1) for future in asked)
        for path, found in zip(known_by, earlier, strict=True):
            if found is not None:
                return _read(coordinator, validity.decode(found.data, int, path), step_s)
    except CoordinationUnavailable:
        if doubtful:
            raise _unknown_outcome(record.token) from None
        raise
    return _next_number(ids, record)


def _next_number(ids: Stamped | None, record: Submission) -> tuple[int, int]:
    """Returns (next number, version of /ids). Raises: NotConnected; UsageError if `record` was signed too long ago."""
    if ids is None:
        raise NotConnected("ZooKeeper answers, but there is no rmgr cluster in it", hint="start one: rmgr dev")
    made_s = max(record.signed_s, ids.stat.mtime_ms // 1000)  # when the last submission was made: it is no earlier now
    if record.signature and (why := nonces.untimely(record, made_s, "ZooKeeper's clock")):
        raise UsageError(f"this would not run: {why}", hint="set the clock of the machine that signs, then submit it again")
    return validity.decode(ids.data, int, paths.IDS), ids.version


def _read(coordinator: Coordinator, number: int, step_s: float) -> Submitted:
    try:
        found = read_stored(coordinator, number, timeout_s=step_s)
    except NotFound:
        return gone(number)
    return Submitted(
        submission=found.submission, version=found.version, tail=found.tail, tail_version=found.tail_version, created=False
    )  # fmt: skip


def _left_s(deadline_s: float, doubtful: bool, token: str) -> float:
    left = deadline_s - machine.monotonic()
    if left > 0:
        return min(_STEP_S, left)
    if doubtful:
        raise _unknown_outcome(token)
    raise CoordinationUnavailable("ZooKeeper did not answer in time; nothing was submitted", hint="rmgr doctor")


def _unknown_outcome(token: str) -> SubmitUnknown:
    return submit_unknown("ZooKeeper went away meanwhile", token)


def submit_unknown(why: str, token: str) -> SubmitUnknown:
    """Returns the error for a SUBMIT whose outcome is not known."""
    again = f"send it again with the same token, it will not run twice: --token {token}"
    return SubmitUnknown(
        f"it is not known whether the submission was committed: {why}",
        token=token,
        hint=again if token else "rmgr jobs shows whether it was; what is submitted with a token (--token, token=) can be sent again",
    )
