"""A broken law as a person can read it: the world, what happened in it, and who stood where."""

from __future__ import annotations

from collections.abc import Iterator

from rmgr.model.base.units import format_duration
from rmgr.sim.laws.drive import StoryStay, described
from rmgr.sim.laws.trying import Breach
from rmgr.sim.laws.world import SmallWorld

#: Columns of a chart, lines of a story, jobs of a world, beyond which not all is shown.
MOST_COLUMNS = 100
MOST_LINES = 60
MOST_WORKS = 20
_NAMES = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def told(breach: Breach) -> Iterator[str]:
    """Line by line; times in the world's own unit."""
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
