"""Gangs in a simulation: nodes carry out the slots of a record by themselves; only ends of jobs are events, whatever the slot lasts.

The front is the policy's own (`Carousel`), with what the policy does not know: how many slots each job still needs. A job that
ends in the middle of its slot leaves its cores idle until the slot is over, and its slots stay empty until the record is set again.
With `spells` every stretch between two stops is kept, which costs a look at every slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rmgr.sched.capacity.gangs import ENDLESS, Carousel, cores_within
from rmgr.sched.job import Running
from rmgr.sched.records import Gang
from rmgr.sim.engine.kernel import Kernel, Rank
from rmgr.sim.engine.machine import Machine, Stay, Stays
from rmgr.sim.engine.outcome import Cores
from rmgr.sim.workload.events import SlotEnds

_END, _NODE = int(Rank.END), int(Rank.NODE)
_NEVER = 1 << 59


@dataclass(slots=True)
class _Seat:
    """A job of a gang. quanta: slots that it needs; last_us: how much of the last one. end_us: when it ends, once that is known."""

    stay: Stay
    quanta: int
    last_us: int
    end_us: int = -1
    spells: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Wheel:
    """One gang. serial: of the event that it waits for; others are out of date."""

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
    """Every gang by its partition and its name: one policy may serve several partitions.

    Cost: of an arrival or an end a path of the tree; with `spells` also O(who runs) a slot.
    """

    def __init__(self, stays: Stays, kernel: Kernel[Any], machine: Machine, *, spells: bool = False) -> None:
        self._stays, self._kernel, self._machine, self._spells = stays, kernel, machine, spells
        self._wheels: dict[tuple[str, str], _Wheel] = {}
        self.of: dict[int, tuple[str, str]] = {}  #: job -> gang
        self._serials = count()

    def set(self, gang: Gang) -> None:
        """The record from now on. Jobs that are still to start follow by `begin`."""
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
        """A job of a gang enters its queue; its end becomes an event in time."""
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
        """The job leaves its nodes; how long it was served is with its stay from now on."""
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
        """A slot begins in which a job ends, or newcomers are let in; or there is something new to look at."""
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
        """Ends of jobs in the slot that begins now become events; how many there are."""
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
        """The tree has other leaves: the same jobs at the same places of their rounds."""
        rests = {number: wheel.carousel.rotation.rest_of(number) for number in wheel.carousel.weights}
        old = {number: node for number, node in gang.homes.items() if number in wheel.carousel}
        kept = tuple((node, tuple(entry for entry in queue if entry[0] in old)) for node, queue in gang.queues)
        late = tuple(entry for entry in gang.late if entry[0] in old)
        wheel.carousel = Carousel(gang._replace(queues=tuple(item for item in kept if item[1]), late=late))
        for number, rest in rests.items():
            wheel.carousel.rotation.prolong(number, rest)

    def _cores(self, wheel: _Wheel, run: Running, node: int) -> Cores:
        """The first cores of its leaves on each of its nodes."""
        wanted = {at: count * run.job.threads for first, last, count in run.placement for at in range(first, last + 1)}
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
