"""Carries out what a pass decided: reads blocks, commits one fenced PLACE (several if it is large), updates the state. Keeps holds.

What the scheduler holds for a waiting job is published to the Starters: `/holds/<node>/r-<job>`, one znode per job and node. The commit of
the pass that decides a promise writes it; the commit that places the job deletes it. `tidy` deletes promises of jobs that have left, and
writes those that an earlier leader did not come to write. The content is remembered, and read again at a rebuild.

Holds of a placed job on several nodes are deleted after its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from rmgr.coord import validity
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.place import Assigned
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import (
    MAX_MULTI_BYTES,
    MAX_PLACING_BYTES,
    Check,
    Committed,
    Conflict,
    Multi,
    Op,
    Outcome,
    Stamped,
    Unknown,
    size_of,
)
from rmgr.daemons.leader.facts import allocation_of
from rmgr.daemons.leader.placement.job_table import PlacedJob, Waiting, encode_records
from rmgr.daemons.leader.placement.stops import GO_ON, POLICY, SentOrder, stop_order
from rmgr.daemons.leader.placement.view import said
from rmgr.daemons.leader.term import Term
from rmgr.errors import RmgrError
from rmgr.model.base import MIB
from rmgr.model.block import BlockData, BlockKey, job_id, run_label, task_of
from rmgr.model.node import LEAD_US, InboxOrder, OrderKind
from rmgr.model.states import Reason, State
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story, insist
from rmgr.sched.job import Job, Running, each_node
from rmgr.sched.plan import (
    Decision,
    GangSet,
    HoldCores,
    Migrate,
    Plan,
    Preempt,
    Reject,
    ReleaseHold,
    Reserve,
    Resume,
    Route,
    Start,
    Suspend,
    WakeAt,
    Why,
)
from rmgr.sched.records import Gang, Hold, Share
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.job_table import Records
    from rmgr.daemons.leader.placement.placer import Placer

#: Operations of one RESERVE; the rest of a promise on more nodes gets a commit of its own.
_RESERVE_OPS = 150
#: Stands for a record that was not read: it is replaced whatever it says.
_UNREAD = b""
_READ_AGAIN_S, _RETRY_S = 0.5, 1.0
#: Operations and bytes of one commit: below the limits of a multi, which also counts the cluster's path in the ensemble.
MOST_OPS, MOST_BYTES = 180, MAX_MULTI_BYTES - 24 * 1024
_NOTHING = WakeAt(0, Why("", ""))


class Promises:
    """Znodes of waiting jobs below `/holds`."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.term
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
            before, after = self._there.get(job, {}), self.records_of(*found) if found is not None else {}
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
            for at in range(0, len(ops), _RESERVE_OPS):
                self._term.tell(self._reserve(ops[at : at + _RESERVE_OPS], is_needed=True), "commit RESERVE", key=object())

    def look_after(self, node: str, names: list[str] | None) -> None:
        """Deletes promises on a node that belong to no known job: an earlier leader left them."""
        for _, (submission, index) in paths.reserved_in(names):
            if not self.is_known(job_id(submission, index), node):
                ops = place_ops.reserve_ops(submission, index, {node: _UNREAD}, {})
                self._term.tell(self._reserve(ops, is_needed=False), "commit RESERVE", key=object())

    def _reserve(self, ops: list[Op], *, is_needed: bool) -> Story[None]:
        """Commits, and rebuilds if the outcome is unknown or (with is_needed) a conflict: a forgotten promise would block cores."""
        outcome: Outcome = yield self._term.commit(place_ops.reserve(ops))
        if isinstance(outcome, Unknown) or (is_needed and isinstance(outcome, Conflict)):
            self._placer.rebuild(f"RESERVE: {outcome}")

    # -- records

    def records_of(self, job: Job, hold: Hold) -> dict[str, bytes]:
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


