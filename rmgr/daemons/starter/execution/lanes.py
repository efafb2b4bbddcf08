"""The slots of one node and what they hold: only here are cores, memory and other resources counted; and how lost slots come back.

A *lane* is one place where tasks run one after another: a Python worker, or the command queue of a slot. A busy lane holds cores and
memory; a lane whose task waits for another task (blocked) holds none until it is granted them again. Cores that blocked tasks use
nevertheless are not free, since a task's word is not trusted. Of other resources, whose pieces have numbers, a lane keeps the pieces lent
to it as long as it has tasks.
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
from rmgr.model.base import Needs, lent_variables, needs_of
from rmgr.model.states import Reason
from rmgr.runtime import machine

#: Most idle workers of other kinds that a slot keeps.
_WARM = 2
#: How long an idle worker stays after its submission has ended; its program may begin another one.
_DISMISS_S = 5.0
#: The same while the submission is open, since a TaskQueue may stay open after its program has ended.
_FORGOTTEN_S = 600.0
#: Most slots opened at the start; more are opened when work needs them.
_EARLY_SLOTS = 8
#: Spawners of other users that one place keeps.
_WARM_SPAWNERS = 2
#: Pause between two measurements of blocked tasks (s), which give their cores away until then; and the shortest time that can be measured,
#: since the kernel counts in hundredths of a second.
_LOOK_S, _LEAST_S = 0.5, 0.15
#: Blocked tasks that were not measured yet give away at most so many times the node's cores: so few tasks begin before a lie is seen.
_UNPROVEN = 2
#: Most cores that a really waiting task uses.
_WAITS = 0.05
#: What kind of work a slot takes: its interpreter, and its account (None: the Starter's).
Kind = tuple[str, Account | None]
Task = tuple[ClaimedBlock, int]
#: Time for a spawner to come up: usually 0.1 s, longer on a machine that swaps.
_UP_S = 20.0
#: Pause between two SIGCONTs to spawners: a spawner stopped by its work would enforce no limit and hear no cancel.
_CONTINUE_S = 2.0
#: Pause after a failure, doubled each time up to the second value.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0


class _KeptResources(NamedTuple):
    """Resources kept for one purpose. pieces: numbers, ascending, by name of the resource."""

    cores: int
    memory_mib: int
    pieces: Mapping[str, list[int]]


_NOTHING = _KeptResources(0, 0, {})


@dataclass(slots=True, eq=False)
class WorkerLane:
    """One lane. tasks: by seq, in order. since_s: monotonic time of its last event (a message sent, an end)."""

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
    looked: tuple[float, float, float] = (0.0, 0.0, 0.0)  #: processor seconds used, waited for, at which time (monotonic)
    uses: float = 0.0  #: cores that its task uses while blocked
    shape: tuple[int, int, Needs] = (0, 0, ())  #: cores, memory and other resources of its tasks, also while it is blocked
    asked: WorkerSpec | None = None  #: `spec` before it got the variables of lent pieces
    lent: dict[str, list[int]] = field(default_factory=dict)  #: numbers of its pieces, by name
    cpus: list[int] = field(default_factory=list)  #: its own processors; none: it is not bound
    recalling: bool = False
    last: int = 0  #: submission of its last work
    part: str = ""  #: of a gang: cores only in its turns, counted for all parts together
    is_held: bool = False  #: its resources are taken from the node's
    owner: object = None  #: holder without a running task: a hold, or a job about to start

    @property
    def kind(self) -> str | int:
        """Kind of the running task."""
        return next(iter(self.tasks.values()))[0].kind if self.tasks else 0

    @property
    def running_seq(self) -> int:
        """Sequence number of the task that runs, or will run next; 0 if none."""
        return next(iter(self.tasks), 0)

    @property
    def runs_by(self) -> Worker | Slot:
        """What runs its tasks."""
        return self.slot if self.worker is None else self.worker

    def suspend(self, *, resume: bool = False) -> None:
        """Stops or continues the running task in place."""
        seq = self.running_seq
        if self.worker is None:
            (self.slot.resume if resume else self.slot.suspend)(seq)
        else:
            (self.worker.resume if resume else self.worker.suspend)()

    @property
    def is_special(self) -> bool:
        """Whether its tasks have variables of their own."""
        return bool(self.lent or self.cpus)

    @property
    def variables(self) -> dict[str, str]:
        """Variables that name its lent pieces and its processors."""
        found = lent_variables(self.lent) if self.lent else {}
        if self.cpus:  # keeps Open MPI from binding ranks otherwise
            found |= {"RMGR_CPU_BIND": ",".join(map(str, self.cpus)), "OMPI_MCA_hwloc_base_binding_policy": "none"}
        return found

    def lags(self, most_bytes: int) -> bool:
        """Returns whether more than `most_bytes` of messages to its worker are still unread."""
        return self.worker is not None and self.worker.backlog > most_bytes

    def is_for(self, info: Info, spec: WorkerSpec | None, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """Returns whether such tasks may be queued behind its own, also tasks of another submission with the same worker."""
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
        cores, memory_mib, resources: of the node; a task of 0 MiB is not counted against its memory.
        processors: of the node, as many as cores; none: lanes are not bound.
        python: interpreter of workers, "" = this one. early: opens slots before there is work (if its account is known).
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
        self.cores = self._unheld = cores  #: `_unheld`: cores that no lane holds
        self.memory_mib = self.free_memory_mib = memory_mib
        self.resources = dict(resources or {})
        self._pieces = {name: list(range(count)) for name, count in self.resources.items()}  #: not lent, ascending
        self._own_processors = list(processors)
        self._processors = list(processors)  #: not in use, ascending
        self._python = python
        self._workers: dict[Worker, WorkerLane] = {}
        self._commands: dict[Slot, WorkerLane] = {}
        self._slots: dict[int, list[Slot]] = {}  #: by place, the last used one at the end
        self._kinds: dict[Slot, Kind] = {}
        self._active: dict[int, int] = {}
        self._waiting: deque[WorkerLane] = deque()
        self._overdrawn = 0
        self._unproven: set[WorkerLane] = set()  #: blocked too recently to know whether they really wait
        self._looks_s = -math.inf  #: next measurement of blocked tasks
        self._dismisses_s = -math.inf  #: next look at idle workers
        self._turning: dict[str, tuple[Slot, list[int]]] = {}  #: part of a gang -> its slot, and its processors in its turns
        self._retired: list[Slot] = []  #: slots without new work, which end when idle
        self.unproven: set[Account | None] = set()  #: users whose next slot must be up before it gets work
        self.is_owed = False  #: a placed job does not fit yet: nothing else may start
        self.is_unsure = False  #: what must be kept is being read: nothing pulled may start
        self._kept: dict[str, _KeptResources] = {}  #: by purpose: free resources that are lent for it alone
        for number in range(min(cores, _EARLY_SLOTS) if early else 0):
            self._open(number, (python, None))

    # -- looking ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[WorkerLane]:
        """Iterates over lanes with tasks."""
        return iter([lane for lanes in (self._workers, self._commands) for lane in lanes.values() if lane.tasks])

    @property
    def is_idle(self) -> bool:
        """Whether no lane has a task."""
        return not any(True for _ in self)

    @property
    def wants_grant(self) -> bool:
        """Whether a blocked task waits for its cores to go on."""
        return bool(self._waiting)

    @property
    def free_cores(self) -> int:
        """Cores that are neither held nor used by blocked tasks."""
        if not self._overdrawn and not self._unproven:
            return self._unheld
        too_soon = sum(lane.shape[0] for lane in self._unproven) - _UNPROVEN * self.cores
        return max(0, self._unheld - self._overdrawn - max(0, too_soon))

    @property
    def overdrawn(self) -> int:
        """Cores used by blocked tasks, which new work does not get."""
        return self._overdrawn

    def fits(self, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """Returns whether one more task of this size could start now."""
        if cores > self.free_cores or memory_mib > self.free_memory_mib:
            return False
        return not needs or all(self.free_of(name) >= count for name, count in needs)

    @property
    def all_resources(self) -> Needs:
        """All resources of the node besides cores and memory."""
        return needs_of(self.resources)

    def size_of(self, block: ClaimedBlock) -> tuple[int, int, Needs]:
        """Returns cores, MiB and other resources of a task of the block; a job with whole nodes has all cores and resources.

        A job of a gang has no cores: the gang has them all.
        """
        allocation = block.data.allocation
        if allocation is not None and allocation.gang:
            _, memory_mib, needs = block.size
            return 0, memory_mib, needs
        if allocation is None or not allocation.whole:
            return block.size
        return self.cores, block.key.memory_mib, self.all_resources

    def free_of(self, name: str) -> int:
        """Returns the number of free pieces of a resource."""
        return len(self._pieces.get(name, ()))

    def slots_for(self, cores: int, needs: Needs = ()) -> int:
        """Returns how many tasks of this size an empty node runs at once, at least 1."""
        slots = self.cores // cores
        for name, count in needs:
            slots = min(slots, self.resources.get(name, 0) // count)
        return max(1, slots)

    def python_of(self, slot: Slot) -> str:
        """Returns the interpreter of a slot's workers."""
        return self._kinds[slot][0] if slot in self._kinds else self._python

    def has_chosen_python(self, slot: Slot) -> bool:
        """Returns whether a user chose the slot's interpreter."""
        return slot in self._kinds and self._kinds[slot][0] != self._python

    def is_his_own_doing(self, slot: Slot) -> bool:
        """Returns whether the slot's user may have caused its loss: by choosing its interpreter, or since another slot of the user is well.

        Another slot counts as well until its loss is reported: the same work may have ended both.
        """
        others = (other for slots in (*self._slots.values(), self._retired) for other in slots if other is not slot)
        another = any(other.account == slot.account and other.is_up for other in others)
        return self.has_chosen_python(slot) or (slot.account is not None and another)

    def of_worker(self, worker: Worker) -> WorkerLane | None:
        """Returns the lane of a worker."""
        return self._workers.get(worker)

    def of_slot(self, slot: Slot) -> WorkerLane | None:
        """Returns the lane of a slot's commands."""
        return self._commands.get(slot)

    # -- taking and giving up --------------------------------------------------------------------------------------------

    def open_for(
        self, info: Info, spec: WorkerSpec | None, cores: int, memory_mib: int, needs: Needs = (), *, part: str = ""
    ) -> WorkerLane | None:
        """Returns an idle lane for a task of this size, with its resources held; None if it does not fit now.

        part: of a gang, whose slot is used (`seat`). Raises: OSError if no slot can be opened.
        """
        if not self.fits(cores, memory_mib, needs) or (part and part not in self._turning):
            return None
        asked, pieces = spec, {name: self._pieces[name][:count] for name, count in needs}
        if spec is not None and needs:  # a library keeps using the pieces it saw first, so a worker is only reused with the same ones
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
        """Removes ended tasks of a lane (now_s None: tasks taken back) and returns them; gives the lane up after the last one."""
        pop = lane.tasks.pop
        found = [task for task in [pop(seq, None) for seq in seqs] if task is not None]
        self.left(lane, now_s)
        return found

    def left(self, lane: WorkerLane, now_s: float | None) -> None:
        """Notes that tasks were removed from a lane (now_s: because they ended, else None); gives it up after the last one."""
        if now_s is not None:
            lane.since_s = now_s
        if lane.blocked_seq and lane.blocked_seq not in lane.tasks:
            lane.blocked_seq, lane.uses = 0, 0.0
            self._unproven.discard(lane)
        if not lane.tasks:
            self.give_up(lane)

    def give_up(self, lane: WorkerLane) -> None:
        """Frees everything that the lane holds."""
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
        """Drops a dead worker; returns its lane with the tasks that it still had."""
        lane = self._workers.pop(worker, None)
        if lane is not None:
            self.give_up(lane)
        return lane

    def drop_slot(self, slot: Slot) -> WorkerLane | None:
        """Drops a dead slot, whose workers were dropped before; returns the lane of its commands."""
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
        """Returns all open slots."""
        return [slot for slots in self._slots.values() for slot in slots if not slot.is_lost] + self._retired

    def retire(self, slot: Slot) -> None:
        """Gives no more work to a slot whose directory is gone; it ends after its current work."""
        if slot in self._slots.get(slot.number, ()):
            self._slots[slot.number].remove(slot)
            self._retired.append(slot)
            for lane in self:
                if lane.slot is slot:
                    lane.info = None  # nothing is queued behind its tasks
        self.close_retired()

    def retire_homeless(self) -> None:
        """Retires slots whose directories were removed. Cost: an lstat each."""
        for slot in [slot for slots in self._slots.values() for slot in slots if not slot.has_home]:
            self.retire(slot)

    def close_retired(self) -> None:
        """Ends retired slots that are idle."""
        busy = {lane.slot for lane in self} | {lane.slot for lane in self._commands.values() if lane.owner is not None}
        for slot in [slot for slot in self._retired if slot not in busy]:
            self._retired.remove(slot)
            slot.close()

    def open_idle(self, number: int, account: Account | None) -> Slot:
        """Opens a slot without work. Raises: OSError."""
        return self._open(number, (self._python, account))

    def keep(self, whose: str, cores: int, memory_mib: int, needs: Needs = ()) -> bool:
        """Keeps so much of the free resources for `whose`, instead of what was kept before. Returns: whether all of it could be kept."""
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
            kept[name] = free[len(free) - min(count, len(free)) :]  # the highest numbers: workers have seen the lowest
            del free[len(free) - len(kept[name]) :]
        lent = {name: some for name, some in kept.items() if some}
        if any(found) or lent:
            self._kept[whose] = _KeptResources(*found, lent)
        return found == (cores, memory_mib) and all(len(kept[name]) == count for name, count in needs)

    def dismiss(self, now_s: float, state_of: Callable[[int], RecordState]) -> float:
        """Ends idle workers of programs that have ended, which will not be needed. state_of: of a submission.

        Returns when to look again (monotonic), inf = no worker is idle. Cost: a look at the record of each, every few seconds.
        """
        if now_s < self._dismisses_s:
            return self._dismisses_s
        for worker, lane in self._workers.items():
            idle_s = now_s - lane.since_s
            spec = lane.spec
            if lane.tasks or lane.cores or worker.is_leaving or spec is None or not spec.program or idle_s < _DISMISS_S:
                continue
            is_forgotten = idle_s >= _FORGOTTEN_S and not spec.group  # an initializer may have taken long
            if is_forgotten or state_of(lane.last) is RecordState.CLOSED:
                worker.is_leaving = True
                worker.stop(reason=Reason.NONE, grace_us=0)
        self._dismisses_s = now_s + _DISMISS_S / 2
        return self._dismisses_s if self._workers else math.inf

    # -- parts of gangs ----------------------------------------------------------------------------------------------------

    def seat(self, part: str, info: Info, first: int, cores: int) -> Slot | None:
        """Returns the slot of a part of a gang, for it alone until `unseat`; None while its user's next slot must prove itself.

        first, cores: the node's cores that it has in its turns. Raises: OSError if the slot cannot be opened.
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
        """Closes the slot of a part that is over."""
        known = self._turning.pop(part, None)
        if known is not None and not known[0].is_lost:
            known[0].close()

    def is_used(self, slot: Slot) -> bool:
        """Returns whether anything runs in the slot, or is about to."""
        lane = self._commands.get(slot)
        return (lane is not None and lane.owner is not None) or any(other.slot is slot for other in self)

    # -- blocked tasks -----------------------------------------------------------------------------------------------------

    def block(self, lane: WorkerLane, seq: int) -> None:
        """Frees what a lane holds while its task waits for another task."""
        if seq in lane.tasks:
            lane.blocked_seq = seq
            self._release(lane)
            lane.looked = (*self._processor_s(lane)[:2], machine.monotonic())
            self._unproven.add(lane)

    def unblock(self, lane: WorkerLane, seq: int) -> None:
        """Lets a blocked task go on: it gets its resources before anything new starts."""
        if lane.blocked_seq == seq and lane not in self._waiting:
            self._waiting.append(lane)
        elif lane.blocked_seq != seq and lane.worker is not None:
            lane.worker.grant(seq)

    def charge_blocked(self, now_s: float) -> float:
        """Measures now and then the cores that blocked tasks use. Returns when to call again (monotonic), inf = no task is blocked.

        Waiting for results uses a little, so the sum over all tasks is rounded to whole cores. Cost: 100 us a blocked task.
        """
        blocked = self._blocked_lanes()
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
                    if is_ready:  # it may have waited for a processor all the time, which the kernel counts only once it runs
                        lane.uses = max(lane.uses, used_before)
                    if lane.uses > _WAITS or not is_ready:
                        self._unproven.discard(lane)
            self._overdrawn = round(sum(lane.uses for lane in blocked))
        return self._due_s()

    def _due_s(self) -> float:
        """Returns when the next measurement is due, or earlier the first one of a task that was not measured yet."""
        return min([self._looks_s, *(lane.looked[2] + _LEAST_S for lane in self._unproven)])

    def _blocked_lanes(self) -> list[WorkerLane]:
        return [lane for lane in self._workers.values() if lane.blocked_seq]

    @staticmethod
    def _processor_s(lane: WorkerLane) -> tuple[float, float, bool]:
        return lane.slot.processor_seconds(lane.worker) if lane.worker is not None else (0.0, 0.0, False)

    def grant(self) -> None:
        """Gives resources that have become free to tasks that wait for them."""
        while self._waiting:
            lane = self._waiting[0]
            others = round(sum(other.uses for other in self._blocked_lanes() if other is not lane)) if self._overdrawn else 0
            cores, memory_mib, _ = lane.shape
            if cores > self._unheld - others or memory_mib > self.free_memory_mib:
                return
            self._waiting.popleft()
            seq, lane.blocked_seq, lane.uses, self._overdrawn = lane.blocked_seq, 0, 0.0, others
            self._unproven.discard(lane)
            self._hold(lane)
            if lane.worker is not None:
                with suppress(OSError):  # its processors may have changed
                    if lane.cpus:
                        os.sched_setaffinity(lane.worker.pid, lane.cpus)
                lane.worker.grant(seq)

    # -- ending ------------------------------------------------------------------------------------------------------------

    def stop(self, lane: WorkerLane, seq: int, reason: Reason, grace_us: int) -> None:
        """Ends one task: kills it if it runs; if it waits behind another one, takes it back or drops it."""
        lane.runs_by.stop(seq, reason=reason, grace_us=grace_us)

    def recall(self, lane: WorkerLane, keep: int = 0) -> None:
        """Takes back tasks that have not begun, except the next `keep`."""
        lane.recalling = True
        lane.runs_by.recall(keep=keep)

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
            if lane.slot.number >= self.cores:  # a gang's slot: it is stopped between its turns
                continue
            if lane.worker.is_leaving or lane.slot.is_lost or self._kinds.get(lane.slot) != kind or lane.slot in self._retired:
                continue
            if not self._active.get(lane.slot.number):
                return lane
            best = best or lane
        return best

    def _free_slot(self, kind: Kind, *, any_python: bool) -> Slot | None:
        """Returns a slot of this kind in a place with nothing active, which exists whenever a core is free; any interpreter if
        `any_python`.

        None while the user's next slot must prove itself.
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
            slot.close()  # its idle workers end with it
        return self._open(number, kind)

    def _forget_idle(self, slot: Slot) -> None:
        """Ends idle workers of a slot beyond `_WARM`."""
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


