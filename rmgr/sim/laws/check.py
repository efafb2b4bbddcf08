"""A policy before the laws: so many small worlds drawn by a seed, for each law that breaks the smallest world found, and its story to read.

What `rmgr policy check` does. A policy whose paper says that it breaks a law declares it, with the place:
`waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: First-Fit promises nothing"}`; an order does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from rmgr.model.base.units import format_duration
from rmgr.sched.policy import Stage
from rmgr.sim.laws.drive import Budget, Drive, StoryStay, described
from rmgr.sim.laws.trying import ENDLESS, ENDLESS_SAYS, LAWS, Breach, Make, starved, tried
from rmgr.sim.laws.world import QUEUES, Seeded, SmallWorld, shrunk, world_of

EVERY_LAW: Mapping[str, str] = {**LAWS, ENDLESS: ENDLESS_SAYS}
#: How often a world is made smaller at most; a policy that takes its whole budget each time is asked less often.
TRIES = 400
SLOW_TRIES = 8
#: Columns of a chart, lines of a story, jobs of a world, beyond which not all is shown.
MOST_COLUMNS = 100
MOST_LINES = 60
MOST_WORKS = 20
_NAMES = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class LawsReport:
    """Every law, in their order."""

    findings: tuple[Finding, ...]
    worlds: int
    passes: int

    @property
    def is_lawful(self) -> bool:
        return all(finding.verdict != "broken" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict about one law.

    text: how it broke, "" = it did not. breach: the same in the smallest world found. seed: of the world that it came from.
    waiver: why it may.
    """

    law: str
    says: str
    worlds: int
    passes: int
    seed: int = 0
    text: str = ""
    breach: Breach | None = None
    waiver: str = ""

    @property
    def verdict(self) -> str:
        if not self.text:
            return "holds"
        return "waived" if self.waiver else "broken"


@dataclass(frozen=True, slots=True)
class Drawn:
    """Needs of a law on its worlds: partitions and queues of which the pipeline speaks; () = any will do."""

    partitions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    def world(self, seed: int) -> SmallWorld:
        return world_of(Seeded(seed), partitions=self.partitions, queues=self.queues or QUEUES)


def digest(make: Make, *, worlds: int, seed: int = 0, drawn: Drawn = Drawn()) -> str:
    """SHA-256 of every plan in these worlds: the same in every interpreter, whatever order its sets and hashes have."""
    sum_ = sha256()
    for number in range(seed, seed + worlds):
        drive = Drive(drawn.world(number), make(), budget=Budget(0))
        while drive.advance():
            drive.decide()
            plan = drive.plan
            sum_.update(repr((plan.decisions, sorted(plan.left.items()), sorted(plan.rest.items()))).encode())
            drive.carry_out()
    return sum_.hexdigest()


def _finding(law: str, count: tuple[int, int], broke: tuple[int, Breach] | None, waivers: Mapping[str, str]) -> Finding:
    worlds, passes = count
    if broke is None:
        return Finding(law, EVERY_LAW[law], worlds, passes, waiver=waivers.get(law, ""))
    seed, breach = broke
    return Finding(law, EVERY_LAW[law], worlds, passes, seed, breach.text, breach, waivers.get(law, ""))


def _counted(counts: Mapping[str, tuple[int, int]], laws: Collection[str], passes: int) -> dict[str, tuple[int, int]]:
    """One world more for these laws."""
    return {law: (worlds + 1, of + passes) if law in laws else (worlds, of) for law, (worlds, of) in counts.items()}


def waived(pipeline: tuple[Stage, ...]) -> dict[str, str]:
    """Laws that these policies, or their orders, declare to break: law -> why."""
    found: dict[str, str] = {}
    for stage in pipeline:
        for declares in (getattr(stage.policy, "order", None), stage.policy):
            found |= getattr(declares, "waives", {})
    return found


def _smallest(breach: Breach, make: Make, budget: Budget) -> Breach:
    law = breach.law
    best = [breach]

    def breaks(world: SmallWorld) -> bool:
        result = tried(world, make, laws=(law,), budget=budget)
        if result.breach is None or result.breach.law != law:
            return False
        best.append(result.breach)
        return True

    shrunk(breach.world, breaks, tries=SLOW_TRIES if law == "in_time" else TRIES)
    return best[-1]


def _endless(make: Make, budget: Budget, waivers: Mapping[str, str], drawn: Drawn) -> Finding:
    partition, queue = (*drawn.partitions, "default")[0], (*drawn.queues, *QUEUES)[0]
    results = list(starved(make, budget=budget, partition=partition, queue=queue))
    breach = next((result.breach for result in results if result.breach is not None), None)
    count = (len(results), sum(result.passes for result in results))
    return _finding(ENDLESS, count, None if breach is None else (0, breach), waivers)


