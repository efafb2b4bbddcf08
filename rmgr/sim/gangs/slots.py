"""Slot simulator: tasks under the queue tree from event to event, exactly as slot by slot (`stepping.py`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rmgr.sched.tree.allocation import AllocationRule, Loads, choose
from rmgr.sched.tree.rotation import Newcomers, Rotation
from rmgr.sched.tree.shape import Tree, retr, retr_bound
from rmgr.sim.gangs.messages import Messages
from rmgr.sim.gangs.workloads import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Sharing of the machine. switch: part of every slot that switching takes: a task needs length / (1 - switch) quanta."""

    allocation: AllocationRule = AllocationRule.BF_APA
    newcomers: Newcomers = Newcomers.THIS_ROUND
    switch: float = 0.0

    def quanta(self, length: int) -> int:
        """That a task of this length needs, rounded up."""
        return length if not self.switch else -int(-length / (1 - self.switch) // 1)


@dataclass(slots=True)
class SlotsOutcome:
    """Result of a run of `slots` slots.

    ends: of each task, the slot after its last one, or -1. used: processor-slots of partitions that ran a task; useful: of the tasks' own
    sizes. most_tqlb: the largest of any instant, without the root's queue as printed.
    tqlb: with root -> slots for which that was the maximum of the tree. breaches: tasks whose RETR exceeds the bound of section 5.2.
    """

    slots: int
    processors: int
    ends: list[int]
    used: int = 0
    useful: int = 0
    most_tqlb: int = 0
    retr: list[float] = field(default_factory=list)
    breaches: int = 0
    tqlb: Counter[int] = field(default_factory=Counter)
    messages: Messages | None = None

    @property
    def utilisation(self) -> float:
        return self.used / (self.processors * self.slots)

    @property
    def useful_utilisation(self) -> float:
        return self.useful / (self.processors * self.slots)

    @property
    def mean_retr(self) -> float:
        """Over the tasks that have ended; 0 for none."""
        return fmean(self.retr) if self.retr else 0.0


def run(tasks: Sequence[Task], tree: Tree, slots: int, sharing: Sharing, *, count_messages: bool = False) -> SlotsOutcome:
    """Runs the tasks for so many slots.

    At one instant ends come first, then arrivals. Raises: ValueError for a task that is larger than the tree.
    Cost: per event the path of its node and some of its neighbours; time without events costs nothing.
    """
    rotation, loads = Rotation(tree, sharing.newcomers), Loads(tree)
    out = SlotsOutcome(slots, tree.processors, [-1] * len(tasks), messages=Messages(sharing.allocation) if count_messages else None)
    cursors: dict[int, int] = {}
    history = _History()
    homes: dict[int, int] = {}
    coming = 0
    while rotation.now < slots:
        while coming < len(tasks) and tasks[coming].arrival <= rotation.now:
            task = tasks[coming]
            node = choose(loads, task.size, sharing.allocation, cursors)
            if node is None:
                raise ValueError(f"task {coming} of size {task.size} is larger than the tree of {tree.processors} processors")
            if out.messages is not None:
                out.messages.change(loads, node, task.weight)
            else:
                loads.change(node, task.weight)
            homes[coming] = node
            rotation.add(coming, node, sharing.quanta(task.length), task.weight)
            coming += 1
        out.most_tqlb = max(out.most_tqlb, loads.longest[0] - loads.lengths[0])
        history.note(rotation.now, loads.longest[0])
        until = min(tasks[coming].arrival, slots) if coming < len(tasks) else slots
        rotation.advance(rotation.next_end(until - rotation.now) or until - rotation.now)
        for number in rotation.finish():
            task, node = tasks[number], homes.pop(number)
            out.ends[number] = rotation.now
            out.useful += sharing.quanta(task.length) * task.size
            if out.messages is not None:
                out.messages.change(loads, node, -task.weight, came=False)
            else:
                loads.change(node, -task.weight)
        if out.messages is not None and coming % 64 == 0:
            out.messages.sample(tree, rotation.lengths())
    history.note(slots, loads.longest[0])
    rotation.settle()
    out.used = sum(queue.turns * tree.sizes[node] for node, queue in enumerate(rotation.queues))
    for number, node in homes.items():
        left = rotation.queues[node].rest()
        out.useful += (sharing.quanta(tasks[number].length) - left.get(number, sharing.quanta(tasks[number].length))) * tasks[number].size
    _judge(out, tasks, history)
    return out


def _judge(out: SlotsOutcome, tasks: Sequence[Task], history: _History) -> None:
    out.tqlb = history.lasting()
    for task, end in zip(tasks, out.ends, strict=True):
        if end >= 0:
            ratio = retr(task.arrival, end, task.length)
            mean, most = history.between(task.arrival, end)
            out.retr.append(ratio)
            out.breaches += ratio > retr_bound(mean, most, task.length) + 1e-9


class _History:
    """The maximum of TQLB over time: a value from each time on."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[int] = []
        self._sums: list[int] = []  # of value x slots before each time

    def note(self, now: int, value: int) -> None:
        if self.times and self.times[-1] == now:
            self.values[-1] = value
            return
        self._sums.append(self._sums[-1] + self.values[-1] * (now - self.times[-1]) if self.times else 0)
        self.times.append(now)
        self.values.append(value)

    def between(self, start: int, end: int) -> tuple[float, int]:
        """Mean and maximum over [start, end)."""
        first, last = bisect_right(self.times, start) - 1, bisect_right(self.times, end - 1) - 1
        total = self._until(last, end) - self._until(first, start)
        return total / (end - start), max(self.values[first : last + 1])

    def lasting(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for at in range(len(self.times) - 1):
            found[self.values[at]] += self.times[at + 1] - self.times[at]
        return found

    def _until(self, at: int, time: int) -> int:
        return self._sums[at] + self.values[at] * (time - self.times[at])
