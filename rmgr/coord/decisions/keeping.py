"""Decides what to do for a submission: facts in, reconcile actions out. Pure and level-triggered.

The keeper asks again after every change. An action that was carried out changes the facts, so it is not returned again. Nothing
is remembered between two calls: a new leader that reads the same facts gets the same actions.

Who acts: the owner (its Submitter) looks after its submission while it is alive; the leader stands in for a dead owner,
and for a live one that has not acted for `PATIENCE_S`. Names are deterministic, so nothing is ever done twice.
Sweeps, caps, dependencies and the end belong to the leader alone: an ended submission needs no owner and does not change.

A task may be *nowhere*: not final, and in no block and no failed range. In the protocol every task is in exactly one of these
places at any moment, and moves by one multi. So if facts of one moment show a task in none of them, it has lost its znode:
the znode was deleted, or ZooKeeper was restored from an older state. That is final: every multi that could advance the task
(CLAIM, COMPLETE, RETURN, RESUBMIT, ...) needs the lost znode, so a late COMPLETE of its old claim conflicts. Its arguments and
signature were in the block, so it cannot be made again; it ends DATA_LOST. A Starter that still has the block puts its claim back
first (PUT_BACK), but only until a task of the submission has been ended this way: NOWHERE raises the version of `/subs/../failed`,
which PUT_BACK checks, so only one of the two is ever committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from rmgr.coord.decisions.progress import Codes
from rmgr.coord.protocol import paths
from rmgr.model.block import BlockKey
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase, Submission, Tail, key_now

#: Time without action after which the leader helps a live owner (s).
PATIENCE_S = 30.0
#: Time without an entry after which an owner counts as gone (s): its lease has ended before, the rest is for one that reconnects.
GONE_S = 10.0
#: Fragments that leave ZooKeeper in one multi (at most 190 fit beside the other operations).
PAGE_FRAGMENTS = 180
#: Bytes of fragments in ZooKeeper from which a page is written even of few fragments: a cancelled million tasks has 50 MB of them.
PAGE_BYTES = 4 << 20


# -- reconcile actions -------------------------------------------------------------------------------------------------------------------


class Resubmit(msgspec.Struct, frozen=True):
    """A failed range is due: it waits again or ends, as the rule says."""

    first: int
    count: int
    attempt: int


class DropFailed(msgspec.Struct, frozen=True):
    """A failed range of a cancelled submission ends CANCELLED."""

    first: int
    count: int
    attempt: int


class SweepPending(msgspec.Struct, frozen=True):
    """Look at the submission's waiting blocks, and set them aside, end them, or bring them back."""


class Weigh(msgspec.Struct, frozen=True):
    """Check whether the submissions that this one waits for have ended."""


class Abandon(msgspec.Struct, frozen=True):
    """Cancel the submission: its owner left before it was released, and it has no task."""


class EndTail(msgspec.Struct, frozen=True):
    """Declare the submission's tail complete: no more tasks come."""


class Close(msgspec.Struct, frozen=True):
    """Close the submission: every task is final. Writes the summary to the history; the record becomes CLOSED."""


class Page(msgspec.Struct, frozen=True):
    """Move the submission's oldest fragments to a page in the store."""

    first: int
    count: int


class Collect(msgspec.Struct, frozen=True):
    """Remove the submission's znodes and rows: retention is over."""


class Bar(msgspec.Struct, frozen=True):
    """Hold the submission, or with `cancels` cancel it, because its user's key was revoked. detail: for people."""

    cancels: bool
    detail: str


class BreakOff(msgspec.Struct, frozen=True):
    """Cancel the rest of the submission: more tasks have failed than its user allows."""


ReconcileAction = Bar | BreakOff | Resubmit | DropFailed | SweepPending | Weigh | Abandon | EndTail | Close | Page | Collect


# -- facts --------------------------------------------------------------------------------------------------------------------


