"""Cores and memory of a node for jobs whose script runs elsewhere (holds), and for jobs that wait for running ones to end (promises).

A hold takes resources from the node's lanes as long as it stands. The leader writes `/holds/<node>`; the Starter reads names and data and
takes each hold as soon as it fits. Nothing is pulled while a hold does not fit. When a hold goes, all its processes are killed, and its
resources are free once they are dead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.adapters.host.slot import death_words, lost_words
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.tree import settle_again
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.accounts import hand_over
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.base import MIB, Needs
from rmgr.model.block import NodeHold, Reserved, run_label
from rmgr.model.frames import BatchShape, CommandBatch, CommandEnd, CommandItem
from rmgr.model.node import Freezer
from rmgr.model.states import OWN_FAILURES, Reason
from rmgr.model.units import format_size
from rmgr.runner.host import home
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.submissions import Info
    from rmgr.daemons.starter.node.node import NodeAgent

#: Name in a hold's private directory: what its ranks save.
CHECKPOINTS = "saved"
#: Pause after a hold or a promise could not be read.
_PAUSE_S = 0.5
#: Pause before an invalid record is read again; a replacement under the same name is read when it comes.
_LONG_PAUSE_S = 60.0
#: Pause between two checks whether the successor of a promise is known.
_LOOK_S = 0.01


@dataclass(slots=True, kw_only=True, eq=False)
class HeldPart:
    """One part of a job that runs elsewhere. lane: what it has here, None if nothing yet."""

    name: str
    submission: int
    index: int
    attempt: int
    record: NodeHold | None = None
    lane: WorkerLane | None = None
    seq: int = 0  #: of the program that runs its processes
    place: Path | None = None  #: its private directory, with the socket of that program
    places: list[Path] = field(default_factory=list)  #: that one, and those of ended programs: a checkpoint may be read there
    is_stale: bool = False  #: it may have changed since it was read
    retry_s: float = -math.inf  #: of the next read
    again_s: float = -math.inf  #: when it may be taken again if its program has ended
    error: str = ""  #: of the last read, logged once
    is_too_large: bool = False
    life: str = ""  #: of the node when the hold was taken
    incarnation: int = 0
    fates: dict[int, str] = field(default_factory=dict)  #: seq of a program that ran its processes -> what became of them
    killed: str = ""  #: why the turner killed its processes
    starved: set[int] = field(default_factory=set)  #: those of `fates` that used too much memory

    def suits(self, head: str, cores: int) -> bool:
        """Returns whether it has its cores, and is what was asked for (cores 0 = any)."""
        record = self.record
        return self.is_ready and record is not None and record.head == head and cores in (0, record.cores)

    def ended(self, end: CommandEnd) -> None:
        """Takes the end of its program, and so of its processes. A fate means the work's own fault; without one the system ended them."""
        if not self.is_ready or end.reason not in OWN_FAILURES - {Reason.EXIT_CODE}:
            self.fates[end.seq] = ""
            return
        fate = self.killed or end.detail
        if end.reason is Reason.SIGNAL and not fate:
            fate = lost_words(death_words(-end.signal))
        if end.reason is Reason.OUT_OF_MEMORY and self.record is not None:
            fate = f"out of memory: the job has {format_size(self.record.memory_mib * MIB)} there, and its processes used more"
            self.starved.add(end.seq)
        self.fates[end.seq] = fate

    def lost(self, words: str) -> None:
        """Notes that its slot is lost, and its processes with it."""
        self.fates[self.seq] = words

    @property
    def is_ready(self) -> bool:
        """Whether it has its cores."""
        return self.lane is not None and self.lane.owner is self

    @property
    def info(self) -> Info | None:
        """What is known of its submission while it has its cores, else None."""
        return self.lane.info if self.lane is not None and self.is_ready else None


class _Taking(Enum):
    """Result of an attempt to take the cores of a hold."""

    OVER = "over"  #: it has them, or never will
    NO_ROOM = "no-room"
    UNKNOWN = "unknown"  #: its account, or its record, is being read


