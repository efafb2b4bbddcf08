"""What a pass answers: decisions with their reasons, reasons of what was left, faults of policies; and the verdicts of a draft's verbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from rmgr.sched.job import Placement


class Why(NamedTuple):
    """A reason: the rule that decided, and a sentence with its facts. The sentence is put together only when somebody reads it."""

    rule: str
    text: str
    facts: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.text.format(*self.facts)}"


# -- decisions: orders to the driver --------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Start the job now on these nodes."""

    job_id: int
    placement: Placement
    why: Why
    partition: str = "default"


class Reserve(NamedTuple):
    """The job will start no later than `start_us`. `keep`: commit it as a record (`Reservation`); else it holds for this pass only."""

    job_id: int
    start_us: int
    placement: Placement  #: () where any nodes will do
    keep: bool
    why: Why
    partition: str = "default"
    policy: str = ""


class Unreserve(NamedTuple):
    """The record of the job's reservation goes."""

    job_id: int
    why: Why
    partition: str = "default"


class WakeAt(NamedTuple):
    """Run a pass at this time at the latest, with `Cause.TIMER`. It replaces what earlier plans asked for this partition."""

    at_us: int
    why: Why
    partition: str = "default"


Decision: TypeAlias = Start | Reserve | Unreserve | WakeAt


class Fault(NamedTuple):
    """A policy that raised or took too long: what it had decided is not in the plan. The driver counts and logs it."""

    policy: str
    partition: str
    error: str  #: class and message of the exception, or "out of time"


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of one pass. Empty fields cost nothing: most passes decide little.

    decisions: in the order to carry them out. left: reasons of jobs that were looked at and left waiting.
    rest: partition -> reason of every other waiting job there. faults: policies that lost their decisions.
    refused: verbs answered Infeasible.
    """

    decisions: tuple[Decision, ...] = ()
    left: Mapping[int, Why] = field(default_factory=dict)
    rest: Mapping[str, Why] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    refused: int = 0

    def why(self, job_id: int, partition: str = "default") -> Why | None:
        """Why this job starts, or why it still waits; None when no policy looked at its partition."""
        last: Why | None = None
        for decision in self.decisions:
            if not isinstance(decision, WakeAt) and decision.job_id == job_id:
                last = decision.why
                if isinstance(decision, Start):
                    return last
        return self.left.get(job_id) or last or self.rest.get(partition)


# -- verdicts: what a draft's verb answers at once ---------------------------------------------------------------------------


class Accepted(NamedTuple):
    """It is in the draft. at_us: when it takes effect (now for a start)."""

    at_us: int


class Insufficient(NamedTuple):
    """Not now: it may be possible in a later pass."""

    why: Why


class Infeasible(NamedTuple):
    """Never, as the cluster and the job are: unknown job or node, larger than the partition, already running."""

    why: Why


Verdict: TypeAlias = Accepted | Insufficient | Infeasible