class FailedSeen(msgspec.Struct, frozen=True):
    """A failed range as the keeper knows it. backoff_s: None until its record was read."""

    first: int
    count: int
    attempt: int
    seen_s: float
    backoff_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that decide what a submission needs. Times named `_s` are the keeper's own monotonic seconds.

    final: tasks with a final state; failures: those that FAILED. applied: the first fragment not known yet. base: the first
    fragment in ZooKeeper; fragment_bytes: of all there. active_s: last change. ended_s: when it was first seen
    ended (None: not ended). gone_s: since when its owner's entry is known to be missing (None: it is there).
    swept: at the last look, no block of it was in a wrong place. sweep_s: when to look next.
    """

    submission: Submission
    tail: Tail
    final: int
    failures: int = 0
    failed: tuple[FailedSeen, ...] = ()
    applied: int = 0
    base: int = 0
    fragment_bytes: int = 0
    owner_alive: bool = False
    active_s: float = -math.inf
    ended_s: float | None = None
    swept: bool = True
    sweep_s: float = -math.inf
    gone_s: float | None = None
    bar: Bar | None = None  #: the action for work of a user whose key was revoked


class ReconcilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Actions for now, and when to ask again if nothing changes before (None: only after a change)."""

    actions: tuple[ReconcileAction, ...]
    again_s: float | None = None


def plan(facts: Facts, settings: ClusterSettings, *, now_s: float, now_us: int) -> ReconcilePlan:
    """Returns the reconcile actions for one submission.

    Args:
        now_s: monotonic, for all decisions about work. now_us: wall clock, only for retention.
    Cost: O(failed ranges).
    """
    submission = facts.submission
    if submission.phase is Phase.CLOSED:
        left_us = submission.closed_us + settings.retention_us - now_us
        if left_us <= 0:
            return ReconcilePlan(actions=(Collect(),))
        page = _page(facts, settings)
        return ReconcilePlan(actions=() if page is None else (page,), again_s=now_s + left_us / 1e6)
    asks: list[tuple[float, ReconcileAction]] = [*_retries(facts), *_ends(facts, settings)]
    if facts.bar is not None and is_to_be_barred(submission, facts.bar):
        asks.append((now_s, facts.bar))
    elif is_to_be_broken_off(submission, facts.failures) and facts.ended_s is None:
        asks.append((now_s, BreakOff()))
    elif submission.phase is Phase.HELD and submission.reason == Reason.DEPENDENCY:
        asks.append((now_s, Weigh()))
    if not facts.swept:
        asks.append((facts.sweep_s, SweepPending()))
    page = _page(facts, settings)
    if page is not None:
        asks.append((now_s, page))
    later = [due_s for due_s, _ in asks if due_s > now_s]
    return ReconcilePlan(actions=tuple(action for due_s, action in asks if due_s <= now_s), again_s=min(later, default=None))


def _retries(facts: Facts) -> Iterable[tuple[float, ReconcileAction]]:
    patience_s = PATIENCE_S if facts.owner_alive else 0.0
    for item in facts.failed:
        if facts.submission.phase is Phase.CANCELLED:
            yield item.seen_s, DropFailed(item.first, item.count, item.attempt)
        else:
            yield item.seen_s + (item.backoff_s or 0.0) + patience_s, Resubmit(item.first, item.count, item.attempt)


def _ends(facts: Facts, settings: ClusterSettings) -> Iterable[tuple[float, ReconcileAction]]:
    if facts.ended_s is not None:
        yield facts.ended_s, Close()
    elif not facts.tail.complete:
        end: ReconcileAction = Abandon() if is_to_be_abandoned(facts.submission, facts.tail) else EndTail()
        if facts.submission.phase is Phase.CANCELLED:
            yield facts.active_s + (PATIENCE_S if facts.owner_alive else 0.0), EndTail()
        elif not facts.owner_alive:
            gone_s = facts.gone_s if facts.submission.ends_with_owner else None
            due_s = math.inf if gone_s is None else gone_s + GONE_S
            yield min(due_s, facts.active_s + settings.retention_us / 1e6), end


