"""Orders from the inbox of a node: cancel, signal, suspend, resume, update. Each is crossed off with the commit that obeys it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.coord.decisions.changing import limit_of_running
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Outcome
from rmgr.coord.seal import NotSealed
from rmgr.coord.validity import decode
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import Quietly
from rmgr.daemons.starter.core.submissions import Admission, Info
from rmgr.errors import CoordinationUnavailable, RmgrError
from rmgr.model.block import BlockKey
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.states import CANCELS, Reason
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story, insist

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: How long an unbroken watch is trusted; then the inbox is listed again.
_RESYNC_S = 20.0
_FAILED_PAUSE_S = 0.5
#: A START is crossed off with the COMPLETE of its job, or by itself (up to `_TOGETHER` in a commit) once the job has run this long (s).
#: While it stands the job is STARTING (`coord/views/answers.py`).
_START_S, _TOGETHER = 0.5, 50
#: Pause before an unreadable record is read again; pause between two checks whether a change may be believed.
_PAUSE_S, _BELIEF_S = 1.0, 0.05


@dataclass(slots=True, eq=False)
class _Active:
    """An order that is not yet crossed off. crossing: the commit that deletes it is in flight. starts: the block of a START."""

    guid: str
    order: InboxOrder
    starts: BlockKey | None = None
    since_s: float = -math.inf
    crossing: bool = False


class Inbox:
    """The inbox of one node."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.active: dict[str, _Active] = {}
        self._starts: dict[BlockKey, _Active] = {}  #: STARTs by block, the first for each block, oldest first
        self._others: dict[str, _Active] = {}
        self._has_stray = False  #: a START may belong to a block that is not here
        self._reading: set[str] = set()
        self._unreadable: set[str] = set()
        self._listing = False
        self._watched = False
        self._listed_s = -math.inf
        self._generation = 0

    def reset(self) -> None:
        """Forgets everything after a new registration: the inbox is read again."""
        self._generation += 1
        self.active.clear()
        self._starts.clear()
        self._others.clear()
        self._has_stray = False
        self._reading.clear()
        self._listing = self._watched = False

    @property
    def is_settled(self) -> bool:
        """Whether all orders in the inbox are known here, as far as watches show."""
        return self._watched and not self._listing and not self._reading

    # -- calls of the node -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Lists the inbox if no watch stands, and crosses off orders for which nothing is left to do here."""
        now_s = machine.monotonic()
        if not self._listing and (not self._watched or now_s - self._listed_s > _RESYNC_S) and now_s >= self._listed_s:
            self._list(now_s)
        if not self.active:
            return
        due = [active for active in self._others.values() if self._is_due(active, now_s)]
        if self._starts and (self._has_stray or now_s >= next(iter(self._starts.values())).since_s + _START_S):
            self._has_stray = False
            blocks = self._node.blocks
            for active in self._starts.values():
                if self._is_due(active, now_s):
                    due.append(active)
                elif not active.crossing and active.starts not in blocks:
                    self._has_stray = True
            for active in [active for active in self._starts.values() if self._has_not_begun(active, now_s)]:
                del self._starts[active.starts]  # type: ignore[arg-type]  # in the order in which they come up again
                active.since_s, self._starts[active.starts] = now_s, active  # type: ignore[index]
        starts = [active for active in due if active.starts is not None]
        for at in range(0, len(starts), _TOGETHER):
            self._node.stories.begin(self._cross_off(starts[at : at + _TOGETHER]))
        for active in due:
            if active.starts is None:
                self._node.stories.begin(self._cross_off([active]))

    def _has_not_begun(self, active: _Active, now_s: float) -> bool:
        """Returns whether its job is here, still waits, and was last checked long ago."""
        block = self._node.blocks.get(active.starts) if active.starts is not None else None
        return block is not None and bool(block.ready) and now_s >= active.since_s + _START_S

    def _is_due(self, active: _Active, now_s: float) -> bool:
        """Returns whether to cross off the order by itself now."""
        node, submission = self._node, active.order.submission
        block = node.blocks.get(active.starts) if active.starts is not None else None
        if active.crossing or (block is not None and (block.ready or now_s < active.since_s + _START_S)):
            return False
        if active.order.order is OrderKind.UPDATE and node.amendments.is_under_way(submission):
            return False
        if self._remaining(active.order) or node.puller.is_claiming(submission) or node.jobs.checkpoints.is_obeying(active.guid):
            return False
        return not (self._reading or node.jobs.is_taking(submission))  # the job of the order may be on the way to this node

    def left(self, key: BlockKey) -> None:
        """Notes that a placed block is not here (any more): its START is crossed off unless a commit of the block did it."""
        if key in self._starts:
            self._has_stray = True

    def meet(self, block: ClaimedBlock) -> None:
        """Applies orders that came before a block was claimed, e.g. a cancel."""
        for active in self._others.values():
            if active.order.submission == block.key.submission:
                self._apply(active.guid, active.order, [block])

    def obeyed_by(self, block: ClaimedBlock, indices: Sequence[int]) -> tuple[str, ...]:
        """Returns the orders that the commit of `indices` carries out: it deletes them."""
        found = []
        start = self._starts.get(block.key)
        if start is not None and not start.crossing:
            start.crossing = True
            found.append(start.guid)
        if not self._others:
            return tuple(found)
        done = frozenset(indices)
        for active in self._others.values():
            if active.crossing or active.order.submission != block.key.submission:
                continue
            if active.starts is not None:
                if active.starts == block.key:
                    active.crossing = True
                    found.append(active.guid)
                continue
            left = self._remaining(active.order)
            if left and left <= done and active.order.order is OrderKind.CANCEL:
                active.crossing = True
                found.append(active.guid)
        return tuple(found)

    def settled(self, orders: Sequence[str]) -> None:
        """Notes that the commit was made."""
        for guid in orders:
            self.gone(guid)

    def released(self, orders: Sequence[str]) -> None:
        """Notes that the commit was not made."""
        for guid in orders:
            if guid in self.active:
                self.active[guid].crossing = False
                self._has_stray = True

    def gone(self, guid: str) -> None:
        """Forgets an order that was crossed off, by whatever process."""
        active = self.active.pop(guid, None)
        if active is None:
            return
        if active.starts is not None and self._starts.get(active.starts) is active:
            del self._starts[active.starts]
        else:
            del self._others[guid]

    # -- reading -----------------------------------------------------------------------------------------------------------

    def _list(self, now_s: float) -> None:
        self._listing, self._listed_s = True, now_s
        generation = self._generation
        watch = None if self._watched else lambda: self._shared.post(Quietly(lambda: self._on_watch(generation)))
        self._watched = True
        future = self._shared.coordinator.children(paths.inbox_node(self._node.name), watch=watch)
        future.add_done_callback(lambda done: self._shared.post(Quietly(lambda: self._on_list(generation, done))))

    def _on_watch(self, generation: int) -> bool:
        """Handles the watch. Returns: whether the node has to settle."""
        if generation != self._generation:
            return False
        self._watched = False
        now_s = machine.monotonic()
        if not self._listing and now_s >= self._listed_s:
            self._list(now_s)  # at once, without settling: usually STARTs have come, whose blocks must be read first
            return False
        return True

    def _on_list(self, generation: int, done: Future[list[str] | None]) -> bool:
        """Takes the list. Returns: whether the node has to settle."""
        if generation != self._generation:
            return False
        self._listing = False
        try:
            guids = done.result() or []
        except RmgrError:
            self._watched = False
            self._listed_s = machine.monotonic() + _FAILED_PAUSE_S
            return True
        self._unreadable &= set(guids)
        begun: list[tuple[str, BlockKey]] = []
        for guid in guids:
            if guid in self.active or guid in self._reading or guid in self._unreadable:
                continue
            starts = paths.parse_start_order(guid)
            if starts is not None:
                self._add(guid, InboxOrder(order=OrderKind.START, submission=starts.submission, index=starts.first), starts)
                begun.append((guid, starts))
            else:
                self._node.stories.begin(self._read(guid))
        if begun:
            self._node.jobs.begin(begun)
        return False

    def _read(self, guid: str) -> Story[None]:
        path = paths.inbox(self._node.name, guid)
        self._reading.add(guid)
        try:
            found = yield from insist(lambda: self._shared.coordinator.get(path), _FAILED_PAUSE_S, CoordinationUnavailable)
            if found is None:
                return
            order = decode(found.data, InboxOrder, path)
        except RmgrError as error:  # not an order: not read again while it stands
            self._node.log.warning("order_not_readable", guid=guid[:100], error=error.message)
            self._unreadable.add(guid)
            return
        finally:
            self._reading.discard(guid)
        self._add(guid, order)
        if order.order is OrderKind.START:  # the name of a START says which block it is for
            self._node.log.warning("order_refused", guid=guid[:100], block=order.extra.get("block", ""), why="it names no block")
            return
        self._node.log.info("order_received", order=order.order.value, submission=order.submission, first=order.index, why=order.detail)
        self._apply(guid, order, [block for block in self._node.blocks.values() if block.key.submission == order.submission])

    def _add(self, guid: str, order: InboxOrder, starts: BlockKey | None = None) -> None:
        active = self.active[guid] = _Active(guid, order, starts, machine.monotonic())
        if starts is not None and starts not in self._starts:
            self._starts[starts] = active
        else:
            self._others[guid] = active

    # -- obeying -----------------------------------------------------------------------------------------------------------

    def _apply(self, guid: str, order: InboxOrder, blocks: Sequence[ClaimedBlock]) -> None:
        index = None if order.index < 0 else order.index
        if order.order is OrderKind.UPDATE:
            self._node.amendments.order(order.submission)
            return
        for block in blocks:
            if index is not None and not block.key.first <= index < block.key.end:
                continue
            if order.extra.get("block", name := paths.block_name(block.key)) != name:
                continue  # for an earlier attempt
            if order.order is OrderKind.CANCEL:
                reason = asked if (asked := Reason(order.reason)) in CANCELS else Reason.USER_CANCEL
                self._node.cancel(block, index, order.detail or order.reason, block.info.record.grace_us, reason=reason)
                self._node.jobs.verdicts.cancelled(block)
            elif order.order is OrderKind.CHECKPOINT:
                self._node.jobs.checkpoints.order(block, guid, order)
            else:
                self._tell(order, block, index)
                if block.is_placed and order.order in {OrderKind.SUSPEND, OrderKind.RESUME}:
                    self._node.jobs.suspend(block, resume=order.order is OrderKind.RESUME)

    def _tell(self, order: InboxOrder, block: ClaimedBlock, index: int | None) -> None:
        for lane in list(self._node.lanes):
            seq = lane.running_seq
            if not seq or lane.tasks[seq][0] is not block or index not in (None, lane.tasks[seq][1]):
                continue
            match order.order:
                case OrderKind.SIGNAL if lane.worker is not None:
                    lane.worker.signal(order.signal, seq)
                case OrderKind.SIGNAL:
                    lane.slot.signal(seq, order.signal)
                case OrderKind.SUSPEND | OrderKind.RESUME if lane.part:
                    self._node.jobs.gangs.hold(lane.part, on=order.order is OrderKind.SUSPEND)
                case OrderKind.SUSPEND | OrderKind.RESUME:
                    lane.suspend(resume=order.order is OrderKind.RESUME)

    def _remaining(self, order: InboxOrder) -> set[int]:
        """Returns the uncommitted tasks here of a cancel; an empty set for other orders, which are obeyed at once."""
        if order.order is not OrderKind.CANCEL:
            return set()
        left: set[int] = set()
        for block in self._node.blocks.values():
            key = block.key
            if key.submission != order.submission:
                continue
            for index in range(key.first, key.end) if order.index < 0 else (order.index,):
                if key.first <= index < key.end and not block.data.done >> (index - key.first) & 1:
                    left.add(index)
        return left

    def _cross_off(self, some: Sequence[_Active]) -> Story[None]:
        for active in some:
            active.crossing = True
        multi = ops.obey(self._node.name, self._shared.committer.fence(self._node.name), *(active.guid for active in some))
        outcome: Outcome = yield self._shared.committer.outcome_of(multi)
        if isinstance(outcome, Conflict) and len(some) > 1:  # one order was gone, so nothing was committed
            for active in some:
                self._node.stories.begin(self._cross_off([active]))
            return
        for active in some:
            self.gone(active.guid)


