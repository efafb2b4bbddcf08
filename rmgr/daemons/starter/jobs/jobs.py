"""Placed jobs on the node that runs their script: their START orders become claimed blocks, with an environment and a host file.

A block that the leader has put under `/running/<node>` is this node's own as soon as its order was read. From then on it is like a pulled
block, except that it starts before all of them, and that nothing is pulled while it waits for room. The other nodes of a job are ready
before it starts, watched while it runs, and asked when it has ended badly:

    start    the head takes its own cores (a seat), so that nothing pulled gets between, and asks each helper's Starter over gRPC; the block
             goes back to its queue if the start is not complete within the cluster's `barrier_us`
    running  a node that was fenced, or where all work was killed, is lost to its job. Its record shows both, also for a Starter that died
             and came back before it was fenced: the node that runs the script watches the records of the job's other nodes
    bad end  by itself, or because the system lost some of its ranks? A process that waits for ranks on a dying node learns of it before
             the cluster does, and fails. So a bad end is committed only after all other nodes of the job have answered that they are
             unchanged. It is NODE_LOST, whatever the exit code, if a node has died, was fenced or stays silent, or if the system ended
             ranks there (`Door.lost`)
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import UNREADABLE, cut, decode_block, decode_record
from rmgr.daemons.starter.checkpoint.checkpoint import Checkpoints
from rmgr.daemons.starter.checkpoint.directories import DirectoryPool, HelperParts
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.tree import SELDOM_S, WatchedZnode, record_of, settle_again
from rmgr.daemons.starter.execution.gangs import OVERRAN, Gangs
from rmgr.daemons.starter.execution.holds import HeldParts, Reservations
from rmgr.daemons.starter.jobs.ranks import Door
from rmgr.daemons.starter.staging.accounts import hand_over
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.errors import CoordinationUnavailable, RmgrError
from rmgr.log import audit
from rmgr.model.base import share_variable
from rmgr.model.block import Allocation, BlockData, BlockKey, run_label, story_line
from rmgr.model.frames import BatchShape
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.states import Reason
from rmgr.runner.host import home
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: How long to try to reach a node with an order to suspend.
_SUSPEND_S = 10.0
#: Most shapes of jobs that are kept.
_SHAPES = 64
#: Pause after a block could not be read, and after the record of its submission could not be read.
_PAUSE_S, REFUSED_S = 0.5, 5.0
#: Reasons that a spawner reports for work killed by the turner.
_KILLED = frozenset({Reason.SIGNAL, Reason.WORKER_LOST})
#: Ends that may be caused by lack of memory on another node of the job.
_STARVING = frozenset({Reason.OUT_OF_MEMORY, Reason.EXIT_CODE, Reason.SIGNAL, Reason.EXCEPTION})
#: `rmgr` as a job's script finds it, whatever its PATH was; it starts without the time to load the command line's library.
_PROGRAM = """import sys
sys.path.insert(0, {root!r})
from rmgr.runner.ranks.client import main
sys.exit(main(sys.argv[1:]))"""
_RMGR = '#!/bin/sh\nexec {python} -I -S -c {program} "$@"\n'
#: The program that mpirun takes for ssh.
_AGENT = '#!/bin/sh\nexec "${0%/*}/bin/rmgr" agent "$@"\n'
#: Pause before a helper that could not be asked is asked again.
_AGAIN_S = 0.2
#: A start that takes longer tells in the block which nodes it waits for.
_TELL_S = 1.0
#: Ends that a lost node may have caused.
_DOUBTFUL = frozenset({Reason.EXIT_CODE, Reason.SIGNAL, Reason.EXCEPTION})
#: Longest time of one question, pause before the next, and silence after which a node counts as lost. Time without ZooKeeper does not
#: count, since the end could not be committed then.
_ASK_S, _QUESTION_PAUSE_S, _LONGEST_S = 2.0, 0.5, 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Coming:
    """A START order whose block is not yet the node's own."""

    key: BlockKey
    name: str  #: of the block
    is_reading: bool = False
    retry_s: float = -math.inf
    data: BlockData | None = None
    version: int = 0
    is_renewed: bool = False  #: its submission's record, older than its placing, was read again


