"""Publishes what the scheduler holds for waiting jobs to the Starters: `/holds/<node>/r-<job>`, one znode a job and node.

It is written by the commit of the pass that decides it, and goes with the commit that places the job. A promise whose job has left, and one
that a leader before did not come to write down, is seen to by `tidy`. What stands there is remembered, and read when everything is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Op, Outcome, Unknown
from rmgr.daemons.leader.core.doors import LeaderCommits, LeaderReads
from rmgr.daemons.leader.core.facts import Names
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.model.base.resources import MIB
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.placing import job_id, run_label, task_of
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.job import Job
from rmgr.sched.records import Hold, Share
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.records.records import Records

#: Operations of one RESERVE: a promise on more nodes than the rest of it is a commit of its own.
MOST_OPS = 150
#: A record that was not read: whatever is to stand there takes its place.
_UNREAD = b""
_RETRY_S = 0.5


class Promises:
    """Znodes below `/holds` of waiting jobs. broken: called with the reason why everything must be read again."""

    def __init__(self, tree: LeaderCommits, job_table: JobTable, names: Names, broken: Callable[[str], None]) -> None:
        self._tree = tree
        self._job_table = job_table
        self._names = names
        self._broken = broken
        self._there: dict[int, dict[str, bytes]] = {}  # job -> node -> record

    def adopt(self, there: Mapping[int, Iterable[str]]) -> None:
        """Nodes on which something is kept for jobs, as it was read."""
        self._there = {job: dict.fromkeys(nodes, _UNREAD) for job, nodes in there.items()}

    def is_known(self, job: int, node: str) -> bool:
        """It is kept for the job there."""
        return node in self._there.get(job, {})

    def taken_over(self, job: int) -> tuple[str, ...]:
        """Nodes on which the job, which starts, was promised cores."""
        return tuple(sorted(self._there.get(job, ())))

    def started(self, job: int) -> None:
        """Its ASSIGN is on the way, and takes with it what was promised."""
        self._there.pop(job, None)

    def changed(self, state: ClusterState, jobs: Iterable[int]) -> list[Op]:
        """What brings the promises of these jobs to what the scheduler holds for them now; taken for committed."""
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
        """Of jobs that have left nothing is kept; what is held and stands nowhere is written. Between two plans. Cost: O(holds)."""
        held = {hold.job_id: hold for part in state.partitions.values() for hold in part.holds.values()}
        odd = self._there.keys() ^ held.keys()
        odd |= {job for job, hold in held.items() if job not in odd and self._there[job].keys() != self._nodes(hold)}
        if odd:
            ops = self.changed(state, sorted(odd))
            for at in range(0, len(ops), MOST_OPS):
                self._tree.commit(place_ops.reserve(ops[at : at + MOST_OPS]), self._tidied)

    def look_after(self, node: str, names: list[str] | None) -> None:
        """Deletes what is kept on a node for nobody that is known: a leader before did not come to it."""
        for _, (submission, index) in paths.reserved_in(names):
            if not self.is_known(job_id(submission, index), node):
                self._tree.commit(place_ops.reserve(place_ops.reserve_ops(submission, index, {node: _UNREAD}, {})), self._swept)

    def _tidied(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Committed):
            self._broken(f"RESERVE: {outcome}")

    def _swept(self, outcome: Outcome) -> None:
        if isinstance(outcome, Unknown):  # what is forgotten here would keep cores from everybody
            self._broken(f"RESERVE: {outcome}")

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


class Standing:
    """Reads which promises stand, of all jobs that a record says something is held for. Cost: a list of each node in such a record."""

    def __init__(self, tree: LeaderReads, records: Iterable[Records], came: Callable[[], None]) -> None:
        self.found: dict[int, list[str]] = {}
        self._tree = tree
        self._came = came
        held = [shares for one in records for _, _, waits, held in one.holds for shares in (waits, held)]
        self._left = {node for shares in held for _, where in shares for node, _ in where}
        for node in sorted(self._left):
            self._read(node)

    @property
    def is_read(self) -> bool:
        """All of it."""
        return not self._left

    def _read(self, node: str) -> None:
        self._tree.children(paths.hold(node), partial(self._listed, node), failed=partial(self._later, node))

    def _later(self, node: str) -> None:
        self._tree.after(_RETRY_S, partial(self._read, node))

    def _listed(self, node: str, names: list[str] | None) -> None:
        self._left.discard(node)
        for _, (submission, index) in paths.reserved_in(names):
            self.found.setdefault(job_id(submission, index), []).append(node)
        self._came()