def _page(facts: Facts, settings: ClusterSettings) -> Page | None:
    times, count = 2 if facts.owner_alive else 1, facts.applied - facts.base
    is_much = count > settings.max_fragments * times or facts.fragment_bytes > PAGE_BYTES * times
    return Page(facts.base, PAGE_FRAGMENTS) if is_much and count > PAGE_FRAGMENTS else None


# -- blocks in a wrong place -------------------------------------------------------------------------------------------------


class SetBlockAside(msgspec.Struct, frozen=True):
    """Move a waiting block of a held submission out of the queue."""

    key: BlockKey


class BringBack(msgspec.Struct, frozen=True):
    """Let a block that was set aside wait again; only its first `take` tasks if `take` is not 0."""

    key: BlockKey
    take: int = 0


class RenameBlock(msgspec.Struct, frozen=True):
    """Give a waiting block the name and queue of its submission's current terms. queue: where it is, "" = in the right one."""

    key: BlockKey
    now: BlockKey
    held: bool
    queue: str = ""


class EndBlock(msgspec.Struct, frozen=True):
    """End a waiting block of a cancelled submission. queue: where it is, "" = in its submission's queue."""

    key: BlockKey
    held: bool
    queue: str = ""


Move = SetBlockAside | BringBack | RenameBlock | EndBlock


def moves(
    submission: Submission,
    *,
    pending: Sequence[BlockKey],
    held: Sequence[BlockKey],
    room: int | None,
    strays: Sequence[tuple[str, BlockKey, bool]] = (),
) -> list[Move]:
    """Returns what to do with the waiting blocks of one submission, in the order in which to do it.

    Args:
        pending, held: its blocks in each of the two places.
        room: how many more of its tasks may be under way (`room_of`), None without a cap.
        strays: (queue, block, is held) of blocks in queues where it was before.
    """
    in_order = sorted(held, key=BlockKey.sort_key)
    if submission.changes and submission.phase in {Phase.OPEN, Phase.HELD}:
        own = [*(("", key, False) for key in pending), *(("", key, True) for key in in_order)]
        waiting = [*sorted(strays, key=lambda one: one[1].sort_key()), *own]
        tag = paths.tag_of(submission)
        others = [
            RenameBlock(key, now, aside, queue)
            for queue, key, aside in waiting
            if (now := replace(key_now(key, submission), user=tag)) != key or queue
        ]
        if others:  # first, because a block's name decides where it belongs
            return [*others]
    match submission.phase:
        case Phase.HELD:
            return [SetBlockAside(key) for key in pending]
        case Phase.CANCELLED:
            gone = [EndBlock(key, held=aside, queue=queue) for queue, key, aside in strays]
            return [*gone, *(EndBlock(key, held=False) for key in pending), *(EndBlock(key, held=True) for key in in_order)]
        case Phase.OPEN:
            return [BringBack(key) for key in in_order] if room is None else _fill(in_order, room)
        case Phase.CLOSED:
            return []


def _fill(in_order: Sequence[BlockKey], room: int) -> list[Move]:
    back: list[Move] = []
    for key in in_order:
        if room <= 0:
            break
        back.append(BringBack(key, take=0 if key.count <= room else room))
        room -= key.count
    return back


def room_of(submission: Submission, *, total: int, final: int, held: int, failed: int) -> int | None:
    """Returns how many more tasks of a capped submission may leave `held`, None without a cap.

    Tasks that are neither final, nor set aside, nor waiting for the rule are under way (waiting or claimed). To never exceed the
    cap, `final` must be older than the list in which `held` was counted, and `failed` and `total` newer.
    """
    if submission.max_running <= 0:
        return None
    return max(0, submission.max_running - (total - final - held - failed))


# -- changes of the record ----------------------------------------------------------------------------------------------------


def is_to_be_barred(submission: Submission, bar: Bar) -> bool:
    """Returns whether the submission could still start, or is held although it must end."""
    if submission.phase is Phase.HELD:
        return bar.cancels or submission.reason != Reason.REVOKED
    return submission.phase is Phase.OPEN


