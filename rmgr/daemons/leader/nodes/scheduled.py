"""Shows the scheduler its nodes: those of partitions with place queues, with the features that requests for some of them stand for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from rmgr.daemons.leader.core.facts import Names, allows, node_of
from rmgr.daemons.leader.records.updates import StateUpdates
from rmgr.model.cluster.node import NodeRecord
from rmgr.sched.job import Node
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState


class KnownNodes(Protocol):
    """Answers for the nodes of the cluster."""

    @property
    def records(self) -> Mapping[str, NodeRecord]:
        """Of all nodes, by name."""
        ...

    def takes_work(self, name: str) -> bool:
        """Its Starter takes what is placed there."""
        ...

    def refuses(self, name: str) -> Collection[str]:
        """Users whose work it cannot run."""
        ...

    def mark_of(self, user: str) -> str:
        """The feature of nodes that run work of the user, "" = all do."""
        ...


class ScheduledNodes:
    """Nodes as the scheduler sees them. In the leader's loop.

    Args:
        listed: names of nodes that take part: of those it is known what runs there.
        is_left_alone: says of a node that nothing is to be placed there now.
    Attributes: names: numbers of nodes. mark_of: the feature of nodes that run work of a user.
    """

    def __init__(self, nodes: KnownNodes, listed: Collection[str], is_left_alone: Callable[[str], bool], updates: StateUpdates) -> None:
        self.names = Names()
        self.mark_of = nodes.mark_of
        self._nodes = nodes
        self._listed = listed
        self._is_left_alone = is_left_alone
        self._updates = updates
        self._marks: set[str] = set()  # of requests that name nodes

    def learn(self, partitions: Collection[str]) -> set[str]:
        """Nodes of these partitions; each has a number from now on."""
        found = {name for name, record in self._nodes.records.items() if record.attributes.partition in partitions}
        self.names.learn(found)
        return found

    def all(self) -> list[Node]:
        """Every node that takes part."""
        return [self._node(name) for name in sorted(self._listed, key=self.names.id) if name in self._nodes.records]

    def tell(self, state: ClusterState) -> None:
        """Tells the state what is different about them."""
        for node in self.all():
            part = state.partitions.get(node.partition)
            if part is None or part.nodes.get(node.id) != node:
                self._updates.tell(state, "node_changed", node)
                self._updates.because(Cause.NODES_CHANGED)

    def mark(self, mark: str) -> bool:
        """A request names nodes: those that it allows have a feature of their own. True: it is new."""
        if not mark or mark in self._marks:
            return False
        self._marks.add(mark)
        return True

    def _node(self, name: str) -> Node:
        record, nodes = self._nodes.records[name], self._nodes
        marks = (mark for mark in self._marks if allows(mark, name, nodes.refuses(name)))
        return node_of(record, self.names.id(name), closed=not nodes.takes_work(name) or self._is_left_alone(name), marks=marks)
