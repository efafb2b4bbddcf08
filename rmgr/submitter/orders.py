"""Carries out users' orders, each as one procedure of the protocol, in the name of the asker.

Orders about submissions: hold, release and cancel (GATE), cancelling tasks, other terms (UPDATE). Each reads the record, decides, and
commits on the version that it read (`settle`). GATE commits only the decision; the leader sweeps up behind it.

A task may wait in `pending` or `held`, wait for the resubmit rule in `failed`, or be claimed by a Starter; it may also move between these
during a look, so everything is looked at until none of the tasks waits any more: waiting ones leave their block (TAKE_OUT), running
ones are ordered to be killed. `coord/decisions/changing.py` decides who may change which terms, here and once more in the gateway; the
leader renames blocks, places jobs anew, and tells nodes the new time limit of running tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import eq
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.adapters.identity.trust import publish_certificate
from rmgr.coord import validity
from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import ITS_USER, Changed, Doer, cancel_words, words_of
from rmgr.coord.decisions.progress import Progress, overall_state
from rmgr.coord.decisions.rights import no_submission
from rmgr.coord.ops import membership
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import ask_leader, cancel_failed, cancel_reason, no_outcome, order
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS_OF_ONE_JOB, Committed, Conflict, ConflictKind, Multi, Outcome, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block, decode_failed, encode_record
from rmgr.errors import CoordinationUnavailable, DeadlineExceeded, InvalidRecord, NotFound, PermissionDenied, StateConflict, UsageError
from rmgr.model.block import MOST_TASKS, StopKind, StopRequest, TaskRanges, ranges_of
from rmgr.model.node import Drain, InboxOrder, NodeRecord, NodeState, OrderKind
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import MOST_CHANGES, Amendment, Phase, Submission, Terms
from rmgr.model.units import counted
from rmgr.procedures.admission import check_changed
from rmgr.procedures.bootstrap import read_settings
from rmgr.procedures.snapshot import fetch, read_claimed, read_names, read_progress, read_records, read_submission
from rmgr.runtime import machine
from rmgr.submitter import questions as q
from rmgr.submitter.questions import Question

if TYPE_CHECKING:
    from rmgr.submitter.answers import Answers

#: Attempts at a change: others may change the same thing meanwhile.
_TRIES = 5
#: An amendment has its signer's time if that differs from ours by less than this (us).
_CLOCKS_US = 600_000_000
#: Looks at the same tasks before those that still move are left alone.
_ROUNDS = 12
#: Blocks read and committed at once: bounds the memory for submissions of millions.
_AT_ONCE = 64
#: Most blocks of which one commit can check that they still wait.
MOST_WAITING = MAX_OPS_OF_ONE_JOB - MOST_CHANGES - 5
#: Returns the signature of an amendment ("key id:hex"), or None: it must be signed before it is committed.
Sign = Callable[[Amendment], str | None]
#: (record, its version, seconds left) -> the new record and its commit, or why there is nothing to do, or what must be signed before.
Decide = Callable[[Submission, int, float], tuple[Submission, Multi] | str | Amendment]


def _asker_as_doer(on: Answers, timeout_s: float) -> Doer:
    who = on.who
    proven = who.name == "root" if who.is_open else who.is_operator
    return Doer(name=who.name, is_operator=proven or who.name in on.operators(timeout_s), now_us=machine.wall_us())


# -- whole submissions ----------------------------------------------------------------------------------------------------------


def _progress(on: Answers, number: int, timeout_s: float) -> tuple[Submission, Progress]:
    read = read_progress(on.coordinator, None, number, timeout_s=timeout_s)
    if read is None:
        raise no_submission(number)
    return read


def _changed(on: Answers, number: int, timeout_s: float, change: Callable[..., Changed], **how: Any) -> Changed:
    """Returns what `change`, a function below, did to a submission that has not ended."""
    record, progress = _progress(on, number, timeout_s)
    if record.phase is Phase.CLOSED or progress.is_ended:
        return Changed(record, record, f"it has ended {overall_state(record, progress, 0)}")
    return change(on.coordinator, number, doer=_asker_as_doer(on, timeout_s), timeout_s=timeout_s, **how)


def cancel_submission(
    coordinator: Coordinator, number: int, *, detail: str = "", doer: Doer = ITS_USER, timeout_s: float = 30.0
) -> Changed:
    """Commits CANCEL: nothing of the submission starts any more; waiting tasks end CANCELLED, running ones are killed.

    Raises: NotFound, CoordinationUnavailable.
    """
    return _change(coordinator, number, lambda record: changing.cancelled(record, detail, doer), timeout_s)


def hold_submission(
    coordinator: Coordinator, number: int, *, detail: str = "", doer: Doer = ITS_USER, timeout_s: float = 30.0
) -> Changed:
    """Commits HOLD: nothing more starts until the release; running tasks go on. Raises as `cancel_submission`."""
    return _change(coordinator, number, lambda record: changing.held(record, detail, doer), timeout_s)


def release_submission(coordinator: Coordinator, number: int, *, doer: Doer = ITS_USER, timeout_s: float = 30.0) -> Changed:
    """Commits RELEASE after a hold; only operators release an operator's hold. A submission that waited for others waits again."""
    return _change(coordinator, number, lambda record: changing.released(record, doer), timeout_s)


