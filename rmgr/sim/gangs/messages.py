"""Messages that the paper's own way would send: nodes of the tree on processors, turns and news passed between them.

Counted, not sent: `next_turn` from a node to each non-empty child at the beginning of a phase, the answer of that child after its first
round, `add_task` down the path, and up the path the news that the policy needs, as far as they change anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmgr.sched.tree.allocation import AllocationRule, Loads
from rmgr.sched.tree.rotation import phases_below, round_lengths
from rmgr.sched.tree.shape import Tree


@dataclass(slots=True)
class Messages:
    """Counts of one run. news: reports of children to their parents after a task came or went."""

    allocation: AllocationRule
    tasks: int = 0
    add_task: int = 0
    news: int = 0
    _turns: float = 0.0
    _samples: int = 0

    @property
    def per_slot(self) -> float:
        """next_turn messages and their answers, mean over the samples."""
        return self._turns / self._samples if self._samples else 0.0

    @property
    def per_task(self) -> float:
        """add_task and news of a task's coming and going."""
        return (self.add_task + self.news) / self.tasks if self.tasks else 0.0

    def change(self, loads: Loads, node: int, entries: int, *, came: bool = True) -> None:
        """A task enters or leaves the queue of the node: changes the loads and counts."""
        path = loads.tree.path(node)
        before = [self._news(loads, at) for at in path]
        loads.change(node, entries)
        if came:
            self.tasks += 1
            self.add_task += len(path)  # one to the root, one along each edge
        if self.allocation is not AllocationRule.RR:
            changed = [self._news(loads, at) != old for at, old in zip(path, before, strict=True)]
            self.news += sum(changed[1:])  # the root reports to nobody

    def sample(self, tree: Tree, lengths: Mapping[int, int]) -> None:
        """Counts the turns of one round of the tree as it stands. Cost: O(nodes)."""
        self._samples += 1
        if lengths:
            self._turns += turns(tree, lengths)

    def _news(self, loads: Loads, node: int) -> tuple[int, ...]:
        """What a node tells its parent under this policy."""
        match self.allocation:
            case AllocationRule.RR:
                return ()
            case AllocationRule.MAX:
                return (loads.longest[node],)
            case AllocationRule.MIN:
                return (loads.shortest[node],)
            case AllocationRule.APA:
                return (loads.apa[node],)
            case AllocationRule.BF:
                return loads.profile(node)
            case AllocationRule.BF_APA:
                return (*loads.profile(node), loads.apa[node])


def turns(tree: Tree, lengths: Mapping[int, int]) -> float:
    """next_turn messages and their answers per slot while the tree stays as it is: two for each phase of each non-empty child."""
    rounds = round_lengths(tree, lengths)
    phases: list[dict[int, int]] = [{} for _ in range(tree.nodes)]
    phases[0] = {rounds[0]: 1}
    sent = 0
    for node in range(tree.nodes):
        kids = [child for child in tree.children(node) if rounds[child]]
        for slots, times in phases[node].items():
            for phase, count in phases_below(slots, lengths.get(node, 0), rounds[node]):
                sent += 2 * count * times * len(kids)
                for child in kids:
                    phases[child][phase] = phases[child].get(phase, 0) + count * times
    return sent / rounds[0]
