"""Claiming for one node: which waiting block, how much of it, what came of the claim, and whether others see that the node wants work.

Blocks are taken in order. A block that the node could never run is passed over. A block that fits the node but not what is free
now is claimed one task at a time, and nothing later starts before it (unless its queue allows `backfill_pull`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Outcome
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock
from rmgr.daemons.starter.core.shares import AGAIN_S, AHEAD_S, claim_size, owed_of, wants_more
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.core.tree import IdleStage
from rmgr.daemons.starter.pull.board import BlockCandidate, CandidateStage, PendingQueue
from rmgr.model.base import Needs
from rmgr.model.block import MAX_TASKS, BlockKey
from rmgr.model.submission import key_now
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: How long blocks of a submission without a gate are left alone.
_GATE_PAUSE_S = 1.0
#: A task shorter than this may be one of many that are submitted one after another.
_SHORT_S = 0.1
#: Charge to a user's turn for looking at a block whose name has no tag.
_LOOK_S = 0.01
#: Most claims in flight, and most blocks held.
_FLYING, _HELD = 16, 64
#: Most candidates whose data and records are fetched together: as many as make up the work ahead.
_TOGETHER = 32
#: How long a hungry node waits for a COMPLETE that could set its mark, and a sated one for a CLAIM that deletes it.
_IDLE_DELAY_S, _SATED_DELAY_S = 0.01, 0.5


@dataclass(slots=True)
class _Flying:
    """A claim in flight."""

    block: ClaimedBlock  #: the block that it will be
    board: PendingQueue
    candidate: BlockCandidate
    rest: BlockCandidate | None
    clears_idle: bool


@dataclass(slots=True)
class _Appetite:
    """What could be started now, beyond claimed work; and the work ahead in seconds of slot time."""

    cores: int
    memory_mib: int
    ahead_s: float
    others: dict[str, int] = field(default_factory=dict)  #: of other resources that the node has

    def free(self, key: BlockKey) -> int:
        """Returns how many tasks of these cores and this memory could start."""
        by_memory = self.memory_mib // key.memory_mib if key.memory_mib else self.cores
        return max(0, min(self.cores // key.cores, by_memory))

    def free_of(self, needs: Needs) -> int:
        """Returns how many tasks could start as far as other resources allow."""
        return min(max(0, self.others.get(name, 0)) // count for name, count in needs)


class _Choice(Enum):
    """What to do after considering a block."""

    DONE = "done"  #: it is claimed, or another user is next
    NEXT = "next"  #: skip it: look at the next one
    WAIT = "wait"  #: this one, but later


class Puller:
    """Claims for one node."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._caps = node.shared.caps
        self._features = frozenset(node.attributes.features)
        self._flying: dict[BlockKey, _Flying] = {}
        self._together = 1
        self._claims = 0
        self._lacking: set[str] = set()  #: resources that an earlier block of this pass waits for: later blocks do not get them
        self._without: set[int] = set()  #: submissions that need one of them, or whose user is refused
        self._barred: set[str] = set()  #: tags of users at their cap
        self._is_capped = False  #: this pass passed over a block because of a cap
        self._seen: _Appetite | None = None
        self._fair: tuple[PendingQueue, ...] = ()  #: queues of this pass in which several users take turns
        self.is_hungry = False  #: slots are free and nothing can be claimed
        self.retry_s = math.inf  #: monotonic time of the next useful `run`, inf = when something changes

    @property
    def in_flight(self) -> int:
        """Number of claims in flight."""
        return len(self._flying)

    def is_claiming(self, submission: int) -> bool:
        """Returns whether a claim of its blocks is in flight, or a block may have been handed over."""
        if self._node.hands.is_taking:
            return True
        return any(key.submission == submission for key in self._flying)

    def in_doubt(self) -> dict[BlockKey, ClaimedBlock]:
        """Returns the blocks of claims in flight: after a lost session the tree tells which were made."""
        return {key: flying.block for key, flying in self._flying.items()}

    def in_use(self) -> dict[str, int]:
        """Returns the cores that users have claimed here, by user. Cost: 0.5 us a block."""
        wanted: dict[str, int] = {}
        for block in (*self._node.blocks.values(), *(flying.block for flying in self._flying.values())):
            if block.info is not None:
                tasks = 1 if block.data.serial else block.unfinished
                cores = block.key.cores * tasks if block.data.allocation is None else block.data.allocation.cores[0]
                wanted[block.info.record.user] = wanted.get(block.info.record.user, 0) + cores
        return wanted

    def reset(self) -> None:
        """Forgets claims in flight after a new registration: they get no answer, and what they took is read back."""
        for flying in self._flying.values():
            self._node.stager.forget(flying.block)
        self._flying.clear()
        self.is_hungry = False

    def run(self, boards: Sequence[PendingQueue], now_s: float) -> None:
        """Makes one pass over the queues, highest rank first."""
        self.is_hungry = False
        self.retry_s = math.inf
        empty = True
        self._seen = None
        self._lacking.clear()
        self._without.clear()
        self._barred.clear()
        self._is_capped = False
        if not self._flying and not self._node.lanes.free_cores and all(one.is_bare or one.spec.state == "stopped" for one in boards):
            return  # e.g. placed jobs use all cores: nothing can be claimed
        self._fair = tuple([board for board in boards if board.is_shared])
        for board in boards:
            if board.spec.state == "stopped":
                continue
            if not self._from(board, now_s):
                return
            empty = empty and board.is_current
        # A picky node is not hungry: it might refuse what others give away for it.
        is_picky = self._is_capped or (self._node.accounts is not None and bool(self._node.accounts.refused))
        self.is_hungry = empty and not self._flying and self._appetite().cores > 0 and not is_picky

    # -- one queue ---------------------------------------------------------------------------------------------------------

    def _from(self, board: PendingQueue, now_s: float) -> bool:
        """Claims from one queue. Returns: whether to look at the next queue."""
        passed: set[str] = set()
        while True:
            appetite = self._appetite()
            if not self._wants(appetite):
                if self._is_nearly_done():  # then the COMPLETE of a short task can tell that the node is hungry again
                    board.look(now_s, hungry=True)
                return False
            candidate = board.pick(now_s, passed, self._without, self._barred)
            if candidate is None:
                board.look(now_s, hungry=appetite.cores > 0)
                if board.is_current:
                    self._retry(board.next_pause_s(now_s))
                    return True
                if board.is_reading:
                    return False
                self._retry(max(board.next_look_s(), now_s + 0.001))
                return appetite.cores == 0
            try:
                choice = self._consider(board, candidate, appetite, now_s)
            except Exception as error:  # noqa: BLE001 - the boundary of one block: all behind it are claimed
                self._shared.aside.add(f"{paths.pending(board.spec.name)}/{candidate.name}", None, error)
                board.pause(candidate, now_s, _GATE_PAUSE_S)
                choice = _Choice.NEXT
            if choice is _Choice.WAIT:
                return False
            if choice is _Choice.NEXT:
                passed.add(candidate.name)

    def _consider(self, board: PendingQueue, candidate: BlockCandidate, appetite: _Appetite, now_s: float) -> _Choice:
        key = candidate.key
        info = self._shared.records.get(key.submission)
        if info is not None:
            key = key_now(key, info.record)
        needs = info.needs if info is not None else ()
        if needs and any(name in self._lacking for name, _ in needs):
            self._without.add(key.submission)
            return _Choice.NEXT
        if candidate.data is None or info is None or not self._claims % (self._together // 2 or 1):
            for coming in board.fetch_ahead(self._together):
                self._shared.records.get(coming.key.submission)
        board.fetch(candidate)
        if info is None:
            if not self._shared.records.is_refused(key.submission):
                return _Choice.WAIT
            board.pause(candidate, now_s, _GATE_PAUSE_S, grows=not self._shared.records.is_absent(key.submission))
            return _Choice.NEXT
        if board.belongs(candidate, user := paths.user_tag(info.record.user), now_s):
            board.turns.charge(user, 1, _LOOK_S, 1, now_s)
            return _Choice.DONE
        if not self.suits(info, key):
            candidate.stage = CandidateStage.UNSUITABLE
            return _Choice.NEXT
        if self._node.accounts is not None and not info.refusal and not self._node.accounts.may_claim(info.record.user):
            self._without.add(key.submission)
            return _Choice.NEXT
        if candidate.data is None:
            return _Choice.WAIT
        if candidate.refusal or info.refusal:
            self._claim(board, candidate, info, key.count)  # whole, to end it: nothing of it runs
            return _Choice.DONE
        if info.record.queue != board.spec.name:
            self._shared.records.forget(key.submission)  # it may have moved to this queue since its record was read
            if board.spec.name in info.record.queues:  # the leader will move the block away
                board.pause(candidate, now_s, _GATE_PAUSE_S)
                self._without.add(key.submission)
                return _Choice.NEXT
        if why := not_admitted(board.spec, info.record, key, is_newer=0 < board.since < info.czxid):
            if not candidate.pauses and not info.record.changes:  # otherwise its name may be an old one until the leader renames it
                self._node.log.warning("block_not_admitted", block=candidate.name, why=why)
            board.pause(candidate, now_s, _GATE_PAUSE_S)
            return _Choice.NEXT
        if self._shared.gate is not None and self._shared.gate.is_barred(candidate.data.seal, info):
            self._without.add(key.submission)
            return _Choice.NEXT
        kind = candidate.data.function or info.kind
        task_s = self._shared.times.of(kind)
        slots = self._node.lanes.slots_for(key.cores, needs)
        if task_s is not None:
            self._together = max(1, min(_TOGETHER, int(AHEAD_S * slots / (task_s * key.count))))
        fitting = free = appetite.free(key)
        if needs:
            free = min(fitting, appetite.free_of(needs))
        most = self._most(info.record.user, key.cores, now_s)
        if not most:
            self._is_capped = True
            if self._caps.may_ever(info.record.user, key.cores):  # else only a new cap helps: smaller tasks need not wait
                self._barred.add(paths.user_tag(info.record.user))
            self._retry(now_s + AGAIN_S)
            self._without.add(key.submission)
            return _Choice.NEXT
        take = claim_size(
            count=key.count,
            serial=candidate.data.serial,
            at_most_once=not candidate.data.resubmit,
            free=min(free, most),
            slots=slots,
            task_s=task_s,
            ended=self._shared.times.ended(kind),
            ahead_s=appetite.ahead_s,
        )
        take = take if candidate.data.serial else min(take, most)
        if take == 0:
            if fitting and not free:  # it lacks other resources than cores: only later blocks that need the same wait behind it
                self._lacking.update(name for name, count in needs if appetite.others.get(name, 0) < count)
                self._without.add(key.submission)
                return _Choice.NEXT
            if not free and appetite.cores > 0:  # it does not fit beside what runs: the node drains for it
                if candidate.data.resubmit and not self._is_draining():
                    self._claim(board, candidate, info, key.count if candidate.data.serial else 1)
                return _Choice.NEXT if board.spec.backfill_pull else _Choice.WAIT
            return _Choice.WAIT
        self._claim(board, candidate, info, take)
        return _Choice.DONE

    def _most(self, user: str, cores: int, now_s: float) -> int:
        """Returns how many tasks of `cores` cores the user's cap allows to claim now."""
        room = self._caps.room(user, cores, now_s) if self._caps.is_on else None
        if room is None:
            return MAX_TASKS
        if not room and not self._node.lanes.free_cores and self._caps.is_within(user) and self.in_use().keys() == {user}:
            return MAX_TASKS  # work claimed ahead will run on cores that the user has already
        return room // cores

    def suits(self, info: Info, key: BlockKey) -> bool:
        """Returns whether the node could run it, if it ran nothing else."""
        capacity, request = self._node.capacity, info.record.request
        return (
            key.cores <= capacity.cores
            and key.memory_mib <= self._node.lanes.memory_mib
            and self._features.issuperset(request.features)
            and all(capacity.resources.get(name, 0) >= count for name, count in info.needs)
        )

    def _is_nearly_done(self) -> bool:
        """Returns whether one short task is all that is claimed."""
        if self._flying or len(self._node.blocks) != 1:
            return False
        (block,) = self._node.blocks.values()
        task_s = self._shared.times.of(block.kind)
        return task_s is not None and task_s < _SHORT_S and block.unfinished == 1

    def _is_soon_hungry(self, flying: _Flying) -> bool:
        """Returns whether nothing but this claim is here, and its tasks are short and have a slot each."""
        if len(self._flying) > 1 or self._node.blocks:
            return False
        key = flying.block.key
        task_s = self._shared.times.of(flying.block.kind)
        return key.count * key.cores <= self._node.lanes.cores and task_s is not None and task_s < _SHORT_S

    def _is_draining(self) -> bool:
        """Returns whether a claimed block does not fit beside what runs, and waits for room."""
        lanes = self._node.lanes
        placed = [block for block in self._node.blocks.values() if block.is_placed and block.waits]
        if lanes.is_owed or any(not lanes.fits(*lanes.size_of(block)) for block in placed):
            return True  # an assignment outranks pulling
        if lanes.free_cores == 0:
            return False
        waiting = [block.key for block in self._node.blocks.values() if block.waits and not block.info.queue.backfill_pull]
        return any(not lanes.fits(key.cores, key.memory_mib) for key in [*waiting, *self._flying])

    # -- how much ------------------------------------------------------------------------------------------------------------

    def _wants(self, appetite: _Appetite) -> bool:
        if len(self._flying) >= _FLYING or len(self._node.blocks) + len(self._flying) >= _HELD:
            return False
        if self._is_draining() or (appetite.cores == 0 and not self._node.works_ahead()):
            return False
        return wants_more(free=appetite.cores, slots=self._node.lanes.cores, ahead_s=appetite.ahead_s)

    def _appetite(self) -> _Appetite:
        """Returns the node's appetite, computed once a pass and again after each claim."""
        if self._seen is None:
            self._seen = self._look_around()
            if self._caps.is_on:
                self._caps.uses(self._node.name, self.in_use(), self._node.lanes.cores)
            for board in self._fair:
                board.turns.owe(self._node.name, self._owed_core_seconds(board.spec.name))
        return self._seen

    def _owed_core_seconds(self, queue: str) -> dict[str, float]:
        """Returns the core-seconds of a queue that users have claimed here and were not charged for. Cost: 2 us a block."""
        owed: dict[str, float] = {}
        now_us = machine.wall_us()
        pulled = [block for block in self._node.blocks.values() if not block.is_placed]
        for block in [*pulled, *(flying.block for flying in self._flying.values())]:
            if block.queue != queue or block.info is None:
                continue
            key, user = block.key, paths.user_tag(block.info.record.user)
            owed[user] = owed.get(user, 0.0) + owed_of(
                cores=key.cores,
                count=key.count,
                unfinished=block.unfinished,
                live=block.live,
                task_s=self._shared.times.of(block.kind),
                age_s=(now_us - block.data.claimed_us) / 1e6,
            )
        return owed

    def _look_around(self) -> _Appetite:
        lanes, of = self._node.lanes, self._shared.times.of
        cores, memory_mib, ahead_s = lanes.free_cores, lanes.free_memory_mib, 0.0
        others = {name: lanes.free_of(name) for name in lanes.resources} if lanes.resources else {}
        waiting = [block for block in self._node.blocks.values() if block.waits]
        waiting += [flying.block for flying in self._flying.values()]
        for block in waiting:
            key = block.key
            ready = len(block.ready) if not block.data.serial else 0 if block.live else 1
            fitting = min(ready, max(0, cores // key.cores))
            if others:
                for name, each in block.info.needs:
                    fitting = min(fitting, max(0, others.get(name, 0)) // each)
                    others[name] = others.get(name, 0) - ready * each
            cores -= fitting * key.cores
            memory_mib -= fitting * key.memory_mib
            left = ready - fitting
            if left:
                task_s = of(block.kind)
                ahead_s += left * task_s * key.cores if task_s is not None else math.inf
        for lane in lanes:
            behind = len(lane.tasks) - 1
            if behind > 0 and lane.info is not None and lane.serial is None:
                ahead_s += behind * (of(lane.kind) or 0.0) * lane.shape[0]
        return _Appetite(max(0, cores), max(0, memory_mib), ahead_s, others)

    def _retry(self, at_s: float | None) -> None:
        if at_s is not None:
            self.retry_s = min(self.retry_s, at_s)

    # -- the claim -----------------------------------------------------------------------------------------------------------

    def _claim(self, board: PendingQueue, candidate: BlockCandidate, info: Info, take: int) -> None:
        node, key = self._node, candidate.key
        assert candidate.data is not None
        named = key_now(key, info.record)
        data = msgspec.structs.replace(
            candidate.data, incarnation=node.incarnation, claimed_us=machine.wall_us(), stamp=machine.guid()[:12], started=0
        )
        clears_idle = node.idle.is_set
        multi, mine = ops.claim(
            node.name,
            self._shared.committer.fence(node.name),
            board.spec.name,
            key,
            data,
            candidate.version,
            take=take,
            was_idle=clears_idle,
            gate=len(info.record.changes),
            named=named,
        )
        rest = None
        if take < key.count:
            left = msgspec.structs.replace(data, incarnation=0, claimed_us=0)
            rest_key = replace(key, first=mine.end, count=key.count - take)
            rest = (rest_key, ops.cut(left, key.first, rest_key.first, rest_key.count))
        if clears_idle:
            node.idle.goes(IdleStage.CLEARING)
        left_behind = board.take(candidate, rest)
        part = ops.cut(data, key.first, mine.first, take)
        block = ClaimedBlock.claimed(node.name, board.spec.name, mine, part)
        block.info = info
        if why := candidate.refusal or info.refusal:
            block.judge(BlockVerdict.REFUSED, why)
        flying = self._flying[mine] = _Flying(block, board, candidate, left_behind, clears_idle)
        self._seen = None
        self._claims += 1
        failpoint("starter.before_claim")
        self._shared.committer.commit(multi, lambda outcome: self._on_outcome(flying, outcome))
        if take == key.count and self._is_soon_hungry(flying):
            board.look_behind(machine.monotonic())
        if self._shared.gate is not None:
            self._shared.gate.admission(block)  # while the claim is in flight: verified by its answer, or asked again then
        self._node.stager.meet(block)

    def _on_outcome(self, flying: _Flying, outcome: Outcome) -> None:
        if self._flying.pop(flying.block.key, None) is not flying:
            return  # of an older registration
        node = self._node
        if flying.clears_idle:
            was_gone = isinstance(outcome, Conflict) and outcome.path == paths.idle(node.name)
            node.idle.answered(stands=not (was_gone or isinstance(outcome, Committed)))
        if isinstance(outcome, Committed):
            failpoint("starter.after_claim")
            flying.board.taken(flying.candidate)
            node.claimed(flying.block)
            self._shared.metrics.claims.inc()
            return
        assert isinstance(outcome, Conflict)
        self._shared.metrics.claim_conflicts.inc()
        self._node.stager.forget(flying.block)
        self._lost(flying, outcome)

    def _lost(self, flying: _Flying, conflict: Conflict) -> None:
        """Acts on the conflict of a claim."""
        now_s = machine.monotonic()
        key, board, candidate = flying.block.key, flying.board, flying.candidate
        if conflict.path == paths.gate(key.submission):
            board.put_back(candidate, flying.rest)
            if conflict.kind is ConflictKind.BAD_VERSION:  # its terms were changed: claimed again once they are read
                self._shared.records.forget(key.submission)
            else:
                board.pause(candidate, now_s, _GATE_PAUSE_S)
        elif conflict.path == paths.idle(self._node.name):
            self._node.hands.look()
            board.put_back(candidate, flying.rest)
        elif conflict.path == paths.running_block(self._node.name, key) and conflict.kind is ConflictKind.NODE_EXISTS:
            self._node.log.error("claim_met_its_own_block", block=candidate.name)
            board.pause(candidate, now_s, _GATE_PAUSE_S)
            board.put_back(candidate, flying.rest)
        else:
            board.missed(candidate, flying.rest)


# -- the idle mark ---------------------------------------------------------------------------------------------------------
# Shows in ZooKeeper (`/idle/<node>`) whether a node wants work: with a COMPLETE or CLAIM if there is one, else alone after a moment.


class IdleMarking:
    """Creates and deletes the idle mark of one node. In the loop."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._wrong_s: float | None = None

    def reset(self) -> None:
        """Forgets the pending change after a new registration."""
        self._wrong_s = None

    def settle(self, now_s: float) -> float:
        """Commits a change that no other commit has made. Returns: when to call again (monotonic), inf = when something changes."""
        node, idle = self._node, self._node.idle
        hungry = node.puller.is_hungry
        if hungry == idle.stood:
            self._wrong_s = None
            return math.inf
        if idle.stage in (IdleStage.SETTING, IdleStage.CLEARING) or node.puller.in_flight:
            return math.inf
        self._wrong_s = now_s if self._wrong_s is None else self._wrong_s
        at_s = self._wrong_s + (_IDLE_DELAY_S if hungry or node.is_draining else _SATED_DELAY_S)
        if now_s < at_s:
            return at_s
        idle.goes(IdleStage.SETTING if hungry else IdleStage.CLEARING)
        node.stories.begin(self._mark(hungry=hungry))
        return math.inf

    def _mark(self, *, hungry: bool) -> Story[None]:
        node, commits = self._node, self._node.shared.committer
        outcome: Outcome = yield commits.outcome_of(ops.mark_idle(node.name, commits.fence(node.name), idle=hungry))
        node.idle.answered(stands=hungry)  # a Conflict means that it already was so
        if not hungry and isinstance(outcome, Conflict):
            node.hands.look()
