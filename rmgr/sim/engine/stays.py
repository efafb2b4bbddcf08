"""Jobs on their nodes: which cores each holds, how long it still needs there, and what is left of those that moved.

The driver's other half: it knows of time and work, nothing of scheduling. Every stretch that ends becomes a row of `Stretches`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmgr.sched.job import Running
from rmgr.sim.engine.execution import Execution, Recorded, Work, unexecuted
from rmgr.sim.engine.machine import Cores, Machine
from rmgr.sim.engine.outcome import Parting
from rmgr.sim.engine.stretches import Stretches
from rmgr.sim.workload.events import NodeRanges
from rmgr.sim.workload.jobs import WorkloadJob


class Stay:
    """One job on the nodes where it was started, until it leaves them; suspension in between does not end it."""

    __slots__ = ("cores", "duration_us", "left", "rest_us", "run", "served_us", "since_us", "spells", "turns")

    def __init__(self, run: Running, left: Work | None, duration_us: int) -> None:
        self.run = run
        self.left = left  #: when it came here; None = all of it
        self.duration_us = duration_us  #: of that here
        self.rest_us = duration_us  #: as of `since_us`
        self.since_us = run.start_us
        self.cores: Cores = ()
        self.turns = -1  #: in a gang: slots that it was given; -1: it has its cores for itself
        self.served_us = 0  #: in a gang: how long it ran in them
        self.spells: list[tuple[int, int]] | None = None  #: in a gang: its stretches, where they are kept

    def __lt__(self, other: Stay) -> bool:
        """Two ends of one job at one instant: all but one of them are out of date, and it does not matter which comes first."""
        return self.since_us < other.since_us


class Stays:
    """Jobs by place. Numbers are job numbers (1..n)."""

    __slots__ = ("_execution", "_jobs", "_left", "_machine", "_plain", "_stretches", "running", "stopped")

    def __init__(self, jobs: Sequence[WorkloadJob], machine: Machine, execution: Execution, stretches: Stretches) -> None:
        self._jobs = jobs
        self._machine, self._execution, self._stretches = machine, execution, stretches
        self._plain = type(execution) is Recorded
        self._left: dict[int, Work] = {}  # of jobs that moved
        self.running: dict[int, Stay] = {}
        self.stopped: dict[int, Stay] = {}  #: suspended in place

    def begin(self, run: Running) -> Stay:
        """The job is on its nodes from now on. Raises: ValueError when they do not have the cores: the vetting failed."""
        stay = self.running[run.job.id] = self._stay(run)
        stay.cores = self._machine.take(run.placement, run.job.threads)
        return stay

    def begin_shared(self, run: Running, cores: Cores) -> Stay:
        """The job of a gang is on its nodes, which others use in other slots; `Turns` knows when it runs."""
        stay = self.running[run.job.id] = self._stay(run)
        stay.cores, stay.turns = cores, 0
        return stay

    def _stay(self, run: Running) -> Stay:
        number = run.job.id
        job = self._jobs[number - 1]
        left = self._left.pop(number, None) if self._left else None
        if left is None and self._plain:
            duration_us = job.run_us
        else:
            duration_us = self._execution.duration_us(job, self._execution.work(job) if left is None else left, run.placement)
        return Stay(run, left, max(duration_us, 1))

    def end(self, number: int, now_us: int, parting: Parting = Parting.ENDED) -> Stay:
        """It leaves them, for good or to start again from nothing. Raises: KeyError when it is not there."""
        stay = self.running.pop(number, None)
        if stay is None:
            stay = self.stopped.pop(number)
            self._stretches.left(number, parting)
            return stay
        self._stretch(number, stay, now_us, parting)
        return stay

    def migrate(self, number: int, now_us: int) -> Stay:
        """It leaves them and keeps what it has done, also when it was suspended there."""
        stay = self.end(number, now_us, Parting.MIGRATED)
        job = self._jobs[number - 1]
        whole = self._execution.work(job) if stay.left is None else stay.left
        left = unexecuted(whole, stay.duration_us - stay.rest_us, stay.duration_us)
        self._left[number] = self._execution.after_migration(job, left)
        return stay

    def suspend(self, number: int, now_us: int) -> None:
        """It stops in place; its cores are free, its memory is not."""
        stay = self.stopped[number] = self.running.pop(number)
        self._stretch(number, stay, now_us, Parting.SUSPENDED)

    def resume(self, number: int, now_us: int) -> Stay:
        """It goes on where it stopped, on the lowest free cores of the same nodes."""
        stay = self.running[number] = self.stopped.pop(number)
        stay.cores = self._machine.take(stay.run.placement, stay.run.job.threads)
        stay.since_us = now_us
        return stay

    def on(self, nodes: NodeRanges) -> list[int]:
        """Jobs that run or are suspended on any of these nodes, ascending. Cost: O(spans of all x ranges)."""
        return sorted(stay.run.job.id for stay in self._all() if _touch(stay, nodes))

    def of(self, number: int) -> Stay | None:
        """Where it runs or is suspended."""
        return self.running.get(number) or self.stopped.get(number)

    def _all(self) -> Iterator[Stay]:
        yield from self.running.values()
        yield from self.stopped.values()

    def _stretch(self, number: int, stay: Stay, now_us: int, parting: Parting) -> None:
        if stay.turns >= 0:
            self._share(number, stay, now_us, parting)
            return
        stay.rest_us -= now_us - stay.since_us
        self._machine.give(stay.cores)
        self._stretches.append(number, stay.since_us, now_us, stay.cores, parting)

    def _share(self, number: int, stay: Stay, now_us: int, parting: Parting) -> None:
        """A stay in a gang: one row, or its stretches where they are kept."""
        stay.rest_us = stay.duration_us - stay.served_us
        self._stretches.serve(number, None if stay.spells is not None else stay.served_us, stay.turns)
        for at, (start, end) in enumerate(stay.spells if stay.spells is not None else [(stay.since_us, now_us)], 1):
            last = stay.spells is None or at == len(stay.spells)
            self._stretches.append(number, start, end, stay.cores, parting if last else Parting.SUSPENDED)


def _touch(stay: Stay, nodes: NodeRanges) -> bool:
    return any(first <= high and low <= last for first, last, _ in stay.run.placement for low, high in nodes)