class HeldParts:
    """All holds of one node. directory: for the holds' own directories.

    life: changes whenever all their processes were killed; the node's record shows it to the nodes that run their scripts.
    """

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._directory = directory
        self.known: dict[str, HeldPart] = {}
        self._waiters: dict[str, list[tuple[str, int, Future[HeldPart]]]] = {}
        self.life = machine.guid()[:12]

    def __iter__(self) -> Iterator[HeldPart]:
        return iter(self.known.values())

    def __len__(self) -> int:
        return len(self.known)

    def parts_of(self, submission: int, index: int) -> list[HeldPart]:
        """Returns the parts of one job, whether or not they have their cores."""
        return [hold for hold in self.known.values() if (hold.submission, hold.index) == (submission, index)]

    def has(self, name: str) -> bool:
        """Returns whether a hold stands, whether or not it has its cores."""
        return name in self.known

    def get(self, name: str) -> HeldPart | None:
        """Returns a hold that has its cores, else None."""
        hold = self.known.get(name)
        return hold if hold is not None and hold.is_ready else None

    def when_ready(self, name: str, *, head: str, cores: int) -> Future[HeldPart]:
        """Returns a future, done once the hold stands, is what was asked for, and has its cores; a caller that gives up cancels it."""
        future: Future[HeldPart] = Future()
        hold = self.known.get(name)
        if hold is not None and hold.suits(head, cores):
            future.set_result(hold)
        else:
            waiting = [other for other in self._waiters.get(name, ()) if not other[2].done()]
            self._waiters[name] = [*waiting, (head, cores, future)]
        return future

    def suspend(self, name: str, *, resume: bool, out_of_turn_us: int = 0) -> bool:
        """Stops or continues all processes of a hold; False if absent. out_of_turn_us: lets a part of a gang run for that time instead."""
        hold = self.get(name)
        if hold is None or hold.lane is None:
            return False
        if hold.record is not None and hold.record.gang:
            if out_of_turn_us:
                self._node.jobs.gangs.let_go(name, out_of_turn_us)
            else:
                self._node.jobs.gangs.hold(name, on=not resume)
            return True
        (hold.lane.slot.resume if resume else hold.lane.slot.suspend)(hold.seq)
        return True

    # -- facts -------------------------------------------------------------------------------------------------------------

    def seen(self, names: Sequence[str] | None) -> None:
        """Takes the children of `/holds/<node>` (None: it is absent, and there are no holds)."""
        standing = set(names or ())
        self._node.jobs.reservations.seen(standing)
        for name in [name for name in self.known if name not in standing]:
            self._node.log.info("hold_gone", name=name)
            self._end(self.known.pop(name))
        for hold in self.known.values():
            if hold.record is not None and not self._look(hold):
                hold.is_stale = True  # the same name may stand for a new hold: a job that was given back is placed again under its attempt
        for name in standing - self.known.keys():
            try:
                submission, index, attempt = paths.parse_hold(name)
            except ValueError:
                continue
            self.known[name] = HeldPart(name=name, submission=submission, index=index, attempt=attempt)

    def forget_lost(self) -> None:
        """Ends holds whose private directory was removed: nothing can be started in them, and that is the node's loss."""
        lost = [hold for hold in self.known.values() if hold.place is not None and not hold.place.is_dir()]
        if lost:
            self.life = machine.guid()[:12]
        for hold in lost:
            self._node.log.warning("hold_lost", name=hold.name, why="its directory was removed")
            if hold.lane is not None and hold.is_ready:
                hold.lane.slot.stop(hold.seq, reason=Reason.NODE_LOST, grace_us=0)
            hold.place = None

    def lose(self) -> None:
        """Ends all holds after the node was fenced."""
        for hold in self.known.values():
            self._end(hold)
        self.known.clear()
        self._node.jobs.reservations.lose()
        self.life = machine.guid()[:12]

    # -- acting ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Takes holds that fit now; tells the lanes whether one does not fit, and whether one is still unknown."""
        lanes = self._node.lanes
        owed, unsure = self._node.jobs.reservations.is_owed, self._node.jobs.reservations.is_unsure
        for hold in self.known.values():
            waits = not (hold.is_ready or hold.is_too_large)
            if hold.record is None or hold.is_stale:
                self._look(hold)
                unsure = unsure or (waits and (hold.record is not None or not hold.error))
            elif waits and machine.monotonic() >= hold.again_s:
                taken = self._take(hold, hold.record)
                owed, unsure = owed or taken is _Taking.NO_ROOM, unsure or taken is _Taking.UNKNOWN
            else:
                unsure = unsure or waits
        lanes.is_owed, lanes.is_unsure = owed, unsure

    def _take(self, hold: HeldPart, record: NodeHold) -> _Taking:
        lanes = self._node.lanes
        info = self._shared.records.get(hold.submission)
        if info is None:
            return _Taking.OVER if self._shared.records.is_refused(hold.submission) else _Taking.UNKNOWN
        cores, memory_mib = lanes.cores if record.whole else max(1, record.cores), record.memory_mib
        part = hold.name if record.gang else ""
        if cores > lanes.cores or memory_mib > lanes.memory_mib:
            hold.is_too_large = True
            self._node.log.error("hold_too_large", name=hold.name, cores=cores, memory_bytes=memory_mib << 20)
            return _Taking.OVER
        if self._node.accounts is not None:
            account = self._node.accounts.get(info.record.user)
            if account is None:
                return _Taking.UNKNOWN
            if isinstance(account, FetchFailure):
                return _Taking.OVER  # the start is revoked in time
            info.account = account
        needs = lanes.all_resources if record.whole else tuple((name, count * max(1, record.processes)) for name, count in info.needs)
        if any(count > lanes.resources.get(name, 0) for name, count in needs):
            hold.is_too_large = True
            self._node.log.error("hold_too_large", name=hold.name, detail=f"resources {dict(needs)}")
            return _Taking.OVER
        self._node.jobs.reservations.make_room(hold.submission, hold.index)
        if part:
            cores = 0
            if self._node.jobs.gangs.seat(record, part, info) is None:
                return _Taking.NO_ROOM
        lane = lanes.open_for(info, None, cores, memory_mib, needs, part=part)
        if lane is not None and not lane.slot.has_home:  # other nodes start at once, so this one must take another slot now
            lanes.give_up(lane)
            lanes.retire(lane.slot)
            self._node.missed()
            lane = lanes.open_for(info, None, cores, memory_mib, needs) if not part else None
        if lane is None:
            return _Taking.NO_ROOM
        hold.lane, lane.owner = lane, hold
        hold.life, hold.incarnation = self.life, self._node.incarnation
        hold.again_s = machine.monotonic() + _PAUSE_S
        try:
            self._serve(hold, lane, info)
        except OSError:  # no descriptor or a full disk: tried again, and not reported as ready until then
            hold.lane = None
            lanes.give_up(lane)
            raise
        self._node.log.info("hold_taken", name=hold.name, cores=cores)
        waiting = self._waiters.pop(hold.name, [])
        for head, asked, waiter in waiting:
            if hold.suits(head, asked) and waiter.set_running_or_notify_cancel():
                waiter.set_result(hold)
        left = [entry for entry in waiting if not entry[2].done()]
        if left:
            self._waiters[hold.name] = left
        return _Taking.OVER

    def _serve(self, hold: HeldPart, lane: WorkerLane, info: Info) -> None:
        """Starts the program that runs the hold's processes, which are all killed with it. Raises: OSError."""
        hold.seq = self._node.lanes.runner.next_seq()
        place = hold.place = self._directory / f"hold-{hold.name}-{hold.seq}"
        hold.places.append(place)
        self._shared.home.check()
        try:
            place.mkdir(mode=0o700)
        except FileNotFoundError:
            if not self._shared.home.look():
                raise
            place.mkdir(mode=0o700)
        (place / CHECKPOINTS).mkdir(mode=0o700)
        if info.account is not None:
            hand_over(place, info.account)
        shape = BatchShape(
            submission=hold.submission,
            cores=lane.cores,
            memory_bytes=lane.memory_mib * MIB,
            exclusive=info.is_exclusive,
            environ={
                "RMGR_NODE": self._node.name,
                "RMGR_CHECKPOINT_DIR": str(place / CHECKPOINTS),
                "RMGR_CPUS_ON_NODE": str(lane.cores or hold.record.cores if hold.record is not None else lane.cores),
            }
            | lane.variables,
        )
        argv = (home.PYTHON, "-I", "-S", str(home.source("rmgr.runner.ranks.ranks")), str(place))
        item = CommandItem(seq=hold.seq, index=hold.index, attempt=hold.attempt, label=info.label(hold.index))
        is_turned = bool(lane.part)
        halts = is_turned and self._node.lanes.runner.freezer == Freezer.SIGNALS
        lane.slot.run(CommandBatch(shape=shape, argv=argv, items=(item,), isolate=is_turned, halts=halts))

    def _end(self, hold: HeldPart) -> None:
        """Kills its processes; its lane is given up when they are dead."""
        lane = hold.lane if hold.is_ready else None
        hold.lane = None
        if lane is not None:
            lane.slot.stop(hold.seq, grace_us=0)
        while hold.places:
            self._remove(hold.places.pop())

    def _remove(self, place: Path) -> None:
        self._shared.io.run(lambda _store: remove_tree(place), lambda _result: None)

    def _look(self, hold: HeldPart) -> bool:
        """Begins to read a hold's record. False: too early, or already being read."""
        return machine.monotonic() >= hold.retry_s and self._node.stories.begin(self._read(hold), key=("hold", hold))

    def _read(self, hold: HeldPart) -> Story[None]:
        hold.is_stale = False
        try:
            found: Stamped | None = yield self._shared.coordinator.get(f"{paths.hold(self._node.name)}/{hold.name}")
            record = decode_record(found.data, NodeHold, hold.name) if found is not None else None
        except RmgrError as error:
            if error.message != hold.error:
                self._node.log.warning("hold_not_readable", name=hold.name, error=error.message)
            hold.error = error.message
            hold.retry_s = machine.monotonic() + (_LONG_PAUSE_S if isinstance(error, WrongCluster) else _PAUSE_S)
            hold.is_stale = True
            return
        if self.known.get(hold.name) is not hold:
            return
        if record is None:
            self._end(self.known.pop(hold.name))
        elif hold.record is None:
            hold.record = record
        elif record != hold.record:
            self._node.log.info("hold_replaced", name=hold.name)
            self._end(hold)
            fresh = HeldPart(name=hold.name, submission=hold.submission, index=hold.index, attempt=hold.attempt, record=record)
            self.known[hold.name] = fresh


