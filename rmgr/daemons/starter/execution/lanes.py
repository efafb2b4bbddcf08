"""The slots of one node and what they hold: cores, memory and other resources are counted here and nowhere else; how slots come back.

A *lane* is one place where tasks run one after another: a Python worker, or the command queue of a slot. A busy lane
holds cores and memory; a lane whose task waits for another task (blocked) holds none until it is granted them again. Cores that such
tasks use all the same are not free: what they say of themselves is not believed. Of other resources, whose single pieces have numbers,
a lane keeps what it was lent as long as it has tasks.
"""

from __future__ import annotations

import itertools
import math
import os
from bisect import insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import NodeRunner, Slot, Worker, WorkerSpec
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.submissions import Info, RecordState
from rmgr.errors import ConfigError
from rmgr.model.base.resources import Needs, lent_variables, needs_of
from rmgr.model.base.states import Reason
from rmgr.runtime import machine

#: Idle workers of other kinds that a slot keeps warm.
_WARM = 2
#: How long an idle worker waits for more work of a submission that has ended; its program may begin another one.
_DISMISS_S = 5.0
#: And of one that is open, for all that a TaskQueue stays open when its program has ended.
_FORGOTTEN_S = 600.0
#: Slots opened at the start; more when work needs them.
_EARLY_SLOTS = 8
#: Spawners of other users that one place keeps warm.
_WARM_SPAWNERS = 2
#: Blocked tasks are looked at this often (s): until then each gives its core away. What they used in less time than the second cannot be
#: told: the kernel counts in hundredths of a second.
_LOOK_S, _LEAST_S = 0.5, 0.15
#: Until they were looked at, blocked tasks give away so many times the node's cores, and no more: so few begin before a lie is seen.
_UNPROVEN = 2
#: Cores that a task uses which really waits, at most.
_WAITS = 0.05
#: What a slot is: its interpreter, and whose rights its work has (None: the Starter's).
Kind = tuple[str, Account | None]
Task = tuple[ClaimedBlock, int]
#: A spawner is up after 0.1 s; on a machine that swaps, later.
_UP_S = 20.0
#: How often spawners are continued: one that its work has stopped would enforce no limit, and hear of no cancel.
_CONTINUE_S = 2.0
#: After a failure; doubled each time.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0


class _Kept(NamedTuple):
    """pieces: numbers, ascending, by name of the resource."""

    cores: int
    memory_mib: int
    pieces: Mapping[str, list[int]]


_NOTHING = _Kept(0, 0, {})


