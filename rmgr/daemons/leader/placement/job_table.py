"""The scheduler driver's table of waiting and placed jobs: the names seen, their jobs, and which news is stale.

Lists of names are read again and again (`WatchedCache`), and may be older than this leader's last commit. So each entry from a commit
has the time of its answer, and only a list requested later counts against it.

Also codes the policies' memory of a partition for `/jobs/<partition>`, with names of nodes, since numbers are valid in one leader only.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import unpack
from rmgr.daemons.leader.facts import Known, Names
from rmgr.daemons.leader.term import WatchedCache
from rmgr.model.block import Allocation, BlockKey, job_id, task_of
from rmgr.model.submission import Submission
from rmgr.sched.job import Placement, Reservation, spans_of
from rmgr.sched.records import Hold, Note, Share, Usage
from rmgr.sched.state.cluster import ClusterState, notes_of
from rmgr.sched.state.partition import Partition

#: Most jobs whose learned facts are remembered.
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
    """A job under `/running/<head>`. since_s: when the placing commit was answered (the leader's clock), -inf if it was read."""

    queue: str
    partition: str
    key: BlockKey
    name: str
    allocation: Allocation
    since_s: float = -math.inf

    @property
    def node(self) -> str:
        """The head node."""
        return self.allocation.head


@dataclass(slots=True)
class JobTable:
    """Jobs by the scheduler's id. submissions: records by number, None while requested."""

    waiting: dict[int, Waiting] = field(default_factory=dict)
    placed: dict[int, PlacedJob] = field(default_factory=dict)
    submissions: dict[int, Submission | None] = field(default_factory=dict)
    routes: dict[int, str] = field(default_factory=dict)  #: job -> queue chosen by a policy
    since: dict[int, int] = field(default_factory=dict)  #: job -> since when cores are held for it (us)
    queued: dict[int, int] = field(default_factory=dict)  #: job that gave up its nodes -> when it came back to its queue (us)
    marks: dict[int, str] = field(default_factory=dict)  #: job -> feature of the nodes for its next start
    stays: dict[int, tuple[int, int]] = field(default_factory=dict)  #: job that went on after a pause -> (since, its limit) (us)
    pins: dict[int, int] = field(default_factory=dict)  #: job that refused to stop -> until when it is not asked again (us)
    known: OrderedDict[int, Known] = field(default_factory=OrderedDict)  #: facts from blocks that go beyond the records
    refused_blocks: dict[str, str] = field(default_factory=dict)  #: names that are no jobs, logged once
    unreadable_blocks: dict[str, set[str]] = field(default_factory=dict)  #: queue -> names of unreadable blocks: no jobs either
    _seen: dict[str, set[str]] = field(default_factory=dict)  # queue -> names that are accounted for
    _there: dict[str, set[int]] = field(default_factory=dict)  # head -> its placed jobs
    _taken: dict[str, dict[str, float]] = field(default_factory=dict)  # queue -> name -> when this leader's commit took it
    took: Counter[str] = field(default_factory=Counter)  #: queue -> number of names ever taken by this leader

    def forget_jobs(self) -> None:
        """Forgets the jobs before everything is read again; records of submissions stay."""
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
        """Returns the job's queue class: chosen by a policy, or else named by its user; "" if none."""
        if found := self.routes.get(job, ""):
            return found
        record = self.submissions.get(task_of(job)[0])
        return record.rigid.queue_class if record is not None and record.rigid is not None else ""

    def may_move(self, job: int) -> bool:
        """Whether the user allows the job to go back to its queue."""
        submission = self.submissions.get(task_of(job)[0])
        return submission is None or submission.resubmit

    def learn(self, job: int, known: Known) -> None:
        """Remembers what a block says about its job, also once the job has left its nodes: it may come back. Keeps the latest `_KNOWN`."""
        self.known[job] = known
        self.known.move_to_end(job)
        if len(self.known) > _KNOWN:
            self.known.popitem(last=False)

    # -- pending --------------------------------------------------------------------------------------------------------------

    def came(self, queue: str, cache: WatchedCache[list[str]]) -> Iterator[tuple[str, BlockKey]]:
        """Yields names under `pending` that are not accounted for; `settle` or `wait` accounts for them."""
        taken = self._taken.setdefault(queue, {})
        names = set(cache.value or ()) - self._seen.setdefault(queue, set()) - self.unreadable_blocks.get(queue, set())
        for name in sorted(names, key=paths.claim_order):
            taken_s = taken.get(name)
            if taken_s is not None:
                if cache.asked_s <= taken_s:
                    continue
                del taken[name]  # taken, and came back
            try:
                yield name, paths.parse_block(name)
            except ValueError:
                self.refused_blocks[name] = "its name is none of a block"

    def went(self, queue: str, cache: WatchedCache[list[str]]) -> list[int]:
        """Forgets and returns the waiting jobs whose names are gone from the list."""
        seen, names = self._seen.setdefault(queue, set()), set(cache.value or ())
        unreadable = self.unreadable_blocks.get(queue, set())
        for name in unreadable - names:  # held or moved: a block that comes back under the name is examined anew
            self.refused_blocks.pop(name, None)
        unreadable &= names
        gone = seen - names
        seen -= gone
        taken = self._taken.get(queue, {})
        for name in [name for name, taken_s in taken.items() if taken_s < cache.asked_s and name not in names]:
            del taken[name]  # no older list will come
        found = []
        for name in gone:
            taken.pop(name, None)
            self.refused_blocks.pop(name, None)
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
        """Records a waiting job. Returns its id."""
        job = job_id(key.submission, key.first)
        self.waiting[job] = Waiting(queue, partition, key, name)
        self.settle(queue, name)
        return job

    def settle(self, queue: str, name: str) -> None:
        """Ignores this name from now on, while it stands there."""
        self._seen.setdefault(queue, set()).add(name)

    def cannot_read(self, waiting: Waiting) -> None:
        """Ignores an unreadable block while it stands there."""
        self.unreadable_blocks.setdefault(waiting.queue, set()).add(waiting.name)

    # -- running ----------------------------------------------------------------------------------------------------------------

    def place(self, job: int, key: BlockKey, allocation: Allocation, answered_s: float) -> None:
        """Moves a waiting job to the placed ones."""
        waiting = self.waiting.pop(job)
        self.since.pop(job, None)
        self.marks.pop(job, None)
        self._seen[waiting.queue].discard(waiting.name)
        self._taken.setdefault(waiting.queue, {})[waiting.name] = answered_s
        self.took[waiting.queue] += 1
        self.run(job, PlacedJob(waiting.queue, waiting.partition, key, paths.block_name(key), allocation, answered_s))

    def run(self, job: int, placed: PlacedJob) -> None:
        """Records a job under `/running`."""
        self.placed[job] = placed
        self._there.setdefault(placed.node, set()).add(job)

    def has_jobs(self, node: str) -> bool:
        """Whether placed jobs have their head there."""
        return bool(self._there.get(node))

    def leave(self, job: int) -> PlacedJob:
        """Removes a job that is no longer on its nodes."""
        for kept in (self.routes, self.queued, self.stays, self.pins):
            kept.pop(job, None)
        placed = self.placed.pop(job)
        self._there[placed.node].discard(job)
        return placed

    def ended(self, node: str, cache: WatchedCache[list[str]]) -> list[int]:
        """Returns the jobs of this head that are gone from its list."""
        names = frozenset(cache.value or ())
        there = ((job, self.placed[job]) for job in self._there.get(node, ()))
        return sorted(job for job, placed in there if placed.name not in names and cache.asked_s > placed.since_s)


#: (node, count), one entry per node.
_Where: TypeAlias = tuple[tuple[str, int], ...]
#: (run, where).
_Shares: TypeAlias = tuple[tuple[int, _Where], ...]
_T = TypeVar("_T")


class Stopped(msgspec.Struct, array_like=True, frozen=True):
    """A job that was asked to give up its nodes: its attempt, the order, its last stretch, and since when (None = unknown)."""

    job: int
    attempt: int
    guid: str
    start_us: int
    end_us: int
    asked_us: int | None = None


class Records(msgspec.Struct, array_like=True, frozen=True):
    """The policies' memory of a partition. reservations (job, start, where, policy), notes (policy, kind, job, value), holds (job, policy,
    waits, held), usage (user, account, core-us, as of), routes (job, chosen queue); where use is kept, runs (job, user, account, cpus,
    start): the use of a run that is gone at the next read is charged then; since (job, us): when the first cores were held for it.

    Jobs on the move: stops: jobs asked to give up their nodes; suspended (job, start, end, since): jobs that stand still;
    stays (job, start, end) of jobs that went on after either; queued (job, us): back in the queue since; marks (job, feature): nodes for
    the next start; pins (job, us): no policy may send it back until then.
    """

    reservations: tuple[tuple[int, int, _Where, str], ...] = ()
    notes: tuple[tuple[str, str, int, tuple[int, ...]], ...] = ()
    holds: tuple[tuple[int, str, _Shares, _Shares], ...] = ()
    usage: tuple[tuple[str, str, int, int], ...] = ()
    routes: tuple[tuple[int, str], ...] = ()
    runs: tuple[tuple[int, str, str, int, int], ...] = ()
    since: tuple[tuple[int, int], ...] = ()
    stops: tuple[Stopped, ...] = ()
    suspended: tuple[tuple[int, int, int, int], ...] = ()
    stays: tuple[tuple[int, int, int], ...] = ()
    queued: tuple[tuple[int, int], ...] = ()
    marks: tuple[tuple[int, str], ...] = ()
    pins: tuple[tuple[int, int], ...] = ()

    def of_jobs(
        self, partition: str, names: Names, waiting: frozenset[int], running: frozenset[int], others: frozenset[int] = frozenset()
    ) -> tuple[list[Reservation], list[Note], list[Hold]]:
        """Returns the scheduler's records. Jobs that have left are dropped; the share of a run that has left counts as free.

        others: jobs that are known, and neither wait nor run.
        """

        def placed(named: _Where) -> Placement:
            return spans_of(sorted((names.id(name), count) for name, count in named))

        reservations = [Reservation(job, start, placed(where), policy) for job, start, where, policy in self.reservations if job in waiting]
        known = waiting | running | others | {0}
        notes = [Note(policy, kind, job, value, partition) for policy, kind, job, value in self.notes if job in known]
        holds = []
        for job, policy, waits, held in self.holds:
            if job not in waiting:
                continue
            left = tuple(Share(run, placed(where)) for run, where in waits if run in running)
            freed = tuple(Share(run, placed(where)) for run, where in waits if run not in running)
            shares = tuple(Share(run, placed(where)) for run, where in held)
            holds.append(Hold(job, left, tuple(sorted((*shares, *freed))), policy))
        return reservations, notes, holds

    def charged(self, running: frozenset[int], now_us: int, half_life_us: int) -> list[Usage]:
        """Returns all use, with recorded runs that ended since charged as if they had ended now."""
        found = {(user, account): Usage(user, account, core_us, at_us) for user, account, core_us, at_us in self.usage}
        for job, user, account, cpus, start_us in self.runs if half_life_us else ():
            if job not in running:
                had = found.get((user, account)) or Usage(user, account, 0, now_us)
                found[user, account] = had.charged(cpus, start_us, now_us, half_life_us)
        return sorted(found.values())


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Records)


