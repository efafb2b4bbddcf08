"""The Starter's loop: one thread, one mailbox. Session and lease decide whether its nodes may act; the nodes do the rest. Also its end.

    registered, lease valid      nodes settle after each batch of messages: dispatch, claim, commit
    SUSPENDED                    the same until the lease is over: commits wait in the adapter, work runs on
    lease over                   nothing is claimed or committed; exclusive work is dead by now; the rest runs on
    new session, or fenced       REGISTER as a new incarnation: adopts what still stands, kills everything else

REGISTER (`Registry`) waits on the Starter's own thread, with deadlines: an unregistered Starter has nothing else to do.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
import psutil

from rmgr.adapters.host.leftovers import born
from rmgr.coord import validity
from rmgr.coord.decisions.liveness import STOPPED
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.membership import unregister
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Stamped, Unknown
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import was_quiet
from rmgr.daemons.starter.core.tree import CountedChildren, WatchedZnode
from rmgr.daemons.starter.node.node import Call, NodeAgent, Shared, passing_directories
from rmgr.daemons.starter.node.trouble import Drains
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.errors import CoordinationUnavailable, PermissionDenied, QuotaReached, RmgrError, StateConflict, VersionMismatch, WrongCluster
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import NodeRecord, NodeState, StarterEntry
from rmgr.model.queue import CappedUse, ClusterSettings, Dispatch
from rmgr.model.states import Reason
from rmgr.model.version import check_release, release
from rmgr.procedures.bootstrap import check_same, read_meta
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Backoff, Log
from rmgr.runtime.mailbox import run_loop
from rmgr.runtime.supervision import Lease, Notifier, StallGuard

T = TypeVar("T")
V = TypeVar("V")
#: Most messages handled before the nodes settle.
_MESSAGES = 200
#: Longest pause of the loop; and the same while all nodes are empty and the last turn brought no message.
_ROUND_S, _QUIET_ROUND_S = 1.0, 2.5
#: After the grace: time between SIGTERM and SIGKILL of work, and time for the commits of its failures.
KILL_GRACE_S, LAST_COMMITS_S = 2.0, 5.0
#: Time that closing the process may take after that.
CLOSE_S = 8.0
#: Time without contact after which a stopping Starter ends.
_NO_CONTACT_S = 3.0
#: Time limit of a request of REGISTER, and pause before a name that is taken is looked at again.
_TIMEOUT_S, _POLL_S = 10.0, 0.1
#: Longest wait for the last commit of a Starter.
_LEAVE_S = 2.0
#: How long beyond the session timeout the entry of a dead Starter may still stand (ticks of the server).
_SLACK_S = 2.0


class Starter:
    """All nodes of one process. identity: under which they register."""

    def __init__(self, shared: Shared, identity: Registrant) -> None:
        self.shared = shared
        self.agents = agents = shared.agents
        self.failure: RmgrError | None = None
        self.mailbox = shared.mailbox
        self._coordinator = shared.coordinator
        self._committer = shared.committer
        self._io = shared.io
        self._metrics = shared.metrics
        self._log = shared.log
        self.registry = Registry(self, identity)
        self._drains = Drains(shared)
        self._end = StarterEnd(agents.values(), grace_s=shared.config.stop_grace_s, log=shared.log)
        self._lease = Lease(shared.coordinator)
        self._session = SessionState.LOST
        self._retry_register_s: float | None = None  #: monotonic time of the next try, None = at once
        self._backoff = Backoff(0.1, 2.0)
        self._was_acting = self._was_quiet = False
        self._round_s = _QUIET_ROUND_S  #: the service manager may want more frequent beats
        self._usage_version = -1
        self._boards: list[PendingQueue] = []
        self._hungry: frozenset[str] = frozenset()
        self._told_to_stop = False
        self._finished = False
        self._guard: StallGuard | None = None
        self._notifier: Notifier | None = None
        self._renewed_s: float | None = None  #: None = no exclusive work is here
        self._spooled = 0  #: bytes, as the metric shows them
        self._hold_watches = {
            name: self._watch(shared.coordinator.children, paths.hold(name), self._on_holds, name, resync_s=math.inf) for name in agents
        }
        self._held = {name: CountedChildren() for name in agents}
        self._usage_watch = self._watch(shared.coordinator.get, paths.USAGE, self._on_usage)
        self._watches = self._make_watches()
        self._idle_watch = self._watch(shared.coordinator.children, paths.IDLE, self._on_idle, resync_s=2.0)
        shared.committer.on_fenced = self.on_fenced
        self.use_settings(shared.settings)

    @property
    def is_stopping(self) -> bool:
        """Whether its end was ordered."""
        return self._end.has_begun or self._told_to_stop

    def unable(self) -> str:
        """Returns why no node takes new work; "" if some node does, or only an operator has drained it. From any thread."""
        if not self._was_acting:
            return f"nothing is claimed: {self._why_not()}"
        whys = [[why for who, why in list(agent.drains.items()) if who != "operator"] for agent in self.agents.values()]
        return "; ".join(dict.fromkeys(why for each in whys for why in each)) if all(whys) else ""

    # -- from any thread -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drains and then ends the Starter, for SIGTERM or SIGINT; ends it now when called again."""
        self._told_to_stop = True
        self.mailbox.put(self._on_stop)

    def ask(self, question: Callable[[], T], timeout_s: float = 5.0) -> T:
        """Returns the answer of the thread that owns the state. Raises: TimeoutError."""
        return self.mailbox.ask(question).result(timeout_s)

    # -- the loop ----------------------------------------------------------------------------------------------------------

    def serve(self, guard: StallGuard, notifier: Notifier | None = None) -> None:
        """Runs until it is stopped, until another Starter takes the name, or until it meets another cluster."""
        self.begin(guard, notifier)
        run_loop(self)
        if self.failure is None and self._committer.may_commit:
            self.registry.leave([name for name, agent in self.agents.items() if agent.is_empty])

    def begin(self, guard: StallGuard | None = None, notifier: Notifier | None = None) -> None:
        """Listens to the session; from now on `turn` may be called (see `LoopOwner`)."""
        self._guard, self._notifier = guard, notifier
        self._coordinator.listen(lambda state: self.mailbox.put(lambda: self._on_session(state)))
        if notifier is not None:
            self._round_s = notifier.round_s(_QUIET_ROUND_S)
        self._come_round()

    def turn(self, message: Call | None) -> bool:
        """See `LoopOwner`. Handles the message and those behind it, then the nodes settle."""
        self._was_quiet = message is None
        started_s = machine.perf_counter()
        is_quiet = False
        if message is not None:
            self._handle(message)
            is_quiet = was_quiet(message)
            for more in self.mailbox.drain(_MESSAGES):
                self._handle(more)
                is_quiet = was_quiet(more) and is_quiet
        if not is_quiet or self.wait_s() <= 0:
            self._handle(self._settle)
        self._metrics.pass_seconds.observe(machine.perf_counter() - started_s)
        self._come_round()
        return not self._finished

    def _come_round(self) -> None:
        """Shows the stall guard and the service manager that the loop makes progress."""
        self.progress()
        if self._notifier is not None:
            self._notify(self._notifier)
        if not self._finished:
            failpoint("starter.round")

    def progress(self) -> None:
        """Shows the stall guard that the loop makes progress."""
        if self._guard is not None:
            self._guard.progress()

    def _notify(self, notifier: Notifier) -> None:
        """Reports to the service manager: ready once the nodes are registered, and what the Starter does."""
        if self._end.has_begun:
            notifier.stopping(within_s=self._end.within_s(machine.monotonic()))
            notifier.tell("draining")
            return
        if self._was_acting:
            notifier.ready()
        drains = "; ".join(f"{agent.name} drained: {why}" for agent in self.agents.values() for why in agent.drains.values())
        serving = f"serving {', '.join(self.agents)}" if self._was_acting else f"degraded: nothing is claimed, {self._why_not()}"
        if note := self.shared.store_note():
            serving = f"{serving}; degraded: {note}"
        notifier.tell(f"{serving}; {drains}" if drains else serving)

    def _handle(self, message: Call) -> None:
        self.shared.aside.attempt(message)  # loop boundary: one bad message must not end the node's work

    def wait_s(self) -> float:
        """See `LoopOwner`."""
        now_s = machine.monotonic()
        until_s = now_s + min(self._round_s, _QUIET_ROUND_S if self._is_quiet else _ROUND_S)
        if self._was_acting:
            until_s = min(until_s, self._lease.valid_until_s())
            until_s = min([until_s, *(agent.next_s for agent in self.agents.values())])
            until_s = min(until_s, self._renewed_s + self._lease.length_s / 8) if self._renewed_s is not None else until_s
        elif self._retry_register_s is not None:
            until_s = min(until_s, self._retry_register_s)
        if self._end.has_begun:
            until_s = min(until_s, now_s + 0.1)
        return max(0.0, until_s - now_s)

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is here that might need a retry, or become a reason to drain a node."""
        idle = self._was_quiet and self._was_acting and not self._committer.in_flight and not self._io.pending_bytes
        return idle and all(agent.is_empty and not agent.drains for agent in self.agents.values())

    def _settle(self) -> None:
        now_s = machine.monotonic()
        is_due = self._retry_register_s is None or now_s >= self._retry_register_s
        if not self._committer.is_registered and self._session is SessionState.CONNECTED and is_due:
            self._register()
            now_s = machine.monotonic()
        acting = self._committer.is_registered and self._lease.is_valid()
        self._committer.is_paused = not acting
        if acting != self._was_acting:
            self._was_acting = acting
            self._log.info("acting" if acting else "acting_stopped", why="" if acting else self._why_not())
        self._io.settle(now_s)
        self._drains.settle(now_s)
        if acting:
            self._renew_leases(now_s)
            hungry = self._hungry
            for agent in self.agents.values():
                try:
                    agent.settle(self._boards, hungry, now_s)
                except Exception as error:  # noqa: BLE001 - the boundary of one node: its neighbours in this process go on
                    agent.failed(error, now_s)
            self._watch_hungry()
        else:
            for agent in self.agents.values():
                self.shared.aside.attempt(agent.jobs.gangs.turn_on)
        if (pending := self._io.pending_bytes) != self._spooled:
            self._spooled = pending
            self._metrics.spooled_bytes.set(pending)
        if self._end.has_begun and self._end.is_over(now_s, acting=acting, committing=bool(self._committer.in_flight)):
            self._finished = True

    def _why_not(self) -> str:
        return "the lease is over" if self._committer.is_registered else "not registered"

    # -- session, lease, fence -----------------------------------------------------------------------------------------------

    def _on_session(self, state: SessionState) -> None:
        if state is not self._session:
            self._log.info("session", state=state.value, session_id=f"{self._coordinator.session_id:#x}")
        self._session = state
        if state is SessionState.LOST:
            self._unregister("the session is gone")
        elif state is SessionState.CONNECTED:
            self._retry_register_s = None

    def on_fenced(self, node: str) -> None:
        """Drops all work of a node whose fence has moved: to the cluster it is dead."""
        if not self._committer.is_registered:
            return
        self._log.error("node_fenced", node=node)
        agent = self.agents[node]
        for block in list(agent.blocks.values()):
            agent.drop_block(block)
        agent.jobs.holds.lose()
        self._unregister("fenced")

    def _unregister(self, why: str) -> None:
        if self._committer.is_registered:
            self._log.warning("registration_over", why=why)
        self._committer.stop()
        for watched in [*self._watches, *self._hold_watches.values(), self._idle_watch]:
            watched.stop()
        self._hungry = frozenset()

    def _register(self) -> None:
        try:
            check_release(check_same(read_meta(self._coordinator), self.shared.cluster_id))  # the cluster may have been upgraded meanwhile
            fences = self.registry.register(list(self.agents.values()))
            if self.shared.gate is not None:
                self.shared.gate.registered(self.registry.registered_ms(next(iter(self.agents))))
            self._committer.start(fences)  # only now: whatever fails before, the whole registration is tried again
        except (PermissionDenied, StateConflict, VersionMismatch, WrongCluster) as error:
            self._log.error("starter_gives_up", error=error.message)
            self.failure = error
            self._finished = True
        except Stopping:
            self._finished = True
        except (CoordinationUnavailable, QuotaReached, KeyError) as error:
            self._retry_register_s = machine.monotonic() + self._backoff.next_s()
            self._log.warning("not_registered", error=str(error))
        else:
            self._backoff.reset()
            self._retry_register_s = None
            self._metrics.registrations.inc()
            self._lease.rearm()
            for board in self._boards:
                board.reset()
            for watched in self._watches:
                watched.start()

    def _renew_leases(self, now_s: float) -> None:
        """Passes the lease on to the spawners: exclusive work lives as long as the lease that its spawner knows.

        Before a hold has its cores, too: its program would begin without a lease, and end at once.
        """
        infos = {block.info for agent in self.agents.values() for block in agent.blocks.values()}
        infos |= {self.shared.records.get(hold.submission) for agent in self.agents.values() for hold in agent.jobs.holds}
        if not any(info is not None and info.is_exclusive for info in infos):
            self._renewed_s = None
            return
        if self._renewed_s is not None and now_s - self._renewed_s < self._lease.length_s / 8 * 0.9:
            return
        self._renewed_s = now_s
        end_ns = machine.boottime_ns() + int(self._lease.remaining_s() * 1e9)
        for agent in self.agents.values():
            agent.runner.renew_lease(end_ns)

    # -- watches -----------------------------------------------------------------------------------------------------------

    def _watch(
        self, ask: Callable[..., Future[V]], path: str, tell: Callable[..., object], *about: object, **options: float
    ) -> WatchedZnode[V]:
        return WatchedZnode(ask, path, tell, *about, loop=self.shared, aside=self.shared.aside, **options)

    def _make_watches(self) -> list[WatchedZnode[Any]]:
        get = self._coordinator.get
        watches: list[WatchedZnode[Any]] = [self._watch(get, paths.CONFIG, self._on_settings), self._usage_watch]
        for name, agent in self.agents.items():
            watches.append(self._watch(get, paths.node(name), self._on_record, name))
            watches.append(self._watch(get, paths.drain(name), self._drains.ordered, agent))
            watches.append(self._watch(get, paths.hold(name), self._on_hold_place, name))
        return watches

    def _on_holds(self, node: str, names: list[str] | None) -> None:
        self._held[node].listed(names or ())
        self.agents[node].jobs.holds.seen(names)

    def _on_hold_place(self, node: str, found: Stamped | None) -> None:
        """Starts or stops watching a node's holds; the leader makes their parent with the first hold.

        Holds are made and deleted, never changed: as long as the counts of the parent agree with the known holds, no watch was lost.
        """
        watched, held = self._hold_watches[node], self._held[node]
        if found is None:
            watched.stop()
            self.agents[node].jobs.holds.seen(None)
        elif not watched.is_on or held.has_missed(found.stat):
            held.list_from(found.stat)
            (watched.look if watched.is_on else watched.start)()

    def _on_record(self, node: str, found: Stamped | None) -> None:
        """Handles the node's record: has this Starter been declared dead meanwhile?"""
        if self._committer.is_registered and (found is None or found.version != self._committer.fence(node)):
            self.on_fenced(node)

    def _on_settings(self, found: Stamped | None) -> None:
        settings = decode_record(found.data, ClusterSettings, paths.CONFIG) if found is not None and found.data else ClusterSettings()
        if settings != self.shared.settings or not self._boards:
            self.use_settings(settings)
        for board in self._boards:
            board.since = found.stat.mzxid if found is not None else 0

    def _on_usage(self, found: Stamped | None) -> None:
        if found is not None and found.version != self._usage_version:
            self._usage_version = found.version
            for name, agent in self.agents.items():
                self.shared.caps.uses(name, agent.puller.in_use(), agent.lanes.cores)
            self.shared.caps.told(decode_record(found.data, CappedUse, paths.USAGE))

    def use_settings(self, settings: ClusterSettings) -> None:
        """Uses the queues of this Starter's partition, highest rank first."""
        self.shared.settings = settings
        self.shared.caps.limits = settings.limits
        old = {board.spec.name: board for board in self._boards}
        wanted = [queue for queue in settings.queues if queue.partition == self.shared.config.partition and queue.dispatch is Dispatch.PULL]
        boards = []
        for queue in sorted(wanted, key=lambda queue: (-queue.rank, queue.name)):
            board = old.get(queue.name)
            if board is None:
                salt, turns = next(iter(self.agents)), self.shared.turns[queue.name]
                board = PendingQueue(queue, self._coordinator, post=self.mailbox.put, salt=salt, turns=turns)
            board.spec = queue
            boards.append(board)
        self._boards = boards
        self._log.info("queues", total=len(boards), name=",".join(board.spec.name for board in boards))

    def _watch_hungry(self) -> None:
        """Watches /idle while a node has work to give, and only then."""
        wanted = any(agent.giving.has_tail() for agent in self.agents.values())
        if wanted and not self._idle_watch.is_on:
            self._idle_watch.start()
        elif not wanted and self._idle_watch.is_on:
            self._idle_watch.stop()
            self._hungry = frozenset()

    def _on_idle(self, names: Sequence[str] | None) -> None:
        self._hungry = frozenset(names or ())

    # -- the end -------------------------------------------------------------------------------------------------------------

    def _on_stop(self) -> None:
        self._drains.stopping()
        self._end.begin(machine.monotonic())

    def close(self) -> None:
        """Ends all work, processes and threads (the caller ends the session)."""
        for agent in self.agents.values():
            agent.runner.close(timeout_s=3.0)
        self._io.close()
        self.shared.peers.close()
        for directory in passing_directories(self.shared.directory, self.agents):
            remove_tree(directory)


