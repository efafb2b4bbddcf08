"""All submissions of the cluster: found by their directories, followed, and asked after every change what they need.

`coord.keeping.plan` names the reconcile actions; `actions.py`, `sweep.py` and `collect.py` do them; this file holds
the memory, the order of loading after a take-over, dependencies, and the retries of what did not succeed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from rmgr.coord import validity
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.keeping import (
    Abandon,
    Bar,
    BreakOff,
    Close,
    Collect,
    DropFailed,
    EndTail,
    Met,
    Open,
    Page,
    ReconcileAction,
    Resubmit,
    SubmissionEnd,
    SweepPending,
    Unmet,
    Weigh,
    weigh,
)
from rmgr.coord.decisions.progress import overall_state
from rmgr.coord.nonces import place_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Delete, Gone, Multi, Outcome, Stamped, Stat
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.leader.core.doors import LeaderCommits, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.tree import version_of
from rmgr.daemons.leader.core.watched_cache import WatchedCache, names_below
from rmgr.daemons.leader.submissions.actions import ReconcileActions
from rmgr.daemons.leader.submissions.collect import Collector
from rmgr.daemons.leader.submissions.follow import Followed
from rmgr.daemons.leader.submissions.nonces import NonceSweeper
from rmgr.daemons.leader.submissions.owners import LivingOwners
from rmgr.daemons.leader.submissions.revoked import RevokedKeeper
from rmgr.daemons.leader.submissions.sweep import Sweeper
from rmgr.errors import DataLost, InvalidRecord
from rmgr.model.base.states import State
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.procedures.history import ending_of
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: Submissions whose reading is under way at once.
LOADS = 64
#: Least time between two readings of the same thing: while the owner follows it himself, and while nobody else does.
LAZY_S, EAGER_S = 0.5, 0.02
#: Least time between two readings of a list of up to a thousand submissions. (What runs is not waiting for it.)
LISTS_S = 0.05
#: Each open submission is read again, watches or not, about every so many resyncs.
RESYNC_TURNS = 3
#: So many watches on what will never come are left on the server before the leader connects anew.
MOST_LEFT_WATCHES = 50_000
_RETRY_S, _LONGEST_RETRY_S = 0.5, 30.0


def _nobody_places(_number: int, _changes: int) -> None: ...


class SubmissionKeeper:
    """Follows submissions for the leader, and acts for them.

    Args:
        settings: the cluster's, as they are now.
        nodes: names of all nodes.
        amended: told of (number, amendments) when the terms of a submission were changed.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        calls: StoreCalls,
        settings: Callable[[], ClusterSettings],
        nodes: Callable[[], list[str]],
        drop_link: Callable[[], None] | None = None,
        amended: Callable[[int, int], None] = _nobody_places,
    ) -> None:
        self._drop_link = drop_link
        self.followed: dict[int, Followed] = {}
        self._tree = tree
        self._term = term
        self._calls = calls
        self._settings = settings
        self._actions = ReconcileActions(tree, term, calls, settings)
        self._sweeper = Sweeper(tree, term, nodes, self._is_known, amended)
        self._nonces = NonceSweeper(tree, term, self._used_nonces)
        self._revoked = RevokedKeeper(tree, term.log, self.followed, self._mark, nodes)
        self._collector = Collector(tree, term, calls, self._is_known)
        self._bucket_names = names_below(tree, paths.SUBS, self._on_buckets)
        self._buckets: dict[str, WatchedCache[list[str]]] = {}
        self._listed: dict[str, dict[str, int]] = {}  # bucket -> name -> number of those that are followed
        self._owners = LivingOwners(tree, term.log, self._on_owners)
        self._waiting: deque[Followed] = deque()  # to be read, first the records, then what is open
        self._later: deque[Followed] = deque()  # closed ones: read when nothing else is
        self._loading: dict[int, Followed] = {}
        self._young: dict[int, Followed] = {}  # made a moment ago by an owner who looks after it: read when that is over
        self._was_loaded = False
        self._dirty: dict[int, None] = {}
        self._dependents: dict[int, dict[int, None]] = {}
        self._turn = 0
        self._left_watches = 0

    def start(self) -> None:
        """Begins to read: owners first, so that no living one is taken for dead."""
        self._owners.refresh()
        self._revoked.start()
        self._nonces.start()
        self._bucket_names.refresh()
        self._collector.start()

    def resync(self) -> None:
        """Compares memory with znodes, a part of the submissions each time."""
        self._owners.refresh()
        self._bucket_names.refresh()
        for cache in self._buckets.values():
            cache.refresh()
        self._revoked.resync()
        self._turn += 1
        for followed in list(self.followed.values()):
            if followed.number % RESYNC_TURNS == self._turn % RESYNC_TURNS and followed.is_loaded and not followed.is_closed:
                followed.swept = False
                followed.refresh()
                self._mark(followed.number)

    @property
    def is_loaded(self) -> bool:
        """Everything that was found has been read."""
        return self._owners.is_known and self._bucket_names.is_known and not (self._waiting or self._later or self._loading)

    def hurry(self) -> bool:
        """Reads now what the pace has put off. Returns: nothing more is being read."""
        for followed in list(self._young.values()):
            self._grow(followed)
        reading = [followed.hurry() for followed in self.followed.values() if not followed.is_closed]
        lists = [cache.hurry() for cache in (self._bucket_names, *self._buckets.values())]
        return not any(reading) and not any(lists) and self.is_loaded

    def ownerless(self) -> frozenset[int]:
        """Submissions that may still grow, and whose owner has gone."""
        return frozenset(n for n, item in self.followed.items() if not item.progress.tail.complete and self._owners.has_gone(n))

    def queue_of(self, number: int, then: Callable[[str | None], None]) -> None:
        """The queue of a submission, None when there is no such submission; answered from memory or by a read."""
        followed = self.followed.get(number)
        if followed is not None and followed.submission is not None:
            then(followed.submission.queue)
            return

        def retry() -> None:
            self._tree.after(1.0, partial(self.queue_of, number, then))

        self._tree.get(paths.sub(number), partial(_queue_in, number, then), failed=retry)

    # -- who is there

    def _on_buckets(self) -> None:
        names = [name for name in self._bucket_names.value or () if paths.parse_number(name) is not None]  # submitters create here
        for name in [known for known in self._buckets if known not in names]:
            self._buckets.pop(name).stop()
            self._on_bucket(name)
        for name in sorted(set(names) - self._buckets.keys(), key=_number):
            cache = names_below(self._tree, f"{paths.SUBS}/{name}", partial(self._on_bucket, name))
            cache.pace_s = LISTS_S
            self._buckets[name] = cache
            cache.refresh()

    def _on_bucket(self, name: str) -> None:
        """Cost: O(names) in comparisons, parsed are those that are new."""
        cache, bucket, known = self._buckets.get(name), int(name), self._listed.setdefault(name, {})
        there = frozenset(cache.value or ()) if cache is not None else frozenset()
        for child in known.keys() - there:
            self._forget(self.followed[known[child]])
        numbers = map(paths.parse_number, there - known.keys())
        for number in sorted(number for number in numbers if number is not None and number // 1000 == bucket):
            followed = Followed(self._tree, self._term, self._calls, number, self._on_change, self._forget)
            self.followed[number] = followed
            known[str(number)] = number
            self._waiting.append(followed)
        self._term.metrics.submissions.set(len(self.followed))
        if cache is None:
            self._listed.pop(name)
        elif not known:
            self._tidy_bucket(name)
        self._load()

    def _forget(self, followed: Followed) -> None:
        followed.stop()
        self._term.aside.forget(paths.sub(followed.number))
        self._owners.forget(followed.number)
        if self.followed.get(followed.number) is followed:
            del self.followed[followed.number]
            self._listed.get(str(followed.number // 1000), {}).pop(str(followed.number), None)
            self._shed_watches()
        self._loading.pop(followed.number, None)
        self._young.pop(followed.number, None)
        self._wake_dependents(followed.number)
        self._load()

    def _is_known(self, number: int) -> bool:
        return number in self.followed

    def _used_nonces(self) -> set[str] | None:
        """Of all submissions that are there; None: not all were read yet."""
        known = (followed.submission for followed in self.followed.values())
        return {place_of(submission) for submission in known if submission is not None} if self.is_loaded else None

    def _shed_watches(self) -> None:
        """Every submission leaves one watch behind, on the fragment that never came; only a new connection is without them."""
        self._left_watches += 1
        if self._left_watches >= MOST_LEFT_WATCHES and self._drop_link is not None:
            self._left_watches = 0
            self._term.log.info("watches_shed", total=MOST_LEFT_WATCHES)
            self._drop_link()

    def _tidy_bucket(self, name: str) -> None:
        """A directory of submissions that have all been collected goes, unless new ones are still to come into it."""
        self._tree.get(paths.IDS, partial(self._on_ids, name))

    def _on_ids(self, name: str, found: Stamped | None) -> None:
        if found is not None and int(name) < validity.decode(found.data, int, paths.IDS) // 1000:
            path = f"{paths.SUBS}/{name}"
            self._tree.commit(Multi(name="TIDY", ops=(Delete(path),), proof=Gone(path)))

    def _on_owners(self, changed: Collection[str]) -> None:
        for followed in self.followed.values():
            if followed.submission is not None and followed.submission.owner in changed:
                self._mark(followed.number)

    # -- loading: all records, then what is open, then what is closed

    def _load(self) -> None:
        while len(self._loading) < LOADS and (self._waiting or self._later):
            followed = (self._waiting or self._later).popleft()
            if self.followed.get(followed.number) is not followed:
                continue
            self._loading[followed.number] = followed
            if followed.submission is None:
                followed.start()
            else:
                followed.load()

    def _is_young(self, followed: Followed) -> bool:
        """It may well be over before anybody asks the leader anything of it."""
        submission = followed.submission
        assert submission is not None
        self._was_loaded = self._was_loaded or self.is_loaded
        is_plain = submission.phase is Phase.OPEN and not submission.max_running and submission.max_fails < 0 and not followed.version
        return self._was_loaded and is_plain and self._owners.looks_after(submission) and followed.number not in self._dependents

    def _grow(self, followed: Followed) -> None:
        if self._young.pop(followed.number, None) is followed:
            followed.is_brief = True
            self._waiting.append(followed)
            self._load()

    def _on_change(self, followed: Followed) -> None:
        if followed.is_spoilt:
            if self._loading.pop(followed.number, None) is not None:
                self._load()
            return
        if followed.submission is not None and not followed.is_loading:
            self._loading[followed.number] = followed  # it is, unless its record could not be read before
        if followed.number in self._loading:
            if followed.is_loaded:
                del self._loading[followed.number]
                self._load()
            elif followed.submission is not None and not followed.is_loading:
                del self._loading[followed.number]
                followed.is_loading = True
                if followed.is_closed:
                    self._later.append(followed)
                elif self._is_young(followed):
                    self._young[followed.number] = followed
                    self._tree.after(LAZY_S, partial(self._grow, followed))
                else:
                    self._waiting.append(followed)
                self._load()
        if followed.is_loaded:
            self._mark(followed.number)

    # -- actions

    def reconsider(self) -> None:
        """The settings have changed: what any submission needs, and when, may be something else now."""
        for followed in self.followed.values():
            self._mark(followed.number)

    def _mark(self, number: int) -> None:
        """Asks soon what it needs; often marked, once asked."""
        if not self._dirty:
            self._tree.soon(self._consider_all)
        self._dirty[number] = None

    def _consider_all(self) -> None:
        numbers, self._dirty = list(self._dirty), {}
        for number in numbers:
            followed = self.followed.get(number)
            if followed is None or not followed.is_loaded or followed.is_spoilt:
                continue
            path, version = paths.sub(number), followed.mark
            if not self._term.aside.holds(path, version):
                self._term.aside.run(path, version, partial(self._consider, followed))

    def _consider(self, followed: Followed) -> None:
        submission = followed.submission
        assert submission is not None
        alive = self._owners.looks_after(submission)
        gone_s = self._owners.gone_since(submission, is_alive=alive)
        urgent = bool(submission.max_running or submission.max_fails >= 0 or self._dependents.get(followed.number))
        followed.set_pace(EAGER_S if urgent or not alive else LAZY_S)
        if followed.is_ended or followed.progress.counts[State.FAILED] or followed.progress.counts[State.CANCELLED]:
            self._wake_dependents(followed.number)
        now_s = self._tree.clock()
        facts = followed.facts(owner_alive=alive, bar=self._revoked.bar_of(followed), gone_s=gone_s)
        plan = keeping.plan(facts, self._settings(), now_s=now_s, now_us=self._term.wall_us())
        again = [] if plan.again_s is None else [plan.again_s]
        for action in plan.actions:
            due_s = followed.retry_s.get(action, (-math.inf, 0.0))[0]
            if action in followed.doing:
                continue
            if due_s > now_s:
                again.append(due_s)
                continue
            followed.doing.add(action)
            self._do(followed, action, partial(self._done, followed, action))
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None
        if again:
            # A day at most: the wall clock, which retention is counted on, may have moved by then.
            followed.timer = self._tree.after(min(86_400.0, max(0.0, min(again) - now_s)), partial(self._mark, followed.number))

    def _do(self, followed: Followed, action: ReconcileAction, done: Callable[[bool], None]) -> None:
        match action:
            case Resubmit():
                self._actions.resubmit(followed, action, done)
            case DropFailed():
                self._actions.drop(followed, action, done)
            case Bar():
                self._actions.bar(followed, action, done)
            case BreakOff():
                self._actions.break_off(followed, action, done)
            case SweepPending():
                self._sweeper.sweep(followed, done)
            case Weigh():
                self._weigh(followed, done)
            case Abandon():
                self._actions.abandon(followed, action, done)
            case EndTail():
                self._actions.end_tail(followed, action, done)
            case Close():
                self._actions.close(followed, action, done)
            case Page():
                self._actions.page(followed, action, done)
            case Collect():
                self._collector.collect(followed, action, done)

    def _done(self, followed: Followed, action: ReconcileAction, success: bool) -> None:
        followed.doing.discard(action)
        if success:
            followed.retry_s.pop(action, None)
        else:
            delay_s = min(_LONGEST_RETRY_S, followed.retry_s.get(action, (-math.inf, _RETRY_S / 2))[1] * 2)
            followed.retry_s[action] = (self._tree.clock() + delay_s * machine.uniform(0.5, 1.0), delay_s)
        if self.followed.get(followed.number) is followed and not (success and isinstance(action, Weigh)):
            self._mark(followed.number)

    # -- dependencies

    def _weigh(self, followed: Followed, done: Callable[[bool], None]) -> None:
        submission = followed.submission
        assert submission is not None
        for item in submission.after:
            self._dependents.setdefault(item.submission, {})[followed.number] = None
            if item.submission in self._young:
                self._grow(self._young[item.submission])
        verdict = weigh(submission.after, self._endings(followed, submission))
        match verdict:
            case Met():
                failpoint("leader.before_met")
                changed, multi = keeping.let_go(submission, followed.version)
                self._tree.commit(multi, partial(self._weighed, followed, changed, "dependencies_met", done))
            case Unmet(detail):
                failpoint("leader.before_unmet")
                changed, multi = keeping.unmet(submission, followed.version, detail)
                self._tree.commit(multi, partial(self._weighed, followed, changed, "dependency_failed", done))
            case Open(_, missing):
                for number in missing:
                    self._look_up(followed, number)
                done(True)  # an end of one of them, or the answer about a missing one, asks again

    def _endings(self, followed: Followed, submission: Submission) -> dict[int, SubmissionEnd]:
        endings = dict(followed.endings)
        for item in submission.after:
            other = self.followed.get(item.submission)
            if other is not None and other.submission is not None and other.is_loaded:
                endings[item.submission] = _ending(other, other.submission)
            elif other is not None:
                endings[item.submission] = SubmissionEnd()  # it is there, and still being read
        return endings

    def _look_up(self, followed: Followed, number: int) -> None:
        """A submission that is not in memory: just made, or collected, or never there."""
        self._tree.stat(paths.sub(number), partial(self._on_looked_up, followed, number), failed=partial(self._mark_later, followed))

    def _on_looked_up(self, followed: Followed, number: int, found: Stat | None) -> None:
        if found is not None:
            self._mark_later(followed)  # its directory will be read in a moment
            return
        then = partial(self._on_history, followed, number)
        self._calls.store(lambda store: _kept_end(store, number), then, lambda _: self._mark_later(followed))

    def _on_history(self, followed: Followed, number: int, ending: SubmissionEnd) -> None:
        followed.endings[number] = ending
        self._mark(followed.number)

    def _mark_later(self, followed: Followed) -> None:
        self._tree.after(1.0, partial(self._mark, followed.number))

    def _weighed(self, followed: Followed, changed: Submission, event: str, done: Callable[[bool], None], outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._term.log.info(event, submission=followed.number, detail=changed.reason_detail, epoch=self._term.epoch)
            followed.put_record(changed, version_of(outcome))
        else:
            followed.refresh()
        done(isinstance(outcome, Committed))

    def _wake_dependents(self, number: int) -> None:
        for waiting in list(self._dependents.get(number, ())):
            followed = self.followed.get(waiting)
            if followed is None or followed.submission is None or followed.submission.phase is not Phase.HELD:
                del self._dependents[number][waiting]
            else:
                self._mark(followed.number)
        if not self._dependents.get(number):
            self._dependents.pop(number, None)


def _ending(other: Followed, submission: Submission) -> SubmissionEnd:
    counts = other.progress.counts
    spoiled = bool(counts[State.FAILED] or counts[State.CANCELLED]) or submission.phase is Phase.CANCELLED
    state = overall_state(submission, other.progress, 0) if other.is_ended else None
    return SubmissionEnd(state=state, spoiled=spoiled, began=other.progress.began)


def _number(name: str) -> int:
    return int(name)


def _queue_in(number: int, then: Callable[[str | None], None], found: Stamped | None) -> None:
    try:
        then(None if found is None else validity.submission(found.data, number).queue)
    except InvalidRecord:
        then(None)  # of nobody's: what it has claimed goes with its node


def _kept_end(store: Store, number: int) -> SubmissionEnd:
    """How a submission ended, by the history. On a thread that may wait."""
    try:
        return ending_of(store, number)
    except DataLost:  # it is not what a leader has written there
        return SubmissionEnd(known=False)
