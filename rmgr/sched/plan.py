"""The result of a pass: decisions with reasons, reasons for jobs left waiting, faults of policies; and verdicts on a draft's verbs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from rmgr.sched.job import Placement
from rmgr.sched.records import Gang, Hold

#: `of_tuple(Start, (...))` makes a named tuple in half the time its constructor takes. Only for values made in every pass.
of_tuple = tuple.__new__

#: Nouns that follow a fact, and their singular.
_ONE = {
    "cores": "core",
    "CPUs": "CPU",
    "jobs": "job",
    "nodes": "node",
    "others": "other",
    "processes": "process",
    "such processes": "such process",
    "threads": "thread",
}
_COUNTED = re.compile(rf"\{{\}}(?: ({'|'.join(_ONE)})\b)?")


class Why(NamedTuple):
    """A reason: the rule that decided, and a sentence with its facts. The sentence is formatted only when it is read."""

    rule: str
    text: str
    facts: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.agreed.format(*self.facts)}"

    @property
    def agreed(self) -> str:
        """`text` with each noun in the number of the fact before it: `needs {} x {} core` if that fact is 1."""
        facts = self.facts
        return self.text if 1 not in facts else _agreed(self.text, tuple(fact == 1 for fact in facts))


@lru_cache(256)
def _agreed(text: str, are_one: tuple[bool, ...]) -> str:
    facts = iter(are_one)

    def put(found: re.Match[str]) -> str:
        is_one = next(facts, False)
        return f"{{}} {_ONE[found[1]]}" if is_one and found[1] else found[0]

    return _COUNTED.sub(put, text)


# -- decisions: orders to the driver --------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Start the job now on these nodes."""

    job_id: int
    placement: Placement
    why: Why
    partition: str = "default"


class Reserve(NamedTuple):
    """The job will start no later than `start_us`. keep: commit this as a record (`Reservation`); otherwise it holds for this pass only."""

    job_id: int
    start_us: int
    placement: Placement  #: () where any nodes will do
    keep: bool
    why: Why
    partition: str = "default"
    policy: str = ""


class Unreserve(NamedTuple):
    """Delete the record of the job's reservation."""

    job_id: int
    why: Why
    partition: str = "default"


class WakeAt(NamedTuple):
    """Run a pass with `Cause.TIMER` no later than this time. Replaces the time that earlier plans asked for in this partition."""

    at_us: int
    why: Why
    partition: str = "default"


class Migrate(NamedTuple):
    """Ask the running job to checkpoint and put it back into the queue; it will continue from the checkpoint."""

    job_id: int
    why: Why
    partition: str = "default"


class Preempt(NamedTuple):
    """Put the running job back into the queue; it will start from scratch."""

    job_id: int
    why: Why
    partition: str = "default"


class Suspend(NamedTuple):
    """Stop the running job in place: it frees its cores but keeps its memory."""

    job_id: int
    why: Why
    partition: str = "default"


class Resume(NamedTuple):
    """Let the suspended job go on where it stopped."""

    job_id: int
    why: Why
    partition: str = "default"


class HoldCores(NamedTuple):
    """Commit the record: the job is promised the cores of these shares. Replaces the job's earlier hold."""

    job_id: int
    hold: Hold
    why: Why
    partition: str = "default"


class ReleaseHold(NamedTuple):
    """Delete the record of the job's hold and free the cores it held."""

    job_id: int
    why: Why
    partition: str = "default"


class Noted(NamedTuple):
    """Commit a policy's note on a job (id 0: on the partition), or delete it if the value is None."""

    policy: str
    kind: str
    job_id: int
    value: tuple[int, ...] | None
    partition: str = "default"

    @property
    def why(self) -> Why:
        """The reason, made from the note itself."""
        return Why("note", "policy {} remembers {} of {}: {}", (self.policy, self.kind, self.job_id or "the partition", self.value))


class Route(NamedTuple):
    """Move the waiting job to queue `to`."""

    job_id: int
    to: str
    why: Why
    partition: str = "default"


class Send(NamedTuple):
    """Send the call to the server `to`. predicted_us: time from now until the policy expects the answer; 0 if it makes no prediction."""

    job_id: int
    to: str
    why: Why
    partition: str = "default"
    predicted_us: int = 0


class Reject(NamedTuple):
    """End the waiting job: it can never run here."""

    job_id: int
    why: Why
    partition: str = "default"


class GangSet(NamedTuple):
    """Commit the matrix. Starts of its waiting jobs follow it in the plan as `Start`."""

    gang: Gang
    why: Why
    partition: str = "default"


Decision: TypeAlias = (
    Start
    | Reserve
    | Unreserve
    | WakeAt
    | Migrate
    | Preempt
    | Suspend
    | Resume
    | HoldCores
    | ReleaseHold
    | Noted
    | Route
    | Send
    | Reject
    | GangSet
)


class Fault(NamedTuple):
    """A policy that raised or took too long; its decisions are not in the plan. The driver counts and logs it."""

    policy: str
    partition: str
    error: str  #: class and message of the exception, or "out of time"


_NOTHING: Mapping[int, Why] = MappingProxyType({})
#: Empty tables by partition.
NO_REASONS: Mapping[str, Why] = MappingProxyType({})
NO_ASIDE: Mapping[str, Mapping[int, Why]] = MappingProxyType({})


class Plan(NamedTuple):
    """The result of one pass. Empty fields cost nothing: most passes decide little.

    decisions: in the order to carry them out. left: reasons of jobs that a policy looked at and left waiting.
    rest: partition -> reason of every other waiting job there. faults: policies that lost their decisions.
    refused: number of verbs answered with Infeasible.
    aside: partition -> reasons of jobs that no policy sees (dependencies, begin times, too large). It is the state's own table, not a copy:
    read it before the next fact.
    """

    decisions: tuple[Decision, ...] = ()
    left: Mapping[int, Why] = _NOTHING
    rest: Mapping[str, Why] = NO_REASONS
    faults: tuple[Fault, ...] = ()
    refused: int = 0
    aside: Mapping[str, Mapping[int, Why]] = NO_ASIDE

    def why(self, job_id: int, partition: str = "default") -> Why | None:
        """Returns why this job starts or still waits; None if no policy looked at its partition."""
        last: Why | None = None
        for decision in self.decisions:
            if not isinstance(decision, WakeAt | Noted | GangSet) and decision.job_id == job_id:
                last = decision.why
                if isinstance(decision, Start):
                    return last
        return self.left.get(job_id) or last or self.aside.get(partition, {}).get(job_id) or self.rest.get(partition)


# -- verdicts: immediate answers to a draft's verbs ------------------------------------------------------------------------


class Accepted(NamedTuple):
    """The draft has accepted the verb. at_us: when it takes effect (now for a start)."""

    at_us: int


class Insufficient(NamedTuple):
    """Not possible now, perhaps in a later pass."""

    why: Why


class Infeasible(NamedTuple):
    """Never possible with the cluster and the job as they are: unknown job or node, larger than the partition, already running."""

    why: Why


Verdict: TypeAlias = Accepted | Insufficient | Infeasible
