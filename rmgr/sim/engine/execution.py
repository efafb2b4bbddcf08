"""How long a job runs on its nodes, and what is left when it moves: as recorded, by the speed of its nodes, or on a grid of sites.

The driver keeps what is left of each job (`Work`), and asks an `Execution` how long that takes. If a stretch planned for `duration_us` is
broken off after `elapsed_us`, exactly `unexecuted(left, elapsed_us, duration_us)` is left: integers, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rmgr.errors import UsageError
from rmgr.sched.job import Node, Placement
from rmgr.sim.workload.jobs import WorkloadJob, stream

#: What is left of a job: one or several amounts >= 0 in units known only to the execution model (as calculation, communication).
Work: TypeAlias = tuple[int, ...]
MINUTE_US = 60_000_000
#: Speeds are whole millionths of 1.
UNIT = 1_000_000
#: From the paper: 10 sites, 1,024 nodes; papers.md 2.2: speeds uniform within these limits.
NODES, SITES = 1024, 10
SLOWEST, FASTEST = UNIT // 2, 3 * UNIT // 2


class Execution(Protocol):
    """An execution model: a frozen, picklable object of parameters; every answer depends on the arguments only."""

    def work(self, job: WorkloadJob) -> Work:
        """Returns all of the job, before it runs, and after it lost its progress (preempted, or its node failed)."""
        ...

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:
        """Returns how long this much of the job takes there, at least 1 us; asked at each start and after each migration."""
        ...

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:
        """Returns what is left after a migration, including a penalty. The job may go on anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job runs as long as its trace or model says, on any nodes; a migration costs `penalty_us`."""

    penalty_us: int = 0

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the same everywhere
        return left[0]

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - the same for all
        return (left[0] + self.penalty_us,)


@dataclass(frozen=True, slots=True)
class BySpeed:
    """A job runs as fast as its slowest node; its recorded time is for speed 1. A migration costs nothing.

    millionths: node id -> speed in millionths, whole numbers above 0.
    """

    millionths: Mapping[int, int]

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the work says it all
        """Returns the duration, rounded up to a microsecond. Cost: O(nodes of the placement)."""
        slowest = min(self.millionths[node] for first, last, _ in placement for node in range(first, last + 1))
        return -(-left[0] * UNIT // slowest)

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - it is not asked who moves
        return left


def by_speed(nodes: Iterable[Node]) -> Execution:
    """Returns the model for these nodes: as recorded, unless a node has a speed other than 1."""
    millionths = {node.id: max(round(node.speed * UNIT), 1) for node in nodes}
    return BySpeed(millionths) if any(speed != UNIT for speed in millionths.values()) else Recorded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The execution model of a grid of sites whose nodes differ in speed (paper 001, section 3).

    CalcTime_ij = CalcTime x Spec_ave / Spec_min          (2) Spec_ave over the grid, Spec_min over the job's nodes; rounded up to 1 us
    CommTime_ij = CommTime + (sites used - 1) x delay     (3)
    CalcTime'   = LeftTime + N x penalty                  (4) LeftTime: the part of CalcTime that was not executed
    If a stretch is broken off, calculation and communication shrink in the same proportion; the delay of (3) is added for each placement.

    Attributes:
        specs: speed of each node by its id, in millionths. sites: site of each node, never descending.
        delay_us: for each site beyond the first. penalty_us: of a migration, for each processor of the job.
    """

    specs: tuple[int, ...]
    sites: tuple[int, ...]
    delay_us: int = 10 * MINUTE_US
    penalty_us: int = MINUTE_US
    total_spec: int = field(init=False)

    def __post_init__(self) -> None:
        """Checks the parameters. Raises: UsageError for an impossible grid."""
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
        """Returns the machine: one core per node."""
        return tuple(
            Node(id=i, name=f"node{i}", speed=spec / UNIT, site=f"site{site}")
            for i, (spec, site) in enumerate(zip(self.specs, self.sites, strict=True))
        )

    # -- Execution --------------------------------------------------------------------------------------------------------

    def work(self, job: WorkloadJob) -> Work:
        """Returns (calculation, communication) in us."""
        return (job.run_us - job.communication_us, job.communication_us)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the work says it all
        """Returns (2) + (3). Cost: O(nodes of the placement), 10 us for a thousand."""
        calculation_us, communication_us = left
        above, below = calculation_us * self.total_spec, len(self.specs) * self.slowest(placement)
        return -(-above // below) + communication_us + (self.sites_of(placement) - 1) * self.delay_us

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:
        """Returns what is left by (4)."""
        return (left[0] + job.processors * self.penalty_us, left[1])

    # -- terms of the equations ---------------------------------------------------------------------------------------------

    def slowest(self, placement: Placement) -> int:
        """Returns Spec_min, in millionths."""
        return min(min(self.specs[first : last + 1]) for first, last, _ in placement)

    def sites_of(self, placement: Placement) -> int:
        """Returns the number of sites of the placement. Cost: O(spans)."""
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
    """Draws the grid of papers.md 2.2: speeds uniform between these two, one draw a seed; node i is in site floor(sites x i / nodes)."""
    if not 1 <= sites <= nodes:
        raise UsageError(f"{nodes} nodes cannot stand in {sites} sites", hint="at least one node a site")
    rng = stream(seed, "grid/specs")
    specs = tuple(rng.randint(*speeds) for _ in range(nodes))
    return Grid(specs=specs, sites=tuple(sites * i // nodes for i in range(nodes)), delay_us=delay_us, penalty_us=penalty_us)


def unexecuted(left: Work, elapsed_us: int, duration_us: int) -> Work:
    """Returns what is left after `elapsed_us` of `duration_us`: every part in proportion, rounded up to a whole unit."""
    rest_us = duration_us - elapsed_us
    return tuple(-(-part * rest_us // duration_us) for part in left)
