"""Carries out reconcile actions for submissions: each reads what it needs, writes to the store where it must, commits one multi.

What is due is decided by `coord.keeping.plan`; every action here ends with `done(True)`, or with `done(False)` and is
tried again later if it is still due. A successor that finds an action half done finds it due again and does it again:
store rows are written before the commit that makes them count, under the same keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from rmgr.coord import nonces, validity
from rmgr.coord.decisions.keeping import (
    Abandon,
    Bar,
    BreakOff,
    Close,
    DropFailed,
    EndTail,
    FailedSeen,
    Page,
    Resubmit,
    abandoned,
    barred,
    break_off,
    cancel_reason,
    close,
    is_to_be_abandoned,
    is_to_be_broken_off,
)
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops.leader import Again, rule
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Holds, Multi, Outcome, Set, Stamped
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import NOTHING, decode_block, encode_fragment, encode_record, join_page, read_fragment
from rmgr.coord.views.closing import history_rows, paged_with, summary
from rmgr.daemons.leader.core.doors import LeaderCommits, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.tree import version_of
from rmgr.daemons.leader.submissions.doors import ChangingRecord, EndingSubmission, EndingTail, FailedRanges, PagedFragments
from rmgr.errors import DataLost, RmgrError
from rmgr.model.base.states import LOSSES
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks import block as model
from rmgr.model.tasks.block import FailedRange, Fragment
from rmgr.model.tasks.submission import Paged, Phase, Submission, Tail
from rmgr.procedures.bounded import outcomes_of_rows
from rmgr.procedures.output_keys import delete_outputs
from rmgr.runtime.failpoint import failpoint

Done = Callable[[bool], None]


class ReconcileActions:
    """The doing of what `keeping.plan` says, but for sweeps, dependencies and collection."""

    def __init__(self, tree: LeaderCommits, term: Term, calls: StoreCalls, settings: Callable[[], ClusterSettings]) -> None:
        self._tree = tree
        self._term = term
        self._calls = calls
        self._settings = settings
        self._put_back: set[int] = set()  # each is told once

    # -- failed ranges

    def resubmit(self, followed: FailedRanges, action: Resubmit, done: Done) -> None:
        """A failed range waits again, or ends."""
        self._read_failed(followed, action, partial(self._resubmit, followed, action, done), done)

    def _resubmit(self, followed: FailedRanges, action: Resubmit, done: Done, found: Stamped) -> None:
        submission = followed.submission
        assert submission is not None
        if submission.phase is Phase.CANCELLED:
            done(True)  # the plan says something else now
            return
        failed = self._believed(followed, action, done, found)
        if failed is None:
            return
        max_losses = self._settings().max_losses
        if self._waits(followed, action, failed, submission.backoff_us, max_losses):
            done(True)
            return
        # Under a cap it waits aside like the rest, and is brought back when there is room.
        gate = submission.phase is Phase.OPEN and not submission.max_running
        multi, final = leader_ops.resubmit(
            submission, action.first, action.count, action.attempt, failed, found.version, gate=gate, max_losses=max_losses
        )
        failpoint("leader.before_resubmit")
        self._tree.commit(multi, partial(self._resubmitted, followed, action, failed, final, done))

    def _believed(self, followed: FailedRanges, action: Resubmit | DropFailed, done: Done, found: Stamped) -> FailedRange | None:
        """The record, if it is what may stand there; else its tasks end UNTRUSTED, and nothing of it goes into any queue."""
        path, submission = _failed_path(followed, action), followed.submission
        assert submission is not None
        try:
            failed = validity.decode(found.data, FailedRange, path)
            validity.check_failed(failed, submission, action.first, action.count, where=path)
        except RmgrError as error:
            multi = leader_ops.distrust(submission, action.first, action.count, action.attempt, found.version, error.message)
            self._term.log.warning("failed_range_invalid", path=path, error=error.message, epoch=self._term.epoch)
            self._tree.commit(multi, partial(self._dropped, followed, action, done))
            return None
        return failed

    def _waits(self, followed: FailedRanges, action: Resubmit, failed: FailedRange, backoff_us: int, max_losses: int) -> bool:
        """Its back-off, known only now that the record was read, is not over."""
        name = f"{action.first}.{action.count}.{action.attempt}"
        seen = followed.failed.get(name)
        if seen is None or seen.backoff_s is not None:
            return False
        ruling = rule(failed.reason, decode_block(failed.block), alone=failed.alone, backoff_us=backoff_us, max_losses=max_losses)
        backoff_s = max(failed.backoff_us, ruling.backoff_us if isinstance(ruling, Again) else 0) / 1e6
        followed.failed[name] = FailedSeen(seen.first, seen.count, seen.attempt, seen.seen_s, backoff_s)
        return seen.seen_s + backoff_s > self._tree.clock()

    def _resubmitted(
        self, followed: FailedRanges, action: Resubmit, failed: FailedRange, final: model.Outcome | None, done: Done, outcome: Outcome
    ) -> None:
        if isinstance(outcome, Committed):
            self._told_of(followed, action)
            if final is None:
                self._term.metrics.requeued_blocks.inc()
                if followed.submission is not None and followed.submission.max_running:
                    followed.swept = False
            else:
                self._term.metrics.given_up.inc(action.count)
            if followed.submission is not None and (final is not None or failed.reason in LOSSES):
                call = partial(_forget_outputs, submission=followed.submission, action=action, failed=failed, is_final=final is not None)
                self._calls.store(call, lambda _: None, lambda _: None)
            self._term.log.info(
                "failed_range_settled",
                submission=followed.number,
                first=action.first,
                count=action.count,
                attempt=action.attempt,
                reason=failed.reason,
                outcome="INITIAL" if final is None else f"FAILED/{final.reason}",
                epoch=self._term.epoch,
            )
            failpoint("leader.after_resubmit")
        else:
            if isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NODE_EXISTS:
                self._term.log.error("resubmit_conflict", submission=followed.number, path=outcome.path)
            followed.refresh_failed()
        done(isinstance(outcome, Committed) or _was_done(outcome, _failed_path(followed, action)))

    def drop(self, followed: FailedRanges, action: DropFailed, done: Done) -> None:
        """A failed range of a cancelled submission ends CANCELLED."""
        self._read_failed(followed, action, partial(self._drop, followed, action, done), done)

    def _drop(self, followed: FailedRanges, action: DropFailed, done: Done, found: Stamped) -> None:
        submission = followed.submission
        assert submission is not None
        failed = self._believed(followed, action, done, found)
        if failed is None:
            return
        multi = leader_ops.cancel_failed(
            submission, action.first, action.count, action.attempt, failed, found.version, reason=cancel_reason(submission)
        )
        failpoint("leader.before_drop_failed")
        clean = partial(_forget_outputs, submission=submission, action=action, failed=failed, is_final=False)
        self._tree.commit(multi, partial(self._dropped, followed, action, done, clean=clean if failed.reason in LOSSES else None))

    def _dropped(
        self,
        followed: FailedRanges,
        action: Resubmit | DropFailed,
        done: Done,
        outcome: Outcome,
        *,
        clean: Callable[[Store], None] | None = None,
    ) -> None:
        if isinstance(outcome, Committed):
            self._told_of(followed, action)
            if clean is not None:
                self._calls.store(clean, lambda _: None, lambda _: None)
        else:
            followed.refresh_failed()
        done(isinstance(outcome, Committed) or _was_done(outcome, _failed_path(followed, action)))

    def _read_failed(self, followed: FailedRanges, action: Resubmit | DropFailed, then: Callable[[Stamped], None], done: Done) -> None:
        def arrived(found: Stamped | None) -> None:
            if found is None or followed.submission is None:  # its owner was faster
                self._told_of(followed, action)
                followed.refresh_failed()
                done(True)
            else:
                then(found)

        self._tree.get(_failed_path(followed, action), arrived, failed=partial(done, False))

    def _told_of(self, followed: FailedRanges, action: Resubmit | DropFailed) -> None:
        followed.failed.pop(f"{action.first}.{action.count}.{action.attempt}", None)

    # -- revoked

    def bar(self, followed: ChangingRecord, action: Bar, done: Done) -> None:
        """The key of its user was revoked."""
        submission = followed.submission
        assert submission is not None
        changed, multi = barred(submission, followed.version, action)
        self._change(followed, changed, multi, done, name="bar", event="submission_barred", state=changed.phase, why=changed.reason_detail)

    # -- too many failures

    def break_off(self, followed: ChangingRecord, _action: BreakOff, done: Done) -> None:
        """More of its tasks have failed than its user allows."""
        submission, failures = followed.submission, followed.progress.failures
        assert submission is not None
        if not is_to_be_broken_off(submission, failures):  # somebody has cancelled it meanwhile
            done(True)
            return
        changed, multi = break_off(submission, followed.version, failures)
        self._change(followed, changed, multi, done, name="break_off", event="submission_broken_off", why=changed.reason_detail)

    # -- a list of jobs that was never released

    def abandon(self, followed: ChangingRecord, _action: Abandon, done: Done) -> None:
        """Who submitted it went before it was all there."""
        submission = followed.submission
        assert submission is not None
        if not is_to_be_abandoned(submission, followed.progress.tail):  # it was released just now
            done(True)
            return
        changed, multi = abandoned(submission, followed.version)
        self._change(followed, changed, multi, done, name="abandon", event="submission_abandoned")

    # -- the end

    def end_tail(self, followed: EndingTail, _action: EndTail, done: Done) -> None:
        """Nothing will be added any more."""
        tail = replace(followed.progress.tail, complete=True, enqueued=f"leader-{self._term.epoch}")
        path = paths.tail(followed.number)
        data = encode_record(tail)
        multi = Multi(name="END_TAIL", ops=(Set(path, data, followed.tail_version),), proof=Holds(path, data))
        failpoint("leader.before_end_tail")
        self._tree.commit(multi, partial(self._tail_ended, followed, tail, done))

    def _tail_ended(self, followed: EndingTail, tail: Tail, done: Done, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._term.log.info("tail_ended", submission=followed.number, total=tail.next, epoch=self._term.epoch)
            followed.put_tail(tail, version_of(outcome))
        else:
            followed.refresh()
        done(isinstance(outcome, Committed))

    def close(self, followed: EndingSubmission, _action: Close, done: Done) -> None:
        """The summary goes to the history, then the record becomes CLOSED.

        Nothing is done for a record that somebody has put back, or rewritten: it would change the history of what has ended, and its end
        could not be said where Starters look (`coord/nonces.py`).
        """
        submission = followed.submission
        assert submission is not None
        path, then = nonces.place_of(submission), partial(self._on_nonce, followed, submission, done)
        if followed.nonce[0] == path and not nonces.fault(submission, followed.made, followed.nonce[1]):
            then(followed.nonce[1])
        else:
            self._tree.get(path, then, failed=partial(done, False))

    def _on_nonce(self, followed: EndingSubmission, submission: Submission, done: Done, found: Stamped | None) -> None:
        if why := nonces.fault(submission, followed.made, found):
            if followed.number not in self._put_back:
                self._put_back.add(followed.number)
                self._term.log.warning("ended_submission_put_back", submission=followed.number, why=why, epoch=self._term.epoch)
            done(False)
            return
        rows = followed.rows
        self._calls.store(partial(_read_rows, rows=rows), partial(self._summarise, followed, len(rows), done), lambda _: done(False))

    def _summarise(
        self, followed: EndingSubmission, known: int, done: Done, found: list[tuple[Fragment, tuple[model.Outcome, ...]]]
    ) -> None:
        submission = followed.submission
        if submission is None or submission.phase is Phase.CLOSED:
            done(True)
            return
        for fragment, outcomes in found:
            followed.progress.account(fragment, outcomes)
        del followed.rows[:known]
        rows = history_rows(summary(submission, followed.progress, now_us=self._term.wall_us()), began=followed.progress.began)
        self._calls.store(lambda store: store.put_many(rows), lambda _: self._close(followed, done), lambda _: done(False))

    def _close(self, followed: EndingSubmission, done: Done) -> None:
        submission = followed.submission
        if submission is None or submission.phase is Phase.CLOSED:
            done(True)
            return
        gate = submission.phase is Phase.OPEN
        closed, multi = close(submission, followed.version, now_us=self._term.wall_us(), gate=gate)
        followed.will_change()
        ended = self._term.metrics.closed.inc
        self._change(followed, closed, multi, done, name="close", event="submission_closed", then=ended, total=followed.progress.total)

    def _change(
        self,
        followed: ChangingRecord,
        changed: Submission,
        multi: Multi,
        done: Done,
        *,
        name: str,
        event: str,
        then: Callable[[], object] = lambda: None,
        **facts: object,
    ) -> None:
        """Commits a record that is another now. name: in its failpoints. event, facts: are logged, `then` called once it is committed."""

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, Committed):
                then()
                self._term.log.info(event, submission=followed.number, **facts, epoch=self._term.epoch)
                followed.put_record(changed, version_of(outcome))
                failpoint(f"leader.after_{name}")
            else:
                followed.refresh()
            done(isinstance(outcome, Committed))

        failpoint(f"leader.before_{name}")
        self._tree.commit(multi, answered)

    # -- pages

    def page(self, followed: PagedFragments, action: Page, done: Done) -> None:
        """The oldest fragments go to one row of the store; /done says that they are there."""
        fragments: list[bytes] = []
        last = action.first + action.count - 1

        def arrived(found: Stamped | None) -> None:
            if found is not None:
                fragments.append(found.data)

        def complete(found: Stamped | None) -> None:
            arrived(found)
            if len(fragments) == action.count:
                self._write_page(followed, action, fragments, done)
            else:  # paged by somebody else
                followed.refresh()
                done(False)

        for number in range(action.first, last):
            self._tree.get(paths.fragment(followed.number, number), arrived)
        self._tree.get(paths.fragment(followed.number, last), complete, failed=partial(done, False))

    def _write_page(self, followed: PagedFragments, action: Page, encoded: list[bytes], done: Done) -> None:
        fragments = tuple(read_fragment(data) for data in encoded)
        # As they are: a newer release may know more. What is no fragment would spoil the page.
        kept = [encode_fragment(NOTHING) if known is NOTHING else data for known, data in zip(fragments, encoded, strict=True)]
        key, data = keys.page(followed.number, action.first), join_page(kept)
        paged, version = paged_with(followed.paged, fragments), followed.done_version

        def commit(_: None) -> None:
            if followed.paged.base != action.first:
                done(True)
                return
            failpoint("leader.before_page")
            multi = leader_ops.page(followed.number, paged, version, action.first, action.count)
            self._tree.commit(multi, partial(self._paged, followed, paged, done))

        self._calls.store(lambda store: store.put(key, data), commit, lambda _: done(False))

    def _paged(self, followed: PagedFragments, paged: Paged, done: Done, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._term.metrics.pages.inc()
            followed.put_paged(paged, version_of(outcome))
            failpoint("leader.after_page")
        else:
            followed.refresh()
        done(isinstance(outcome, Committed))


def _failed_path(followed: FailedRanges, action: Resubmit | DropFailed) -> str:
    return paths.failed_range(followed.number, action.first, action.count, action.attempt)


def _was_done(outcome: Outcome, path: str) -> bool:
    """Somebody else has settled it: its record is gone."""
    return isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NO_NODE and outcome.path == path


def _read_rows(store: Store, *, rows: list[Fragment]) -> list[tuple[Fragment, tuple[model.Outcome, ...]]]:
    """Outcomes of fragments that lie in rows, without results and output; a row that is gone tells nothing. On a thread that may wait."""
    by_row = {fragment.row: fragment for fragment in rows}
    found: list[tuple[Fragment, tuple[model.Outcome, ...]]] = []
    try:
        for row, outcomes in outcomes_of_rows(store, list(by_row)):
            found.append((by_row[row], tuple(msgspec.structs.replace(one, value=b"", error="", log=(b"", b"")) for one in outcomes)))
    except DataLost:
        return found
    return found


def _forget_outputs(store: Store, *, submission: Submission, action: Resubmit | DropFailed, failed: FailedRange, is_final: bool) -> None:
    delete_outputs(store, submission, action.first, action.count, action.attempt, failed, is_final=is_final)