def told(breach: Breach) -> Iterator[str]:
    """A broken law as a person can read it: the world, what happened in it, who stood where. Times in the world's own unit."""
    world, unit = breach.world, breach.world.unit_us
    yield from _machine(world)
    story = breach.story[-MOST_LINES:]
    if len(story) < len(breach.story):
        yield f"  ... {len(breach.story) - len(story)} lines before"
    before = None
    for line in story:
        at = f"{line.at_us / unit:g}" if line.at_us != before else ""
        yield f"{at:>6}  {line.text}"
        before = line.at_us
    yield from chart(world, breach.stays, breach.at_us)


def _machine(world: SmallWorld) -> Iterator[str]:
    length = "1 us" if world.unit_us == 1 else format_duration(world.unit_us / 1e6)
    yield f"  times in units of {length}; limits of jobs, too"
    joins = {joining.node.id: joining.at_us for joining in world.joinings}
    for node in world.every_node:
        parts = [f"{node.cores} core" + "s" * (node.cores > 1)]
        parts += [f"{node.memory_bytes} bytes"] if node.memory_bytes else []
        parts += [f"{count} {name}" for name, count in node.resources]
        parts += [f"has {', '.join(node.features)}"] if node.features else []
        parts += [f"partition {node.partition}"] if node.partition != "default" else []
        parts += [f"joins at {joins[node.id] / world.unit_us:g}"] if node.id in joins else []
        yield f"  node {node.id}: {', '.join(parts)}"
    for partition, limits in world.limits.items():
        shown = [f"{name} {getattr(limits, name)}" for name in limits.__dataclass_fields__ if getattr(limits, name)]
        yield f"  limits of {partition}: {', '.join(shown) or 'none'}"
    for work in world.works[:MOST_WORKS]:
        yield f"  job {work.job.id}: {described(work.job, world.unit_us)}, will run {work.run_us / world.unit_us:g}"
    if len(world.works) > MOST_WORKS:
        yield f"  and {len(world.works) - MOST_WORKS} more jobs as the last"


def chart(world: SmallWorld, stays: tuple[StoryStay, ...], until_us: int) -> Iterator[str]:
    """A row for each core: the last character of the job's number in each unit of time, `.` where nothing stands."""
    unit = world.unit_us
    columns = until_us // unit + 1
    if columns > MOST_COLUMNS or not stays:
        return
    yield "  who stands where, a column for each unit of time:"
    for node in world.every_node:
        cores = max([node.cores, *(outage.cores for outage in world.outages if outage.node == node.id)])
        rows = [["."] * columns for _ in range(cores)]
        for stay in stays:
            processes = next((count for first, last, count in stay.placement if first <= node.id <= last), 0)
            end_us = until_us + 1 if stay.end_us is None else stay.end_us
            span = range(stay.start_us // unit, min(-(-end_us // unit), columns))
            free = [row for row in rows if all(row[column] == "." for column in span)]
            for row in free[: processes * stay.job.threads]:
                for column in span:
                    row[column] = _NAMES[stay.job.id % len(_NAMES)]
        for row in rows:
            yield f"  {'node ' + str(node.id):>8} |{''.join(row)}|"


def check(
    make: Make,
    *,
    worlds: int,
    seed: int = 0,
    budget_s: float = 0,
    drawn: Drawn = Drawn(),
    on_progress: Callable[[int], None] | None = None,
) -> LawsReport:
    """Tries every law on worlds of the seeds `seed`, `seed` + 1, ...: a world that breaks one can be tried alone by its own seed.

    Args:
        make: new objects of the pipeline. budget_s: of wall-clock time for a pass; 0 = as long as it likes.
        on_progress: called with the number of worlds tried.
    Cost: about ten passes for each pass of each world: 5 ms a world.
    """
    budget = Budget(budget_s)
    counts: Mapping[str, tuple[int, int]] = dict.fromkeys(LAWS, (0, 0))
    broken: dict[str, tuple[int, Breach]] = {}
    passes = done = 0
    for number in range(seed, seed + worlds):
        world, done = drawn.world(number), done + 1
        result = tried(world, make, laws=LAWS.keys() - broken, budget=budget)
        while result.breach is not None and result.breach.law not in broken:  # a world that cannot be run breaks the same law again
            counts = _counted(counts, (result.breach.law,), result.passes)
            broken[result.breach.law] = (number, _smallest(result.breach, make, budget))
            if "in_time" not in broken:
                result = tried(world, make, laws=LAWS.keys() - broken, budget=budget)
        if "in_time" in broken:
            break
        counts, passes = _counted(counts, LAWS.keys() - broken, result.passes), passes + result.passes
        if on_progress is not None:
            on_progress(done)
    waivers = waived(make())
    findings = [_finding(law, counts[law], broken.get(law), waivers) for law in LAWS]
    if "in_time" not in broken:
        findings.append(_endless(make, budget, waivers, drawn))
    return LawsReport(tuple(findings), done, passes)
