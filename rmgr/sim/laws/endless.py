"""Finds who starves when work never stops coming: three streams that keep the machine full, and one job that they could pass for ever.

A stream here is long, not endless: the one job must start before the last of the others arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rmgr.sched.job import Job, Node
from rmgr.sim.laws.budget import Budget, OutOfTime
from rmgr.sim.laws.drive import Drive
from rmgr.sim.laws.trying import Breach, Make, Tried
from rmgr.sim.laws.world import LawsJob, SmallWorld

LAW = "endless"
SAYS = "no job waits for ever under an endless stream of others"
NODES = 4
STREAM = 100
VICTIM = 1_000_000
UNIT_US = 60_000_000


def starved(make: Make, *, budget: Budget | None = None, partition: str = "default", queue: str = "default") -> Iterator[Tried]:
    """Each stream, tried. Cost: about 100 passes for each."""
    for what, world in streams(partition, queue).items():
        drive = Drive(world, make(), budget=budget or Budget(0))
        last_us = world.works[-1].job.submit_us
        try:
            while VICTIM not in drive.started and drive.now_us < last_us and drive.advance():
                drive.decide()
                drive.carry_out()
        except OutOfTime:
            yield Tried(drive.passes, Breach(LAW, drive.budget.told, drive.now_us, world, tuple(drive.story[-12:]), tuple(drive.stays)))
            continue
        if VICTIM in drive.started or VICTIM in drive.gone:
            yield Tried(drive.passes)
            continue
        waited = (drive.now_us - next(w.job.submit_us for w in world.works if w.job.id == VICTIM)) / UNIT_US
        why = drive.plan.why(VICTIM, partition) or "no reason given"
        text = f"{what} waits {waited:g} minutes while {len(drive.started)} others start ({why})"
        yield Tried(drive.passes, Breach(LAW, text, drive.now_us, world, tuple(drive.story[-12:]), tuple(drive.stays)))


def streams(partition: str, queue: str) -> Mapping[str, SmallWorld]:
    """What waits -> the world in which it does. The stream asks for exactly the whole machine."""
    return {
        "a job of every node among jobs of one node": _stream(partition, queue, victim=(NODES, 0), others=(1, 0), every=1),
        "a job of one node among jobs of every node": _stream(partition, queue, victim=(1, 0), others=(NODES, 0), every=NODES),
        "a job of low priority among jobs of high priority": _stream(partition, queue, victim=(NODES, 0), others=(NODES, 1), every=NODES),
    }


def _stream(partition: str, queue: str, *, victim: tuple[int, int], others: tuple[int, int], every: int) -> SmallWorld:
    """victim, others: nodes and priority. every: minutes between two others; each runs for as many minutes as there are nodes."""

    def work(job_id: int, submit: int, shape: tuple[int, int]) -> LawsJob:
        processes, priority = shape
        limit_us = NODES * UNIT_US
        job = Job(
            id=job_id,
            submit_us=submit * UNIT_US,
            processes=processes,
            limit_us=limit_us,
            priority=priority,
            partition=partition,
            queue=queue,
            user="ann" if job_id == VICTIM else "bob",
        )
        return LawsJob(job=job, run_us=limit_us)

    stream = [work(i + 1, i * every, others) for i in range(STREAM)]
    nodes = tuple(Node(id=i, partition=partition) for i in range(NODES))
    return SmallWorld(nodes=nodes, works=(work(VICTIM, NODES + 1, victim), *stream), unit_us=UNIT_US)