class Jobs:
    """The placed jobs of one node.

    Args: directory: for files of running jobs (host files), made if absent.
    """

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._directory = directory
        self.stories = node.shared.stories()  #: of blocks: after a new registration they go on, and check whether theirs still stands
        self.reservations = Reservations(node)
        self.gangs = Gangs(node)
        self.holds = HeldParts(node, directory)
        self.barriers = Barriers(node)
        self.verdicts = Verdicts(node)
        self.checkpoints = Checkpoints(node, directory)
        self.helped = HelperParts(node, self.holds)
        self._coming: dict[str, _Coming] = {}
        self._places: dict[BlockKey, Path] = {}
        self._pool = DirectoryPool(node.shared.after, Path.unlink)
        self._alone: dict[int, Path] = {}  # processes -> the directory of all jobs with so many on this node alone
        self._doors: dict[BlockKey, Door] = {}
        self._lost: dict[BlockKey, str] = {}  #: what is being stopped -> the node for whose loss
        self._shapes: dict[tuple[Any, ...], BatchShape] = {}  #: of jobs on this node alone, by all in which they differ
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)
        for left in (*directory.glob("saved-*"), *directory.glob("hold-*")):  # of an older incarnation, and perhaps large
            remove_tree(left)

    def reset(self) -> None:
        """Drops pending orders after a new registration: the inbox is read again."""
        self._coming.clear()
        self.gangs.reset()

    # -- START -------------------------------------------------------------------------------------------------------------

    def begin(self, orders: Sequence[tuple[str, BlockKey]]) -> None:
        """Takes START orders that were read: (guid, block)."""
        for guid, key in orders:
            self._coming[guid] = _Coming(key=key, name=paths.block_name(key))
        self._node.stories.begin(self._read([guid for guid, _ in orders]))

    def is_taking(self, submission: int) -> bool:
        """Returns whether a job of the submission is about to be the node's own, so that orders about it wait."""
        return any(coming.key.submission == submission for coming in self._coming.values())

    def settle(self) -> None:
        """Takes over blocks that were read; only while registered, with a valid lease. Raises: OSError if no slot opens."""
        self._take_over()
        self.reservations.settle()
        self.holds.settle()

    def _take_over(self) -> None:
        if not self._coming:
            return
        again: list[str] = []
        taken: list[ClaimedBlock] = []
        for guid, coming in list(self._coming.items()):
            if coming.data is None:
                if not coming.is_reading and machine.monotonic() >= coming.retry_s:
                    again.append(guid)
            elif coming.key in self._node.blocks:
                del self._coming[guid]
            elif (info := self._shared.records.get(coming.key.submission)) is not None:
                allocation = coming.data.allocation
                if allocation is not None and len(info.record.changes) < allocation.changes and not coming.is_renewed:
                    coming.is_renewed = True
                    self._shared.records.forget(coming.key.submission)  # its terms have changed since it was read
                    self._shared.records.get(coming.key.submission)
                    continue
                del self._coming[guid]
                block = ClaimedBlock.claimed(self._node.name, info.record.queue, coming.key, coming.data, coming.version)
                block.info = info
                failpoint("starter.job_taken")
                self._node.claimed(block)
                taken.append(block)
            elif self._shared.records.is_refused(coming.key.submission):  # when its record can be read, the block may be gone
                coming.data, coming.retry_s = None, machine.monotonic() + REFUSED_S
        if again:
            self._node.stories.begin(self._read(again))
        if taken:
            self._took(taken)

    def _took(self, taken: Sequence[ClaimedBlock]) -> None:
        """Puts taken jobs before all pulled blocks, behind earlier jobs."""
        blocks = self._node.blocks
        for key in [key for key, other in blocks.items() if not other.is_placed]:
            blocks[key] = blocks.pop(key)
        lines: dict[tuple[int, int, tuple[str, ...]], list[ClaimedBlock]] = {}
        for block in taken:
            assert block.data.allocation is not None
            nodes = tuple(node for node, _ in block.data.allocation.shares)
            lines.setdefault((block.key.submission, block.key.attempt, nodes), []).append(block)
        for (submission, attempt, nodes), some in lines.items():
            names = " ".join(f"{submission}_{block.key.first}" for block in some)
            self._node.log.info("job_taken", task_id=names, attempt=attempt, nodes=list(nodes))

    def _read(self, guids: Sequence[str]) -> Story[None]:
        """Reads the blocks of these orders together."""
        comings = [self._coming[guid] for guid in guids]
        for coming in comings:
            coming.is_reading = True
        standing = paths.running_node(self._node.name)
        try:
            answers: list[Stamped | None] = yield self._shared.coordinator.get_many([f"{standing}/{coming.name}" for coming in comings])
        except RmgrError as error:
            if len(guids) > 1 and not isinstance(error, CoordinationUnavailable):  # one unreadable block fails them all
                for guid in guids:
                    yield from self._read([guid])
                return
            for coming in comings:
                coming.is_reading, coming.retry_s = False, machine.monotonic() + _PAUSE_S
                self._node.log.warning("block_not_readable", block=coming.name, error=str(error))
            return
        for guid, found in zip(guids, answers, strict=True):
            self._on_block(guid, found)

    def _on_block(self, guid: str, found: Stamped | None) -> None:
        coming = self._coming[guid]
        coming.is_reading = False
        try:
            data = decode_block(found.data) if found is not None else None
        except (RmgrError, *UNREADABLE) as error:  # not a block, now or later
            del self._coming[guid]
            self._discard(coming.key, f"what stands there is no block: {cut(error)}")
            return
        allocation = data.allocation if data is not None else None
        if found is None or data is None or allocation is None or not allocation.shares or data.incarnation != self._node.incarnation:
            why = "its block is gone" if found is None else "its block is not of this incarnation"
            self._node.log.info("order_is_stale", guid=guid, block=coming.name, why=why)
            del self._coming[guid]
            self._node.orders.left(coming.key)
        else:
            coming.data, coming.version = data, found.version

    def _discard(self, key: BlockKey, why: str) -> None:
        """Deletes a placed block that cannot be decoded; otherwise it would be read again and again."""
        audit(self._node.log, who="ZooKeeper", role="", what="start", target=f"{key.submission}_{key.first}", allowed=False, why=why)
        if self._shared.committer.may_commit:
            self._shared.committer.commit(ops.discard(self._node.name, self._shared.committer.fence(self._node.name), key), lambda _: None)
        self._node.orders.left(key)

    # -- a job's environment and files -------------------------------------------------------------------------------------

    def shape(self, block: ClaimedBlock, shape: BatchShape) -> BatchShape:
        """Returns the shape of its script: `shape` with the variables of its allocation. Raises: OSError if its host file cannot be made.

        Cost: a directory and a file the first time; a job that reuses directories of its submission reuses their shape, too.
        """
        allocation = block.data.allocation
        if allocation is None:
            return shape
        place, saved = self._place(block), self.checkpoints.directories.make(block)
        if allocation.helpers:
            return self._shape(block, allocation, shape, place, saved)
        asked = block.info, block.key.cores, block.key.memory_mib
        key = *asked, allocation.shares, allocation.threads, allocation.whole, allocation.gang, place, saved
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            found = self._shapes[key] = self._shape(block, allocation, shape, place, saved)
        return found

    def _shape(self, block: ClaimedBlock, allocation: Allocation, shape: BatchShape, place: Path, saved: Path) -> BatchShape:
        hosts = place / "hosts"
        threads = str(allocation.threads)
        variables = {
            "RMGR_NODELIST": ",".join(node for node, _ in allocation.shares),
            "RMGR_HOSTFILE": str(hosts),
            "RMGR_NPROCS": str(allocation.processes),
            "RMGR_THREADS": threads,
            "RMGR_CPUS_ON_NODE": str(allocation.cores[0]),
            "RMGR_NODE": self._node.name,
            "RMGR_CHECKPOINT_DIR": str(saved),
            "RMGR_RANKS": str(place / "ranks"),
            # Open MPI 4 starts its daemons through the agent, each from here, and waits for them as for ssh's.
            "OMPI_MCA_plm_rsh_agent": str(place / "rmgr-agent"),
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_orte_leave_session_attached": "1",
            "OMPI_MCA_orte_default_hostfile": str(hosts),
            # Open MPI 5 (PRRTE), likewise; the agent keeps its daemons in the foreground.
            "PRTE_MCA_plm_ssh_agent": str(place / "rmgr-agent"),
            "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "PRTE_MCA_prte_default_hostfile": str(hosts),
        }
        path = shape.environ.get("PATH") or self._node.lanes.runner.environ.get("PATH", os.defpath)
        variables["PATH"] = f"{place / 'bin'}{os.pathsep}{path}"
        if block.info.needs:
            variables["RMGR_RESOURCES"] = share_variable(dict(block.info.needs))
        rigid = block.info.record.rigid
        if rigid is not None and rigid.kill_on_bad_exit:
            variables["RMGR_KILL_ON_BAD_EXIT"] = "1"
        if rigid is not None and rigid.launch:
            variables["RMGR_LAUNCH"] = rigid.launch
        # Work that takes turns is limited by its served time, which only the turner knows.
        limit_us = 0 if allocation.gang else shape.limit_us
        return msgspec.structs.replace(shape, environ={"OMP_NUM_THREADS": threads} | shape.environ | variables, limit_us=limit_us)

    def _place(self, block: ClaimedBlock) -> Path:
        """Returns its private directory, with the host file; without helpers, a link to a directory shared by all such jobs."""
        key, allocation = block.key, block.data.allocation
        place = self._places.get(key)
        if place is not None:
            return place
        assert allocation is not None
        if not allocation.helpers:
            place = self._places[key] = self._pool.take(allocation.processes) or self._another_name(key, allocation)
            return place
        place = self._directory / f"{key.submission}_{key.first}.{key.attempt}"
        self._shared.home.check()
        furnish(place, allocation, mode=0o700)
        account = block.info.account
        if key in self._doors:  # left by a failed try
            self._doors.pop(key).close()
        self._doors[key] = Door(
            place / "ranks",
            self._shared.peers,
            nodes=frozenset(node for node, _ in allocation.helpers),
            endpoint_of=lambda node: self._endpoint_of(block, node),
            hold=run_label(key.submission, key.first, key.attempt),
            uid=account.uid if account is not None else -1,
            on_starved=lambda: self._shared.post(lambda: self._node.stop_tasks(block, None, Reason.OUT_OF_MEMORY, 0)),
            clock=(lambda: (self.served_us(block) or 0) / 1e6) if allocation.gang else None,
        )
        if account is not None:  # last, so that the user cannot put anything else where files are made
            hand_over(place, account)
        self._places[key] = place  # only when complete: without descriptors any step above may fail, and is repeated
        return place

    def _another_name(self, key: BlockKey, allocation: Allocation) -> Path:
        place = self._directory / f"{key.submission}_{key.first}.{key.attempt}"
        clear(place)
        place.symlink_to(self._alone_place(allocation))
        return place

    def _alone_place(self, allocation: Allocation) -> Path:
        """Returns the directory for jobs on one node. It has nothing of a single job, and making it takes longer than a short job. It is
        read-only."""
        place = self._alone.get(allocation.processes)
        if place is None or not (place / "hosts").exists():
            place = self._alone[allocation.processes] = self._directory / f"alone-{allocation.processes}"
            furnish(place, allocation, mode=0o755)
        return place

    def forget_lost(self) -> None:
        """Has lost directories made again for jobs that have not started."""
        self._pool.forget_lost()
        self.checkpoints.directories.forget_lost()
        for block in self._node.blocks.values():
            if block.ready and block.key in self._places and not self._places[block.key].exists():
                door = self._doors.pop(block.key, None)
                if door is not None:
                    door.close()
                del self._places[block.key]
        self.holds.forget_lost()

    def _endpoint_of(self, block: ClaimedBlock, helper: str) -> str:
        promise = self.barriers.promise_of(block, helper)
        return promise.endpoint if promise is not None else ""

    def lost_ranks(self, block: ClaimedBlock) -> str:
        """Returns which node's ranks of the job the system ended, and how that showed; "" if none, or if the job has replaced them."""
        door = self._doors.get(block.key)
        return door.lost if door is not None else ""

    def place_of(self, block: ClaimedBlock) -> Path | None:
        """Returns its private directory, None if it has not started."""
        return self._places.get(block.key)

    def may_start(self, block: ClaimedBlock) -> bool:
        """Returns whether its restored files are here and all its nodes are ready; prepares both. Raises: OSError if no slot can be
        opened."""
        allocation = block.data.allocation
        part = self.gangs.label(block)
        if part and allocation is not None and self.gangs.seat(allocation, part, block.info) is None:
            return False
        if not self.checkpoints.restores.is_here(block) or not self.barriers.may_start(block) or (part and not self.gangs.has_begun(part)):
            return False
        self.checkpoints.started(block)
        return True

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """Returns whether `tell` is called later, or never because the job was stopped to go on elsewhere.

        The use of its ranks on other nodes is added to `ending` in any case.
        """
        door = self._doors.get(block.key)
        if door is not None:
            cpu_us, max_rss_kib = door.used
            ending.cpu_us += cpu_us
            ending.max_rss_kib = max(ending.max_rss_kib, max_rss_kib)
        if part := self.gangs.label(block):
            ending.served_us, ending.turns = self.gangs.served_us(part)
            if self.gangs.was_killed(part) and ending.reason in _KILLED:
                ending.reason, ending.error = Reason.SIGNAL, OVERRAN
        if ending.reason is Reason.NODE_LOST and not ending.error and (lost := self._lost.get(block.key)):
            ending.error = f"node {lost} was lost"  # the attempt is told as that of the head, which lives
        place = self._places.get(block.key)
        if place is not None and ending.reason in _STARVING and not place.exists():
            ending.reason, ending.error = Reason.NODE_LOST, f"the job's directory was removed on node {self._node.name} ({ending.error})"
            del self._places[block.key]  # not to be used again
        if door is not None and door.starved and ending.reason in _STARVING:  # its script may have ended first
            ending.reason, ending.error = Reason.OUT_OF_MEMORY, door.starved
        return self.checkpoints.is_awaited(block, ending, tell) or self.verdicts.is_awaited(block, ending, tell)

    def lose(self, block: ClaimedBlock, node: str) -> None:
        """Handles the loss of a node of its allocation: a started job ends as a loss, any other goes back to its queue."""
        if block.ready:
            self._node.giving.revoke(block)
        elif not self.checkpoints.lose(block, node) and not self.verdicts.lose(block, node):
            self._lost[block.key] = node
            self._node.stop_tasks(block, None, Reason.NODE_LOST, 0)

    def let_go(self, block: ClaimedBlock, for_us: int) -> None:
        """Lets a gang's job run out of turn on all its nodes, so that it can end or save its state. Does nothing for other jobs."""
        part = self.gangs.label(block)
        if part:
            self.gangs.let_go(part, for_us)
            self.suspend(block, resume=True, out_of_turn_us=max(1, for_us))

    def served_us(self, block: ClaimedBlock) -> int | None:
        """Returns how long a gang's job has had its cores, None for other jobs."""
        part = self.gangs.label(block)
        return self.gangs.served_us(part)[0] if part else None

    def suspend(self, block: ClaimedBlock, *, resume: bool, out_of_turn_us: int = 0) -> None:
        """Stops or continues its processes on other nodes. out_of_turn_us: lets a gang's job run for that time instead."""
        allocation = block.data.allocation
        for helper, _ in allocation.helpers if allocation is not None else ():
            self.stories.begin(self._suspend(block, helper, resume=resume, out_of_turn_us=out_of_turn_us))

    def _suspend(self, block: ClaimedBlock, helper: str, *, resume: bool, out_of_turn_us: int) -> Story[None]:
        key, peers = block.key, self._shared.peers
        try:
            record: NodeRecord | None = yield from record_of(self._shared.coordinator, helper)
            if record is None or not record.endpoint:
                return
            hold = run_label(key.submission, key.first, key.attempt)
            yield peers.suspend(record.endpoint, helper, hold, resume=resume, out_of_turn_us=out_of_turn_us, timeout_s=_SUSPEND_S)
        except RmgrError as error:
            what = "not_resumed" if resume else "not_suspended"
            self._node.log.warning(what, block=paths.block_name(key), target=helper, error=error.message)

    def forget(self, block: ClaimedBlock) -> None:
        """Drops a block that is over."""
        self._node.orders.left(block.key)
        self._lost.pop(block.key, None)
        self.barriers.forget(block)
        self.verdicts.forget(block)
        self.checkpoints.forget(block)
        door = self._doors.pop(block.key, None)
        if door is not None:
            door.close()
        place = self._places.pop(block.key, None)
        allocation = block.data.allocation
        if place is not None and allocation is not None and not allocation.helpers:
            self._pool.give(allocation.processes, place)
        elif place is not None:
            self._shared.io.run(lambda _store: remove_tree(place), lambda _result: None)


