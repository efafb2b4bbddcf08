"""All submissions of the cluster: found by their directories, followed, and examined after every change.

`coord.keeping.plan` names the reconcile actions; `actions.py` and `sweep.py` carry them out; this file holds the memory, the order of
loading after a take-over, dependencies, the retries of failed actions, and what is known about owners.

The name of a Submitter's entry contains its guid, its data contains its user. Guids stand in lists that everybody can read, so a guid
alone proves nothing: a gateway writes the owner into each entry that it makes.

What a user had submitted before a revocation is barred (`coord/decisions/keeping.py`): held with the reason REVOKED, or cancelled. Running
work goes on, stands still or is cancelled, as the operator said; the operator may decide otherwise later. Submissions made after the
revocation are left alone: the user works on with new credentials, and Starters refuse what the old ones sign.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from enum import Enum, auto
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.contents import Needs
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.progress import overall_state
from rmgr.coord.nonces import place_of
from rmgr.coord.ops.leader import let_go, order, tidy_bucket, unmet
from rmgr.coord.ops.membership import is_owner
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome, Unknown
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.submissions.actions import Collector, ReconcileActions
from rmgr.daemons.leader.submissions.follow import Followed, Stage
from rmgr.daemons.leader.submissions.sweep import Sweeper
from rmgr.daemons.leader.term import WatchedCache, version_of
from rmgr.errors import DataLost, InvalidRecord, RmgrError, WrongCluster
from rmgr.model.identity import Revocation, RevokedWork, Role
from rmgr.model.node import InboxOrder, OrderKind, SubmitterEntry
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Submission
from rmgr.procedures.history import ending_of
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story, each, insist

if TYPE_CHECKING:
    from rmgr.daemons.leader.leader import Leader

#: Submissions read at once.
LOADS = 64
#: Least time between two reads of the same part, while its owner follows the submission, and while only the leader does.
LAZY_S, EAGER_S = 0.5, 0.02
#: Least time between two reads of a list of up to a thousand submissions. (Running work does not wait for it.)
LISTS_S = 0.05
#: Each open submission is read again, watched or not, about once in this many resyncs.
RESYNC_TURNS = 3
#: Watches on fragments that will never come that may stay on the server before the leader reconnects.
MOST_LEFT_WATCHES = 50_000
#: First and longest pause before a failed action is tried again.
_RETRY_S, _LONGEST_RETRY_S = 0.5, 30.0
#: Pause after orders with an unknown outcome.
_ORDER_AGAIN_S = 1.0
#: Pause after a failed read of one entry or record.
_READ_AGAIN_S = 1.0
#: Pauses before looks for running work: what may still begin when a revocation is heard has begun by the last one.
_PAUSES_S = (0.0, 1.0, 4.0)


class SubmissionKeeper:
    """Follows submissions for the leader, and acts for them."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.term = leader.term
        self.followed: dict[int, Followed] = {}
        self._drop_link: Callable[[], None] | None = getattr(self.term.coordinator, "drop_link", None)
        self._actions = ReconcileActions(self.term)
        self._sweeper = Sweeper(self)
        self._revoked = RevokedKeeper(self)
        self._collector = Collector(self)
        self._bucket_names = self.term.mirror.names(paths.SUBS, self._on_buckets)
        self._buckets: dict[str, WatchedCache[list[str]]] = {}
        self._listed: dict[str, dict[str, int]] = {}  # bucket -> name -> number, of those followed
        self._owners = LivingOwners(self)
        self._waiting: deque[Followed] = deque()  # to be read: first records, then open submissions
        self._later: deque[Followed] = deque()  # closed ones: read when nothing else is
        self._loading: dict[int, Followed] = {}
        self._young: dict[int, Followed] = {}  # made a moment ago by a live owner: read when `LAZY_S` is over
        self._was_loaded = False
        self._dirty: dict[int, None] = {}
        self._dependents: dict[int, dict[int, None]] = {}
        self._turn = 0
        self._left_watches = 0

    def start(self) -> None:
        """Starts reading: owners first, so that no live owner is taken for dead."""
        self._owners.refresh()
        self._revoked.start()
        self._bucket_names.refresh()
        self._collector.start()

    def resync(self) -> None:
        """Compares memory with znodes, for a part of the submissions each time."""
        self._turn += 1
        for followed in list(self.followed.values()):
            if followed.number % RESYNC_TURNS == self._turn % RESYNC_TURNS and followed.is_loaded and not followed.is_closed:
                followed.swept = False
                followed.refresh()
                self.mark(followed.number)

    @property
    def is_loaded(self) -> bool:
        """Whether everything that was found has been read."""
        return self._owners.is_known and self._bucket_names.is_known and not (self._waiting or self._later or self._loading)

    def hurry(self) -> bool:
        """Sends the reads that the pace put off. Returns whether nothing is being read any more."""
        for followed in list(self._young.values()):
            self._grow(followed)
        reading = [followed.hurry() for followed in self.followed.values() if not followed.is_closed]
        return not any(reading) and self.is_loaded

    def ownerless(self) -> frozenset[int]:
        """Returns the submissions that may still grow, but whose owner has gone."""
        return frozenset(n for n, item in self.followed.items() if not item.progress.tail.complete and self._owners.has_gone(n))

    def queue_of(self, number: int) -> Story[str | None]:
        """Returns the queue of a submission, None if there is no such submission; from memory or by a read."""
        followed = self.followed.get(number)
        if followed is not None and followed.submission is not None:
            return followed.submission.queue
        found = yield from insist(lambda: self.term.get(paths.sub(number)), _READ_AGAIN_S)
        try:
            return None if found is None else validity.submission(found.data, number).queue
        except InvalidRecord:
            return None  # invalid record: its claimed blocks go with their node

    # -- which submissions exist

    def _on_buckets(self) -> None:
        names = [name for name in self._bucket_names.value or () if paths.parse_number(name) is not None]  # anybody may create names here
        for name in [known for known in self._buckets if known not in names]:
            self._buckets.pop(name).stop()
            self._on_bucket(name)
        for name in sorted(set(names) - self._buckets.keys(), key=int):
            cache = self.term.mirror.names(f"{paths.SUBS}/{name}", self._on_bucket, name)
            cache.pace_s = LISTS_S
            self._buckets[name] = cache
            cache.refresh()

    def _on_bucket(self, name: str) -> None:
        """Takes in a bucket's names. Cost: O(names) in comparisons; only new names are parsed."""
        cache, bucket, known = self._buckets.get(name), int(name), self._listed.setdefault(name, {})
        there = frozenset(cache.value or ()) if cache is not None else frozenset()
        for child in known.keys() - there:
            self.forget(self.followed[known[child]])
        numbers = map(paths.parse_number, there - known.keys())
        for number in sorted(number for number in numbers if number is not None and number // 1000 == bucket):
            followed = Followed(self, number)
            self.followed[number] = followed
            known[str(number)] = number
            self._waiting.append(followed)
        self.term.metrics.submissions.set(len(self.followed))
        if cache is None:
            self._listed.pop(name)
        elif not known:
            self.term.tell(self._tidy_bucket(name), f"{paths.SUBS}/{name}")
        self._load()

    def forget(self, followed: Followed) -> None:
        """Forgets a submission that no longer exists."""
        followed.stop()
        self.term.aside.forget(paths.sub(followed.number))
        self._owners.forget(followed.number)
        if self.followed.get(followed.number) is followed:
            del self.followed[followed.number]
            self._listed.get(str(followed.number // 1000), {}).pop(str(followed.number), None)
            self._shed_watches()
        self._loading.pop(followed.number, None)
        self._young.pop(followed.number, None)
        self._wake_dependents(followed.number)
        self._load()

    def used_nonces(self) -> set[str] | None:
        """Returns the nonces of all submissions, None if not all were read yet."""
        known = (followed.submission for followed in self.followed.values())
        return {place_of(submission) for submission in known if submission is not None} if self.is_loaded else None

    def needs(self) -> Needs | None:
        """Returns what the submissions need in the data store, None if not all were read yet, or one is unreadable."""
        known = [followed.submission for followed in self.followed.values() if followed.number not in self._young]
        records = [submission for submission in known if submission is not None]
        if not self.is_loaded or len(records) < len(known):
            return None
        return Needs.of(records, self.term.wall_us() / 1e6)

    def _shed_watches(self) -> None:
        """Reconnects now and then: each submission leaves a watch on a fragment that never came, and only a new connection drops it."""
        self._left_watches += 1
        if self._left_watches >= MOST_LEFT_WATCHES and self._drop_link is not None:
            self._left_watches = 0
            self.term.log.info("watches_shed", total=MOST_LEFT_WATCHES)
            self._drop_link()

    def _tidy_bucket(self, name: str) -> Story[None]:
        """Deletes the directory of collected submissions, unless new ones are still to come into it."""
        found = yield self.term.get(paths.IDS)
        if found is not None and int(name) < validity.decode(found.data, int, paths.IDS) // 1000:
            self.term.commit(tidy_bucket(name))

    def order_runners(self, order_of: Callable[[int], tuple[str, InboxOrder] | None], *, insists: bool) -> Story[None]:
        """Sends an order for each running submission to the nodes that run it. `order_of` returns its name and the order, None = none.

        insists: repeats until the orders are known to be there; otherwise sends them once, and the caller repeats them.
        """
        while True:
            try:
                nodes = sorted(self.leader.nodes.records)
                lists = yield from each([self.term.children(paths.running_node(node)) for node in nodes])
                sent: list[Future[Outcome]] = []
                for node, names in zip(nodes, lists, strict=True):
                    there = sorted({key.submission for _, key in paths.blocks_in(names)})
                    sent += [self.term.commit(order(node, *told)) for number in there if (told := order_of(number)) is not None]
                if not any(isinstance(outcome, Unknown) for outcome in (yield from each(sent))):
                    return  # a conflict: the order is there already, or the node never was
            except RmgrError:
                if not insists:
                    raise
            if not insists:
                return
            yield Pause(_ORDER_AGAIN_S)

    def owners_changed(self, changed: Collection[str]) -> None:
        """Marks the submissions of Submitters whose entries came, went, or were read."""
        for followed in self.followed.values():
            if followed.submission is not None and followed.submission.owner in changed:
                self.mark(followed.number)

    # -- loading: all records, then open submissions, then closed ones

    def _load(self) -> None:
        while len(self._loading) < LOADS and (self._waiting or self._later):
            followed = (self._waiting or self._later).popleft()
            if self.followed.get(followed.number) is not followed:
                continue
            self._loading[followed.number] = followed
            if followed.stage is Stage.LISTED:
                followed.start()
            else:
                followed.load()

    def _is_young(self, followed: Followed) -> bool:
        """Whether the submission may well be over before any question about it arrives."""
        submission = followed.submission
        assert submission is not None
        self._was_loaded = self._was_loaded or self.is_loaded
        is_plain = submission.phase is Phase.OPEN and not submission.max_running and submission.max_fails < 0 and not followed.version
        return self._was_loaded and is_plain and self._owners.looks_after(submission) and followed.number not in self._dependents

    def _grow(self, followed: Followed) -> None:
        if self._young.pop(followed.number, None) is followed:
            self._waiting.append(followed)
            self._load()

    def changed(self, followed: Followed) -> None:
        """Moves a submission on after news about it."""
        if followed.is_spoilt:
            if self._loading.pop(followed.number, None) is not None:
                self._load()
            return
        if followed.submission is not None and followed.stage is Stage.LISTED:
            self._loading.pop(followed.number, None)
            if not followed.is_closed and self._is_young(followed):
                followed.stage = Stage.YOUNG
                self._young[followed.number] = followed
                self.term.after(LAZY_S, self._grow, followed)
            else:
                followed.stage = Stage.TO_READ
                (self._later if followed.is_closed else self._waiting).append(followed)
            self._load()
        elif followed.is_loaded and self._loading.pop(followed.number, None) is not None:
            self._load()
        if followed.is_loaded:
            self.mark(followed.number)

    # -- actions

    def reconsider(self) -> None:
        """Marks all submissions: changed settings may change what each needs, and when."""
        for followed in self.followed.values():
            self.mark(followed.number)

    def mark(self, number: int) -> None:
        """Schedules a look at what the submission needs; repeated marks cause one look."""
        if not self._dirty:
            self.term.soon(self._consider_all)
        self._dirty[number] = None

    def _consider_all(self) -> None:
        numbers, self._dirty = list(self._dirty), {}
        for number in numbers:
            followed = self.followed.get(number)
            if followed is None or not followed.is_loaded or followed.is_spoilt:
                continue
            path, version = paths.sub(number), followed.mark
            if not self.term.aside.holds(path, version):
                self.term.aside.run(path, version, self._consider, followed)

    def _consider(self, followed: Followed) -> None:
        submission = followed.submission
        assert submission is not None
        alive = self._owners.looks_after(submission)
        gone_s = self._owners.gone_since(submission, is_alive=alive)
        urgent = bool(submission.max_running or submission.max_fails >= 0 or self._dependents.get(followed.number))
        followed.set_pace(EAGER_S if urgent or not alive else LAZY_S)
        if followed.is_ended or followed.progress.counts[State.FAILED] or followed.progress.counts[State.CANCELLED]:
            self._wake_dependents(followed.number)
        now_s = self.term.clock()
        facts = followed.facts(owner_alive=alive, bar=self._revoked.bar_of(followed), gone_s=gone_s)
        plan = keeping.plan(facts, self.term.settings, now_s=now_s, now_us=self.term.wall_us())
        again = [] if plan.again_s is None else [plan.again_s]
        for action in plan.actions:
            due_s = followed.retry_s.get(action, (-math.inf, 0.0))[0]
            if action in followed.doing:
                continue
            if due_s > now_s:
                again.append(due_s)
                continue
            followed.doing.add(action)
            self.term.tell(self._act(followed, action), f"{type(action).__name__} of submission {followed.number}", key=(followed, action))
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None
        if again:
            # A day at most: the wall clock, on which retention is counted, may have moved by then.
            followed.timer = self.term.after(min(86_400.0, max(0.0, min(again) - now_s)), self.mark, followed.number)

    def _act(self, followed: Followed, action: keeping.ReconcileAction) -> Story[None]:
        """Carries out one action to its end."""
        try:
            success = yield from self._story_of(followed, action)
        except Exception:
            self._on_action_done(followed, action, success=False)
            raise
        self._on_action_done(followed, action, success=success)

    def _story_of(self, followed: Followed, action: keeping.ReconcileAction) -> Story[bool]:
        """Returns the story of an action; it ends with whether the action succeeded."""
        match action:
            case keeping.Resubmit():
                return self._actions.resubmit(followed, action)
            case keeping.DropFailed():
                return self._actions.drop(followed, action)
            case keeping.Bar():
                return self._actions.bar(followed, action)
            case keeping.BreakOff():
                return self._actions.break_off(followed)
            case keeping.SweepPending():
                return self._sweeper.sweep(followed)
            case keeping.Weigh():
                return self._weigh(followed)
            case keeping.Abandon():
                return self._actions.abandon(followed)
            case keeping.EndTail():
                return self._actions.end_tail(followed)
            case keeping.Close():
                return self._actions.close(followed)
            case keeping.Page():
                return self._actions.page(followed, action)
            case keeping.Collect():
                return self._collector.collect(followed)

    def _on_action_done(self, followed: Followed, action: keeping.ReconcileAction, *, success: bool) -> None:
        followed.doing.discard(action)
        if success:
            followed.retry_s.pop(action, None)
        else:
            delay_s = min(_LONGEST_RETRY_S, followed.retry_s.get(action, (-math.inf, _RETRY_S / 2))[1] * 2)
            followed.retry_s[action] = (self.term.clock() + delay_s * machine.uniform(0.5, 1.0), delay_s)
        if self.followed.get(followed.number) is followed and not (success and isinstance(action, keeping.Weigh)):
            self.mark(followed.number)

    # -- dependencies

    def _weigh(self, followed: Followed) -> Story[bool]:
        submission = followed.submission
        assert submission is not None
        for item in submission.after:
            self._dependents.setdefault(item.submission, {})[followed.number] = None
            if item.submission in self._young:
                self._grow(self._young[item.submission])
        match keeping.weigh(submission.after, self._endings(followed, submission)):
            case keeping.Met():
                failpoint("leader.before_met")
                event, (changed, multi) = "dependencies_met", let_go(submission, followed.version)
            case keeping.Unmet(detail):
                failpoint("leader.before_unmet")
                event, (changed, multi) = "dependency_failed", unmet(submission, followed.version, detail)
            case keeping.Open(_, missing):
                for number in missing:
                    self.term.tell(self._look_up(followed, number), f"end of submission {number}", key=(followed, number))
                return True  # the end of one of them, or the answer about a missing one, marks it again
        outcome = yield self.term.commit(multi)
        if not isinstance(outcome, Committed):
            followed.refresh()
            return False
        self.term.log.info(event, submission=followed.number, detail=changed.reason_detail)
        followed.put_record(changed, version_of(outcome))
        return True

    def _endings(self, followed: Followed, submission: Submission) -> dict[int, keeping.SubmissionEnd]:
        endings = dict(followed.endings)
        for item in submission.after:
            other = self.followed.get(item.submission)
            if other is not None and other.submission is not None and other.is_loaded:
                endings[item.submission] = _ending(other, other.submission)
            elif other is not None:
                endings[item.submission] = keeping.SubmissionEnd()  # it exists, and is still being read
        return endings

    def _look_up(self, followed: Followed, number: int) -> Story[None]:
        """Looks up a submission that is not in memory: collected, never there, or so new that its directory was not read yet."""
        try:
            is_there = (yield self.term.stat(paths.sub(number))) is not None
            if not is_there:
                followed.endings[number] = yield self.term.in_store(_kept_end, number)
        except RmgrError:
            is_there = True
        if is_there:
            yield Pause(1.0)
        self.mark(followed.number)

    def _wake_dependents(self, number: int) -> None:
        for waiting in list(self._dependents.get(number, ())):
            followed = self.followed.get(waiting)
            if followed is None or followed.submission is None or followed.submission.phase is not Phase.HELD:
                del self._dependents[number][waiting]
            else:
                self.mark(followed.number)
        if not self._dependents.get(number):
            self._dependents.pop(number, None)


def _ending(other: Followed, submission: Submission) -> keeping.SubmissionEnd:
    counts = other.progress.counts
    spoiled = bool(counts[State.FAILED] or counts[State.CANCELLED]) or submission.phase is Phase.CANCELLED
    state = overall_state(submission, other.progress, 0) if other.is_ended else None
    return keeping.SubmissionEnd(state=state, spoiled=spoiled, began=other.progress.began)


def _kept_end(store: Store, number: int) -> keeping.SubmissionEnd:
    """Returns how a submission ended, from the history. On a thread that may block."""
    try:
        return ending_of(store, number)
    except DataLost:  # not what a leader has written there
        return keeping.SubmissionEnd(known=False)


class NoEntry(Enum):
    """What is known about a Submitter from its name alone."""

    UNREAD = auto()  #: its entry was not read yet
    UNREADABLE = auto()  #: its entry is invalid


class LivingOwners:
    """Live Submitters; the keeper is told of guids whose entries came, went, or were read.

    Cost: an entry is read once, when a submission first names its guid; entries that no submission names cost no read.
    """

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self._names = self._term.mirror.names(paths.SUBMITTERS, self._on_names)
        self._entries: dict[str, dict[str, SubmitterEntry | NoEntry]] = {}  # guid -> name -> entry
        self._gone: dict[int, float] = {}  # submission -> since when its owner is missing

    def refresh(self) -> None:
        """Reads the list again."""
        self._names.refresh()

    @property
    def is_known(self) -> bool:
        """Whether the list was read; an unread entry is believed to belong to its apparent owner."""
        return self._names.is_known

    def looks_after(self, submission: Submission) -> bool:
        """Whether the submission's owner lives. Cost: O(entries of that guid), normally one."""
        is_alive = False
        for name, entry in self._entries.get(submission.owner, {}).items():
            if entry is NoEntry.UNREAD:
                self._term.tell(self._read(submission.owner, name), f"{paths.SUBMITTERS}/{name}")
                is_alive = True
            is_alive = is_alive or (isinstance(entry, SubmitterEntry) and is_owner(entry, submission))
        return is_alive

    def gone_since(self, submission: Submission, *, is_alive: bool) -> float | None:
        """Returns when the owner was first seen missing, None while it lives; a new leader counts anew. is_alive: from `looks_after`."""
        if is_alive or submission.phase is Phase.CLOSED:
            self.forget(submission.id)
            return None
        return self._gone.setdefault(submission.id, self._term.clock())

    def has_gone(self, number: int) -> bool:
        """Whether the owner of a submission has been missing so long that nothing more is expected of it."""
        since_s = self._gone.get(number)
        return since_s is not None and self._term.clock() - since_s >= keeping.GONE_S

    def forget(self, number: int) -> None:
        """Forgets a submission that is gone, or whose owner lives."""
        self._gone.pop(number, None)

    def _on_names(self) -> None:
        names = self._names.value or ()
        now: dict[str, set[str]] = {}
        for name in names:
            if guid := paths.entry_guid(name):  # an entry without guid belongs to no submission
                now.setdefault(guid, set()).add(name)
        changed: set[str] = set()
        for guid in [guid for guid, entries in self._entries.items() if not entries.keys() <= now.get(guid, set())]:
            changed.add(guid)
            kept = {name: entry for name, entry in self._entries[guid].items() if name in now.get(guid, set())}
            if kept:
                self._entries[guid] = kept
            else:
                del self._entries[guid]
        for guid, some in now.items():
            entries = self._entries.setdefault(guid, {})
            for name in sorted(some - entries.keys()):
                changed.add(guid)
                entries[name] = NoEntry.UNREAD
        if changed:
            self._keeper.owners_changed(changed)

    def _read(self, guid: str, name: str) -> Story[None]:
        path = f"{paths.SUBMITTERS}/{name}"
        found = yield from insist(lambda: self._term.get(path), _READ_AGAIN_S)
        entries = self._entries.get(guid, {})
        if name not in entries or found is None:
            return  # it has gone, as the list will show
        try:
            entries[name] = validity.decode(found.data, SubmitterEntry, path)
        except RmgrError as error:
            self._term.log.warning("entry_unreadable", target=name[:100], error=error.message)
            entries[name] = NoEntry.UNREADABLE
        self._keeper.owners_changed({guid})


class RevokedKeeper:
    """The work of users with revoked keys, for one leader, in its loop."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self._followed = keeper.followed
        self._revoked = self._term.mirror.below(paths.REVOKED, self._take)
        self._of_user: dict[str, dict[str, tuple[int, Revocation]]] = {}  #: user -> key id -> (creating transaction, revocation)

    def start(self) -> None:
        """Starts reading."""
        self._revoked.refresh()

    def bar_of(self, followed: Followed) -> keeping.Bar | None:
        """Returns what is due to a submission, None if its user lost no key since it was made. Cost: 0.2 us if the user never lost one."""
        found = self._newest_revocation(followed)
        if found is None:
            return None
        detail = f"the credentials of {found.name} were revoked" + (f": {found.reason[:200]}" if found.reason else "")
        return keeping.Bar(cancels=found.work == RevokedWork.CANCEL, detail=detail)

    def _newest_revocation(self, followed: Followed) -> Revocation | None:
        """Returns the newest revocation that concerns the submission."""
        submission = followed.submission
        known = self._of_user.get(submission.user) if submission is not None else None
        if known is None:
            return None
        return max(((made, one) for made, one in known.values() if followed.made < made), key=lambda item: item[0], default=(0, None))[1]

    def _take(self, name: str) -> None:
        found = self._revoked.values.get(name)
        if found is None:
            return
        try:
            record = decode_record(found.data, Revocation, paths.revoked(name))
        except WrongCluster as error:
            self._term.log.error("revocation_unreadable", target=name, error=error.message)
            return
        if record.role not in (Role.USER, Role.OPERATOR) or record.others:
            return
        self._of_user.setdefault(record.name, {})[name] = found.stat.czxid, record
        for number, followed in self._followed.items():
            if followed.submission is not None and followed.submission.user == record.name and followed.is_loaded:
                self._keeper.mark(number)
        if record.work == RevokedWork.HOLD:
            self._term.tell(self._order(record.name, OrderKind.SUSPEND), f"work of {record.name} that is to stand", key=object())
        elif record.work == RevokedWork.KEEP and record.before == RevokedWork.HOLD:
            self._term.tell(self._order(record.name, OrderKind.RESUME), f"work of {record.name} that is to go on", key=object())

    def _order(self, user: str, what: OrderKind) -> Story[None]:
        """Sends the order to the nodes that run work of the user."""
        detail = f"the credentials of {user} were revoked"

        def order_of(number: int) -> tuple[str, InboxOrder] | None:
            order = InboxOrder(order=what, submission=number, reason=Reason.REVOKED, detail=detail)
            return (f"{what}-{number}", order) if self._is_meant(number, user, what) else None

        for pause_s in _PAUSES_S if what is OrderKind.SUSPEND else _PAUSES_S[:1]:
            yield Pause(pause_s)
            yield from self._keeper.order_runners(order_of, insists=True)

    def _is_meant(self, number: int, user: str, what: OrderKind) -> bool:
        followed = self._followed.get(number)
        submission = followed.submission if followed is not None else None
        if followed is None or submission is None or submission.user != user or submission.phase in (Phase.CANCELLED, Phase.CLOSED):
            return False
        standing = self._newest_revocation(followed)
        return standing is not None and (standing.work == RevokedWork.HOLD) is (what is OrderKind.SUSPEND)
