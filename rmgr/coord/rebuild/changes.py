"""Builds clients' changes beside submitting anew: from what stands in ZooKeeper, and from what clients may decide of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmgr.coord.decisions import amending, gating
from rmgr.coord.ops import join as join_ops
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.ops import owner as owner_ops
from rmgr.coord.ops import request as request_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Multi, Set
from rmgr.coord.rebuild.parts import Known, guid_of, op_at, require, submission_of, unlike, waiting_block
from rmgr.coord.validity.records import decode
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import Drain, InboxOrder, OrderKind, SubmitterEntry
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockData
from rmgr.model.tasks.outcome import FailedRange, Fragment
from rmgr.model.tasks.request import AnyRequest, CancelRequest, StopRequest
from rmgr.model.tasks.submission import Phase, Submission, Tail, Work

#: Characters of a user's words in an outcome, and of what makes the bytes of a tail unique.
_WORDS, _STAMP = 120, 64


# -- failed attempts, waiting tasks -----------------------------------------------------------------------------------------------


def resubmit(multi: Multi, known: Known) -> Multi:
    """RESUBMIT, and GIVE_UP: as the rule says of what stands there."""
    number, (first, count, attempt), failed, version = _failed(multi, known)
    gate, user = False, ""
    if multi.name == "RESUBMIT":
        _, aside, _ = waiting_block(op_at(multi, 1, Create).path, multi, 1, sequence=False)
        gate = not aside
        facts = known.facts(number)
        user = facts.user
        require(aside or not facts.is_capped, multi, 1, "tasks of what has a cap wait aside")
    most = known.settings().max_losses
    return leader_ops.resubmit(_named(number, user), first, count, attempt, failed, version, gate=gate, max_losses=most)[0]


def cancel_failed(multi: Multi, known: Known, *, named: bool = False) -> Multi:
    """CANCEL_FAILED. named: see `NAMED`."""
    number, (first, count, attempt), failed, version = _failed(multi, known)
    told = op_at(multi, 1, Create)
    outcomes = decode(told.data, Fragment, told.path).outcomes
    reason, _ = _cancelled_by(known, number, outcomes[0].reason if outcomes else Reason.NONE, "", named=named)
    return leader_ops.cancel_failed(_named(number), first, count, attempt, failed, version, reason=reason)


def _failed(multi: Multi, known: Known) -> tuple[int, tuple[int, int, int], FailedRange, int]:
    gone = op_at(multi, 0, Delete)
    number = submission_of(gone.path, multi)
    found = paths.failed_in([gone.path.rpartition("/")[2]])
    require(len(found) == 1 and gone.path == paths.failed_range(number, *found[0][1]), multi, 0, "it is no failed range")
    failed = decode(known.read(gone.path, gone.version).data, FailedRange, gone.path)
    decode(failed.block, BlockData, gone.path)
    return number, found[0][1], failed, gone.version


def _named(number: int, user: str = "") -> Submission:
    """All that the leader's builders ask of a submission."""
    return Submission(id=number, name="", user=user, queue="", work=Work.COMMAND)


def take_out(multi: Multi, known: Known, *, named: bool = False) -> Multi:
    """TAKE_OUT: tasks that wait end CANCELLED. named: see `NAMED`."""
    gone = op_at(multi, 0, Delete)
    queue, held, key = waiting_block(gone.path, multi, 0, sequence=False)
    told = op_at(multi, len(multi.ops) - 1, Create)
    outcomes = decode(told.data, Fragment, told.path).outcomes
    indices = [outcome.index for outcome in outcomes]
    inside = bool(indices) and indices == sorted(set(indices)) and key.first <= indices[0] and indices[-1] < key.end
    require(inside, multi, len(multi.ops) - 1, "it tells of tasks of that block, each once")
    why = outcomes[0].error
    require(len(why) <= _WORDS, multi, len(multi.ops) - 1, "too many words")
    data = decode(known.read(gone.path, gone.version).data, BlockData, gone.path)
    reason, words = _cancelled_by(known, key.submission, outcomes[0].reason, why, named=named)
    fragment = leader_ops.no_outcome(State.CANCELLED, reason, indices, words[:_WORDS], attempt=key.attempt)
    return ops.take_out(queue, key, data, gone.version, indices=indices, fragment=fragment, held=held)


