"""One (virtual) node of a Starter: what it has claimed, runs and must still commit. Facts in through methods, `settle` acts.

Owned by the Starter's one thread. `settle` is level-triggered: it looks at everything and does what can be done, so no event is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import NodeRunner
from rmgr.adapters.host.workevents import TurnEvent
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.commits import IdleMark
from rmgr.daemons.starter.core.home import Mending
from rmgr.daemons.starter.core.records import Info
from rmgr.daemons.starter.execution.amending import Amendments
from rmgr.daemons.starter.execution.barred import Barred
from rmgr.daemons.starter.execution.dispatch import Dispatcher
from rmgr.daemons.starter.execution.ends import Ends, cancelled
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.daemons.starter.execution.launch import words_of
from rmgr.daemons.starter.execution.logs import LiveLogs
from rmgr.daemons.starter.health.reach import settle_refused
from rmgr.daemons.starter.health.strikes import OUT_S, Strikes
from rmgr.daemons.starter.health.trouble import TroubleMark
from rmgr.daemons.starter.jobs.jobs import Jobs
from rmgr.daemons.starter.node.completing import Completing
from rmgr.daemons.starter.node.giving import Giving
from rmgr.daemons.starter.node.orders import Inbox
from rmgr.daemons.starter.node.shared import Shared
from rmgr.daemons.starter.node.turn import NodeMode, NodeStep, mode_of, steps_of
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.daemons.starter.pull.claims import Claims
from rmgr.daemons.starter.pull.hands import Hands
from rmgr.daemons.starter.pull.idle import IdleMarking
from rmgr.daemons.starter.pull.pull import Puller
from rmgr.daemons.starter.staging.stage import Stager
from rmgr.model.base.resources import MIB, Capacity, NodeAttributes
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import BlockKey
from rmgr.runtime import machine
from rmgr.runtime.aside import place_of

#: After giving some away a node claims nothing beyond its free slots for this long: the hungry take it.
_NO_MORE_S = 0.25
#: How old what is known of a submission may be where only memory is at stake.
_OPEN_AGE_S = 4.0
#: Turns that raise for so long are a trouble of the node; the next one comes after a pause.
_FAILING_S, _PAUSE_S = 5.0, 0.5
#: Steps that say what may not begin, and those that begin something: these wait for the first ones to succeed.
_BEFORE_WORK = frozenset({NodeStep.BAR, NodeStep.GIVE_BACK_REFUSED, NodeStep.REOPEN})
_BEGINS = frozenset({NodeStep.BEGIN, NodeStep.GRANT, NodeStep.CLAIM})


class NodeAgent:
    """One node. `fence` and registration are the Starter's business."""

    def __init__(
        self, name: str, shared: Shared, runner: NodeRunner, *, capacity: Capacity, attributes: NodeAttributes, files: Path
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.attributes = attributes
        self.incarnation = 0
        self.blocks: dict[BlockKey, ClaimedBlock] = {}
        self.idle = IdleMark()
        self.runner = runner
        self.log = shared.log.bind(node=name)
        self.lanes = Lanes(
            runner,
            cores=capacity.cores,
            memory_mib=capacity.memory_bytes // MIB,
            python=shared.python,
            early=shared.users is None,
            resources=capacity.resources,
            processors=shared.processors.get(name, ()),
        )
        self.accounts = accounts = shared.accounts(name, files.with_name("private"), self.log)
        self.aside = shared.aside  #: what raised where nothing should
        self.logs = LiveLogs(shared.io, lambda: shared.settings().log_ttl_s, shared.output_cap, shared.charge_of)
        self.strikes = Strikes()
        self.drains: dict[str, str] = {}  #: who wants no new work here -> why
        self.fault = ""  #: why no turn of it came to its end for some seconds
        self._failing_since_s = math.inf  #: first of the turns that raised, one after another
        self._trouble = TroubleMark(self, shared)
        self.next_s = math.inf  #: monotonic time of the next `settle` that is needed without a new fact, inf = none
        self._shared = shared
        self.stager = Stager(
            shared.io,
            shared.inputs,
            wake=shared.wake,
            directory=files,
            on_unstartable=self._unstartable,
            uploads=shared.fetcher.uploads,
            blocks=self.blocks,
            log=self.log,
            accounts=accounts,
            claims=shared.claims,
            values_cap_bytes=shared.values_cap,
            pace=self.pace,
        )
        self.hands = Hands(self, shared, caps=shared.caps, log=self.log)
        self._completing = Completing(
            self, shared, cores=self.lanes.cores, on_strike=self._strike, announce=self.hands.watch_ahead
        )  # fmt: skip
        self.jobs = Jobs(
            self,
            shared,
            shared,
            shared,
            accounts=accounts,
            directory=files.with_name("jobs"),
            on_missing=self._missed,
            reread=self._completing.reread,
            over=self.over,
            on_unstartable=self._unstartable,
            log=self.log,
        )
        self._ends = Ends(
            self.lanes,
            shared,
            stager=self.stager,
            logs=self.logs,
            on_end=self._ended,
            on_strike=self._strike,
            on_surprise=shared.metrics.surprised,
            on_missing=self._missed,
            is_awaited=self.jobs.is_awaited,
            spool=files,
            aside=self.aside,
            log=self.log,
        )
        self._dispatch = Dispatcher(
            self.blocks,
            self.lanes,
            times=shared.times,
            fetcher=shared.fetcher,
            stager=self.stager,
            environ=shared.environ,
            output_cap=shared.output_cap,
            on_unstartable=self._unstartable,
            accounts=accounts,
            separate=shared.separate,
            gate=shared.gate,
            jobs=self.jobs,
        )
        self.giving = Giving(
            self, shared, shared.metrics, dispatch=self._dispatch, stager=self.stager, on_refused=self._completing.refused
        )  # fmt: skip
        self.puller = Puller(
            self,
            capacity=capacity, attributes=attributes,
            committer=shared.committer, records=shared.records,
            times=shared.times, log=self.log, aside=shared.aside, on_claim=shared.metrics.claimed,
            gate=shared.gate, accounts=accounts, meet=self.stager.meet, forget=self.stager.forget,
            caps=shared.caps,
        )
        self.amendments = Amendments(self, shared.records, shared.gate, log=self.log)
        self.orders = Inbox(self, shared.coordinator, shared.committer, post=shared.post, wake=shared.wake, log=self.log)
        parts = (self._dispatch, self.stager, self.jobs, *((accounts,) if accounts is not None else ()))
        self.mending = Mending(shared.home, runner, self.lanes, parts, shared.forget_lost)
        self._claims = Claims(self, shared, self.log, reread=self._completing.reread)
        self._marking = IdleMarking(self, shared.committer)
        self._barred = Barred(self, shared.gate, self._dispatch)
        self._cores_shown = 0
        self._busy = shared.metrics.slots_busy.labels(name)
        self._turn: tuple[Sequence[PendingQueue], frozenset[str]] = ((), frozenset())  #: boards and hungry nodes of this turn
        self._turns = self._steps()

    # -- facts -----------------------------------------------------------------------------------------------------------

    def on_work(self, events: list[Any]) -> None:
        """What the slots report."""
        for event in events:
            if isinstance(event, TurnEvent):
                self.jobs.gangs.take(event)
        events = [event for event in events if not isinstance(event, TurnEvent)]
        if self.accounts is not None:
            self.accounts.saw(events)
        self._ends.take(events)

    def claimed(self, block: ClaimedBlock) -> None:
        """A block is the node's own now."""
        self.blocks[block.key] = block
        self.orders.meet(block)

    def owner_of(self, submission: int) -> str | None:
        """Whose submission it is, as far as this node has had to do with it."""
        info = self._shared.records.get(submission)
        return info.record.user if info is not None else None

    @property
    def life(self) -> str:
        """See `HeldParts.life`."""
        return self.jobs.holds.life

    def in_doubt(self) -> dict[BlockKey, tuple[str, Info]]:
        """Claims of which it is not known whether they were committed: queue, and what is known of the submission."""
        return self.puller.in_doubt()

    def works_ahead(self) -> bool:
        """Not after it has given work away, nor before one of its slots is about to be free."""
        now_s = machine.monotonic()
        return now_s > self.giving.given_s + _NO_MORE_S and self._dispatch.frees_soon(now_s)

    def registered(self, incarnation: int, *, idle: bool) -> None:
        """A new registration stands; the blocks that were adopted are in `blocks`."""
        self.incarnation = incarnation
        self.idle = IdleMark(present=idle)
        self._marking.reset()
        self.giving.reset()
        self._trouble.reset()
        self.puller.reset()
        self.hands.reset()
        self.orders.reset()
        self.jobs.reset()

    def drop_block(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more: what runs of it is killed, and its ends are dropped."""
        self.blocks.pop(block.key, None)
        self.giving.forget(block.key)
        self._dispatch.forget(block)
        self.stop_tasks(block, None, Reason.LEASE_LOST, 0)

    def stop_tasks(self, block: ClaimedBlock, indices: frozenset[int] | None, reason: Reason, grace_us: int) -> None:
        """Ends live tasks of a block (None: all)."""
        if grace_us:
            self.jobs.let_go(block, grace_us)  # it could not give way where it stands still
        for lane in list(self.lanes):
            for seq, (other, index) in list(lane.tasks.items()):
                if other is block and (indices is None or index in indices):
                    self.lanes.stop(lane, seq, reason, grace_us)

    # -- acting ----------------------------------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Takes nothing new, and gives back what has not started."""
        return bool(self.drains)

    @property
    def is_empty(self) -> bool:
        """Nothing is claimed, nothing runs, nothing waits for a commit."""
        return not (self.blocks or self.jobs.holds or self.puller.in_flight or self.hands.is_taking) and self.lanes.is_idle

    def settle(self, boards: Sequence[PendingQueue], hungry_nodes: frozenset[str], now_s: float) -> None:
        """Does what can be done now, as `turn.py` says; only while the Starter is registered and its lease is valid."""
        self.next_s = math.inf
        self._trouble.settle(now_s)  # first: it may begin a quarantine, and end one
        self._turn = (boards, hungry_nodes)
        io = self._shared.io
        mode = mode_of(drains=self.is_draining, full=self._shared.rows.is_full, behind=io.pending_bytes >= self._shared.spool_cap)
        failed: set[NodeStep] = set()
        for step, take in self._turns[mode]:
            if step in _BEGINS and failed & _BEFORE_WORK:
                continue  # work that may not begin here any more would
            try:
                take(now_s)
            except Exception as error:  # noqa: BLE001 - the boundary of one step: commits, orders and all others are done
                failed.add(step)
                self.failed(error, now_s)
        if not failed:
            self.fault, self._failing_since_s = "", math.inf

    def failed(self, error: Exception, now_s: float) -> None:
        """A step of its turn raised. Its work stays here: it might break the turns of another node, too."""
        place = place_of(error)
        self._shared.aside.add(place, None, error)
        self._failing_since_s = min(self._failing_since_s, now_s)
        if now_s - self._failing_since_s >= _FAILING_S:
            self.fault = f"its turns fail, {place}: {words_of(error)}"
        self.at(now_s + _PAUSE_S)

    @property
    def set_aside(self) -> str:
        """What raised in this Starter where nothing should, in words, "" = nothing."""
        return self._shared.aside.words

    def _take_handed(self, now_s: float) -> None:
        self.hands.settle(self._turn[0], now_s)
        self.at(self.hands.due_s)

    def _bar(self, _now_s: float) -> None:
        self._barred.settle(is_draining=self.is_draining)

    def _give_back_refused(self, now_s: float) -> None:
        again_s = settle_refused(
            self.accounts, self.blocks.values(),
            give_back=self.return_unstarted, spare=self._ends.reopening.forget, withhold=self._dispatch.withhold,
        )
        self.at(now_s + again_s)

    def _reopen(self, now_s: float) -> None:
        reopen_s = self._ends.reopening.settle(now_s, takes_work=not self.is_draining)
        self.at(math.inf if reopen_s is None else reopen_s)

    def _charge(self, now_s: float) -> None:
        before = self.lanes.overdrawn
        self.at(self.lanes.charge_blocked(now_s))
        if self.lanes.overdrawn and not before:
            self.log.warning("blocked_tasks_compute", cores=self.lanes.overdrawn, why="they say that they wait, and use processors")

    def _dismiss(self, now_s: float) -> None:
        self.at(self.lanes.dismiss(now_s, lambda submission: self._shared.records.is_open(submission, _OPEN_AGE_S)))

    def _take_turns(self, _now_s: float) -> None:
        self.at(self.jobs.gangs.settle())

    def _begin(self, now_s: float) -> None:
        self._fill(self._dispatch.run, now_s)

    def _grant(self, now_s: float) -> None:
        self._fill(self.lanes.grant, now_s)

    def _fill(self, fill: Callable[[], object], now_s: float) -> None:
        """Placed jobs, then slots. What cannot be opened is tried again when its directory is mended, else in a second."""
        before = self.mending.generation
        try:
            self.jobs.settle()
            fill()
        except OSError as error:
            is_mended = self.mending.failed(error, before)
            if not is_mended:
                self._strike("slot_not_opened", str(error))
            self.at(now_s if is_mended else now_s + 1.0)

    def _claim(self, now_s: float) -> None:
        self.puller.run(self._turn[0], now_s)
        self.at(self.puller.retry_s)

    def _rest(self, _now_s: float) -> None:
        self.puller.is_hungry = False

    def _mark_idle(self, now_s: float) -> None:
        self.at(self._marking.settle(now_s))

    def _split_for_hungry(self, now_s: float) -> None:
        if self._turn[1]:
            self.giving.split(self._turn[1], now_s)

    def _obey(self, _now_s: float) -> None:
        self.at(self.amendments.settle())
        self.orders.settle()

    def _level(self, now_s: float) -> None:
        if self._dispatch.level(now_s):
            self.at(now_s + 0.02)

    def _flush_logs(self, now_s: float) -> None:
        flush_s = self.logs.flush(self.lanes, now_s)
        if flush_s is not None:
            self.at(flush_s)

    def _show(self, _now_s: float) -> None:
        busy = self.lanes.cores - self.lanes.free_cores
        if busy != self._cores_shown:
            self._cores_shown = busy
            self._busy.set(busy)

    def _steps(self) -> dict[NodeMode, list[tuple[NodeStep, Callable[[float], None]]]]:
        """The steps of a turn by mode."""
        take: dict[NodeStep, Callable[[float], None]] = {
            NodeStep.TAKE_HANDED: self._take_handed,
            NodeStep.BAR: self._bar,
            NodeStep.GIVE_BACK_REFUSED: self._give_back_refused,
            NodeStep.REOPEN: self._reopen,
            NodeStep.CHARGE: self._charge,
            NodeStep.TURNS: self._take_turns,
            NodeStep.BEGIN: self._begin,
            NodeStep.GRANT: self._grant,
            NodeStep.CLAIM: self._claim,
            NodeStep.REST: self._rest,
            NodeStep.COMMIT: lambda now_s: self.at(self._completing.settle(now_s)),
            NodeStep.REPAIR_CLAIMS: self._claims.settle,
            NodeStep.MARK_IDLE: self._mark_idle,
            NodeStep.SPLIT: self._split_for_hungry,
            NodeStep.LEVEL: self._level,
            NodeStep.FLUSH_LOGS: self._flush_logs,
            NodeStep.DISMISS: self._dismiss,
            NodeStep.OBEY: self._obey,
            NodeStep.SHOW: self._show,
        }
        return {mode: [(step, take[step]) for step in steps_of(mode)] for mode in NodeMode}

    def at(self, at_s: float) -> None:
        """Asks for a turn at this monotonic time, if none comes before."""
        self.next_s = min(self.next_s, at_s)

    def _missed(self) -> None:
        self.mending.missed()

    def _ended(self, state: State | None, count: int, seconds: float) -> None:
        if state is State.COMPLETED:
            self.strikes.success()
        self._shared.metrics.ended(state, count, seconds)

    def pace(self, block: ClaimedBlock) -> float | None:
        """Seconds in which the slots take a task of it, None = unknown."""
        task_s = self._shared.times.of(block.kind)
        return task_s / self.lanes.slots_for(block.key.cores) if task_s is not None else None

    def _strike(self, what: str, detail: str, account: Account | None = None) -> None:
        user = account.name if account is not None else ""
        is_his = self.strikes.add(what, detail, machine.monotonic(), user=user)
        self.log.warning("node_failed_work", kind=what, detail=detail, user=user)
        if is_his and self.accounts is not None:
            self.accounts.bar(user, f"{what}: {detail}", OUT_S)

    def _unstartable(self, block: ClaimedBlock, indices: list[int], failure: Any) -> None:
        self._ends.unstartable(block, indices, failure)

    def over(self, block: ClaimedBlock) -> None:
        """Nothing of it is left to do here."""
        self.blocks.pop(block.key, None)
        self.giving.forget(block.key)
        self._dispatch.forget(block)

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """What of it has not started goes back to its queue."""
        self.giving.return_unstarted(block)

    def give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> None:
        """Its last `count` waiting tasks go back to its queue."""
        self.giving.give_back(block, count, name=name, held=held)

    def cancel(
        self, block: ClaimedBlock, index: int | None, words: str, grace_us: int, *, reason: Reason = Reason.USER_CANCEL
    ) -> None:
        """Ends tasks of a block CANCELLED (None: all): those that wait at once, those that run when they are dead."""
        now_s = machine.monotonic()
        if index is None:
            block.cancel_all = words
        else:
            block.cancelled[index] = words
        block.cancel_reasons[index] = reason
        waiting = block.take_ready(None if index is None else (index,))
        for one in waiting:
            self.stager.done(block, one)
        if waiting:
            block.settle([cancelled(one, words, reason) for one in waiting], now_s)
        self.stop_tasks(block, None if index is None else frozenset((index,)), Reason.USER_CANCEL, grace_us)
