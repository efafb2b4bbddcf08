"""A simulated cluster between two passes: its virtual time, the facts for the scheduler's state, and their effects on jobs and cores.

Each method of `World` is one event: a job arrives, ends, is lost with its node, is cancelled, moves. State, stays and outcomes
stay in step because only `World` changes them. `Kernel` hands out the events, one instant at a time in a fixed order (papers.md, common
rules): completions, changes of nodes, arrivals, timers; then the caller's one pass. `Turns` has the slots of gangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar

from rmgr.model.states import State
from rmgr.sched import job as sched
from rmgr.sched.capacity.gangs import ENDLESS, Carousel, cores_within
from rmgr.sched.job import Running
from rmgr.sched.plan import Decision, GangSet, Migrate, Preempt, Reject, Resume, Route, Suspend
from rmgr.sched.policy import Cause
from rmgr.sched.records import Gang, cores_of
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.machine import Machine, Stay, Stays
from rmgr.sim.engine.outcome import Cores, Outcomes, Parting, Setting, Stretches
from rmgr.sim.workload.events import Event, SlotEnds
from rmgr.sim.workload.jobs import Workload, WorkloadJob, stream

T = TypeVar("T")
#: Most restarts of a job after it lost its nodes; a job much longer than the life of nodes would never end.
MOST_LOSSES = 100
_NEVER = 1 << 59


class Rank(IntEnum):
    """Order of events at one instant: those that free resources first, those that need them last."""

    END = 0
    NODE = 1
    ARRIVAL = 2
    TIMER = 3


#: Plain integers, because each event compares one.
_END, _NODE, _ARRIVAL = int(Rank.END), int(Rank.NODE), int(Rank.ARRIVAL)

#: (time in us, rank, serial, content), compared by the first three. A bare tuple: two are made for every job.
Entry: TypeAlias = tuple[int, int, int, T]


class Kernel(Generic[T]):
    """The events to come, and the current time.

    Events of one time and rank come in the order of `serial`, which the caller chooses (a job number), so the order of `put`
    does not matter. Two events never share time, rank and serial.
    """

    __slots__ = ("_heap", "now_us")

    def __init__(self) -> None:
        self._heap: list[Entry[T]] = []
        self.now_us = 0

    def put(self, time_us: int, rank: int, serial: int, what: T) -> None:
        """Adds an event. Raises ValueError for a past time. Cost: O(log n)."""
        if time_us < self.now_us:
            raise ValueError(f"an event at {time_us} us lies before now, {self.now_us} us")
        heappush(self._heap, (time_us, rank, serial, what))

    def advance(self) -> bool:
        """Moves to the time of the next event; False if there is none. Cost: O(1)."""
        if not self._heap:
            return False
        self.now_us = self._heap[0][0]
        return True

    def next(self) -> Entry[T] | None:
        """Takes the next event of this instant, including events added meanwhile. None: the instant is over."""
        heap = self._heap
        return heappop(heap) if heap and heap[0][0] == self.now_us else None

    def __len__(self) -> int:
        return len(self._heap)


#: The content of an event.
What: TypeAlias = Stay | WorkloadJob | Event | None


class World:
    """The simulated cluster. Job numbers are ids of the scheduler's jobs. `open`: number of jobs that are not over."""

    def __init__(self, workload: Workload, setting: Setting, recorder: Recorder | None = None) -> None:
        self._workload, self._recorder = workload, recorder
        self._partitions, self._requeue, self._seed = setting.partitions, setting.requeue, setting.seed
        self._requests = setting.requests
        self.pipeline = setting.pipeline
        self.machine = Machine(setting.nodes, setting.cores)
        nodes = self.nodes = self.machine.described()
        self._memory = any(node.memory_bytes for node in nodes)
        self.kernel: Kernel[What] = Kernel()
        self._serve(ClusterState(nodes, setting.usage_half_life_us))
        if recorder is not None:
            recorder.begin(self.state, seed=setting.seed, half_life_us=setting.usage_half_life_us)
        self._stretches = Stretches(len(workload.jobs), self.machine.processors)
        self.stays = Stays(workload.jobs, self.machine, setting.execution, self._stretches)
        self.turns = Turns(self.stays, self.kernel, self.machine, spells=setting.spells)
        self._states: dict[int, State] = {}  # of jobs that are over but did not complete
        self._losses: Counter[int] = Counter()
        self._over, self._arrived = bytearray(len(workload.jobs) + 1), bytearray(len(workload.jobs) + 1)
        self._submits: dict[int, WorkloadJob] = {}  # of jobs with another submit time than in the workload
        self._queues: dict[int, str] = {}  # of rerouted jobs
        self._followers: dict[int, list[WorkloadJob]] = {}  # job -> jobs that are submitted after its end
        self.count = self.open = len(workload.jobs)

    # -- jobs ---------------------------------------------------------------------------------------------------------------

    def arrivals(self) -> Iterator[WorkloadJob]:
        """Returns the jobs that are submitted at their own times, in order; keeps the others until the end of the job they follow."""
        for job in self._workload.jobs:
            if job.after and job.think_us >= 0:
                self._followers.setdefault(job.after, []).append(job)
        return (job for job in self._workload.jobs if not job.after or job.think_us < 0) if self._followers else iter(self._workload.jobs)

    def arrive(self, job: WorkloadJob) -> bool:
        """Submits a job. Returns False if it was refused at once, or cancelled before it came."""
        now, number = self.kernel.now_us, job.number
        if self._over[number]:
            return False
        if job.after and self._is_to_come(job):
            self._followers.setdefault(job.after, []).append(job)
            return False
        if job.think_us >= 0 and job.submit_us != now:
            job = self._submits[number] = replace(job, submit_us=now)
        self._arrived[number] = 1
        if self.tell.job_submitted(self._as_request(job)):
            return True
        self.refuse(number)
        return False

    def begin(self, run: Running) -> None:
        """Gives a job that the state starts its cores, and schedules its end."""
        if self.turns.of and run.job.id in self.turns.of:
            self.turns.begin(run)
            return
        stay = self.stays.begin(run)
        self.kernel.put(run.start_us + stay.duration_us, _END, run.job.id, stay)

    def end(self, stay: Stay) -> bool:
        """Ends a job at its time. Returns False if the job left these nodes, or was stopped on them, after the end was scheduled."""
        job = stay.run.job
        if self.stays.running.get(job.id) is not stay or stay.since_us + stay.rest_us != self.kernel.now_us:
            return False
        self.tell.job_ended(job.id, job.partition, now=self.kernel.now_us)
        if self.turns.of:
            self.turns.leave(job.id)
        self.stays.end(job.id, self.kernel.now_us)
        self._close(job.id, State.COMPLETED)
        return True

    def refuse(self, number: int) -> None:
        """Ends a waiting job that can never run here."""
        self.tell.job_withdrawn(number, self._home(number) or "default")
        self._close(number, State.FAILED)

    def refuse_infeasible(self, partition: str) -> None:
        """Ends jobs of the partition that can never run any more."""
        for number in sorted(self.state.partitions[partition].infeasible):
            self.refuse(number)

    def cancel(self, number: int) -> Cause | None:
        """Cancels a job in any state. Returns the cause for a pass, or None."""
        if not 0 < number < len(self._over) or self._over[number]:
            return None
        stay = self.stays.of(number)
        if stay is not None:
            self.tell.job_ended(number, stay.run.job.partition, now=self.kernel.now_us)
            self.turns.leave(number)
            self.stays.end(number, self.kernel.now_us, Parting.CANCELLED)
            self._close(number, State.CANCELLED)
            return Cause.JOB_ENDED
        home = self._home(number)
        if home is not None:
            self.tell.job_withdrawn(number, home)
        self._close(number, State.CANCELLED)
        return Cause.JOB_WITHDRAWN if home is not None else None

    def carry_out(self, decision: Decision) -> None:
        """Carries out a decision other than a start or a wake."""
        now, state = self.kernel.now_us, self.state
        match decision:
            case Migrate(number):
                self.turns.leave(number)
                self.stays.migrate(number, now)
                state.carried_out(decision, now)
            case Preempt(number):
                self.turns.leave(number)
                self.stays.end(number, now, Parting.PREEMPTED)
                state.carried_out(decision, now)
            case Suspend(number):
                self.stays.suspend(number, now)
                state.carried_out(decision, now)
            case Resume(number):
                state.carried_out(decision, now)
                stay = self.stays.resume(number, now)
                self.kernel.put(now + stay.rest_us, _END, number, stay)
            case Reject(number):
                state.carried_out(decision, now)
                self._close(number, State.FAILED)
            case Route(number, to):
                state.carried_out(decision, now)
                self._queues[number] = to
            case GangSet(gang):
                state.carried_out(decision, now)
                self.turns.set(gang)
            case _:
                state.carried_out(decision, now)

    def lose(self, number: int) -> None:
        """Removes a job from its lost nodes, with loss of its progress: it waits again, or fails (also if that happens too often)."""
        self.turns.leave(number)
        job = self.stays.end(number, self.kernel.now_us, Parting.LOST).run.job
        self._losses[number] += 1
        if self._requeue and self._losses[number] < MOST_LOSSES:
            self.tell.job_preempted(number, self.kernel.now_us, job.partition)
        else:
            self.tell.job_ended(number, job.partition, now=self.kernel.now_us)
            self._close(number, State.FAILED)

    def take_over(self) -> None:
        """Simulates a new leader, which reads the records in any order and builds state and policies from them."""
        snapshot = shuffled(self.state.snapshot(), stream(self._seed, f"take-over/{self.kernel.now_us}"))
        self._serve(ClusterState.restored(snapshot, self.state.usage_half_life_us))
        self.pipeline = deepcopy(self.pipeline)

    # -- results ---------------------------------------------------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        """Returns the outcome of every job."""
        return Outcomes(self._workload.jobs, self._stretches, states=self._states, submits=self._submits, queues=self._queues)

    def waiting(self) -> list[WorkloadJob]:
        """Returns the jobs that are not over."""
        return [job for job in self._workload.jobs if not self._over[job.number]]

    def because(self, reason: str) -> None:
        """Sets the reason that the log gives for the next facts."""
        if self._recorder is not None:
            self._recorder.because = reason

    def _serve(self, state: ClusterState) -> None:
        """Uses this state from now on."""
        self.state = state
        #: takes the facts
        self.tell = state if self._recorder is None else self._recorder.around(state, lambda: self.kernel.now_us)

    def _is_to_come(self, job: WorkloadJob) -> bool:
        """Whether the job that this one follows is still to be submitted."""
        return not self._arrived[job.after] and not self._over[job.after]

    def _home(self, number: int) -> str | None:
        """Returns the partition in which the job waits, None if it does not wait."""
        for name, part in self.state.partitions.items():
            if number in part.jobs:
                return name
        return None

    def _close(self, number: int, state: State) -> None:
        self._over[number] = 1
        self.open -= 1
        if state is not State.COMPLETED:
            self._states[number] = state
        if self._followers:
            for job in self._followers.pop(number, ()):
                self.kernel.put(self.kernel.now_us + max(job.think_us, 0), _ARRIVAL, job.number, job)

    def partition_of(self, job: WorkloadJob) -> str:
        """Returns the partition of the job's queue."""
        return self._partitions.get(job.queue, "default")

    def _as_request(self, job: WorkloadJob) -> sched.Job:
        """Returns the job as the scheduler knows it: without its real run time."""
        if self._requests:
            return replace(self._requests[job.number], id=job.number, submit_us=job.submit_us, queued_us=-1)
        return sched.Job(
            id=job.number,
            submit_us=job.submit_us,
            processes=job.processes,
            threads=job.threads,
            limit_us=job.estimate_us,
            user=job.user,
            account=job.account,
            queue=job.queue or "default",
            partition=self._partitions.get(job.queue, "default") if self._partitions else "default",
            memory_bytes=job.memory_bytes if self._memory else 0,
            after=(job.after,) if job.after and job.think_us < 0 else (),
        )