# -- the directory of a job ------------------------------------------------------------------------------------------------
# Makes the directory of a placed job: its host file, and the programs that its script finds there.


def furnish(place: Path, allocation: Allocation, *, mode: int) -> None:
    """Makes the directory anew, with its files. mode: of it and of its programs. Raises: OSError."""
    clear(place)
    place.mkdir(mode=mode)
    hosts, programs = place / "hosts", place / "bin"
    hosts.write_text("".join(f"{node} slots={count}\n" for node, count in allocation.shares))
    programs.mkdir()
    rmgr = _RMGR.format(python=shlex.quote(home.PYTHON), program=shlex.quote(_PROGRAM.format(root=str(home.ROOT))))
    for program, text in ((place / "rmgr-agent", _AGENT), (programs / "rmgr", rmgr)):
        program.write_text(text)
        program.chmod(mode)
    hosts.chmod(mode & 0o644)
    programs.chmod(mode)
    place.chmod(mode)


def clear(place: Path) -> None:
    """Removes whatever stands at `place`. Raises: OSError."""
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        remove_tree(place)


# -- its other nodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Answer of a node that was ready: the life in which it has the job's cores, and its incarnation then (0 if not given).

    endpoint: of its Starter, which keeps it as long as it lives: another endpoint means another life.
    """

    life: str
    incarnation: int
    endpoint: str = ""

    def is_broken(self, record: NodeRecord | None) -> bool:
        """Returns whether `record` (None if absent) breaks the promise. A record older than the promise, from a server that lags, does not
        count."""
        if record is None:
            return True
        if record.incarnation < self.incarnation:
            return False
        is_another = bool(record.life) and record.life != self.life and record.incarnation > self.incarnation
        return record.state is NodeState.FENCED or is_another


def _request_promise(node: NodeAgent, block: ClaimedBlock, helper: str, endpoint: str, *, cores: int, timeout_s: float) -> Future[Any]:
    """Asks the Starter at `endpoint`; the future is done once the job has its cores there. cores: 0 = any."""
    hold = run_label(block.key.submission, block.key.first, block.key.attempt)
    return node.shared.peers.prepare(endpoint, helper, hold, head=node.name, cores=cores, timeout_s=timeout_s)


# -- before it starts ------------------------------------------------------------------------------------------------------


class _BegunAnewError(RmgrError):
    """The Starter that was asked is gone, and its answer would be awaited until the time is up."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Barrier:
    """The start of one block.

    asked: helpers being asked, with the record by which they were found; ready: promises of those that answered; lost: nodes lost since.
    """

    block: ClaimedBlock
    end_s: float
    asked: dict[str, tuple[NodeRecord, Future[Any]]] = field(default_factory=dict)
    ready: dict[str, Promise] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    last: str = ""
    is_seated: bool = False  #: the head has got its cores
    tell_s: float = math.inf  #: when the block next says what it waits for
    told: tuple[str, ...] = ()  #: the nodes that the block names


