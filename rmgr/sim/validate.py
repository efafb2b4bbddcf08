"""Checks a finished run against its workload, knowing nothing of how it was made: no overlap, no over-allocation, every job ends."""

from __future__ import annotations

from rmgr.errors import RmgrError
from rmgr.model.states import State
from rmgr.sim.outcome import Outcome, Result
from rmgr.sim.workload import Workload

_SHOWN = 5


def violations(result: Result, workload: Workload) -> list[str]:
    """Every sentence that does not hold, each with the job it is about; empty when the run is sound.

    Each job of the workload has one outcome; nothing starts before its submit; spells of a job do not overlap; a completed job ran
    at least its run time (exactly, when it ran in one piece); it held as many cores as it asked for; cores exist; no core is held
    twice at a time.
    Cost: O(n log n + cores held by all spells).
    """
    found: list[str] = []
    if [outcome.job for outcome in result.outcomes] != list(workload.jobs):
        found.append(f"{len(workload.jobs)} jobs were submitted, but the outcomes are not theirs ({len(result.outcomes)} outcomes)")
    for outcome in result.outcomes:
        found += _of_one(outcome, result.processors)
    return found + _overlaps(result)


def check(result: Result, workload: Workload) -> None:
    """Raises RmgrError when the run is not sound: a defect of rmgr or of a policy, never of the user."""
    found = violations(result, workload)
    if found:
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        told = "; ".join(found[:_SHOWN])
        raise RmgrError(f"the schedule is not valid: {told}{more}", hint="nothing was written; report it with the command line")


def _of_one(outcome: Outcome, processors: int) -> list[str]:
    job, name = outcome.job, f"job {outcome.job.number}"
    if not outcome.spells:
        return [] if outcome.state in {State.FAILED, State.CANCELLED} else [f"{name} never ran, and its state is {outcome.state}"]
    found = []
    if outcome.start_us < job.submit_us:
        found.append(f"{name} starts at {outcome.start_us} us, before its submit at {job.submit_us} us")
    if not outcome.state.is_final:
        found.append(f"{name} has not ended: {outcome.state}")
    before = None
    for spell in outcome.spells:
        if spell.end_us <= spell.start_us or (before is not None and spell.start_us < before):
            found.append(f"{name} has a spell from {spell.start_us} to {spell.end_us} us after one that ends at {before}")
        before = spell.end_us
        held = sum(last - first + 1 for first, last in spell.cores)
        if held != job.processors:
            found.append(f"{name} asked for {job.processors} processors and held {held}")
        outside = [(first, last) for first, last in spell.cores if first < 0 or last >= processors or last < first]
        if outside:
            found.append(f"{name} held cores {outside} of a machine of {processors}")
    if outcome.state is State.COMPLETED:
        ran = outcome.ran_us
        if ran < job.run_us or (len(outcome.spells) == 1 and ran != job.run_us):
            found.append(f"{name} completed after {ran} us of its {job.run_us}")
    return found


def _overlaps(result: Result) -> list[str]:
    """Cores that two spells hold at one time; an end and a start at the same instant do not overlap."""
    spells = sorted(
        (spell.start_us, spell.end_us, outcome.job.number, spell.cores) for outcome in result.outcomes for spell in outcome.spells
    )
    busy_until = [0] * result.processors
    holder = [0] * result.processors
    found = []
    for start, end, number, ranges in spells:
        for first, last in ranges:
            for core in range(max(first, 0), min(last + 1, result.processors)):
                if busy_until[core] > start:
                    found.append(f"core {core} is held by jobs {holder[core]} and {number} at {start} us")
                busy_until[core], holder[core] = end, number
    return found