def shuffled(snapshot: Snapshot, chance: Random) -> Snapshot:
    """Returns the same records in another order."""
    found: dict[str, list[Any]] = {}
    for part in fields(Snapshot):
        records = found[part.name] = list(getattr(snapshot, part.name))
        chance.shuffle(records)
    return replace(snapshot, **{name: tuple(records) for name, records in found.items()})


@dataclass(slots=True)
class _Seat:
    """A job of a gang. quanta: slots that it needs; last_us: used time of the last one. end_us: its end, once known."""

    stay: Stay
    quanta: int
    last_us: int
    end_us: int = -1
    spells: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Wheel:
    """One gang. serial: of the event that it waits for; all others are outdated."""

    gang: Gang
    carousel: Carousel
    seats: dict[int, _Seat] = field(default_factory=dict)
    serial: int = -1

    @property
    def key(self) -> tuple[str, str]:
        return _key(self.gang)

    def time_of(self, slot: int) -> int:
        return self.carousel.origin_us + slot * self.carousel.slot_us


class Turns:
    """Gangs: nodes carry out the slots of a record by themselves; only ends of jobs are events, however short a slot is.

    The front is the policy's own (`Carousel`), plus what the policy does not know: how many slots each job still needs. A job that
    ends in the middle of its slot leaves its cores idle until the slot is over, and its slots stay empty until the record is set again.
    With `spells` every stretch between two stops is kept, at the cost of a look at every slot. A gang is known by partition and name: one
    policy may serve several partitions.

    Cost: an arrival or an end costs one path of the tree; with `spells` each slot also costs O(running jobs).
    """

    def __init__(self, stays: Stays, kernel: Kernel[Any], machine: Machine, *, spells: bool = False) -> None:
        self._stays, self._kernel, self._machine, self._spells = stays, kernel, machine, spells
        self._wheels: dict[tuple[str, str], _Wheel] = {}
        self.of: dict[int, tuple[str, str]] = {}  #: job -> gang
        self._serials = count()

    def set(self, gang: Gang) -> None:
        """Uses this record from now on. `begin` follows for jobs that are still to start."""
        homes, key = gang.homes, _key(gang)
        wheel = self._wheels.get(key)
        if not homes:
            self._wheels.pop(key, None)
            return
        if wheel is None or not wheel.seats:
            wheel = self._wheels[key] = _Wheel(gang, Carousel(gang._replace(queues=(), front=(), late=())))
        else:
            self._advance(wheel, gang.slot)
            for number in [number for number in wheel.carousel.weights if number not in homes or number not in wheel.seats]:
                wheel.carousel.remove(number)
            if wheel.gang.leaves != gang.leaves:
                self._regrow(wheel, gang)
            wheel.gang = gang
        self.of.update(dict.fromkeys(homes, key))
        self._look_at(wheel, self._kernel.now_us)

    def begin(self, run: Running) -> None:
        """Puts a job of a gang into its queue; its end becomes an event in time."""
        number = run.job.id
        wheel = self._wheels[self.of[number]]
        node = wheel.gang.homes[number]
        weight = sum(entries for _, queue in wheel.gang.queues for job_id, entries in queue if job_id == number)
        weight = weight or next(entries for job_id, _, entries in wheel.gang.late if job_id == number)
        stay = self._stays.begin_shared(run, self._cores(wheel, run, node))
        quanta = -(-stay.duration_us // wheel.carousel.slot_us)
        wheel.seats[number] = _Seat(stay, quanta, stay.duration_us - (quanta - 1) * wheel.carousel.slot_us)
        wheel.carousel.add(number, node, weight, quanta)

    def leave(self, number: int) -> None:
        """Removes the job from its nodes; its stay contains from now on how long it was served."""
        key = self.of.pop(number, None)
        wheel = self._wheels.get(key) if key is not None else None
        if wheel is None or number not in wheel.seats:
            return
        now, carousel = self._kernel.now_us, wheel.carousel
        self._advance(wheel, carousel.boundary(now))
        seat = wheel.seats.pop(number)
        if seat.end_us == now:
            seat.stay.turns, seat.stay.served_us = seat.quanta, seat.stay.duration_us
        else:
            used = seat.quanta - (0 if seat.end_us >= 0 else carousel.rotation.rest_of(number))
            seat.stay.turns = used
            seat.stay.served_us = min(used * carousel.slot_us, now - seat.stay.since_us, seat.stay.duration_us)
        if self._spells:
            seat.stay.spells = [(start, min(end, now)) for start, end in seat.spells if start < now]
        if seat.end_us < 0:
            carousel.rotation.prolong(number, ENDLESS)
        if not wheel.seats:
            del self._wheels[wheel.key]
        else:
            self._look_at(wheel, now)

    def slot_ends(self, event: SlotEnds) -> None:
        """Handles a slot in which a job ends, newcomers are admitted, or something else is due."""
        wheel = self._wheels.get(event.gang)
        if wheel is None or wheel.serial != event.serial:
            return
        carousel, now = wheel.carousel, self._kernel.now_us
        self._advance(wheel, (now - carousel.origin_us) // carousel.slot_us)
        while (slots := carousel.rotation.next_end(_NEVER)) is not None:
            at_us = wheel.time_of(carousel.rotation.now + slots - 1)
            if at_us > now:
                self._look_at(wheel, at_us)
                return
            if not self._ends(wheel):
                self._look_at(wheel, at_us + carousel.slot_us)
                return

    def _ends(self, wheel: _Wheel) -> int:
        """Makes events of the ends of jobs in the slot that begins now. Returns their number."""
        rotation, found = wheel.carousel.rotation, 0
        for node, number in rotation.row():
            seat = wheel.seats.get(number)
            if seat is not None and seat.end_us < 0 and rotation.queues[node].rest()[number] == 1:
                seat.end_us = wheel.time_of(rotation.now) + seat.last_us
                seat.stay.rest_us = seat.end_us - seat.stay.since_us
                rotation.prolong(number, ENDLESS)
                self._kernel.put(seat.end_us, _END, number, seat.stay)
                found += 1
        return found

    def _look_at(self, wheel: _Wheel, at_us: int) -> None:
        wheel.serial = next(self._serials)
        self._kernel.put(at_us, _NODE, -1 - wheel.serial, SlotEnds(at_us, wheel.key, wheel.serial))

    def _advance(self, wheel: _Wheel, slot: int) -> None:
        rotation = wheel.carousel.rotation
        while self._spells and rotation.now < slot:
            start, end = wheel.time_of(rotation.now), wheel.time_of(rotation.now + 1)
            for _, number in rotation.row():
                seat = wheel.seats.get(number)
                if seat is not None:
                    end_us = end if seat.end_us < 0 else min(end, seat.end_us)
                    if seat.spells and seat.spells[-1][1] == start:
                        seat.spells[-1] = (seat.spells[-1][0], end_us)
                    elif start < end_us:
                        seat.spells.append((start, end_us))
            wheel.carousel.advance_to(rotation.now + 1)
        wheel.carousel.advance_to(slot)

    def _regrow(self, wheel: _Wheel, gang: Gang) -> None:
        """Rebuilds the tree with other leaves: the same jobs keep their places in the rounds."""
        rests = {number: wheel.carousel.rotation.rest_of(number) for number in wheel.carousel.weights}
        old = {number: node for number, node in gang.homes.items() if number in wheel.carousel}
        kept = tuple((node, tuple(entry for entry in queue if entry[0] in old)) for node, queue in gang.queues)
        late = tuple(entry for entry in gang.late if entry[0] in old)
        wheel.carousel = Carousel(gang._replace(queues=tuple(item for item in kept if item[1]), late=late))
        for number, rest in rests.items():
            wheel.carousel.rotation.prolong(number, rest)

    def _cores(self, wheel: _Wheel, run: Running, node: int) -> Cores:
        """Returns the first cores of the job's leaves on each of its nodes."""
        wanted = cores_of(run)
        found: list[tuple[int, int]] = []
        for at, first, _ in sorted(cores_within(wheel.gang.leaves, *wheel.carousel.tree.span(node))):
            if at in wanted:
                low = self._machine.cores_of(at)[0] + first
                high = low + wanted[at] - 1
                if found and found[-1][1] == low - 1:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
        return tuple(found)


def _key(gang: Gang) -> tuple[str, str]:
    return gang.partition, gang.name
