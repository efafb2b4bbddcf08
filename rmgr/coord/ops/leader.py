"""The multis of the leader, those that owner and leader share (RESUBMIT, CLOSE, PAGE, GC), and requests to the leader.

E = version of `/epoch`, the leader fence, which every multi reserved to the leader checks first. The rule at the end decides whether
FAILED work runs again: Starters ask it whether, Submitters and the leader ask it how, and all get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from rmgr.coord import nonces
from rmgr.coord.ops.work import cut, set_record
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Create, Delete, Exists, Gone, Holds, Multi, Op, Set, put, remove
from rmgr.coord.protocol.records import brief_ends, decode_block, encode_block, encode_failed, encode_fragment, encode_record
from rmgr.model.block import BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt, StopRequest, pending_indices, runs
from rmgr.model.node import EpochRecord, InboxOrder, Meta, NodeRecord, NodeState
from rmgr.model.queue import CappedUse
from rmgr.model.states import LOSSES, OWN_FAILURES, Reason, State
from rmgr.model.submission import Paged, Phase, Submission, Tail
from rmgr.model.version import SKEW

#: Deletes of one COLLECT, beside its checks.
DELETES = 180
#: Outcomes, each with an error text, that certainly fit one znode.
OUTCOMES_PER_FRAGMENT = 64


def stand(guid: str, record: EpochRecord) -> Multi:
    """CANDIDATE: an entry in the line. The server chooses its name, so `standing` finds its proof, not read-back."""
    prefix = paths.watchdog(guid)
    return Multi(name="CANDIDATE", ops=(Create(prefix, encode_record(record), ephemeral=True, sequence=True),), proof=Exists(prefix))


def leave_line(name: str) -> Multi:
    """WITHDRAW: an entry leaves the line (a double, or that of a leader that hands over)."""
    return remove("WITHDRAW", f"{paths.WATCHDOGS}/{name}")


def take_over(candidate: str, record: EpochRecord, version: int | None) -> Multi:
    """TAKE-OVER: raises the epoch while the candidate's own entry exists; `version` is None if there never was a leader."""
    return put("TAKE_OVER", paths.EPOCH, encode_record(record), version, Check(f"{paths.WATCHDOGS}/{candidate}"))


def epoch_check(version: int) -> Check:
    """Returns the condition of every multi of the leader."""
    return Check(paths.EPOCH, version)


def epoch_version(multi: Multi, answer: Committed) -> int:
    """Returns E: the version of /epoch that a committed TAKE-OVER made."""
    return next(version for op, version in zip(multi.ops, answer.versions, strict=True) if op.path == paths.EPOCH)


def fenced(version: int, multi: Multi) -> Multi:
    """Returns `multi` as a leader may send it: with the leader fence checked first.

    The multis that owner and leader share (RESUBMIT, sweeps, CLOSE, PAGE) carry no fence of their own; a deposed leader
    that wakes up late must not even do the right thing.
    """
    check = epoch_check(version)
    if check in multi.ops:
        return multi
    return replace(multi, ops=(check, *multi.ops))


def fence(epoch_version: int, record: NodeRecord, node_version: int, reason: str) -> Multi:
    """FENCE: every later multi of that incarnation fails, whatever session sends it."""
    fenced_record = replace(record, state=NodeState.FENCED, reason=reason)
    return put("FENCE", paths.node(record.node), encode_record(fenced_record), node_version, epoch_check(epoch_version))


def tidy_node(epoch_version: int, node: str, node_version: int, *, orders: Iterable[str], idle: bool) -> Multi | None:
    """TIDY: removes orders to a fenced node, and its idle marker; None if there is nothing (at most 190 orders at a time).

    The node's version is checked: once it has registered again, these belong to the new incarnation.
    """
    gone = [paths.inbox(node, guid) for guid in sorted(orders)[:190]]
    if idle:
        gone.append(paths.idle(node))
    if not gone:
        return None
    ops: tuple[Op, ...] = (epoch_check(epoch_version), Check(paths.node(node), node_version), *(Delete(path) for path in gone))
    return Multi(name="TIDY", ops=ops, proof=Gone(gone[0]))