class Barriers:
    """Starts of jobs whose script this node runs."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._open: dict[BlockKey, _Barrier] = {}
        self._lookouts = Lookouts(node, self._seen)

    def may_start(self, block: ClaimedBlock) -> bool:
        """Returns whether all its nodes are ready; asks those that are not. Raises: OSError if no slot can be opened."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers:
            return True
        now_s = machine.monotonic()
        barrier = self._open.get(block.key)
        if barrier is None:
            barrier = self._open[block.key] = _Barrier(block=block, end_s=now_s, tell_s=now_s + _TELL_S)
            self._shared.after(_TELL_S, settle_again)
            self._lookouts.begin(block)
        self._sit_down(block)
        if not barrier.is_seated:  # its time begins when the head has room: until then another job may be leaving
            limit_s = self._shared.settings.barrier_us / 1e6
            barrier.end_s, barrier.is_seated = now_s + limit_s, block.seat is not None
            if barrier.is_seated:
                self._shared.after(limit_s, settle_again)
        waiting = [node for node, _ in allocation.helpers if node not in barrier.ready]
        if not waiting and block.seat is not None:
            if not self._node.jobs.checkpoints.restores.is_everywhere(block):
                return False
            self._stand_up(block)
            return True
        if now_s >= barrier.end_s:
            why = f"not ready in time: {', '.join(waiting) or block.node}{f' ({barrier.last})' if barrier.last else ''}"
            self._node.log.warning("start_revoked", block=paths.block_name(block.key), why=why)
            self._node.giving.revoke(block)
        else:
            for helper in waiting:
                self._node.jobs.stories.begin(self._prepare(barrier, helper), key=("prepare", block, helper))
            if now_s >= barrier.tell_s:
                self._tell(barrier, waiting, now_s)
        return False

    def _prepare(self, barrier: _Barrier, helper: str) -> Story[None]:
        """Asks a helper until its cores are free for the job."""
        allocation = barrier.block.data.allocation
        assert allocation is not None
        cores = next(count * allocation.threads for node, count in allocation.helpers if node == helper)
        while self._open.get(barrier.block.key) is barrier and machine.monotonic() < barrier.end_s:
            try:
                record: NodeRecord | None = yield from record_of(self._shared.coordinator, helper)
                if record is None or not record.endpoint:
                    raise RmgrError(f"node {helper} has no Starter that could be asked")
                failpoint("starter.before_prepare")
                left_s = max(0.1, barrier.end_s - machine.monotonic())
                answer = _request_promise(self._node, barrier.block, helper, record.endpoint, cores=cores, timeout_s=left_s)
                barrier.asked[helper] = record, answer
                reply = yield answer
                barrier.ready[helper] = Promise(life=reply.process, incarnation=reply.incarnation, endpoint=record.endpoint)
                return
            except _BegunAnewError:
                continue
            except RmgrError as error:
                barrier.last = error.message
            finally:
                barrier.asked.pop(helper, None)
            yield Pause(_AGAIN_S)

    def _seen(self, block: ClaimedBlock, helper: str, record: NodeRecord | None) -> None:
        """Takes the record of one of its nodes."""
        barrier = self._open.get(block.key)
        if barrier is None or barrier.block is not block or helper in barrier.lost:
            return
        promise, is_fenced = barrier.ready.get(helper), record is None or record.state is NodeState.FENCED
        asked, answer = barrier.asked.get(helper, (None, None))
        if record is not None and asked is not None and record.incarnation > asked.incarnation and record.endpoint != asked.endpoint:
            assert answer is not None
            with suppress(InvalidStateError):
                answer.set_exception(_BegunAnewError(f"node {helper} has begun anew"))
        if not (is_fenced if promise is None else promise.is_broken(record)):
            return
        if is_fenced or not block.ready:
            barrier.lost.add(helper)
            why = "it was fenced" if is_fenced else "what ran there was killed"
            self._node.log.warning("job_lost_a_node", block=paths.block_name(block.key), target=helper, why=why)
            self._node.jobs.lose(block, helper)
        else:  # nothing of it has started: the node may be ready again in time
            self._node.log.info("node_asked_again", block=paths.block_name(block.key), target=helper)
            del barrier.ready[helper]

    def _tell(self, barrier: _Barrier, waiting: list[str], now_s: float) -> None:
        """Writes into the block which nodes the start waits for, whenever they change, so that any leader can report it."""
        block = barrier.block
        awaited = tuple(waiting) if block.seat is not None else (block.node, *waiting)
        barrier.tell_s = now_s + _TELL_S
        if awaited == barrier.told:
            return
        barrier.told = awaited
        parts = [f"{', '.join(waiting)} to say that its cores are free for it"] if waiting else []
        parts += [f"cores of {block.node}"] if block.seat is None else []
        last = f" ({' '.join(barrier.last.split())})" if barrier.last and waiting else ""
        self._node.notes.tell(block, "", awaits=story_line(f"{' and '.join(parts) or 'its files'}{last}"))

    def promise_of(self, block: ClaimedBlock, helper: str) -> Promise | None:
        """Returns the promise of a node that is ready, else None."""
        barrier = self._open.get(block.key)
        return barrier.ready.get(helper) if barrier is not None else None

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over, or no longer the node's own."""
        self._lookouts.end(block)
        barrier = self._open.get(block.key)
        if barrier is not None and barrier.block is block:
            del self._open[block.key]
        self._stand_up(block)

    # -- the head's own cores ----------------------------------------------------------------------------------------------

    def _sit_down(self, block: ClaimedBlock) -> None:
        if block.seat is None or block.seat.owner is not block:
            part = self._node.jobs.gangs.label(block)
            block.seat = self._node.lanes.open_for(block.info, None, *self._node.lanes.size_of(block), part=part)
            if block.seat is not None:
                block.seat.owner = block

    def _stand_up(self, block: ClaimedBlock) -> None:
        seat, block.seat = block.seat, None
        if seat is not None and seat.owner is block:
            self._node.lanes.give_up(seat)


