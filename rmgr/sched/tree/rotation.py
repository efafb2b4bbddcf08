"""The front from event to event: `stepped.py` in closed form, evaluated lazily.

Between two events a subtree that nobody looks at only collects the phases that its parent gives it: slots of the phase it is in, and how
many finished phases of which length. They are passed on (`_settle`) when an event happens below, by the closed form of `rounds.py`. So an
event touches its path from the root and the siblings along it, and time passes at no cost.

How a running node stands is one of two things: *explicit* (`_cut` is false), settled earlier at some place of its round with `_ahead` slots
run since; or *fresh*, `_here` slots after its own beginning in the present phase. `_here` < 0: its parent does not run it.
"""

from __future__ import annotations

from rmgr.sched.tree.queue import Newcomers, RunQueue
from rmgr.sched.tree.rounds import Link, slots_until
from rmgr.sched.tree.shape import Tree

#: What runs in a slot: (tree node, task).
Row = list[tuple[int, int]]
#: Of every node that has had no task so far; nothing is ever put into it.
_EMPTY = RunQueue()


class Rotation:
    """A tree with its queues and its front at slot `now`.

    Attributes: rounds: R of each node, 0 where the subtree is empty; rounds[0] is the maximum of TQLB with the root.
    Cost: `advance` O(1); `add`, `remove`, `finish` O(height x width); `next_end` a few paths.
    """

    __slots__ = (
        "_ahead",
        "_begun",
        "_below",
        "_cut",
        "_done",
        "_due",
        "_here",
        "_late",
        "_left",
        "_own",
        "_passed",
        "_past",
        "home",
        "newcomers",
        "now",
        "queues",
        "rounds",
        "tree",
    )

    def __init__(self, tree: Tree, newcomers: Newcomers = Newcomers.THIS_ROUND) -> None:
        self.tree, self.newcomers = tree, newcomers
        self.now = 0
        self.queues = [_EMPTY] * tree.nodes  #: those that nobody has entered yet share one
        self.home: dict[int, int] = {}  #: task -> node
        self.rounds = [0] * tree.nodes
        self._late: dict[int, tuple[int, int, int, int]] = {}  # task -> node, quanta, weight, round in which it came
        self._begun = 0  # rounds of the root so far
        self._below = [0] * tree.nodes  # longest round of a child
        self._own = [0] * tree.nodes  # explicit: entries still to be served in this round, 0: the children run
        self._left = [0] * tree.nodes  # explicit: slots to the end of this round
        self._done = [False] * tree.nodes  # explicit: has completed a round in this phase
        self._ahead = [0] * tree.nodes
        self._cut = [True] * tree.nodes
        self._here = [-1] * tree.nodes
        self._past: list[dict[int, int] | None] = [None] * tree.nodes  # phases that are over: slots -> how many
        self._passed = [0] * tree.nodes  # slots that the node has run in all
        self._due = [0] * tree.nodes  # bound: no task of the subtree ends before the node has run so many

    def copy(self) -> Rotation:
        """An equal one that shares nothing that changes. Cost: O(nodes)."""
        new = object.__new__(Rotation)
        new.tree, new.newcomers, new.now, new._begun = self.tree, self.newcomers, self.now, self._begun
        new.home, new._late = dict(self.home), dict(self._late)
        new.queues = [queue if queue is _EMPTY else queue.copy() for queue in self.queues]
        new.rounds, new._below, new._own, new._left = self.rounds[:], self._below[:], self._own[:], self._left[:]
        new._done, new._ahead, new._cut, new._here = self._done[:], self._ahead[:], self._cut[:], self._here[:]
        new._past = [None if past is None else dict(past) for past in self._past]
        new._passed, new._due = self._passed[:], self._due[:]
        return new

    def fill(self, node: int, queue: RunQueue) -> None:
        """Puts a whole queue into a tree whose front is still to be set (`stand`)."""
        self.queues[node] = queue
        self.home |= dict.fromkeys(queue.entries, node)

    # -- time -----------------------------------------------------------------------------------------------------------------

    def advance(self, slots: int) -> None:
        """Time passes. Not beyond `next_end`, nor beyond the end of the root's round while newcomers wait: `finish` is to come first."""
        self.now += slots
        if self.rounds[0]:
            self._start()
            self._ahead[0] += slots
            self._passed[0] += slots

    def finish(self) -> list[int]:
        """Removes the tasks that have got all they need; newcomers are let in where the root begins a round."""
        tasks = self._finished(0) if self.rounds[0] and self._due[0] <= self._passed[0] else []
        for task in tasks:
            self.remove(task)
        self._let_in()
        return tasks

    def next_end(self, limit: int) -> int | None:
        """Slots from now to the first one after which a task has all it needs; None if that takes more than `limit` slots.

        While newcomers wait, their round's beginning counts as such an end: call `finish` there too.
        """
        if not self.rounds[0]:
            return None
        self._start()
        best = limit + 1
        if self._late:
            self._settle(0)
            best = min(best, self._left[0])
        if self._due[0] - self._passed[0] < best:
            best = self._search(0, best, [])
        return best if best <= limit else None

    def row(self) -> Row:
        """Who runs in the slot that begins now. Cost: O(nodes that the front crosses)."""
        row: Row = []
        if self.rounds[0]:
            self._start()
            self._row(0, row)
        return row

    # -- tasks ----------------------------------------------------------------------------------------------------------------

    def add(self, task: int, node: int, quanta: int, weight: int = 1) -> None:
        """The task enters the queue of the node, with `weight` adjacent entries. Cost: O(height x width).

        The first round of a tree that was empty begins with the next slot, or with the first look at it.
        """
        if self.newcomers is Newcomers.NEXT_ROUND and self._runs(0) and not self.queues[node]:
            self._settle(0)
            self._late[task] = (node, quanta, weight, self._begun)
            return
        self._insert(task, node, quanta, weight)

    def remove(self, task: int) -> int:
        """The task leaves; answers the quanta that it still needed. A round that has nothing left to serve is over at once."""
        if task in self._late:
            return self._late.pop(task)[1]
        node = self.home.pop(task)
        path = self._settle_path(node)
        queue, own = self.queues[node], self._own[node]
        rest = queue.rest()[task]
        running = self._runs(node)
        self._own[node] = queue.remove(task, own)
        if running and own and not self._own[node]:
            self._enter(node)
        self._mend(path)
        self._let_in()
        return rest

    def rest_of(self, task: int) -> int:
        """Quanta that the task still needs. Cost: O(height x width)."""
        if task in self._late:
            return self._late[task][1]
        node = self.home[task]
        self._settle_path(node)
        return self.queues[node].rest()[task]

    def prolong(self, task: int, quanta: int) -> None:
        """The task needs so many quanta from now on, whatever it needed before."""
        if task in self._late:
            node, _, weight, begun = self._late[task]
            self._late[task] = (node, quanta, weight, begun)
            return
        node = self.home[task]
        path = self._settle_path(node)
        self.queues[node].need(task, quanta)
        self._mend(path)

    def lengths(self) -> dict[int, int]:
        """Node -> entries of its queue, where there are any."""
        return {node: len(queue) for node, queue in enumerate(self.queues) if queue.entries}

    def late_tasks(self) -> tuple[tuple[int, int, int], ...]:
        """(task, node, weight) of newcomers that wait for the next round of the root, as they came."""
        return tuple((task, node, weight) for task, (node, _, weight, _) in self._late.items())

    def late_nodes(self) -> set[int]:
        """Nodes at which newcomers wait for the next round of the root."""
        return {node for node, _, _, _ in self._late.values()}

    def settle(self) -> None:
        """Brings every queue up to now. Cost: O(nodes)."""
        for node, length in enumerate(self.rounds):
            if length:
                self._settle(node)

    # -- a front as values ----------------------------------------------------------------------------------------------------------

    def front(self) -> tuple[tuple[int, int, bool], ...]:
        """Where every running node stands: (node, entries still to be served in this round, has completed one in this phase)."""
        self.settle()
        runs, front, width = {-1}, [], self.tree.width
        for node, length in enumerate(self.rounds):
            if length and not self._cut[node] and ((node - 1) // width in runs):
                runs.add(node)
                front.append((node, self._own[node], self._done[node]))
        return tuple(front)

    def stand(self, front: tuple[tuple[int, int, bool], ...]) -> None:
        """Puts the front where `front` said it stood, queues being as they were then. Nodes that are empty now are passed over."""
        self.settle()
        for node in range(self.tree.nodes):
            self._cut[node], self._here[node], self._own[node], self._past[node], self._ahead[node] = True, -1, 0, None, 0
        filled = set().union(*(self.tree.path(node) for node, queue in enumerate(self.queues) if queue.entries))
        for node, own, done in front:
            if node in filled:
                self._cut[node], self._done[node], self._own[node] = False, done, min(own, len(self.queues[node]))
                self._ahead[node] = 0
        for node in range(self.tree.nodes - 1, -1, -1):
            low = self.tree.width * node + 1
            if self.queues[node].entries or (low < self.tree.nodes and any(self.rounds[low : low + self.tree.width])):
                self._mend([node])

    def _insert(self, task: int, node: int, quanta: int, weight: int) -> None:
        self.home[task] = node
        path = self._settle_path(node)
        if self.queues[node] is _EMPTY:
            self.queues[node] = RunQueue()
        self.queues[node].add(task, quanta, weight)
        self._mend(path)

    def _let_in(self) -> None:
        """Newcomers enter once the root has begun another round since they came; that round begins with them."""
        if not self._late:
            return
        self._settle(0)
        due = [task for task, (_, _, _, begun) in self._late.items() if begun != self._begun or not self.rounds[0]]
        for task in due:
            node, quanta, weight, _ = self._late.pop(task)
            self._insert(task, node, quanta, weight)
        if due:
            self._stop(0)
            self._mend([0])
            self._start()

    def _start(self) -> None:
        """The root begins a round, unless it is in one."""
        if self.rounds[0] and not self._runs(0):
            self._cut[0], self._done[0] = False, False
            self._begin(0, 0, self._kids(0))

    # -- passing on what was collected ------------------------------------------------------------------------------------------------

    def _settle_path(self, node: int) -> list[int]:
        path = self.tree.path(node)
        for at in path:
            self._settle(at)
        return path

    def _settle(self, node: int) -> None:
        """The node's own queue is up to now, its children have collected what is theirs. Its parent is settled."""
        ahead, cut, here, past = self._ahead[node], self._cut[node], self._here[node], self._past[node]
        if cut and here < 0 and past is None and not ahead:
            return
        if not cut and not ahead:
            return
        queue = self.queues[node]
        length, kids = len(queue.entries), self._kids(node)
        round_length, below = self.rounds[node], self._below[node]
        turns = 0
        if ahead:
            self._ahead[node] = 0
            turns, ahead = self._go_on(node, ahead, kids)
            if ahead >= 0:  # its round was over: the rest from its own beginning
                if cut:
                    if ahead:
                        past = past or {}
                        past[ahead] = past.get(ahead, 0) + 1
                else:
                    self._done[node] = True
                    here = ahead
            elif not cut:
                queue.turns += turns
                return
        if cut and (past is not None or here >= 0 or ahead):
            for child in kids:  # what they were in is over
                self._halt(child)
        self._past[node] = None
        if past is not None:
            for slots, times in past.items():
                rounds, rest = divmod(slots, round_length)
                turns += times * (rounds * length + min(rest, length))
                if rounds and below:
                    self._collect(kids, below, rounds * times)
                if rest > length:
                    self._collect(kids, rest - length, times)
        if here >= 0:
            if cut:
                self._cut[node], self._done[node] = False, here >= round_length
            self._here[node] = -1
            turns += self._begin(node, here, kids)
        else:
            self._own[node] = 0
        queue.turns += turns

    def _go_on(self, node: int, slots: int, kids: list[int]) -> tuple[int, int]:
        """Runs an explicit node on, to the end of its round at most: quanta of its queue, and slots left over (-1: the round goes on)."""
        own, left, turns = self._own[node], self._left[node], 0
        over = slots - left
        if own:
            turns = min(own, slots)
            self._own[node] = own - turns
            slots -= turns
            left -= turns
            if own == turns and left:
                for child in kids:
                    self._here[child] = 0
        if slots and left:
            ran = min(slots, left)
            for child in kids:
                self._run(child, ran)
            left -= ran
        self._left[node] = left
        if over < 0:
            return turns, -1
        for child in kids:
            self._halt(child)
        return turns, over

    def _begin(self, node: int, slots: int, kids: list[int]) -> int:
        """The node is `slots` after its own beginning: quanta of its queue since; its children are made to stand as they then do."""
        length, round_length, below = len(self.queues[node].entries), self.rounds[node], self._below[node]
        rounds, rest = divmod(slots, round_length)
        if not node:
            self._begun += rounds + 1
        if rounds and below:
            self._collect(kids, below, rounds)
        self._left[node] = round_length - rest
        if rest < length:
            self._own[node] = length - rest
            return rounds * length + rest
        self._own[node] = 0
        for child in kids:
            self._here[child] = rest - length
            self._passed[child] += rest - length
        return rounds * length + length

    def _kids(self, node: int) -> list[int]:
        rounds = self.rounds
        return [child for child in self.tree.children(node) if rounds[child]]

    def _run(self, node: int, slots: int) -> None:
        """The parent's phase goes on, for a child that it runs."""
        if not self._cut[node]:
            self._ahead[node] += slots
        elif self._here[node] >= 0:
            self._here[node] += slots
        else:
            return
        self._passed[node] += slots

    def _halt(self, node: int) -> None:
        """The parent's phase is over."""
        if not self._cut[node]:
            self._cut[node] = True
        elif self._here[node] > 0:
            past = self._past[node]
            if past is None:
                past = self._past[node] = {}
            past[self._here[node]] = past.get(self._here[node], 0) + 1
        self._here[node] = -1

    def _collect(self, kids: list[int], slots: int, times: int) -> None:
        for child in kids:
            past = self._past[child]
            if past is None:
                self._past[child] = {slots: times}
            else:
                past[slots] = past.get(slots, 0) + times
            self._passed[child] += slots * times

    # -- after a change -----------------------------------------------------------------------------------------------------------------

    def _runs(self, node: int) -> bool:
        return not self._cut[node] or self._here[node] >= 0

    def _stop(self, node: int) -> None:
        """A settled node: its parent does not run it."""
        self._cut[node], self._here[node], self._own[node] = True, -1, 0
        for child in self.tree.children(node):
            if self._runs(child):
                self._halt(child)

    def _enter(self, node: int) -> None:
        """A settled node: its children begin."""
        for child in self._kids(node):
            self._halt(child)
            self._here[child] = 0

    def _remaining(self, node: int) -> int:
        """Slots until a running child has completed a round in this phase; 0: it has."""
        if self._cut[node]:
            return max(self.rounds[node] - self._here[node], 0)
        return 0 if self._done[node] else max(self._left[node] - self._ahead[node], 0)

    def _mend(self, path: list[int]) -> None:
        """Rounds, fronts and bounds of settled nodes, from the last to the first, whose queues or children have changed."""
        rounds = self.rounds
        for node in reversed(path):
            below = 0
            for child in self.tree.children(node):
                below = max(below, rounds[child])
            length = len(self.queues[node].entries)
            self._below[node] = below
            rounds[node] = length + below
            if not rounds[node]:
                self._stop(node)
                continue
            if self._runs(node):
                self._find_left(node, below)
            self._bound(node)

    def _find_left(self, node: int, below: int) -> None:
        if self._own[node]:
            self._left[node] = self._own[node] + below
            return
        left = 0
        for child in self.tree.children(node):
            if self._runs(child):
                if self.rounds[child]:
                    left = max(left, self._remaining(child))
                else:
                    self._stop(child)
        if not left:  # nothing is left to serve: the next round
            kids = self._kids(node)
            for child in kids:
                self._halt(child)
            self._done[node] = True
            self._begin(node, 0, kids)
        else:
            self._left[node] = left

    # -- who ends first -----------------------------------------------------------------------------------------------------------------

    def _bound(self, node: int) -> None:
        """No task of the subtree ends before the (settled) node has run `_due` slots, whatever happens outside the subtree.

        A queue gets at most one quantum a slot; a child at most `_below` slots a phase, with the own queue in between.
        """
        queue = self.queues[node]
        length = len(queue.entries)
        due = queue.first_end - queue.turns if length else 1 << 62
        for child in self.tree.children(node):
            if self.rounds[child]:
                due = min(due, self._of_child(node, child, length))
        self._due[node] = self._passed[node] + max(due, 0)

    def _of_child(self, node: int, child: int, length: int) -> int:
        """Slots that the node runs before a task of the child's subtree can end."""
        due = self._due[child] - self._passed[child]
        if due <= 0 or not length:
            return due
        if not self._runs(node):
            phase, slots = 0, due
        elif self._own[node]:
            phase, slots = self._below[node], due + self._own[node]
        else:
            phase, slots = self._left[node], due
        return slots + -(-(due - phase) // self._below[node]) * length if due > phase else slots

    def _search(self, node: int, best: int, chain: list[Link]) -> int:
        """The least of `best` and the slots to the first end in the subtree; bounds met on the way are made sharper."""
        self._settle(node)
        queue = self.queues[node]
        length = len(queue.entries)
        chain.append((length, self.rounds[node], self._own[node], self._left[node], self._runs(node)))
        if length and queue.first_end - queue.turns < best:
            best = min(best, slots_until(chain, queue.first_end - queue.turns))
        for child in self.tree.children(node):
            if self.rounds[child] and self._of_child(node, child, length) < best:
                best = self._search(child, best, chain)
        chain.pop()
        self._bound(node)
        return best

    def _finished(self, node: int) -> list[int]:
        self._settle(node)
        queue = self.queues[node]
        tasks = queue.finished()
        for child in self.tree.children(node):
            if self.rounds[child] and self._due[child] <= self._passed[child]:
                tasks += self._finished(child)
        return tasks

    def _row(self, node: int, row: Row) -> None:
        self._settle(node)
        if self._own[node]:
            row.append((node, self.queues[node].look()[0]))
            return
        for child in self.tree.children(node):
            if self.rounds[child] and self._runs(child):
                self._row(child, row)