def fail(
    guard: Check,
    node: str,
    queue: str,
    key: BlockKey,
    data: bytes,
    version: int,
    *,
    reason: Reason,
    now_us: int,
) -> Multi:
    """FAIL: marks the tasks of a claimed block without outcome as FAILED; the owner or the leader decides what follows.

    Args:
        guard: the leader's `epoch_check(E)` after FENCE; or the new fence of the node, for a Starter that has just
            re-registered and clears what its older incarnation left.
        data, version: of the running znode.
    """
    block = decode_block(data)
    path = paths.running_block(node, key)
    ops: list[Op] = [guard, Delete(path, version)]
    missing = runs(pending_indices(key, block.done))
    for first, count in missing:
        part = msgspec.structs.replace(cut(block, key.first, first, count), done=0, incarnation=0, started=0)
        record = FailedRange(
            queue=queue,
            seq=key.seq,
            priority=key.priority,
            cores=key.cores,
            memory_mib=key.memory_mib,
            reason=reason,
            block=encode_block(part),
            node=node,
            error=f"node {node} was lost" if reason is Reason.NODE_LOST else "",
            started_us=block.claimed_us,
            ended_us=now_us,
            alone=key.count == 1,
        )
        ops.append(Create(paths.failed_range(key.submission, first, count, key.attempt), encode_failed(record)))
    return Multi(name="FAIL", ops=tuple(ops), proof=Gone(path))


def resubmit(
    submission: Submission, first: int, count: int, attempt: int, failed: FailedRange, version: int, *, gate: bool, max_losses: int
) -> tuple[Multi, Outcome | None]:
    """RESUBMIT: a failed range waits again with the next attempt, or ends FAILED, as the rule says.

    Names are deterministic: the second one to act finds the record gone and stops. `gate`: the submission's gate exists.
    Returns: the multi, and an example of the final outcome if the rule said no (its outputs are to be deleted).
    """
    block = decode_block(failed.block)
    path = paths.failed_range(submission.id, first, count, attempt)
    ruling = rule(failed.reason, block, alone=failed.alone, backoff_us=submission.backoff_us, max_losses=max_losses)
    ops: list[Op] = [Delete(path, version)]
    if not isinstance(ruling, Again):
        final = outcome_of(failed, ruling.reason, first)
        outcomes = tuple(msgspec.structs.replace(final, index=index, past=block.past) for index in range(first, first + count))
        ops += _fragments(submission.id, failed, attempt, outcomes)
        return Multi(name="GIVE_UP", ops=tuple(ops), proof=Gone(path)), final
    carried = remember(ruling.block, failed, attempt)
    for piece_first, piece_count in pieces(first, count, failed.reason):
        key = BlockKey(
            priority=failed.priority,
            seq=failed.seq,
            submission=submission.id,
            first=piece_first,
            count=piece_count,
            attempt=attempt + 1,
            cores=failed.cores,
            memory_mib=failed.memory_mib,
            user=paths.tag_of(submission),
        )
        target = paths.pending_block(failed.queue, key) if gate else paths.held_block(failed.queue, key)
        ops.append(Create(target, encode_block(cut(carried, first, piece_first, piece_count))))
    return Multi(name="RESUBMIT", ops=tuple(ops), proof=Gone(path)), None


def distrust(submission: Submission, first: int, count: int, attempt: int, version: int, error: str) -> Multi:
    """DISTRUST: ends a failed range that no authorised process can have written; nothing that it says runs."""
    path = paths.failed_range(submission.id, first, count, attempt)
    fragment = no_outcome(State.FAILED, Reason.UNTRUSTED, range(first, first + count), error[:200])
    ops = (Delete(path, version), Create(paths.fragment_prefix(submission.id), encode_fragment(fragment), sequence=True))
    return Multi(name="DISTRUST", ops=ops, proof=Gone(path))


