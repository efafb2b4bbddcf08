"""Carries out what happens to a simulated cluster beside its jobs: facts for the state, and the ends of what runs there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count

from rmgr.errors import RmgrError, UsageError
from rmgr.sched.job import Node
from rmgr.sched.policy import Cause
from rmgr.sched.records import Maintenance
from rmgr.sim.engine.kernel import Rank
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.engine.world import World
from rmgr.sim.workload.events import (
    Cancel,
    Event,
    FailOver,
    LimitsChange,
    NodeRanges,
    NodesDrain,
    NodesFail,
    NodesRepaired,
    NodesUndrain,
    SlotEnds,
    TakeOver,
    Window,
    WindowBegins,
    WindowEnds,
)

_NODE = int(Rank.NODE)
_NODES = frozenset({Cause.NODES_CHANGED})
_LOST = frozenset({Cause.NODES_CHANGED, Cause.JOB_ENDED})
_TAKE_OVER = frozenset({Cause.TAKE_OVER})
_NOTHING: frozenset[Cause] = frozenset()
#: What a log says beside the facts that follow an event.
_REASONS: Mapping[type, str] = {
    NodesFail: "failed",
    NodesRepaired: "repaired",
    NodesDrain: "drained",
    NodesUndrain: "undrained",
    WindowBegins: "maintenance",
    Cancel: "cancelled",
}
#: Failures in a row while jobs wait and none runs: more, and the machine is never whole enough for what waits.
_IN_VAIN = 10_000


class Upsets:
    """Puts events on the world's clock and carries them out. `leaderless_until_us`: there is no pass before.

    Raises: UsageError for an event that names a node, a partition or a job that is not there.
    """

    def __init__(self, world: World, setting: Setting) -> None:
        self._world = world
        known = setting.events or setting.failures is not None
        self._nodes: dict[int, Node] = {node.id: node for node in world.nodes} if known else {}
        self._failed: set[int] = set()
        self._drained: set[int] = set()
        self._serials = count()
        self._in_vain = 0
        self.leaderless_until_us = 0
        for event in setting.events:
            self._check(event)
            self._put(event.at_us, event)
        self._failures = setting.failures.of(list(self._nodes), setting.seed) if setting.failures is not None else iter(())
        self._expect_failure()

    @property
    def closed(self) -> int:
        """How many nodes are down or drained now."""
        return len(self._failed | self._drained)

    def happen(self, event: Event) -> frozenset[Cause]:
        """One event; what it gives the scheduler to think about."""
        self._world.because(_REASONS.get(type(event), ""))
        try:
            return self._carry_out(event)
        finally:
            self._world.because("")

    # -- one kind each ------------------------------------------------------------------------------------------------------

    def _carry_out(self, event: Event) -> frozenset[Cause]:
        match event:
            case NodesFail() | NodesRepaired() | NodesDrain() | NodesUndrain():
                return self._nodes_change(event)
            case Cancel(job=number):
                cause = self._world.cancel(number)
                return _NOTHING if cause is None else frozenset({cause})
            case FailOver(for_us=for_us):
                now = self._world.kernel.now_us
                self.leaderless_until_us = max(self.leaderless_until_us, now + for_us)
                if for_us:
                    self._put(now + for_us, TakeOver(now + for_us))
                    return _NOTHING
                return self._take_over()
            case TakeOver():
                return self._take_over()
            case Window():
                return self._plan(event)
            case WindowBegins(nodes=nodes):
                return self._lose(nodes)
            case WindowEnds(id=number):
                self._world.tell.maintenance_over(number)
                return _NODES
            case SlotEnds():
                self._world.turns.slot_ends(event)
                return _NOTHING
            case LimitsChange(partition=partition, limits=limits):
                self._world.tell.limits_changed(partition, limits)
                self._world.refuse_infeasible(partition)
                return _NODES

    def _nodes_change(self, event: NodesFail | NodesRepaired | NodesDrain | NodesUndrain) -> frozenset[Cause]:
        reasons = self._failed if isinstance(event, NodesFail | NodesRepaired) else self._drained
        closes = isinstance(event, NodesFail | NodesDrain)
        before = {node for node in self._of(event.nodes) if node in self._failed or node in self._drained}
        reasons.update(self._of(event.nodes)) if closes else reasons.difference_update(self._of(event.nodes))
        causes = self._lose(event.nodes) if isinstance(event, NodesFail) else _NOTHING
        changed = []
        for node in self._of(event.nodes):
            closed = node in self._failed or node in self._drained
            if closed != (node in before):
                changed.append(replace(self._nodes[node], closed=closed))
        for other in changed:
            self._world.tell.node_changed(other)
        if isinstance(event, NodesFail | NodesRepaired) and event.drawn:
            self._expect_failure()
            self._check_hope()
        return causes | _NODES if changed else causes

    def _lose(self, nodes: NodeRanges) -> frozenset[Cause]:
        lost = self._world.stays.on(nodes)
        for number in lost:
            self._world.lose(number)
        return _LOST if lost else _NOTHING

    def _plan(self, window: Window) -> frozenset[Cause]:
        """One record for each partition that it touches."""
        homes: dict[str, list[int]] = {}
        for node in self._of(window.nodes):
            homes.setdefault(self._nodes[node].partition, []).append(node)
        for partition, nodes in homes.items():
            number = next(self._serials)
            record = Maintenance(number, window.start_us, window.end_us, tuple(nodes), window.name, partition)
            self._world.tell.maintenance_planned(record)
            self._put(window.end_us, WindowEnds(window.end_us, number))
        self._put(window.start_us, WindowBegins(window.start_us, window.nodes))
        return _NODES

    def _take_over(self) -> frozenset[Cause]:
        if self._world.kernel.now_us < self.leaderless_until_us:
            return _NOTHING  # the next leader died, too
        self._world.take_over()
        return _TAKE_OVER

    # -- the clock ------------------------------------------------------------------------------------------------------------

    def _put(self, at_us: int, event: Event) -> None:
        self._world.kernel.put(at_us, _NODE, next(self._serials), event)

    def _expect_failure(self) -> None:
        """One failure or repair stands on the clock at a time."""
        event = next(self._failures, None)
        if event is not None:
            self._put(event.at_us, event)

    def _check_hope(self) -> None:
        world = self._world
        waits = not world.stays.running and any(part.jobs for part in world.state.partitions.values())
        self._in_vain = self._in_vain + 1 if waits else 0
        if self._in_vain > _IN_VAIN:
            raise RmgrError(
                f"{_IN_VAIN:,} failures and repairs since a job last ran, and jobs wait: the machine is never whole enough for them",
                hint="a larger --mtbf, a smaller --mttr, or more nodes",
            )

    # -- checks ---------------------------------------------------------------------------------------------------------------

    def _of(self, nodes: NodeRanges) -> Iterator[int]:
        """Ids in ascending order; gaps between ids of the machine are none of its nodes."""
        return (node for first, last in nodes for node in range(first, last + 1) if node in self._nodes)

    def _check(self, event: Event) -> None:
        if isinstance(event, Cancel) and event.job > self._world.count:
            raise UsageError(f"the events cancel job {event.job}, and the workload has {self._world.count}", hint="numbers of jobs.csv")
        if isinstance(event, LimitsChange) and event.partition not in self._world.state.partitions:
            raise UsageError(f"the events limit partition {event.partition!r}: {_known(self._world.state.partitions)}")
        if isinstance(event, NodesFail | NodesRepaired | NodesDrain | NodesUndrain | Window):
            for node in chain.from_iterable(event.nodes):
                if node not in self._nodes:
                    raise UsageError(f"the events name node {node}, which the machine has not", hint=f"it has {len(self._nodes):,} nodes")


def _known(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"
