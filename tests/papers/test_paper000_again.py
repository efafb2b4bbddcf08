"""Paper 000 implemented a second time, naively, from papers.md 1.3 to 1.5: one pool of CPUs, a counter per job, no records.

The policy must start every job at the same microsecond as this does, on workloads that reserve in all three ways.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from rmgr.sched.policies.connection_reservation import ConnectionReservation
from rmgr.sched.policy import Stage
from rmgr.sched.queue_class import HPC2500, QueueClass
from rmgr.sim.engine.driver import Setting, simulate
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

CPUS = 512


@dataclass
class Mine:
    """A job of the naive program."""

    job: WorkloadJob
    queue: QueueClass
    overtaken: int = 0
    start: int = -1
    flagged: bool = False
    needs: list[Mine] | None = None  # what it waits for, once it has reserved
    held: int = 0  # CPUs that these have left it

    @property
    def cpu(self) -> int:
        return self.job.processors

    @property
    def end(self) -> int:
        return self.start + self.job.run_us

    def is_above(self) -> bool:
        w_squared = self.queue.max_threads * self.queue.max_cpus / (self.job.threads * self.cpu)  # both sides squared
        return self.overtaken**2 * w_squared > self.queue.reservation_threshold**2


@dataclass
class Naive:
    """papers.md 1.4 and 1.5, step by step."""

    queues: tuple[QueueClass, ...]
    free: int = CPUS
    reserved: Counter[str] = field(default_factory=Counter)  # by trigger
    waiting: dict[str, list[Mine]] = field(default_factory=dict)
    running: list[Mine] = field(default_factory=list)

    def starts(self, jobs: tuple[WorkloadJob, ...]) -> list[int]:
        classes = {queue.name: queue for queue in self.queues}
        self.waiting = {name: [] for name in classes}
        mine = [Mine(job, classes[job.queue]) for job in jobs]
        arrivals = list(mine)
        while arrivals or self.running:
            now = min([m.end for m in self.running] + [m.job.submit_us for m in arrivals[:1]])
            ended = [m for m in self.running if m.end == now]
            for m in ended:
                self.leave(m)
            empty = {name for name, queue in self.waiting.items() if not queue}
            while arrivals and arrivals[0].job.submit_us == now:
                m = arrivals.pop(0)
                self.waiting[m.queue.name].append(m)
            self.scan(now, empty, released=bool(ended))
        return [m.start for m in mine]

    def leave(self, m: Mine) -> None:
        self.running.remove(m)
        owner = next((r for queue in self.waiting.values() for r in queue if r.needs is not None and m in r.needs), None)
        if owner is None:
            self.free += m.cpu
            return
        owner.needs.remove(m)
        owner.held += m.cpu
        surplus = min(max(owner.held + sum(other.cpu for other in owner.needs) - owner.cpu, 0), owner.held)
        owner.held -= surplus
        self.free += surplus

    def start(self, m: Mine, now: int) -> None:
        m.start = now
        self.waiting[m.queue.name].remove(m)
        self.running.append(m)

    def scan(self, now: int, empty: set[str], *, released: bool) -> None:
        for queue in self.waiting.values():
            for m in [m for m in queue if m.needs == []]:
                assert m.held == m.cpu
                self.start(m, now)
        for queue in self.waiting.values():
            for m in list(queue):
                if m.needs is None and m.cpu <= self.free:
                    for other in queue[: queue.index(m)]:
                        other.overtaken += 1
                    self.free -= m.cpu
                    self.start(m, now)
        for name, queue in self.waiting.items():
            for m in queue:
                if m.is_above():
                    self.reserve(m, "priority")
            if queue and queue[0].queue.head_trigger and released:
                self.reserve(queue[0], "head")
            if queue and name in empty:
                self.reserve(queue[0], "no waiter")

    def reserve(self, r: Mine, trigger: str) -> None:
        active = sum(m.needs is not None for m in self.waiting[r.queue.name])
        if r.needs is not None or active >= r.queue.max_reservations:
            return
        from_queue = [m for m in self.running if m.queue is r.queue]
        c = [m for m in from_queue if not m.flagged]
        matches = [m for m in c if (m.job.processes, m.job.threads) == (r.job.processes, r.job.threads)]
        if matches:
            chosen = [min(matches, key=lambda m: (m.start, m.job.number))]
        else:
            if sum(m.cpu for m in from_queue) < r.cpu:
                c = [m for m in self.running if not m.flagged]
            chosen = []
            while sum(m.cpu for m in chosen) < r.cpu:
                if not c:
                    return
                x = min(c, key=lambda m: (-m.cpu, -m.job.threads, m.start, m.job.number))
                chosen.append(x)
                c.remove(x)
        for m in chosen:
            m.flagged = True
        r.needs = chosen
        self.reserved[trigger] += 1


def a_workload(seed: int, count: int) -> Workload:
    """Overloaded, of all sizes and queues; several jobs at one instant."""
    chance = random.Random(seed)
    jobs, at = [], 0
    for number in range(1, count + 1):
        at += chance.choice([0, 0, 1, 5, 20])
        queue = chance.choice(HPC2500)
        threads = chance.choice([t for t in (1, 2, 8, 32, 64) if t <= queue.max_threads])
        most = min(queue.max_processes, queue.max_cpus // threads)
        processes = chance.choice([1, most, most, chance.randint(1, most)])
        run = chance.choice([1, 10, 60, 300])
        jobs.append(
            WorkloadJob(
                number=number, submit_us=at * SECOND, run_us=run * SECOND, estimate_us=run * SECOND, processors=processes * threads,
                processes=processes, threads=threads, queue=queue.name,
            )
        )
    return Workload(name="of all sizes", jobs=tuple(jobs), processors=CPUS)


EAGER = tuple(replace(queue, max_reservations=3, reservation_threshold=5, head_trigger=True) for queue in HPC2500)


@pytest.mark.parametrize("queues", [HPC2500, EAGER], ids=["the paper's", "eager"])
@pytest.mark.parametrize("seed", range(4))
def test_every_job_starts_when_a_naive_program_starts_it(seed: int, queues: tuple[QueueClass, ...]) -> None:
    workload = a_workload(seed, 250)
    pipeline = (Stage(ConnectionReservation(queues=queues)),)
    result = simulate(workload, Setting(nodes=1, cores=CPUS, pipeline=pipeline, policy="connection_reservation"))
    assert result.faults == ()
    naive = Naive(queues)
    assert [outcome.start_us for outcome in result.outcomes] == naive.starts(workload.jobs)
    assert set(naive.reserved) == {"priority", "head", "no waiter"}, "the workload tries every way to reserve"
