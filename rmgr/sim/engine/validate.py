"""Checks a finished run against its workload, independently of how it was made: no overlap, no over-allocation, every job ends.

The times in which nodes were closed are computed again from the events alone (`outages`). For three policies, `bare_starts` says when jobs
must start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush, merge
from itertools import takewhile, zip_longest
from typing import NamedTuple

from rmgr.errors import RmgrError
from rmgr.model.states import State
from rmgr.sched.job import Node
from rmgr.sim.engine.execution import Execution, Recorded, unexecuted
from rmgr.sim.engine.machine import Machine
from rmgr.sim.engine.outcome import KEEPING, Cores, JobOutcome, Parting, Result, Setting, Spell
from rmgr.sim.workload.events import NodesFail, NodesRepaired, Window
from rmgr.sim.workload.jobs import Workload, WorkloadJob

_SHOWN = 5
#: Partings after which a job does not come back.
_LAST = frozenset({Parting.ENDED, Parting.CANCELLED})


def violations(result: Result, workload: Workload, setting: Setting | None = None, *, execution: Execution | None = None) -> list[str]:
    """Returns every violated rule as a sentence with its job; empty if the run is valid.

    Each job of the workload has one outcome; nothing starts before its submit; spells of a job do not overlap; each but the last broke
    off, and the last ended as the state says; a completed job did all its work, to the microsecond, whatever it lost or moved; it held
    as many cores as it requested; cores exist; no core is held twice at a time, nor while its node has failed or is in maintenance.

    Args:
        setting: of the run: machine, execution, changes of nodes; None = one-core nodes, times as recorded.
        execution: how long jobs run where, if only that is known.
    Cost: O(n log n + cores held by all spells).
    """
    found: list[str] = []
    machine = Machine(result.processors) if setting is None else Machine(setting.nodes, setting.cores)
    worked = _Worked(machine, execution or (Recorded() if setting is None else setting.execution))
    theirs = len(result.outcomes) == len(workload.jobs)
    for outcome, job in zip_longest(result.outcomes, workload.jobs):
        if outcome is not None:
            theirs = theirs and _is_of(outcome, job)
            found += _of_one(outcome, result.processors, worked)
    if not theirs:
        message = f"{len(workload.jobs)} jobs were submitted, but the outcomes are not theirs ({len(result.outcomes)} outcomes)"
        found.insert(0, message)
    return found + list(_overlaps(result, [] if setting is None else _closures(result, setting, machine)))


def check(result: Result, workload: Workload, setting: Setting | None = None, *, execution: Execution | None = None) -> None:
    """Raises RmgrError if the run is not valid: a defect of rmgr or of a policy, never of the user."""
    found = violations(result, workload, setting, execution=execution)
    if found:
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        told = "; ".join(found[:_SHOWN])
        raise RmgrError(f"the schedule is not valid: {told}{more}", hint="nothing was written; report it with the command line")


def _is_of(outcome: JobOutcome, job: WorkloadJob) -> bool:
    """Whether the outcome is of this job; a job that waited for another's end may have another submit time."""
    return outcome.job == job or (bool(job.after) and replace(outcome.job, submit_us=job.submit_us) == job)


def _of_one(outcome: JobOutcome, processors: int, worked: _Worked) -> list[str]:
    job, name = outcome.job, f"job {outcome.job.number}"
    if not outcome.spells:
        return [] if outcome.state in {State.FAILED, State.CANCELLED} else [f"{name} never ran, and its state is {outcome.state}"]
    found = []
    if outcome.start_us < job.submit_us:
        found.append(f"{name} starts at {outcome.start_us} us, before its submit at {job.submit_us} us")
    if not outcome.state.is_final:
        found.append(f"{name} has not ended: {outcome.state}")
    before: Spell | None = None
    for spell in outcome.spells:
        if spell.end_us <= spell.start_us or (before is not None and spell.start_us < before.end_us):
            after = before.end_us if before is not None else None
            found.append(f"{name} has a spell from {spell.start_us} to {spell.end_us} us after one that ends at {after}")
        if before is not None and before.parting in _LAST:
            found.append(f"{name} runs again at {spell.start_us} us after it was {before.parting}")
        before = spell
        held = sum(last - first + 1 for first, last in spell.cores)
        if held != job.processors:
            found.append(f"{name} asked for {job.processors} processors and held {held}")
        outside = [(first, last) for first, last in spell.cores if first < 0 or last >= processors or last < first]
        if outside:
            found.append(f"{name} held cores {outside} of a machine of {processors}")
    if outcome.served_us is not None:  # its spells are stays on shared nodes
        if outcome.state is State.COMPLETED and len(outcome.spells) == 1 and outcome.served_us < worked.needed(job, outcome.spells[0]):
            found.append(f"{name} completed after {outcome.served_us} us in its slots")
    elif outcome.state is State.COMPLETED:
        found += [f"{name} {said}" for said in worked.wrong(job, outcome.spells)]
    return found