# -- reopened slots --------------------------------------------------------------------------------------------------------
# Slots that their own work has killed or stopped: another one is opened, or the same one continued, and the node is not blamed. A slot's
# spawner has its user's rights, so the user's work can kill it (`kill -9 $PPID`, `pkill -u`). That says nothing about the node: the Starter
# opens another slot without work for the same user, and only if that fails, it is the node's failure. Until the new slot is up, no other
# new slot of that user gets work: work that kills slots wears out its own attempts, not nodes.
#     lost ──> opening ──up──> proven: work goes on
#                │ lost, not up in time, cannot be opened: a strike
#                └──> pause, longer each time ──> opening


@dataclass(slots=True)
class _Trial:
    """The next slot of one user. slot: None if none is open. next_s: when it is opened, or given up."""

    number: int
    next_s: float
    slot: Slot | None = None
    failures: int = 0
    is_spoilt: bool = False  #: other slots of the user were lost meanwhile, perhaps by the same cause


class Reopening:
    """All users of one node whose next slot must prove itself. Owned by the Starter's thread.

    on_strike: called on a failure of the node (what, detail, account of the slot or None).
    """

    def __init__(self, lanes: Lanes, on_strike: Callable[[str, str, Account | None], None]) -> None:
        self._lanes = lanes
        self._on_strike = on_strike
        self._trials: dict[Account | None, _Trial] = {}
        self._continued_s = -math.inf

    def lost(self, slot: Slot, why: str, now_s: float) -> None:
        """Notes the loss of a slot that was not closed."""
        trial = self._trials.get(slot.account)
        if trial is None:
            self._trials[slot.account] = _Trial(slot.number, now_s)
            self._lanes.unproven.add(slot.account)
        elif trial.slot is not slot:
            trial.is_spoilt = True
        elif trial.is_spoilt:
            trial.slot, trial.next_s, trial.is_spoilt = None, now_s, False
        else:
            self._note_failure(trial, "slot_lost", why, now_s, slot.account, his=self._lanes.is_his_own_doing(slot))

    def up(self, slot: Slot) -> None:
        """Notes that a slot is up."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            self._end(slot.account)

    def closed(self, slot: Slot, now_s: float) -> None:
        """Notes that a slot was closed to make room for another user's: if it had not proven itself, the next one must."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            trial.slot, trial.next_s = None, now_s

    def settle(self, now_s: float, *, takes_work: bool = True) -> float:
        """Opens due slots while the node takes work. Returns: when to call again at the latest, inf = when something changes."""
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
        """Ends the trials of users for whom no slot is to be opened, since the cause is known."""
        for account in [account for account in self._trials if account is not None and account.name in users]:
            self._end(account)

    def _open(self, account: Account | None, trial: _Trial, now_s: float) -> None:
        try:
            trial.slot = self._lanes.open_idle(trial.number, account)
        except OSError as error:
            self._note_failure(trial, "slot_not_opened", str(error), now_s)
            return
        trial.next_s = now_s + _UP_S

    def _note_failure(self, trial: _Trial, what: str, why: str, now_s: float, account: Account | None = None, *, his: bool = False) -> None:
        """Notes a failed trial. his: no strike, since other work of the user may have killed the slot or used up the user's processes."""
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
# Assigns the machine's processors to the nodes of a Starter, so that slots and ranks can have their own.


def processors_of(names: Sequence[str], *, cores: int, mode: str, has_all: bool, available: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns the processors of each node; empty if work is not bound.

    Args:
        cores: of one node. mode: `[starter] bind_cpus`. has_all: the cores were not configured, so they are all of the machine's.
        available: processors that this process may use.
    With "yes", work is bound whenever there is a processor for each core of every node; with "auto", only if the Starter has the whole
    machine, since two Starters on one (`rmgr dev`) do not know of each other's processors. Raises: ConfigError.
    """
    if mode not in {"auto", "yes", "no"}:
        raise ConfigError(f"[starter] bind_cpus = {mode!r} is not known", hint="yes, no or auto")
    is_wanted = mode == "yes" or (mode == "auto" and has_all and len(names) == 1)
    if not is_wanted or len(available) < 2 or cores * len(names) > len(available):
        return {}
    ordered = sorted(available)
    return {name: tuple(ordered[number * cores : (number + 1) * cores]) for number, name in enumerate(names)}
