"""The multis of the leader, those that an owner and the leader share (RESUBMIT, CLOSE, PAGE, GC), and those by which it is asked.

E = version of `/epoch`, the leader fence: it is checked first in every multi that only the leader may do. The rule at the end says whether
what FAILED runs again: Starters ask it (at all?), Submitters and the leader (how?), and all get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from rmgr.coord.ops.work import cut
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Delete, Exists, Gone, Holds, Multi, Op, Set
from rmgr.coord.protocol.records import decode_block, encode_block, encode_failed, encode_fragment, encode_record
from rmgr.model.base.states import LOSSES, OWN_FAILURES, Reason, State
from rmgr.model.base.version import SKEW
from rmgr.model.cluster.node import EpochRecord, InboxOrder, Meta, NodeRecord, NodeState
from rmgr.model.tasks.block import BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt, pending_indices, runs
from rmgr.model.tasks.request import StopRequest
from rmgr.model.tasks.submission import Paged, Submission, Tail

#: Outcomes with an error text each that surely fit one znode.
OUTCOMES_PER_FRAGMENT = 64


def take_over(candidate: str, record: EpochRecord, version: int | None) -> Multi:
    """TAKE-OVER: raises the epoch while the candidate's own entry exists; `version` None when there never was a leader."""
    data = encode_record(record)
    entry = Check(f"{paths.WATCHDOGS}/{candidate}")
    write: Op = Create(paths.EPOCH, data) if version is None else Set(paths.EPOCH, data, version)
    return Multi(name="TAKE_OVER", ops=(entry, write), proof=Holds(paths.EPOCH, data))


def epoch_check(version: int) -> Check:
    """The condition of every multi of the leader."""
    return Check(paths.EPOCH, version)


def fence(epoch_version: int, record: NodeRecord, node_version: int, reason: str) -> Multi:
    """FENCE: every later multi of that incarnation fails, whatever session it comes by."""
    data = encode_record(replace(record, state=NodeState.FENCED, reason=reason))
    return Multi(
        name="FENCE",
        ops=(epoch_check(epoch_version), Set(paths.node(record.node), data, node_version)),
        proof=Holds(paths.node(record.node), data),
    )


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
    """FAIL: the tasks of a claimed block that have no outcome are marked FAILED; whoever looks after them decides.

    Args:
        guard: `epoch_check(E)` by the leader after FENCE; the new fence of the node by a Starter that has just
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
    """RESUBMIT: a failed range waits again with the next attempt, or ends FAILED as the rule says.

    The names are deterministic: a second doer finds the record gone and stops. `gate`: the submission's gate exists.
    Returns: the multi, and an example of the final outcome when the rule said no (its outputs are to be deleted).
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
    """DISTRUST: a failed range that nobody may have written ends: nothing of what it says runs."""
    path = paths.failed_range(submission.id, first, count, attempt)
    fragment = no_outcome(State.FAILED, Reason.UNTRUSTED, range(first, first + count), error[:200])
    ops = (Delete(path, version), Create(paths.fragment_prefix(submission.id), encode_fragment(fragment), sequence=True))
    return Multi(name="DISTRUST", ops=ops, proof=Gone(path))


def outcome_of(failed: FailedRange, reason: Reason, index: int) -> Outcome:
    """The final outcome of a failed attempt that may not run again (times relative to its start)."""
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
    """A failed range that waits for its rule ends CANCELLED with its submission."""
    path = paths.failed_range(submission.id, first, count, attempt)
    outcomes = tuple(
        msgspec.structs.replace(outcome_of(failed, reason, index), state=State.CANCELLED) for index in range(first, first + count)
    )
    ops: tuple[Op, ...] = (Delete(path, version), *_fragments(submission.id, failed, attempt, outcomes))
    return Multi(name="CANCEL_FAILED", ops=ops, proof=Gone(path))


def _fragments(submission: int, failed: FailedRange, attempt: int, outcomes: tuple[Outcome, ...]) -> list[Op]:
    """Fragments small enough for a znode each."""
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
    """An order to a Starter."""
    path = paths.inbox(node, guid)
    data = encode_record(what)
    return Multi(name="ORDER", ops=(Create(path, data),), proof=Holds(path, data))


def end_tail(submission: int, tail: Tail, version: int) -> Multi:
    """END_TAIL: nothing will be added any more."""
    path, data = paths.tail(submission), encode_record(tail)
    return Multi(name="END_TAIL", ops=(Set(path, data, version),), proof=Holds(path, data))


def discard(path: str, *checks: Check, version: int = -1) -> Multi:
    """DISCARD: a block of a submission that does not exist (any more) goes."""
    return Multi(name="DISCARD", ops=(*checks, Delete(path, version)), proof=Gone(path))


def tidy_bucket(name: str) -> Multi:
    """TIDY: a directory of submissions that have all been collected goes."""
    path = f"{paths.SUBS}/{name}"
    return Multi(name="TIDY", ops=(Delete(path),), proof=Gone(path))


def forget_nonces(gone: Sequence[str]) -> Multi:
    """FORGET_NONCES: nothing can be submitted under these any more."""
    return Multi(name="FORGET_NONCES", ops=tuple(map(Delete, gone)), proof=Gone(gone[-1]))