class _Worked:
    """Computes how long each spell of a job had to be, from the execution model and the spells alone."""

    def __init__(self, machine: Machine, execution: Execution) -> None:
        self._machine, self._execution = machine, execution
        self._plain = type(execution) is Recorded

    def needed(self, job: WorkloadJob, spell: Spell) -> int:
        """Returns how long the whole job takes there."""
        return self._execution.duration_us(job, self._execution.work(job), self._machine.placed(spell.cores, job.threads))

    def wrong(self, job: WorkloadJob, spells: tuple[Spell, ...]) -> list[str]:
        last = spells[-1]
        if last.parting is not Parting.ENDED:
            return [f"is complete, and its last spell was {last.parting}"]
        if self._plain and len(spells) == 1:
            ran = last.end_us - last.start_us
            return [] if ran == job.run_us else [f"completed after {ran} us of its {job.run_us}"]
        execution = self._execution
        left, duration_us, stayed_us = execution.work(job), 0, 0
        for spell in spells:
            if not stayed_us:
                duration_us = execution.duration_us(job, left, self._machine.placed(spell.cores, job.threads))
            stayed_us += spell.end_us - spell.start_us
            if spell is last or spell.parting is Parting.SUSPENDED:
                continue
            if spell.parting in KEEPING:
                left = execution.after_migration(job, unexecuted(left, stayed_us, duration_us))
            else:
                left = execution.work(job)
            stayed_us = 0
        return [] if stayed_us == duration_us else [f"completed after {stayed_us} us of {duration_us} in its last stay"]


def _closures(result: Result, setting: Setting, machine: Machine) -> list[tuple[int, int, int, int]]:
    """Returns (start, end, first core, last core) of each time in which a node could not run anything."""
    if not setting.events and setting.failures is None:
        return []
    last_us = max((outcome.end_us for outcome in result.outcomes if outcome.spells), default=0)
    found = outages(setting, machine.described(), last_us)
    return [(out.start_us, out.end_us, *machine.cores_of(out.node)) for out in found if out.start_us < out.end_us]


def outages(setting: Setting, nodes: tuple[Node, ...], until_us: int) -> Iterator[_Outage]:
    """Yields every failure and maintenance window that began before `until_us`. Draws failures again; cost O(nodes + events)."""
    known = {node.id for node in nodes}
    listed = sorted((event for event in setting.events if isinstance(event, NodesFail | NodesRepaired)), key=lambda event: event.at_us)
    drawn = setting.failures.of([node.id for node in nodes], setting.seed) if setting.failures is not None else iter(())
    down: dict[int, int] = {}
    for event in merge(listed, takewhile(lambda event: event.at_us < until_us, drawn), key=lambda event: event.at_us):
        for node in (node for first, last in event.nodes for node in range(first, last + 1) if node in known):
            if isinstance(event, NodesFail):
                down.setdefault(node, event.at_us)
            elif node in down:
                yield _Outage(down.pop(node), event.at_us, node)
    for node, start_us in down.items():
        yield _Outage(start_us, max(until_us, start_us), node)
    for other in setting.events:
        if isinstance(other, Window):
            for first, last in other.nodes:
                for node in sorted(known.intersection(range(first, last + 1))):
                    yield _Outage(other.start_us, other.end_us, node)


class _Outage(NamedTuple):
    """A time [start, end) in which no job may run on the node."""

    start_us: int
    end_us: int
    node: int


