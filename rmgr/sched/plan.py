"""Answers of a pass: decisions with their reasons, reasons of what was left, faults of policies; and the verdicts of a draft's verbs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from rmgr.sched.job import Placement
from rmgr.sched.records import Gang, Hold

#: `of_tuple(Start, (...))`: a named tuple in half the time that its own constructor takes. For what every pass makes, and nothing else.
of_tuple = tuple.__new__

#: Nouns that a fact counts, and how one of them is called.
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
    """A reason: the rule that decided, and a sentence with its facts. The sentence is put together only when somebody reads it."""

    rule: str
    text: str
    facts: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.agreed.format(*self.facts)}"

    @property
    def agreed(self) -> str:
        """`text` with its nouns in the number of the facts before them: `needs {} x {} core` where that is 1."""
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


class Migrate(NamedTuple):
    """Ask the running job to checkpoint and put it back into the queue, from where it goes on."""

    job_id: int
    why: Why
    partition: str = "default"


class Preempt(NamedTuple):
    """Put the running job back into the queue; it starts again from nothing."""

    job_id: int
    why: Why
    partition: str = "default"


class Suspend(NamedTuple):
    """Stop the running job in place: its cores are free, its memory is not."""

    job_id: int
    why: Why
    partition: str = "default"


class Resume(NamedTuple):
    """Let the suspended job go on where it stands."""

    job_id: int
    why: Why
    partition: str = "default"


class HoldCores(NamedTuple):
    """Commit the record: the job is promised the cores of these shares. It replaces the job's earlier hold."""

    job_id: int
    hold: Hold
    why: Why
    partition: str = "default"


class ReleaseHold(NamedTuple):
    """The record of the job's hold goes, and what it held is free."""

    job_id: int
    why: Why
    partition: str = "default"


class Noted(NamedTuple):
    """Commit, or with value None delete, a policy's note of a job (0: of the partition)."""

    policy: str
    kind: str
    job_id: int
    value: tuple[int, ...] | None
    partition: str = "default"

    @property
    def why(self) -> Why:
        """What it is for."""
        return Why("note", "policy {} remembers {} of {}: {}", (self.policy, self.kind, self.job_id or "the partition", self.value))


class Route(NamedTuple):
    """The waiting job goes to queue `to`."""

    job_id: int
    to: str
    why: Why
    partition: str = "default"


class Send(NamedTuple):
    """Send the call to the server `to`. predicted_us: when the policy expects the answer, after now; 0 = it expects nothing."""

    job_id: int
    to: str
    why: Why
    partition: str = "default"
    predicted_us: int = 0


class Reject(NamedTuple):
    """The waiting job can never run here: end it."""

    job_id: int
    why: Why
    partition: str = "default"


class GangSet(NamedTuple):
    """Commit the matrix. The starts of its waiting jobs follow it in the plan as `Start`."""

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
    """A policy that raised or took too long: what it had decided is not in the plan. The driver counts and logs it."""

    policy: str
    partition: str
    error: str  #: class and message of the exception, or "out of time"


_NOTHING: Mapping[int, Why] = MappingProxyType({})
#: By partition.
NO_REASONS: Mapping[str, Why] = MappingProxyType({})
NO_ASIDE: Mapping[str, Mapping[int, Why]] = MappingProxyType({})


class Plan(NamedTuple):
    """The answer of one pass. Empty fields cost nothing: most passes decide little.

    decisions: in the order to carry them out. left: reasons of jobs that were looked at and left waiting.
    rest: partition -> reason of every other waiting job there. faults: policies that lost their decisions.
    refused: verbs answered Infeasible.
    aside: partition -> reasons of jobs that no policy is shown (dependencies, begin times, too large). The state's own table, not a copy:
    ask before the next fact.
    """

    decisions: tuple[Decision, ...] = ()
    left: Mapping[int, Why] = _NOTHING
    rest: Mapping[str, Why] = NO_REASONS
    faults: tuple[Fault, ...] = ()
    refused: int = 0
    aside: Mapping[str, Mapping[int, Why]] = NO_ASIDE

    def why(self, job_id: int, partition: str = "default") -> Why | None:
        """Why this job starts, or why it still waits; None when no policy looked at its partition."""
        last: Why | None = None
        for decision in self.decisions:
            if not isinstance(decision, WakeAt | Noted | GangSet) and decision.job_id == job_id:
                last = decision.why
                if isinstance(decision, Start):
                    return last
        return self.left.get(job_id) or last or self.aside.get(partition, {}).get(job_id) or self.rest.get(partition)


# -- verdicts: what a draft's verb answers at once ---------------------------------------------------------------------------


class Accepted(NamedTuple):
    """The draft has taken it. at_us: when it takes effect (now for a start)."""

    at_us: int


class Insufficient(NamedTuple):
    """Not now: it may be possible in a later pass."""

    why: Why


class Infeasible(NamedTuple):
    """Never, as the cluster and the job are: unknown job or node, larger than the partition, already running."""

    why: Why


Verdict: TypeAlias = Accepted | Insufficient | Infeasible
