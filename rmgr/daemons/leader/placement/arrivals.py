"""Which jobs came to wait, and which went: lists of names, records of their submissions, and the facts that follow from both.

A job that cannot be judged (an invalid request, or an error while it is handled) is set aside while its name stands there: others wait.

A list of 10,000 names costs the leader 20 ms and ZooKeeper 10 ms, and every PLACE fires its watch. So a long list is not read again while
its znode's stat shows that nothing has come (counter of creations) and that only this leader's commits took names (number of children).
Answers come in the order of the questions: when a list or a stat arrives, exactly the names taken by commits answered before are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.daemons.leader.facts import job_of, marked, misplaced, node_mark, with_known
from rmgr.daemons.leader.tree import LeaderTree, Thunk, WatchedCache, names_below
from rmgr.errors import InvalidRecord, RmgrError, StateConflict
from rmgr.model.tasks.block import MAX_INDEX, BlockKey, job_id
from rmgr.model.tasks.submission import Submission
from rmgr.runtime.story import Pause, Story
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: Records read by one request, and decoded in one message.
_TOGETHER = 64
#: Pause before a missing record is read again, and before an unreadable one.
_PAUSE_S, _LONG_PAUSE_S = 1.0, 60.0
#: Largest number of errors remembered.
_MOST_UNREADABLE = 1000
#: Least time between two reads of one list, and the addition for each of its names: where thousands wait, a new job waits longer anyway.
PACE_S, PACE_A_NAME_S = 0.005, 50e-6
#: A resync reads this many lists at a time, with this pause between.
_AT_ONCE, _APART_S = 50, 0.02
#: A shorter list is simply read.
LONG = 200
#: When no name was taken for this long, the list is read once more, and watched.
QUIET_S = 2.0
_LEAST_S = 0.02


class Arrivals:
    """Handles the arrivals of all place queues. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.context.term
        self._job_table = placer.job_table
        self._served = placer.served
        self._records = placer.records
        self._nodes = placer.nodes
        self._stops = placer.stops
        self._updates = placer.updates

    def look(self, state: ClusterState, queue: str, cache: WatchedCache[list[str]], now_us: int) -> None:
        """Compares the names that wait in the queue with memory. Raises: StateConflict if the state must be rebuilt."""
        job_table, partition = self._job_table, self._served.queues[queue].partition
        for gone in job_table.went(queue, cache):
            self._updates.tell(state, "job_withdrawn", gone, partition)
            self._updates.because(Cause.JOB_WITHDRAWN)
        for name, key in list(job_table.came(queue, cache)):
            try:
                self._add_job(state, queue, cache.path, name, key, now_us)
            except StateConflict:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of one job
                self._term.aside.add(f"{cache.path}/{name}", None, error)
                job_table.waiting.pop(job_id(key.submission, key.first), None)
                self.refuse(queue, name, f"{type(error).__name__}: {error}")

    def _add_job(self, state: ClusterState, queue: str, path: str, name: str, key: BlockKey, now_us: int) -> None:
        job_table, spec = self._job_table, self._served.queues[queue]
        partition = spec.partition
        submission = self._records.get(key.submission)
        if submission is None:
            if why := self._records.unreadable.get(key.submission):
                raise InvalidRecord(why)
            self._placer.lists.again(path)  # again when its record has come
            return
        if key.count != 1 or key.first >= MAX_INDEX:
            self.refuse(queue, name, "a placed job is a block of one task")
            return
        if spec.name in submission.queues[1:]:  # a former queue: the sweep moves the block
            job_table.settle(queue, name)
            return
        if why := not_admitted(spec, submission, key, is_newer=False):
            self.refuse(queue, name, why)
            return
        known = job_id(key.submission, key.first)
        stop = self._stops.by_job.get(known)
        is_known = known in job_table.waiting or known in job_table.placed
        if is_known or partition not in state.partitions or (stop is not None and not stop.is_back):
            self._placer.lists.again(path)  # just returned, and its node's list still names it; or the partition has no node yet
            return
        try:
            job = with_known(job_of(submission, key, partition, now_us), job_table.known.get(known))
        except ValueError as error:
            self.refuse(queue, name, str(error))
            return
        if why := misplaced(submission, job, self._served.classes.get(partition, ())):
            self.refuse(queue, name, why)
            return
        own = node_mark(submission.rigid) if submission.rigid is not None else ""
        extra, user_mark = self._placer.next_starts.mark_of(job), self._nodes.mark_of(job.user)
        if self._nodes.mark(own) | self._nodes.mark(extra) | self._nodes.mark(user_mark):
            self._nodes.tell(state)
        job = marked(marked(job, extra), user_mark)
        job_table.wait(queue, job.partition, name, key)
        if not user_mark and self._placer.backoffs.came(known, key):
            self._nodes.tell(state)
        if stop is not None:
            self._stops.returned(state, job, now_us)
            return
        self._updates.tell(state, "job_submitted", job)
        self._updates.because(Cause.JOB_SUBMITTED)

    def refuse(self, queue: str, name: str, why: str) -> None:
        """Refuses a block that is no placeable job; logs it once, and keeps the reason for its owner."""
        job_table = self._job_table
        job_table.settle(queue, name)
        if name not in job_table.refused_blocks:
            self._term.log.error("job_not_placeable", queue=queue, block=name, error=why)
        job_table.refused_blocks[name] = why


