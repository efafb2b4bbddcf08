"""Time-sharing on a virtual clock: the slot simulator of the queue tree, its workloads, a batch baseline, and a count of its messages.

It simulates plain slots and tasks, as paper 002 did, without the ordinary driver. All decisions are the tree's (`rmgr.sched.tree`). Jobs
under the policy `dqt` run in `rmgr.sim.engine.driver`, on the same tree.
`Stepped` is the rule of the tree slot by slot, as it is defined; `sched/tree/rotation.py` computes the same without stepping.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from operator import mul
from random import Random
from statistics import fmean
from typing import NamedTuple

from rmgr.errors import RmgrError
from rmgr.sched.policies.buddy_fcfs import Buddies
from rmgr.sched.tree.rotation import Newcomers, Rotation, Row, phases_below
from rmgr.sched.tree.shape import AllocationRule, Loads, Tree, choose, longest_branch
from rmgr.sim.workload.jobs import stream

#: Number of slots of one simulation, and the lengths of tasks (papers.md 3.4).
SLOTS = 1_000_000
SHORTEST, LONGEST = 500, 19_999
#: A workload is drawn again until its realised load is this close to the requested one.
NEAR = 0.0005
_MOST_DRAWS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How the machine is shared. switch: fraction of each slot lost to switching, so a task needs length / (1 - switch) quanta."""

    allocation: AllocationRule = AllocationRule.BF_APA
    newcomers: Newcomers = Newcomers.THIS_ROUND
    switch: float = 0.0

    def quanta(self, length: int) -> int:
        """Returns the number of quanta that a task of this length needs, rounded up."""
        return length if not self.switch else -int(-length / (1 - self.switch) // 1)


@dataclass(slots=True)
class SlotsOutcome:
    """The result of a run of `slots` slots.

    ends: for each task the slot after its last one, or -1. used: processor-slots of partitions that ran a task; useful: processor-slots
    of the tasks' own sizes. most_tqlb: the largest value at any instant, without the root's queue as in the paper's print.
    tqlb: value, root included -> slots for which it was the maximum of the tree. breaches: tasks whose RETR exceeds section 5.2's bound.
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
        """Mean RETR of the tasks that ended; 0 if none did."""
        return fmean(self.retr) if self.retr else 0.0


def run(tasks: Sequence[Task], tree: Tree, slots: int, sharing: Sharing, *, count_messages: bool = False) -> SlotsOutcome:
    """Runs the tasks for `slots` slots.

    At one instant ends come first, then arrivals. Raises: ValueError for a task larger than the tree.
    Cost: each event costs the path of its tree node and some neighbours; time without events is free.
    """
    rotation, loads = Rotation(tree, sharing.newcomers), Loads(tree)
    out = SlotsOutcome(slots, tree.processors, [-1] * len(tasks), messages=Messages(sharing.allocation) if count_messages else None)
    change = loads.change if out.messages is None else partial(out.messages.change, loads)
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
            change(node, task.weight)
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
            change(node, -task.weight)
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
    """Computes RETR, the real execution time ratio (slots from arrival to end / slots needed), and counts those above their bound.

    The bound is the mean of max-TQLB (with root) over the task's stay + 2 x its maximum / length. Source: section 5.2 of the paper, which
    states only the mean. Differs from it in the last term: the beginning and the end of a stay are not whole rounds, and without the term
    7 % of tasks exceed the bound.
    """
    out.tqlb = history.lasting()
    for task, end in zip(tasks, out.ends, strict=True):
        if end >= 0:
            ratio = (end - task.arrival) / task.length
            mean, most = history.between(task.arrival, end)
            out.retr.append(ratio)
            out.breaches += ratio > mean + 2 * most / task.length + 1e-9


class _History:
    """The maximum of TQLB as a step function of time."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[int] = []
        self._sums: list[int] = []  # integral of the value up to each time

    def note(self, now: int, value: int) -> None:
        if self.times and self.times[-1] == now:
            self.values[-1] = value
            return
        self._sums.append(self._sums[-1] + self.values[-1] * (now - self.times[-1]) if self.times else 0)
        self.times.append(now)
        self.values.append(value)

    def between(self, start: int, end: int) -> tuple[float, int]:
        """Returns mean and maximum over [start, end)."""
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


def stepped(tasks: Sequence[Task], tree: Tree, slots: int, sharing: Sharing) -> tuple[list[int], int]:
    """Returns the end of each task (-1 if it did not end) and the processor-slots used. Cost: O(nodes) a slot."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch run. utilisation: of allocated blocks. longest_queue: most tasks that waited at one instant."""

    utilisation: float
    longest_queue: int


def run_batch(tasks: Sequence[Task], processors: int, slots: int) -> BatchResult:
    """Runs the tasks in batch on binary buddies. At one instant ends come first, then arrivals, then starts. Cost: O(tasks x log)."""
    free = Buddies(2, processors)
    queue: deque[Task] = deque()
    running: list[tuple[int, int, int]] = []  # (end, first processor, size)
    used = longest = at = 0
    now = 0
    while now < slots:
        while running and running[0][0] <= now:
            _, first, size = heappop(running)
            free.give(first, size)
        while at < len(tasks) and tasks[at].arrival <= now:
            queue.append(tasks[at])
            at += 1
        while queue:
            found = free.take(queue[0].size)
            if found is None:
                break
            task = queue.popleft()
            heappush(running, (now + task.length, found, task.size))
            used += 2 ** free.order(task.size) * (min(now + task.length, slots) - now)
        longest = max(longest, len(queue))
        now = min(running[0][0] if running else slots, tasks[at].arrival if at < len(tasks) else slots, slots)
    return BatchResult(utilisation=used / (processors * slots), longest_queue=longest)


class Task(NamedTuple):
    """One task. weight: number of its adjacent entries in a queue."""

    arrival: int
    size: int
    length: int
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Settings of a workload. largest: sizes are powers of two up to this; odd: all sizes from 1 on instead, with P(s) ~ 1/s.

    processors: size of the machine to which the load refers. weights: each task draws one of them.
    """

    processors: int
    load: float
    largest: int
    seed: int
    slots: int = SLOTS
    odd: bool = False
    weights: tuple[int, ...] = (1,)


def drawn(spec: Spec) -> list[Task]:
    """Draws tasks in order of arrival, with sum(size x length) / (P x T) within `NEAR` of the load.

    A run too short for that, in which one task weighs more, takes the nearest of 200 draws. Raises: RmgrError for an impossible load.
    """
    sizes, weights = _sizes(spec)
    mean_size = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    interval = mean_size * (SHORTEST + LONGEST) / 2 / (spec.load * spec.processors)
    count = max(int(spec.slots / interval), 1)
    capacity = spec.processors * spec.slots
    chance = stream(spec.seed, "tasks")
    coarse = spec.largest * LONGEST > NEAR * capacity
    best: tuple[float, list[int], list[int]] | None = None
    for draw in range(_MOST_DRAWS):
        drawn_sizes = chance.choices(sizes, weights, k=count)
        lengths = [SHORTEST + int(chance.random() * (LONGEST - SHORTEST + 1)) for _ in range(count)]
        off = abs(sum(map(mul, drawn_sizes, lengths)) / capacity - spec.load)
        if best is None or off < best[0]:
            best = off, drawn_sizes, lengths
        if best[0] <= NEAR or (coarse and draw >= 200 and best[0] <= 20 * NEAR):
            break
    if best is None or best[0] > 20 * NEAR:
        raise RmgrError(f"no workload of load {spec.load} was drawn for {spec.processors} processors and {spec.slots} slots")
    return [
        Task(int(at * interval), size, length, weight)
        for at, (size, length, weight) in enumerate(zip(best[1], best[2], _weights(spec, count), strict=True))
    ]


def _sizes(spec: Spec) -> tuple[list[int], list[float]]:
    sizes = list(range(1, spec.largest + 1)) if spec.odd else [1 << k for k in range(spec.largest.bit_length())]
    return sizes, [1 / size for size in sizes]


def _weights(spec: Spec, count: int) -> list[int]:
    if len(spec.weights) == 1:
        return [spec.weights[0]] * count
    chance: Random = stream(spec.seed, "weights")
    return chance.choices(spec.weights, k=count)


@dataclass(slots=True)
class Messages:
    """Message counts of one run. news: reports of children to parents after a task came or went."""

    allocation: AllocationRule
    tasks: int = 0
    add_task: int = 0
    news: int = 0
    _turns: float = 0.0
    _samples: int = 0

    @property
    def per_slot(self) -> float:
        """Mean number of next_turn messages and answers over the samples."""
        return self._turns / self._samples if self._samples else 0.0

    @property
    def per_task(self) -> float:
        """Number of add_task and news messages for each task."""
        return (self.add_task + self.news) / self.tasks if self.tasks else 0.0

    def change(self, loads: Loads, node: int, entries: int) -> None:
        """Changes the loads when a task enters the node's queue, or leaves it (entries < 0), and counts the messages."""
        path = loads.tree.path(node)
        before = [self._news(loads, at) for at in path]
        loads.change(node, entries)
        if entries > 0:
            self.tasks += 1
            self.add_task += len(path)  # one to the root, one along each edge
        if self.allocation is not AllocationRule.RR:
            changed = [self._news(loads, at) != old for at, old in zip(path, before, strict=True)]
            self.news += sum(changed[1:])  # the root reports to nobody

    def sample(self, tree: Tree, lengths: Mapping[int, int]) -> None:
        """Counts the turn messages of one round of the current tree. Cost: O(nodes)."""
        self._samples += 1
        if lengths:
            self._turns += turns(tree, lengths)

    def _news(self, loads: Loads, node: int) -> tuple[int, ...]:
        """Returns what a node reports to its parent under this policy."""
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
    """Returns next_turn messages and answers per slot while the tree does not change: two for each phase of each non-empty child."""
    rounds = longest_branch(tree, lengths)
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


# -- the front, slot by slot -------------------------------------------------------------------------------------------------


class Stepped:
    """A tree with its queues and its front, which advances one slot at a time. Cost of a slot: O(nodes).

    A node's round is one quantum for each entry of its own queue, then concurrent rounds of all non-empty children. A child that finishes
    early starts another round at once, which is cut off when the slowest child completes its first. Queues keep their order over a cut;
    a subtree that was cut off restarts at its own root.
    """

    def __init__(self, tree: Tree, newcomers: Newcomers = Newcomers.THIS_ROUND) -> None:
        self.tree, self.newcomers = tree, newcomers
        self.queues: list[list[int]] = [[] for _ in range(tree.nodes)]
        self.rest: dict[int, int] = {}  #: task -> quanta it still needs
        self.home: dict[int, int] = {}
        self.late: dict[int, list[int]] = {}  #: node -> entries waiting for the root's next round
        self._own = [0] * tree.nodes  # entries still to be served in this round; 0 while the children run
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
        """Removes the task. A round with nothing left to serve ends at once."""
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
        """Runs one slot and returns which tasks ran where. Tasks that got their last quantum are removed."""
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
        """Removes the task's entries; the round continues with the following ones."""
        own, queue = self._own[node], self.queues[node]
        left = sum(entry != task for entry in queue[:own])
        self.queues[node] = [entry for entry in queue if entry != task]
        self._own[node] = left
        if self._runs[node] and not left and (own or not any(self._runs[child] for child in self.tree.children(node))):
            self._enter(node)

    def _settled(self, node: int) -> bool:
        """Returns whether the node's round is over."""
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
        """Returns whether no queue of the subtree has an entry."""
        return not self.queues[node] and all(map(self.is_empty, self.tree.children(node)))