# -- while it runs ---------------------------------------------------------------------------------------------------------


class Lookouts:
    """Watches on records of nodes. Cost: one for each node, however many jobs have a part there.

    Args:
        tell: called with (job, node, its record or None) in the owner's thread, whenever the record was read.
    """

    def __init__(self, node: NodeAgent, tell: Callable[[ClaimedBlock, str, NodeRecord | None], None]) -> None:
        self._shared = node.shared
        self._log = node.log
        self._tell = tell
        self._watches: dict[str, WatchedZnode[Stamped | None]] = {}
        self._jobs: dict[str, list[ClaimedBlock]] = {}

    def begin(self, block: ClaimedBlock) -> None:
        """Watches the other nodes of a job."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            self._jobs.setdefault(node, []).append(block)
            if node not in self._watches:
                get, path, aside = self._shared.coordinator.get, paths.node(node), self._shared.aside
                self._watches[node] = WatchedZnode(get, path, self._on_record, node, loop=self._shared, aside=aside, resync_s=SELDOM_S)
                self._watches[node].start()

    def end(self, block: ClaimedBlock) -> None:
        """Ends the watches of a job."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            left = [other for other in self._jobs.get(node, ()) if other is not block]
            if left:
                self._jobs[node] = left
            elif node in self._jobs:
                del self._jobs[node]
                self._watches.pop(node).stop()

    def _on_record(self, node: str, found: Stamped | None) -> None:
        try:
            record = decode_record(found.data, NodeRecord, node) if found is not None else None
        except RmgrError as error:
            self._log.warning("node_record_unreadable", target=node, error=error.message)
            return
        for block in list(self._jobs.get(node, ())):
            self._tell(block, node, record)