def _change(coordinator: Coordinator, number: int, decide: Callable[[Submission], changing.Change | str], timeout_s: float) -> Changed:
    def gated(record: Submission, version: int, _left_s: float) -> tuple[Submission, Multi] | str:
        change = decide(record)
        if isinstance(change, str):
            return change
        return change.record, ops.set_record(change.record, version=version, gate=change.gate)

    return settle(coordinator, number, gated, timeout_s=timeout_s)


def settle(
    coordinator: Coordinator,
    number: int,
    decide: Decide,
    *,
    timeout_s: float,
    has_come: Callable[[Submission, Submission], bool] = eq,
) -> Changed:
    """Reads a record, decides, and commits on the version that it read; again if another change came first.

    Args:
        has_come: whether a record committed with an unknown outcome is contained in the current one.
    Raises: NotFound, CoordinationUnavailable; what `decide` raises.
    """
    end_s = machine.monotonic() + timeout_s
    mine: tuple[Submission, Submission] | None = None
    while True:
        left_s = end_s - machine.monotonic()
        if left_s <= 0:
            what = "could not be changed" if mine is None else "was perhaps changed"
            words = f"submission {number} {what}: ZooKeeper did not answer in time"
            raise CoordinationUnavailable(words, hint=f"rmgr show {number}; rmgr doctor")
        found = coordinator.get(paths.sub(number), timeout_s=left_s).result(left_s + 1)
        if found is None:
            raise no_submission(number)
        record = validity.submission(found.data, number)
        if mine is not None and has_come(mine[1], record):
            return Changed(mine[0], record)
        decided = decide(record, found.version, left_s)
        if isinstance(decided, str):
            return Changed(record, record, decided)
        if isinstance(decided, Amendment):
            return Changed(record, record, to_sign=decided)
        made, multi = decided
        match coordinator.commit(multi, timeout_s=left_s).result(left_s + 1):
            case Committed():
                return Changed(record, made)
            case Unknown():
                mine = (record, made)


# -- tasks ---------------------------------------------------------------------------------------------------------------------


def _cancel_tasks(on: Answers, question: q.CancelTasks, timeout_s: float) -> q.TasksCancelled:
    number, end_s = question.number, machine.monotonic() + timeout_s
    _, progress = _progress(on, number, timeout_s)
    wanted = TaskRanges(question.ranges, progress.total)
    open_: list[tuple[int, int]] = []
    before: list[tuple[int, int, State]] = []
    for first, count, state in _runs_by_state(wanted, progress):
        if state is None:
            open_.append((first, count))
        else:
            before.append((first, count, state))
    ended: tuple[tuple[int, int], ...] = ()
    if open_:
        by = on.who.name
        ended = cancel_tasks(
            on.coordinator, number, open_, detail=question.detail, by=by, running=not question.waits_only, deadline_s=end_s
        )
    return q.TasksCancelled(ended=ended, before=tuple(before))


def _runs_by_state(wanted: TaskRanges, progress: Progress) -> Iterator[tuple[int, int, State | None]]:
    """Yields (first, count, final state) for runs of tasks in the same state."""
    for first, count in wanted.ranges():
        since, state = first, progress.state_of(first)
        for at in range(first + 1, first + count):
            if (now := progress.state_of(at)) is not state:
                yield since, at - since, state
                since, state = at, now
        yield since, first + count - since, state