def page(submission: int, paged: Paged, version: int, first: int, count: int) -> Multi:
    """Fragments `first`..`first + count - 1`, written to a store page before, leave ZooKeeper. At most 190 at a time."""
    data = encode_record(paged)
    ops: list[Op] = [Set(paths.done(submission), data, version)]
    ops += [Delete(paths.fragment(submission, number)) for number in range(first, first + count)]
    return Multi(name="PAGE", ops=tuple(ops), proof=Holds(paths.done(submission), data))


def raise_protocol(meta: Meta, version: int, protocol: int) -> Multi:
    """PROTOCOL: every daemon speaks `protocol` now; what is two releases older may not join any more."""
    data = encode_record(replace(meta, protocol=protocol, oldest=max(meta.oldest, protocol - SKEW)))
    return Multi(name="PROTOCOL", ops=(Set(paths.META, data, version),), proof=Holds(paths.META, data))


def mark_store(meta: Meta, version: int, now_us: int) -> Multi:
    """BOUND: the cluster has a data store; from now on an empty one is refused."""
    data = encode_record(replace(meta, store_bound_us=now_us))
    return Multi(name="BOUND", ops=(Set(paths.META, data, version),), proof=Holds(paths.META, data))


def no_outcome(state: State, reason: Reason, indices: Sequence[int], error: str = "", *, attempt: int = 0) -> Fragment:
    """A fragment for tasks that end while they wait. attempt: the one they wait for; above 1, one of theirs has run or was lost."""
    return Fragment(
        attempt=attempt if attempt > 1 else 0,
        outcomes=tuple(Outcome(index=index, state=state, reason=reason, error=error) for index in indices),
    )


# -- the rule after an attempt ended FAILED: run again or not (protocol.md section 1) ------------------------------------------


#: Attempts of a task that `rmgr show` can tell of.
MAX_PAST = 8
#: Least back-off, doubled each time, of a task whose worker or slot was lost before.
_PAUSE_US = 250_000
#: Ranges up to this many tasks are retried as blocks of one after a loss; larger ones as halves.
SINGLE_AFTER_LOSS = 64


@dataclass(frozen=True, slots=True)
class Again:
    """Run it again: `block` carries the raised counters; not before `backoff_us` from when it is seen."""

    block: BlockData
    backoff_us: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End it: FAILED with `reason`."""

    reason: Reason


Ruling = Again | GiveUp


def rule(reason: Reason, block: BlockData, *, alone: bool, backoff_us: int, max_losses: int) -> Ruling:
    """Whether tasks of `block`, whose attempt ended FAILED with `reason`, may run again.

    A loss (NODE_LOST, DATA_LOST, LEASE_LOST, WORKER_LOST) runs again if `resubmit`; it counts against the task only when it
    was `alone` in its block, and the `max_losses`-th makes it POISON (lost data stay DATA_LOST: no node was harmed); after
    WORKER_LOST with back-off. The work's own failure runs again `retries` times, with exponential back-off from `backoff_us`
    (doubled each time, at most 64-fold). Anything else is final.
    """
    if reason in LOSSES:
        if not block.resubmit:
            return GiveUp(reason)
        losses = block.losses + (1 if alone else 0)
        if losses >= max_losses:
            return GiveUp(Reason.DATA_LOST if reason is Reason.DATA_LOST else Reason.POISON)
        pause_us = 0
        if reason is Reason.WORKER_LOST:  # its own doing, more often than not: the second loss waits, whatever its user asked for
            pause_us = (backoff_us or (_PAUSE_US if block.losses else 0)) << min(block.losses, 6)
        return Again(msgspec.structs.replace(block, losses=losses), pause_us)
    if reason in OWN_FAILURES:
        if block.failures >= block.retries:
            return GiveUp(reason)
        delay = backoff_us << min(block.failures, 6)
        return Again(msgspec.structs.replace(block, failures=block.failures + 1), delay)
    return GiveUp(reason)


def remember(block: BlockData, failed: FailedRange, attempt: int) -> BlockData:
    """`block` with the failed attempt added to its past."""
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
    """The blocks in which a failed range waits again: ones after a loss of few, halves of many, else as it was."""
    if reason not in LOSSES or count == 1:
        return [(first, count)]
    if count <= SINGLE_AFTER_LOSS:
        return [(index, 1) for index in range(first, first + count)]
    half = count // 2
    return [(first, half), (first + half, count - half)]


# -- requests: somebody asks the leader, which answers -------------------------------------------------------------------------


def ask_leader(guid: str, request: StopRequest) -> Multi:
    """ASK: a new request under a name of one's own."""
    path = paths.request(guid)
    return Multi(name="ASK", ops=(Create(path, encode_record(request)),), proof=Exists(path))


def answer_request(guid: str, request: StopRequest, version: int) -> Multi:
    """ANSWER: by the leader, once."""
    path, data = paths.request(guid), encode_record(request)
    return Multi(name="ANSWER", ops=(Set(path, data, version),), proof=Holds(path, data))


def clear_request(guid: str) -> Multi:
    """CLEAR: whoever has asked has read the answer, or is gone."""
    path = paths.request(guid)
    return Multi(name="CLEAR", ops=(Delete(path),), proof=Gone(path))