@dataclass(slots=True, eq=False)
class WorkerLane:
    """tasks: by seq, in order. since_s: monotonic time of the last thing heard of it (a sending, an end)."""

    slot: Slot
    worker: Worker | None
    spec: WorkerSpec | None = None
    cores: int = 0
    memory_mib: int = 0
    info: Info | None = None
    serial: ClaimedBlock | None = None
    tasks: dict[int, Task] = field(default_factory=dict)
    since_s: float = -math.inf
    blocked_seq: int = 0
    looked: tuple[float, float, float] = (0.0, 0.0, 0.0)  #: processor seconds had, waited for, as of when (monotonic)
    uses: float = 0.0  #: cores that its task uses while it says that it waits
    shape: tuple[int, int, Needs] = (0, 0, ())  #: cores, memory and other resources of its tasks, also while it is blocked
    asked: WorkerSpec | None = None  #: what `spec` was before it got the variables of what is lent
    lent: dict[str, list[int]] = field(default_factory=dict)  #: numbers of the pieces that are its own, by name
    cpus: list[int] = field(default_factory=list)  #: processors that are its own, none: it is not bound
    recalling: bool = False
    last: int = 0  #: submission whose work it had last
    part: str = ""  #: of a gang: it has its cores in its turns only, and they are counted for all of them together
    is_held: bool = False  #: what it needs is taken out of the node's
    owner: object = None  #: what holds it although no task of it runs: a hold, the seat of a job that is about to start

    @property
    def kind(self) -> str | int:
        """Of the task that runs."""
        return next(iter(self.tasks.values()))[0].kind if self.tasks else 0

    @property
    def running_seq(self) -> int:
        """The task that runs, or will run next."""
        return next(iter(self.tasks), 0)

    @property
    def is_special(self) -> bool:
        """Its tasks have variables that others do not have."""
        return bool(self.lent or self.cpus)

    @property
    def variables(self) -> dict[str, str]:
        """With which its tasks find what is lent, and the processors that are theirs."""
        found = lent_variables(self.lent) if self.lent else {}
        if self.cpus:  # Open MPI, too, leaves the ranks of a node where they are
            found |= {"RMGR_CPU_BIND": ",".join(map(str, self.cpus)), "OMPI_MCA_hwloc_base_binding_policy": "none"}
        return found

    def lags(self, most_bytes: int) -> bool:
        """Its worker has not taken more than so many bytes of what it was sent."""
        return self.worker is not None and self.worker.backlog > most_bytes

    def is_for(self, info: Info, spec: WorkerSpec | None, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """More tasks like these may be queued behind what it has, also those of another submission that need the same worker."""
        return (
            self.info is not None
            and (self.info is info or (self.info.python == info.python and self.info.account == info.account))
            and (self.spec is spec or self.spec == spec or (bool(self.lent) and self.asked == spec))
            and self.shape == (cores, memory_mib, needs)
            and not self.blocked_seq
            and self.serial is None
            and not self.recalling
            and (self.worker is None or not self.worker.is_leaving)
        )


class Lanes:
    """All lanes of a node.

    Args:
        cores, memory_mib, resources: what the node has; a task of 0 MiB is not counted against its memory.
        processors: its own, as many as cores; none: lanes are not bound.
        python: interpreter of workers, "" = this one. early: opens slots before there is work (whose it will be is known).
    """

    def __init__(
        self,
        runner: NodeRunner,
        *,
        cores: int,
        memory_mib: int,
        python: str = "",
        early: bool = True,
        resources: Mapping[str, int] | None = None,
        processors: Sequence[int] = (),
    ) -> None:
        self.runner = runner
        self.cores = self._unheld = cores  #: the second: what no lane holds
        self.memory_mib = self.free_memory_mib = memory_mib
        self.resources = dict(resources or {})
        self._pieces = {name: list(range(count)) for name, count in self.resources.items()}  #: not lent, ascending
        self._own_processors = list(processors)
        self._processors = list(processors)  #: nobody's, ascending
        self._python = python
        self._workers: dict[Worker, WorkerLane] = {}
        self._commands: dict[Slot, WorkerLane] = {}
        self._slots: dict[int, list[Slot]] = {}  #: of each place, the one used last at the end
        self._kinds: dict[Slot, Kind] = {}
        self._active: dict[int, int] = {}
        self._waiting: deque[WorkerLane] = deque()
        self._overdrawn = 0
        self._unproven: set[WorkerLane] = set()  #: blocked so lately that nobody knows whether they wait
        self._looks_s = -math.inf  #: when blocked tasks are looked at next
        self._dismisses_s = -math.inf  #: when idle workers are looked at next
        self._turning: dict[str, tuple[Slot, list[int]]] = {}  #: part of a gang -> its slot, and the processors that it has in its turns
        self._retired: list[Slot] = []  #: get no more work, and end once they have none
        self.unproven: set[Account | None] = set()  #: users whose next slot must be up before it gets work
        self.is_owed = False  #: something that the leader has put here does not fit yet: nothing else may start
        self.is_unsure = False  #: it is being read how much is kept for whom: nothing that was pulled may start
        self._kept: dict[str, _Kept] = {}  #: what is free, and lent to nobody but one
        for number in range(min(cores, _EARLY_SLOTS) if early else 0):
            self._open(number, (python, None))

    # -- looking ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[WorkerLane]:
        """Lanes with tasks."""
        return iter([lane for lanes in (self._workers, self._commands) for lane in lanes.values() if lane.tasks])

    @property
    def is_idle(self) -> bool:
        """No task is anywhere."""
        return not any(True for _ in self)

    @property
    def wants_grant(self) -> bool:
        """A blocked task could go on if it had its cores."""
        return bool(self._waiting)

    @property
    def free_cores(self) -> int:
        """Neither held nor used by blocked tasks."""
        if not self._overdrawn and not self._unproven:
            return self._unheld
        too_soon = sum(lane.shape[0] for lane in self._unproven) - _UNPROVEN * self.cores
        return max(0, self._unheld - self._overdrawn - max(0, too_soon))

    @property
    def overdrawn(self) -> int:
        """Cores that blocked tasks use: no new work gets them."""
        return self._overdrawn

    def fits(self, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """One more task of this size could start now."""
        return cores <= self.free_cores and memory_mib <= self.free_memory_mib and (not needs or self.has_free(needs))

    def has_free(self, needs: Needs) -> bool:
        """So many pieces are lent to nobody."""
        return all(len(self._pieces.get(name, ())) >= count for name, count in needs)

    @property
    def all_resources(self) -> Needs:
        """Beside cores and memory, all that the node has."""
        return needs_of(self.resources)

    def size_of(self, block: ClaimedBlock) -> tuple[int, int, Needs]:
        """Cores, MiB and other resources of a task of it; a job that has its nodes for itself has all cores and resources.

        One of a gang has no cores: the gang has them all.
        """
        allocation = block.data.allocation
        if allocation is not None and allocation.gang:
            _, memory_mib, needs = block.size
            return 0, memory_mib, needs
        if allocation is None or not allocation.whole:
            return block.size
        return self.cores, block.key.memory_mib, self.all_resources

    def free_of(self, name: str) -> int:
        """Pieces of a resource that are lent to nobody."""
        return len(self._pieces.get(name, ()))

    def slots_for(self, cores: int, needs: Needs = ()) -> int:
        """Tasks of this size that the empty node runs at once, at least 1."""
        slots = self.cores // cores
        for name, count in needs:
            slots = min(slots, self.resources.get(name, 0) // count)
        return max(1, slots)

    def python_of(self, slot: Slot) -> str:
        """The interpreter of its workers."""
        return self._kinds[slot][0] if slot in self._kinds else self._python

    def has_chosen_python(self, slot: Slot) -> bool:
        """Its interpreter was chosen by a user."""
        return slot in self._kinds and self._kinds[slot][0] != self._python

    def is_his_own_doing(self, slot: Slot) -> bool:
        """What befalls this slot may be its user's doing: he has chosen its interpreter, or has another one that is well.

        One that was lost a moment ago, of which nobody has heard yet, counts: its work may have ended both.
        """
        others = (other for slots in (*self._slots.values(), self._retired) for other in slots if other is not slot)
        another = any(other.account == slot.account and other.is_up for other in others)
        return self.has_chosen_python(slot) or (slot.account is not None and another)

    def of_worker(self, worker: Worker) -> WorkerLane | None:
        """The lane of a worker."""
        return self._workers.get(worker)

    def of_slot(self, slot: Slot) -> WorkerLane | None:
        """The lane of a slot's commands."""
        return self._commands.get(slot)

    # -- taking and giving up --------------------------------------------------------------------------------------------

    def open_for(
        self, info: Info, spec: WorkerSpec | None, cores: int, memory_mib: int, needs: Needs = (), *, part: str = ""
    ) -> WorkerLane | None:
        """An idle lane for a task of this size, holding what it needs; None when it does not fit now.

        part: of a gang, in whose slot it is (`seat`). Raises: OSError when no slot can be opened.
        """
        if not self.fits(cores, memory_mib, needs) or (part and part not in self._turning):
            return None
        asked, pieces = spec, {name: self._pieces[name][:count] for name, count in needs}
        if spec is not None and needs:  # a library keeps the pieces that it has seen first: no worker is used with others
            spec = replace(spec, environ=spec.environ | lent_variables(pieces))
        kind = (info.python or self._python, info.account)
        lane = self._idle_worker(spec, kind) if spec is not None and not part else None
        if lane is None:
            slot = self._turning[part][0] if part else self._free_slot(kind, any_python=spec is None)
            if slot is None or slot.is_lost:
                return None
            if spec is not None:
                self._forget_idle(slot)
                lane = WorkerLane(slot, slot.start_worker(spec), spec)
                self._workers[lane.worker] = lane  # type: ignore[index]
            else:
                lane = self._commands.get(slot) or WorkerLane(slot, None)
                self._commands[slot] = lane
        lane.info, lane.shape, lane.recalling, lane.serial = info, (cores, memory_mib, needs), False, None
        lane.last = info.record.id
        lane.asked, lane.part = asked, part
        self._hold(lane)
        if needs:
            lane.lent = pieces
            for name, count in needs:
                del self._pieces[name][:count]
        return lane

    def ended(self, lane: WorkerLane, seqs: Iterable[int], now_s: float | None) -> list[Task]:
        """These tasks of a lane ended (now_s None: were taken back): what they were; after the last one it is given up."""
        pop = lane.tasks.pop
        found = [task for task in [pop(seq, None) for seq in seqs] if task is not None]
        self.left(lane, now_s)
        return found

    def left(self, lane: WorkerLane, now_s: float | None) -> None:
        """Tasks have been taken out of a lane (now_s: because they ended, None: otherwise); after the last one it is given up."""
        if now_s is not None:
            lane.since_s = now_s
        if lane.blocked_seq and lane.blocked_seq not in lane.tasks:
            lane.blocked_seq, lane.uses = 0, 0.0
            self._unproven.discard(lane)
        if not lane.tasks:
            self.give_up(lane)

    def give_up(self, lane: WorkerLane) -> None:
        """The lane holds nothing any more."""
        self._release(lane)
        for name, pieces in lane.lent.items():
            for piece in pieces:
                insort(self._pieces[name], piece)
        lane.lent = {}
        lane.info = lane.serial = lane.owner = None
        lane.recalling = False
        lane.blocked_seq, lane.uses = 0, 0.0
        self._unproven.discard(lane)
        if lane in self._waiting:
            self._waiting.remove(lane)
        if self._retired:
            self.close_retired()

    def drop_worker(self, worker: Worker) -> WorkerLane | None:
        """A worker is dead: its lane goes, with the tasks that it still has."""
        lane = self._workers.pop(worker, None)
        if lane is not None:
            self.give_up(lane)
        return lane

    def drop_slot(self, slot: Slot) -> WorkerLane | None:
        """A slot is dead (its workers have been dropped before)."""
        self._kinds.pop(slot, None)
        if slot in self._retired:
            self._retired.remove(slot)
        if slot in self._slots.get(slot.number, ()):
            self._slots[slot.number].remove(slot)
        lane = self._commands.pop(slot, None)
        if lane is not None:
            self.give_up(lane)
        return lane

    def slots(self) -> list[Slot]:
        """All that are open."""
        return [slot for slots in self._slots.values() for slot in slots if not slot.is_lost] + self._retired

    def retire(self, slot: Slot) -> None:
        """Its directory is gone: it gets no more work, and ends after what it has."""
        if slot in self._slots.get(slot.number, ()):
            self._slots[slot.number].remove(slot)
            self._retired.append(slot)
            for lane in self:
                if lane.slot is slot:
                    lane.info = None  # nothing is queued behind what it has
        self.close_retired()

    def retire_homeless(self) -> None:
        """Slots whose directories were removed. Cost: an lstat each."""
        for slot in [slot for slots in self._slots.values() for slot in slots if not slot.has_home]:
            self.retire(slot)

    def close_retired(self) -> None:
        """Ends retired slots that have nothing to do."""
        busy = {lane.slot for lane in self} | {lane.slot for lane in self._commands.values() if lane.owner is not None}
        for slot in [slot for slot in self._retired if slot not in busy]:
            self._retired.remove(slot)
            slot.close()

    def open_idle(self, number: int, account: Account | None) -> Slot:
        """A slot for which there is no work yet. Raises: OSError."""
        return self._open(number, (self._python, account))

    def keep(self, whose: str, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """So much is kept for somebody, as far as it is free now; what he had beyond that is free. True: he has all of it."""
        had = self._kept.pop(whose, _NOTHING)
        self._unheld += had.cores
        self.free_memory_mib += had.memory_mib
        for name, pieces in had.pieces.items():
            self._pieces[name] = sorted((*self._pieces[name], *pieces))
        found = min(cores, self.free_cores), min(memory_mib, self.free_memory_mib)
        self._unheld -= found[0]
        self.free_memory_mib -= found[1]
        kept: dict[str, list[int]] = {}
        for name, count in needs:
            free = self._pieces.get(name, [])
            kept[name] = free[len(free) - min(count, len(free)) :]  # the highest: workers have seen the lowest
            del free[len(free) - len(kept[name]) :]
        lent = {name: some for name, some in kept.items() if some}
        if any(found) or lent:
            self._kept[whose] = _Kept(*found, lent)
        return found == (cores, memory_mib) and all(len(kept[name]) == count for name, count in needs)

    def dismiss(self, now_s: float, state_of: Callable[[int], RecordState]) -> float:
        """Ends idle workers of programs that have ended: nobody will ask for them. state_of: of a submission.

        Returns when to look again (monotonic), inf = no worker is idle. Cost: every few seconds, a look at the record of each.
        """
        if now_s < self._dismisses_s:
            return self._dismisses_s
        for worker, lane in self._workers.items():
            idle_s = now_s - lane.since_s
            spec = lane.spec
            if lane.tasks or lane.cores or worker.is_leaving or spec is None or not spec.program or idle_s < _DISMISS_S:
                continue
            is_forgotten = idle_s >= _FORGOTTEN_S and not spec.group  # an initializer may have been dear
            if is_forgotten or state_of(lane.last) is RecordState.CLOSED:
                worker.is_leaving = True
                worker.stop(reason=Reason.NONE, grace_us=0)
        self._dismisses_s = now_s + _DISMISS_S / 2
        return self._dismisses_s if self._workers else math.inf

    # -- parts of gangs ----------------------------------------------------------------------------------------------------

    def seat(self, part: str, info: Info, first: int, cores: int) -> Slot | None:
        """The slot of a part of a gang, which nothing else uses until `unseat`; None while its user's next slot has to prove itself.

        first, cores: which of the node's cores it has in its turns. Raises: OSError when it cannot be opened.
        """
        known = self._turning.get(part)
        if known is not None and not known[0].is_lost:
            return known[0]
        kind = (info.python or self._python, info.account)
        if kind[1] in self.unproven:
            return None
        taken = {slot.number for slot, _ in self._turning.values()}
        number = next(number for number in itertools.count(self.cores) if number not in taken and not self._slots.get(number))
        slot = self._open(number, kind)
        self._turning[part] = slot, self._own_processors[first : first + cores]
        return slot

    def unseat(self, part: str) -> None:
        """The part is over: its slot ends."""
        known = self._turning.pop(part, None)
        if known is not None and not known[0].is_lost:
            known[0].close()

    def is_used(self, slot: Slot) -> bool:
        """Something runs in it, or is about to."""
        lane = self._commands.get(slot)
        return (lane is not None and lane.owner is not None) or any(other.slot is slot for other in self)

    # -- tasks that wait for tasks -----------------------------------------------------------------------------------------

    def block(self, lane: WorkerLane, seq: int) -> None:
        """Its task waits for another one: what it holds is free."""
        if seq in lane.tasks:
            lane.blocked_seq = seq
            self._release(lane)
            lane.looked = (*self._processor_s(lane)[:2], machine.monotonic())
            self._unproven.add(lane)

    def unblock(self, lane: WorkerLane, seq: int) -> None:
        """It could go on: it is granted what it needs before anything new starts."""
        if lane.blocked_seq == seq and lane not in self._waiting:
            self._waiting.append(lane)
        elif lane.blocked_seq != seq and lane.worker is not None:
            lane.worker.grant(seq)

    def charge_blocked(self, now_s: float) -> float:
        """Counts cores that blocked tasks use, once in a while. Returns when it is needed again (monotonic), inf = nobody is blocked.

        A task that waits for results uses a little: what all of them use is rounded to whole cores. Cost: 100 us a blocked task.
        """
        blocked = self._blocked()
        self._unproven &= set(blocked)
        if not blocked:
            self._overdrawn = 0
            return math.inf
        if now_s >= self._due_s():
            is_round = now_s >= self._looks_s
            self._looks_s = now_s + _LOOK_S if is_round else self._looks_s
            for lane in blocked if is_round else list(self._unproven):
                had_s, waited_s, since_s = lane.looked
                if (length_s := now_s - since_s) >= _LEAST_S:
                    used_before, (used_s, later_s, is_ready) = lane.uses, self._processor_s(lane)
                    lane.looked = used_s, later_s, now_s
                    lane.uses = max(0.0, used_s - had_s) / length_s
                    if lane.uses > _WAITS:  # on a busy machine it would use more if it could
                        lane.uses += max(0.0, later_s - waited_s) / length_s
                    if is_ready:  # it may have stood there all the time: how long, the kernel counts once it has got a processor
                        lane.uses = max(lane.uses, used_before)
                    if lane.uses > _WAITS or not is_ready:
                        self._unproven.discard(lane)
            self._overdrawn = round(sum(lane.uses for lane in blocked))
        return self._due_s()

    def _due_s(self) -> float:
        """The next round, or sooner the first look at one of which nothing is known."""
        return min([self._looks_s, *(lane.looked[2] + _LEAST_S for lane in self._unproven)])

    def _blocked(self) -> list[WorkerLane]:
        return [lane for lane in self._workers.values() if lane.blocked_seq]

    @staticmethod
    def _processor_s(lane: WorkerLane) -> tuple[float, float, bool]:
        return lane.slot.processor_seconds(lane.worker) if lane.worker is not None else (0.0, 0.0, False)

    def grant(self) -> None:
        """Gives those that wait what has become free."""
        while self._waiting:
            lane = self._waiting[0]
            others = round(sum(other.uses for other in self._blocked() if other is not lane)) if self._overdrawn else 0
            cores, memory_mib, _ = lane.shape
            if cores > self._unheld - others or memory_mib > self.free_memory_mib:
                return
            self._waiting.popleft()
            seq, lane.blocked_seq, lane.uses, self._overdrawn = lane.blocked_seq, 0, 0.0, others
            self._unproven.discard(lane)
            self._hold(lane)
            if lane.worker is not None:
                with suppress(OSError):  # its processors may be others than before
                    if lane.cpus:
                        os.sched_setaffinity(lane.worker.pid, lane.cpus)
                lane.worker.grant(seq)

    # -- ending ------------------------------------------------------------------------------------------------------------

    def stop(self, lane: WorkerLane, seq: int, reason: Reason, grace_us: int) -> None:
        """Ends one task: if it runs it is killed, if it waits behind another one it is taken back or dropped."""
        (lane.worker or lane.slot).stop(seq, reason=reason, grace_us=grace_us)

    def recall(self, lane: WorkerLane, keep: int = 0) -> None:
        """Takes back what has not begun beyond the next `keep` tasks."""
        lane.recalling = True
        if lane.worker is None:
            lane.slot.recall(keep=keep)
        else:
            lane.worker.recall(keep=keep)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _hold(self, lane: WorkerLane) -> None:
        lane.cores, lane.memory_mib, _ = lane.shape
        slots = self._slots.get(lane.slot.number, [])
        if slots and slots[-1] is not lane.slot and lane.slot in slots:
            slots.remove(lane.slot)
            slots.append(lane.slot)
        if lane.part:
            lane.cpus = list(self._turning[lane.part][1]) if lane.part in self._turning else []
        else:
            lane.cpus, self._processors = self._processors[: lane.cores], self._processors[lane.cores :]
        lane.is_held = True
        self._unheld -= lane.cores
        self.free_memory_mib -= lane.memory_mib
        self._active[lane.slot.number] = self._active.get(lane.slot.number, 0) + 1
        lane.slot.uses += 1
        assert self._unheld >= 0
        assert self.free_memory_mib >= 0

    def _release(self, lane: WorkerLane) -> None:
        if lane.is_held:
            lane.is_held = False
            for cpu in lane.cpus if not lane.part else ():
                insort(self._processors, cpu)
            lane.cpus = []
            self._unheld += lane.cores
            self.free_memory_mib += lane.memory_mib
            lane.cores = lane.memory_mib = 0
            self._active[lane.slot.number] -= 1

    def _idle_worker(self, spec: WorkerSpec, kind: Kind) -> WorkerLane | None:
        best = None
        for lane in self._workers.values():
            if lane.tasks or lane.cores or lane.worker is None or (lane.spec is not spec and lane.spec != spec):
                continue
            if lane.slot.number >= self.cores:  # it stands still between its turns
                continue
            if lane.worker.is_leaving or lane.slot.is_lost or self._kinds.get(lane.slot) != kind or lane.slot in self._retired:
                continue
            if not self._active.get(lane.slot.number):
                return lane
            best = best or lane
        return best

    def _free_slot(self, kind: Kind, *, any_python: bool) -> Slot | None:
        """A slot with nothing active (there is one whenever a core is free), of this user, and interpreter where it matters.

        None while the user's next slot has to prove itself.
        """
        unproven = kind[1] in self.unproven
        free = [number for number in range(self.cores) if not self._active.get(number)]
        for number in free:
            for slot in self._slots.get(number, ()):
                if slot.is_lost or (unproven and not slot.is_up):
                    continue
                its_python, its_account = self._kinds[slot]
                if its_account == kind[1] and (any_python or its_python == kind[0]):
                    return slot
        if unproven:
            return None
        living = {number: [slot for slot in self._slots.get(number, ()) if not slot.is_lost] for number in free}
        number = min(free, key=lambda one: (len(living[one]), one))
        same_user = [slot for slot in living[number] if self._kinds[slot][1] == kind[1]]
        others = [slot for slot in living[number] if slot not in same_user]
        for slot in (*same_user, *others[: max(0, len(others) - _WARM_SPAWNERS)]):
            slot.close()  # its idle workers go with it
        return self._open(number, kind)

    def _forget_idle(self, slot: Slot) -> None:
        """Ends idle workers of a slot beyond the few that stay warm."""
        idle = [lane for lane in self._workers.values() if lane.slot is slot and not lane.tasks and not lane.cores]
        for lane in idle[: max(0, len(idle) - _WARM + 1)]:
            assert lane.worker is not None
            lane.worker.is_leaving = True
            lane.worker.stop(reason=Reason.NONE, grace_us=0)

    def _open(self, number: int, kind: Kind) -> Slot:
        python, account = kind
        slot = self.runner.open_slot(number, python=python, account=account)
        self._slots.setdefault(number, []).append(slot)
        self._kinds[slot] = kind
        return slot


# -- slots that are opened again -------------------------------------------------------------------------------------------
# Slots that their own work has killed or stopped: another one is opened, or the same one continued, and the node is not blamed. A slot's
# spawner has its user's rights, so its work can kill it (`kill -9 $PPID`, `pkill -u`). That says nothing of the node: the Starter opens
# another slot without work, as the same user, and only if that fails it is the node's failure. Until the new slot is up, no other new slot
# of that user gets work: what kills slots wears out its own attempts, no node.
#     lost ──> opening ──up──> proven: work goes on
#                │ lost, not up in time, cannot be opened: a strike
#                └──> pause, longer each time ──> opening


@dataclass(slots=True)
class _Trial:
    """The next slot of one user. slot: None while nothing is open. next_s: when it is opened, or given up."""

    number: int
    next_s: float
    slot: Slot | None = None
    failures: int = 0
    is_spoilt: bool = False  #: other slots of this user were lost meanwhile: whatever killed them may have killed it, too


class Reopening:
    """All users of one node whose next slot must prove itself. Owned by the Starter's thread.

    on_strike: the node failed (what, detail, in whose slot: None = not in a user's).
    """

    def __init__(self, lanes: Lanes, on_strike: Callable[[str, str, Account | None], None]) -> None:
        self._lanes = lanes
        self._on_strike = on_strike
        self._trials: dict[Account | None, _Trial] = {}
        self._continued_s = -math.inf

    def lost(self, slot: Slot, why: str, now_s: float) -> None:
        """A slot was lost that nobody had closed."""
        trial = self._trials.get(slot.account)
        if trial is None:
            self._trials[slot.account] = _Trial(slot.number, now_s)
            self._lanes.unproven.add(slot.account)
        elif trial.slot is not slot:
            trial.is_spoilt = True
        elif trial.is_spoilt:
            trial.slot, trial.next_s, trial.is_spoilt = None, now_s, False
        else:
            self._failed(trial, "slot_lost", why, now_s, slot.account, his=self._lanes.is_his_own_doing(slot))

    def up(self, slot: Slot) -> None:
        """A slot obeys."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            self._end(slot.account)

    def closed(self, slot: Slot, now_s: float) -> None:
        """A slot was closed, to make room for another user's: had it not proven itself yet, the next one has to."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            trial.slot, trial.next_s = None, now_s

    def settle(self, now_s: float, *, takes_work: bool = True) -> float:
        """Opens what is due, while the node takes work. Returns: when to call again at the latest, inf = when something changes."""
        if now_s - self._continued_s > _CONTINUE_S:
            self._continued_s = now_s
            for slot in self._lanes.slots():
                slot.wake()
        if not takes_work:
            return math.inf
        for account, trial in list(self._trials.items()):
            if now_s < trial.next_s:
                continue
            if trial.slot is None:
                self._open(account, trial, now_s)
            elif trial.slot.is_up:
                self._end(account)
            else:
                trial.next_s = now_s + _UP_S
                trial.slot.kill()  # its loss is reported
        return min((trial.next_s for trial in self._trials.values()), default=math.inf)

    def forget(self, users: Container[str]) -> None:
        """No slot of these users is to be opened: why is known."""
        for account in [account for account in self._trials if account is not None and account.name in users]:
            self._end(account)

    def _open(self, account: Account | None, trial: _Trial, now_s: float) -> None:
        try:
            trial.slot = self._lanes.open_idle(trial.number, account)
        except OSError as error:
            self._failed(trial, "slot_not_opened", str(error), now_s)
            return
        trial.next_s = now_s + _UP_S

    def _failed(self, trial: _Trial, what: str, why: str, now_s: float, account: Account | None = None, *, his: bool = False) -> None:
        """his: work in another slot of its user's may have killed it, or taken all the processes that he may have: no strike."""
        trial.slot, trial.is_spoilt = None, False
        trial.next_s = now_s + min(_LONGEST_PAUSE_S, _PAUSE_S * 2**trial.failures)
        trial.failures += 1
        if not his:
            self._on_strike(what, why, account)

    def _end(self, account: Account | None) -> None:
        del self._trials[account]
        with suppress(KeyError):
            self._lanes.unproven.remove(account)


# -- processors ------------------------------------------------------------------------------------------------------------
# Assigns processors of the machine to the nodes of a Starter, so that slots and ranks can have their own.


def processors_of(
    names: Sequence[str], *, cores: int, mode: str, has_all: bool, available: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Processors by node; empty: work is not bound.

    Args:
        cores: of one node. mode: `[starter] bind_cpus`. has_all: nobody has said how many cores, so that they are all of the machine's.
        available: processors that this process may use.
    With "yes" they are bound wherever each core of every node is a processor of its own; with "auto" only where the Starter has the
    whole machine: of two Starters on it (`rmgr dev`), neither knows what the other gives away. Raises: ConfigError.
    """
    if mode not in {"auto", "yes", "no"}:
        raise ConfigError(f"[starter] bind_cpus = {mode!r} is not known", hint="yes, no or auto")
    is_wanted = mode == "yes" or (mode == "auto" and has_all and len(names) == 1)
    if not is_wanted or len(available) < 2 or cores * len(names) > len(available):
        return {}
    ordered = sorted(available)
    return {name: tuple(ordered[number * cores : (number + 1) * cores]) for number, name in enumerate(names)}
