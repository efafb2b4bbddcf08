"""One (virtual) node of a Starter: what it has claimed, runs and must still commit. Facts in through methods, `settle` acts.

Owned by the Starter's one thread. `settle` is level-triggered: it looks at everything and does what can be done, so no event is lost.
`Shared` is what all nodes of a Starter have together. Parts of a node hold it, and reach each other and what is shared through it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import NodeRunner
from rmgr.adapters.host.workevents import TurnEvent
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.ranks import Peers
from rmgr.coord.protocol.ports import Coordinator
from rmgr.daemons.starter.checkpoint.files import OPEN, Seals
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import Fetcher, FetchFailure
from rmgr.daemons.starter.core.home import Home
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.shares import Caps, TaskTimes, Turns
from rmgr.daemons.starter.core.submissions import Gate, RecordCache
from rmgr.daemons.starter.core.tree import Committer, IdleMark, IdleStage
from rmgr.daemons.starter.execution.dispatch import Dispatcher, words_of
from rmgr.daemons.starter.execution.ends import Ends, LiveLogs, cancelled
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.daemons.starter.jobs.jobs import Jobs
from rmgr.daemons.starter.node.commits import Completing, DeletedClaims, Giving, Notes
from rmgr.daemons.starter.node.orders import Amendments, Inbox
from rmgr.daemons.starter.node.service import StarterMetrics
from rmgr.daemons.starter.node.trouble import OUT_S, Strikes, TroubleMark
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.daemons.starter.pull.hands import Hands
from rmgr.daemons.starter.pull.pull import IdleMarking, Puller
from rmgr.daemons.starter.staging.accounts import Accounts, AccountsPolicy, Reach
from rmgr.daemons.starter.staging.inputs import Inputs, OutputClaims
from rmgr.daemons.starter.staging.outputs import Charge, OutputRows
from rmgr.daemons.starter.staging.stage import VALUES_CAP_BYTES, Stager
from rmgr.model.base.resources import MIB, Capacity, NodeAttributes
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockKey
from rmgr.procedures.authentic import Deeds
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside, place_of
from rmgr.runtime.gang_clock import ClockReader
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox, Timer
from rmgr.runtime.story import Stories

#: After giving some away a node claims nothing beyond its free slots for this long: the hungry take it.
_NO_MORE_S = 0.25
#: How old what is known of a submission may be where only memory is at stake.
_OPEN_AGE_S = 4.0
#: Turns that raise for so long are a trouble of the node; the next one comes after a pause.
_FAILING_S, _PAUSE_S = 5.0, 0.5
#: Between two looks whether lanes differ too much; between two for the sake of tasks that were lost with their files.
_LEVEL_S, _MISSED_S = 0.02, 0.05


class NodeAgent:
    """One node. `fence` and registration are the Starter's business."""

    def __init__(
        self, name: str, shared: Shared, runner: NodeRunner, *, capacity: Capacity, attributes: NodeAttributes, files: Path
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.attributes = attributes
        self.incarnation = 0
        self.shared = shared
        self.blocks: dict[BlockKey, ClaimedBlock] = {}
        self.idle = IdleMark()
        self.stories = shared.stories()  #: of this registration
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
        self.accounts = shared.accounts(name, files.with_name("private"), self.log)
        self.aside = shared.aside  #: what raised where nothing should
        self.logs = LiveLogs(shared.io, lambda: shared.settings().log_ttl_s, shared.output_cap, shared.charge_of)
        self.strikes = Strikes()
        self.drains: dict[str, str] = {}  #: who wants no new work here -> why
        self.fault = ""  #: why no turn of it came to its end for some seconds
        self._failing_since_s = math.inf  #: first of the turns that raised, one after another
        self._trouble = TroubleMark(self)
        self.next_s = math.inf  #: monotonic time of the next `settle` that is needed without a new fact, inf = none
        self.stager = Stager(self, files)
        self.hands = Hands(self)
        self.completing = Completing(self)
        self.notes = Notes(self)
        self.jobs = Jobs(self, files.with_name("jobs"))
        self.ends = Ends(self, spool=files)
        self.dispatch = Dispatcher(self)
        self.giving = Giving(self)
        self.puller = Puller(self)
        self.amendments = Amendments(self)
        self.orders = Inbox(self)
        self._deleted = DeletedClaims(self)
        self._marking = IdleMarking(self)
        self._missed_s = -math.inf  #: when work met files that were gone
        self._cores_shown = 0
        self._busy = shared.metrics.slots_busy.labels(name)

    # -- facts -----------------------------------------------------------------------------------------------------------

    def on_work(self, events: list[Any]) -> None:
        """What the slots report."""
        for event in events:
            if isinstance(event, TurnEvent):
                self.jobs.gangs.take(event)
        events = [event for event in events if not isinstance(event, TurnEvent)]
        if self.accounts is not None:
            self.accounts.saw(events)
        self.ends.take(events)

    def claimed(self, block: ClaimedBlock) -> None:
        """A block is the node's own now."""
        self.blocks[block.key] = block
        self.orders.meet(block)

    def owner_of(self, submission: int) -> str | None:
        """Whose submission it is, as far as this node has had to do with it."""
        info = self.shared.records.get(submission)
        return info.record.user if info is not None else None

    def works_ahead(self) -> bool:
        """Not after it has given work away, nor before one of its slots is about to be free."""
        now_s = machine.monotonic()
        return now_s > self.giving.given_s + _NO_MORE_S and self.dispatch.frees_soon(now_s)

    def registered(self, incarnation: int, *, idle: bool) -> None:
        """A new registration stands; the blocks that were adopted are in `blocks`."""
        self.incarnation = incarnation
        self.idle = IdleMark(IdleStage.SET if idle else IdleStage.ABSENT)
        self.stories.stop()
        self._marking.reset()
        self._trouble.reset()
        self.puller.reset()
        self.hands.reset()
        self.orders.reset()
        self.jobs.reset()
        self.notes.reset()

    def drop_block(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more: what runs of it is killed, and its ends are dropped."""
        self.blocks.pop(block.key, None)
        self.dispatch.forget(block)
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

    def settle(self, boards: Sequence[PendingQueue], hungry: frozenset[str], now_s: float) -> None:
        """Does what can be done now; only while the Starter is registered and its lease is valid.

        A turn looks at everything, so no event is lost: facts only bring it. The order is the algorithm, therefore each step says why it
        stands where it does. What raises in a step ends that step alone.
        """
        self.next_s = math.inf
        self._trouble.settle(now_s)  # first: it may begin a quarantine, and end one
        shared, step = self.shared, _Step(self, now_s)
        is_draining = self.is_draining
        begins = not is_draining and not shared.rows.is_full  # else outputs fill the memory
        claims = begins and shared.io.pending_bytes < shared.spool_cap  # else outputs wait for the store
        # What a client hands over lies here already: it comes before all that would be fetched.
        with step:
            self.hands.settle(boards, now_s)
            self.at(self.hands.due_s)
        before = step.failures
        # What may not begin any more (ended, revoked, draining) is out of the way before anything is begun ...
        with step:
            self.giving.return_barred(is_draining=is_draining)
        # ... and so is work of users whom this node cannot serve: it goes back while others may take it.
        with step:
            self.at(now_s + self.giving.return_refused())
        # Slots that were lost are there again before work looks for one.
        with step:
            self.at(self.ends.reopening.settle(now_s, takes_work=not is_draining))
        may_begin = step.failures == before
        # Cores that blocked tasks use are not free: this is known before any are given to others.
        with step:
            self._charge_blocked(now_s)
        # Parts of gangs that are over leave their slots before others begin; what goes on has its slots also where nothing begins any more.
        with step:
            self.at(self.jobs.gangs.settle())
        if may_begin:
            # Placed jobs first: what the leader has assigned outranks pulled work. Then what is here gets the slots that are free.
            # Where nothing new begins a task that waits for its cores still gets them: its end is what makes room.
            with step:
                self._fill(self.dispatch.run if begins else self.lanes.grant, now_s)
            # After that: how much lasts long enough is known only when the slots have taken theirs.
            if claims:
                with step:
                    self.puller.run(boards, now_s)
                    self.at(self.puller.retry_s)
        if not claims:  # who claims nothing is not hungry: no other node gives anything away for its sake
            self.puller.is_hungry = False
        # After claiming: a COMPLETE can carry the mark of a node that has just found nothing to claim.
        with step:
            self.at(self.completing.settle(now_s))
        with step:
            self._deleted.settle(now_s)
        # The mark by itself: only if no COMPLETE has taken it along.
        with step:
            self.at(self._marking.settle(now_s))
        # Others get what is left when this node's own slots have theirs and no commit of the block is under way.
        if hungry:
            with step:
                self.giving.split(hungry, now_s)
        # Backlogs of lanes differ by now: those that wait behind a long task move.
        with step:
            if self.dispatch.level(now_s):
                self.at(now_s + _LEVEL_S)
        # What running work has written can wait longest.
        with step:
            self.at(self.logs.flush(self.lanes, now_s))
        # Workers that nobody will ask for cost memory only.
        with step:
            self.at(self.lanes.dismiss(now_s, lambda submission: shared.records.state(submission, _OPEN_AGE_S)))
        # An order is crossed off when what it asks for has been done above.
        with step:
            self.orders.settle()
        self._show()
        if not step.failures:
            self.fault, self._failing_since_s = "", math.inf

    def failed(self, error: Exception, now_s: float) -> None:
        """A step of its turn raised. Its work stays here: it might break the turns of another node, too."""
        place = place_of(error)
        self.aside.add(place, None, error)
        self._failing_since_s = min(self._failing_since_s, now_s)
        if now_s - self._failing_since_s >= _FAILING_S:
            self.fault = f"its turns fail, {place}: {words_of(error)}"
        self.at(now_s + _PAUSE_S)

    def _charge_blocked(self, now_s: float) -> None:
        before = self.lanes.overdrawn
        self.at(self.lanes.charge_blocked(now_s))
        if self.lanes.overdrawn and not before:
            self.log.warning("blocked_tasks_compute", cores=self.lanes.overdrawn, why="they say that they wait, and use processors")

    def _fill(self, fill: Callable[[], object], now_s: float) -> None:
        """Placed jobs, then slots. What cannot be opened is tried again when its directory is mended, else in a second."""
        before = self.shared.home.generation
        try:
            self.jobs.settle()
            fill()
        except OSError as error:
            is_mended = self._is_mended(error, before)
            if not is_mended:
                self.strike("slot_not_opened", str(error))
            self.at(now_s if is_mended else now_s + 1.0)

    def _show(self) -> None:
        busy = self.lanes.cores - self.lanes.free_cores
        if busy != self._cores_shown:
            self._cores_shown = busy
            self._busy.set(busy)

    def at(self, at_s: float) -> None:
        """Asks for a turn at this monotonic time, if none comes before."""
        self.next_s = min(self.next_s, at_s)

    def ended(self, state: State | None, count: int, seconds: float) -> None:
        """`count` attempts ended, of `seconds` each; state None: FAILED, and may run again."""
        if state is State.COMPLETED:
            self.strikes.success()
        self.shared.metrics.ended(state, count, seconds)

    def pace(self, block: ClaimedBlock) -> float | None:
        """Seconds in which the slots take a task of it, None = unknown."""
        task_s = self.shared.times.of(block.kind)
        return task_s / self.lanes.slots_for(block.key.cores) if task_s is not None else None

    def strike(self, what: str, detail: str, account: Account | None = None) -> None:
        """The node itself failed at something. account: in whose slot."""
        user = account.name if account is not None else ""
        is_his = self.strikes.add(what, detail, machine.monotonic(), user=user)
        self.log.warning("node_failed_work", kind=what, detail=detail, user=user)
        if is_his and self.accounts is not None:
            self.accounts.bar(user, f"{what}: {detail}", OUT_S)

    def unstartable(self, block: ClaimedBlock, indices: list[int], failure: FetchFailure) -> None:
        """Tasks (no longer in ready) that cannot be started."""
        self.ends.unstartable(block, indices, failure)

    def over(self, block: ClaimedBlock) -> None:
        """Nothing of it is left to do here."""
        self.blocks.pop(block.key, None)
        self.dispatch.forget(block)

    # -- files that were removed -----------------------------------------------------------------------------------------

    def forget_lost(self) -> None:
        """What was in files that are gone is made, or fetched, again; slots without a directory end."""
        self.dispatch.forget_lost()
        self.stager.forget_lost()
        self.jobs.forget_lost()
        if self.accounts is not None:
            self.accounts.forget_lost()
        self.lanes.retire_homeless()
        self.runner.mended()

    def missed(self) -> None:
        """Work may have met files that were removed. Often called at once, when many tasks are lost together."""
        now_s = machine.monotonic()
        if now_s - self._missed_s > _MISSED_S:
            self._missed_s = now_s
            try:
                self._is_mended(FileNotFoundError(), self.shared.home.generation)
            except OSError:  # no room to write down what there is: with the next work that is lost
                self._missed_s = -math.inf

    def _is_mended(self, error: OSError, before: int) -> bool:
        """Something failed with `error`, maybe because files were removed since `before`, a generation. True: it may be tried again."""
        is_mended = self.shared.home.retry(error, before)
        if isinstance(error, FileNotFoundError):
            self.shared.forget_lost()
        return is_mended

    # -- orders ----------------------------------------------------------------------------------------------------------

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


class _Step:
    """The boundary of a step of a turn: commits, orders and all others are done whatever raises in one. failures: of this turn, so far."""

    __slots__ = ("_agent", "_now_s", "failures")

    def __init__(self, agent: NodeAgent, now_s: float) -> None:
        self._agent = agent
        self._now_s = now_s
        self.failures = 0

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failures += 1
        self._agent.failed(error, self._now_s)
        return True


@dataclass(slots=True, kw_only=True)
class Shared:
    """Parts that all nodes of a Starter share."""

    coordinator: Coordinator
    io: StoreIO
    home: Home
    forget_lost: Callable[[], None]  #: looks at all that is kept in files, and forgets what is gone
    committer: Committer
    records: RecordCache
    fetcher: Fetcher
    inputs: Inputs
    times: TaskTimes
    metrics: StarterMetrics
    settings: Callable[[], ClusterSettings]
    mailbox: Mailbox[Callable[[], object]]  #: of the thread of the nodes, which settle after each message
    environ: dict[str, str]
    output_cap: int
    spool_cap: int
    python: str
    log: Log
    peers: Peers | None = None  #: how other Starters are asked
    credentials: Credentials | None = None  #: None in an open cluster
    gate: Gate | None = None  #: of a secured cluster
    seals: Seals = OPEN  #: of checkpoints
    deeds: Deeds | None = None  #: of a secured cluster: whose values are
    users: AccountsPolicy | None = None  #: work runs as its users; None: as the Starter
    processors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: that are a node's own, none: work is not bound
    separate: bool = False  #: users never share a worker
    checkpoint_max_bytes: int = 1 << 30  #: of one job
    directory: Path = Path()  #: the Starter's own
    file_cap: int = 0  #: bytes of a file that becomes a value, 0 = as many as any value
    values_cap: int = VALUES_CAP_BYTES  #: bytes of inputs that each node reads ahead, and of all outputs on their way, in memory
    aside: Aside = field(init=False)  #: what raised where nothing should: each place in the code is logged once
    bounds: Bounds = field(default_factory=Bounds)  #: what each user may have of this Starter
    turns: defaultdict[str, Turns] = field(default_factory=lambda: defaultdict(Turns))  #: what users had, by queue
    caps: Caps = field(default_factory=Caps)  #: of users
    rows: OutputRows = field(init=False)
    claims: OutputClaims = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(self.log, self.metrics.loop_errors.inc)
        self.claims = OutputClaims(self.io.store, self.coordinator, self.deeds)
        self.rows = OutputRows(self.io, self.deeds, self.charge_of, cap_bytes=self.values_cap)

    def post(self, job: Callable[[], object]) -> None:
        """Runs `job` on the thread of the nodes, which settle then. From any thread."""
        self.mailbox.put(job)

    def after(self, delay_s: float, job: Callable[[], object]) -> Timer:
        """The same later."""
        return self.mailbox.after(delay_s, job)

    def stories(self) -> Stories:
        """Stories on that thread; what escapes from one is counted, and told once for each place in the code."""
        return Stories(self, escaped=lambda error: self.aside.add(place_of(error), None, error))

    def charge_of(self, user: str) -> Charge:
        """For something that `user`'s work is about to write into the store."""
        return Charge(self.bounds, user)

    def open_clock(self, told: Callable[[], None]) -> ClockReader:
        """Reads the clock of another machine; `told` is called on a thread of its own."""
        return ClockReader(self.credentials, told)

    def accounts(self, node: str, directory: Path, log: Log) -> Accounts | None:
        """Whose rights work has on a node, None = the Starter's. directory: for copies of files."""
        if self.users is None:
            return None
        reach = Reach(python=self.python, directory=self.directory)
        clock = machine.monotonic
        return Accounts(self.users, self.io, node=node, directory=directory, clock=clock, log=log, reach=reach)