def is_to_be_broken_off(submission: Submission, failures: int) -> bool:
    """Returns whether a task could still run, and more have failed than the user allows."""
    return 0 <= submission.max_fails < failures and submission.phase in (Phase.OPEN, Phase.HELD)


def is_to_be_abandoned(submission: Submission, tail: Tail) -> bool:
    """Returns whether it anchors a list of jobs that was never released: without its owner the submission ends, and the list with it.

    (An Executor held before its first task is the same case: no task can be added to it.)
    """
    return submission.phase is Phase.HELD and submission.ends_with_owner and not tail.next and not tail.complete


# -- dependencies: whether their conditions hold -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionEnd:
    """What is known of the end of a submission.

    state: how it ended, None if it has not. spoiled: some task of it FAILED or was CANCELLED already.
    began: an attempt of it ran, or was lost. known: False if neither ZooKeeper nor the history has it.
    """

    state: State | None = None
    spoiled: bool = False
    began: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class Met:
    """All conditions hold: the submission may run."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """One condition can no longer hold."""

    detail: str


@dataclass(frozen=True, slots=True)
class Open:
    """Undecided: these submissions have not ended. `missing`: those without a known end."""

    waits_for: tuple[int, ...]
    missing: tuple[int, ...] = ()


Verdict = Met | Unmet | Open


def weigh(after: Sequence[Dependency], endings: Mapping[int, SubmissionEnd]) -> Verdict:
    """Returns the verdict on a list of dependencies, all of which must hold. Cost: O(dependencies).

    Args:
        endings: known ends by submission; a submission not in it has not been looked up.
    """
    waits: list[int] = []
    missing: list[int] = []
    for item in after:
        ending = endings.get(item.submission)
        if ending is None:
            missing.append(item.submission)
            continue
        broken = _broken(item, ending)
        if broken:
            return Unmet(f"{item.condition}:{item.submission}: {broken}")
        if ending.state is None:
            waits.append(item.submission)
    return Open(tuple(waits), tuple(missing)) if waits or missing else Met()


def is_branch_not_taken(reason: str, detail: str) -> bool:
    """Returns whether a submission was cancelled because work succeeded whose failure it waited for. (As recorded by the leader.)"""
    return reason == Reason.DEPENDENCY_FAILED and detail.startswith(f"{Condition.FAIL}:") and detail.endswith(f" ended {State.COMPLETED}")


def _broken(item: Dependency, ending: SubmissionEnd) -> str:
    if not ending.known:
        return f"submission {item.submission} is neither in the cluster nor in the history"
    if item.condition is Condition.OK:
        if ending.state in {State.FAILED, State.CANCELLED}:
            return f"submission {item.submission} ended {ending.state}"
        if ending.spoiled:
            return f"not all tasks of submission {item.submission} can complete any more"
    if item.condition is Condition.FAIL:
        if ending.state is State.COMPLETED:
            return f"submission {item.submission} ended {State.COMPLETED}"
        if ending.state is State.CANCELLED and not ending.began:
            return f"submission {item.submission} was cancelled before anything of it ran"
    return ""


# -- tasks that are nowhere ----------------------------------------------------------------------------------------------------


#: Tasks looked at in one round, over all submissions: far more than one multi ends.
MOST_MISSING = 100_000


def missing_tasks(total: int, settled: Codes, ranges: Iterable[tuple[int, int]], most: int = MOST_MISSING) -> list[int]:
    """Returns the indices below `total` that are nowhere, ascending, the first `most` of them.

    Args:
        settled: a code for each final task. ranges: (first, count) of all blocks and failed ranges.
    Cost: O(tasks nowhere or final, ranges); independent of `total`, which its owner may have made up.
    """
    found: list[int] = []
    at = 0
    for first, count in [*sorted(ranges), (total, 0)]:
        if at < min(first, total):
            found += settled.without(at, min(first, total), most - len(found))
        if len(found) >= most:
            break
        at = max(at, first + count)
    return found


