"""Carries out users' orders, each as one procedure of the protocol, in the name of the asker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmgr.adapters.identity.trust import publish_certificate
from rmgr.coord import validity
from rmgr.coord.decisions.changing import Changed, Doer, cancel_words
from rmgr.coord.decisions.progress import Progress, overall_state
from rmgr.coord.decisions.rights import no_submission
from rmgr.coord.ops import membership
from rmgr.coord.ops.leader import cancel_reason, order
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi
from rmgr.errors import CoordinationUnavailable, NotFound, PermissionDenied, StateConflict
from rmgr.model.block import StopKind, StopRequest, TaskRanges
from rmgr.model.node import Drain, InboxOrder, NodeRecord, NodeState, OrderKind
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import State
from rmgr.model.submission import Amendment, Phase, Submission
from rmgr.model.units import counted
from rmgr.procedures import control
from rmgr.procedures.control import cancel_tasks, send_stop, update_submission
from rmgr.procedures.snapshot import read_claimed, read_progress, read_submission
from rmgr.runtime import machine
from rmgr.submitter import questions as q
from rmgr.submitter.questions import Question

if TYPE_CHECKING:
    from rmgr.submitter.answers import Answers

#: Attempts at a change: others may change the same thing meanwhile.
_TRIES = 5
#: An amendment has its signer's time if that differs from ours by less than this (us).
_CLOCKS_US = 600_000_000


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
    """Returns what `change`, a function of `procedures.control`, did to a submission that has not ended."""
    record, progress = _progress(on, number, timeout_s)
    if record.phase is Phase.CLOSED or progress.is_ended:
        return Changed(record, record, f"it has ended {overall_state(record, progress, 0)}")
    return change(on.coordinator, number, doer=_asker_as_doer(on, timeout_s), timeout_s=timeout_s, **how)


def _update(on: Answers, question: q.UpdateSubmission, timeout_s: float) -> Changed:
    signed, doer = question.amendment, _asker_as_doer(on, timeout_s)
    if signed is not None and abs(signed.by_us - doer.now_us) < _CLOCKS_US:
        doer = replace(doer, now_us=signed.by_us)

    def signature_of(change: Amendment) -> str | None:
        return signed.signature if signed is not None and replace(signed, signature="") == change else None

    sign = None if on.who.is_open else signature_of
    return update_submission(on.coordinator, question.number, question.terms, doer=doer, sign=sign, timeout_s=timeout_s)


# -- tasks ----------------------------------------------------------------------------------------------------------------------


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
    q.CancelSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, control.cancel_submission, detail=of.detail),
    q.HoldSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, control.hold_submission, detail=of.detail),
    q.ReleaseSubmission: lambda on, of, timeout_s: _changed(on, of.number, timeout_s, control.release_submission),
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
