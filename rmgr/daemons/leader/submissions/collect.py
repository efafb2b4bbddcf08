"""Collection: what an ended submission leaves behind goes after its retention; named outputs stay for ever.

Order: values of named outputs are copied to their final rows, then the znodes go (children first, the record last), then the rows.
The znode of its nonce stays until nothing can be submitted under it any more (`leader/submissions/nonces.py`). Rows whose submission is
gone although its collector died in between, or that a zombie wrote afterwards, are found by a scan that skips from submission to
submission. Logs and single values expire by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from rmgr.coord import validity
from rmgr.coord.decisions.keeping import Collect
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.ops.work import token_digest
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome, Stamped, Stat
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.coord.views.closing import kept_outputs, removal
from rmgr.daemons.leader.core.doors import LeaderCommits, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.submissions.doors import KnownSubmission
from rmgr.errors import DataLost, RmgrError
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.block import Outcome as TaskOutcome
from rmgr.model.tasks.submission import Paged, Tail
from rmgr.procedures.bounded import outcomes_of_rows, page_at
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

Done = Callable[[bool], None]

#: Rows deleted by one turn of the store thread; between two turns it does other things.
ROWS_A_TURN = 200
#: How often orphaned rows are looked for, and expired ones are swept out of the store.
ORPHANS_S = 3600.0
SWEEP_S = 600.0
_TOP = "\U0010ffff"
_SETTLED = 1000  # fragments read at once


class CollectedSubmission(KnownSubmission, Protocol):
    """A submission that has ended for good."""

    paged: Paged

    def refresh(self) -> None:
        """Reads everything again."""
        ...


class Collector:
    """Collects submissions one after the other, so that thousands of them do not fill the pipeline.

    Args: is_known: a submission of this number is in memory.
    """

    def __init__(self, tree: LeaderCommits, term: Term, calls: StoreCalls, is_known: Callable[[int], bool]) -> None:
        self._tree = tree
        self._term = term
        self._calls = calls
        self._is_known = is_known
        self._line: list[tuple[CollectedSubmission, Done]] = []
        self._busy = False

    def start(self) -> None:
        """Begins to look for orphans and expired rows now and then."""
        self._tree.after(machine.uniform(0.5, 1.0) * ORPHANS_S, self._look_for_orphans)
        self._tree.after(machine.uniform(0.5, 1.0) * SWEEP_S, self._sweep)

    def collect(self, followed: CollectedSubmission, _action: Collect, done: Done) -> None:
        """Removes a submission whose retention is over."""
        self._line.append((followed, done))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._line:
            return
        self._busy = True
        followed, done = self._line.pop(0)

        def ended(success: bool) -> None:
            self._busy = False
            done(success)
            self._next()

        _Collection(self._tree, self._term, self._calls, followed, ended).start()

    # -- the store's own

    def _sweep(self) -> None:
        self._tree.after(machine.uniform(0.8, 1.2) * SWEEP_S, self._sweep)
        self._calls.store(lambda store: store.sweep(), self._swept, lambda _: None)

    def _swept(self, removed: int) -> None:
        if removed:
            self._term.log.info("store_swept", total=removed)

    def _look_for_orphans(self) -> None:
        self._tree.after(machine.uniform(0.8, 1.2) * ORPHANS_S, self._look_for_orphans)
        self._calls.store(stored_submissions, self._on_stored, lambda _: None)

    def _on_stored(self, numbers: list[int]) -> None:
        for number in numbers:
            if not self._is_known(number):
                self._tree.stat(paths.sub(number), partial(self._on_orphan, number))

    def _on_orphan(self, number: int, found: Stat | None) -> None:
        if found is None:
            self._term.log.info("orphaned_rows_found", submission=number)
            purge(self._calls, number, lambda: None)


class _Collection:
    """One submission on its way out."""

    def __init__(self, tree: LeaderCommits, term: Term, calls: StoreCalls, followed: CollectedSubmission, done: Done) -> None:
        self._tree = tree
        self._term = term
        self._calls = calls
        self._followed = followed
        self._number = followed.number
        self._done = done
        self._tail: Tail | None = None
        self._children: dict[str, list[str]] = {}
        self._gate = False
        self._token = False
        self._fragments: list[Fragment] = []
        self._digest = ""

    def start(self) -> None:
        """Reads what there is; the last answer goes on."""
        submission = self._followed.submission
        assert submission is not None
        self._digest = token_digest(submission.user, submission.token)
        number, tree = self._number, self._tree
        for parent in (paths.done(number), paths.failed(number)):
            tree.children(parent, partial(self._on_children, parent))
        tree.get(paths.tail(number), self._on_tail)
        tree.stat(paths.gate(number), self._on_gate)
        tree.stat(paths.token(self._digest), self._on_token, failed=partial(self._done, False))

    def _on_children(self, parent: str, names: list[str] | None) -> None:
        if names is not None:
            self._children[parent] = sorted(names)

    def _on_tail(self, found: Stamped | None) -> None:
        if found is not None:
            self._tail = validity.tail(found, self._number)

    def _on_gate(self, found: Stat | None) -> None:
        self._gate = found is not None

    def _on_token(self, found: Stat | None) -> None:
        self._token = found is not None
        if len(self._children) < 2 or self._tail is None:
            self._done(False)  # unreadable for a moment
            return
        self._read_fragments(0)

    def _read_fragments(self, at: int) -> None:
        """All fragments that are still in ZooKeeper: they say which outputs are to be kept."""
        names = self._children[paths.done(self._number)]
        batch = names[at : at + _SETTLED]
        if not batch:
            if len(self._fragments) == len(names):
                self._keep_outputs(self._tail or Tail())
            else:
                self._done(False)
            return
        for name in batch[:-1]:
            self._tree.get(f"{paths.done(self._number)}/{name}", self._on_fragment)

        def last(found: Stamped | None) -> None:
            self._on_fragment(found)
            self._read_fragments(at + _SETTLED)

        self._tree.get(f"{paths.done(self._number)}/{batch[-1]}", last, failed=partial(self._done, False))

    def _on_fragment(self, found: Stamped | None) -> None:
        if found is not None:
            self._fragments.append(read_fragment(found.data))

    def _keep_outputs(self, tail: Tail) -> None:
        call = partial(keep_outputs, number=self._number, tail=tail, base=self._followed.paged.base, fragments=self._fragments)
        self._calls.store(call, lambda _: self._remove(), self._not_kept)

    def _not_kept(self, error: RmgrError) -> None:
        self._term.log.warning("outputs_not_kept", submission=self._number, error=error.message)
        self._done(False)

    def _remove(self) -> None:
        submission = self._followed.submission
        if submission is None:
            self._done(True)
            return
        multis = removal(submission, self._digest, self._children, has_gate=self._gate, has_token=self._token)
        self._remove_next(multis)

    def _remove_next(self, multis: list[Multi]) -> None:
        failpoint("leader.before_collect")
        self._tree.commit(multis[0], partial(self._removed, multis))

    def _removed(self, multis: list[Multi], outcome: Outcome) -> None:
        if not isinstance(outcome, Committed):
            self._followed.refresh()
            self._done(False)
        elif len(multis) > 1:
            failpoint("leader.after_collect")
            self._remove_next(multis[1:])
        else:
            failpoint("leader.after_collect")
            self._term.metrics.collected.inc()
            self._term.log.info("submission_collected", submission=self._number, epoch=self._term.epoch)
            purge(self._calls, self._number, lambda: self._done(True))


def purge(calls: StoreCalls, number: int, done: Callable[[], None]) -> None:
    """Deletes the rows of a submission that is gone, some at a time; ends with `done`."""

    def turn(more: bool) -> None:
        if more:
            calls.store(partial(_delete_some, number=number), turn, lambda _: done())
        else:
            done()

    turn(True)


def prefixes(number: int) -> tuple[str, ...]:
    """Rows of a submission that go with it; its logs stay until they expire."""
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


def stored_submissions(store: Store) -> list[int]:
    """Numbers of all submissions that have rows. Cost: one look for each. On a thread that may wait."""
    found: set[int] = set()
    for prefix in prefixes(0):
        family = prefix.partition("/")[0] + "/"
        after = ""
        while names := store.keys(family, after=after, limit=1):
            number = names[0].split("/")[1]
            if len(number) == 10 and number.isascii() and number.isdecimal():  # as keys are made
                found.add(int(number))
            after = f"{family}{number}/{_TOP}"
    return sorted(found)


def keep_outputs(store: Store, *, number: int, tail: Tail, base: int, fragments: list[Fragment]) -> int:
    """Copies the values of all named outputs to their final rows; returns how many. On a thread that may wait."""
    known = EndFold()
    ends: list[tuple[Fragment, TaskOutcome]] = []
    for fragment in [*_paged(store, number, base), *fragments]:
        outcomes = next((found for _, found in outcomes_of_rows(store, [fragment.row])), ()) if fragment.row else fragment.outcomes
        ends += [(fragment, outcome) for outcome in known.fold(outcomes, tail.next) if outcome.outputs]
    copied = 0
    for source, target in kept_outputs(number, tail, ends):
        about = store.about(source)
        if about is None or store.head(target) is not None:
            continue
        try:
            value = store.stream(source)
            if value is not None:  # with its deed, which says where it was written
                store.put(target, value, encoding=about.encoding, note=about.note)
                copied += 1
        except DataLost:
            continue  # it could not have been read under its old name either
    return copied


def _paged(store: Store, number: int, base: int) -> list[Fragment]:
    found: list[Fragment] = []
    while len(found) < base:
        try:
            found += page_at(store, number, len(found))
        except DataLost:
            break
    return found
