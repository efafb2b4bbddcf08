"""The rule that decides after an attempt ended FAILED: run again or not (protocol.md section 1).

Used by Starters (may this attempt run again at all?), Submitters and the leader (how?). Pure; same answer for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rmgr.model.base.states import LOSSES, OWN_FAILURES, Reason
from rmgr.model.tasks.block import BlockData, PastAttempt
from rmgr.model.tasks.outcome import FailedRange

#: Attempts of a task that `rmgr show` can tell of.
MAX_PAST = 8
#: Least back-off, doubled each time, of a task whose worker or slot was lost before.
_PAUSE_US = 250_000
#: Ranges up to this many tasks are retried as blocks of one after a loss; larger ones as halves.
SINGLE_AFTER_LOSS = 64


@dataclass(frozen=True, slots=True)
class Again:
    """Run it again: `block` carries the raised counters; not before `backoff_us` from when it is seen."""

    block: BlockData
    backoff_us: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End it: FAILED with `reason`."""

    reason: Reason


Ruling = Again | GiveUp


def rule(reason: Reason, block: BlockData, *, alone: bool, backoff_us: int, max_losses: int) -> Ruling:
    """Whether tasks of `block`, whose attempt ended FAILED with `reason`, may run again.

    A loss (NODE_LOST, DATA_LOST, LEASE_LOST, WORKER_LOST) runs again if `resubmit`; it counts against the task only when it
    was `alone` in its block, and the `max_losses`-th makes it POISON (lost data stay DATA_LOST: no node was harmed); after
    WORKER_LOST with back-off. The work's own failure runs again `retries` times, with exponential back-off from `backoff_us`
    (doubled each time, at most 64-fold). Anything else is final.
    """
    if reason in LOSSES:
        if not block.resubmit:
            return GiveUp(reason)
        losses = block.losses + (1 if alone else 0)
        if losses >= max_losses:
            return GiveUp(Reason.DATA_LOST if reason is Reason.DATA_LOST else Reason.POISON)
        pause_us = 0
        if reason is Reason.WORKER_LOST:  # its own doing, more often than not: the second loss waits, whatever its user asked for
            pause_us = (backoff_us or (_PAUSE_US if block.losses else 0)) << min(block.losses, 6)
        return Again(msgspec.structs.replace(block, losses=losses), pause_us)
    if reason in OWN_FAILURES:
        if block.failures >= block.retries:
            return GiveUp(reason)
        delay = backoff_us << min(block.failures, 6)
        return Again(msgspec.structs.replace(block, failures=block.failures + 1), delay)
    return GiveUp(reason)


def remember(block: BlockData, failed: FailedRange, attempt: int) -> BlockData:
    """`block` with the failed attempt added to its past."""
    past = PastAttempt(
        attempt=attempt,
        node=failed.node,
        reason=failed.reason,
        exit_code=failed.exit_code,
        started_us=failed.started_us,
        ended_us=failed.ended_us,
        error=failed.error,
        cpu_us=failed.cpu_us,
        max_rss_kib=failed.max_rss_kib,
    )
    return msgspec.structs.replace(block, past=(*block.past, past)[-MAX_PAST:])


def pieces(first: int, count: int, reason: Reason) -> list[tuple[int, int]]:
    """The blocks in which a failed range waits again: ones after a loss of few, halves of many, else as it was."""
    if reason not in LOSSES or count == 1:
        return [(first, count)]
    if count <= SINGLE_AFTER_LOSS:
        return [(index, 1) for index in range(first, first + count)]
    half = count // 2
    return [(first, half), (first + half, count - half)]