def standing(term: Term, records: Iterable[Records]) -> Story[dict[int, list[str]]]:
    """Returns job -> nodes with promises, for all jobs in the records' holds. Cost: one list for each such node."""
    held = [shares for one in records for _, _, waits, held in one.holds for shares in (waits, held)]
    found: dict[int, list[str]] = {}
    nodes = sorted({node for shares in held for _, where in shares for node, _ in where})
    reads = {node: term.children(paths.hold(node)) for node in nodes}
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
        reads = {node: term.children(paths.hold(node)) for node in failed}
    return found


class PlacedHolds:
    """Holds of all placed jobs of one leadership. In its loop."""

    def __init__(self, placer: Placer) -> None:
        self._term = placer.term
        self._job_table = placer.job_table
        self._promises = placer.promises

    def prepare(self, nodes: list[str]) -> None:
        """Makes the directories for holds on these nodes."""
        wanted = [paths.hold(node) for node in nodes]
        made = insist(lambda: self._term.in_zookeeper(lambda zookeeper: zookeeper.ensure(wanted)), _RETRY_S)
        self._term.tell(made, "directories of holds", key=object())

    def look_for_holds(self, nodes: list[str]) -> None:
        """Deletes holds of jobs that are gone, left by an earlier leader. The job table must be complete."""
        for node in nodes:
            self._term.tell(self._look_on(node), paths.hold(node), key=object())

    def _look_on(self, node: str) -> Story[None]:
        names = yield from insist(lambda: self._term.children(paths.hold(node)), _RETRY_S)
        self._promises.look_after(node, names)
        for _, (submission, index, attempt) in paths.holds_in(names):
            placed = self._job_table.placed.get(job_id(submission, index))
            if placed is None or placed.key.attempt != attempt:
                self._unhold(node, submission, index, attempt)

    def _unhold(self, node: str, submission: int, index: int, attempt: int) -> None:
        self._term.tell(self._delete(node, submission, index, attempt), "holds that are over", key=object())

    def _delete(self, node: str, submission: int, index: int, attempt: int) -> Story[None]:
        """Repeats the delete until it is known to be done: a forgotten hold would block cores."""
        while isinstance((yield self._term.commit(place_ops.unhold(node, submission, index, attempt))), Unknown):
            yield Pause(_RETRY_S)

    def release(self, job: int, placed: PlacedJob) -> None:
        """Deletes the holds of a job that has ended."""
        submission, index = task_of(job)
        for node, _ in placed.allocation.helpers:
            self._unhold(node, submission, index, placed.key.attempt)


def _is_order(decision: Decision) -> bool:
    """Whether the decision must be committed."""
    return type(decision) is not WakeAt and (type(decision) is not Reserve or decision.keep)


