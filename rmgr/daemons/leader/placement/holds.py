"""Holds on nodes: cores promised to waiting jobs, and parts of placed jobs whose head is elsewhere.

What the scheduler holds for a waiting job is published to the Starters: `/holds/<node>/r-<job>`, one znode per job and node. The commit of
the pass that decides a promise writes it; the commit that places the job deletes it. `tidy` deletes promises of jobs that have left, and
writes those that an earlier leader did not come to write. The content is remembered, and read again at a rebuild.

Holds of a placed job on several nodes are deleted after its end; a lost node is reported to the job's head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Conflict, Op, Outcome, Unknown
from rmgr.daemons.leader.placement.job_table import PlacedJob
from rmgr.daemons.leader.tree import LeaderTree
from rmgr.errors import RmgrError
from rmgr.model.base.resources import MIB
from rmgr.model.cluster.node import InboxOrder, NodeState, OrderKind
from rmgr.model.tasks.block import BlockKey, job_id, run_label, task_of
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.job import Job
from rmgr.sched.records import Hold, Share
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.job_table import Records
    from rmgr.daemons.leader.placement.placer import Placer

#: Operations of one RESERVE; the rest of a promise on more nodes gets a commit of its own.
MOST_OPS = 150
#: Stands for a record that was not read: it is replaced whatever it says.
_UNREAD = b""
_READ_AGAIN_S, _RETRY_S = 0.5, 1.0


class Promises:
    """Znodes of waiting jobs below `/holds`."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._tree = placer.context.tree
        self._job_table = placer.job_table
        self._names = placer.names
        self._there: dict[int, dict[str, bytes]] = {}  # job -> node -> record

    def adopt(self, there: Mapping[int, Iterable[str]]) -> None:
        """Takes over the nodes with promises of jobs, as read."""
        self._there = {job: dict.fromkeys(nodes, _UNREAD) for job, nodes in there.items()}

    def is_known(self, job: int, node: str) -> bool:
        """Whether a promise of the job stands on the node."""
        return node in self._there.get(job, {})

    def taken_over(self, job: int) -> tuple[str, ...]:
        """Returns the nodes with promises to a job that starts now."""
        return tuple(sorted(self._there.get(job, ())))

    def started(self, job: int) -> None:
        """Forgets the job's promises: its PLACE, already sent, deletes them."""
        self._there.pop(job, None)

    def changed(self, state: ClusterState, jobs: Iterable[int]) -> list[Op]:
        """Returns operations that bring the promises of these jobs up to date; assumes that they will be committed."""
        ops: list[Op] = []
        held = {hold.job_id: (part.jobs[hold.job_id], hold) for part in state.partitions.values() for hold in part.holds.values()}
        for job in jobs:
            found = held.get(job)
            before, after = self._there.get(job, {}), self._records(*found) if found is not None else {}
            submission, index = task_of(job)
            ops += place_ops.reserve_ops(submission, index, before, after, self._runs(found[1]) if found is not None else ())
            if after:
                self._there[job] = after
            else:
                self._there.pop(job, None)
        return ops

    def tidy(self, state: ClusterState) -> None:
        """Deletes promises of jobs that have left, and writes missing ones. Between two plans. Cost: O(holds)."""
        held = {hold.job_id: hold for part in state.partitions.values() for hold in part.holds.values()}
        odd = self._there.keys() ^ held.keys()
        odd |= {job for job, hold in held.items() if job not in odd and self._there[job].keys() != self._nodes(hold)}
        if odd:
            ops = self.changed(state, sorted(odd))
            for at in range(0, len(ops), MOST_OPS):
                self._tree.tell(self._reserve(ops[at : at + MOST_OPS], is_needed=True), "commit RESERVE", key=object())

    def look_after(self, node: str, names: list[str] | None) -> None:
        """Deletes promises on a node that belong to no known job: an earlier leader left them."""
        for _, (submission, index) in paths.reserved_in(names):
            if not self.is_known(job_id(submission, index), node):
                ops = place_ops.reserve_ops(submission, index, {node: _UNREAD}, {})
                self._tree.tell(self._reserve(ops, is_needed=False), "commit RESERVE", key=object())

    def _reserve(self, ops: list[Op], *, is_needed: bool) -> Story[None]:
        """Commits, and rebuilds if the outcome is unknown or (with is_needed) a conflict: a forgotten promise would block cores."""
        outcome: Outcome = yield self._tree.commit(place_ops.reserve(ops))
        if isinstance(outcome, Unknown) or (is_needed and isinstance(outcome, Conflict)):
            self._placer.rebuild(f"RESERVE: {outcome}")

    # -- records

    def _records(self, job: Job, hold: Hold) -> dict[str, bytes]:
        shares: dict[str, list[tuple[str, int]]] = {}
        for share in hold.waits_for:
            self._spread(share, self._label(share.run_id), shares)
        for share in hold.held:
            self._spread(share, "", shares)
        found = {}
        for node, some in shares.items():
            processes = sum(cores for _, cores in some) // job.threads
            resources = tuple((name, processes * count) for name, count in job.resources if processes)
            found[node] = place_ops.reserved(some, processes * (job.memory_bytes // MIB), resources)
        return found

    def _spread(self, share: Share, label: str, shares: dict[str, list[tuple[str, int]]]) -> None:
        for node, cores in each_node(share.cores):
            shares.setdefault(self._names.name(node), []).append((label, cores))

    def _label(self, run_id: int) -> str:
        known = self._job_table.placed.get(run_id) or self._job_table.waiting.get(run_id)  # the same commit may place it
        return "" if known is None else run_label(*task_of(run_id), known.key.attempt)

    def _runs(self, hold: Hold) -> list[tuple[str, BlockKey]]:
        placed = (self._job_table.placed.get(share.run_id) for share in hold.waits_for)
        return [(one.node, one.key) for one in placed if one is not None]

    def _nodes(self, hold: Hold) -> set[str]:
        return {self._names.name(node) for share in (*hold.waits_for, *hold.held) for node, _ in each_node(share.cores)}


def standing(tree: LeaderTree, records: Iterable[Records]) -> Story[dict[int, list[str]]]:
    """Returns job -> nodes with promises, for all jobs in the records' holds. Cost: one list for each such node."""
    held = [shares for one in records for _, _, waits, held in one.holds for shares in (waits, held)]
    found: dict[int, list[str]] = {}
    nodes = sorted({node for shares in held for _, where in shares for node, _ in where})
    reads = {node: tree.children(paths.hold(node)) for node in nodes}
    while reads:
        failed = []
        for node, answer in reads.items():
            try:
                names = yield answer
            except RmgrError:
                failed.append(node)
                continue
            for _, (submission, index) in paths.reserved_in(names):
                found.setdefault(job_id(submission, index), []).append(node)
        if failed:
            yield Pause(_READ_AGAIN_S)
        reads = {node: tree.children(paths.hold(node)) for node in failed}
    return found


class PlacedHolds:
    """Holds of all placed jobs of one leadership. In its loop."""

    def __init__(self, placer: Placer) -> None:
        self._tree, self._calls = placer.context.tree, placer.context.calls
        self._job_table = placer.job_table
        self._promises = placer.promises
        self._records = placer.known_nodes.records

    def prepare(self, nodes: list[str]) -> None:
        """Makes the directories for holds on these nodes."""
        self._tree.tell(self._prepare([paths.hold(node) for node in nodes]), "directories of holds", key=object())

    def _prepare(self, wanted: list[str]) -> Story[None]:
        while True:
            try:
                yield self._calls.coordinator(lambda zookeeper: zookeeper.ensure(wanted))
                return
            except RmgrError:
                yield Pause(_RETRY_S)

    def look_for_holds(self, nodes: list[str]) -> None:
        """Deletes holds of jobs that are gone, left by an earlier leader. The job table must be complete."""
        for node in nodes:
            self._tree.tell(self._look_on(node), paths.hold(node), key=object())

    def _look_on(self, node: str) -> Story[None]:
        while True:
            try:
                names = yield self._tree.children(paths.hold(node))
                break
            except RmgrError:
                yield Pause(_RETRY_S)
        self._promises.look_after(node, names)
        for _, (submission, index, attempt) in paths.holds_in(names):
            placed = self._job_table.placed.get(job_id(submission, index))
            if placed is None or placed.key.attempt != attempt:
                self._unhold(node, submission, index, attempt)

    def _unhold(self, node: str, submission: int, index: int, attempt: int) -> None:
        self._tree.tell(self._delete(node, submission, index, attempt), "holds that are over", key=object())

    def _delete(self, node: str, submission: int, index: int, attempt: int) -> Story[None]:
        """Repeats the delete until it is known to be done: a forgotten hold would block cores."""
        while isinstance((yield self._tree.commit(place_ops.unhold(node, submission, index, attempt))), Unknown):
            yield Pause(_RETRY_S)

    def release(self, job: int, placed: PlacedJob) -> None:
        """Deletes the holds of a job that has ended."""
        submission, index = task_of(job)
        for node, _ in placed.allocation.helpers:
            self._unhold(node, submission, index, placed.key.attempt)

    def look_for_losses(self) -> None:
        """Tells the heads of jobs once about a node that was lost elsewhere."""
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
