"""A run as values: its setting besides the workload, and its result: when and where each job ran, how each stretch ended.

Stretches are kept as columns of numbers, because a million jobs on a hundred thousand nodes must fit into memory. The free cores of a large
machine are fragmented, so a job stands on dozens of ranges. As tuples of integers they take 120 bytes each, as columns 8 to 16. `Outcomes`
makes objects when they are read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, overload

from rmgr.errors import UsageError
from rmgr.model.states import State
from rmgr.sched.job import Job as Request
from rmgr.sched.job import Node
from rmgr.sched.policy import Stage
from rmgr.sim.engine.execution import Execution, Recorded
from rmgr.sim.workload.events import Event, Failures
from rmgr.sim.workload.jobs import WorkloadJob

#: Cores as inclusive ranges, ascending, never adjacent: ((0, 3), (7, 7)).
Cores = tuple[tuple[int, int], ...]
_NONE = -1
#: Times are kept in 64 bits: 292,000 years.
LATEST_US = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Machine, policies, execution, cadence, and events. The same setting and workload give the same result.

    Attributes:
        nodes: of the machine: a number of nodes with `cores` each, or each node.
        pipeline: stages of policies. policy: its name in results. seed: for every pass, and for everything that the driver draws.
        tick_us: passes only at multiples of it; 0 = at every instant with an event.
        execution: how long a job runs on which nodes. partitions: queue -> partition; jobs of other queues go to `default`.
        events, failures: what happens besides the jobs. requeue: a job that loses a node waits again; otherwise it fails.
        usage_half_life_us: of the use that fair shares count, 0 = not counted.
        spells: keeps every stretch of a job in a gang, not only its stay.
        requests: job number -> request to the scheduler, if the workload's job does not contain all of it (a replayed log).
    """

    nodes: int | tuple[Node, ...]
    cores: int = 1
    pipeline: tuple[Stage, ...]
    policy: str
    seed: int = 0
    tick_us: int = 0
    execution: Execution = Recorded()
    partitions: Mapping[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    failures: Failures | None = None
    requeue: bool = True
    usage_half_life_us: int = 0
    spells: bool = False
    requests: Mapping[int, Request] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a whole run.

    Attributes:
        outcomes: one per job, in job order. processors: of the machine. policy: its name. seed: of the run.
        passes: of the pipeline. wall_seconds: real time between first and last event (in no file, as it always differs).
        faults: forbidden behaviour of policies -> number of times.
    """

    outcomes: Sequence[JobOutcome]
    processors: int
    policy: str
    seed: int
    passes: int
    wall_seconds: float
    faults: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The fate of one job. `spells` in order of time; several if it was suspended, migrated or lost its node; none if refused.

    turns: slots in which it ran, in a gang; 0 if it did not share its cores. served_us: how long it ran in them, None if its spells show
    that (otherwise a spell is a whole stay on nodes that other jobs used in other slots).
    job: as it was submitted (a job that waited for the end of another may have another submit time than in its trace).
    """

    job: WorkloadJob
    spells: tuple[Spell, ...]
    state: State = State.COMPLETED
    queue: str = ""
    served_us: int | None = None
    turns: int = 0

    @property
    def start_us(self) -> int:
        """First start. Raises IndexError for a job that never started."""
        return self.spells[0].start_us

    @property
    def end_us(self) -> int:
        """Last end. Raises IndexError for a job that never started."""
        return self.spells[-1].end_us

    @property
    def ran_us(self) -> int:
        """Run time, all spells together; at least 1 us."""
        if self.served_us is not None:
            return max(self.served_us, 1)
        return sum(spell.end_us - spell.start_us for spell in self.spells)

    @property
    def turnaround_us(self) -> int:
        """Time from its submit to its end."""
        return self.end_us - self.job.submit_us

    @property
    def wait_us(self) -> int:
        """Time between its submit and its end in which it did not run (with one spell: start - submit)."""
        return self.turnaround_us - self.ran_us


class Parting(StrEnum):
    """Reason for which a job left its nodes."""

    ENDED = "ended"
    SUSPENDED = "suspended"  #: stopped in place, progress kept
    MIGRATED = "migrated"  #: back to the queue, progress kept
    PREEMPTED = "preempted"  #: back to the queue, progress lost
    LOST = "lost"  #: its node failed or went into maintenance
    CANCELLED = "cancelled"


#: Partings after which a job has kept its progress.
KEEPING = frozenset({Parting.SUSPENDED, Parting.MIGRATED})


class Spell(NamedTuple):
    """One stretch of running: [start, end) in microseconds, on these cores."""

    start_us: int
    end_us: int
    cores: Cores
    parting: Parting = Parting.ENDED


_PARTINGS = tuple(Parting)
_CODES = {parting: code for code, parting in enumerate(_PARTINGS)}


class Outcomes(Sequence[JobOutcome]):
    """The outcome of each job in job order, made when it is read. Equal if all outcomes are equal."""

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
        """states: of jobs that did not complete. submits: jobs with another submit time than in `jobs`. queues: of rerouted jobs."""
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


class Stretches:
    """Every stretch of every job (numbers 1..jobs), in the order in which they ended. Space: 40 bytes and 8 or 16 for each range."""

    __slots__ = ("_at", "_ends", "_first", "_later", "_latest", "_partings", "_ranges", "_starts", "served")

    def __init__(self, jobs: int, processors: int) -> None:
        self._first = array("q", [_NONE]) * jobs  # of each job, its first row
        self._latest: dict[int, int] = {}  # of jobs with several rows, the last
        self._later: dict[int, int] = {}  # row -> the next of the same job
        self._starts, self._ends, self._partings = array("q"), array("q"), array("b")
        self._at = array("q", [0])  # row i has the ranges from _at[i] until _at[i + 1]
        #: of jobs that shared their cores in time: run time (None: their stretches contain it), number of slots
        self.served: dict[int, tuple[int | None, int]] = {}
        self._ranges = array("i" if processors < 1 << 31 else "q")

    def append(self, number: int, start_us: int, end_us: int, cores: Cores, parting: Parting) -> None:
        """Records that the job ran from start to end on these cores. A stretch without length is dropped.

        Raises: UsageError for an end that 64 bits cannot hold.
        """
        if end_us == start_us:
            return
        if end_us > LATEST_US:
            raise UsageError(
                f"job {number} ends {end_us / 1e6:.0f} s after the first submit: nothing is recorded after {LATEST_US / 1e6:.0f} s",
                hint="its times, or those of jobs before it, are damaged",
            )
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
        """Adds a run time and a number of slots of a gang to those of the job's earlier stays."""
        before_us, before = self.served.get(number, (0, 0))
        self.served[number] = None if served_us is None else served_us + (before_us or 0), turns + before

    def left(self, number: int, parting: Parting) -> None:
        """Changes the parting of a suspended job that has now left the nodes of its last stretch."""
        row = self._latest.get(number, self._first[number - 1])
        if row != _NONE:
            self._partings[row] = _CODES[parting]

    def __contains__(self, number: int) -> bool:
        """Whether the job has run."""
        return self._first[number - 1] != _NONE

    def of(self, number: int) -> tuple[Spell, ...]:
        """Returns the job's spells in order of time."""
        spells = []
        row = self._first[number - 1]
        while row != _NONE:
            flat = self._ranges[self._at[row] : self._at[row + 1]]
            cores = tuple(zip(flat[::2], flat[1::2], strict=True))
            spells.append(Spell(self._starts[row], self._ends[row], cores, _PARTINGS[self._partings[row]]))
            row = self._later.get(row, _NONE)
        return tuple(spells)