# -- when it ends badly ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    """One end that is not yet reported. tell: reports `ending` as it is then. helpers: its other nodes; left: those without an answer."""

    block: ClaimedBlock
    ending: Ending
    tell: Callable[[], None]
    helpers: frozenset[str]
    left: set[str]
    end_s: float


class Verdicts:
    """Ends of jobs whose script one node runs."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._open: dict[ClaimedBlock, _Case] = {}

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """Returns True if `tell` is called later, with what is known then in `ending`."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers or ending.reason not in _DOUBTFUL:
            return False
        if block.cancel_words(block.key.first) is not None:
            return False
        helpers, end_s = frozenset(node for node, _ in allocation.helpers), machine.monotonic() + _LONGEST_S
        case = self._open[block] = _Case(block=block, ending=ending, tell=tell, helpers=helpers, left=set(helpers), end_s=end_s)
        for helper in sorted(helpers):
            self._node.jobs.stories.begin(self._question(case, helper), key=(case, helper))
        return True

    def _question(self, case: _Case, helper: str) -> Story[None]:
        """Asks a node until it is known to be unchanged or another one, or was silent for too long."""
        jobs = self._node.jobs
        while True:
            try:
                record: NodeRecord | None = yield from record_of(self._shared.coordinator, helper)
            except RmgrError:
                case.end_s = max(case.end_s, machine.monotonic() + _LONGEST_S)
            else:
                promise = jobs.barriers.promise_of(case.block, helper)
                if record is None or (record.state is NodeState.FENCED if promise is None else promise.is_broken(record)):
                    self._decide(case, helper)
                    return
                try:
                    reply = yield _request_promise(self._node, case.block, helper, record.endpoint, cores=0, timeout_s=_ASK_S)
                except RmgrError:
                    if jobs.lost_ranks(case.block):  # this is known, whatever the node would answer
                        self._decide(case, "")
                        return
                else:
                    promise = jobs.barriers.promise_of(case.block, helper)
                    case.left.discard(helper)
                    if promise is not None and reply.process != promise.life:  # all work there was killed meanwhile
                        self._decide(case, helper)
                    elif not case.left:
                        self._decide(case, "")
                    return
            if machine.monotonic() >= case.end_s:
                self._decide(case, helper)
                return
            yield Pause(_QUESTION_PAUSE_S)

    def lose(self, block: ClaimedBlock, node: str) -> bool:
        """Takes the loss of a node, as reported by the cluster. False: the job's end is not awaited."""
        case = self._open.get(block)
        if case is None:
            return False
        self._decide(case, node)
        return True

    def cancelled(self, block: ClaimedBlock) -> None:
        """Decides at once for a job that its user has cancelled."""
        case = self._open.get(block)
        if case is not None:
            self._decide(case, "")

    def __len__(self) -> int:
        """Number of awaited ends."""
        return len(self._open)

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is no longer the node's own."""
        case = self._open.pop(block, None)
        for helper in case.helpers if case is not None else ():
            self._node.jobs.stories.end((case, helper))

    def _decide(self, case: _Case, lost: str) -> None:
        self.forget(case.block)
        if why := f"node {lost} was lost" if lost else self._node.jobs.lost_ranks(case.block):
            name = paths.block_name(case.block.key)
            self._node.log.warning("job_lost_a_node", block=name, target=lost, why=why, exit_code=case.ending.exit_code)
            case.ending.reason, case.ending.error = Reason.NODE_LOST, f"{why} ({case.ending.error})"
        case.tell()
