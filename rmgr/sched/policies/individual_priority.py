"""Individual priority of paper 000: how often a waiting job was overtaken in its queue, and when that is enough to reserve.

Algorithm:
1. A waiting job begins at 0. Whenever a job behind it in its queue starts (a new arrival, or by First-Fit), every job it passed gains the
   constant w(j) = (threads(j) / threads_max(q) x cpu(j) / cpu_max(q)) ^ (-1/2): the smaller the job, the more.
2. Above the threshold of its queue ("exceeds": equal is not enough) it reserves; of several the one nearest the head goes first.
w is never added up: value = overtakings x w, so value > threshold is count^2 x threads_max x cpu_max > threshold^2 x threads x cpu, in
integers, exactly.
Representation: one record a queue, not one a job. A start writes the passer down at the nearest waiting job ahead of it; a job's count is
the sum of what stands at it or behind it. A job that its class admits has w >= 1, so that more overtakings than the threshold are always
enough: what stands ahead of so many is dropped. So a pass writes at most one record a queue, of at most threshold + 1 entries, however
many jobs wait or were passed.
Parameters: threshold a queue (a number, table 3). Source: papers.md 1.5, paper 000 section 3.3 and formula (1). Differs from it in:
nothing. A job that comes back to its queue (migrated, preempted) counts from what passed those still waiting behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple, TypeAlias

from rmgr.sched.job import Job
from rmgr.sched.queue_class import QueueClass

#: Place in a queue: (when it came, id).
Place: TypeAlias = tuple[int, int]


def constant(job: Job, queue: QueueClass) -> float:
    """w(j): what each overtaking adds. For people to read; decisions are made by `exceeds`."""
    return sqrt(queue.max_threads * queue.max_cpus / (job.wanted[1] * job.wanted_cpus))


def exceeds(overtakings: int, job: Job, queue: QueueClass) -> bool:
    """The individual priority of a job overtaken so often is above the threshold of its queue. Exact."""
    gained = overtakings * overtakings * queue.max_threads * queue.max_cpus
    return gained > queue.reservation_threshold * queue.reservation_threshold * job.wanted[1] * job.wanted_cpus


class Overtaken(NamedTuple):
    """Starts past the waiting jobs of a queue: places ascending, and how often at each."""

    places: tuple[Place, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def recorded(cls, value: Sequence[int] | None) -> Overtaken:
        """From the record: (time, id, count) after (time, id, count)."""
        if not value:
            return cls()
        return cls(tuple(zip(value[::3], value[1::3], strict=True)), tuple(value[2::3]))

    def record(self) -> tuple[int, ...]:
        return tuple(number for (at_us, job_id), count in zip(self.places, self.counts, strict=True) for number in (at_us, job_id, count))

    def of(self, place: Place) -> int:
        """How often the job at this place was overtaken: exactly, up to the threshold, else at least so often."""
        return sum(self.counts[bisect_left(self.places, place) :])

    def above(self, waiting: Iterable[Job], queue: QueueClass) -> Iterator[Job]:
        """Those of the waiting jobs (in the order of the queue) that exceed the threshold, nearest the head first. O(queue)."""
        left, at = sum(self.counts), 0
        for job in waiting:
            place = place_of(job)
            while at < len(self.places) and self.places[at] < place:
                left -= self.counts[at]
                at += 1
            if not left:
                return
            if exceeds(left, job, queue):
                yield job

    def passed(self, ahead: Iterable[Place], oldest: Place, queue: QueueClass) -> Overtaken:
        """As it is after a pass. ahead: for each start the nearest waiting place before it. oldest: the first who waits now."""
        found = dict(zip(self.places, self.counts, strict=True))
        for place in ahead:
            found[place] = found.get(place, 0) + 1
        kept: list[tuple[Place, int]] = []
        total = 0
        for place in sorted(found, reverse=True):
            if place < oldest or total > queue.reservation_threshold:
                break
            kept.append((place, found[place]))
            total += found[place]
        return Overtaken(tuple(place for place, _ in reversed(kept)), tuple(count for _, count in reversed(kept)))


def place_of(job: Job) -> Place:
    """Its place in the order of its queue, which is that of arrival."""
    return (job.submit_us, job.id)
