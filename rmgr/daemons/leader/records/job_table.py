"""Table of waiting and placed jobs for the scheduler's driver: the names it has seen, whose they are, and which are old news.

A list of names is read again and again (`core/watched_cache.py`), and may be older than what a commit of ours has just made. So each
entry that came of a commit has the time of its answer, and only a list that was asked for later counts against it.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.core.facts import Known
from rmgr.daemons.leader.core.watched_cache import WatchedCache
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import Allocation, job_id, task_of
from rmgr.model.tasks.submission import Submission

#: Jobs of which something was learned that are remembered.
_KNOWN = 10_000


@dataclass(slots=True)
class Waiting:
    """A job under `pending` of its queue."""

    queue: str
    partition: str
    key: BlockKey
    name: str


@dataclass(slots=True)
class PlacedJob:
    """A job under `/running/<head>`. since_s: when the commit that put it there was answered (the leader's clock), -inf = it was read."""

    queue: str
    partition: str
    key: BlockKey
    name: str
    allocation: Allocation
    since_s: float = -math.inf
    is_lost: bool = False  #: its head was told that a node of it is gone

    @property
    def node(self) -> str:
        """Its head."""
        return self.allocation.head


@dataclass(slots=True)
class JobTable:
    """Jobs by the scheduler's id. submissions: records by number; None: asked for."""

    waiting: dict[int, Waiting] = field(default_factory=dict)
    placed: dict[int, PlacedJob] = field(default_factory=dict)
    submissions: dict[int, Submission | None] = field(default_factory=dict)
    routes: dict[int, str] = field(default_factory=dict)  #: job -> the queue that a policy has chosen for it
    since: dict[int, int] = field(default_factory=dict)  #: job -> when cores began to be held for it (us)
    queued: dict[int, int] = field(default_factory=dict)  #: job that was given up -> when it came back to its queue (us)
    marks: dict[int, str] = field(default_factory=dict)  #: job -> feature of the nodes on which its next start must be
    stays: dict[int, tuple[int, int]] = field(default_factory=dict)  #: job that went on after a pause -> (since, its limit) (us)
    pins: dict[int, int] = field(default_factory=dict)  #: job that has refused to stop -> until when it is not asked again (us)
    known: OrderedDict[int, Known] = field(default_factory=OrderedDict)  #: of jobs whose blocks told more than their records
    odd: dict[str, str] = field(default_factory=dict)  #: names that are no jobs: told once
    spoilt: set[str] = field(default_factory=set)  #: names of blocks that cannot be read: no jobs either
    _seen: dict[str, set[str]] = field(default_factory=dict)  # queue -> names that are accounted for
    _there: dict[str, set[int]] = field(default_factory=dict)  # head -> its placed jobs
    _taken: dict[str, dict[str, float]] = field(default_factory=dict)  # queue -> name -> when our commit took it away
    took: Counter[str] = field(default_factory=Counter)  #: queue -> how many names our commits took away, ever

    def forget_jobs(self) -> None:
        """Everything will be read again; records of submissions stay."""
        self.waiting.clear()
        self.routes.clear()
        self.since.clear()
        for kept in (self.queued, self.marks, self.stays, self.pins, self.known):
            kept.clear()
        self.placed.clear()
        self._there.clear()
        self._seen.clear()
        self._taken.clear()

    def class_of(self, job: int) -> str:
        """The queue class in which it is: that a policy chose, else the one that its user named; "" = none."""
        if found := self.routes.get(job, ""):
            return found
        record = self.submissions.get(task_of(job)[0])
        return record.rigid.queue_class if record is not None and record.rigid is not None else ""

    def may_move(self, job: int) -> bool:
        """Its user lets it go back to its queue."""
        submission = self.submissions.get(task_of(job)[0])
        return submission is None or submission.resubmit

    def learn(self, job: int, known: Known) -> None:
        """What its block tells of it; kept when it leaves its nodes, for it may come back. The last ones are."""
        self.known[job] = known
        self.known.move_to_end(job)
        if len(self.known) > _KNOWN:
            self.known.popitem(last=False)

    # -- pending --------------------------------------------------------------------------------------------------------------

    def came(self, queue: str, cache: WatchedCache[list[str]]) -> Iterator[tuple[str, BlockKey]]:
        """Names under `pending` that are not accounted for; `settle` or `wait` accounts for them."""
        taken = self._taken.setdefault(queue, {})
        for name in sorted(set(cache.value or ()) - self._seen.setdefault(queue, set()) - self.spoilt, key=paths.claim_order):
            taken_s = taken.get(name)
            if taken_s is not None:
                if cache.asked_s <= taken_s:
                    continue
                del taken[name]  # it was taken, and has come back
            try:
                yield name, paths.parse_block(name)
            except ValueError:
                self.odd[name] = "its name is none of a block"

    def went(self, queue: str, cache: WatchedCache[list[str]]) -> list[int]:
        """Waiting jobs whose names are gone from the list; they are forgotten."""
        seen, names = self._seen.setdefault(queue, set()), set(cache.value or ())
        gone = seen - names
        seen -= gone
        taken = self._taken.get(queue, {})
        for name in [name for name, taken_s in taken.items() if taken_s < cache.asked_s and name not in names]:
            del taken[name]  # no list that is older will come
        found = []
        for name in gone:
            taken.pop(name, None)
            self.odd.pop(name, None)
            key = paths.parse_block(name)
            job = job_id(key.submission, key.first)
            waiting = self.waiting.get(job)
            if waiting is not None and waiting.name == name:
                del self.waiting[job]
                for kept in (self.routes, self.since, self.queued, self.marks):
                    kept.pop(job, None)
                found.append(job)
        return sorted(found)

    def wait(self, queue: str, partition: str, name: str, key: BlockKey) -> int:
        """The job waits. Returns its id."""
        job = job_id(key.submission, key.first)
        self.waiting[job] = Waiting(queue, partition, key, name)
        self.settle(queue, name)
        return job

    def settle(self, queue: str, name: str) -> None:
        """Nothing more is to be done about this name while it stands there."""
        self._seen.setdefault(queue, set()).add(name)

    # -- running ----------------------------------------------------------------------------------------------------------------

    def place(self, job: int, key: BlockKey, allocation: Allocation, answered_s: float) -> None:
        """A waiting job was given to its nodes."""
        waiting = self.waiting.pop(job)
        self.since.pop(job, None)
        self.marks.pop(job, None)
        self._seen[waiting.queue].discard(waiting.name)
        self._taken.setdefault(waiting.queue, {})[waiting.name] = answered_s
        self.took[waiting.queue] += 1
        self.run(job, PlacedJob(waiting.queue, waiting.partition, key, paths.block_name(key), allocation, answered_s))

    def run(self, job: int, placed: PlacedJob) -> None:
        """It is under `/running`."""
        self.placed[job] = placed
        self._there.setdefault(placed.node, set()).add(job)

    def has_jobs(self, node: str) -> bool:
        """Placed jobs have their head there."""
        return bool(self._there.get(node))

    def leave(self, job: int) -> PlacedJob:
        """It is not there any more."""
        for kept in (self.routes, self.queued, self.stays, self.pins):
            kept.pop(job, None)
        placed = self.placed.pop(job)
        self._there[placed.node].discard(job)
        return placed

    def ended(self, node: str, cache: WatchedCache[list[str]]) -> list[int]:
        """Jobs of this head that are not there any more."""
        names = frozenset(cache.value or ())
        there = ((job, self.placed[job]) for job in self._there.get(node, ()))
        return sorted(job for job, placed in there if placed.name not in names and cache.asked_s > placed.since_s)