class SubmissionRecords:
    """Records by number, kept in the job table. nobodys: numbers whose last read found no record, or an unreadable one.
    unreadable: reasons for the unreadable ones.
    """

    def __init__(self, placer: Placer) -> None:
        self.nobodys: set[int] = set()
        self._tree, self._term = placer.context.tree, placer.context.term
        self._job_table = placer.job_table
        self._wake = placer.wake
        self._wanted: list[int] = []
        self.unreadable: dict[int, str] = {}

    def get(self, number: int) -> Submission | None:
        """Returns the record, None while it is being read, or if it is gone."""
        if number not in self._job_table.submissions:
            self._job_table.submissions[number] = None
            if not self._wanted:
                self._tree.soon(self._read)
            self._wanted.append(number)
        return self._job_table.submissions[number]

    def _read(self) -> None:
        wanted, self._wanted = self._wanted, []
        for at in range(0, len(wanted), _TOGETHER):
            self._tree.tell(self._read_some(wanted[at : at + _TOGETHER]), "records of submissions", key=object())

    def _read_some(self, numbers: list[int]) -> Story[None]:
        try:
            records = yield self._tree.get_all([paths.sub(number) for number in numbers])
        except RmgrError:
            self._forget_records(numbers)
            return
        for number, found in zip(numbers, records, strict=True):
            version = None if found is None else found.version
            self._term.aside.run(paths.sub(number), version, self._take, number, found)

    def _take(self, number: int, found: Stamped | None) -> None:
        try:
            self._job_table.submissions[number] = None if found is None else validity.submission(found.data, number)
        except RmgrError as error:
            if self.unreadable.get(number) != error.message:  # logged once
                self._term.log.error("submission_unreadable", submission=number, error=error.message)
                self.unreadable = {**dict(islice(self.unreadable.items(), _MOST_UNREADABLE)), number: error.message}
        if self._job_table.submissions.get(number) is None:
            self.nobodys.add(number)
            self._tree.after(_PAUSE_S if found is None else _LONG_PAUSE_S, self._forget_records, [number])
        else:
            self.nobodys.discard(number)
        self._wake()

    def _forget_records(self, numbers: list[int]) -> None:
        for number in numbers:
            self._job_table.submissions.pop(number, None)
        self._wake()


