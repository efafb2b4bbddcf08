"""Carries out reconcile actions for submissions: each reads what it needs, writes to the store if necessary, and commits one multi.

`coord.keeping.plan` decides what is due. Every action here is a story that ends with whether it succeeded; if not, it is tried again
later while it is still due. A successor that finds an action half done finds it due again and repeats it: store rows are written before
the commit that makes them count, under the same keys.

Collection removes what an ended submission leaves behind after its retention; named outputs stay. Their values are copied to their final
rows, then the znodes are deleted (children first, the record last), then the rows. A scan that skips from submission to submission finds
rows left over because a collector died in between or a zombie wrote afterwards. Logs and single values expire by themselves. Summaries in
the history have a retention of their own. Functions, modules and files are shared: `coord/contents.py` decides when one is deleted.
A final row goes once no key points to it any more: the key was deleted, or another task or value has replaced the output.

The znode of a nonce stays until nothing can be submitted under it any more (`coord/nonces.py`). The names of nonces contain the time when
they were drawn; nonces of existing submissions stay. The time is ZooKeeper's, which Starters also use: the time of `/epoch` when this
leadership began, plus the time since.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rmgr.coord import contents, nonces, validity
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops.leader import Again, forget_nonces, removal, rule
from rmgr.coord.ops.work import token_digest
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Multi, Outcome
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.coord.protocol.records import NOTHING, decode_block, encode_fragment, join_page, read_fragment
from rmgr.daemons.leader.term import Term, version_of
from rmgr.errors import DataLost, RmgrError
from rmgr.model.block import FailedRange, Fragment
from rmgr.model.block import Outcome as TaskOutcome
from rmgr.model.states import LOSSES
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.procedures.bounded import outcomes_of_rows, page_at
from rmgr.procedures.history import ended_before, forget, history_rows, kept_outputs, oldest_end, paged_with, summary
from rmgr.procedures.output_keys import delete_outputs
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Story, each

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.follow import Followed
    from rmgr.daemons.leader.submissions.subs import SubmissionKeeper

#: Rows deleted by one task of the store thread; between two tasks the thread does other things.
ROWS_A_TURN = 200
#: Interval between looks for orphaned rows, and between sweeps of expired rows.
ORPHANS_S = 3600.0
SWEEP_S = 600.0
#: Interval between looks for functions, modules and files that no submission needs, and for outputs to which no key points.
CONTENTS_S = 6 * 3600.0
#: Interval between looks for old summaries, and for old nonces.
LOOK_S, NONCES_S = 3600.0, 600.0
#: Fragments read at once, summaries removed by one task of the store thread, nonces deleted by one multi.
SETTLED, _A_TURN, _TOGETHER = 1000, 100, 180
_TOP = "\U0010ffff"
#: Final rows that are compared with the keys at once: 15 MB.
MOST_OUTPUTS = 100_000


class _Believed(NamedTuple):
    """A valid failed range. version: of its znode."""

    submission: Submission
    failed: FailedRange
    version: int


class ReconcileActions:
    """Carries out what `keeping.plan` decides, except sweeps, dependencies and collection."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._put_back: set[int] = set()  # numbers of submissions found put back, each logged once

    # -- failed ranges

    def resubmit(self, followed: Followed, action: keeping.Resubmit) -> Story[bool]:
        """Puts a failed range back into its queue, or ends it."""
        found = yield from self._read_failed(followed, action)
        if isinstance(found, bool):
            return found
        submission, failed, version = found
        max_losses = self._term.settings.max_losses
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
        what = {"first": first, "count": count, "attempt": attempt, "reason": failed.reason}
        how = "INITIAL" if final is None else f"FAILED/{final.reason}"
        self._term.log.info("failed_range_settled", submission=followed.number, **what, outcome=how)
        failpoint("leader.after_resubmit")
        return True

    def drop(self, followed: Followed, action: keeping.DropFailed) -> Story[bool]:
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

    def _read_failed(self, followed: Followed, action: keeping.Resubmit | keeping.DropFailed) -> Story[_Believed | bool]:
        """Reads the range. Returns a bool instead if it is not to be settled as planned: whether that counts as success."""
        path = _failed_path(followed, action)
        found = yield self._term.get(path)
        submission = followed.submission
        if found is None or submission is None:  # its owner was faster
            followed.failed.pop(_failed_name(action), None)
            followed.refresh_failed()
            return True
        if isinstance(action, keeping.Resubmit) and submission.phase is Phase.CANCELLED:
            return True  # the plan decides otherwise now
        try:
            failed = validity.decode(found.data, FailedRange, path)
            validity.check_failed(failed, submission, action.first, action.count, where=path)
        except RmgrError as error:  # the tasks end UNTRUSTED, and nothing of the record goes into a queue
            self._term.log.warning("failed_range_invalid", path=path, error=error.message)
            multi = leader_ops.distrust(submission, action.first, action.count, action.attempt, found.version, error.message)
            outcome = yield from self._settle(followed, action, multi)
            return isinstance(outcome, Committed) or _was_done(outcome, path)
        return _Believed(submission, failed, found.version)

    def _settle(self, followed: Followed, action: keeping.Resubmit | keeping.DropFailed, multi: Multi) -> Story[Outcome]:
        outcome: Outcome = yield self._term.commit(multi)
        if isinstance(outcome, Committed):
            followed.failed.pop(_failed_name(action), None)
        else:
            followed.refresh_failed()
        return outcome

    def _waits(self, followed: Followed, action: keeping.Resubmit, failed: FailedRange, backoff_us: int, max_losses: int) -> bool:
        """Whether the back-off, known only after the record was read, still runs."""
        name = _failed_name(action)
        seen = followed.failed.get(name)
        if seen is None or seen.backoff_s is not None:
            return False
        ruling = rule(failed.reason, decode_block(failed.block), alone=failed.alone, backoff_us=backoff_us, max_losses=max_losses)
        backoff_s = max(failed.backoff_us, ruling.backoff_us if isinstance(ruling, Again) else 0) / 1e6
        followed.failed[name] = keeping.FailedSeen(seen.first, seen.count, seen.attempt, seen.seen_s, backoff_s)
        return seen.seen_s + backoff_s > self._term.clock()

    def _delete_outputs(
        self, followed: Followed, action: keeping.Resubmit | keeping.DropFailed, failed: FailedRange, *, is_final: bool
    ) -> None:
        submission, (first, count, attempt) = followed.submission, (action.first, action.count, action.attempt)
        if submission is not None:
            self._term.in_store(lambda store: delete_outputs(store, submission, first, count, attempt, failed, is_final=is_final))

    # -- records

    def bar(self, followed: Followed, action: keeping.Bar) -> Story[bool]:
        """Holds or cancels a submission whose user's key was revoked."""
        assert followed.submission is not None
        changed, multi = leader_ops.barred(followed.submission, followed.version, cancels=action.cancels, detail=action.detail)
        facts = {"state": changed.phase, "why": changed.reason_detail}
        return (yield from self._change(followed, changed, multi, name="bar", event="submission_barred", **facts))

    def break_off(self, followed: Followed) -> Story[bool]:
        """Breaks off a submission with more failed tasks than its user allows."""
        submission, failures = followed.submission, followed.progress.failures
        assert submission is not None
        if not keeping.is_to_be_broken_off(submission, failures):  # cancelled meanwhile
            return True
        changed, multi = leader_ops.break_off(submission, followed.version, failures)
        event, why = "submission_broken_off", changed.reason_detail
        return (yield from self._change(followed, changed, multi, name="break_off", event=event, why=why))

    def abandon(self, followed: Followed) -> Story[bool]:
        """Ends a list of jobs that was never released: its submitter went away before the list was complete."""
        submission = followed.submission
        assert submission is not None
        if not keeping.is_to_be_abandoned(submission, followed.progress.tail):  # released just now
            return True
        changed, multi = leader_ops.abandoned(submission, followed.version)
        return (yield from self._change(followed, changed, multi, name="abandon", event="submission_abandoned"))

    def _change(self, followed: Followed, changed: Submission, multi: Multi, *, name: str, event: str, **facts: object) -> Story[bool]:
        """Commits a changed record. name: for its failpoints. event, facts: logged after the commit."""
        failpoint(f"leader.before_{name}")
        outcome = yield self._term.commit(multi)
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.log.info(event, submission=followed.number, **facts)
        followed.put_record(changed, version_of(outcome))
        failpoint(f"leader.after_{name}")
        return True

    # -- the end

    def end_tail(self, followed: Followed) -> Story[bool]:
        """Ends the tail: no task will be added any more."""
        tail = replace(followed.progress.tail, complete=True, enqueued=f"leader-{self._term.epoch}")
        failpoint("leader.before_end_tail")
        outcome = yield self._term.commit(leader_ops.end_tail(followed.number, tail, followed.tail_version))
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.log.info("tail_ended", submission=followed.number, total=tail.next)
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
            nonce = yield self._term.get(path)
        if why := nonces.fault(submission, followed.made, nonce):
            if followed.number not in self._put_back:
                self._put_back.add(followed.number)
                self._term.log.warning("ended_submission_put_back", submission=followed.number, why=why)
            return False
        known = tuple(followed.rows)
        ends = yield self._term.in_store(read_rows, rows=known)
        submission = followed.submission
        if submission is None or submission.phase is Phase.CLOSED:
            return True
        for fragment, outcomes in ends:
            followed.progress.account(fragment, outcomes)
        del followed.rows[: len(known)]
        rows = history_rows(summary(submission, followed.progress, now_us=self._term.wall_us()), began=followed.progress.began)
        yield self._term.in_store(lambda store: store.put_many(rows))
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

    def page(self, followed: Followed, action: keeping.Page) -> Story[bool]:
        """Moves the oldest fragments to one row of the store; /done records that they are there."""
        wanted = [paths.fragment(followed.number, number) for number in range(action.first, action.first + action.count)]
        found = yield self._term.get_all(wanted)
        encoded = [one.data for one in found if one is not None]
        if len(encoded) < action.count:  # another leader has paged them
            followed.refresh()
            return False
        fragments = tuple(map(read_fragment, encoded))
        # Stored unchanged, since a newer release may know more; an invalid fragment would spoil the page.
        kept = [encode_fragment(NOTHING) if known is NOTHING else data for known, data in zip(fragments, encoded, strict=True)]
        key, data = keys.page(followed.number, action.first), join_page(kept)
        paged, version = paged_with(followed.paged, fragments), followed.done_version
        yield self._term.in_store(lambda store: store.put(key, data))
        if followed.paged.base != action.first:
            return True
        failpoint("leader.before_page")
        outcome = yield self._term.commit(leader_ops.page(followed.number, paged, version, action.first, action.count))
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self._term.metrics.pages.inc()
        followed.put_paged(paged, version_of(outcome))
        failpoint("leader.after_page")
        return True