def outcome_of(failed: FailedRange, reason: Reason, index: int) -> Outcome:
    """Returns the final outcome of a failed attempt that may not run again (times relative to its start)."""
    return Outcome(
        index=index,
        state=State.FAILED,
        reason=reason,
        exit_code=failed.exit_code,
        error=failed.error,
        elapsed_us=max(0, failed.ended_us - failed.started_us),
        log=failed.log,
        log_parts=failed.log_parts,
        cpu_us=failed.cpu_us,
        max_rss_kib=failed.max_rss_kib,
    )


def cancel_failed(
    submission: Submission, first: int, count: int, attempt: int, failed: FailedRange, version: int, *, reason: Reason
) -> Multi:
    """CANCEL_FAILED: a failed range that waits for the rule ends CANCELLED with its submission."""
    path = paths.failed_range(submission.id, first, count, attempt)
    outcomes = tuple(
        msgspec.structs.replace(outcome_of(failed, reason, index), state=State.CANCELLED) for index in range(first, first + count)
    )
    ops: tuple[Op, ...] = (Delete(path, version), *_fragments(submission.id, failed, attempt, outcomes))
    return Multi(name="CANCEL_FAILED", ops=ops, proof=Gone(path))


def _fragments(submission: int, failed: FailedRange, attempt: int, outcomes: tuple[Outcome, ...]) -> list[Op]:
    """Returns creates of fragments that are each small enough for a znode."""
    return [
        Create(
            paths.fragment_prefix(submission),
            encode_fragment(
                Fragment(node=failed.node, attempt=attempt, base_us=failed.started_us, outcomes=outcomes[at : at + OUTCOMES_PER_FRAGMENT])
            ),
            sequence=True,
        )
        for at in range(0, len(outcomes), OUTCOMES_PER_FRAGMENT)
    ]


def order(node: str, guid: str, what: InboxOrder) -> Multi:
    """ORDER: an order to a Starter."""
    return put("ORDER", paths.inbox(node, guid), encode_record(what), None)


def end_block(submission: Submission, key: BlockKey, *, held: bool, queue: str = "") -> Multi:
    """END: all tasks of a waiting block end CANCELLED, for the reason in the record.

    queue: where the block is, "" = in its submission's queue.
    """
    source = (paths.held_block if held else paths.pending_block)(queue or submission.queue, key)
    fragment = no_outcome(State.CANCELLED, cancel_reason(submission), range(key.first, key.end), attempt=key.attempt)
    fragment = msgspec.structs.replace(fragment, outcomes=brief_ends(fragment.outcomes))  # so that those of the largest block fit
    ops = (Delete(source), Create(paths.fragment_prefix(submission.id), encode_fragment(fragment), sequence=True))
    return Multi(name="END", ops=ops, proof=Gone(source))


def cancel_reason(submission: Submission) -> Reason:
    """Returns why the submission's tasks end CANCELLED."""
    reason = Reason(submission.reason)
    return Reason.USER_CANCEL if reason in {Reason.NONE, Reason.OTHER} else reason


#: Fragments of one NOWHERE: together far below its size limit.
NOWHERE_FRAGMENTS = 12
#: Error text of a task that NOWHERE has ended.
NOWHERE_ERROR = (
    "it was nowhere in ZooKeeper: not final, and no block of it waited or ran (its znode was deleted, or ZooKeeper was restored from "
    "an older state)"
)


