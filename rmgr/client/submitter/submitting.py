"""SUBMIT, from a number to a durable record: the one operation that a caller waits for.

The token makes it idempotent: whatever was lost on the way, the same token leads to the same submission.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rmgr.client.identity.signing import Signer, unsealed
from rmgr.client.submission.stored import StoredSubmission
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

#: Longest that one request of it may take.
_STEP_S = 10.0
#: How long numbers are read after another Submitter was quicker.
_MISSED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(StoredSubmission):
    """A durable submission. created: by this call; else the token had been used before."""

    created: bool


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


def submit(
    coordinator: Coordinator,
    draft: Submission,
    *,
    owner: str,
    deadline_s: float,
    blocks: Callable[[int], Sequence[ops.Block]] = lambda _: (),
    tasks: int = 0,
    complete: bool = False,
    held: bool | None = None,
    signer: Signer | None = None,
    numbers: Numbers | None = None,
) -> Submitted:
    """Makes `draft` a submission; its id is ignored, its token generated when it has none.

    Args:
        owner: guid of the Submitter that looks after it, "" = the leader.
        blocks: its first blocks, given its number; tasks: how many they are; complete: no more will follow.
        deadline_s: monotonic.
        signer: signs the blocks, and is the user then (secured clusters).
        numbers: what this process remembers, for who submits again and again.
    Raises: UsageError for what no Starter would believe.
        PermissionDenied (not a user's credentials); WrongCluster; CoordinationUnavailable when it was surely not committed;
        SubmitUnknown when that is not known (the same token is safe).
    """
    if signer is not None:
        signer.publish(coordinator, timeout_s=max(0.1, min(_STEP_S, deadline_s - machine.monotonic())))
        draft = replace(draft, user=signer.user)
    token = draft.token or machine.guid()
    _check(replace(draft, id=1, owner=owner, token=token))
    digest = token_digest(draft.user, token)
    tail = Tail(next=tasks, complete=complete, reigns=((0, owner),) if owner else ())
    make_bucket: bool | None = None
    doubtful = False
    guess = numbers.take() if numbers is not None and not draft.token else None  # nobody else can have a token made here
    while True:
        found, guess, guessed = guess or _known(coordinator, digest, deadline_s, doubtful, token), None, guess
        if isinstance(found, Submitted):
            return found
        number, version = found
        submission = replace(draft, id=number, owner=owner, token=token)
        if signer is not None:
            submission = signer.signed(submission)
        seal = signer.sealer(submission) if signer is not None else unsealed
        multi = ops.submit(
            submission,
            ids_version=version,
            token_digest=digest,
            tail=tail,
            blocks=seal(blocks(number)),
            make_bucket=number % 1000 == 0 or number == 1 if make_bucket is None else make_bucket,
            held=held,
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
                    raise WrongCluster(f"the submission cannot be recorded: {kind} at {path}", hint="rmgr fsck; rmgr doctor")
            case Unknown():
                doubtful = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSubmit:
    """One of many submissions: its record (with a token), its first blocks (still of submission 0), how many tasks they are."""

    draft: Submission
    blocks: Sequence[ops.Block]
    tasks: int
    held: bool | None = None

    def blocks_of(self, number: int) -> list[ops.Block]:
        """Its blocks, once it has a number."""
        return [(replace(key, submission=number), data) for key, data in self.blocks]


#: SUBMITs on the way at once.
_WINDOW = 100


def submit_many(
    coordinator: Coordinator, wanted: Sequence[ToSubmit], *, deadline_s: float, signer: Signer | None = None
) -> list[Submitted]:
    """Makes each a complete submission without owner; in this order, unless somebody else submits meanwhile.

    Numbers are guessed, so that many SUBMITs are on the way at once; what a guess did not make is made alone, by its token.

    Raises: as `submit`; what was made before stays. Cost: one round trip for `_WINDOW` of them.
    """
    if signer is not None:
        signer.publish(coordinator, timeout_s=max(0.1, min(_STEP_S, deadline_s - machine.monotonic())))
    made: list[Submitted] = []
    for start in range(0, len(wanted), _WINDOW):
        window = wanted[start : start + _WINDOW]
        for item, found in zip(window, _guess(coordinator, window, deadline_s, signer), strict=True):
            made.append(found or _submit_alone(coordinator, item, deadline_s, signer))
    return made


def _submit_alone(coordinator: Coordinator, item: ToSubmit, deadline_s: float, signer: Signer | None) -> Submitted:
    return submit(
        coordinator,
        item.draft,
        owner="",
        deadline_s=deadline_s,
        blocks=item.blocks_of,
        tasks=item.tasks,
        complete=True,
        held=item.held,
        signer=signer,
    )


def _guess(coordinator: Coordinator, window: Sequence[ToSubmit], deadline_s: float, signer: Signer | None) -> list[Submitted | None]:
    """What was committed under the number that was guessed for it; None: it was not, or nobody knows."""
    step_s = _left(deadline_s, False, "")
    ids = coordinator.get(paths.IDS, timeout_s=step_s).result(step_s + 1)
    if ids is None:
        raise NotConnected("ZooKeeper answers, but there is no rmgr cluster in it", hint="start one: rmgr dev")
    first = validity.decode(ids.data, int, paths.IDS)
    tried = []
    for number, item in enumerate(window, first):
        user = signer.user if signer is not None else item.draft.user
        record = replace(item.draft, id=number, owner="", user=user)
        if signer is not None:
            record = signer.signed(record)
        _check(record)
        seal = signer.sealer(record) if signer is not None else unsealed
        tail = Tail(next=item.tasks, complete=True)
        multi = ops.submit(
            record,
            ids_version=ids.version + number - first,
            token_digest=token_digest(user, record.token),
            tail=tail,
            blocks=seal(item.blocks_of(number)),
            make_bucket=number % 1000 == 0 or number == 1,
            held=item.held,
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
