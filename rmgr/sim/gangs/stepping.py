"""The slot simulator one slot at a time: slow and plain, what `slots.py` must equal."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.sched.tree.allocation import Loads, choose
from rmgr.sched.tree.shape import Tree
from rmgr.sched.tree.stepped import Stepped
from rmgr.sim.gangs.slots import Sharing
from rmgr.sim.gangs.workloads import Task


def stepped(tasks: Sequence[Task], tree: Tree, slots: int, sharing: Sharing) -> tuple[list[int], int]:
    """The end of each task (-1: none), and processor-slots used. Cost: O(nodes) a slot."""
    front, loads = Stepped(tree, sharing.newcomers), Loads(tree)
    ends, used, coming = [-1] * len(tasks), 0, 0
    cursors: dict[int, int] = {}
    homes: dict[int, int] = {}
    for now in range(slots):
        while coming < len(tasks) and tasks[coming].arrival <= now:
            task = tasks[coming]
            node = choose(loads, task.size, sharing.allocation, cursors)
            assert node is not None
            loads.change(node, task.weight)
            homes[coming] = node
            front.add(coming, node, sharing.quanta(task.length), task.weight)
            coming += 1
        for node, number in front.slot():
            used += tree.sizes[node]
            if number not in front.rest:
                ends[number] = now + 1
                loads.change(homes.pop(number), -tasks[number].weight)
    return ends, used
