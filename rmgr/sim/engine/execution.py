"""How long a job runs where it was placed, and what is left when it moves: as recorded, by the speed of its nodes, or on a grid of sites.

The driver keeps what is left of each job (`Work`) and asks an `Execution` what that means in time. A stretch that was planned to take
`duration_us` and was broken off after `elapsed_us` leaves exactly `unexecuted(left, elapsed_us, duration_us)`: integers, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rmgr.errors import UsageError
from rmgr.sched.job import Node, Placement
from rmgr.sim.workload.jobs import WorkloadJob, stream

#: What is left of a job: one amount or several, each >= 0, in units that only the execution model knows (as calculation, communication).
Work: TypeAlias = tuple[int, ...]
MINUTE_US = 60_000_000
#: Speeds are whole millionths of 1.
UNIT = 1_000_000
#: Of the paper: 10 sites, 1,024 nodes; papers.md 2.2: speeds uniform in these limits.
NODES, SITES = 1024, 10
SLOWEST, FASTEST = UNIT // 2, 3 * UNIT // 2


class Execution(Protocol):
    """A frozen, picklable object of parameters; every answer depends on its arguments only."""

    def work(self, job: WorkloadJob) -> Work:
        """All of the job, before it has run; and again after it lost what it had done (preempted, or its node failed)."""
        ...

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:
        """How long this much of the job takes there, at least 1 us; asked once a start, and again after each migration."""
        ...

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:
        """What a migration makes of the part that was not executed: a penalty is added here. The job may go on anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job runs for the time that its trace or model says, wherever it stands; a migration costs `penalty_us`."""

    penalty_us: int = 0

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the same everywhere
        return left[0]

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - the same for all
        return (left[0] + self.penalty_us,)


@dataclass(frozen=True, slots=True)
class BySpeed:
    """A job runs as fast as the slowest of its nodes: what is recorded is its time at speed 1. A migration costs nothing.

    millionths: node id -> its speed in millionths, whole numbers above 0.
    """

    millionths: Mapping[int, int]

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the work says it all
        """Rounded up to a microsecond. Cost: O(nodes of the placement)."""
        slowest = min(self.millionths[node] for first, last, _ in placement for node in range(first, last + 1))
        return -(-left[0] * UNIT // slowest)

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - it is not asked who moves
        return left


def by_speed(nodes: Iterable[Node]) -> Execution:
    """The model for these nodes: as recorded, unless one of them has a speed other than 1."""
    millionths = {node.id: max(round(node.speed * UNIT), 1) for node in nodes}
    return BySpeed(millionths) if any(speed != UNIT for speed in millionths.values()) else Recorded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The execution model of a grid of sites whose nodes differ in speed (paper 001, section 3).

    CalcTime_ij = CalcTime x Spec_ave / Spec_min          (2) Spec_ave over the grid, Spec_min over the job's nodes; rounded up to 1 us
    CommTime_ij = CommTime + (sites used - 1) x delay     (3)
    CalcTime'   = LeftTime + N x penalty                  (4) LeftTime: the part of CalcTime that was not executed
    A stretch that is broken off leaves calculation and communication in the same proportion; the delay of (3) is that of each placement.

    Attributes:
        specs: speed of each node by its id, in millionths. sites: the site of each node, never descending.
        delay_us: for each site beyond the first. penalty_us: of a migration, for each processor of the job.
    """

    specs: tuple[int, ...]
    sites: tuple[int, ...]
    delay_us: int = 10 * MINUTE_US
    penalty_us: int = MINUTE_US
    total_spec: int = field(init=False)

    def __post_init__(self) -> None:
        """Raises: UsageError for a grid that cannot be."""
        if not self.specs or len(self.specs) != len(self.sites):
            raise UsageError(
                f"a grid of {len(self.specs)} speeds and {len(self.sites)} sites of nodes is none", hint="one of each for a node"
            )
        if min(self.specs) < 1:
            raise UsageError(f"a node of speed {min(self.specs) / UNIT:g} never ends a job", hint="speeds above 0")
        if any(self.sites[i] > self.sites[i + 1] for i in range(len(self.sites) - 1)):
            raise UsageError("the nodes of a grid are numbered site by site", hint="sites in ascending order")
        for name, value in (("delay", self.delay_us), ("penalty", self.penalty_us)):
            if value < 0:
                raise UsageError(f"the {name} of a grid is {value / MINUTE_US:g} min", hint="0 or more")
        object.__setattr__(self, "total_spec", sum(self.specs))

    def nodes(self) -> tuple[Node, ...]:
        """The machine: one core a node."""
        return tuple(
            Node(id=i, name=f"node{i}", speed=spec / UNIT, site=f"site{site}")
            for i, (spec, site) in enumerate(zip(self.specs, self.sites, strict=True))
        )

    # -- Execution --------------------------------------------------------------------------------------------------------

    def work(self, job: WorkloadJob) -> Work:
        """(calculation, communication) in us."""
        return (job.run_us - job.communication_us, job.communication_us)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the work says it all
        """(2) + (3). Cost: O(nodes of the placement), 10 us for a thousand."""
        calculation_us, communication_us = left
        above, below = calculation_us * self.total_spec, len(self.specs) * self.slowest(placement)
        return -(-above // below) + communication_us + (self.sites_of(placement) - 1) * self.delay_us

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:
        """(4)."""
        return (left[0] + job.processors * self.penalty_us, left[1])

    # -- what the equations ask ---------------------------------------------------------------------------------------------

    def slowest(self, placement: Placement) -> int:
        """Spec_min, in millionths."""
        return min(min(self.specs[first : last + 1]) for first, last, _ in placement)

    def sites_of(self, placement: Placement) -> int:
        """How many sites the placement touches. Cost: O(spans)."""
        count, seen = 0, -1
        for first, last, _ in placement:
            count += len(set(self.sites[first : last + 1]) - {seen})
            seen = self.sites[last]
        return count


def drawn(
    seed: int,
    *,
    nodes: int = NODES,
    sites: int = SITES,
    delay_us: int = 10 * MINUTE_US,
    penalty_us: int = MINUTE_US,
    speeds: tuple[int, int] = (SLOWEST, FASTEST),
) -> Grid:
    """The grid of papers.md 2.2: speeds uniform between these two, one draw a seed; node i stands in site floor(sites x i / nodes)."""
    if not 1 <= sites <= nodes:
        raise UsageError(f"{nodes} nodes cannot stand in {sites} sites", hint="at least one node a site")
    rng = stream(seed, "grid/specs")
    specs = tuple(rng.randint(*speeds) for _ in range(nodes))
    return Grid(specs=specs, sites=tuple(sites * i // nodes for i in range(nodes)), delay_us=delay_us, penalty_us=penalty_us)


def unexecuted(left: Work, elapsed_us: int, duration_us: int) -> Work:
    """What is left of `left` when `elapsed_us` of `duration_us` have passed: every part in proportion, rounded up to a whole unit."""
    rest_us = duration_us - elapsed_us
    return tuple(-(-part * rest_us // duration_us) for part in left)