def end_missing(
    submission: Submission,
    indices: Sequence[int],
    *,
    epoch_version: int,
    version: int,
    tail_version: int,
    failed_version: int,
    stamp: str,
) -> Multi:
    """NOWHERE: the first of `indices` end DATA_LOST (or CANCELLED, in a cancelled submission).

    Args:
        version, tail_version, failed_version: of the record, its tail and its `failed`, read at the moment when the tasks were nowhere.
        stamp: new random text, so that the bytes prove the commit.
    """
    state, reason, error = State.FAILED, Reason.DATA_LOST, NOWHERE_ERROR
    if submission.phase is Phase.CANCELLED:
        state, reason, error = State.CANCELLED, cancel_reason(submission), ""
    number, data = submission.id, stamp.encode()
    ops: list[Op] = [
        epoch_check(epoch_version),
        Check(paths.sub(number), version),
        Check(paths.tail(number), tail_version),
        Set(paths.failed(number), data, failed_version),
    ]
    for start in range(0, min(len(indices), NOWHERE_FRAGMENTS * OUTCOMES_PER_FRAGMENT), OUTCOMES_PER_FRAGMENT):
        fragment = no_outcome(state, reason, indices[start : start + OUTCOMES_PER_FRAGMENT], error)
        ops.append(Create(paths.fragment_prefix(number), encode_fragment(fragment), sequence=True))
    return Multi(name="NOWHERE", ops=tuple(ops), proof=Holds(paths.failed(number), data))


def end_tail(submission: int, tail: Tail, version: int) -> Multi:
    """END_TAIL: no more tasks will be added."""
    return put("END_TAIL", paths.tail(submission), encode_record(tail), version)


def discard(path: str, *checks: Check, version: int = -1) -> Multi:
    """DISCARD: removes a block whose submission does not exist (any more)."""
    return remove("DISCARD", path, version, *checks)


def tidy_bucket(name: str) -> Multi:
    """TIDY: removes a directory of submissions that have all been collected."""
    return remove("TIDY", f"{paths.SUBS}/{name}")


def removal(
    submission: Submission, token_digest: str, children: Mapping[str, Sequence[str]], *, has_gate: bool, has_token: bool
) -> list[Multi]:
    """Returns the multis that remove a collected submission, children first; the last one removes the record.

    Args:
        children: names below `done` and `failed`, by their parent's path.
        has_gate, has_token: whether these exist.
    """
    number = submission.id
    below = [f"{parent}/{name}" for parent, names in sorted(children.items()) for name in sorted(names)]
    multis = [_collect([Check(paths.sub(number))], below[at : at + DELETES]) for at in range(0, len(below), DELETES)]
    last = [paths.gate(number)] if has_gate else []
    last += [paths.tail(number), paths.done(number), paths.failed(number)]
    last += [paths.token(token_digest)] if has_token else []
    multis.append(_collect([], [*last, paths.sub(number)], proof=paths.sub(number)))
    return multis


def _collect(checks: list[Op], gone: list[str], *, proof: str = "") -> Multi:
    return Multi(name="COLLECT", ops=(*checks, *(Delete(path) for path in gone)), proof=Gone(proof or gone[0]))


def forget_nonces(gone: Sequence[str]) -> Multi:
    """FORGET_NONCES: removes nonces under which nothing can be submitted any more."""
    return Multi(name="FORGET_NONCES", ops=tuple(map(Delete, gone)), proof=Gone(gone[-1]))


def page(submission: int, paged: Paged, version: int, first: int, count: int) -> Multi:
    """PAGE: removes fragments `first`..`first + count - 1`, already written to a store page, from ZooKeeper. At most 190 at a time."""
    data = encode_record(paged)
    ops: list[Op] = [Set(paths.done(submission), data, version)]
    ops += [Delete(paths.fragment(submission, number)) for number in range(first, first + count)]
    return Multi(name="PAGE", ops=tuple(ops), proof=Holds(paths.done(submission), data))


def tell_use(use: CappedUse, version: int | None) -> Multi:
    """USAGE: sets `/usage` to `use`. version: of the znode, None if it does not exist."""
    return put("USAGE", paths.USAGE, encode_record(use), version)