class JobLists:
    """All lists of one leadership. In its loop.

    Attributes: pending: queue -> its list. running: node -> its list. news: paths of lists to compare in the next turn.
    """

    def __init__(self, placer: Placer) -> None:
        self.pending: dict[str, WatchedCache[list[str]]] = {}
        self.running: dict[str, WatchedCache[list[str]]] = {}
        self.news: set[str] = set()
        self._tree = placer.context.tree
        self._job_table = placer.job_table
        self._wake = placer.wake

    def serve(self, queues: Collection[str]) -> None:
        """Follows the lists of exactly these place queues from now on."""
        for name in self.pending.keys() - set(queues):
            self.pending.pop(name).stop()
        for name in set(queues) - self.pending.keys():
            self.pending[name] = self._waiting_in(name)

    def look_on(self, nodes: Iterable[str]) -> list[str]:
        """Starts reading the lists of running blocks of new nodes. Returns their names."""
        fresh = sorted(set(nodes) - self.running.keys())
        for name in fresh:
            # Pulled blocks come and go all the time: the list is watched only while jobs run on the node, and read once to find them.
            self.running[name] = self._list(paths.running_node(name), watched=False)
        return fresh

    def watch_head(self, node: str) -> None:
        """Watches the node's list as long as jobs have their head there."""
        cache = self.running.get(node)
        if cache is None:
            cache = self.running[node] = self._list(paths.running_node(node))
        wanted = self._job_table.has_jobs(node)
        if wanted and not cache.is_watched:
            cache.is_watched = True
            cache.refresh()
        cache.is_watched = wanted

    def look_at(self, path: str) -> None:
        """Reads a list again now, and compares it in the next turn."""
        self.news.add(path)
        for cache in self._all_caches():
            if cache.path == path:
                cache.refresh()
        self._wake()

    def again(self, path: str) -> None:
        """Compares the list once more in the next turn."""
        self.news.add(path)

    def take_news(self) -> set[str]:
        """Returns the paths of lists to compare now."""
        news, self.news = self.news, set()
        return news

    def all_are_news(self) -> None:
        """Compares all lists: the rebuilt state must hear of everything that came since."""
        self.news = {cache.path for cache in self._all_caches()}

    def resync(self) -> None:
        """Reads the watched lists again, in portions: the loop has other things to do."""
        self._tree.tell(self._read_again([cache for cache in self._all_caches() if cache.is_watched]), "lists of jobs")

    def _all_caches(self) -> tuple[WatchedCache[list[str]], ...]:
        return (*self.pending.values(), *self.running.values())

    def _read_again(self, lists: list[WatchedCache[list[str]]]) -> Story[None]:
        for at, cache in enumerate(lists, start=1):
            cache.refresh()
            if at % _AT_ONCE == 0:
                yield Pause(_APART_S)

    def _waiting_in(self, queue: str) -> WatchedCache[list[str]]:
        cache = LongList(self._tree, paths.pending(queue), lambda: self._on_list(cache), lambda: self._job_table.took[queue])
        cache.is_chatty, cache.pace_s = True, PACE_S
        cache.refresh()
        return cache

    def _list(self, path: str, *, watched: bool = True) -> WatchedCache[list[str]]:
        cache: WatchedCache[list[str]] = names_below(self._tree, path, lambda: self._on_list(cache))
        cache.is_chatty, cache.is_watched = True, watched
        cache.pace_s = PACE_S
        cache.refresh()
        return cache

    def _on_list(self, cache: WatchedCache[list[str]]) -> None:
        cache.pace_s = PACE_S + PACE_A_NAME_S * len(cache.value or ())
        self.news.add(cache.path)
        self._wake()


class LongList(WatchedCache[list[str]]):
    """A cache of names. `took` counts the names that this leader's answered commits ever took out; `value` still contains them."""

    __slots__ = ("_count", "_creates", "_moved_s", "_noted", "_took", "_took_before", "_took_then")

    def __init__(self, tree: LeaderTree, path: str, changed: Thunk, took: Callable[[], int]) -> None:
        super().__init__(tree, tree.children, path, changed)
        self._took = took
        self._noted: int | None = None  # counter of creations when the list in flight was requested
        self._creates: int | None = None  # the same for `value`; None if it is short, or unknown
        self._count = self._took_then = self._took_before = 0
        self._moved_s = -math.inf

    def refresh(self) -> None:
        """See `WatchedCache.refresh`."""
        if self._changed is not None and not self._reading and len(self.value or ()) >= LONG:
            self._tree.heard(self._tree.stat(self.path), self._note, about=self.path)  # answered before the list
        super().refresh()

    def _note(self, stat: Stat | None) -> None:
        self._noted = None if stat is None else stat.creates

    def _arrived(self, value: list[str] | None) -> None:
        self._creates, self._noted = self._noted if value is not None and len(value) >= LONG else None, None
        self._count, self._took_then = len(value or ()), self._took()
        self._took_before, self._moved_s = self._took_then, self._tree.clock()
        super()._arrived(value)

    def _failed(self) -> None:
        self._creates = self._noted = None
        super()._failed()

    def _fired(self) -> None:
        if self._creates is None or self._reading or self._changed is None:
            super()._fired()
            return
        self._armed = False
        if self._timer is None:
            self._timer = self._tree.after(max(0.0, self._read_s + self.pace_s - self._tree.clock()), self._due)

    def _due(self) -> None:
        self._timer = None
        if self._creates is None:
            self.refresh()
        elif self._changed is not None and not self._reading:
            self._read_s = self._tree.clock()
            self._tree.heard(self._tree.stat(self.path), self._looked, self.refresh, about=self.path)

    def _looked(self, stat: Stat | None) -> None:
        if self._changed is None or self._reading:
            return  # the list itself is in flight
        took, now_s = self._took(), self._tree.clock()
        if took != self._took_before:
            self._took_before, self._moved_s = took, now_s
        left = self._count - (took - self._took_then)
        if stat is None or stat.creates != self._creates or stat.children != left or left < LONG or now_s - self._moved_s > QUIET_S:
            self.refresh()
        elif self._timer is None:
            self._timer = self._tree.after(max(_LEAST_S, self.pace_s), self._due)
