"""The stretches of a run as columns of numbers: a million jobs on a hundred thousand nodes must fit into memory.

A free machine is a patchwork: a job of a large machine stands on dozens of ranges of cores. As tuples of integers they take 120 bytes
each, as columns 8 to 16. `Outcomes` makes objects of them when somebody reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from rmgr.model.base.states import State
from rmgr.sim.engine.machine import Cores
from rmgr.sim.engine.outcome import JobOutcome, Parting, Spell
from rmgr.sim.workload.jobs import WorkloadJob

_PARTINGS = tuple(Parting)
_CODES = {parting: code for code, parting in enumerate(_PARTINGS)}
_NONE = -1


class Stretches:
    """Every stretch of every job (numbers 1..jobs), in the order in which they ended. Space: 40 bytes and 8 or 16 for each range."""

    __slots__ = ("_at", "_ends", "_first", "_later", "_latest", "_partings", "_ranges", "_starts", "served")

    def __init__(self, jobs: int, processors: int) -> None:
        self._first = array("q", [_NONE]) * jobs  # of each job, its first row
        self._latest: dict[int, int] = {}  # of jobs with more than one row, the last
        self._later: dict[int, int] = {}  # row -> the next of the same job
        self._starts, self._ends, self._partings = array("q"), array("q"), array("b")
        self._at = array("q", [0])  # row i has the ranges from _at[i] until _at[i + 1]
        #: of jobs that shared their cores in time: how long they ran (None: their stretches say it), in how many slots
        self.served: dict[int, tuple[int | None, int]] = {}
        self._ranges = array("i" if processors < 1 << 31 else "q")

    def append(self, number: int, start_us: int, end_us: int, cores: Cores, parting: Parting) -> None:
        """The job ran from start to end on these cores. Nothing is kept of a stretch without length."""
        if end_us == start_us:
            return
        row = len(self._starts)
        if self._first[number - 1] == _NONE:
            self._first[number - 1] = row
        else:
            self._later[self._latest.get(number, self._first[number - 1])] = row
            self._latest[number] = row
        self._starts.append(start_us)
        self._ends.append(end_us)
        self._partings.append(_CODES[parting])
        for span in cores:
            self._ranges.extend(span)
        self._at.append(len(self._ranges))

    def serve(self, number: int, served_us: int | None, turns: int) -> None:
        """The job ran so long in so many slots of a gang, beside what is known of earlier stays."""
        before_us, before = self.served.get(number, (0, 0))
        self.served[number] = None if served_us is None else served_us + (before_us or 0), turns + before

    def left(self, number: int, parting: Parting) -> None:
        """A job that was suspended has left the nodes of its last stretch after all."""
        row = self._latest.get(number, self._first[number - 1])
        if row != _NONE:
            self._partings[row] = _CODES[parting]

    def __contains__(self, number: int) -> bool:
        """The job has run."""
        return self._first[number - 1] != _NONE

    def of(self, number: int) -> tuple[Spell, ...]:
        """In order of time."""
        spells = []
        row = self._first[number - 1]
        while row != _NONE:
            flat = self._ranges[self._at[row] : self._at[row + 1]]
            cores = tuple(zip(flat[::2], flat[1::2], strict=True))
            spells.append(Spell(self._starts[row], self._ends[row], cores, _PARTINGS[self._partings[row]]))
            row = self._later.get(row, _NONE)
        return tuple(spells)


class Outcomes(Sequence[JobOutcome]):
    """The outcome of each job in job order, put together when it is read. Two of them are equal when all their outcomes are."""

    __slots__ = ("_jobs", "_queues", "_states", "_stretches", "_submits")

    def __init__(
        self,
        jobs: Sequence[WorkloadJob],
        stretches: Stretches,
        *,
        states: Mapping[int, State],
        submits: Mapping[int, WorkloadJob],
        queues: Mapping[int, str],
    ) -> None:
        """states: of jobs that did not complete. submits: jobs that were submitted otherwise than in `jobs`. queues: of rerouted jobs."""
        self._jobs, self._stretches = jobs, stretches
        self._states, self._submits, self._queues = states, submits, queues

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, at: int) -> JobOutcome: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[JobOutcome, ...]: ...
    def __getitem__(self, at: int | slice) -> JobOutcome | tuple[JobOutcome, ...]:
        if isinstance(at, slice):
            return tuple(map(self._of, self._jobs[at]))
        return self._of(self._jobs[at])

    def __iter__(self) -> Iterator[JobOutcome]:
        return map(self._of, self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of every sequence that is compared by what is in it

    def _of(self, job: WorkloadJob) -> JobOutcome:
        number = job.number
        served_us, turns = self._stretches.served.get(number, (None, 0)) if self._stretches.served else (None, 0)
        return JobOutcome(
            job=self._submits.get(number, job),
            spells=self._stretches.of(number),
            state=self._states.get(number, State.COMPLETED),
            queue=self._queues.get(number, job.queue),
            served_us=served_us,
            turns=turns,
        )
