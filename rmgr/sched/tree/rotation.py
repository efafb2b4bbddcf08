"""Run queues and the front that crosses them, from event to event: the rule of `Stepped` (`sim/gangs.py`) in closed form, evaluated lazily.

A node with a queue of L entries has a round of R = L + D slots, where D is the longest round of its non-empty children (0 without any).
In the D slots of a round every child runs from its own beginning, starts over if it finishes early, and is cut off after D slots. So the
quanta that a run of X slots gives to a queue and to its children are known without stepping (`phases_below`, `slots_until`;
checked by brute force against `Stepped` in `tests/property/test_queue_tree.py`).

Between two events a subtree that is not looked at only collects the phases that its parent gives it: slots of the phase it is in, and the
number of finished phases of each length. `_settle` passes them on by that closed form when an event happens below. So an event touches
only its path from the root and the siblings along it, and passing time costs nothing.

A running node is in one of two states: *explicit* (`_cut` is false), settled earlier at some place of its round with `_ahead` slots run
since; or *fresh*, `_here` slots after its own beginning in the current phase. `_here` < 0: its parent does not run it.

States of a node (figure 2 of the paper: its arrows are lost, its four descriptions are in the text): a node is *above the front* when its
queue has been served in this round, *below* it when the front is still to come. A node with tasks is Rounded above the front and Ready
below it. Under `next_round` a node whose queue was empty is Rounded from the arrival of a task to the end of the root's round, on either
side of the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from rmgr.sched.tree.shape import Tree

#: The (tree node, task) pairs that run in a slot.
Row = list[tuple[int, int]]
#: Phases of one child: (slots of each, number of them).
Phases: TypeAlias = list[tuple[int, int]]
#: A node within its round: L, R, entries still to be served (0: its children run), slots to the end of the round, whether it runs.
Link: TypeAlias = tuple[int, int, int, int, bool]


class Newcomers(StrEnum):
    """When a task that comes to an empty queue is first served. `next_round`: once the root begins its next round."""

    THIS_ROUND = "this_round"
    NEXT_ROUND = "next_round"


class RunQueue:
    """Entries in a ring, in order of service, with as many adjacent entries per task as its weight; time passes in quanta of the queue.

    `turns` quanta have been handed out; entries are moved only when they are looked at.

    Cost: handing out any number of quanta O(1); a change or a look at the order O(entries).
    """

    __slots__ = ("_at", "_rest", "entries", "first_end", "turns")

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.turns = 0  #: quanta handed out so far
        self.first_end = -1  #: `turns` when the first task has all it needs; -1: the queue is empty
        self._at = 0  # `turns` for which `entries` and `_rest` hold
        self._rest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, task: int) -> bool:
        return task in self._rest

    def add(self, task: int, quanta: int, weight: int) -> None:
        """Adds the task at the tail."""
        self.append(task, quanta, weight)
        self._find_end()

    def append(self, task: int, quanta: int, weight: int) -> None:
        """Adds more entries at the tail, even of a task that is already in the queue (its entries are then not adjacent)."""
        self.look()
        self._rest[task] = quanta
        self.entries.extend([task] * weight)

    def need(self, task: int, quanta: int) -> None:
        """Sets the quanta that the task needs from now on. Raises: KeyError for a task that is not in the queue."""
        self.look()
        if task not in self._rest:
            raise KeyError(task)
        self._rest[task] = quanta
        self._find_end()

    def copy(self) -> RunQueue:
        """Returns an equal queue."""
        new = RunQueue()
        new.entries, new._rest = self.entries[:], dict(self._rest)
        new.turns, new.first_end, new._at = self.turns, self.first_end, self._at
        return new

    def close(self) -> RunQueue:
        """Ends a series of `append`; returns the queue."""
        self._find_end()
        return self

    def remove(self, task: int, within: int = 0) -> int:
        """Removes the task; returns how many of the first `within` entries are left. Raises: KeyError for a task not in the queue."""
        self.look()
        del self._rest[task]
        left = sum(entry != task for entry in self.entries[:within])
        self.entries = [entry for entry in self.entries if entry != task]
        self._find_end()
        return left

    def finished(self) -> list[int]:
        """Returns the tasks that have all they need, in order of service."""
        if not self.entries or self.first_end > self.turns:
            return []
        self.look()
        return [task for task in dict.fromkeys(self.entries) if self._rest[task] <= 0]

    def look(self) -> Sequence[int]:
        """Returns the entries as they stand now."""
        passed, self._at = self.turns - self._at, self.turns
        if passed and self.entries:
            rounds, ahead = divmod(passed, len(self.entries))
            rest = self._rest
            if rounds:
                for task in self.entries:
                    rest[task] -= rounds
            for task in self.entries[:ahead]:
                rest[task] -= 1
            if ahead:
                self.entries = self.entries[ahead:] + self.entries[:ahead]
        return self.entries

    def rest(self) -> dict[int, int]:
        """Returns task -> quanta that it still needs."""
        self.look()
        return self._rest

    def _find_end(self) -> None:
        """Finds when the first task ends if nothing changes: its last quantum is that of its entry (rest - 1) mod weight, rounds later."""
        length, first = len(self.entries), -1
        if len(self._rest) == length:
            for at, task in enumerate(self.entries):
                end = (self._rest[task] - 1) * length + at + 1
                if first < 0 or end < first:
                    first = end
        else:
            places: dict[int, list[int]] = {}
            for at, task in enumerate(self.entries):
                places.setdefault(task, []).append(at)
            for task, found in places.items():
                rounds, last = divmod(self._rest[task] - 1, len(found))
                end = rounds * length + found[last] + 1
                if first < 0 or end < first:
                    first = end
        self.first_end = first if first < 0 else self.turns + max(first, 0)


#: Shared by all nodes that have had no task so far; nothing is ever put into it.
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
        self.queues = [_EMPTY] * tree.nodes  #: nodes not entered yet share one
        self.home: dict[int, int] = {}  #: task -> node
        self.rounds = [0] * tree.nodes
        self._late: dict[int, tuple[int, int, int, int]] = {}  # task -> node, quanta, weight, round in which it came
        self._begun = 0  # rounds of the root so far
        self._below = [0] * tree.nodes  # longest round of a child
        self._own = [0] * tree.nodes  # explicit: entries still to be served in this round; 0: the children run
        self._left = [0] * tree.nodes  # explicit: slots to the end of this round
        self._done = [False] * tree.nodes  # explicit: has completed a round in this phase
        self._ahead = [0] * tree.nodes
        self._cut = [True] * tree.nodes
        self._here = [-1] * tree.nodes
        self._past: list[dict[int, int] | None] = [None] * tree.nodes  # finished phases: slots -> number of them
        self._passed = [0] * tree.nodes  # total slots that the node has run
        self._due = [0] * tree.nodes  # bound: no task of the subtree ends before the node has run this many slots

    def copy(self) -> Rotation:
        """Returns an equal rotation that shares no mutable state with this one. Cost: O(nodes)."""
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
        """Puts a whole queue into a tree whose front will be set afterwards (`stand`)."""
        self.queues[node] = queue
        self.home |= dict.fromkeys(queue.entries, node)

    # -- time -----------------------------------------------------------------------------------------------------------------

    def advance(self, slots: int) -> None:
        """Lets time pass. Not past `next_end`, nor past the end of the root's round while newcomers wait: call `finish` there first."""
        self.now += slots
        if self.rounds[0]:
            self._start()
            self._ahead[0] += slots
            self._passed[0] += slots

    def finish(self) -> list[int]:
        """Removes and returns the tasks that have all they need; lets newcomers in where the root begins a round."""
        tasks = self._finished(0) if self.rounds[0] and self._due[0] <= self._passed[0] else []
        for task in tasks:
            self.remove(task)
        self._let_in()
        return tasks

    def next_end(self, limit: int) -> int | None:
        """Returns the slots from now to the first slot after which a task has all it needs; None if more than `limit`.

        While newcomers wait, the beginning of their round counts as an end: call `finish` there too.
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
        """Returns what runs in the slot that begins now. Cost: O(nodes that the front crosses)."""
        row: Row = []
        if self.rounds[0]:
            self._start()
            self._row(0, row)
        return row

    # -- tasks ----------------------------------------------------------------------------------------------------------------

    def add(self, task: int, node: int, quanta: int, weight: int = 1) -> None:
        """Puts the task into the node's queue, with `weight` adjacent entries. Cost: O(height x width).

        The first round of a tree that was empty begins with the next slot, or with the first look at it.
        """
        if self.newcomers is Newcomers.NEXT_ROUND and self._runs(0) and not self.queues[node]:
            self._settle(0)
            self._late[task] = (node, quanta, weight, self._begun)
            return
        self._insert(task, node, quanta, weight)

    def remove(self, task: int) -> int:
        """Removes the task; returns the quanta that it still needed. A round with nothing left to serve is over at once."""
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
        """Returns the quanta that the task still needs. Cost: O(height x width)."""
        if task in self._late:
            return self._late[task][1]
        node = self.home[task]
        self._settle_path(node)
        return self.queues[node].rest()[task]

    def prolong(self, task: int, quanta: int) -> None:
        """Sets the quanta that the task needs from now on, whatever it needed before."""
        if task in self._late:
            node, _, weight, begun = self._late[task]
            self._late[task] = (node, quanta, weight, begun)
            return
        node = self.home[task]
        path = self._settle_path(node)
        self.queues[node].need(task, quanta)
        self._mend(path)

    def lengths(self) -> dict[int, int]:
        """Returns node -> entries of its queue, for queues that have any."""
        return {node: len(queue) for node, queue in enumerate(self.queues) if queue.entries}

    def late_tasks(self) -> tuple[tuple[int, int, int], ...]:
        """Returns (task, node, weight) of newcomers that wait for the root's next round, in order of arrival."""
        return tuple((task, node, weight) for task, (node, _, weight, _) in self._late.items())

    def settle(self) -> None:
        """Brings every queue up to now. Cost: O(nodes)."""
        for node, length in enumerate(self.rounds):
            if length:
                self._settle(node)

    # -- a front as values ------------------------------------------------------------------------------------------------------

    def front(self) -> tuple[tuple[int, int, bool], ...]:
        """Returns the place of every running node: (node, entries still to be served in this round, has completed one in this phase)."""
        self.settle()
        runs, front, width = {-1}, [], self.tree.width
        for node, length in enumerate(self.rounds):
            if length and not self._cut[node] and ((node - 1) // width in runs):
                runs.add(node)
                front.append((node, self._own[node], self._done[node]))
        return tuple(front)

    def stand(self, front: tuple[tuple[int, int, bool], ...]) -> None:
        """Puts the front where `front()` said it was, with the queues as they were then. Nodes that are empty now are skipped."""
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
        """Lets newcomers in once the root has begun another round since they came; that round begins with them."""
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
        """Begins a round of the root, unless it is in one."""
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
        """Brings the node's own queue up to now and hands its children the phases they collected. Its parent must be settled."""
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
            if ahead >= 0:  # its round is over: the rest counts from its own beginning
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
            for child in kids:  # their current phase is over
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
        """Runs an explicit node on, at most to the end of its round. Returns its queue's quanta and the slots left (-1: round goes on)."""
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
        """Puts the node `slots` after its own beginning and its children where they then are. Returns the quanta of its queue since."""
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
        """Continues the parent's phase for a child that it runs."""
        if not self._cut[node]:
            self._ahead[node] += slots
        elif self._here[node] >= 0:
            self._here[node] += slots
        else:
            return
        self._passed[node] += slots

    def _halt(self, node: int) -> None:
        """Ends the parent's phase for the child."""
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
        """Stops a settled node: its parent does not run it."""
        self._cut[node], self._here[node], self._own[node] = True, -1, 0
        for child in self.tree.children(node):
            if self._runs(child):
                self._halt(child)

    def _enter(self, node: int) -> None:
        """Begins the children of a settled node."""
        for child in self._kids(node):
            self._halt(child)
            self._here[child] = 0

    def _remaining(self, node: int) -> int:
        """Returns the slots until a running child has completed a round in this phase; 0 if it has."""
        if self._cut[node]:
            return max(self.rounds[node] - self._here[node], 0)
        return 0 if self._done[node] else max(self._left[node] - self._ahead[node], 0)

    def _mend(self, path: list[int]) -> None:
        """Updates rounds, fronts and bounds of settled nodes, from last to first, after their queues or children have changed."""
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
        if not left:  # nothing is left to serve: begin the next round
            kids = self._kids(node)
            for child in kids:
                self._halt(child)
            self._done[node] = True
            self._begin(node, 0, kids)
        else:
            self._left[node] = left

    # -- the first end ----------------------------------------------------------------------------------------------------------

    def _bound(self, node: int) -> None:
        """Sets `_due` of a settled node: no task of the subtree ends before the node has run this long, whatever happens elsewhere.

        A queue gets at most one quantum a slot; a child gets at most `_below` slots a phase, with the own queue in between.
        """
        queue = self.queues[node]
        length = len(queue.entries)
        due = queue.first_end - queue.turns if length else 1 << 62
        for child in self.tree.children(node):
            if self.rounds[child]:
                due = min(due, self._of_child(node, child, length))
        self._due[node] = self._passed[node] + max(due, 0)

    def _of_child(self, node: int, child: int, length: int) -> int:
        """Returns the slots that the node runs before a task of the child's subtree can end."""
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
        """Returns the minimum of `best` and the slots to the first end in the subtree; tightens the bounds on its way."""
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


def phases_below(slots: int, length: int, round_length: int) -> Phases:
    """Returns each non-empty child's phases meanwhile: floor(X/R) of R - L slots, then one of (X mod R) - L if that is above 0."""
    rounds, rest = divmod(slots, round_length)
    phases = [(round_length - length, rounds)] if rounds and round_length > length else []
    return [*phases, (rest - length, 1)] if rest > length else phases


def slots_until(links: Sequence[Link], quanta: int) -> int:
    """Returns the slots from now until the last queue has got `quanta` quanta, in a tree that does not change.

    Args: links: every node from the root down to the queue's own, as it stands now. Cost: O(links squared).
    """
    pairs = [(link[0], link[1]) for link in links]
    per_phase = _per_phase(pairs)
    slots, last = 0, len(links) - 1
    for at, (_, _, own, left, _) in enumerate(links):
        if at == last:
            return slots + quanta if quanta <= own else slots + left + _slots_until_quanta(pairs, per_phase, at, quanta - own)
        if own:
            got = per_phase[at + 1]
            if quanta <= got:
                return slots + own + _slots_until_quanta(pairs, per_phase, at + 1, quanta)
        else:
            got = _quanta_from_now(links, pairs, per_phase, at + 1, left) if links[at + 1][4] else 0
        if quanta > got:
            return slots + left + _slots_until_quanta(pairs, per_phase, at, quanta - got)
    raise ValueError("a chain of no nodes has no queue")


def _quanta_from_now(links: Sequence[Link], pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, slots: int) -> int:
    """Returns the quanta of the last queue while the running node at this place runs on for `slots`."""
    got = 0
    while True:
        _, _, own, left, _ = links[at]
        if slots >= left:
            got += _quanta_from_start(pairs, per_phase, at, slots - left)
            slots = left
        if at == len(links) - 1:
            return got + min(own, slots)
        slots -= own
        if slots <= 0:
            return got
        if own:
            return got + _quanta_from_start(pairs, per_phase, at + 1, slots)
        if not links[at + 1][4]:
            return got
        at += 1


def _per_phase(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the quanta of the last queue in a full phase of the node at each place (0 for the first, which has no phases)."""
    found = [0] * len(pairs)
    for at in range(len(pairs) - 1, 0, -1):
        length, round_length = pairs[at - 1]
        found[at] = _quanta_from_start(pairs, found, at, round_length - length)
    return found


def _quanta_from_start(pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, slots: int) -> int:
    """Returns the quanta of the last queue in `slots` from the beginning of the node at this place."""
    got, last = 0, len(pairs) - 1
    while True:
        length, round_length = pairs[at]
        rounds, slots = divmod(slots, round_length)
        if at == last:
            return got + rounds * length + min(slots, length)
        got += rounds * per_phase[at + 1]
        slots -= length
        if slots <= 0:
            return got
        at += 1


def _slots_until_quanta(pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, quanta: int) -> int:
    """Returns the slots from the beginning of the node at this place until the last queue has got `quanta` quanta."""
    slots, last = 0, len(pairs) - 1
    while at < last:
        length, round_length = pairs[at]
        rounds = (quanta - 1) // per_phase[at + 1]
        quanta -= rounds * per_phase[at + 1]
        slots += rounds * round_length + length
        at += 1
    length, round_length = pairs[last]
    rounds, rest = divmod(quanta - 1, length)
    return slots + rounds * round_length + rest + 1


class TreeNodeState(StrEnum):
    """State of a tree node; `docs/policies.md` has the diagram of its changes."""

    IDLE = "Idle"
    READY = "Ready"
    ROUNDING = "Rounding"
    ROUNDED = "Rounded"


_I, _Y, _G, _D = TreeNodeState.IDLE, TreeNodeState.READY, TreeNodeState.ROUNDING, TreeNodeState.ROUNDED


def states_of(rotation: Rotation) -> list[TreeNodeState]:
    """Returns the state of every node at the beginning of the current slot. Cost: O(nodes)."""
    tree = rotation.tree
    own = {node: left for node, left, _ in rotation.front()}
    idle = 0 not in own  # no round has begun: the front is still to come everywhere
    late = {node for _, node, _ in rotation.late_tasks()}
    states: list[TreeNodeState] = []
    heads: list[TreeNodeState] = []  # for each node: the state of a node below it that does not run
    for node in range(tree.nodes):
        above = heads[(node - 1) // tree.width] if node else _Y if idle else _D
        if node in own:
            heads.append(_Y if own[node] else _D)
            mine = _G if own[node] else _D
        else:
            heads.append(above)
            mine = above
        if rotation.queues[node]:
            states.append(mine)
        else:
            states.append(_D if node in late else _I)
    return states