def _failed_name(action: keeping.Resubmit | keeping.DropFailed) -> str:
    return f"{action.first}.{action.count}.{action.attempt}"


def _failed_path(followed: Followed, action: keeping.Resubmit | keeping.DropFailed) -> str:
    return paths.failed_range(followed.number, action.first, action.count, action.attempt)


def _was_done(outcome: Outcome, path: str) -> bool:
    """Whether the range was settled by another process: its record is gone."""
    return isinstance(outcome, Conflict) and outcome.kind is ConflictKind.NO_NODE and outcome.path == path


def read_rows(store: Store, *, rows: Sequence[Fragment]) -> list[tuple[Fragment, tuple[TaskOutcome, ...]]]:
    """Returns outcomes of fragments in rows, without results and output; skips missing rows. On a thread that may block."""
    by_row = {fragment.row: fragment for fragment in rows}
    found: list[tuple[Fragment, tuple[TaskOutcome, ...]]] = []
    try:
        for row, outcomes in outcomes_of_rows(store, list(by_row)):
            found.append((by_row[row], tuple(msgspec.structs.replace(one, value=b"", error="", log=(b"", b"")) for one in outcomes)))
    except DataLost:
        return found
    return found


class Collector:
    """Collects submissions one at a time, so that thousands do not fill the pipeline; also looks now and then for other expired data."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self._last: Future[None] = Future()  # the end of the collection begun last
        self._last.set_result(None)
        self._unnamed: set[str] = set()  #: final rows to which no key pointed at the last look

    def start(self) -> None:
        """Starts the periodic looks."""
        self._term.every(ORPHANS_S, self._purge_orphans, "orphaned rows")
        self._term.every(SWEEP_S, self._sweep_store, "expired rows")
        self._term.every(CONTENTS_S, self._forget_contents, "functions, modules and files")
        self._term.every(CONTENTS_S, self._forget_outputs, "outputs that were replaced")
        self._term.every(LOOK_S, self._forget_history, "the history")
        self._term.every(NONCES_S, self._forget_nonces, paths.NONCES)

    # -- submissions

    def collect(self, followed: Followed) -> Story[bool]:
        """Removes a submission whose retention is over, when its turn comes."""
        before, self._last = self._last, Future()
        mine = self._last
        try:
            yield before
            return (yield from self._collect(followed))
        finally:
            mine.set_result(None)

    def _collect(self, followed: Followed) -> Story[bool]:
        submission, number, term = followed.submission, followed.number, self._term
        assert submission is not None
        digest = token_digest(submission.user, submission.token)
        parents = (paths.done(number), paths.failed(number))
        znodes = (term.get(paths.tail(number)), term.stat(paths.gate(number)), term.stat(paths.token(digest)))
        asked: tuple[Future[Any], ...] = (*map(term.children, parents), *znodes)
        done, failed, tail, gate, token = yield from each(asked)
        if done is None or failed is None or tail is None:
            return False  # unreadable for a moment
        children = {parents[0]: sorted(done), parents[1]: sorted(failed)}
        fragments: list[Fragment] = []  # all fragments still in ZooKeeper: they name the outputs to keep
        for at in range(0, len(done), SETTLED):
            found = yield term.get_all([f"{parents[0]}/{name}" for name in children[parents[0]][at : at + SETTLED]])
            fragments += [read_fragment(one.data) for one in found if one is not None]
        if len(fragments) < len(done):
            return False
        counted, base = validity.tail(tail, number), followed.paged.base
        try:
            yield self._term.in_store(keep_outputs, number=number, tail=counted, base=base, fragments=fragments)
        except RmgrError as error:
            self._term.log.warning("outputs_not_kept", submission=number, error=error.message)
            return False
        submission = followed.submission
        if submission is None:
            return True
        for multi in removal(submission, digest, children, has_gate=gate is not None, has_token=token is not None):
            failpoint("leader.before_collect")
            outcome = yield term.commit(multi)
            if not isinstance(outcome, Committed):
                followed.refresh()
                return False
            failpoint("leader.after_collect")
        self._term.metrics.collected.inc()
        self._term.log.info("submission_collected", submission=number)
        yield from self._purge(number)
        return True

    def _purge(self, number: int) -> Story[None]:
        """Deletes the rows of a collected submission in portions; the scan finds what is left after an error."""
        try:
            while (yield self._term.in_store(_delete_some, number=number)):
                pass
        except RmgrError:
            return

    # -- other expired data

    def _purge_orphans(self) -> Story[None]:
        for number in (yield self._term.in_store(stored_submissions)):
            if number not in self._keeper.followed and (yield self._term.stat(paths.sub(number))) is None:
                self._term.log.info("orphaned_rows_found", submission=number)
                yield from self._purge(number)

    def _sweep_store(self) -> Story[None]:
        removed = yield self._term.in_store(lambda store: store.sweep(now_ms=self._term.wall_us() // 1000))
        if removed:
            self._term.log.info("store_swept", total=removed)

    def _forget_contents(self) -> Story[None]:
        """Deletes rows named by their content that no submission needs. Cost: one look at each; 3 us a submission if a row may go."""
        now_s = self._term.wall_us() / 1e6
        old: dict[str, bytes] = {}
        for family in sorted(keys.BY_CONTENT):
            after = ""
            while some := (yield self._term.in_store(_marks, prefix=f"{family}/", after=after, now_s=now_s)):
                after = max(some)
                old |= {key: note for key, note in some.items() if contents.is_old(note, now_s)}
        needs = self._keeper.needs() if old else None
        if needs is None:
            return
        over, removed = [key for key, note in old.items() if not needs.may_name(key, note)], 0
        for at in range(0, len(over), _A_TURN):
            marks = {key: old[key] for key in over[at : at + _A_TURN]}
            removed += yield self._term.in_store(remove_contents, marks=marks)
        if removed:
            self._term.log.info("contents_removed", total=removed)

    def _forget_outputs(self) -> Story[None]:
        """Deletes final rows to which no key points at two looks in a row: one list of keys may be incomplete while a store's node is away.

        Cost: a list of the final rows; a read of every key for each `MOST_OUTPUTS` of them.
        """
        unnamed: set[str] = set()
        some, last = [""], ""
        while some and len(unnamed) < MOST_OUTPUTS:
            left: set[str] = set()
            while len(left) < MOST_OUTPUTS and (some := (yield self._term.in_store(_rows_after, prefix=keys.FINAL, after=last))):
                left.update(some)
                last = some[-1]
            name = ""
            while left and (names := (yield self._term.in_store(_rows_after, prefix=keys.named_prefix(), after=name))):
                left -= yield self._term.in_store(_pointed_to, names=names)
                name = names[-1]
            unnamed |= left
        over, self._unnamed = sorted(unnamed & self._unnamed), unnamed - self._unnamed
        removed = 0
        for at in range(0, len(over), _A_TURN):
            removed += len((yield self._term.in_store(_delete_rows, rows=over[at : at + _A_TURN])))
        if removed:
            self._term.log.info("outputs_removed", total=removed)

    def _forget_history(self) -> Story[None]:
        """Deletes summaries of submissions older than the retention; a failure is retried at the next look."""
        retention_us = self._term.settings.history_retention_us
        if not retention_us:
            return
        before_us, removed, some = self._term.wall_us() - retention_us, 0, _A_TURN
        while some == _A_TURN:
            some = yield self._term.in_store(_remove_some, before_us=before_us)
            removed += some
        if removed:
            self._term.log.info("history_purged", total=removed)

    def _forget_nonces(self) -> Story[None]:
        """Deletes nonces under which nothing can be submitted any more. Cost: 1 us a name; 2 us a submission if one goes."""
        now_s = self._term.wall_us() / 1e6
        names = yield self._term.children(paths.NONCES)
        over = [f"{paths.NONCES}/{name}" for name in names or () if nonces.is_over(name, now_s)]
        used = self._keeper.used_nonces() if over else None
        gone = [path for path in over if path not in used] if used is not None else []
        while gone:
            some = gone[:_TOGETHER]
            failpoint("leader.before_forget_nonces")
            outcome = yield self._term.commit(forget_nonces(some))
            match outcome:
                case Committed():
                    self._term.log.info("nonces_forgotten", total=len(some))
                    gone = gone[_TOGETHER:]
                case Conflict(path=path) if path in some:  # its creator may have put something below it: it stays, and the others go
                    gone.remove(path)
                case _:
                    return  # the next look tries again


def prefixes(number: int) -> tuple[str, ...]:
    """Returns prefixes of the rows that are deleted with a submission; its logs stay until they expire."""
    return tuple(prefix for prefix in keys.prefixes_of(number) if prefix != keys.logs_of(number))


def _delete_some(store: Store, *, number: int) -> bool:
    left = ROWS_A_TURN
    for prefix in prefixes(number):
        for key in store.keys(prefix, limit=left):
            store.delete(key)
            left -= 1
        if left <= 0:
            return True
    return False


def _marks(store: Store, *, prefix: str, after: str, now_s: float) -> dict[str, bytes]:
    """Returns the next rows with this prefix, and their marks; rows of an older release get a mark. On a thread that may block."""
    found = {}
    for key, about in store.about_many(store.keys(prefix, after=after, limit=_A_TURN)).items():
        found[key] = about.note
        if not contents.is_marked(about.note, now_s) and (value := store.stream(key)) is not None:
            found[key] = contents.mark(now_s)
            store.put(key, value, encoding=about.encoding, note=found[key])
    return found


def _rows_after(store: Store, *, prefix: str, after: str) -> list[str]:
    return store.keys(prefix, after=after, limit=SETTLED)


def _pointed_to(store: Store, *, names: list[str]) -> set[str]:
    """Returns the final rows of the pointers among these rows. On a thread that may block."""
    found: set[str] = set()
    for data, about in store.get_noted_many(names, largest=keys.POINTER_BYTES).values():
        if about.encoding is Encoding.POINTER and data is not None:
            with suppress(DataLost):  # whoever reads it is told so
                found.add(keys.final(keys.decode_pointer(data)))
    return found


def _delete_rows(store: Store, *, rows: list[str]) -> list[str]:
    return store.delete_many(rows)


def remove_contents(store: Store, *, marks: dict[str, bytes]) -> int:
    """Removes rows whose marks were not renewed since; returns how many. On a thread that may block."""
    there = store.about_many(list(marks))
    return len(store.delete_many([key for key, about in there.items() if about.note == marks[key]]))


def stored_submissions(store: Store) -> list[int]:
    """Returns the numbers of all submissions that have rows. Cost: one look for each. On a thread that may block."""
    found: set[int] = set()
    for prefix in prefixes(0):
        family = prefix.partition("/")[0] + "/"
        after = ""
        while names := store.keys(family, after=after, limit=1):
            number = names[0].split("/")[1]
            if len(number) == 10 and number.isascii() and number.isdecimal():  # the form that keys have
                found.add(int(number))
            after = f"{family}{number}/{_TOP}"
    return sorted(found)


def keep_outputs(store: Store, *, number: int, tail: Tail, base: int, fragments: list[Fragment]) -> int:
    """Copies the values of all named outputs to their final rows; returns how many. On a thread that may block."""
    known = EndFold()
    ends: list[tuple[Fragment, TaskOutcome]] = []
    for fragment in [*paged(store, number, base), *fragments]:
        outcomes = next((found for _, found in outcomes_of_rows(store, [fragment.row])), ()) if fragment.row else fragment.outcomes
        ends += [(fragment, outcome) for outcome in known.fold(outcomes, tail.next) if outcome.outputs]
    copied = 0
    for source, target in kept_outputs(number, tail, ends):
        about = store.about(source)
        if about is None or store.head(target) is not None:
            continue
        try:
            value = store.stream(source)
            if value is not None:  # with its deed, which records where it was written
                store.put(target, value, encoding=about.encoding, note=about.note)
                copied += 1
        except DataLost:
            continue  # it was unreadable under its old name, too
    return copied


def paged(store: Store, number: int, base: int) -> list[Fragment]:
    found: list[Fragment] = []
    while len(found) < base:
        try:
            found += page_at(store, number, len(found))
        except DataLost:
            break
    return found


def _remove_some(store: Store, *, before_us: int) -> int:
    """Removes up to `_A_TURN` summaries; returns how many. On a thread that may block."""
    old = list(islice(ended_before(store, before_us, after=oldest_end(store, before_us)), _A_TURN))
    for view in old:
        forget(store, view)
    return len(old)
