"""Decides why a job of several nodes ended badly: by itself, or because the system lost some of its ranks.

Whoever waits for ranks on a node that dies hears of it before the cluster does, and fails. So a bad end is committed only when
all other nodes of the job have answered that they are still the same. It is NODE_LOST, whatever the exit code, if a node has
died, was fenced or stays silent, or if ranks there were ended by the system (`Door.lost`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.doors import NamedNode, TreeAccess
    from rmgr.daemons.starter.jobs.barrier import Barriers
    from rmgr.daemons.starter.jobs.lookout import PeerServices

#: Ends that a lost node may be the cause of.
_DOUBTFUL = frozenset({Reason.EXIT_CODE, Reason.SIGNAL, Reason.EXCEPTION})
#: How long one question may take, the pause before the next, and how long a node may be silent before it counts as lost. Time in which
#: ZooKeeper is away does not count: nobody could commit the end then.
_ASK_S, _PAUSE_S, _LONGEST_S = 2.0, 0.5, 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    """One end that is not told yet. tell: takes the ending as it is then. left: nodes that have not answered."""

    block: ClaimedBlock
    ending: Ending
    tell: Callable[[], None]
    left: set[str]
    end_s: float
    is_decided: bool = field(default=False)


class JudgedJobs(Protocol):
    """The jobs whose ends are looked at."""

    barriers: Barriers

    def lost_ranks(self, block: ClaimedBlock) -> str:
        """Which node's ranks the system has ended, and how that showed; "" if none."""
        ...


class Verdicts:
    """Ends of the jobs whose script one node runs."""

    def __init__(self, node: NamedNode, jobs: JudgedJobs, tree: TreeAccess, shared: PeerServices, log: Log) -> None:
        self._node = node
        self._jobs = jobs
        self._tree = tree
        self._shared = shared
        self._log = log
        self._open: dict[ClaimedBlock, _Case] = {}

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """True: `tell` is called later, when `ending` says what is known then."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers or ending.reason not in _DOUBTFUL or self._shared.peers is None:
            return False
        if block.cancel_words(block.key.first) is not None:
            return False
        helpers = {node for node, _ in allocation.helpers}
        case = self._open[block] = _Case(
            block=block, ending=ending, tell=tell, left=helpers, end_s=machine.monotonic() + _LONGEST_S
        )
        for helper in sorted(helpers):
            self._ask(case, helper)
        return True

    def lose(self, block: ClaimedBlock, node: str) -> bool:
        """A node of the job is lost, the cluster says. False: its end is not awaited."""
        case = self._open.get(block)
        if case is None:
            return False
        self._decide(case, node)
        return True

    def cancelled(self, block: ClaimedBlock) -> None:
        """Its user wants no more of it: nothing more need be known of its end."""
        case = self._open.get(block)
        if case is not None:
            self._decide(case, "")

    def __len__(self) -> int:
        """Ends that are awaited."""
        return len(self._open)

    def forget(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        case = self._open.pop(block, None)
        if case is not None:
            case.is_decided = True

    # -- asking ------------------------------------------------------------------------------------------------------------

    def _ask(self, case: _Case, helper: str) -> None:
        if not case.is_decided:
            future = self._tree.coordinator.get(paths.node(helper))
            future.add_done_callback(lambda done: self._tree.post(partial(self._found, case, helper, done)))

    def _found(self, case: _Case, helper: str, done: Future[Stamped | None]) -> None:
        try:
            found = done.result()
            record = decode_record(found.data, NodeRecord, helper) if found is not None else None
        except RmgrError:
            case.end_s = max(case.end_s, machine.monotonic() + _LONGEST_S)
            self._later(case, helper)
            return
        if case.is_decided:
            return
        promise = self._jobs.barriers.promise_of(case.block, helper)
        if record is None or (record.state is NodeState.FENCED if promise is None else promise.is_broken(record)):
            self._decide(case, helper)
            return
        key, peers = case.block.key, self._shared.peers
        assert peers is not None

        def answered(error: RmgrError | None, life: str, _incarnation: int) -> None:
            self._tree.post(partial(self._answered, case, helper, error, life))

        hold = f"{key.submission}.{key.first}.{key.attempt}"
        peers.prepare(record.endpoint, helper, hold, head=self._node.name, cores=0, timeout_s=_ASK_S, done=answered)

    def _answered(self, case: _Case, helper: str, error: RmgrError | None, life: str) -> None:
        if case.is_decided:
            return
        if error is not None:
            if self._jobs.lost_ranks(case.block):  # this is known, whatever the node would say
                self._decide(case, "")
            else:
                self._later(case, helper)
            return
        promise = self._jobs.barriers.promise_of(case.block, helper)
        if promise is not None and life != promise.life:  # what ran there was killed before
            self._decide(case, helper)
            return
        case.left.discard(helper)
        if not case.left:
            self._decide(case, "")

    def _later(self, case: _Case, helper: str) -> None:
        if machine.monotonic() >= case.end_s:
            self._decide(case, helper)
        elif not case.is_decided:
            self._tree.after(_PAUSE_S, partial(self._ask, case, helper))

    def _decide(self, case: _Case, lost: str) -> None:
        case.is_decided = True
        self._open.pop(case.block, None)
        if why := f"node {lost} was lost" if lost else self._jobs.lost_ranks(case.block):
            self._log.warning(
                "job_lost_a_node", block=paths.block_name(case.block.key), target=lost, why=why, exit_code=case.ending.exit_code
            )
            case.ending.reason, case.ending.error = Reason.NODE_LOST, f"{why} ({case.ending.error})"
        case.tell()