def _cancelled_by(known: Known, number: int, told: Reason, words: str, *, named: bool) -> tuple[Reason, str]:
    """(reason, words) of a cancel, as its client tells them; named: as it is, where somebody has a name."""
    if not named or not known.user:
        return Reason.OPERATOR_CANCEL if told is Reason.OPERATOR_CANCEL else Reason.USER_CANCEL, words
    if known.facts(number).user == known.user:
        return Reason.USER_CANCEL, words
    mine = gating.words_of(known.user, "")
    return Reason.OPERATOR_CANCEL, words if words == mine or words.startswith(f"{mine}: ") else gating.words_of(known.user, words)


# -- the record -------------------------------------------------------------------------------------------------------------------


def gate(multi: Multi, known: Known, *, named: bool = False) -> Multi:
    """GATE: a hold, a release or a cancel of what stands there. named: see `NAMED`."""
    told, old, version = _record(multi, known)
    change: gating.Change | str
    name = known.user if named else ""
    doer = gating.Doer(name=name or told.by, is_operator=known.is_operator, now_us=told.by_us)
    if told.phase is Phase.CANCELLED:
        change = gating.cancelled(old, told.reason_detail, doer)
    elif told.phase is Phase.HELD and told.reason in {Reason.USER_HOLD, Reason.OPERATOR_HOLD}:
        change = gating.held(old, told.reason_detail, doer)
    else:
        change = gating.released(old, doer)
    if isinstance(change, str):
        raise unlike(multi, 0, change)
    return ops.set_record(change.record, version=version, gate=change.gate)


def update(multi: Multi, known: Known) -> Multi:
    """UPDATE: an amendment in the name of its sender, and in no right that he does not have."""
    told, old, version = _record(multi, known)
    require(len(told.changes) == len(old.changes) + 1, multi, 0, "it adds one amendment")
    mine = told.changes[-1]
    require(not known.user or mine.by == known.user, multi, 0, "an amendment names who has made it")
    require(known.is_operator or not mine.is_operators, multi, 0, "only an operator makes an operator's amendment")
    change = amending.amended(old, mine.terms, gating.Doer(name=mine.by, is_operator=mine.is_operators, now_us=mine.by_us))
    if isinstance(change, str):
        raise unlike(multi, 0, change)
    record = amending.signed(change.record, mine.signature)
    waiting = []
    for at, op in enumerate(multi.ops):
        if op.path.startswith(f"{paths.QUEUES}/"):
            queue, _, key = waiting_block(op.path, multi, at, sequence=False)
            require(queue in old.queues and key.submission == old.id, multi, at, "it is a waiting block of that submission")
            waiting.append(op.path)
    return ops.update(record, version=version, gate=change.gate, waiting=waiting)


def take_ownership(multi: Multi, known: Known) -> Multi:
    """TAKE_OWNERSHIP: the record names another Submitter, the tail since when."""
    told, old, version = _record(multi, known)
    set_tail = op_at(multi, 1, Set)
    new = decode(set_tail.data, Tail, set_tail.path)
    require(len(new.enqueued) <= _STAMP, multi, 1, "its stamp is too long")
    owner = guid_of(told.owner, multi)
    tail = owner_ops.taken_over(known.tail(old.id, set_tail.version), owner, new.enqueued)
    return owner_ops.take_ownership(replace(old, owner=owner), version, tail, set_tail.version)


def _record(multi: Multi, known: Known) -> tuple[Submission, Submission, int]:
    """(as it shall be, as it is, at which version)."""
    first = op_at(multi, 0, Set)
    number = submission_of(first.path, multi)
    require(first.path == paths.sub(number), multi, 0, "it is no record")
    told = decode(first.data, Submission, first.path)
    old = decode(known.read(first.path, first.version).data, Submission, first.path)
    return told, old, first.version


# -- new znodes -------------------------------------------------------------------------------------------------------------------