# -- changed time limits ---------------------------------------------------------------------------------------------------
# Time limits that change while work runs (`rmgr update -t`): reads the record again, checks whether it may be believed, tells slots. A
# task that begins later takes the new limit from its record. A running task keeps its own if the change may not affect it
# (`coord/decisions/changing.py`): its user may only shorten the limit, an operator only lengthen it.


class Amendments:
    """Changes to the work of one node. Owner's thread only."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._ordered: dict[int, int] = {}  #: submissions with pending changes -> number of orders
        self._limits: dict[int, int] = {}  #: by seq: limits (us) of running tasks that differ from their records'

    def order(self, submission: int) -> None:
        """Carries out changed terms of a submission."""
        self._ordered[submission] = self._ordered.get(submission, 0) + 1
        self._node.stories.begin(self._amend(submission), key=("amend", submission))

    def is_under_way(self, submission: int) -> bool:
        """Returns whether ordered changes are still being carried out."""
        return submission in self._ordered

    def _amend(self, submission: int) -> Story[None]:
        gate, done = self._shared.gate, 0
        try:
            while done != self._ordered[submission]:  # another order may have come meanwhile
                done = self._ordered[submission]
                try:
                    info: Info | None = yield from self._shared.records.renewed(submission)
                except CoordinationUnavailable:
                    done = 0
                    yield Pause(_PAUSE_S)
                    continue
                if info is None:
                    continue
                try:
                    while gate is not None and gate.belief(info.record) is Admission.AWAITED:
                        yield Pause(_BELIEF_S)
                except NotSealed as error:
                    self._node.log.warning("amendment_refused", submission=submission, why=str(error))
                else:
                    self._carry_out(info)
        finally:
            del self._ordered[submission]

    def _carry_out(self, info: Info) -> None:
        running = {lane.running_seq for lane in self._node.lanes}
        self._limits = {seq: limit_us for seq, limit_us in self._limits.items() if seq in running}
        for block in self._node.blocks.values():
            old: Info | None = block.info
            if block.key.submission != info.record.id or old is None or len(old.record.changes) >= len(info.record.changes):
                continue
            since = len(old.record.changes)
            block.info = info
            self._tell(block, info, since, old.limit_us)

    def _tell(self, block: ClaimedBlock, info: Info, since: int, old_us: int) -> None:
        for lane in list(self._node.lanes):
            seq = lane.running_seq
            if not seq or lane.tasks[seq][0] is not block:
                continue
            before_us = self._limits.get(seq, old_us)
            limit_us = self._limits[seq] = block.limit_us = info.limited(limit_of_running(info.record, before_us, since))
            if limit_us == before_us:
                continue
            self._node.log.info("time_limit_changed", block=block.key.submission, first=lane.tasks[seq][1], limit_s=limit_us / 1e6)
            if not lane.part:  # jobs of gangs count served time, see `gangs.py`
                lane.runs_by.limit(seq, limit_us)