def raise_protocol(meta: Meta, version: int, protocol: int) -> Multi:
    """PROTOCOL: every daemon speaks `protocol` now; daemons two releases older may no longer join."""
    raised = replace(meta, protocol=protocol, oldest=max(meta.oldest, protocol - SKEW))
    return put("PROTOCOL", paths.META, encode_record(raised), version)


def mark_store(meta: Meta, version: int, now_us: int) -> Multi:
    """BOUND: the cluster has a data store; from now on an empty store is refused."""
    return put("BOUND", paths.META, encode_record(replace(meta, store_bound_us=now_us)), version)


def no_outcome(state: State, reason: Reason, indices: Sequence[int], error: str = "", *, attempt: int = 0) -> Fragment:
    """Returns a fragment for tasks that end while they wait. attempt: the next one; above 1, an earlier one has run or was lost."""
    return Fragment(
        attempt=attempt if attempt > 1 else 0,
        outcomes=tuple(Outcome(index=index, state=state, reason=reason, error=error) for index in indices),
    )


# -- the rule after a FAILED attempt: run again or not (protocol.md section 1) -------------------------------------------------


#: Attempts of a task that `rmgr show` can list.
MAX_PAST = 8
#: Shortest back-off of a task whose worker or slot was lost before (us), doubled each time.
_PAUSE_US = 250_000
#: Ranges of up to this many tasks are retried as blocks of one task after a loss; larger ones as halves.
SINGLE_AFTER_LOSS = 64


