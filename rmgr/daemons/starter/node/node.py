"""One (virtual) node of a Starter: what it has claimed, what it runs, and what it must still commit. Methods take facts; `settle` acts.

Owned by the Starter's one thread. `settle` is level-triggered: it looks at everything and does what can be done, so no event is lost.
`Shared` is what all nodes of a Starter have in common. Parts of a node hold the node, and reach each other and `Shared` through it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import NodeRunner
from rmgr.adapters.host.workevents import TurnEvent
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust
from rmgr.adapters.rpc.ranks import Peers
from rmgr.config import Config
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.daemons.starter.checkpoint.files import seals_of
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import Fetcher
from rmgr.daemons.starter.core.home import DiskWatch, Home
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.shares import Caps, TaskTimes, Turns
from rmgr.daemons.starter.core.submissions import Gate, Nonces, RecordCache
from rmgr.daemons.starter.core.tree import Committer, IdleMark, IdleStage, settle_again
from rmgr.daemons.starter.core.uploads import StagingRoom
from rmgr.daemons.starter.execution.dispatch import Dispatcher, words_of
from rmgr.daemons.starter.execution.ends import Ends, LiveLogs, cancelled
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.daemons.starter.jobs.jobs import Jobs
from rmgr.daemons.starter.node.commits import Completing, DeletedClaims, Giving, Notes
from rmgr.daemons.starter.node.orders import Amendments, Inbox
from rmgr.daemons.starter.node.service import StarterMetrics
from rmgr.daemons.starter.node.trouble import OUT_S, DiskCaps, Strikes, TroubleMark
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.daemons.starter.pull.hands import Hands
from rmgr.daemons.starter.pull.pull import IdleMarking, Puller
from rmgr.daemons.starter.staging.accounts import Accounts, AccountsPolicy, Reach
from rmgr.daemons.starter.staging.inputs import Inputs, OutputClaims
from rmgr.daemons.starter.staging.outputs import Charge, OutputRows
from rmgr.daemons.starter.staging.stage import Stager
from rmgr.model.base import MIB, Capacity, NodeAttributes
from rmgr.model.block import BlockKey
from rmgr.model.node import Meta
from rmgr.model.states import Reason, State
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.bootstrap import read_settings
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside, place_of
from rmgr.runtime.gang_clock import ClockReader
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox, Timer
from rmgr.runtime.story import Stories

Call = Callable[[], object]
#: After giving work away, a node claims nothing beyond its free slots for this long, so that hungry nodes get it.
_NO_MORE_S = 0.25
#: Age at which the known state of a submission is still good enough where only memory is at stake.
_OPEN_AGE_S = 4.0
#: Turns that keep raising for this long are a trouble of the node; pause before the next turn.
_FAILING_S, _PAUSE_S = 5.0, 0.5
#: Shortest time between two levellings of lanes, and between two checks of files because tasks were lost.
_LEVEL_S, _MISSED_S = 0.02, 0.05


class NodeAgent:
    """One node. The Starter looks after its fence and registration."""

    def __init__(self, name: str, shared: Shared, runner: NodeRunner, *, capacity: Capacity, processors: Sequence[int] = ()) -> None:
        own, directory = shared.config, shared.directory / name
        self.name = name
        self.capacity = capacity
        self.attributes = NodeAttributes(
            partition=own.partition, site=own.site, speed=own.speed, features=own.features, call_cores=own.call_cores
        )
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
            python=own.python,
            early=shared.users is None,
            resources=capacity.resources,
            processors=processors,
        )
        self.accounts: Accounts | None = None  #: whose rights work has here, None: the Starter's
        if shared.users is not None:
            reach, clock = Reach(python=own.python, directory=shared.directory), machine.monotonic
            private = directory / "private"
            self.accounts = Accounts(shared.users, shared.io, node=name, directory=private, clock=clock, log=self.log, reach=reach)
        self.aside = shared.aside  #: errors where none should be
        self.logs = LiveLogs(shared.io, lambda: shared.settings.log_ttl_s, own.log_cap_bytes, shared.charge_of)
        self.strikes = Strikes()
        self.drains: dict[str, str] = {}  #: source -> why it wants no new work here
        self.fault = ""  #: why each turn has failed for some seconds
        self.failing_since_s = math.inf  #: start of the current series of failing turns
        self.trouble = TroubleMark(self)
        self.next_s = math.inf  #: monotonic time at which `settle` is needed even without a new fact, inf = never
        self.stager = Stager(self, directory / "stage")
        self.hands = Hands(self)
        self.completing = Completing(self)
        self.notes = Notes(self)
        self.jobs = Jobs(self, directory / "jobs")
        self.ends = Ends(self, spool=directory / "stage")
        self.dispatch = Dispatcher(self)
        self.giving = Giving(self)
        self.puller = Puller(self)
        self.amendments = Amendments(self)
        self.orders = Inbox(self)
        self.deleted = DeletedClaims(self)
        self.marking = IdleMarking(self)
        self._missed_s = -math.inf  #: when work last met missing files
        self.cores_shown = 0
        self._busy = shared.metrics.slots_busy.labels(name)

    # -- facts -----------------------------------------------------------------------------------------------------------

    def on_work(self, events: list[Any]) -> None:
        """Takes reports of the slots."""
        for event in events:
            if isinstance(event, TurnEvent):
                self.jobs.gangs.take(event)
        events = [event for event in events if not isinstance(event, TurnEvent)]
        if self.accounts is not None:
            self.accounts.saw(events)
        self.ends.take(events)

    def claimed(self, block: ClaimedBlock) -> None:
        """Adds a block that the node has claimed."""
        self.blocks[block.key] = block
        self.orders.meet(block)

    def owner_of(self, submission: int) -> str | None:
        """Returns the user of a submission, None if this node has not read its record."""
        info = self.shared.records.get(submission)
        return info.record.user if info is not None else None

    def works_ahead(self) -> bool:
        """Returns whether the node may claim ahead: not after it gave work away, nor before one of its slots is about to be free."""
        now_s = machine.monotonic()
        return now_s > self.giving.given_s + _NO_MORE_S and self.dispatch.frees_soon(now_s)

    def registered(self, incarnation: int, *, idle: bool) -> None:
        """Begins a new registration; `blocks` holds the adopted blocks."""
        self.incarnation = incarnation
        self.idle = IdleMark(IdleStage.SET if idle else IdleStage.ABSENT)
        self.stories.stop()
        self.marking.reset()
        self.trouble.reset()
        self.puller.reset()
        self.hands.reset()
        self.orders.reset()
        self.jobs.reset()
        self.notes.reset()

    def drop_block(self, block: ClaimedBlock) -> None:
        """Drops a block that is not the node's any more: kills its running tasks, ignores their ends."""
        self.blocks.pop(block.key, None)
        self.dispatch.forget(block)
        self.stop_tasks(block, None, Reason.LEASE_LOST, 0)

    def stop_tasks(self, block: ClaimedBlock, indices: frozenset[int] | None, reason: Reason, grace_us: int) -> None:
        """Ends live tasks of a block (None: all of them)."""
        if grace_us:
            self.jobs.let_go(block, grace_us)  # a stopped job of a gang could not end within the grace
        for lane in list(self.lanes):
            for seq, (other, index) in list(lane.tasks.items()):
                if other is block and (indices is None or index in indices):
                    self.lanes.stop(lane, seq, reason, grace_us)

    # -- acting ----------------------------------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether the node takes nothing new, and gives back what has not started."""
        return bool(self.drains)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is claimed, runs, or waits for a commit."""
        return not (self.blocks or self.jobs.holds or self.puller.in_flight or self.hands.is_taking) and self.lanes.is_idle

    def settle(self, boards: Sequence[PendingQueue], hungry: frozenset[str], now_s: float) -> None:
        """Does what can be done now; called only while the Starter is registered and its lease is valid.

        Each turn looks at everything, so no event is lost; facts only cause a turn. The order of steps is the algorithm, so each step says
        why it stands where it does. An exception ends only its own step.
        """
        self.next_s = math.inf
        self.trouble.settle(now_s)  # first: it may begin a quarantine, and end one
        shared, step = self.shared, _Step(self, now_s)
        is_draining = self.is_draining
        begins = not is_draining and not shared.rows.is_full  # else outputs fill the memory
        claims = begins and shared.io.pending_bytes < shared.config.spool_cap_bytes  # else outputs wait for the store
        # Work handed over by a client is already here: it comes before work that must be fetched.
        with step:
            self.hands.settle(boards, now_s)
            self.at(self.hands.due_s)
        before = step.failures
        # Work that may no longer begin (ended, revoked, draining) goes before anything else begins ...
        with step:
            self.giving.return_barred(is_draining=is_draining)
        # ... and so does work of users whom this node cannot serve: it goes back while other nodes may take it.
        with step:
            self.at(now_s + self.giving.return_refused())
        # Lost slots are replaced before work looks for a slot.
        with step:
            self.at(self.ends.reopening.settle(now_s, takes_work=not is_draining))
        may_begin = step.failures == before
        # Cores used by blocked tasks are not free: count them before any cores are given out.
        with step:
            self._charge_blocked(now_s)
        # Ended parts of gangs leave their slots before other work begins; running parts keep theirs even if nothing new begins.
        with step:
            self.at(self.jobs.gangs.settle())
        if may_begin:
            # Placed jobs first: an assignment of the leader outranks pulled work. Then work that is here gets the free slots.
            # Even where nothing new begins, a task that waits for its cores gets them: its end makes room.
            with step:
                self._fill(self.dispatch.run if begins else self.lanes.grant, now_s)
            # Only now, with the slots filled, is it known how much more is needed.
            if claims:
                with step:
                    self.puller.run(boards, now_s)
                    self.at(self.puller.retry_s)
        if not claims:  # a node that may not claim is not hungry: no other node gives work away for it
            self.puller.is_hungry = False
        # After claiming: a COMPLETE can carry the mark of a node that has just found nothing to claim.
        with step:
            self.at(self.completing.settle(now_s))
        with step:
            self.deleted.settle(now_s)
        # The mark in a commit of its own, only if no COMPLETE carried it.
        with step:
            self.at(self.marking.settle(now_s))
        # Other nodes get what is left once this node's slots have work and no commit of the block is in flight.
        if hungry:
            with step:
                self.giving.split(hungry, now_s)
        # By now the backlogs of lanes differ: tasks that wait behind a long one move.
        with step:
            if self.dispatch.level(now_s):
                self.at(now_s + _LEVEL_S)
        # Output of running work can wait longest.
        with step:
            self.at(self.logs.flush(self.lanes, now_s))
        # Workers that will not be used again only cost memory.
        with step:
            self.at(self.lanes.dismiss(now_s, lambda submission: shared.records.state(submission, _OPEN_AGE_S)))
        # Orders are crossed off once the steps above have obeyed them.
        with step:
            self.orders.settle()
        self._show()
        if not step.failures:
            self.fault, self.failing_since_s = "", math.inf

    def failed(self, error: Exception, now_s: float) -> None:
        """Handles an exception in a step of a turn. The work stays here, since it might break the turns of another node, too."""
        place = place_of(error)
        self.aside.add(place, None, error)
        self.failing_since_s = min(self.failing_since_s, now_s)
        if now_s - self.failing_since_s >= _FAILING_S:
            self.fault = f"its turns fail, {place}: {words_of(error)}"
        self.at(now_s + _PAUSE_S)

    def _charge_blocked(self, now_s: float) -> None:
        before = self.lanes.overdrawn
        self.at(self.lanes.charge_blocked(now_s))
        if self.lanes.overdrawn and not before:
            self.log.warning("blocked_tasks_compute", cores=self.lanes.overdrawn, why="they say that they wait, and use processors")

    def _fill(self, fill: Callable[[], object], now_s: float) -> None:
        """Starts placed jobs, then fills slots. If opening fails, retries at once when a missing directory was mended, else in a second."""
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
        if busy != self.cores_shown:
            self.cores_shown = busy
            self._busy.set(busy)

    def at(self, at_s: float) -> None:
        """Asks for a turn at this monotonic time, unless one comes before."""
        self.next_s = min(self.next_s, at_s)

    def ended(self, state: State | None, count: int, seconds: float) -> None:
        """Counts `count` attempts that ended after `seconds` each; state None: they FAILED and may run again."""
        if state is State.COMPLETED:
            self.strikes.success()
        self.shared.metrics.ended(state, count, seconds)

    def pace(self, block: ClaimedBlock) -> float | None:
        """Returns the seconds in which the slots together finish one task of the block, None if unknown."""
        task_s = self.shared.times.of(block.kind)
        return task_s / self.lanes.slots_for(block.key.cores) if task_s is not None else None

    def strike(self, what: str, detail: str, account: Account | None = None, *, user: str = "") -> None:
        """Counts a failure of the node itself at `what`. account: the user of the slot; user: whose work it was, if it had none."""
        user = account.name if account is not None else user
        is_his = self.strikes.add(what, detail, machine.monotonic(), user=user)
        self.log.warning("node_failed_work", kind=what, detail=detail, user=user)
        if is_his and self.accounts is not None:
            self.accounts.bar(user, f"{what}: {detail}", OUT_S)

    def over(self, block: ClaimedBlock) -> None:
        """Forgets a block with nothing left to do here."""
        self.blocks.pop(block.key, None)
        self.dispatch.forget(block)

    # -- removed files ---------------------------------------------------------------------------------------------------

    def forget_lost(self) -> None:
        """Has lost files made or fetched again; ends slots whose directory is gone."""
        self.dispatch.forget_lost()
        self.stager.forget_lost()
        self.jobs.forget_lost()
        if self.accounts is not None:
            self.accounts.forget_lost()
        self.lanes.retire_homeless()
        self.runner.mended()

    def missed(self) -> None:
        """Notes that work may have met missing files. Many lost tasks together cause many calls."""
        now_s = machine.monotonic()
        if now_s - self._missed_s > _MISSED_S:
            self._missed_s = now_s
            try:
                self._is_mended(FileNotFoundError(), self.shared.home.generation)
            except OSError:  # no space to write: tried again with the next lost task
                self._missed_s = -math.inf

    def _is_mended(self, error: OSError, before: int) -> bool:
        """Returns whether to retry what failed with `error`: missing files were made again, now or since generation `before`."""
        is_mended = self.shared.home.retry(error, before)
        if isinstance(error, FileNotFoundError):
            self.shared.forget_lost()
        return is_mended

    # -- orders ----------------------------------------------------------------------------------------------------------

    def cancel(self, block: ClaimedBlock, index: int | None, words: str, grace_us: int, *, reason: Reason = Reason.USER_CANCEL) -> None:
        """Ends tasks of a block as CANCELLED (None: all): waiting ones at once, running ones when they are dead."""
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
    """The boundary of one step of a turn: an exception in it does not stop the later steps. failures: number in this turn so far."""

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


class Shared:
    """Parts that all nodes of a Starter share.

    Attributes: agents: the nodes, by name. directory: the Starter's own. settings: the cluster's current ones. environ: variables of all
    work. mailbox: of the nodes' thread; the nodes settle after each message. aside: errors where none should be, each place in the code
    logged once. bounds: what each user may have of this Starter. users: work runs as its users; None: as the Starter. separate: users never
    share a worker. credentials: None in an open cluster. deeds, gate: of a secured cluster. turns: what users have used, by queue. caps: of
    users.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        coordinator: Coordinator,
        store: Store,
        meta: Meta,
        mailbox: Mailbox[Call],
        log: Log,
        *,
        credentials: Credentials | None,
        trust: Trust | None,
        bounds: Bounds,
        users: AccountsPolicy | None,
        store_note: Callable[[], str],
    ) -> None:
        own = self.config = config.starter
        self.agents: dict[str, NodeAgent] = {}
        self.directory = directory
        self.coordinator = coordinator
        self.cluster_id = meta.cluster_id
        self.settings = read_settings(coordinator)
        self.log = log
        self.credentials = credentials
        self.bounds = bounds
        self.users = users
        self.separate = bool(config.security.dir)
        self.environ = _way_to_the_cluster(config)
        self.store_note = store_note  #: returns what is wrong with the data store, for people
        self.mailbox = mailbox
        self.metrics = StarterMetrics()
        self.aside = Aside(log, self.metrics.loop_errors.inc)
        self.io = StoreIO(store, self.mailbox.put)
        self.home = self.io.home = Home(directory, on_mended=lambda: self.post(self.forget_lost), log=log)
        self.disk = DiskWatch(directory, self.home.mend)
        self.disk_caps = DiskCaps.of(directory, user_bytes=own.work_cap_user_bytes, all_bytes=own.work_cap_bytes)
        of_one_user = own.staging_cap_user_bytes or (own.staging_cap_bytes * 3 // 4 if users is not None else 0)
        self.room = StagingRoom(own.staging_cap_bytes, of_one_user)
        self.fetcher = Fetcher(self.io, directory / "blobs", self.room)
        self.home.forget.append(self.fetcher.uploads.forget_lost)
        self.committer = Committer(coordinator, self.mailbox, count=self.metrics.count, log=log)
        nonces = Nonces(coordinator, self.mailbox) if trust is not None else None
        self.records = RecordCache(coordinator, self.mailbox, settings=lambda: self.settings, log=log, nonces=nonces)
        self.deeds: Deeds | None = None
        self.gate: Gate | None = None
        if credentials is not None and trust is not None:
            self.deeds = Deeds(trust, meta.cluster_id, credentials, settings=lambda: self.settings)
            self.gate = Gate(credentials, trust, self.records, cluster_id=meta.cluster_id)
            trust.listen(lambda: self.post(settle_again))
        self.seals = seals_of(credentials, trust, meta)  #: of checkpoints
        self.inputs = Inputs(coordinator, deeds=self.deeds)
        self.claims = OutputClaims(self.io.store, coordinator, self.deeds)
        self.rows = OutputRows(self.io, self.deeds, self.charge_of, cap_bytes=own.values_cap_bytes)
        self.peers = Peers(credentials)  #: how to ask other Starters
        self.times = TaskTimes()
        self.turns: defaultdict[str, Turns] = defaultdict(Turns)
        self.caps = Caps()
        self.metrics.disk_bytes.set_function(lambda: self.disk.total_bytes)
        self.metrics.disk_free_bytes.set_function(lambda: self.disk.free_bytes)
        self.metrics.staged_bytes.set_function(lambda: self.room.used_bytes)
        self.metrics.values_bytes.set_function(self._held_bytes)

    def forget_lost(self) -> None:
        """Forgets files of directories that were made again."""
        self.fetcher.forget_lost()
        self.records.forget_lost()
        for agent in self.agents.values():
            agent.forget_lost()

    def _held_bytes(self) -> int:
        return self.rows.in_memory_bytes + sum(agent.stager.held_bytes for agent in self.agents.values())

    def post(self, job: Callable[[], object]) -> None:
        """Runs `job` on the nodes' thread; then the nodes settle. Any thread may call it."""
        self.mailbox.put(job)

    def after(self, delay_s: float, job: Callable[[], object]) -> Timer:
        """Runs `job` later on the nodes' thread."""
        return self.mailbox.after(delay_s, job)

    def stories(self) -> Stories:
        """Returns stories on the nodes' thread; an exception that escapes is counted, and logged once for each place in the code."""
        return Stories(self, escaped=lambda error: self.aside.add(place_of(error), None, error))

    def charge_of(self, user: str) -> Charge:
        """Returns the charge for something that `user`'s work is about to write into the store."""
        return Charge(self.bounds, user)

    def open_clock(self, told: Callable[[], None]) -> ClockReader:
        """Opens a reader of another machine's clock; `told` is called on a thread of its own."""
        return ClockReader(self.credentials, told)


def passing_directories(directory: Path, nodes: Iterable[str]) -> list[Path]:
    """Returns the directories of a Starter whose content does not outlive it."""
    return [directory / "blobs", *(directory / name / kind for name in nodes for kind in ("stage", "private", "jobs"))]


def _way_to_the_cluster(config: Config) -> dict[str, str]:
    """Returns the variables with which work finds the cluster to submit more; the Starter's own credentials are not among them."""
    own = config.security
    variables = {
        "RMGR_GATEWAY": own.work_gateway,
        "RMGR_ZK": config.cluster.zk if not own.work_gateway else "",
        "RMGR_STORE": config.cluster.store if not own.work_gateway else "",
        "RMGR_SECURITY_DIR": own.work_bundle,
        "RMGR_SECURITY_ZOOKEEPER_TLS": "true" if config.security.zookeeper_tls else "",
    }
    return {name: value for name, value in variables.items() if value}