def order(multi: Multi, known: Known, *, named: bool = False) -> Multi:
    """ORDER: what runs is to end (named: see `NAMED`). Everything else is ordered by the leader, who alone knows what it has started."""
    made = op_at(multi, 0, Create)
    node, guid = _below(made.path, paths.INBOX, multi)
    what = decode(made.data, InboxOrder, made.path)
    require(what.order is OrderKind.CANCEL, multi, 0, f"{what.order} is ordered by the leader alone")
    is_cancel = what.reason in {Reason.USER_CANCEL, Reason.OPERATOR_CANCEL}
    require(is_cancel, multi, 0, f"{what.reason} is told by the leader alone")
    reason, words = _cancelled_by(known, what.submission, Reason(what.reason), what.detail, named=named)
    what = replace(what, reason=reason, detail=words)
    require(not (what.signal or what.extra) and what.index >= -1, multi, 0, "a cancel says which task, and why")
    return leader_ops.order(node, guid_of(guid, multi), what)


def ask(multi: Multi, _known: Known) -> Multi:
    """ASK: a request that nobody has answered."""
    made = op_at(multi, 0, Create)
    request: request_ops.Request
    if decode(made.data, AnyRequest, made.path).kind:
        stop = request = decode(made.data, StopRequest, made.path)
        is_new = not (stop.answered or stop.done or stop.left or stop.error or stop.code or stop.hint)
    else:
        cancel = request = decode(made.data, CancelRequest, made.path)
        is_new = not (cancel.answered or cancel.ended or cancel.error)
    require(is_new, multi, 0, "the leader answers it")
    return request_ops.ask(guid_of(made.path.rpartition("/")[2], multi), request)


def enter(multi: Multi, _known: Known) -> Multi:
    """ENTER."""
    made = op_at(multi, 0, Create)
    entry = decode(made.data, SubmitterEntry, made.path)
    guid_of(entry.guid, multi)
    require(not entry.user, multi, 0, "the gateway says whose it is")
    return owner_ops.enter(entry)


def entered(multi: Multi, known: Known) -> Multi:
    """The same ENTER, which names the caller: guids are in lists that everybody may read, and who enters with another's gains nothing."""
    entry = decode(op_at(multi, 0, Create).data, SubmitterEntry, multi.ops[0].path)
    return owner_ops.enter(replace(entry, user=known.user))


def identify(multi: Multi, known: Known) -> Multi:
    """IDENTIFY: the caller's own certificate, and nobody else's."""
    return join_ops.identify(*known.certificate(op_at(multi, 0, Create).data))


# -- operators --------------------------------------------------------------------------------------------------------------------


def drain(multi: Multi, known: Known) -> Multi:
    """DRAIN."""
    return operator_ops.drain(*_drain(multi, known))


def resume(multi: Multi, known: Known) -> Multi:
    """RESUME."""
    told, version = _drain(multi, known)
    if version is None:
        raise unlike(multi, 0, "it says which drain it ends")
    return operator_ops.resume(told, version)


def _drain(multi: Multi, known: Known) -> tuple[Drain, int | None]:
    """What a drain says, and the version of the one that it replaces."""
    version = op_at(multi, 0, Delete).version if len(multi.ops) > 1 else None
    require(version is None or version >= 0, multi, 0, "it says which drain it replaces")
    made = op_at(multi, 0 if version is None else 1, Create)
    told = decode(made.data, Drain, made.path)
    require(not known.user or told.user == known.user, multi, 0, "a drain names who has made it")
    require(told.is_over == (multi.name == "RESUME"), multi, 0, "a drain that is over is a RESUME")
    return told, version


def settings(multi: Multi, known: Known) -> Multi:
    """SETTINGS."""
    new = op_at(multi, 0, Set)
    require(new.version >= 0, multi, 0, "it says which settings it replaces")
    told = decode(new.data, ClusterSettings, new.path)
    require(not known.user or told.changed_by in {"", known.user}, multi, 0, "settings name who has changed them")
    return operator_ops.set_settings(told, new.version)


def _below(path: str, root: str, multi: Multi) -> tuple[str, str]:
    """The two names below a root."""
    parts = path[len(root) + 1 :].split("/") if path.startswith(f"{root}/") else []
    if len(parts) != 2 or not all(parts):
        raise unlike(multi, 0)
    return parts[0], parts[1]


#: Changes by which operators end or hold others' work. What is committed names who has sent it, whatever the client says: a name is never
#: the request's own, and what a client of the release before sends has one too.
NAMED: dict[str, Callable[..., Multi]] = {"GATE": gate, "TAKE_OUT": take_out, "ORDER": order, "CANCEL_FAILED": cancel_failed}