@dataclass(frozen=True, slots=True)
class Again:
    """Run the failed range again: `block` has the raised counters; not before `backoff_us` after it was seen."""

    block: BlockData
    backoff_us: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the failed range: FAILED with `reason`."""

    reason: Reason


Ruling = Again | GiveUp


def rule(reason: Reason, block: BlockData, *, alone: bool, backoff_us: int, max_losses: int) -> Ruling:
    """Decides whether tasks of `block`, whose attempt ended FAILED with `reason`, may run again.

    A loss (NODE_LOST, DATA_LOST, LEASE_LOST, WORKER_LOST) runs again if `resubmit`. It counts against the task only if the task
    was `alone` in its block; the `max_losses`-th loss makes it POISON (lost data stay DATA_LOST: no node was harmed). After
    WORKER_LOST there is a back-off. The work's own failure runs again `retries` times, with exponential back-off from `backoff_us`
    (doubled each time, at most 64-fold). Anything else is final.
    """
    if reason in LOSSES:
        if not block.resubmit:
            return GiveUp(reason)
        losses = block.losses + (1 if alone else 0)
        if losses >= max_losses:
            return GiveUp(Reason.DATA_LOST if reason is Reason.DATA_LOST else Reason.POISON)
        pause_us = 0
        if reason is Reason.WORKER_LOST:  # usually the task's own doing: the second loss waits in any case
            pause_us = (backoff_us or (_PAUSE_US if block.losses else 0)) << min(block.losses, 6)
        return Again(msgspec.structs.replace(block, losses=losses), pause_us)
    if reason in OWN_FAILURES:
        if block.failures >= block.retries:
            return GiveUp(reason)
        delay = backoff_us << min(block.failures, 6)
        return Again(msgspec.structs.replace(block, failures=block.failures + 1), delay)
    return GiveUp(reason)


def remember(block: BlockData, failed: FailedRange, attempt: int) -> BlockData:
    """Returns `block` with the failed attempt added to its past."""
    past = PastAttempt(
        attempt=attempt,
        node=failed.node,
        reason=failed.reason,
        exit_code=failed.exit_code,
        started_us=failed.started_us,
        ended_us=failed.ended_us,
        error=failed.error,
        cpu_us=failed.cpu_us,
        max_rss_kib=failed.max_rss_kib,
    )
    return msgspec.structs.replace(block, past=(*block.past, past)[-MAX_PAST:])


def pieces(first: int, count: int, reason: Reason) -> list[tuple[int, int]]:
    """Returns the blocks in which a failed range waits again: single tasks after a loss of few, halves of many, else unchanged."""
    if reason not in LOSSES or count == 1:
        return [(first, count)]
    if count <= SINGLE_AFTER_LOSS:
        return [(index, 1) for index in range(first, first + count)]
    half = count // 2
    return [(first, half), (first + half, count - half)]


# -- changes of the record by the leader: each returns the record after the change ---------------------------------------------


def close(submission: Submission, version: int, *, now_us: int, gate: bool) -> tuple[Submission, Multi]:
    """CLOSE: after the summary is in the store. The submission has no owner any more, and nothing signed for it runs again.

    gate: its gate exists, and is removed.
    """
    closed = replace(submission, phase=Phase.CLOSED, closed_us=now_us, owner="")
    multi = set_record(closed, version=version, gate=False if gate else None, name="CLOSE")
    return closed, replace(multi, ops=(*multi.ops, nonces.end_of(submission)))


def let_go(submission: Submission, version: int) -> tuple[Submission, Multi]:
    """MET: the dependencies are met; the blocks may be claimed as soon as they are back in the queue."""
    met = replace(submission, phase=Phase.OPEN, reason="", reason_detail="")
    return met, set_record(met, version=version, gate=True, name="MET")


def barred(submission: Submission, version: int, *, cancels: bool, detail: str) -> tuple[Submission, Multi]:
    """BAR: from its commit on nothing of the submission starts; it is held for ever, or cancelled."""
    phase = Phase.CANCELLED if cancels else Phase.HELD
    changed = replace(submission, phase=phase, reason=Reason.REVOKED, reason_detail=detail)
    return changed, set_record(changed, version=version, gate=False if submission.phase is Phase.OPEN else None, name="BAR")


def break_off(submission: Submission, version: int, failures: int) -> tuple[Submission, Multi]:
    """MAX_FAILS: from its commit on nothing of the submission starts; waiting tasks end CANCELLED, running ones are killed."""
    message = f"{failures} task{'s' if failures != 1 else ''} failed, --max-fails is {submission.max_fails}"
    ended = replace(submission, phase=Phase.CANCELLED, reason=Reason.MAX_FAILS, reason_detail=message)
    return ended, set_record(ended, version=version, gate=False if submission.phase is Phase.OPEN else None, name="MAX_FAILS")


def abandoned(submission: Submission, version: int) -> tuple[Submission, Multi]:
    """ABANDON: the owner left before the submission was released; its dependents are cancelled, and it can no longer be released."""
    message = "its program ended before all of it was submitted"
    ended = replace(submission, phase=Phase.CANCELLED, reason=Reason.OWNER_GONE, reason_detail=message)
    return ended, set_record(ended, version=version, gate=None, name="ABANDON")


def unmet(submission: Submission, version: int, detail: str) -> tuple[Submission, Multi]:
    """UNMET: a dependency can no longer be met."""
    ended = replace(submission, phase=Phase.CANCELLED, reason=Reason.DEPENDENCY_FAILED, reason_detail=detail)
    return ended, set_record(ended, version=version, gate=None, name="UNMET")


# -- requests to the leader, and its answers -----------------------------------------------------------------------------------


def ask_leader(guid: str, request: StopRequest) -> Multi:
    """ASK: a new request, under a name that the asker chooses."""
    path = paths.request(guid)
    return Multi(name="ASK", ops=(Create(path, encode_record(request)),), proof=Exists(path))


def answer_request(guid: str, request: StopRequest, version: int) -> Multi:
    """ANSWER: the leader's answer, once."""
    return put("ANSWER", paths.request(guid), encode_record(request), version)


def clear_request(guid: str) -> Multi:
    """CLEAR: removes a request whose asker has read the answer, or is gone."""
    return remove("CLEAR", paths.request(guid))