def _overlaps(result: Result, closures: list[tuple[int, int, int, int]]) -> Iterator[str]:
    """Yields overlaps: two spells hold a core, or one does while its node is closed. An end and a start at one instant do not overlap."""
    outcomes, processors = result.outcomes, result.processors
    order = [
        (spell.start_us, spell.end_us, position, at)
        for position, outcome in enumerate(outcomes)
        if outcome.served_us is None
        for at, spell in enumerate(outcome.spells)
    ]
    order += [(start, end, -1, at) for at, (start, end, _, _) in enumerate(closures)]
    order.sort()
    busy_until, holder = [0] * processors, [0] * processors
    for start, end, position, at in order:
        number = 0
        cores: Cores = ()
        if position < 0:
            cores = (closures[at][2:],)
        else:
            outcome = outcomes[position]  # made when it is read
            number, cores = outcome.job.number, outcome.spells[at].cores
        for first, last in cores:
            low, beyond = max(first, 0), min(last + 1, processors)
            if low >= beyond:
                continue
            if max(busy_until[low:beyond]) > start:
                for core in range(low, beyond):
                    if busy_until[core] > start and (number or holder[core]):
                        yield _overlap(core, start, sorted((holder[core], number)))
            if number:
                busy_until[low:beyond] = [end] * (beyond - low)
            else:  # a window may overlap a failure
                busy_until[low:beyond] = [max(end, until) for until in busy_until[low:beyond]]
            holder[low:beyond] = [number] * (beyond - low)


def _overlap(core: int, at_us: int, numbers: list[int]) -> str:
    if not numbers[0]:
        return f"core {core} is held by job {numbers[1]} at {at_us} us, while its node has failed or is in maintenance"
    return f"core {core} is held by jobs {numbers[0]} and {numbers[1]} at {at_us} us"


# -- the reference semantics of papers.md section 6 as a bare loop: processor counts, no nodes, no engine. Oracle and yardstick ---------

#: Policies of `bare_starts`; all others are refused.
BARE_POLICIES = ("fcfs", "first_fit", "easy")
#: (submit, run, size, estimate) of a job.
Plain = tuple[int, int, int, int]


def bare_starts(jobs: Sequence[Plain], processors: int, policy: str) -> list[int]:
    """Returns each job's start under `fcfs`, `first_fit` or `easy`: completions, arrivals, then one pass at each instant that has either.

    Args:
        jobs: in order of submit time, none larger than the machine. Times in any unit.
    Raises: ValueError for another policy.
    """
    if policy not in BARE_POLICIES:
        raise ValueError(f"the bare loop has no policy {policy!r}")
    ends: list[tuple[int, int]] = []
    running: dict[int, tuple[int, int]] = {}  # job -> (estimated end, size)
    queue: list[int] = []
    started = [-1] * len(jobs)
    free, arrived = processors, 0
    while arrived < len(jobs) or ends:
        now = min(jobs[arrived][0] if arrived < len(jobs) else ends[0][0], ends[0][0] if ends else jobs[arrived][0])
        while ends and ends[0][0] == now:
            free += running.pop(heappop(ends)[1])[1]
        while arrived < len(jobs) and jobs[arrived][0] == now:
            queue.append(arrived)
            arrived += 1
        chosen = _bare_choice(jobs, queue, running, free, now, policy)
        for job in chosen:
            _, run, size, estimate = jobs[job]
            started[job] = now
            free -= size
            running[job] = (now + estimate, size)
            heappush(ends, (now + run, job))
        if chosen:
            gone = set(chosen)
            queue = [job for job in queue if job not in gone]
    return started


def _bare_choice(
    jobs: Sequence[Plain], queue: list[int], running: dict[int, tuple[int, int]], free: int, now: int, policy: str
) -> list[int]:
    chosen: list[int] = []
    at = 0
    while at < len(queue) and jobs[queue[at]][2] <= free:
        free -= jobs[queue[at]][2]
        chosen.append(queue[at])
        at += 1
    if policy == "fcfs" or at == len(queue) or not free:
        return chosen
    shadow, extra = 0, 0
    if policy == "easy":
        head = jobs[queue[at]][2]
        planned = sorted([*running.values(), *((now + jobs[job][3], jobs[job][2]) for job in chosen)])
        available = free
        for end, size in planned:
            if available >= head and end > shadow:
                break
            available += size
            shadow = end
        extra = available - head
    for job in queue[at + 1 :]:
        _, _, size, estimate = jobs[job]
        if size > free:
            continue
        if policy == "easy" and now + estimate > shadow:
            if size > extra:
                continue
            extra -= size
        free -= size
        chosen.append(job)
    return chosen