# -- the end ---------------------------------------------------------------------------------------------------------------
# The end of a Starter: its nodes take no new work, running work has a grace to end by itself, and is then killed.
#     running --stop--> draining --all nodes empty----------------------> over
#                          | grace over: work is killed --all empty-----> over
#                          | no contact, or the kills take too long ----> over, with a warning


class StarterEnd:
    """Decides when a Starter that stops is over, and kills what runs too long.

    Args: grace_s: how long running work may take to end by itself.
    """

    def __init__(self, nodes: Collection[NodeAgent], *, grace_s: float, log: Log) -> None:
        self._nodes = nodes
        self._grace_s = grace_s
        self._log = log
        self._kill_s = math.inf  #: when running work is killed (monotonic)
        self.has_begun = False  #: the end was ordered
        self._silent_since_s: float | None = None
        self._killed: set[ClaimedBlock] = set()

    def begin(self, now_s: float) -> None:
        """Gives running work its grace at the first call, ends it now at the second."""
        self._kill_s = min(self._kill_s, now_s if self.has_begun else now_s + self._grace_s)
        self.has_begun = True
        self._log.info("stopping", deadline_s=round(self._kill_s - now_s, 1))

    def within_s(self, now_s: float) -> float:
        """Returns the seconds after which the process is gone at the latest."""
        return self._kill_s - now_s + KILL_GRACE_S + LAST_COMMITS_S + CLOSE_S

    def is_over(self, now_s: float, *, acting: bool, committing: bool) -> bool:
        """Returns whether the Starter ends now; kills what still runs after the grace. acting: registered, with a valid lease."""
        if acting:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = now_s
        if not committing and all(node.is_empty for node in self._nodes):
            return True
        is_silent = self._silent_since_s is not None and now_s - self._silent_since_s > _NO_CONTACT_S
        if is_silent or now_s > self._kill_s + KILL_GRACE_S + LAST_COMMITS_S:
            self._log.warning("stopped_with_work", total=sum(len(node.blocks) for node in self._nodes))
            return True
        if now_s >= self._kill_s:
            self._kill()
        return False

    def _kill(self) -> None:
        for node in self._nodes:
            for block in list(node.blocks.values()):
                if block.live and block not in self._killed:
                    self._killed.add(block)
                    node.stop_tasks(block, None, Reason.NODE_LOST, int(KILL_GRACE_S * 1e6))


