"""The front, slot by slot: the round-robin rule as it is defined. `rotation.py` computes the same without stepping.

A node's round is one quantum for each entry of its own queue, then, at the same time, rounds of all children that are not empty. A child
that is early starts another round at once and is cut off when the slowest of them has completed its first. Queues keep their order over a
cut; a subtree that was cut off starts again at its own root.
"""

from __future__ import annotations

from rmgr.sched.tree.rotation import Newcomers, Row
from rmgr.sched.tree.shape import Tree


class Stepped:
    """A tree with its queues and its front, moved one slot at a time. Cost of a slot: O(nodes)."""

    def __init__(self, tree: Tree, newcomers: Newcomers = Newcomers.THIS_ROUND) -> None:
        self.tree, self.newcomers = tree, newcomers
        self.queues: list[list[int]] = [[] for _ in range(tree.nodes)]
        self.rest: dict[int, int] = {}  #: task -> quanta that it still needs
        self.home: dict[int, int] = {}
        self.late: dict[int, list[int]] = {}  #: node -> entries that wait for the next round of the root
        self._own = [0] * tree.nodes  # entries of the queue still to be served in this round; 0: the children run
        self._runs = [False] * tree.nodes  # its parent runs it in this phase
        self._done = [False] * tree.nodes  # it has completed a round in this phase

    def add(self, task: int, node: int, quanta: int, weight: int = 1) -> None:
        """The task enters the queue of the node, with `weight` adjacent entries."""
        self.rest[task], self.home[task] = quanta, node
        if self.newcomers is Newcomers.NEXT_ROUND and not self.queues[node] and self._runs[0]:
            self.late.setdefault(node, []).extend([task] * weight)
            return
        self.queues[node] += [task] * weight

    def remove(self, task: int) -> None:
        """The task leaves. A round that has nothing left to serve is over at once."""
        node = self.home.pop(task)
        del self.rest[task]
        if node in self.late and task in self.late[node]:
            self.late[node] = [entry for entry in self.late[node] if entry != task]
            if not self.late[node]:
                del self.late[node]
            return
        self._drop(task, node)
        at = node
        while True:
            if self._settled(at):
                self._done[at] = True
                self._begin(at)
            if not at:
                break
            at = self.tree.parent(at)

    def slot(self) -> Row:
        """Runs one slot; answers who ran. Tasks that got their last quantum are gone."""
        row: Row = []
        if not self._runs[0]:
            self._begin(0)
        if self._runs[0] and self._slot(0, row):
            self._begin(0)
        return row

    def _slot(self, node: int, row: Row) -> bool:
        if self._own[node]:
            task = self.queues[node].pop(0)
            row.append((node, task))
            self.queues[node].append(task)
            self._own[node] -= 1
            self.rest[task] -= 1
            if not self.rest[task]:
                del self.rest[task], self.home[task]
                self._drop(task, node)
            elif not self._own[node]:
                self._enter(node)
            return self._settled(node)
        for child in self.tree.children(node):
            if self._runs[child] and self._slot(child, row):
                self._done[child] = True
                self._begin(child)
        return self._settled(node)

    def _drop(self, task: int, node: int) -> None:
        """Its entries go; the round goes on with those that follow."""
        own, queue = self._own[node], self.queues[node]
        left = sum(entry != task for entry in queue[:own])
        self.queues[node] = [entry for entry in queue if entry != task]
        self._own[node] = left
        if self._runs[node] and not left and (own or not any(self._runs[child] for child in self.tree.children(node))):
            self._enter(node)

    def _settled(self, node: int) -> bool:
        """The node's round is over."""
        if not self._runs[node] or self._own[node]:
            return False
        for child in self.tree.children(node):
            if self._runs[child] and self.is_empty(child):
                self._stop(child)
        return all(self._done[child] for child in self.tree.children(node) if self._runs[child])

    def _begin(self, node: int) -> None:
        if not node:
            for late, entries in self.late.items():
                self.queues[late] += entries
            self.late = {}
        self._stop(node)
        if self.is_empty(node):
            return
        self._runs[node] = True
        self._own[node] = len(self.queues[node])
        if not self._own[node]:
            self._enter(node)

    def _enter(self, node: int) -> None:
        for child in self.tree.children(node):
            self._begin(child)
            self._done[child] = False

    def _stop(self, node: int) -> None:
        if self._runs[node]:
            self._runs[node], self._own[node] = False, 0
            for child in self.tree.children(node):
                self._stop(child)

    def is_empty(self, node: int) -> bool:
        """No queue of the subtree has an entry."""
        return not self.queues[node] and all(map(self.is_empty, self.tree.children(node)))