class PlanExecution:
    """Carries out one plan at a time."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.term
        self._job_table = placer.job_table
        self._names = placer.names
        self._nodes = placer.known_nodes
        self._stops = placer.stops
        self._promises = placer.promises
        self._gangs = placer.gangs
        self._at: Decision = _NOTHING  # the decision being carried out
        self._begun_s: float | None = None
        self.left = 0  # commits in flight
        self._settled: Future[None] = Future()  # resolved when all commits are answered
        self._problem = ""
        self._blocks: dict[int, Stamped | None] = {}
        self._records: dict[str, tuple[bytes, int | None]] = {}
        self._too_large: set[str] = set()  # partitions whose record has become too large, logged once

    @property
    def is_busy(self) -> bool:
        """Whether a plan is being carried out."""
        return self._begun_s is not None

    @property
    def busy_s(self) -> float:
        """Seconds since the current plan was begun, 0.0 without one."""
        return self._term.clock() - self._begun_s if self._begun_s is not None else 0.0

    def adopt(self, records: dict[str, tuple[bytes, int | None]]) -> None:
        """Takes over the policies' memory as it was read."""
        self._records = dict(records)

    # -- a plan

    def carry_out(self, state: ClusterState, plan: Plan, *, now_us: int) -> Story[str]:
        """Commits a plan vetted by `sched/vetting.py`. Returns "", or why everything must be read again."""
        decisions = [decision for decision in plan.decisions if _is_order(decision)]
        if not decisions:
            return ""
        moved = {decision.job_id for decision in decisions if isinstance(decision, Migrate | Preempt)}
        starts = [decision for decision in decisions if isinstance(decision, Start | Reject) and decision.job_id not in moved]
        self._begin()
        if starts:
            waiting = [self._job_table.waiting[start.job_id] for start in starts]
            try:
                blocks = yield self._term.get_all([f"{paths.pending(one.queue)}/{one.name}" for one in waiting])
            except RmgrError:
                blocks = [None] * len(starts)
            self._blocks = {start.job_id: block for start, block in zip(starts, blocks, strict=True)}
        try:
            self._carry_out(state, decisions, now_us)
        except Exception as error:  # nothing was sent yet: the state is rebuilt
            decision = self._at
            self._term.log.exception("plan_not_carried_out", partition=decision.partition, op=type(decision).__name__)
            self._placer.broke(decision.partition, f"{type(decision).__name__} cannot be carried out: {type(error).__name__}: {error}")
            self._problem = self._problem or "a plan cannot be carried out"
        return (yield from self._end())

    def renew(self, state: ClusterState, partitions: Sequence[str]) -> Story[str]:
        """Writes gang records again with their new clock, valid from the next slot. Returns as `carry_out`."""
        self._begin()
        records = []
        for partition in partitions:
            part, now_us = state.partitions[partition], self._gangs.gang_now_us(partition)
            if now_us is None:
                continue
            for gang in list(part.gangs.by_name.values()):
                carousel = part.gangs.carousel(gang, frozenset()).copy()
                carousel.advance_to(carousel.boundary(now_us + LEAD_US))
                renewed = carousel.record(gang.name, gang.policy, gang.partition)
                part.gangs.put(renewed)
                records.append(self._gangs.encoded(partition, renewed, self._attempts(renewed, {})))
        self.send(state, [], [], gangs=records)
        return (yield from self._end())

    def ask(self, state: ClusterState, asked: Sequence[SentOrder]) -> Story[str]:
        """Commits orders that no plan decided, and the memory of them. Returns as `carry_out`."""
        self._begin()
        self.send(state, [], asked)
        return (yield from self._end())

    def _begin(self) -> None:
        self._begun_s, self._problem, self._blocks = self._term.clock(), "", {}

    def _end(self) -> Story[str]:
        if self.left:
            yield self._settled
        self._begun_s = None
        return self._problem

    def _carry_out(self, state: ClusterState, decisions: list[Decision], now_us: int) -> None:
        jobs: list[tuple[int, Assigned]] = []
        asked: list[SentOrder] = []
        left: dict[int, tuple[Running, Migrate | Preempt]] = {}
        promised: dict[int, None] = {}
        gangs: dict[str, Gang] = {}
        made = self._starts(decisions, now_us)
        for decision in decisions:
            self._at = decision
            if type(decision) is Route:
                self._job_table.routes[decision.job_id] = decision.to
            elif type(decision) is HoldCores:
                self._job_table.since.setdefault(decision.job_id, now_us)
                promised[decision.job_id] = None
            elif type(decision) is ReleaseHold:
                promised[decision.job_id] = None
                self._job_table.since.pop(decision.job_id, None)
            elif isinstance(decision, Migrate | Preempt):
                left[decision.job_id] = (_run_of(state, decision), decision)
            elif type(decision) is GangSet:
                gangs[decision.partition] = decision.gang
            if type(decision) is not Start or decision.job_id in left:  # a job that moves starts when it is back
                state.carried_out(decision, now_us)
                if type(decision) is Reject and decision.job_id not in left:
                    self._refuse(decision.job_id, said(decision.why, self._job_table.submissions))
                elif isinstance(decision, Suspend | Resume):
                    asked.append(self._pause_order(state, decision))
                continue
            assigned = made[decision.job_id]
            if isinstance(assigned, Exception):
                self._spoil(decision.job_id, assigned)
                continue
            why = place_ops.too_large(assigned, MOST_BYTES) if assigned is not None else ""
            if why:
                self._refuse(decision.job_id, why)
            if assigned is None or why:
                self._problem = self._problem or f"job {decision.job_id} cannot be placed as it was planned"
                continue
            state.carried_out(decision, now_us)
            self._promises.started(decision.job_id)
            jobs.append((decision.job_id, assigned))
        for job, (run, move) in left.items():
            self._at = move
            moved, detail = type(move) is Migrate, said(move.why, self._job_table.submissions)
            order = stop_order(job, why=POLICY, detail=detail, kill=not moved, unsaved=GO_ON if moved else "")
            guid = machine.guid()[:12]
            asked.append(SentOrder(job, guid, order, self._stops.begin(state, run, guid, now_us, by_policy=moved)))
        for job, assigned in jobs:
            self._stops.started(state, job, assigned.data)
        started = {job: assigned.key.attempt for job, assigned in jobs}
        records = [self._gangs.encoded(partition, gang, self._attempts(gang, started)) for partition, gang in gangs.items()]
        self.send(state, jobs, asked, self._promises.changed(state, promised), records)

    def _attempts(self, gang: Gang, started: Mapping[int, int]) -> dict[int, int]:
        """Returns the attempts of the gang's jobs: of those that start now, run, or were asked to leave but have not left."""
        placed = self._job_table.placed
        return {job: started.get(job) or placed[job].key.attempt for job in gang.homes if job in started or job in placed}

    def send(
        self,
        state: ClusterState,
        jobs: list[tuple[int, Assigned]],
        asked: Sequence[SentOrder],
        promises: Sequence[Op] = (),
        gangs: Sequence[tuple[str, bytes, int | None]] = (),
    ) -> None:
        multis = self._multis(state, jobs, asked, promises, gangs)
        self.left, self._settled = len(multis), Future()
        failpoint("leader.before_place")
        for multi, some, batch_orders in multis:
            self._term.tell(self._commit(multi, some, batch_orders), f"commit {multi.name}", key=object())

    def _pause_order(self, state: ClusterState, decision: Suspend | Resume) -> SentOrder:
        """Returns the order for a decision that was just applied to the state."""
        job, stops = decision.job_id, type(decision) is Suspend
        if not stops:
            run = state.partitions[decision.partition].running[job]
            self._job_table.stays[job] = (run.start_us, run.end_us)
        submission, index = task_of(job)
        order = InboxOrder(
            order=OrderKind.SUSPEND if stops else OrderKind.RESUME,
            submission=submission,
            index=index,
            detail=said(decision.why, self._job_table.submissions)[:500],
        )
        return SentOrder(job, machine.guid()[:12], order)

    def _ask_ops(self, asked: SentOrder) -> list[Op]:
        """Returns operations for an order, [] if the head is no longer known: then everything is read again."""
        placed = self._job_table.placed.get(asked.job)
        version = None if placed is None else self._nodes.version_of(placed.node)
        if placed is None or version is None:
            self._problem = self._problem or f"job {asked.job} cannot be asked as it was planned"
            return []
        submission, index = task_of(asked.job)
        kind, why = asked.order.order.value, asked.order.detail
        self._term.log.info("job_asked", submission=submission, first=index, node=placed.node, order=kind, why=why)
        order = replace(asked.order, extra={**asked.order.extra, "block": placed.name})  # this attempt, not a later one
        return place_ops.ask_ops(placed.node, version, placed.key, asked.guid, order)

    def _refuse(self, job: int, why: str) -> None:
        """Ends a job that no queue and no machine of this cluster can ever run."""
        waiting, found = self._job_table.waiting.get(job), self._blocks[job]
        data = None if waiting is None or found is None else self._data_of(waiting, found)
        self._job_table.waiting.pop(job, None)
        if waiting is None or found is None or data is None:
            return
        key = waiting.key
        fragment = leader_ops.no_outcome(State.FAILED, Reason.START_FAILED, [key.first], why)
        multi = ops.take_out(waiting.queue, key, data, found.version, indices=[key.first], fragment=fragment)
        self._term.log.info("job_refused", submission=key.submission, first=key.first, why=why)
        self._term.commit(multi)

    def _data_of(self, waiting: Waiting, found: Stamped) -> BlockData | None:
        """Returns the block's data, None if it is invalid: then it stays, but is no longer a job."""
        try:
            data = validity.decode(found.data, BlockData, f"{paths.pending(waiting.queue)}/{waiting.name}")
            validity.check_block(waiting.key, data)
            return data
        except RmgrError as error:
            self._term.log.error("block_unreadable", path=f"{paths.pending(waiting.queue)}/{waiting.name}", error=error.message)
            self._job_table.cannot_read(waiting)
            return None

    def _spoil(self, job: int, error: Exception) -> None:
        """Sets a job aside whose recorded data makes its start raise: it waits, and is not tried again while its block stands there."""
        waiting = self._job_table.waiting[job]
        self._term.aside.add(f"{paths.pending(waiting.queue)}/{waiting.name}", None, error)
        self._job_table.cannot_read(waiting)
        self._job_table.refused_blocks[waiting.name] = f"{type(error).__name__}: {error}"
        self._problem = self._problem or f"job {job} cannot be started"

    def _assignment(self, start: Start, found: Stamped, now_us: int, gang: Gang | None) -> Assigned | None:
        """Returns the start as an assignment, None if the job or one of its nodes is gone."""
        waiting = self._job_table.waiting.get(start.job_id)
        number, _ = task_of(start.job_id)
        submission = self._job_table.submissions.get(number)
        data = None if waiting is None or submission is None else self._data_of(waiting, found)
        if waiting is None or submission is None or data is None:
            return None
        names = [self._names.name(node) for first, last, _ in start.placement for node in range(first, last + 1)]
        fences = tuple((name, version) for name in names if (version := self._nodes.version_of(name)) is not None)
        if len(fences) < len(names) or not all(name in self._nodes.records for name in names):
            return None
        name, share = (gang.partition, gang.memory_share) if gang is not None else ("", 0)
        generation = self._gangs.next_generation(name) if name else 0
        allocation = allocation_of(
            submission, start.placement, self._names, now_us, self._nodes.records, gang=name, generation=generation, memory_share=share
        )
        running = place_ops.running_key(waiting.key, allocation)
        name = waiting.name if running is waiting.key else paths.block_name(running)
        chance = machine.random_hex(12)
        return Assigned(
            queue=waiting.queue,
            key=waiting.key,
            data=data,
            version=found.version,
            allocation=allocation,
            fences=fences,
            incarnation=self._nodes.records[allocation.head].incarnation,
            guid=paths.start_order(chance[:12], name),
            stamp=chance[12:],
            reserved=self._promises.taken_over(start.job_id),
        )

    def _starts(self, decisions: Sequence[Decision], now_us: int) -> dict[int, Assigned | Exception | None]:
        """Returns for each start its assignment, the error of its data, or None if the job is gone."""
        made: dict[int, Assigned | Exception | None] = {}
        gangs = {job: one.gang for one in decisions if type(one) is GangSet for job in one.gang.homes}
        for decision in decisions:
            if type(decision) is not Start or decision.job_id not in self._blocks:  # the block of a job that moves was not read
                continue
            self._at, found, job = decision, self._blocks[decision.job_id], decision.job_id
            made[job] = None
            try:
                made[job] = None if found is None else self._assignment(decision, found, now_us, gangs.get(job))
            except Exception as error:  # noqa: BLE001 - the boundary of one job: its block or record is to blame, not the policy
                made[job] = error
        return made

    def _multis(
        self,
        state: ClusterState,
        jobs: list[tuple[int, Assigned]],
        asked: Sequence[SentOrder],
        promises: Sequence[Op],
        gangs: Sequence[tuple[str, bytes, int | None]],
    ) -> list[_Sent]:
        """Returns commits of allowed size; memory and orders to running jobs go first."""
        found: list[_Sent] = []
        slots: list[tuple[str, bytes, int | None]] = []
        records: list[tuple[str, bytes, int | None]] = []
        some: list[tuple[int, Assigned]] = []
        theirs: list[SentOrder] = []
        orders: list[Op] = []
        count = size = 0

        def close() -> None:
            nonlocal slots, records, some, theirs, orders, count, size
            if some or slots or records or orders:
                # Starts beyond the first commit depend on the record that gives them their slots.
                elsewhere = {one.allocation.gang for _, one in some if one.allocation.gang}.difference(name for name, _, _ in slots)
                checks = [Check(paths.gangs(name), self._gangs.generation(name) or 0) for name in sorted(elsewhere)]
                found.append((place_ops.place([one for _, one in some], records, [*checks, *orders], slots), some, theirs))
            slots, records, some, theirs, orders, count, size = [], [], [], [], [], 0, 0

        def make_room(more: int, more_bytes: int) -> None:
            nonlocal count, size
            if count + more > MOST_OPS or size + more_bytes > MOST_BYTES:
                close()
            count, size = count + more, size + more_bytes

        for gang in gangs:
            make_room(1, 200 + len(gang[1]))
            slots.append(gang)
        for record in self._changed_records(state):
            make_room(1, 200 + len(record[1]))
            records.append(record)
        for op in promises:
            make_room(1, size_of(op))
            orders.append(op)
        for one in asked:
            ops = self._ask_ops(one)
            make_room(len(ops), sum(map(size_of, ops)))
            orders += ops
            theirs.append(one)
        for job in jobs:
            make_room(len(job[1].ops), job[1].size)
            some.append(job)
        close()
        return found

    def _changed_records(self, state: ClusterState) -> list[tuple[str, bytes, int | None]]:
        """Returns the changed records; assumes that their new bytes will be committed."""
        found = []
        for at, partition in enumerate(sorted(self._records)):
            before, version = self._records[partition]
            part = state.partitions.get(partition)
            users = state if state.usage_half_life_us and not at else None
            orders = {job: (stop.placed.key.attempt, stop.guid, stop.asked_us) for job, stop in self._stops.by_job.items()}
            data = b"" if part is None else encode_records(part, self._names, self._job_table, orders, users=users)
            if data == before or (not data and version is None):
                continue
            if len(data) > MAX_PLACING_BYTES:
                if partition not in self._too_large:
                    self._term.log.error("placing_records_too_large", partition=partition, bytes=len(data))
                self._too_large.add(partition)
                continue
            self._too_large.discard(partition)
            found.append((partition, data, version))
            self._records[partition] = (data, 0 if version is None else version + 1)
        return found

    def _commit(self, multi: Multi, jobs: list[tuple[int, Assigned]], asked: Sequence[SentOrder]) -> Story[None]:
        try:
            self.answered(jobs, asked, (yield self._term.commit(multi)))
        except Exception as error:  # it is unknown what was placed: everything is read again
            self._problem = self._problem or f"PLACE: {type(error).__name__}: {error}"
            raise
        finally:
            self.left -= 1
            if not self.left:
                self._settled.set_result(None)

    def answered(self, jobs: list[tuple[int, Assigned]], asked: Sequence[SentOrder], outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            for one in asked:
                if one.stop is not None:
                    self._stops.watch(one.stop)
            answered_s = self._term.clock()
            for job, assigned in jobs:
                self._job_table.place(job, assigned.running, assigned.allocation, answered_s)
            heads = {assigned.allocation.head for _, assigned in jobs}
            for head in sorted(heads):
                self._placer.lists.watch_head(head)
            if jobs:
                what = " ".join(f"{one.key.submission}_{one.key.first}@{one.allocation.head}" for _, one in jobs)
                self._term.log.info("jobs_placed", count=len(jobs), target=what)
            self._term.metrics.placed.inc(len(jobs))
            failpoint("leader.after_place")
        else:
            self._problem = self._problem or f"PLACE: {outcome}"


#: (commit, jobs started by it, orders in it)
_Sent: TypeAlias = tuple[Multi, list[tuple[int, Assigned]], list[SentOrder]]


def _run_of(state: ClusterState, move: Migrate | Preempt) -> Running:
    """Returns the stretch of a job that is about to leave its nodes, running or suspended."""
    part = state.partitions[move.partition]
    run = part.running.get(move.job_id)
    return part.suspended[move.job_id].run if run is None else run
