"""Slots of one node, computed from the record of a gang: everybody who reads it computes the same ones, however late. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rmgr.model.cluster.gang import GangRecord
from rmgr.model.tasks.placing import run_label, task_of
from rmgr.sched.capacity.gangs import Carousel
from rmgr.sched.records import Gang
from rmgr.sched.tree.rotation import Rotation, Row
from rmgr.sched.tree.shape import Tree


class SlotRow(NamedTuple):
    """parts: names (`run_label`) of the attempts that have cores of this node in the slot that begins at start_us of gang time."""

    start_us: int
    parts: tuple[str, ...]


class Timetable:
    """What one generation of a record says of one node. Cost: O(nodes of the tree) to make, O(front) a slot."""

    def __init__(self, record: GangRecord, node: str) -> None:
        """Raises: ValueError for a record that is no tree."""
        self.record = record
        self._carousel = Carousel(numbered(record))
        self.names = {run_label(*task_of(job), attempt): job for job, attempt, _ in record.attempts}  #: of attempts -> the scheduler's id
        self._named = {job: name for name, job in self.names.items()}
        self._low = self._high = 0  # this node's leaves
        for name, cores in record.leaves:
            if name == node:
                self._high = self._low + cores
                break
            self._low += cores
        if not self._high:
            self._low = 0
        self._here: dict[int, bool] = {}  # tree node -> it has leaves of this node
        self.slot = record.slot  #: the next one to be computed

    def start_us(self, slot: int) -> int:
        """When it begins, in gang time."""
        return self.record.origin_us + slot * self.record.slot_us

    def skip_to(self, slot: int) -> None:
        """Rows before this slot are not asked for any more: nobody counts the slots that a record has seen since it was set."""
        self.slot = max(self.slot, slot)

    @property
    def tree(self) -> Tree:
        """Partitions of the gang's cores."""
        return self._carousel.tree

    @property
    def rotation(self) -> Rotation:
        """Queues and front at the next slot. Read it only."""
        self._carousel.advance_to(self.slot)
        return self._carousel.rotation

    @property
    def round_slots(self) -> int:
        """Slots of a round of the whole tree: each job has one of so many at least."""
        return self._carousel.rotation.rounds[0]

    def row(self) -> Row:
        """(tree node, job) of the next slot, on all nodes."""
        return self.rotation.row()

    def next(self) -> SlotRow:
        """The row of the next slot, on this node."""
        there = [self._named[job] for node, job in self.row() if self._is_here(node) and job in self._named]
        found = SlotRow(self.start_us(self.slot), tuple(there))
        self.slot += 1
        return found

    def cores_of(self, part: str) -> tuple[int, int] | None:
        """(first, how many) of this node's cores that the part's partition has; None: the record does not have it here."""
        job = self.names.get(part)
        if job is None or job not in self._carousel:
            return None
        low, high = self._carousel.tree.span(self._carousel.node_of(job))
        low, high = max(low, self._low), min(high, self._high)
        return (low - self._low, high - low) if low < high else None

    def _is_here(self, node: int) -> bool:
        found = self._here.get(node)
        if found is None:
            low, high = self._carousel.tree.span(node)
            found = self._here[node] = max(low, self._low) < min(high, self._high)
        return found


def numbered(record: GangRecord) -> Gang:
    """The scheduler's record of a gang whose nodes are numbered from the left, of no partition."""
    return Gang(
        name=record.policy,
        slot_us=record.slot_us,
        origin_us=record.origin_us,
        slot=record.slot,
        width=record.width,
        leaves=tuple((at, at, cores) for at, (_, cores) in enumerate(record.leaves)),
        queues=record.queues,
        front=record.front,
        late=record.late,
        next_round=record.next_round,
        memory_share=record.memory_share,
    )
