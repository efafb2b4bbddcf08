"""Remembers which policies failed, and lets FCFS place instead: in the partition of the failed policy alone, for a while.

Nothing of it is recorded: the next leader finds out again, at the cost of one pass of that partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rmgr.daemons.leader.core.doors import LoopTimers
from rmgr.daemons.leader.core.term import Term
from rmgr.model.base.units import utc
from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage

#: After so long the configured pipeline of a partition is tried again.
BENCH_S = 300.0
#: Who places instead of a failed policy.
INSTEAD = "fcfs"
#: Characters of an error that are kept: a policy may raise a book.
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class PlacementPause:
    """A partition whose own pipeline does not place until then (monotonic s; `until_us` for people).

    is_stopped: FCFS has failed there, too: nobody places.
    """

    policy: str
    error: str
    until_s: float
    until_us: int
    is_stopped: bool = False


class Faults:
    """Records failures by policy and by partition. Lives in the leader's loop.

    Args: changed: called when another pipeline places in some partition from now on.
    Attributes: counts, last: policy -> how often it failed, and the last error. benched: by partition.
    """

    def __init__(self, loop: LoopTimers, term: Term, changed: Callable[[], None] = lambda: None) -> None:
        self.counts: Counter[str] = Counter()
        self.last: dict[str, str] = {}
        self.benched: dict[str, PlacementPause] = {}
        self._loop = loop
        self._term = term
        self._changed = changed
        self._fcfs = policy_named(INSTEAD)

    def add(self, partition: str, policy: str, error: str) -> None:
        """The policy failed there: its partition is placed by FCFS, by nobody where FCFS itself was at work."""
        error = error[:_MOST_CHARACTERS]
        is_new = self.last.get(policy) != error
        self.counts[policy] += 1
        self.last[policy] = error
        self._term.metrics.policy_faults.inc()
        before = self.benched.get(partition)
        until_s = self._loop.clock() + BENCH_S
        until_us = self._term.wall_us() + round(BENCH_S * 1e6)
        if before is None:
            bench = PlacementPause(policy, error, until_s, until_us)
        else:
            bench = PlacementPause(before.policy, f"{before.error}; {INSTEAD}: {error}", until_s, until_us, is_stopped=True)
        self.benched[partition] = bench
        if is_new:
            self._term.log.error("policy_failed", policy=policy, partition=partition, error=error, why=self.told(partition))
        self._loop.after(BENCH_S, self._again)
        self._changed()

    def served(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The stages that place now: FCFS instead of those of a benched partition. Cost: nothing where none is."""
        if not self.benched:
            return stages
        kept = [stage for stage in stages if not self.is_benched(stage)]
        return (*kept, *(Stage(self._fcfs, (partition,)) for partition, bench in sorted(self.benched.items()) if not bench.is_stopped))

    def is_benched(self, stage: Stage) -> bool:
        """Somebody else places where this stage would."""
        return any(partition in self.benched for partition in stage.partitions)

    def forgive(self, partition: str) -> None:
        """Another pipeline was set there."""
        self.benched.pop(partition, None)

    def told(self, partition: str) -> str:
        """Who places there instead of whom, until when and why; "" where the pipeline itself does."""
        bench = self.benched.get(partition)
        if bench is None:
            return ""
        who = "nobody places jobs" if bench.is_stopped else f"{INSTEAD} places jobs"
        return f"policy {bench.policy} failed ({bench.error}): {who} in its place until {utc(bench.until_us)}"

    @property
    def instead(self) -> dict[str, str]:
        """Partition -> the policy that places there instead of its own."""
        return dict.fromkeys(self.benched, INSTEAD)

    def is_stopped(self, partition: str) -> bool:
        """Nobody places there: FCFS has failed, too."""
        bench = self.benched.get(partition)
        return bench is not None and bench.is_stopped

    def _again(self) -> None:
        now_s = self._loop.clock()
        over = [partition for partition, bench in self.benched.items() if bench.until_s <= now_s]
        for partition in over:
            self._term.log.info("policy_tried_again", policy=self.benched.pop(partition).policy, partition=partition)
        if over:
            self._changed()
