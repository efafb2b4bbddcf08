"""Collection: removes what an ended submission leaves behind after its retention; named outputs stay.

Order: the values of named outputs are copied to their final rows, then the znodes are deleted (children first, the record last), then the
rows. A scan that skips from submission to submission finds rows left over because a collector died in between or a zombie wrote afterwards.
Logs and single values expire by themselves. Summaries in the history have a retention of their own. Functions, modules and files are
shared: `coord/contents.py` decides when one is deleted.

The znode of a nonce stays until nothing can be submitted under it any more (`coord/nonces.py`). The names of nonces contain the time when
they were drawn; nonces of existing submissions stay. The time is ZooKeeper's, which Starters also use: the time of `/epoch` when this
leadership began, plus the time since.
"""

from __future__ import annotations

from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmgr.coord import contents, nonces, validity
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.ops.leader import forget_nonces, removal
from rmgr.coord.ops.work import token_digest
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Conflict
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import DataLost, RmgrError
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.block import Outcome as TaskOutcome
from rmgr.model.tasks.submission import Tail
from rmgr.procedures.bounded import outcomes_of_rows, page_at
from rmgr.procedures.history import ended_before, forget, kept_outputs, oldest_end
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
#: Interval between looks for functions, modules and files that no submission needs.
CONTENTS_S = 6 * 3600.0
#: Interval between looks for old summaries, and for old nonces.
LOOK_S, NONCES_S = 3600.0, 600.0
#: Fragments read at once, summaries removed by one task of the store thread, nonces deleted by one multi.
_SETTLED, _A_TURN, _TOGETHER = 1000, 100, 180
_TOP = "\U0010ffff"


class Collector:
    """Collects submissions one at a time, so that thousands do not fill the pipeline; also looks now and then for other expired data."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._context = context = keeper.context
        self._tree, self._term, self._calls = context.tree, context.term, context.calls
        self._last: Future[None] = Future()  # the end of the collection begun last
        self._last.set_result(None)
        self._ahead_s: float | None = None  #: least lead of ZooKeeper's clock over the loop's, in seconds

    def start(self) -> None:
        """Starts the periodic looks."""
        self._tree.every(ORPHANS_S, self._purge_orphans, "orphaned rows")
        self._tree.every(SWEEP_S, self._sweep_store, "expired rows")
        self._tree.every(CONTENTS_S, self._forget_contents, "functions, modules and files")
        self._tree.every(LOOK_S, self._forget_history, "the history")
        self._tree.every(NONCES_S, self._forget_nonces, paths.NONCES)
        self._tree.tell(self._read_clock(), "the clock of ZooKeeper")

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
        submission, number, tree = followed.submission, followed.number, self._tree
        assert submission is not None
        digest = token_digest(submission.user, submission.token)
        parents = (paths.done(number), paths.failed(number))
        znodes = (tree.get(paths.tail(number)), tree.stat(paths.gate(number)), tree.stat(paths.token(digest)))
        asked: tuple[Future[Any], ...] = (*map(tree.children, parents), *znodes)
        done, failed, tail, gate, token = yield from each(asked)
        if done is None or failed is None or tail is None:
            return False  # unreadable for a moment
        children = {parents[0]: sorted(done), parents[1]: sorted(failed)}
        fragments: list[Fragment] = []  # all fragments still in ZooKeeper: they name the outputs to keep
        for at in range(0, len(done), _SETTLED):
            found = yield tree.get_all([f"{parents[0]}/{name}" for name in children[parents[0]][at : at + _SETTLED]])
            fragments += [read_fragment(one.data) for one in found if one is not None]
        if len(fragments) < len(done):
            return False
        counted, base = validity.tail(tail, number), followed.paged.base
        try:
            yield self._calls.store(keep_outputs, number=number, tail=counted, base=base, fragments=fragments)
        except RmgrError as error:
            self._term.log.warning("outputs_not_kept", submission=number, error=error.message)
            return False
        submission = followed.submission
        if submission is None:
            return True
        for multi in removal(submission, digest, children, has_gate=gate is not None, has_token=token is not None):
            failpoint("leader.before_collect")
            outcome = yield tree.commit(multi)
            if not isinstance(outcome, Committed):
                followed.refresh()
                return False
            failpoint("leader.after_collect")
        self._term.metrics.collected.inc()
        self._term.log.info("submission_collected", submission=number, epoch=self._term.epoch)
        yield from self._purge(number)
        return True

    def _purge(self, number: int) -> Story[None]:
        """Deletes the rows of a collected submission in portions; the scan finds what is left after an error."""
        try:
            while (yield self._calls.store(_delete_some, number=number)):
                pass
        except RmgrError:
            return

    # -- other expired data

    def _purge_orphans(self) -> Story[None]:
        for number in (yield self._calls.store(stored_submissions)):
            if number not in self._keeper.followed and (yield self._tree.stat(paths.sub(number))) is None:
                self._term.log.info("orphaned_rows_found", submission=number)
                yield from self._purge(number)

    def _sweep_store(self) -> Story[None]:
        removed = yield self._calls.store(lambda store: store.sweep())
        if removed:
            self._term.log.info("store_swept", total=removed)

    def _forget_contents(self) -> Story[None]:
        """Deletes rows named by their content that no submission needs. Cost: one look at each; 3 us a submission if a row may go."""
        now_s = self._term.wall_us() / 1e6
        old: dict[str, bytes] = {}
        for family in sorted(keys.BY_CONTENT):
            after = ""
            while some := (yield self._calls.store(_marks, prefix=f"{family}/", after=after, now_s=now_s)):
                after = max(some)
                old |= {key: note for key, note in some.items() if contents.is_old(note, now_s)}
        needs = self._keeper.needs() if old else None
        if needs is None:
            return
        over, removed = [key for key, note in old.items() if not needs.may_name(key, note)], 0
        for at in range(0, len(over), _A_TURN):
            marks = {key: old[key] for key in over[at : at + _A_TURN]}
            removed += yield self._calls.store(remove_contents, marks=marks)
        if removed:
            self._term.log.info("contents_removed", total=removed)

    def _forget_history(self) -> Story[None]:
        """Deletes summaries of submissions older than the retention; a failure is retried at the next look."""
        retention_us = self._context.settings.history_retention_us
        if not retention_us:
            return
        before_us, removed, some = self._term.wall_us() - retention_us, 0, _A_TURN
        while some == _A_TURN:
            some = yield self._calls.store(_remove_some, before_us=before_us)
            removed += some
        if removed:
            self._term.log.info("history_purged", total=removed)

    def _read_clock(self) -> Story[None]:
        found = yield self._tree.stat(paths.EPOCH)
        if found is not None and self._ahead_s is None:
            self._ahead_s = found.mtime_ms / 1000 - self._tree.clock()

    def _forget_nonces(self) -> Story[None]:
        """Deletes nonces under which nothing can be submitted any more. Cost: 1 us a name; 2 us a submission if one goes."""
        if self._ahead_s is None:
            yield from self._read_clock()
            return
        now_s = self._ahead_s + self._tree.clock()
        names = yield self._tree.children(paths.NONCES)
        over = [f"{paths.NONCES}/{name}" for name in names or () if nonces.is_over(name, now_s)]
        used = self._keeper.used_nonces() if over else None
        gone = [path for path in over if path not in used] if used is not None else []
        while gone:
            some = gone[:_TOGETHER]
            failpoint("leader.before_forget_nonces")
            outcome = yield self._tree.commit(forget_nonces(some))
            match outcome:
                case Committed():
                    self._term.log.info("nonces_forgotten", total=len(some), epoch=self._term.epoch)
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