# -- registration ----------------------------------------------------------------------------------------------------------


class Stopping(Exception):
    """The process is being stopped while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrant:
    """Identity of a Starter that registers."""

    endpoint: str
    host: str = socket.gethostname()
    pid: int = field(default_factory=os.getpid)
    key_id: str = ""  #: of its signing key, "" in an open cluster
    line: str = ""  #: host:port for direct lines, "" if none
    metrics: str = ""  #: host:port of the metrics


class Registry:
    """Registers the nodes of one Starter, again for each new session. Its waits end with `Stopping` once the Starter is stopping."""

    def __init__(self, starter: Starter, identity: Registrant) -> None:
        self._starter = starter
        self._coordinator, self._log = starter.shared.coordinator, starter.shared.log
        self._identity = identity
        self.guid = ""
        self._guids: set[str] = set()
        self._records: dict[str, tuple[NodeRecord, int]] = {}  # as registered, with its version

    def register(self, agents: Sequence[NodeAgent]) -> dict[str, int]:
        """Registers new incarnations, then adopts or fails what stands. Returns the fences under which `agents` may act now.

        Raises: StateConflict if another live Starter serves one of the nodes. PermissionDenied if this Starter's key was revoked.
            CoordinationUnavailable, also if the session was lost meanwhile (call again). Stopping.
        """
        self._check_revoked()
        self._drop_old_entry()
        fences = self._take_names(agents)
        failpoint("starter.after_register")
        for agent in agents:
            self.take_over(agent, self._records[agent.name][0].incarnation, fences[agent.name])
        return fences

    def _check_revoked(self) -> None:
        """Raises PermissionDenied if this Starter's key was revoked: nothing that it signs would be believed."""
        key_id = self._identity.key_id
        if key_id and self._wait(self._coordinator.stat(paths.revoked(key_id))) is not None:
            hint = "a new one comes from the cluster's admin: rmgr admin add-node NAME"
            raise PermissionDenied(f"the key of this Starter ({key_id}) was revoked", hint=hint)

    def leave(self, names: Sequence[str]) -> None:
        """Commits that these nodes, which have no claims, end in good order. Waits `_LEAVE_S` at most; otherwise they count as lost."""
        left = [self._records[name] for name in names if name in self._records]
        if not left:
            return
        with suppress(FutureTimeout):
            outcome = self._coordinator.commit(ops.leave(left, STOPPED), timeout_s=_LEAVE_S).result(_LEAVE_S)
            self._log.info("left", nodes=[record.node for record, _ in left], outcome=type(outcome).__name__)

    # -- names -------------------------------------------------------------------------------------------------------------

    def _take_names(self, agents: Sequence[NodeAgent]) -> dict[str, int]:
        deadline_s = machine.monotonic() + self._coordinator.session_timeout_s + _SLACK_S
        is_logged = False
        while True:
            if self._starter.is_stopping:
                raise Stopping
            found = [self._wait(self._coordinator.get(paths.node(agent.name))) for agent in agents]
            records = [None if one is None else decode_record(one.data, NodeRecord) for one in found]
            rival = self._rival([record for record in records if record is not None])
            if rival is not None:
                record, certain = rival
                where = f"node {record.node} is already served by pid {record.pid} on host {record.host}"
                if certain or machine.monotonic() > deadline_s:
                    raise StateConflict(where, hint="give this Starter another name (--node), or stop the other one")
                if not is_logged:
                    self._log.warning("name_taken", node=record.node, pid=record.pid, host=record.host, why="waiting for it to go")
                    is_logged = True
                self._starter.progress()
                machine.sleep(_POLL_S)
                continue
            fences = self._commit_register(agents, found, records)
            if fences is not None:
                return fences

    def _commit_register(
        self, agents: Sequence[NodeAgent], found: Sequence[Stamped | None], records: Sequence[NodeRecord | None]
    ) -> dict[str, int] | None:
        """Tries once to commit REGISTER; None if another process changed a record meanwhile."""
        self.guid = machine.guid()[:16]
        self._guids.add(self.guid)
        now_us = machine.wall_us()
        fresh = [
            NodeRecord(
                node=agent.name,
                incarnation=(record.incarnation if record is not None else 0) + 1,
                state=NodeState.UP,
                guid=self.guid,
                capacity=agent.capacity,
                attributes=agent.attributes,
                endpoint=self._identity.endpoint,
                host=self._identity.host,
                pid=self._identity.pid,
                born=born(self._identity.pid) or "",
                registered_us=now_us,
                version=release().version,
                protocol=release().protocol,
                key_id=self._identity.key_id,
                takes_handed=True,
                takes_left=True,
                line=self._identity.line,
                metrics=self._identity.metrics,
                leaves=True,
                life=agent.jobs.holds.life,
                freezer=agent.runner.freezer,
            )
            for agent, record in zip(agents, records, strict=True)
        ]
        entry = StarterEntry(
            guid=self.guid,
            nodes=tuple(agent.name for agent in agents),
            endpoint=self._identity.endpoint,
            host=self._identity.host,
            pid=self._identity.pid,
        )
        multi = ops.register([(record, None if old is None else old.version) for record, old in zip(fresh, found, strict=True)], entry)
        failpoint("starter.before_register")
        outcome = self._wait(self._coordinator.commit(multi, timeout_s=_TIMEOUT_S))
        if isinstance(outcome, Unknown):
            raise CoordinationUnavailable(f"it is not known whether the node was registered: {outcome.cause}")
        if isinstance(outcome, Conflict):
            return None
        fences = {agent.name: 0 if old is None else old.version + 1 for agent, old in zip(agents, found, strict=True)}
        self._records = {record.node: (record, fences[record.node]) for record in fresh}
        names, how = [agent.name for agent in agents], "read back" if outcome.resolved else "committed"
        self._log.info("registered", nodes=names, incarnation=fresh[0].incarnation, guid=self.guid, outcome=how)
        return fences

    def registered_ms(self, node: str) -> int:
        """Asks ZooKeeper when it registered the node, by its clock; 0 = not known. Raises: as `register`."""
        stat = self._wait(self._coordinator.stat(paths.node(node)))
        return stat.mtime_ms if stat is not None else 0

    def _rival(self, records: Sequence[NodeRecord]) -> tuple[NodeRecord, bool] | None:
        """Returns a record whose Starter may be alive, and whether it certainly is; None if there is none."""
        alive = None
        for record in records:
            if record.guid in self._guids or record.state is NodeState.FENCED:
                continue
            certain = record.host == self._identity.host and bool(record.born)
            if certain and not _lives(record):
                continue
            if alive is None:
                names = self._wait(self._coordinator.children(paths.STARTERS)) or []
                alive = {paths.entry_guid(name) for name in names}
            if record.guid in alive:
                return record, certain
        return None

    def _drop_old_entry(self) -> None:
        """Deletes old entries of this process: after a fence the session may still hold one."""
        if not self.guid:
            return
        names = self._wait(self._coordinator.children(paths.STARTERS)) or []
        for name in names:
            if paths.entry_guid(name) in self._guids:
                self._wait(self._coordinator.commit(unregister(f"{paths.STARTERS}/{name}"), timeout_s=_TIMEOUT_S))

    # -- blocks that stand under a name ----------------------------------------------------------------------------------

    def take_over(self, agent: NodeAgent, incarnation: int, fence: int) -> None:
        """Registers the node under `incarnation`: goes on with what this process still has, fails what an older process left."""
        names = self._wait(self._coordinator.children(paths.running_node(agent.name))) or []
        standing: dict[BlockKey, Stamped] = {}
        reads = [(key, self._coordinator.get(f"{paths.running_node(agent.name)}/{name}")) for name, key in paths.blocks_in(names)]
        for key, read in reads:
            found = self._wait(read)
            if found is not None and self._is_block(agent.name, key, found):
                standing[key] = found
        for lost in [block for key, block in agent.blocks.items() if key not in standing]:
            self._log.info("block_dropped", node=agent.name, block=paths.block_name(lost.key), why="it was decided without us")
            agent.drop_block(lost)
        in_doubt = agent.puller.in_doubt()
        idle = self._wait(self._coordinator.stat(paths.idle(agent.name))) is not None
        agent.registered(incarnation, idle=idle)
        commits: list[tuple[BlockKey, Future[Any]]] = []
        for key, found in standing.items():
            block = agent.blocks.get(key)
            if block is None and key in in_doubt:
                block = agent.blocks[key] = in_doubt[key]
            if block is not None:
                commits.append((key, self._adopt(agent.name, incarnation, fence, block, found)))
            elif _is_placed_now(incarnation, found):
                continue  # placed since this registration: its START order is in the inbox
            else:
                failed = self._fail(agent.name, fence, key, found)
                if failed is not None:
                    commits.append((key, failed))
        for key, commit in commits:
            outcome = self._wait(commit)
            block = agent.blocks.get(key)
            if isinstance(outcome, Unknown):
                raise CoordinationUnavailable(f"it is not known what became of {paths.block_name(key)}: {outcome.cause}")
            if block is None:
                continue
            if isinstance(outcome, Conflict):
                agent.drop_block(block)
            else:
                block.version += 1

    def _is_block(self, node: str, key: BlockKey, found: Stamped) -> bool:
        """Returns whether `found` is a block, and logs if not. Callers that may hand work over can write anything; the node comes back all
        the same."""
        try:
            validity.decode(found.data, BlockData, paths.block_name(key))
        except RmgrError as error:
            self._log.error("block_unreadable", node=node, block=paths.block_name(key), error=error.message)
            return False
        return True

    def _adopt(self, node: str, incarnation: int, fence: int, block: ClaimedBlock, found: Stamped) -> Future[Any]:
        data = msgspec.structs.replace(decode_block(found.data), incarnation=incarnation, stamp=machine.guid()[:12])
        block.reread(data, found.version, machine.monotonic())
        multi = ops.adopt(node, fence, block.key, data, found.version)
        self._log.info("block_adopted", node=node, block=paths.block_name(block.key), running=block.live)
        return self._coordinator.commit(multi, timeout_s=_TIMEOUT_S)

    def _fail(self, node: str, fence: int, key: BlockKey, found: Stamped) -> Future[Any] | None:
        record = self._wait(self._coordinator.get(paths.sub(key.submission)))
        if record is None:
            self._log.error("block_without_record", node=node, block=paths.block_name(key))
            return None
        try:
            queue = validity.submission(record.data, key.submission).queue
        except RmgrError as error:  # one bad record must not keep a whole node away
            self._log.error("submission_unreadable", submission=key.submission, error=error.message)
            return None
        multi = leader_ops.fail(
            ops.fence_check(node, fence),
            node,
            queue,
            key,
            found.data,
            found.version,
            reason=Reason.NODE_LOST,
            now_us=machine.wall_us(),
        )
        self._log.info("block_failed", node=node, block=paths.block_name(key), why="an older incarnation left it")
        return self._coordinator.commit(replace(multi, guard=ops.fence_check(node, fence)), timeout_s=_TIMEOUT_S)

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def _wait(self, future: Future[T]) -> T:
        deadline_s = machine.monotonic() + _TIMEOUT_S + 1.0
        while True:
            self._starter.progress()
            try:
                return future.result(0.5)
            except TimeoutError:
                if machine.monotonic() > deadline_s:
                    raise CoordinationUnavailable("ZooKeeper does not answer") from None
            if self._starter.is_stopping and machine.monotonic() > deadline_s - _TIMEOUT_S / 2:
                raise Stopping


def _lives(record: NodeRecord) -> bool:
    """Returns whether the process that wrote the record lives on this host (its pid may belong to another process by now)."""
    try:
        return born(record.pid) == record.born and psutil.Process(record.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_placed_now(incarnation: int, found: Stamped) -> bool:
    data = decode_block(found.data)
    return data.allocation is not None and data.incarnation == incarnation
