"""Four schedulers written down from papers.md section 6 alone: everything is computed anew at each instant, slowly and plainly."""

from __future__ import annotations

from typing import NamedTuple


class Asked(NamedTuple):
    """A job: its times in any unit."""

    submit: int
    run: int
    size: int
    estimate: int


class Plain:
    """Runs `jobs`, in order of submit time, on `processors` under `policy`.

    It is fcfs, first_fit, easy, shortest (EASY, those behind the head by estimate) or conservative.
    """

    def __init__(self, jobs: list[Asked], processors: int, policy: str) -> None:
        self.jobs, self.processors = jobs, processors
        self.start: dict[int, int] = {}
        self.promise: dict[int, int] = {}
        self.now = -1
        self.shortest = policy == "shortest"
        alike = dict.fromkeys(("easy", "shortest"), self.easy)
        self.decide = {"fcfs": self.fcfs, "first_fit": self.first_fit, "conservative": self.conservative, **alike}[policy]

    def starts(self) -> list[int]:
        while len(self.start) < len(self.jobs):
            ends = [self.start[job] + self.jobs[job].run for job in self.start]
            instants = [*(job.submit for job in self.jobs), *ends, *self.promise.values()]
            self.now = min(at for at in instants if at > self.now)
            self.ended = self.now in ends
            self.decide([job for job, asked in enumerate(self.jobs) if asked.submit <= self.now and job not in self.start])
        return [self.start[job] for job in range(len(self.jobs))]

    def running(self) -> list[int]:
        return [job for job in self.start if self.start[job] + self.jobs[job].run > self.now]

    def free(self) -> int:
        return self.processors - sum(self.jobs[job].size for job in self.running())

    def limit(self, job: int) -> int:
        return self.start[job] + self.jobs[job].estimate

    def fcfs(self, queue: list[int]) -> None:
        for job in queue:
            if self.jobs[job].size > self.free():
                return
            self.start[job] = self.now

    def first_fit(self, queue: list[int]) -> None:
        for job in queue:
            if self.jobs[job].size <= self.free():
                self.start[job] = self.now

    def easy(self, queue: list[int]) -> None:
        self.fcfs(queue)
        blocked = [job for job in queue if job not in self.start]
        if not blocked:
            return
        head, running = self.jobs[blocked[0]].size, self.running()

        def free_at(time: int) -> int:
            return self.free() + sum(self.jobs[job].size for job in running if self.limit(job) <= time)

        shadow = min(time for time in map(self.limit, running) if free_at(time) >= head)
        extra = free_at(shadow) - head
        for job in sorted(blocked[1:], key=lambda job: self.jobs[job].estimate) if self.shortest else blocked[1:]:
            size = self.jobs[job].size
            if size > self.free():
                continue
            if self.now + self.jobs[job].estimate > shadow:
                if size > extra:
                    continue
                extra -= size
            self.start[job] = self.now

    def conservative(self, queue: list[int]) -> None:
        """The earliest start that delays no promise; after an end each job in turn gives its promise up for the earliest one then."""
        for job in queue:
            if self.ended or job not in self.promise:
                before = self.promise.pop(job, None)
                self.promise[job] = self.earliest(job)
                assert before is None or self.promise[job] <= before, "a promise was broken"
            if self.promise[job] == self.now:
                self.start[job] = self.promise.pop(job)

    def earliest(self, job: int) -> int:
        taken = [(self.start[other], self.limit(other), self.jobs[other].size) for other in self.running()]
        taken += [(at, at + self.jobs[other].estimate, self.jobs[other].size) for other, at in self.promise.items()]
        asked = self.jobs[job]

        def fits(start: int) -> bool:
            instants = [start, *(first for first, _, _ in taken if start < first < start + asked.estimate)]
            used = (sum(size for first, last, size in taken if first <= at < last) for at in instants)
            return all(cores + asked.size <= self.processors for cores in used)

        return min(at for at in {self.now, *(last for _, last, _ in taken if last > self.now)} if fits(at))