# -- promised cores --------------------------------------------------------------------------------------------------------
# Cores of a node promised to a waiting job: without asking, the Starter keeps the cores of a running job for it when that job ends.
# `/holds/<node>/r-<job>` names the running jobs whose cores are promised. A job that ends here frees its cores in `Lanes`, and they are
# kept again before anything else may start: pulled work never gets between, and the COMPLETE that deletes the block is the only commit. A
# new leader, or this node after a restart, sees from the same block that the cores belong to the waiting job. A promise ends with the
# commit that places its job: the cores stay kept until the START, or the hold, that came with it is known.


@dataclass(slots=True, kw_only=True, eq=False)
class Promise:
    """A promise to one waiting job. met: those of its running jobs that were seen here; gone: those that have ended."""

    name: str
    submission: int
    index: int
    record: Reserved | None = None
    met: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    is_stale: bool = True  #: it must be read
    is_bad: bool = False  #: its record is no valid promise: nothing is kept
    is_leaving: bool = False  #: its job was placed, or does not wait any more
    retry_s: float = -math.inf


class Reservations:
    """All promises on one node. is_owed: one lacks cores that are still in use. is_unsure: one has not been read."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._promises: dict[str, Promise] = {}
        self._looks = False
        self.is_owed = self.is_unsure = False

    def seen(self, names: Collection[str]) -> None:
        """Takes the names below `/holds/<node>`."""
        standing = dict(paths.reserved_in(names))
        for name, promise in self._promises.items():
            promise.is_leaving = name not in standing
            promise.is_stale = not promise.is_leaving  # another one of the same name may have replaced it
        for name, (submission, index) in standing.items():
            if name not in self._promises:
                self._promises[name] = Promise(name=name, submission=submission, index=index)

    def lose(self) -> None:
        """Forgets all promises after the node was fenced; those that stand are read again."""
        for name in self._promises:
            self._node.lanes.keep(name, 0, 0)
        self._promises.clear()
        self.is_owed = self.is_unsure = False

    def settle(self) -> None:
        """Keeps freed resources for the jobs to which they are promised. Cost: O(blocks + holds) while there are promises."""
        if not self._promises:
            return
        self._release_promises()
        here = self._runs_here()
        is_owed = False
        for promise in self._promises.values():
            if promise.is_stale and machine.monotonic() >= promise.retry_s:
                self._node.stories.begin(self._read(promise), key=("promise", promise))
            if promise.record is not None and not promise.is_bad:  # also of one that leaves: a job that it waits for may end only now
                is_owed = not self._node.lanes.keep(promise.name, *self.wanted(promise, promise.record, here)) or is_owed
        self.is_owed = is_owed
        self.is_unsure = any(one.record is None and not one.is_bad for one in self._promises.values())

    def _release_promises(self) -> None:
        """Frees what was kept for placed jobs; they take it first, since they come before pulled work."""
        jobs = self._node.jobs
        for promise in [promise for promise in self._promises.values() if promise.is_leaving]:
            parts = jobs.holds.parts_of(promise.submission, promise.index)
            if not self._node.orders.is_settled or jobs.is_taking(promise.submission):
                self._look_later()
            elif all(part.is_ready or part.is_too_large for part in parts):
                self._end(promise)

    def make_room(self, submission: int, index: int) -> None:
        """Frees what was kept for a job whose part, with the script elsewhere, takes its cores now."""
        for promise in list(self._promises.values()):
            if promise.is_leaving and (promise.submission, promise.index) == (submission, index):
                self._end(promise)

    def _end(self, promise: Promise) -> None:
        del self._promises[promise.name]
        self._node.lanes.keep(promise.name, 0, 0)
        self._node.log.info("reservation_gone", name=promise.name)

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._shared.after(_LOOK_S, self._looked)

    def _looked(self) -> None:
        self._looks = False

    def _runs_here(self) -> set[str]:
        """Returns the jobs that have cores of this node, or are about to."""
        blocks = (block for block in self._node.blocks.values() if block.is_placed and (block.ready or block.live))
        return {run_label(block.key.submission, block.key.first, block.key.attempt) for block in blocks}

    def wanted(self, promise: Promise, record: Reserved, here: set[str]) -> tuple[int, int, Needs]:
        """Returns the cores, MiB and pieces of other resources that belong to the waiting job by now."""
        jobs, is_settled = self._node.jobs, self._node.orders.is_settled
        cores = total = 0
        for run, count in record.shares:
            total += count
            if run in here or jobs.holds.has(run):
                promise.met.add(run)
                promise.gone.discard(run)
            elif run not in promise.gone:
                # A job that was never seen here has ended, or has not come: its START may be on the way.
                if run in promise.met or not run or (is_settled and not jobs.is_taking(int(run.partition(".")[0]))):
                    promise.gone.add(run)
                else:
                    self._look_later()
            cores += count if run in promise.gone else 0
        if not total:
            return cores, 0, ()
        needs = tuple((name, count * cores // total) for name, count in record.resources)
        return cores, record.memory_mib * cores // total, needs

    # -- reading

    def _read(self, promise: Promise) -> Story[None]:
        promise.is_stale = False
        try:
            found: Stamped | None = yield self._shared.coordinator.get(f"{paths.hold(self._node.name)}/{promise.name}")
            if found is not None:  # else the list without it is on the way
                promise.record = record = decode_record(found.data, Reserved, promise.name)
                promise.is_bad = len(paths.holds_in(run for run, _ in record.shares if run)) < sum(bool(run) for run, _ in record.shares)
        except RmgrError as error:
            self._node.log.warning("reservation_not_readable", name=promise.name, error=error.message)
            promise.is_bad = isinstance(error, WrongCluster)
            promise.is_stale, promise.retry_s = not promise.is_bad, machine.monotonic() + _PAUSE_S
            self._shared.after(_PAUSE_S, settle_again)
