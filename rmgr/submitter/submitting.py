"""SUBMIT, from a number to a durable record: the one operation that a caller waits for.

The token makes it idempotent: whatever was lost on the way, the same token leads to the same submission.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rmgr.coord.ops import work as ops
from rmgr.coord.ops.work import token_digest
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import records as validity
from rmgr.errors import CoordinationUnavailable, InvalidRecord, NotConnected, SubmitUnknown, UsageError, WrongCluster
from rmgr.model.tasks.submission import Submission, Tail
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.submitter.port import Order, Submitted

#: Longest that one request of it may take.
_STEP_S = 10.0
#: How long numbers are read after another Submitter was quicker.
_MISSED_S = 1.0


class Numbers:
    """The next number as the last SUBMIT of this process left it: while nobody else submits, a reading less each time."""

    def __init__(self) -> None:
        self._next: tuple[int, int] | None = None
        self._not_before_s = -math.inf

    def take(self) -> tuple[int, int] | None:
        """(number, version of /ids) to try; None: read them."""
        known, self._next = self._next, None
        return known if machine.monotonic() >= self._not_before_s else None

    def left(self, number: int, version: int) -> None:
        """A SUBMIT of ours has made them so."""
        self._next = number, version

    def missed(self) -> None:
        """Somebody else submits, too: not tried for a while."""
        self._not_before_s = machine.monotonic() + _MISSED_S


def submit(coordinator: Coordinator, order: Order, *, owner: str, deadline_s: float, numbers: Numbers | None = None) -> Submitted:
    """Makes an order a submission; its token is generated when it has none.

    Args:
        owner: guid of the Submitter that looks after it, "" = the leader.
        deadline_s: monotonic.
        numbers: what this process remembers, for who submits again and again.
    Raises: UsageError for what no Starter would believe.
        WrongCluster; CoordinationUnavailable when it was surely not committed;
        SubmitUnknown when that is not known (the same token is safe).
    """
    token = order.draft.token or machine.guid()
    draft = replace(order.draft, owner=owner, token=token)
    _check(replace(draft, id=1))
    digest = token_digest(draft.user, token)
    tail = Tail(next=order.tasks, complete=order.complete, reigns=((0, owner),) if owner else ())
    make_bucket: bool | None = None
    doubtful = False
    guess = numbers.take() if numbers is not None and not order.draft.token else None  # nobody else can have a token made here
    while True:
        found, guess, guessed = guess or _known(coordinator, digest, deadline_s, doubtful, token), None, guess
        if isinstance(found, Submitted):
            return found
        number, version = found
        submission, blocks = _signed(order, draft, number)
        multi = ops.submit(
            submission,
            ids_version=version,
            token_digest=digest,
            tail=tail,
            blocks=blocks,
            make_bucket=number % 1000 == 0 or number == 1 if make_bucket is None else make_bucket,
            held=order.held,
        )
        step_s = _left(deadline_s, doubtful, token)
        failpoint("submitter.before_submit")
        match coordinator.commit(multi, timeout_s=step_s).result(step_s + 1):
            case Committed():
                failpoint("submitter.after_submit")
                if numbers is not None:
                    numbers.left(number + 1, version + 1)
                return Submitted(submission=submission, version=0, tail=tail, tail_version=0, created=True)
            case Conflict(path=path, kind=kind):
                make_bucket = None
                if path == paths.sub(number) and kind is ConflictKind.NO_NODE:
                    make_bucket = True
                elif path == paths.subs_bucket(number):
                    make_bucket = False
                elif path == paths.IDS and guessed is not None and numbers is not None:
                    numbers.missed()
                elif path == paths.IDS:
                    machine.sleep(machine.uniform(0, 0.002))  # many submit at once: let one of them win
                elif path != paths.token(digest):
                    raise WrongCluster(f"the submission cannot be recorded: {kind} at {path}", hint="rmgr doctor")
            case Unknown():
                doubtful = True


def _signed(order: Order, draft: Submission, number: int) -> tuple[Submission, Sequence[ops.Block]]:
    """Its record and its first blocks, once it has a number."""
    return order.sign(replace(draft, id=number), [(replace(key, submission=number), data) for key, data in order.blocks])


#: SUBMITs on the way at once.
_WINDOW = 100


def submit_many(coordinator: Coordinator, orders: Sequence[Order], *, deadline_s: float) -> list[Submitted]:
    """Makes each a complete submission without owner (with a token); in this order, unless somebody else submits meanwhile.

    Numbers are guessed, so that many SUBMITs are on the way at once; what a guess did not make is made alone, by its token.

    Raises: as `submit`; what was made before stays. Cost: one round trip for `_WINDOW` of them.
    """
    made: list[Submitted] = []
    for start in range(0, len(orders), _WINDOW):
        window = orders[start : start + _WINDOW]
        for order, found in zip(window, _guess(coordinator, window, deadline_s), strict=True):
            made.append(found or submit(coordinator, order, owner="", deadline_s=deadline_s))
    return made


def _guess(coordinator: Coordinator, window: Sequence[Order], deadline_s: float) -> list[Submitted | None]:
    """What was committed under the number that was guessed for it; None: it was not, or nobody knows."""
    step_s = _left(deadline_s, False, "")
    ids = coordinator.get(paths.IDS, timeout_s=step_s).result(step_s + 1)
    if ids is None:
        raise NotConnected("ZooKeeper answers, but there is no rmgr cluster in it", hint="start one: rmgr dev")
    first = validity.decode(ids.data, int, paths.IDS)
    tried = []
    for number, order in enumerate(window, first):
        record, blocks = _signed(order, replace(order.draft, owner=""), number)
        _check(record)
        tail = Tail(next=order.tasks, complete=True)
        multi = ops.submit(
            record,
            ids_version=ids.version + number - first,
            token_digest=token_digest(record.user, record.token),
            tail=tail,
            blocks=blocks,
            make_bucket=number % 1000 == 0 or number == 1,
            held=order.held,
        )
        tried.append(
            (Submitted(submission=record, version=0, tail=tail, tail_version=0, created=True), coordinator.commit(multi, timeout_s=step_s))
        )
    return [submitted if isinstance(future.result(step_s + 1), Committed) else None for submitted, future in tried]


def _check(record: Submission) -> None:
    """Raises UsageError for a record that whoever reads it would refuse, and with it the work. Cost: 7 us."""
    try:
        validity.check(record, where="the submission")
    except InvalidRecord as error:
        raise UsageError(f"this cannot be submitted: {error.message}", hint="rmgr submit --help, or help(rmgr.TaskQueue)") from None


def _known(coordinator: Coordinator, digest: str, deadline_s: float, doubtful: bool, token: str) -> Submitted | tuple[int, int]:
    """The submission that the token stands for, else (next number, version of /ids)."""
    step_s = _left(deadline_s, doubtful, token)
    if doubtful:
        coordinator.sync(timeout_s=step_s)
    asked = [coordinator.get(path, timeout_s=step_s) for path in (paths.token(digest), paths.IDS)]
    try:
        earlier, ids = (future.result(step_s + 1) for future in asked)
        if earlier is not None:
            return _read(coordinator, validity.decode(earlier.data, int, paths.token(digest)), step_s)
    except CoordinationUnavailable:
        if doubtful:
            raise _unknown(token) from None
        raise
    if ids is None:
        raise NotConnected("ZooKeeper answers, but there is no rmgr cluster in it", hint="start one: rmgr dev")
    return validity.decode(ids.data, int, paths.IDS), ids.version


def _read(coordinator: Coordinator, number: int, step_s: float) -> Submitted:
    asked = [coordinator.get(path, timeout_s=step_s) for path in (paths.sub(number), paths.tail(number))]
    record, tail = (future.result(step_s + 1) for future in asked)
    if record is None or tail is None:  # collected since: its number is all that is left, and all that is needed
        gone = Submission(id=number, name="", user="", queue="", work="command")  # type: ignore[arg-type]
        return Submitted(submission=gone, version=-1, tail=Tail(complete=True), tail_version=-1, created=False)
    return Submitted(
        submission=validity.submission(record.data, number),
        version=record.version,
        tail=validity.tail(tail, number),
        tail_version=tail.version,
        created=False,
    )


def _left(deadline_s: float, doubtful: bool, token: str) -> float:
    left = deadline_s - machine.monotonic()
    if left > 0:
        return min(_STEP_S, left)
    if doubtful:
        raise _unknown(token)
    raise CoordinationUnavailable("ZooKeeper did not answer in time; nothing was submitted", hint="rmgr doctor")


def _unknown(token: str) -> SubmitUnknown:
    return SubmitUnknown(
        "it is not known whether the submission was committed: ZooKeeper went away meanwhile",
        token=token,
        hint=f"send it again with the same token, it will not run twice: --token {token}",
    )
