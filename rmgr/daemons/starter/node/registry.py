"""REGISTER: the nodes of this process get new incarnations, and blocks that stand under their names are adopted or failed.

Runs on the Starter's own thread and waits, with deadlines: an unregistered Starter has nothing else to do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import psutil

from rmgr.coord import validity
from rmgr.coord.decisions.liveness import STOPPED
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Delete, Gone, Multi, Stamped, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.tree import Committer
from rmgr.errors import CoordinationUnavailable, PermissionDenied, RmgrError, StateConflict
from rmgr.model.base.states import Reason
from rmgr.model.cluster.node import NodeRecord, NodeState, StarterEntry
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.release import release

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

T = TypeVar("T")
_TIMEOUT_S = 10.0
_POLL_S = 0.1
#: Longest wait for the last commit of a Starter.
_LEAVE_S = 2.0
#: How long beyond the session timeout the entry of a dead Starter may still stand (ticks of the server).
_SLACK_S = 2.0
#: Clock difference that still counts as "started before it registered".
_CLOCK_SLACK_S = 2.0


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
    """Registers the nodes of one Starter, again for each new session.

    Args:
        progress: called during waits (the stall guard). is_stopping: a wait ends with `Stopping` once it returns True.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        committer: Committer,
        identity: Registrant,
        *,
        progress: Callable[[], None],
        is_stopping: Callable[[], bool],
        log: Log,
    ) -> None:
        self._coordinator = coordinator
        self._committer = committer
        self._identity = identity
        self._progress = progress
        self._is_stopping = is_stopping
        self._log = log
        self.guid = ""
        self._guids: set[str] = set()
        self._records: dict[str, tuple[NodeRecord, int]] = {}  # as registered, with its version

    def register(self, agents: Sequence[NodeAgent]) -> None:
        """Registers new incarnations, then adopts or fails what stands; afterwards `agents` and committer are ready to act.

        Raises: StateConflict if another live Starter serves one of the nodes. PermissionDenied if this Starter's key was revoked.
            CoordinationUnavailable, also if the session was lost meanwhile (call again). Stopping.
        """
        self._check_revoked()
        self._drop_old_entry()
        fences = self._take_names(agents)
        failpoint("starter.after_register")
        for agent in agents:
            self._take_over(agent, self._records[agent.name][0].incarnation, fences[agent.name])
        self._committer.start(fences)

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
            if self._is_stopping():
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
                self._pause(_POLL_S)
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
        self._log.info(
            "registered", nodes=[agent.name for agent in agents], incarnation=fresh[0].incarnation, guid=self.guid, outcome=_how(outcome)
        )
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
            if record.host == self._identity.host:
                if not _lives(record):
                    continue
                certain = True
            else:
                certain = False
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
                path = f"{paths.STARTERS}/{name}"
                self._wait(self._coordinator.commit(Multi(name="UNREGISTER", ops=(Delete(path),), proof=Gone(path)), timeout_s=_TIMEOUT_S))

    # -- blocks that stand under a name ----------------------------------------------------------------------------------

    def _take_over(self, agent: NodeAgent, incarnation: int, fence: int) -> None:
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
            self._progress()
            try:
                return future.result(0.5)
            except TimeoutError:
                if machine.monotonic() > deadline_s:
                    raise CoordinationUnavailable("ZooKeeper does not answer") from None
            if self._is_stopping() and machine.monotonic() > deadline_s - _TIMEOUT_S / 2:
                raise Stopping

    def _pause(self, seconds: float) -> None:
        self._progress()
        machine.sleep(seconds)


def _lives(record: NodeRecord) -> bool:
    """Returns whether the process that wrote the record lives on this host (its pid may belong to another process by now)."""
    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() <= record.registered_us / 1e6 + _CLOCK_SLACK_S
    except psutil.Error:
        return False


def _how(outcome: Committed) -> str:
    return "read back" if outcome.resolved else "committed"


def _is_placed_now(incarnation: int, found: Stamped) -> bool:
    data = decode_block(found.data)
    return data.allocation is not None and data.incarnation == incarnation
