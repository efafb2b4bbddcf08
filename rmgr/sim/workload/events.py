"""Events of a simulated cluster beside its jobs: failures and repairs, drains, fail-overs, maintenance, cancellations, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple, TypeAlias

from rmgr.sched.records import Limits
from rmgr.sim.workload.streams import stream

#: Node ids as inclusive ranges ((0, 3), (7, 7)).
NodeRanges: TypeAlias = tuple[tuple[int, int], ...]


class NodesFail(NamedTuple):
    """Failure of nodes: what runs there is lost, nothing starts there until they are repaired. drawn: by the model of failures."""

    at_us: int
    nodes: NodeRanges
    drawn: bool = False


class NodesRepaired(NamedTuple):
    at_us: int
    nodes: NodeRanges
    drawn: bool = False


class NodesDrain(NamedTuple):
    """Drain of nodes: what runs there goes on, nothing starts there any more."""

    at_us: int
    nodes: NodeRanges


class NodesUndrain(NamedTuple):
    at_us: int
    nodes: NodeRanges


class FailOver(NamedTuple):
    """The leader dies. No pass until another has taken over, `for_us` later, from the records alone."""

    at_us: int
    for_us: int


class Window(NamedTuple):
    """At `at_us` it becomes known that nothing may run on these nodes in [start, end)."""

    at_us: int
    start_us: int
    end_us: int
    nodes: NodeRanges
    name: str


class Cancel(NamedTuple):
    """A user cancels a job, whether it waits, runs, or is still to come."""

    at_us: int
    job: int


class LimitsChange(NamedTuple):
    at_us: int
    partition: str
    limits: Limits


class TakeOver(NamedTuple):
    """Another leader is there; follows a `FailOver`."""

    at_us: int


class WindowBegins(NamedTuple):
    """End of a maintenance window's grace: what still runs there is lost; follows a `Window`."""

    at_us: int
    nodes: NodeRanges


class WindowEnds(NamedTuple):
    at_us: int
    id: int


class SlotEnds(NamedTuple):
    """The turn of a gang's row is over. gang: its partition and its name."""

    at_us: int
    gang: tuple[str, str]
    serial: int


Upset: TypeAlias = NodesFail | NodesRepaired | NodesDrain | NodesUndrain | FailOver | Window | Cancel | LimitsChange
Event: TypeAlias = Upset | TakeOver | WindowBegins | WindowEnds | SlotEnds


@dataclass(frozen=True, slots=True)
class Failures:
    """Each node fails and is repaired on its own: times between are exponential with these means (us, > 0)."""

    mtbf_us: int
    mttr_us: int

    def of(self, nodes: Sequence[int], seed: int) -> Iterator[NodesFail | NodesRepaired]:
        """The endless sequence for these nodes, in order of (time, node): the same under every policy. Space O(nodes)."""
        draw = stream(seed, "failures").expovariate
        upset, mend = 1 / self.mtbf_us, 1 / self.mttr_us
        coming = [(1 + int(draw(upset)), node, False) for node in nodes]  # (time, node, it is down until then)
        heapify(coming)
        while coming:
            at_us, node, down = coming[0]
            heapreplace(coming, (at_us + 1 + int(draw(upset if down else mend)), node, not down))
            yield (NodesRepaired if down else NodesFail)(at_us, ((node, node),), True)
