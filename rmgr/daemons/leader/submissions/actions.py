"""Carries out reconcile actions for submissions: each reads what it needs, writes to the store if necessary, and commits one multi.

`coord.keeping.plan` decides what is due. Every action here is a story that ends with whether it succeeded; if not, it is tried again
later while it is still due. A successor that finds an action half done finds it due again and repeats it: store rows are written before
the commit that makes them count, under the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rmgr.coord import nonces, validity
from rmgr.coord.decisions.keeping import (
    Bar,
    DropFailed,
    FailedSeen,
    Page,
    Resubmit,
    is_to_be_abandoned,
    is_to_be_broken_off,
)
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops.leader import Again, rule
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Multi, Outcome
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import NOTHING, decode_block, encode_fragment, join_page, read_fragment
from rmgr.daemons.leader.tree import LeaderContext, version_of
from rmgr.errors import DataLost, RmgrError
from rmgr.model.base.states import LOSSES
from rmgr.model.tasks import block as model
from rmgr.model.tasks.block import FailedRange, Fragment
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.procedures.bounded import outcomes_of_rows
from rmgr.procedures.history import history_rows, paged_with, summary
from rmgr.procedures.output_keys import delete_outputs
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.follow import Followed


class _Believed(NamedTuple):
    """A valid failed range. version: of its znode."""

    submission: Submission
    failed: FailedRange
    version: int


class ReconcileActions:
    """Carries out what `keeping.plan` decides, except sweeps, dependencies and collection."""

    def __init__(self, context: LeaderContext) -> None:
        self._tree, self._term, self._calls = context.tree, context.term, context.calls
        self._context = context
        self._put_back: set[int] = set()  # numbers of submissions found put back, each logged once

    # -- failed ranges

    def resubmit(self, followed: Followed, action: Resubmit) -> Story[bool]:
        """Puts a failed range back into its queue, or ends it."""
        found = yield from self._read_failed(followed, action)
        if isinstance(found, bool):
            return found
        submission, failed, version = found
        max_losses = self._context.settings.max_losses
        if self._waits(followed, action, failed, submission.backoff_us, max_losses):
            return True
        # Under a cap the block waits aside like the rest, and is brought back when there is room.
        gate = submission.phase is Phase.OPEN and not submission.max_running
        first, count, attempt = action.first, action.count, action.attempt
        multi, final = leader_ops.resubmit(submission, first, count, attempt, failed, version, gate=gate, max_losses=max_losses)
        failpoint("leader.before_resubmit")
        outcome = yield from self._settle(followed, action, multi)
        if isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NODE_EXISTS:
            self._term.log.error("resubmit_conflict", submission=followed.number, path=outcome.path)
        if not isinstance(outcome, Committed):
            return _was_done(outcome, _failed_path(followed, action))
        if final is None:
            self._term.metrics.requeued_blocks.inc()
            if followed.submission is not None and followed.submission.max_running:
                followed.swept = False
        else:
            self._term.metrics.given_up.inc(count)
        if final is not None or failed.reason in LOSSES:
            self._delete_outputs(followed, action, failed, is_final=final is not None)
        self._term.log.info(
            "failed_range_settled",
            submission=followed.number,
            first=first,
            count=count,
            attempt=attempt,
            reason=failed.reason,
            outcome="INITIAL" if final is None else f"FAILED/{final.reason}",
            epoch=self._term.epoch,
        )
        failpoint("leader.after_resubmit")
        return True

    def drop(self, followed: Followed, action: DropFailed) -> Story[bool]:
        """Ends a failed range of a cancelled submission as CANCELLED."""
        found = yield from self._read_failed(followed, action)
        if isinstance(found, bool):
            return found
        submission, failed, version = found
        multi = leader_ops.cancel_failed(
            submission, action.first, action.count, action.attempt, failed, version, reason=leader_ops.cancel_reason(submission)
        )
        failpoint("leader.before_drop_failed")
        outcome = yield from self._settle(followed, action, multi)
        if isinstance(outcome, Committed) and failed.reason in LOSSES:
            self._delete_outputs(followed, action, failed, is_final=False)
        return isinstance(outcome, Committed) or _was_done(outcome, _failed_path(followed, action))

    def _read_failed(self, followed: Followed, action: Resubmit | DropFailed) -> Story[_Believed | bool]:
        """Reads the range. Returns a bool instead if it is not to be settled as planned: whether that counts as success."""
        path = _failed_path(followed, action)
        found = yield self._tree.get(path)
        submission = followed.submission
        if found is None or submission is None:  # its owner was faster
            followed.failed.pop(_failed_name(action), None)
            followed.refresh_failed()
            return True
        if isinstance(action, Resubmit) and submission.phase is Phase.CANCELLED:
            return True  # the plan decides otherwise now
        try:
            failed = validity.decode(found.data, FailedRange, path)
            validity.check_failed(failed, submission, action.first, action.count, where=path)
        except RmgrError as error:  # the tasks end UNTRUSTED, and nothing of the record goes into a queue
            self._term.log.warning("failed_range_invalid", path=path, error=error.message, epoch=self._term.epoch)
            multi = leader_ops.distrust(submission, action.first, action.count, action.attempt, found.version, error.message)
            outcome = yield from self._settle(followed, action, multi)
            return isinstance(outcome, Committed) or _was_done(outcome, path)
        return _Believed(submission, failed, found.version)

    def _settle(self, followed: Followed, action: Resubmit | DropFailed, multi: Multi) -> Story[Outcome]:
        outcome: Outcome = yield self._tree.commit(multi)
        if isinstance(outcome, Committed):
            followed.failed.pop(_failed_name(action), None)
        else:
            followed.refresh_failed()
        return outcome

    def _waits(self, followed: Followed, action: Resubmit, failed: FailedRange, backoff_us: int, max_losses: int) -> bool:
        """Whether the back-off, known only after the record was read, still runs."""
        name = _failed_name(action)
        seen = followed.failed.get(name)
        if seen is None or seen.backoff_s is not None:
            return False
        ruling = rule(failed.reason, decode_block(failed.block), alone=failed.alone, backoff_us=backoff_us, max_losses=max_losses)
        backoff_s = max(failed.backoff_us, ruling.backoff_us if isinstance(ruling, Again) else 0) / 1e6
        followed.failed[name] = FailedSeen(seen.first, seen.count, seen.attempt, seen.seen_s, backoff_s)
        return seen.seen_s + backoff_s > self._tree.clock()

    def _delete_outputs(self, followed: Followed, action: Resubmit | DropFailed, failed: FailedRange, *, is_final: bool) -> None:
        submission, (first, count, attempt) = followed.submission, (action.first, action.count, action.attempt)
        if submission is not None:
            self._calls.store(lambda store: delete_outputs(store, submission, first, count, attempt, failed, is_final=is_final))

    # -- records

    def bar(self, followed: Followed, action: Bar) -> Story[bool]:
        """Holds or cancels a submission whose user's key was revoked."""
        assert followed.submission is not None
        changed, multi = leader_ops.barred(followed.submission, followed.version, cancels=action.cancels, detail=action.detail)
        facts = {"state": changed.phase, "why": changed.reason_detail}
        return (yield from self._change(followed, changed, multi, name="bar", event="submission_barred", **facts))

    def break_off(self, followed: Followed) -> Story[bool]:
        """Breaks off a submission with more failed tasks than its user allows."""
        submission, failures = followed.submission, followed.progress.failures
        assert submission is not None
        if not is_to_be_broken_off(submission, failures):  # cancelled meanwhile
            return True
        changed, multi = leader_ops.break_off(submission, followed.version, failures)
        event, why = "submission_broken_off", changed.reason_detail
        return (yield from self._change(followed, changed, multi, name="break_off", event=event, why=why))

    def abandon(self, followed: Followed) -> Story[bool]:
        """Ends a list of jobs that was never released: its submitter went away before the list was complete."""
        submission = followed.submission
        assert submission is not None
        if not is_to_be_abandoned(submission, followed.progress.tail):  # released just now
            return True
        changed, multi = leader_ops.abandoned(submission, followed.version)
        return (yield from self._change(followed, changed, multi, name="abandon", event="submission_abandoned"))

    def _change(self, followed: Followed, changed: Submission, multi: Multi, *, name: str, event: str, **facts: object) -> Story[bool]:
        """Commits a changed record. name: for its failpoints. event, facts: logged after the commit."""
        failpoint(f"leader.before_{name}")
        outcome = yield self._tree.commit(multi)
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.log.info(event, submission=followed.number, **facts, epoch=self._term.epoch)
        followed.put_record(changed, version_of(outcome))
        failpoint(f"leader.after_{name}")
        return True

    # -- the end

    def end_tail(self, followed: Followed) -> Story[bool]:
        """Ends the tail: no task will be added any more."""
        tail = replace(followed.progress.tail, complete=True, enqueued=f"leader-{self._term.epoch}")
        failpoint("leader.before_end_tail")
        outcome = yield self._tree.commit(leader_ops.end_tail(followed.number, tail, followed.tail_version))
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.log.info("tail_ended", submission=followed.number, total=tail.next, epoch=self._term.epoch)
        followed.put_tail(tail, version_of(outcome))
        return True

    def close(self, followed: Followed) -> Story[bool]:
        """Writes the summary to the history, then makes the record CLOSED.

        Does nothing for a record that was put back or rewritten: closing it would change the history of what has ended, and its end could
        not be recorded where Starters look (`coord/nonces.py`).
        """
        submission = followed.submission
        assert submission is not None
        path, nonce = nonces.place_of(submission), followed.nonce[1]
        if followed.nonce[0] != path or nonces.fault(submission, followed.made, nonce):
            nonce = yield self._tree.get(path)
        if why := nonces.fault(submission, followed.made, nonce):
            if followed.number not in self._put_back:
                self._put_back.add(followed.number)
                self._term.log.warning("ended_submission_put_back", submission=followed.number, why=why, epoch=self._term.epoch)
            return False
        known = tuple(followed.rows)
        ends = yield self._calls.store(read_rows, rows=known)
        submission = followed.submission
        if submission is None or submission.phase is Phase.CLOSED:
            return True
        for fragment, outcomes in ends:
            followed.progress.account(fragment, outcomes)
        del followed.rows[: len(known)]
        rows = history_rows(summary(submission, followed.progress, now_us=self._term.wall_us()), began=followed.progress.began)
        yield self._calls.store(lambda store: store.put_many(rows))
        submission = followed.submission
        if submission is None or submission.phase is Phase.CLOSED:
            return True
        closed, multi = leader_ops.close(submission, followed.version, now_us=self._term.wall_us(), gate=submission.phase is Phase.OPEN)
        followed.will_change()
        total = followed.progress.total
        is_closed = yield from self._change(followed, closed, multi, name="close", event="submission_closed", total=total)
        if is_closed:
            self._term.metrics.closed.inc()
        return is_closed

    # -- pages

    def page(self, followed: Followed, action: Page) -> Story[bool]:
        """Moves the oldest fragments to one row of the store; /done records that they are there."""
        wanted = [paths.fragment(followed.number, number) for number in range(action.first, action.first + action.count)]
        found = yield self._tree.get_all(wanted)
        encoded = [one.data for one in found if one is not None]
        if len(encoded) < action.count:  # another leader has paged them
            followed.refresh()
            return False
        fragments = tuple(map(read_fragment, encoded))
        # Stored unchanged, since a newer release may know more; an invalid fragment would spoil the page.
        kept = [encode_fragment(NOTHING) if known is NOTHING else data for known, data in zip(fragments, encoded, strict=True)]
        key, data = keys.page(followed.number, action.first), join_page(kept)
        paged, version = paged_with(followed.paged, fragments), followed.done_version
        yield self._calls.store(lambda store: store.put(key, data))
        if followed.paged.base != action.first:
            return True
        failpoint("leader.before_page")
        outcome = yield self._tree.commit(leader_ops.page(followed.number, paged, version, action.first, action.count))
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.metrics.pages.inc()
        followed.put_paged(paged, version_of(outcome))
        failpoint("leader.after_page")
        return True


def _failed_name(action: Resubmit | DropFailed) -> str:
    return f"{action.first}.{action.count}.{action.attempt}"


def _failed_path(followed: Followed, action: Resubmit | DropFailed) -> str:
    return paths.failed_range(followed.number, action.first, action.count, action.attempt)


def _was_done(outcome: Outcome, path: str) -> bool:
    """Whether the range was settled by another process: its record is gone."""
    return isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NO_NODE and outcome.path == path


def read_rows(store: Store, *, rows: Sequence[Fragment]) -> list[tuple[Fragment, tuple[model.Outcome, ...]]]:
    """Returns outcomes of fragments in rows, without results and output; skips missing rows. On a thread that may block."""
    by_row = {fragment.row: fragment for fragment in rows}
    found: list[tuple[Fragment, tuple[model.Outcome, ...]]] = []
    try:
        for row, outcomes in outcomes_of_rows(store, list(by_row)):
            found.append((by_row[row], tuple(msgspec.structs.replace(one, value=b"", error="", log=(b"", b"")) for one in outcomes)))
    except DataLost:
        return found
    return found
