"""Follows placed jobs of several nodes: deletes holds that an end leaves behind, and reports a lost node to the job's head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Outcome, Unknown
from rmgr.daemons.leader.core.calls import WaitingCalls
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.records.job_table import JobTable, PlacedJob
from rmgr.daemons.leader.records.reserved import Promises
from rmgr.model.cluster.node import InboxOrder, NodeRecord, NodeState, OrderKind
from rmgr.model.tasks.placing import job_id, task_of
from rmgr.runtime import machine

_RETRY_S = 1.0


class PlacedHolds:
    """Holds of all placed jobs of one leadership. In its loop.

    Args: records: of all nodes, by name.
    """

    def __init__(
        self, tree: LeaderCommits, calls: WaitingCalls, job_table: JobTable, promises: Promises, records: Mapping[str, NodeRecord]
    ) -> None:
        self._tree = tree
        self._calls = calls
        self._job_table = job_table
        self._promises = promises
        self._records = records

    def prepare(self, nodes: list[str]) -> None:
        """Makes the places where cores of these nodes are held for jobs whose head is elsewhere."""
        wanted = [paths.hold(node) for node in nodes]
        self._calls.coordinator(lambda zookeeper: zookeeper.ensure(wanted), lambda _: None, lambda _: self._prepare_later(nodes))

    def _prepare_later(self, nodes: list[str]) -> None:
        self._tree.after(_RETRY_S, partial(self.prepare, nodes))

    def look_for_holds(self, nodes: list[str]) -> None:
        """Deletes those of jobs that are gone: the leader before did not come to it. The job table must be whole."""
        for node in nodes:
            again = partial(self._tree.after, _RETRY_S, partial(self.look_for_holds, [node]))
            self._tree.children(paths.hold(node), partial(self._on_holds, node), failed=again)

    def _on_holds(self, node: str, names: list[str] | None) -> None:
        self._promises.look_after(node, names)
        for _, (submission, index, attempt) in paths.holds_in(names):
            placed = self._job_table.placed.get(job_id(submission, index))
            if placed is None or placed.key.attempt != attempt:
                self._unhold(node, submission, index, attempt)

    def _unhold(self, node: str, submission: int, index: int, attempt: int) -> None:
        """Until it is known to be gone: what is forgotten here would keep cores from everybody."""

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, Unknown):
                self._tree.after(_RETRY_S, partial(self._unhold, node, submission, index, attempt))

        self._tree.commit(place_ops.unhold(node, submission, index, attempt), answered)

    def release(self, job: int, placed: PlacedJob) -> None:
        """It has ended: nothing is held for it any more."""
        submission, index = task_of(job)
        for node, _ in placed.allocation.helpers:
            self._unhold(node, submission, index, placed.key.attempt)

    def look_for_losses(self) -> None:
        """Heads of jobs that have lost a node elsewhere are told, once."""
        for job, placed in self._job_table.placed.items():
            if placed.is_lost or not placed.allocation.helpers:
                continue
            for node, _ in placed.allocation.helpers:
                record = self._records.get(node)
                if record is not None and record.state is NodeState.FENCED:
                    placed.is_lost = True
                    submission, index = task_of(job)
                    order = InboxOrder(order=OrderKind.LOST, submission=submission, index=index, detail=node, extra={"block": placed.name})
                    self._tree.commit(leader_ops.order(placed.node, machine.guid()[:12], order), urgent=True)
                    break
