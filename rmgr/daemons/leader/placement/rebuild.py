"""The scheduler's state made from znodes: what a new leader does first, and what every leader does when it no longer trusts its memory.

Read in this order: lists of waiting and running names that were asked for after the rebuild began, records of their submissions, the blocks
of running jobs (they say where each stands) and of those that wait again (how often they were moved), and what policies remember. Nothing
is written. Names that come meanwhile are not waited for, they are told the state as news; and all that takes time is done in slices,
between which the leader's loop does other things.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Protocol

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.leader.core.doors import LeaderReads
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.watched_cache import WatchedCache
from rmgr.daemons.leader.placement.building import SOME, StandingJob, StateBuilding
from rmgr.daemons.leader.placement.gangs import GangKeeper
from rmgr.daemons.leader.placement.submissions import SubmissionRecords
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.records import Records, decode_records
from rmgr.daemons.leader.records.reserved import Standing
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.daemons.leader.records.updates import StateUpdates
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import MAX_INDEX
from rmgr.sched.state.cluster import ClusterState

_RETRY_S = 0.5
#: Blocks that are read by one request, and decoded in one message.
_TOGETHER = 64
#: So long the loop is kept at a time.
SLICE_S = 0.02


class ListedJobs(Protocol):
    """Has the lists of names that wait, by queue, and of those that run, by node."""

    @property
    def pending(self) -> Mapping[str, WatchedCache[list[str]]]: ...

    @property
    def running(self) -> Mapping[str, WatchedCache[list[str]]]: ...


class Rebuild:
    """One of them. `step` is called again and again, until it answers."""

    def __init__(
        self,
        tree: LeaderReads,
        term: Term,
        job_table: JobTable,
        lists: ListedJobs,
        submissions: SubmissionRecords,
        served: ServedPartitions,
        building: StateBuilding,
        updates: StateUpdates,
        gangs: GangKeeper,
    ) -> None:
        self._keeper = gangs
        self._tree = tree
        self._term = term
        self._job_table = job_table
        self._pending, self._running = lists.pending, lists.running
        self._submissions = submissions
        self._served = served
        self._building = building
        self._updates = updates
        self._partitions = sorted(served.partitions)
        self._began_s = tree.clock()
        self._blocks: dict[str, StandingJob | None] = {}  # path under /running; None: gone, or pulled work
        self._told: dict[str, tuple[bool, int]] = {}  # path under /pending of one that has run before -> answered, moves
        self._reading = 0
        self._work: Generator[bool, None, ClusterState] | None = None
        self.promised: dict[int, list[str]] = {}  #: waiting job -> nodes on which its promise stands
        self.records: dict[str, tuple[bytes, int | None]] = {}  #: partition -> what policies remember, version of its znode
        for cache in (*self._pending.values(), *self._running.values()):
            cache.refresh()
        self.gangs: dict[str, Stamped | None] = {}  #: partition -> the record of its gang
        for partition in self._partitions:
            self._read(paths.placing(partition), partial(self._on_records, partition))
            self._read(paths.gangs(partition), partial(self._on_gangs, partition))

    def step(self, half_life_us: int) -> ClusterState | None:
        """The state, once it is made; what comes, or is still to do, asks for the turn with the next step."""
        lists = (*self._pending.values(), *self._running.values())
        if min(len(self.records), len(self.gangs)) < len(self._partitions) or any(cache.asked_s < self._began_s for cache in lists):
            return None
        if self._reading:
            return None  # each answer wakes us
        if self._work is None:
            self._work = self._making(half_life_us)
        end_s = self._tree.clock() + SLICE_S
        try:
            while next(self._work):
                if self._tree.clock() >= end_s:
                    self._updates.wake()
                    return None
        except StopIteration as made:
            state: ClusterState = made.value
            return state
        return None

    def _making(self, half_life_us: int) -> Generator[bool, None, ClusterState]:
        """All of it. Yields True: there is more to do; False: something must come first."""
        submission_of = self._submissions.get
        waiting: list[tuple[str, str, BlockKey]] = []  # (queue, name, key)
        there: list[tuple[str, BlockKey]] = []  # (path, key) under /running
        numbers: dict[int, None] = {}
        for queue, pending in self._pending.items():
            for at, (name, key) in enumerate(self._job_table.came(queue, pending)):
                numbers[key.submission] = None
                if key.count == 1 and key.first < MAX_INDEX:
                    waiting.append((queue, name, key))
                if at % SOME == 0:
                    yield True
        for node, running in list(self._running.items()):
            for name, key in paths.blocks_in(running.value):
                numbers[key.submission] = None
                there.append((f"{paths.running_node(node)}/{name}", key))
            yield True
        for number in numbers:
            submission_of(number)
        for number in numbers:
            while submission_of(number) is None and number not in self._submissions.nobodys:
                yield False
        placed: list[tuple[BlockKey, str]] = []  # (key, path)
        for path, key in there:
            submission = submission_of(key.submission)
            if submission is not None and (submission.queue in self._served.queues or submission.rigid is not None):
                placed.append((key, path))
        again = [f"{paths.pending(queue)}/{name}" for queue, name, key in waiting if key.attempt > 1]
        wanted = [path for _, path in placed] + again
        for at in range(0, len(wanted), _TOGETHER):
            self._read_blocks(wanted[at : at + _TOGETHER])
        remembered = self._remembered()
        promises = Standing(self._tree, remembered.values(), self._updates.wake)
        while self._reading or not promises.is_read:
            yield False
        self.promised = promises.found
        stand = [(key, one) for key, path in placed if (one := self._blocks[path]) is not None]
        building, now_us = self._building, self._updates.now_us()
        gangs = self._keeper.adopt(self.gangs)
        return (yield from building.state(waiting, stand, self._told, remembered, gangs, now_us=now_us, half_life_us=half_life_us))

    # -- reading

    def _read(self, path: str, then: Callable[[Stamped | None], None]) -> None:
        self._reading += 1
        self._tree.get(path, partial(self._arrived, then), failed=partial(self._failed, path, then))

    def _arrived(self, then: Callable[[Stamped | None], None], found: Stamped | None) -> None:
        self._reading -= 1
        then(found)

    def _failed(self, path: str, then: Callable[[Stamped | None], None]) -> None:
        self._reading -= 1
        self._tree.after(_RETRY_S, partial(self._read, path, then))

    def _on_records(self, partition: str, found: Stamped | None) -> None:
        self.records[partition] = (b"", None) if found is None else (found.data, found.version)
        self._updates.wake()

    def _on_gangs(self, partition: str, found: Stamped | None) -> None:
        self.gangs[partition] = found
        self._updates.wake()

    def _read_blocks(self, wanted: list[str]) -> None:
        self._reading += 1
        self._tree.get_all(wanted, partial(self._on_blocks, wanted), failed=partial(self._no_blocks, wanted))

    def _on_blocks(self, wanted: list[str], blocks: list[Stamped | None]) -> None:
        self._reading -= 1
        for path, found in zip(wanted, blocks, strict=True):
            if not self._term.aside.run(path, None if found is None else found.version, partial(self._on_block, path, found)):
                self._blocks[path] = None
        self._updates.wake()

    def _no_blocks(self, wanted: list[str]) -> None:
        self._reading -= 1
        self._tree.after(_RETRY_S, partial(self._read_blocks, wanted))

    def _on_block(self, path: str, found: Stamped | None) -> None:
        try:
            data = None if found is None else decode_block(found.data)
            allocation = None if data is None else data.allocation
            if data is not None and (data.answered or data.moves):
                self._told[path] = (data.answered, data.moves)
            self._blocks[path] = None if data is None or allocation is None else StandingJob(allocation, data.answered, data.moves)
        except msgspec.DecodeError as error:
            self._term.log.error("block_unreadable", path=path, error=str(error))
            self._blocks[path] = None

    def _remembered(self) -> dict[str, Records]:
        """By partition; what cannot be read is told, and forgotten."""
        found = {}
        for partition, (data, _) in sorted(self.records.items()):
            try:
                found[partition] = decode_records(data)
            except msgspec.DecodeError as error:
                self._term.log.error("placing_records_unreadable", partition=partition, error=str(error))
        return found