def decode_records(data: bytes) -> Records:
    """Decodes records. Raises: msgspec.DecodeError for invalid data."""
    return unpack(_unpack.decode, data) if data else Records()


def encode_records(
    part: Partition,
    names: Names,
    job_table: JobTable,
    orders: Mapping[int, tuple[int, str, int | None]],
    *,
    users: ClusterState | None = None,
) -> bytes:
    """Encodes the memory of a partition, b"" if there is none. Cost: O(records), however many jobs wait.

    Args:
        job_table: the leader's memory of jobs. orders: (attempt, order, since) of jobs asked to give up their nodes.
        users: state whose use this record keeps, None if another partition's record keeps it, or none does.
    """

    def named(placement: Placement) -> _Where:
        return tuple((names.name(node), count) for first, last, count in placement for node in range(first, last + 1))

    def shares(some: Iterable[Share]) -> _Shares:
        return tuple((share.run_id, named(share.cores)) for share in some)

    def here(kept: Mapping[int, _T]) -> tuple[tuple[int, _T], ...]:
        tables = (part.jobs, part.running, part.suspended, part.stopping)
        return tuple(sorted((job, value) for job, value in kept.items() if any(job in table for table in tables)))

    since, holds = job_table.since, sorted(part.holds.values())
    stopping = [(run, orders[job]) for job, run in sorted(part.stopping.items()) if job in orders]
    found = Records(
        reservations=tuple((r.job_id, r.start_us, named(r.placement), r.policy) for r in sorted(part.reservations.values())),
        notes=tuple((note.policy, note.kind, note.id, note.value) for note in sorted(notes_of(part))),
        holds=tuple((hold.job_id, hold.policy, shares(hold.waits_for), shares(hold.held)) for hold in holds),
        usage=tuple(tuple(use) for use in sorted(users.usage.values())) if users is not None else (),  # type: ignore[misc]  # its fields
        routes=here(job_table.routes),
        runs=_runs(users) if users is not None else (),
        since=tuple((hold.job_id, since[hold.job_id]) for hold in holds if hold.job_id in since),
        stops=tuple(Stopped(run.job.id, attempt, guid, run.start_us, run.end_us, asked_us) for run, (attempt, guid, asked_us) in stopping),
        suspended=tuple((job, one.run.start_us, one.run.end_us, one.since_us) for job, one in sorted(part.suspended.items())),
        stays=tuple((job, *stay) for job, stay in here(job_table.stays)),
        queued=here(job_table.queued),
        marks=here(job_table.marks),
        pins=here(job_table.pins),
    )
    return b"" if users is None and found == Records() else _pack.encode(found)


def _runs(state: ClusterState) -> tuple[tuple[int, str, str, int, int], ...]:
    runs = (run for part in state.partitions.values() for run in part.running.values())
    return tuple(sorted((run.job.id, run.job.user, run.job.account, run.job.cpus, run.start_us) for run in runs))