def _kill_running(on: Answers, question: q.KillRunning, timeout_s: float) -> int:
    number = question.number
    record = read_submission(on.coordinator, number, timeout_s=timeout_s)
    if record.phase is Phase.CLOSED:
        return 0
    if record.phase is not Phase.CANCELLED:
        raise StateConflict(f"{number} is not cancelled: it is {record.phase}", hint=f"rmgr cancel {number}")
    claimed = read_claimed(on.coordinator, on.children(paths.NODES, timeout_s), submission=number, timeout_s=timeout_s)
    what = InboxOrder(order=OrderKind.CANCEL, submission=number, reason=cancel_reason(record), detail=cancel_words(record))
    nodes = sorted({node for node, _, _ in claimed})
    given = [on.coordinator.commit(order(node, machine.guid(), what), timeout_s=timeout_s) for node in nodes]
    for one in given:
        one.result(timeout_s + 5.0)
    return len(nodes)


class _Ended:
    """Tasks that this call has ended: one byte for each position up to the highest."""

    def __init__(self) -> None:
        self._marks = bytearray()
        self.count = 0

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, count in ranges:
            stop = first + count
            self._marks.extend(bytes(max(0, stop - len(self._marks))))
            self.count += self._marks.count(0, first, stop)
            self._marks[first:stop] = b"\1" * count

    def __contains__(self, index: int) -> bool:
        return index < len(self._marks) and self._marks[index] == 1

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Returns (first, count) of the ended tasks, in order."""
        found: list[tuple[int, int]] = []
        at = self._marks.find(1)
        while at >= 0:
            stop = self._marks.find(0, at)
            stop = len(self._marks) if stop < 0 else stop
            found.append((at, stop - at))
            at = self._marks.find(1, stop)
        return tuple(found)


def cancel_tasks(
    coordinator: Coordinator,
    number: int,
    ranges: Sequence[tuple[int, int]],
    *,
    detail: str = "",
    by: str = "",
    running: bool,
    deadline_s: float,
) -> tuple[tuple[int, int], ...]:
    """Cancels tasks of submission `number`. Cost: by the ranges, and by the tasks that still wait or run; a byte of memory a task.

    Args:
        ranges: (first, count) of the tasks. detail: the user's words. by: the cancelling user, "" = the submission's.
        running: also orders running tasks to be killed.
        deadline_s: monotonic.
    Returns: ranges of tasks that waited (CANCELLED now) and, with `running`, of those ordered to end.
    Raises: NotFound, CoordinationUnavailable, DeadlineExceeded.
    """
    submission = read_submission(coordinator, number, timeout_s=_left_s(deadline_s))
    wanted, ended = TaskRanges(ranges, MOST_TASKS), _Ended()
    is_own = by in {"", submission.user}
    reason, detail = (Reason.USER_CANCEL, detail) if is_own else (Reason.OPERATOR_CANCEL, words_of(by, detail))
    detail = detail[:120]
    for _ in range(_ROUNDS):
        before = ended.count
        for queue in reversed(submission.queues):  # former queues first: a block that moves to the current one meanwhile is not missed
            for held in (False, True):
                _take_out(coordinator, queue, number, wanted, ended, held=held, reason=reason, detail=detail, deadline_s=deadline_s)
        _drop_failed(coordinator, submission, wanted, ended, reason=reason, deadline_s=deadline_s)
        if ended.count >= wanted.count or ended.count == before:
            break
    if running and ended.count < wanted.count:
        _kill(coordinator, submission, wanted, ended, reason=reason, detail=detail, deadline_s=deadline_s)
    return ended.ranges()


def _take_out(
    coordinator: Coordinator,
    queue: str,
    number: int,
    wanted: TaskRanges,
    ended: _Ended,
    *,
    held: bool,
    reason: Reason,
    detail: str,
    deadline_s: float,
) -> None:
    if ended.count >= wanted.count:
        return
    parent = paths.held(queue) if held else paths.pending(queue)
    names = read_names(coordinator, parent, timeout_s=_left_s(deadline_s))
    mine = (key for _, key in paths.blocks_in(names) if key.submission == number)
    while keys := list(islice(mine, _AT_ONCE)):
        open_ = [(key, indices) for key in keys if (indices := [at for at in wanted.within(key.first, key.end) if at not in ended])]
        where = [f"{parent}/{paths.block_name(key)}" for key, _ in open_]
        blocks = fetch(where, coordinator.get, timeout_s=_left_s(deadline_s))
        multis: list[tuple[Multi, Sequence[int]]] = []
        for (key, indices), block in zip(open_, blocks, strict=True):
            if block is None:
                continue
            try:
                data = decode_block(block.data)
            except msgspec.DecodeError:  # an invalid block must not keep the others from being cancelled
                continue
            # As much as one multi and one fragment can hold; the next round finds the rest of the block under its new names.
            some = indices[: 10_000 // (40 + len(detail))] if len(indices) == key.count else indices[:60]
            fragment = no_outcome(State.CANCELLED, reason, some, detail, attempt=key.attempt)
            multi = ops.take_out(queue, key, data, block.version, indices=some, fragment=fragment, held=held)
            multis.append((multi, some))
        _end_together(coordinator, multis, ended, deadline_s)


def _drop_failed(
    coordinator: Coordinator, submission: Submission, wanted: TaskRanges, ended: _Ended, *, reason: Reason, deadline_s: float
) -> None:
    if ended.count >= wanted.count:
        return
    names = read_names(coordinator, paths.failed(submission.id), timeout_s=_left_s(deadline_s))
    # A range goes as a whole: a part that waits for the rule is caught when it waits in the queue again.
    mine = ((name, *numbers) for name, numbers in paths.failed_in(names) if wanted.covers(numbers[0], numbers[0] + numbers[1]))
    while some := list(islice(mine, _AT_ONCE)):
        found = fetch([f"{paths.failed(submission.id)}/{item[0]}" for item in some], coordinator.get, timeout_s=_left_s(deadline_s))
        multis: list[tuple[Multi, Sequence[int]]] = []
        for (_, first, count, attempt), record in zip(some, found, strict=True):
            if record is not None:
                with suppress(msgspec.MsgspecError):  # as for blocks; the leader ends an invalid range
                    failed = decode_failed(record.data)
                    multi = cancel_failed(submission, first, count, attempt, failed, record.version, reason=reason)
                    multis.append((multi, range(first, first + count)))
        _end_together(coordinator, multis, ended, deadline_s)


def _kill(
    coordinator: Coordinator,
    submission: Submission,
    wanted: TaskRanges,
    ended: _Ended,
    *,
    reason: Reason,
    detail: str,
    deadline_s: float,
) -> None:
    nodes = read_names(coordinator, paths.NODES, timeout_s=_left_s(deadline_s))
    multis: list[tuple[Multi, Sequence[int]]] = []
    for node, key, data in read_claimed(coordinator, nodes, submission=submission.id, timeout_s=_left_s(deadline_s)):
        for index in wanted.within(key.first, key.end):
            if index not in ended and not data.done >> (index - key.first) & 1:
                what = InboxOrder(order=OrderKind.CANCEL, submission=submission.id, index=index, reason=reason, detail=detail)
                multis.append((order(node, machine.guid(), what), [index]))
    _end_together(coordinator, multis, ended, deadline_s)


def _end_together(coordinator: Coordinator, multis: Sequence[tuple[Multi, Sequence[int]]], ended: _Ended, deadline_s: float) -> None:
    flying: list[tuple[Future[Outcome], Sequence[int]]] = [
        (coordinator.commit(multi, timeout_s=_left_s(deadline_s)), some) for multi, some in multis
    ]
    for future, some in flying:
        if isinstance(future.result(max(0.1, deadline_s - machine.monotonic()) + 1), Committed):
            ended.add(ranges_of(some))


def _left_s(deadline_s: float) -> float:
    left = deadline_s - machine.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the tasks could not be cancelled in time", hint="rmgr tasks ID shows which ones were")
    return left


# -- other terms ----------------------------------------------------------------------------------------------------------------


def _update(on: Answers, question: q.UpdateSubmission, timeout_s: float) -> Changed:
    signed, doer = question.amendment, _asker_as_doer(on, timeout_s)
    if signed is not None and abs(signed.by_us - doer.now_us) < _CLOCKS_US:
        doer = replace(doer, now_us=signed.by_us)

    def signature_of(change: Amendment) -> str | None:
        return signed.signature if signed is not None and replace(signed, signature="") == change else None

    sign = None if on.who.is_open else signature_of
    return update_submission(on.coordinator, question.number, question.terms, doer=doer, sign=sign, timeout_s=timeout_s)


def update_submission(
    coordinator: Coordinator, number: int, terms: Terms, *, doer: Doer, sign: Sign | None = None, timeout_s: float = 30.0
) -> Changed:
    """Gives waiting tasks of a submission other terms, and running ones another time limit.

    If only one block waits, either this change or the block's start is committed: tasks that have started keep their terms except
    the time limit (the user may shorten it, an operator may lengthen it).

    Args:
        sign: signs for the person who changes it; None in an open cluster.
    Raises: NotFound; UsageError, Infeasible, PermissionDenied for terms that no submission may have; CoordinationUnavailable.
    """

    def decide(record: Submission, version: int, left_s: float) -> tuple[Submission, Multi] | str | Amendment:
        standing, waiting = _standing(coordinator, record, terms, left_s)
        change = changing.amended(record, terms, doer, standing)
        if isinstance(change, str):
            return change
        made = change.record
        nodes = [paths.node(name) for name in read_names(coordinator, paths.NODES, timeout_s=left_s)]
        known = read_records(coordinator, nodes, NodeRecord, timeout_s=left_s)
        check_changed(made, made.changes[-1].terms, read_settings(coordinator, timeout_s=left_s), known)
        if sign is not None:
            if (signature := sign(made.changes[-1])) is None:
                return made.changes[-1]
            made = changing.signed(made, signature)
        _check_record(made)
        if len(waiting) > MOST_WAITING:
            return f"it waits in {counted(len(waiting), 'block')}, and none of so many may start meanwhile: rmgr hold {number} first"
        return made, ops.update(made, version=version, gate=change.gate, waiting=waiting)

    def has_come(mine: Submission, record: Submission) -> bool:
        return record.changes[: len(mine.changes)] == mine.changes  # others may have come since

    return settle(coordinator, number, decide, timeout_s=timeout_s, has_come=has_come)


def _check_record(made: Submission) -> None:
    """Refuses to write a record that could not be read: the work would neither start nor end any more. Raises: UsageError."""
    try:
        validity.submission(encode_record(made), made.id)
    except InvalidRecord as error:
        raise UsageError(f"{made.id}: {error.message.partition(': ')[2]}", hint="rmgr update --help") from error


def _standing(coordinator: Coordinator, record: Submission, terms: Terms, timeout_s: float) -> tuple[changing.Standing, list[str]]:
    """Returns what waits and runs; and paths of blocks that must not start at the moment of the change."""
    number = record.id
    [tail] = fetch([paths.tail(number)], coordinator.get, timeout_s=timeout_s)
    places = [place(queue) for queue in reversed(record.queues) for place in (paths.pending, paths.held)]
    failed, nodes, *queues = fetch([paths.failed(number), paths.NODES, *places], coordinator.children, timeout_s=timeout_s)
    grows = tail is not None and not validity.tail(tail, number).complete
    blocks = [
        f"{parent}/{name}" for parent, names in zip(places, queues, strict=True)
        for name, key in sorted(paths.blocks_in(names), key=lambda one: paths.claim_order(one[0])) if key.submission == number
    ]  # fmt: skip
    if grows or failed or blocks:
        may_move = not (grows or failed or changing.OF_STILL.isdisjoint(terms.said()))
        is_still = may_move and _is_all(coordinator, record.id, blocks, timeout_s)
        if is_still and record.phase is not Phase.OPEN:
            return changing.Standing(waits=True), []  # nothing starts before the record changes
        return changing.Standing(waits=True, is_still=is_still), [] if grows or failed else blocks if is_still else blocks[-1:]
    lists = fetch([paths.running_node(node) for node in nodes or ()], coordinator.children, timeout_s=timeout_s)
    runs = any(key.submission == number for names in lists for _, key in paths.blocks_in(names))
    return changing.Standing(waits=False, runs=runs, is_still=False), []


def _is_all(coordinator: Coordinator, number: int, blocks: list[str], timeout_s: float) -> bool:
    """Whether everything unfinished waits in these blocks: nothing is claimed."""
    read = read_progress(coordinator, None, number, timeout_s=timeout_s)
    waiting = {(key.first, key.count) for path in blocks for key in (paths.parse_block(path.rpartition("/")[2]),)}  # a block may have moved
    return read is not None and read[1].final + sum(count for _, count in waiting) == read[1].total


# -- asking the leader for what it alone can do --------------------------------------------------------------------------------


def _move(on: Answers, question: q.MoveTask, timeout_s: float) -> None:
    request = StopRequest(
        kind=StopKind.CHECKPOINT if question.stays else StopKind.MIGRATE,
        submission=question.number,
        index=question.index,
        attempt=question.attempt,
        to=question.to or "",
        grace_us=question.grace_us,
        detail=f"asked by {on.who.name}",
    )
    send_stop(on.coordinator, question.guid, request, timeout_s=timeout_s)


def _vacate(on: Answers, question: q.VacateNode, timeout_s: float) -> None:
    detail = f"node {question.node} drains, as {on.who.name} wants it"
    request = StopRequest(kind=StopKind.VACATE, node=question.node, detail=detail)
    send_stop(on.coordinator, question.guid, request, timeout_s=timeout_s)


def _read_answer(on: Answers, question: q.ReadMoved | q.ReadVacated, timeout_s: float) -> StopRequest:
    request = on.read(paths.request(question.guid), StopRequest, timeout_s)
    asked = (0, question.node) if isinstance(question, q.ReadVacated) else (question.number, "")
    if request is None or (request.submission, request.node) != asked:
        raise NotFound("the answer of the leader is gone", hint="rmgr tasks ID shows what has happened")
    return request


def send_stop(coordinator: Coordinator, guid: str, request: StopRequest, *, timeout_s: float) -> None:
    """Has the leader ask placed jobs to save their state, or to go on elsewhere.

    guid: drawn by the caller; the same guid again is the same request, which is `answered` once a leader has served it.
    Raises: CoordinationUnavailable.
    """
    outcome = coordinator.commit(ask_leader(guid, request), timeout_s=timeout_s).result(timeout_s + 1)
    is_there = isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NODE_EXISTS  # repeated request
    if not (isinstance(outcome, Committed) or is_there):
        raise CoordinationUnavailable(f"the leader could not be asked: {outcome}", hint="try again")


# -- nodes and settings ----------------------------------------------------------------------------------------------------------


def read_drain(on: Answers, node: str, timeout_s: float) -> tuple[Drain, int] | None:
    """Returns the drain of a node, even one that is over, and its version."""
    found = on.get(paths.drain(node), timeout_s)
    return None if found is None else (validity.decode(found.data, Drain, paths.drain(node)), found.version)


def _drain_record(on: Answers, node: str, reason: str) -> Drain:
    record = Drain(node=node, reason=reason, user=on.who.name, since_us=machine.wall_us())
    validity.check(record, where=paths.drain(node))
    return record


def _drain(on: Answers, question: q.DrainNode, timeout_s: float) -> None:
    record = _drain_record(on, question.node, question.reason)

    def attempt() -> Multi | None:
        found = read_drain(on, question.node, timeout_s)
        if found is not None and not found[0].is_over and not question.reason:
            return None  # it is drained already, and says since when, by whom and why
        return membership.drain(record, found[1] if found is not None else None)

    _commit(on, attempt, f"the drain of {question.node}", timeout_s)


def _resume(on: Answers, question: q.ResumeNode, timeout_s: float) -> bool:
    found = read_drain(on, question.node, timeout_s)
    if found is None or found[0].is_over:
        return False
    record = _drain_record(on, question.node, "")

    def attempt() -> Multi | None:
        found = read_drain(on, question.node, timeout_s)
        return membership.resume(record, found[1]) if found is not None else None

    _commit(on, attempt, f"the drain of {question.node}", timeout_s)
    return True


def _forget(on: Answers, question: q.ForgetNode, timeout_s: float) -> None:
    name = question.node

    def attempt() -> Multi:
        found = on.get(paths.node(name), timeout_s)
        if found is None:
            raise NotFound(f"there is no node {name!r}", hint="rmgr nodes")
        record = validity.decode(found.data, NodeRecord, paths.node(name))
        if record.state is not NodeState.FENCED:
            raise StateConflict(
                f"{name} is not stopped, so it is not forgotten", hint=f"stop its Starter on {record.host or name}; rmgr nodes {name}"
            )
        if on.children(paths.running_node(name), timeout_s):
            raise StateConflict(f"{name} has work that the leader has not taken away yet", hint=f"try again; rmgr nodes {name}")
        if record.key_id and on.get(paths.revoked(record.key_id), timeout_s) is None:
            message = f"the credentials of {name} are still believed"
            raise StateConflict(message, hint=f"rmgr admin revoke {name} --role starter; then this again")
        return membership.forget(record, found.version)

    try:
        _commit(on, attempt, f"the record of {name}", timeout_s)
    except PermissionDenied as error:
        raise PermissionDenied(f"{name}: forgetting a node is for the admin", hint="run it with the bundle of rmgr admin init") from error


def _commit(on: Answers, attempt: Callable[[], Multi | None], what: str, timeout_s: float) -> None:
    for _ in range(_TRIES):
        multi = attempt()
        if multi is None:
            return
        match on.coordinator.commit(multi, timeout_s=timeout_s).result(timeout_s + 5.0):
            case Committed():
                return
            case Conflict():
                continue
        raise CoordinationUnavailable(f"it is not known whether {what} was changed", hint="look, and try again: rmgr nodes")
    raise StateConflict(f"{what} keeps being changed by somebody else", hint="rmgr nodes")


def _apply(on: Answers, question: q.ApplySettings, timeout_s: float) -> None:
    settings = replace(question.settings, changed_by=on.who.name, changed_us=machine.wall_us())
    validity.check(settings, where=paths.CONFIG)
    old = on.read(paths.CONFIG, ClusterSettings, timeout_s) or ClusterSettings()
    for queue in old.queues:
        if settings.queue(queue.name) is None:
            for path in (paths.pending(queue.name), paths.held(queue.name)):
                if names := on.children(path, timeout_s):
                    raise StateConflict(
                        f"queue {queue.name} still holds work ({counted(len(names), 'block')}), so it cannot be removed",
                        hint=f'let it run dry first (state = "closed"), or: rmgr cancel --queue {queue.name} --user USER',
                    )
    directories = [path for queue in settings.queues for path in (paths.pending(queue.name), paths.held(queue.name))]
    on.coordinator.ensure(directories, timeout_s=timeout_s)
    match on.coordinator.commit(membership.set_settings(settings, question.version), timeout_s=timeout_s).result(timeout_s + 5.0):
        case Committed():
            return
        case Conflict():
            raise StateConflict(
                "somebody else has changed the settings just now; nothing was changed", hint="look again: rmgr config show --cluster"
            )
    raise CoordinationUnavailable("it is not known whether the settings were changed", hint="look: rmgr config show --cluster")


def publish(on: Answers, question: q.PublishCertificate, timeout_s: float) -> None:
    """Publishes (IDENTIFY) the certificate of the key that the asker's connection has shown, and no other."""
    if on.certify is None:
        raise PermissionDenied("IDENTIFY: nobody signs in an open cluster", hint="without [security] dir (RMGR_SECURITY_DIR)")
    key_id, pem = on.certify(question.pem)
    if on.own_key and key_id != on.own_key:
        raise PermissionDenied("IDENTIFY: that is not the certificate of your own key", hint="every gateway publishes its own")
    publish_certificate(on.coordinator, key_id, pem, timeout_s=timeout_s)


#: Every order, and the function that carries it out.
ORDERED: dict[type[Question[Any]], Callable[[Answers, Any, float], Any]] = {
    q.CancelSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, cancel_submission, detail=of.detail),
    q.HoldSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, hold_submission, detail=of.detail),
    q.ReleaseSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, release_submission),
    q.UpdateSubmission: _update,
    q.CancelTasks: _cancel_tasks,
    q.KillRunning: _kill_running,
    q.MoveTask: _move,
    q.ReadMoved: _read_answer,
    q.VacateNode: _vacate,
    q.ReadVacated: _read_answer,
    q.DrainNode: _drain,
    q.ResumeNode: _resume,
    q.ForgetNode: _forget,
    q.ApplySettings: _apply,
    q.PublishCertificate: publish,
}
