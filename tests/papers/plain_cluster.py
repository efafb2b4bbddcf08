"""A cluster and its policies written down from papers.md 2.2 and 6 and the literature: everything is computed anew at each instant.

Nodes of any cores and memory; jobs of several processes and threads, which may follow others; nodes that fail, are drained and come back;
windows of maintenance, cancellations, limits of users. `plain_oracle.py` has the schedulers on counted processors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Node -> processes there; node -> (free cores, free memory).
Where = dict[int, int]
Free = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """A job; its times in any unit. after: a job that must end first; think: it comes so long after that end, -1: at its own time."""

    id: int
    submit: int
    run: int
    limit: int
    processes: int
    threads: int = 1
    memory: int = 0
    user: str = ""
    after: int = 0
    think: int = -1

    @property
    def cores(self) -> int:
        return self.processes * self.threads


class Node(NamedTuple):
    """Cores and memory; 0 is none of it."""

    cores: int
    memory: int


class Happening(NamedTuple):
    """kind: fail, repair, drain, undrain, cancel (`job`) or window (`nodes` until `end`, from `start`)."""

    at: int
    kind: str
    nodes: tuple[int, ...] = ()
    job: int = 0
    start: int = 0
    end: int = 0


class Stretch(NamedTuple):
    start: int
    end: int
    parting: str
    where: Where


@dataclass
class PlainCluster:
    """policy: head_blocking, first_fit, easy, conservative or migration. order: fcfs, sjf or ljf. max_wait: 0 = no ageing.

    followers, suspend: of migration. cpus_per_user, jobs_per_user: limits, 0 = none.
    """

    jobs: Mapping[int, Asked]
    nodes: Mapping[int, Node]
    happenings: list[Happening]
    policy: str
    order: str = "fcfs"
    max_wait: int = 0
    followers: str = "head"
    suspend: str = "all"
    cpus_per_user: int = 0
    jobs_per_user: int = 0
    now: int = -1
    waiting: dict[int, int] = field(default_factory=dict)  # job -> since when
    submitted: dict[int, int] = field(default_factory=dict)
    coming: dict[int, int] = field(default_factory=dict)
    running: dict[int, tuple[int, int, Where]] = field(default_factory=dict)  # job -> (start, end, nodes)
    promises: dict[int, tuple[int, Where]] = field(default_factory=dict)
    over: dict[int, str] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)  # what is left of migrated jobs
    passed: dict[int, int] = field(default_factory=dict)  # follower -> the head that it passed
    failed: set[int] = field(default_factory=set)
    drained: set[int] = field(default_factory=set)
    windows: list[Happening] = field(default_factory=list)
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)

    # -- what happens ----------------------------------------------------------------------------------------------------------

    def run_all(self) -> None:
        self.stretches = {job: [] for job in self.jobs}
        self.coming = {job.id: job.submit for job in self.jobs.values() if job.think < 0}
        decide = {"head_blocking": self.head_blocking, "first_fit": self.first_fit, "easy": self.easy, "migration": self.migration}
        while len(self.over) < len(self.jobs):
            ends = [end for _, end, _ in self.running.values()]
            edges = [at for window in self.windows for at in (window.start, window.end)]
            due = [at for at, _ in self.promises.values()]
            self.now = min(at for at in [*ends, *edges, *due, *self.coming.values(), *(h.at for h in self.happenings)] if at > self.now)
            freed = self.end_jobs() | self.change_nodes()
            came = self.admit()
            if self.policy == "conservative" and (freed or came or self.now in due):
                self.conservative(freed=freed)
            elif self.policy != "conservative" and (freed or came):
                decide[self.policy]()

    def end_jobs(self) -> bool:
        ended = sorted(job for job, (_, end, _) in self.running.items() if end == self.now)
        for job in ended:
            self.leave(job, "ended")
            self.close(job, "COMPLETED")
        return bool(ended)

    def change_nodes(self) -> bool:
        freed = any(window.end == self.now for window in self.windows)
        self.windows = [window for window in self.windows if window.end > self.now]
        for what in [one for one in self.happenings if one.at == self.now]:
            job, before = what.job, self.failed | self.drained
            match what.kind:
                case "fail" | "drain" | "repair" | "undrain":
                    closed = self.failed if what.kind in {"fail", "repair"} else self.drained
                    closed.update(what.nodes) if what.kind in {"fail", "drain"} else closed.difference_update(what.nodes)
                    lost = what.kind == "fail" and self.lose(what.nodes)
                    freed |= lost or self.failed | self.drained != before
                case "window":
                    self.windows.append(what)
                    freed = True
                case "cancel" if job not in self.over:
                    freed |= job in self.running or job in self.waiting
                    if job in self.running:
                        self.leave(job, "cancelled")
                    for table in (self.waiting, self.promises, self.coming):
                        table.pop(job, None)
                    self.close(job, "CANCELLED")
        for window in self.windows:
            freed |= window.start == self.now and self.lose(window.nodes)
        self.happenings = [one for one in self.happenings if one.at > self.now]
        return freed

    def lose(self, nodes: Iterable[int]) -> bool:
        lost = sorted(job for job, (_, _, where) in self.running.items() if set(where) & set(nodes))
        for job in lost:
            self.leave(job, "lost")
            self.left.pop(job, None)
            self.waiting[job] = self.now
        return bool(lost)

    def admit(self) -> bool:
        came = False
        while new := sorted(job for job, at in self.coming.items() if at == self.now):
            came = True
            for job in new:
                del self.coming[job]
                self.submitted[job] = self.now
                asked, empty = self.jobs[job], {node: (has.cores, has.memory) for node, has in self.nodes.items()}
                most = sum(self.room(asked, node, free, closed_too=True) for node, free in empty.items())
                if most < asked.processes or 0 < self.cpus_per_user < asked.cores:
                    self.close(job, "FAILED")
                else:
                    self.waiting[job] = self.now
        return came

    def leave(self, job: int, parting: str) -> None:
        start, _, where = self.running.pop(job)
        if start < self.now:
            self.stretches[job].append(Stretch(start, self.now, parting, where))

    def close(self, job: int, state: str) -> None:
        self.over[job] = state
        for other in self.jobs.values():
            if other.after == job and other.think >= 0 and other.id not in self.over:
                self.coming[other.id] = self.now + other.think

    # -- what is free ----------------------------------------------------------------------------------------------------------

    def room(self, job: Asked, node: int, free: tuple[int, int], *, closed_too: bool = False) -> int:
        if not closed_too and node in self.failed | self.drained:
            return 0
        return max(min(free[0] // job.threads, free[1] // job.memory if job.memory else free[0]), 0)

    def free_at(self, time: int, promises: Iterable[tuple[int, int, Where]] = ()) -> Free:
        """What is free then if every run uses its whole limit."""
        taken = [(self.now, start + self.jobs[job].limit, job, where) for job, (start, _, where) in self.running.items()]
        taken += [(at, at + self.jobs[job].limit, job, where) for job, at, where in promises]
        free = {}
        for node, has in self.nodes.items():
            there = [(self.jobs[job], where[node]) for since, until, job, where in taken if node in where and since <= time < until]
            cores = sum(job.threads * count for job, count in there)
            free[node] = has.cores - cores, has.memory - sum(job.memory * count for job, count in there)
        return free

    def rooms(self, job: Asked, start: int, skip: int = 0) -> Where:
        """How many processes fit on each node during the whole of a run from then on."""
        promises = [(other, at, where) for other, (at, where) in self.promises.items() if other != skip]
        times = {start, *(at for _, at, _ in promises if start < at < start + job.limit)}
        frees = [self.free_at(time, promises) for time in times]
        shut = {node for window in self.windows for node in window.nodes if window.start < start + job.limit and start < window.end}
        return {node: min(self.room(job, node, free[node]) for free in frees) for node in self.nodes if node not in shut}

    @staticmethod
    def lowest(job: Asked, rooms: Where, order: Iterable[int] | None = None) -> Where | None:
        where, left = {}, job.processes
        for node in sorted(rooms) if order is None else order:
            if count := min(rooms[node], left):
                where[node] = count
                left -= count
        return None if left else where

    def fits(self, job: int) -> Where | None:
        return self.lowest(self.jobs[job], self.rooms(self.jobs[job], self.now, job))

    # -- the queue -------------------------------------------------------------------------------------------------------------

    def place(self, job: int) -> tuple[int, ...]:
        cores = {"sjf": self.jobs[job].cores, "ljf": -self.jobs[job].cores}.get(self.order, 0)
        return cores, self.submitted[job], job

    def queue(self) -> list[int]:
        jobs = [job for job in self.waiting if self.jobs[job].think >= 0 or self.jobs[job].after in {0, *self.over}]
        aged = [job for job in jobs if self.max_wait and self.submitted[job] <= self.now - self.max_wait]
        return sorted(aged, key=lambda job: (self.submitted[job], job)) + sorted(set(jobs) - set(aged), key=self.place)

    def is_over_limit(self, job: int) -> bool:
        mine = [self.jobs[other] for other in self.running if self.jobs[other].user == self.jobs[job].user]
        cores = sum(other.cores for other in mine) + self.jobs[job].cores
        return 0 < self.cpus_per_user < cores or 0 < self.jobs_per_user <= len(mine)

    def start(self, job: int, where: Where | None) -> bool:
        if where is None:
            return False
        del self.waiting[job]
        self.promises.pop(job, None)
        self.running[job] = self.now, self.now + self.left.get(job, self.jobs[job].run), where
        return True

    # -- policies --------------------------------------------------------------------------------------------------------------

    def head_blocking(self) -> int:
        for job in self.queue():
            if not self.is_over_limit(job) and not self.start(job, self.fits(job)):
                return job
        return 0

    def first_fit(self) -> None:
        for job in self.queue():
            if not self.is_over_limit(job):
                self.start(job, self.fits(job))

    def easy(self) -> None:
        head = self.head_blocking()
        if not head:
            return
        asked = self.jobs[head]
        limits = [start + self.jobs[job].limit for job, (start, _, _) in self.running.items()]
        times = sorted({self.now, *limits, *(window.end for window in self.windows)})
        shadow = next((at for at in times if self.lowest(asked, self.rooms(asked, at)) is not None), None)
        if shadow is None:  # nodes are closed
            later, where = self.now, None
        elif self.windows:
            later, where = shadow, self.lowest(asked, self.rooms(asked, shadow))
        else:  # rather on nodes that are of no use to such jobs now
            later, where = shadow, self.sparing(asked, self.free_at(shadow), self.free_at(self.now))
        for job in [job for job in self.queue() if job != head and not self.is_over_limit(job)]:
            if self.is_over_limit(job):
                continue
            if self.windows or where is None:
                self.promises = {head: (later, where)} if where is not None else {}
                self.start(job, self.fits(job))
                continue
            now, then = self.free_at(self.now), self.free_at(later, [(head, later, where)])
            lasting = {node: (min(now[node][0], then[node][0]), min(now[node][1], then[node][1])) for node in now}
            other = self.jobs[job]
            if self.now + other.limit <= later:
                self.start(job, self.sparing(other, now, lasting))
            else:
                self.start(job, self.lowest(other, {node: self.room(other, node, lasting[node]) for node in lasting}))
        self.promises = {}

    def sparing(self, job: Asked, free: Free, other: Free) -> Where | None:
        order = sorted(free, key=lambda node: (self.room(job, node, other[node]) > 0, node))
        return self.lowest(job, {node: self.room(job, node, free[node]) for node in free}, order)

    def conservative(self, *, freed: bool) -> None:
        for job in self.queue():
            if self.is_over_limit(job):
                self.promises.pop(job, None)
                continue
            if freed or job not in self.promises or self.promises[job][0] <= self.now:
                asked = self.jobs[job]
                ends = [start + self.jobs[other].limit for other, (start, _, _) in self.running.items()]
                ends += [at + self.jobs[other].limit for other, (at, _) in self.promises.items()]
                times = sorted({self.now, *(at for at in [*ends, *(window.end for window in self.windows)] if at > self.now)})
                found = ((at, self.lowest(asked, self.rooms(asked, at, job))) for at in times)
                at, where = next(((at, where) for at, where in found if where is not None), (0, {}))
                self.promises.pop(job, None)
                if where:
                    self.promises[job] = at, where
            if job in self.promises and self.promises[job][0] == self.now:
                self.start(job, self.fits(job))

    def migration(self) -> None:
        while head := self.head_blocking_noting():
            followers = sorted(self.followers_of(head), key=lambda job: (self.running[job][0], job), reverse=True)
            free = sum(max(cores, 0) for node, (cores, _) in self.free_at(self.now).items() if node not in self.failed | self.drained)
            if not followers or self.jobs[head].cores > sum(self.jobs[job].cores for job in followers) + free:
                break
            before, moved = dict(self.running), []
            for job in followers:
                if self.suspend == "minimal" and self.fits(head) is not None:
                    break
                moved.append(job)
                del self.running[job]
            where = self.fits(head)
            self.running = before
            if where is None:
                break
            for job in moved:
                start, end, _ = self.running[job]
                whole = self.left.get(job, self.jobs[job].run)
                self.left[job] = -(-whole * (end - self.now) // (end - start))
                self.leave(job, "migrated")
                self.waiting[job] = self.now
                del self.passed[job]
            self.start(head, where)
            self.passed.pop(head, None)
        for job in self.queue() if head else ():
            if job != head and self.start(job, self.fits(job)):
                self.passed[job] = head

    def head_blocking_noting(self) -> int:
        before = set(self.running)
        head = self.head_blocking()
        for job in set(self.running) - before:
            self.passed.pop(job, None)
        return head

    def followers_of(self, head: int) -> Iterable[int]:
        for job, its in self.passed.items():
            if job in self.running and (
                self.followers == "any"
                or (
                    self.waiting[head] <= self.running[job][0]
                    and (its == head or (self.followers == "head" and self.place(head) < self.place(job)))
                )
            ):
                yield job
