"""The cluster as facts have made it: partitions with their nodes, waiting and running jobs, and every record. Facts change it; passes read
it.

A driver (the elected leader, the simulator) owns one `ClusterState`, gives it every fact, and runs passes on it. Facts of one instant
are given in this order: ends, arrivals, then one pass (papers.md, common rules). A `Snapshot`, every record as values, carries it across a
change of leader: a state restored from its snapshot decides exactly as the old one would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rmgr.errors import NotFound, StateConflict
from rmgr.sched.job import Job, Node, Placement, Reservation, Running, charged_cores, count_on, sent_back
from rmgr.sched.plan import (
    Decision,
    GangSet,
    HoldCores,
    Migrate,
    Noted,
    Plan,
    Preempt,
    Reject,
    ReleaseHold,
    Reserve,
    Resume,
    Route,
    Send,
    Start,
    Suspend,
    Unreserve,
    WakeAt,
    Why,
    of_tuple,
)
from rmgr.sched.records import Answered, Call, Gang, GangTime, Hold, Learnt, Limits, Maintenance, Note, Server, Suspended, Usage
from rmgr.sched.state.partition import Partition


class ClusterState:
    """The state of the cluster; only facts (the methods below) change it, a pass does not.

    usage_half_life_us: decayed usage per user and account is kept as records, halved once per half-life; 0 = not kept.
    """

    __slots__ = ("_dependents", "partitions", "usage", "usage_half_life_us")

    def __init__(self, nodes: Iterable[Node] = (), usage_half_life_us: int = 0) -> None:
        self.usage: dict[tuple[str, str], Usage] = {}  #: by (user, account)
        self.usage_half_life_us = usage_half_life_us
        self._dependents: dict[int, list[Job]] = {}  # job id -> waiting jobs that name it in `after`
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            groups.setdefault(node.partition, []).append(node)
        #: by name, in order of name
        self.partitions: dict[str, Partition] = {name: Partition(name, groups[name], self.usage) for name in sorted(groups)}

    # -- facts: jobs --------------------------------------------------------------------------------------------------------

    def job_submitted(self, job: Job) -> bool:
        """The job waits from now on. False: its partition can never run it as it is; no order shows it until the nodes change.

        Raises: NotFound for an unknown partition; StateConflict if the id is already known there.
        """
        part = self.partitions.get(job.partition) or self._partition(job.partition)
        job_id = job.id
        if job_id in part.jobs or job_id in part.running or job_id in part.suspended or job_id in part.stopping:
            raise StateConflict(f"job {job_id} was submitted before to partition {job.partition}")
        if job.after:
            self._depend(part, job)
        part.add_job(job)
        if self._dependents and job_id in self._dependents:
            self._settle(job_id)
        return job_id not in part.infeasible

    def job_withdrawn(self, job_id: int, partition: str = "default") -> Job:
        """A waiting job was cancelled or held: it no longer waits, and its reservation, hold and notes are deleted. Returns the job."""
        part = self._partition(partition)
        job = self._waiting(part, job_id)
        self._dequeue(part, job)
        part.gangs.strike(job_id)
        self._left_cluster(part, job)
        return job

    def job_started(self, job_id: int, placement: Placement, now: int, partition: str = "default") -> Running:
        """A waiting job runs on these nodes since `now` (us). Its reservation and hold are deleted.

        Raises: StateConflict if it does not wait or the nodes are not free for it: even a fact cannot over-commit nodes.
        """
        part = self._partition(partition)
        job = self._waiting(part, job_id)
        if not part.can_start(job, placement):
            raise StateConflict(f"job {job_id} cannot have started on {placement}: not free in partition {partition}")
        return self._start(part, job, placement, now)

    def job_ended(self, job_id: int, partition: str = "default", *, now: int | None = None) -> Running:
        """A running, suspended or stopping job is off its nodes and has left the cluster. Returns its run.

        Args: now (us): needed if usage is kept.
        Raises: StateConflict if the job does not run.
        """
        part = self.partitions.get(partition) or self._partition(partition)
        run = self._left(part, job_id) if job_id in part.stopping else self._off_nodes(part, job_id, now)
        if part.notes or self._dependents:
            self._left_cluster(part, run.job)
        return run

    def job_migrated(self, job_id: int, now: int, partition: str = "default") -> Job:
        """A running or suspended job has been checkpointed and waits again, as the returned job. Its notes stay."""
        return self._send_back(job_id, now, partition, moved=True)

    def job_preempted(self, job_id: int, now: int, partition: str = "default") -> Job:
        """A job has lost its work (preempted, or its node was lost) and waits again, as the returned job. Its notes stay."""
        return self._send_back(job_id, now, partition, moved=False)

    def job_stopping(self, run: Running, now: int) -> None:
        """A job was asked to give up its nodes (`run`: its last stretch); until it returns, goes on or ends, it neither waits nor runs.

        It was running or suspended, or a decision of this instant has sent it back to the queue. Its capacity is free, its notes stay. A
        member of a gang keeps its place there until it has left.
        """
        job = run.job
        part = self._partition(job.partition)
        if job.id in part.jobs:
            self._dequeue(part, part.jobs[job.id])
        elif job.id in part.running and job.id in part.gangs:
            part.pinned.discard(job.id)
            self._charge(part, part.running[job.id], now)
            part.step_aside(part.running[job.id])
        elif job.id in part.running or job.id in part.suspended:
            self._off_nodes(part, job.id, now)
        part.stopping[job.id] = run

    def job_returned(self, job: Job) -> None:
        """A stopping job waits again, as this request. Raises: StateConflict if it was not stopping."""
        part = self._partition(job.partition)
        self._left(part, job.id)
        if job.after:
            self._depend(part, job)
        part.add_job(job)

    def job_went_on(self, job_id: int, now: int, partition: str = "default") -> Running:
        """A stopping job has kept its nodes and runs there again from now on, with its old end. Returns the run.

        Raises: StateConflict if the job was not stopping, or its capacity was given to other jobs.
        """
        part = self._partition(partition)
        run = part.stopping.get(job_id)
        if run is not None and job_id in part.gangs:
            run = self._stopping(part, job_id)._replace(start_us=now)
            part.step_back(run)
            return run
        if run is not None and not part.has_room_for(run):
            raise StateConflict(f"job {job_id} cannot have gone on in partition {partition}: others were given its nodes")
        run = self._stopping(part, job_id)._replace(start_us=now)
        part.add_running(run)
        return run

    def job_pinned(self, job_id: int, pinned: bool, partition: str = "default") -> None:
        """A running job must never be sent back to the queue from now on, or may be again. The pin ends with the run."""
        part = self._partition(partition)
        if pinned and job_id in part.running:
            part.pinned.add(job_id)
        else:
            part.pinned.discard(job_id)

    def job_known(self, job_id: int, saves: bool, moves: int, partition: str = "default") -> None:
        """For a running or suspended job, records whether it can save its state and how often it was moved, now that this is known."""
        part = self._partition(partition)
        run = part.running.get(job_id)
        stopped = part.suspended.get(job_id)
        if run is not None:
            part.running[job_id] = run._replace(job=replace(run.job, saves=saves, moves=moves))
        elif stopped is not None:
            job = replace(stopped.run.job, saves=saves, moves=moves)
            part.suspended[job_id] = stopped._replace(run=stopped.run._replace(job=job))

    def job_requeued(self, job: Job) -> None:
        """A waiting job is replaced by another request (other limit, size, queue, ...) with the same id. Its promise is dropped if size or
        limit changed, its hold if the size changed. Raises: StateConflict if the job does not wait.
        """
        part = self._partition(job.partition)
        old = self._waiting(part, job.id)
        hold, promise = part.holds.get(job.id), part.reservations.get(job.id)
        same = old.shape == job.shape and old.processes == job.processes
        self._dequeue(part, old)
        if job.after:
            self._depend(part, job)
        part.add_job(job)
        if hold is not None and same:
            part.set_hold(hold)
        if promise is not None and same and old.planned_us == job.planned_us:
            part.reservations[job.id] = promise

    def job_suspended(self, job_id: int, now: int, partition: str = "default") -> None:
        """A running job is suspended: its cores are free, its memory is not. Raises: StateConflict if it does not run by itself."""
        part = self._partition(partition)
        run = part.running.get(job_id)
        if run is None or job_id in part.gangs:
            raise StateConflict(f"job {job_id} does not run by itself in partition {partition}")
        self._charge(part, run, now)
        part.suspend(run, now)

    def job_resumed(self, job_id: int, now: int, partition: str = "default") -> Running:
        """A suspended job goes on in place with the rest of its limit. Raises: StateConflict if not suspended or its cores are not free."""
        part = self._partition(partition)
        stopped = part.suspended.get(job_id)
        if stopped is None or not part.pool.can_resume(stopped.run.job, stopped.run.placement):
            raise StateConflict(f"job {job_id} cannot have gone on in partition {partition}: not suspended, or its cores are not free")
        run = part.drop_suspended(job_id)
        run = run._replace(start_us=now, end_us=now + run.end_us - stopped.since_us)
        part.add_running(run)
        return run

    # -- facts: nodes, limits, windows ------------------------------------------------------------------------------------------

    def node_changed(self, node: Node) -> None:
        """A node is new, closed, open again, or has other attributes. Cost: O(partition).

        Raises: StateConflict if the node is in another partition, since a node never changes its partition.
        """
        for name, part in self.partitions.items():
            if node.id in part.nodes and name != node.partition:
                raise StateConflict(f"node {node.id} is in partition {name}, it cannot be in {node.partition} as well")
        part = self._made(node.partition)
        if part.servers or part.calls:
            raise StateConflict(f"partition {part.name} has servers for calls, node {node.id} cannot be in it")
        part.set_node(node)

    def node_removed(self, node_id: int, partition: str = "default") -> None:
        """A node is removed. Raises: StateConflict while a job runs, is suspended or holds cores on it; NotFound if unknown."""
        part = self._partition(partition)
        stands = [(run.job.id, run.placement) for run in part.running.values()]
        stands += [(stopped.run.job.id, stopped.run.placement) for stopped in part.suspended.values()]
        stands += [(hold.job_id, share.cores) for hold in part.holds.values() for share in hold.held]
        for job_id, placement in stands:
            if count_on(node_id, placement):
                raise StateConflict(f"node {node_id} cannot be removed: job {job_id} runs on it")
        if node_id not in part.nodes:
            raise NotFound(f"no node {node_id} in partition {partition}")
        part.drop_node(node_id)

    def limits_changed(self, partition: str, limits: Limits | None) -> None:
        """Limits of a partition from now on; running jobs go on. Cost: O(waiting)."""
        self._partition(partition).set_limits(limits)

    def gang_time(self, partition: str, shift_us: int | None, why: str = "", most: int = 0) -> None:
        """Sets how far the clock that counts slots of gangs is ahead of the clock of passes, from now on.

        shift_us: None if the clock cannot be read, because of `why`; then no gang is set. most: jobs in one gang's record, 0 = any number.
        """
        part = self._partition(partition)
        part.gang_shift_us, part.gang_why, part.gang_most = shift_us, why, most

    def maintenance_planned(self, window: Maintenance) -> None:
        """No job may run there in this window; the driver handles running ones. Replaces the window of that id. Cost: O(partition)."""
        part = self._partition(window.partition)
        for node in window.nodes:
            if node not in part.nodes:
                raise NotFound(f"no node {node} in partition {window.partition} for maintenance {window.name or window.id}")
        if window.end_us <= window.start_us:
            raise StateConflict(f"maintenance {window.name or window.id} ends at {window.end_us} us, not after its start")
        part.set_windows({**part.windows, window.id: window})

    def maintenance_over(self, window_id: int) -> None:
        """The window has ended or was called off: its nodes can be used again. Raises: NotFound if unknown. Cost: O(partition)."""
        for part in self.partitions.values():
            if window_id in part.windows:
                part.set_windows({i: window for i, window in part.windows.items() if i != window_id})
                return
        raise NotFound(f"no maintenance {window_id}")

    # -- facts: calls ------------------------------------------------------------------------------------------------------------

    def call_submitted(self, call: Call) -> None:
        """A call needs a server. Raises: StateConflict for a call that waits already, or in a partition of jobs."""
        part = self._of_calls(call.partition)
        if call.id in part.calls:
            raise StateConflict(f"call {call.id} was submitted before to partition {call.partition}")
        part.calls[call.id] = call

    def call_left(self, call_id: int, partition: str = "default") -> None:
        """A call was sent or withdrawn. Raises: NotFound for an unknown call."""
        part = self._partition(partition)
        if part.calls.pop(call_id, None) is None:
            raise NotFound(f"no call {call_id} waits in partition {partition}")
        part.forget(call_id)

    def call_answered(self, answered: Answered) -> None:
        """A sent call was answered. Cost: O(kept answers)."""
        self._of_calls(answered.partition).records_of_calls.answer(answered)

    def server_changed(self, server: Server) -> None:
        """A server exists, with these measurements. Raises: StateConflict in a partition of jobs."""
        part = self._of_calls(server.partition)
        part.servers[server.name] = server
        part.records_of_calls.measure(server)

    def server_left(self, name: str, partition: str = "default") -> None:
        """A server is removed with its measurements; performance learnt from its answers stays. Raises: NotFound if unknown."""
        part = self._partition(partition)
        if part.servers.pop(name, None) is None:
            raise NotFound(f"no server {name} in partition {partition}")
        part.records_of_calls.measured.pop(name, None)

    # -- decisions that were carried out ----------------------------------------------------------------------------------------

    def carried_out(self, decision: Decision, now: int) -> Running | None:
        """Applies the fact that follows from a decision of a plan for this state that was carried out at once.

        Returns: the run that began or went on (`Start`, `Resume`). A driver that sends a migrated job back as another request calls
        `job_requeued` afterwards. After `Reject` the job has left the state, and the driver ends it.
        """
        part = self.partitions[decision.partition]
        if type(decision) is Start:  # the most frequent decision: skip the patterns
            return self._start(part, part.jobs[decision.job_id], decision.placement, now)
        match decision:
            case Reserve(job_id, start_us, held, keep, _, _, policy):
                if keep:
                    part.reservations[job_id] = Reservation(job_id, start_us, held, policy)
            case Unreserve(job_id):
                part.reservations.pop(job_id, None)
            case Noted(policy, kind, job_id, value):
                part.set_note(policy, kind, job_id, value)
            case Migrate(job_id, _, partition):
                self.job_migrated(job_id, now, partition)
            case Preempt(job_id, _, partition):
                self.job_preempted(job_id, now, partition)
            case Suspend(job_id, _, partition):
                self.job_suspended(job_id, now, partition)
            case Resume(job_id, _, partition):
                return self.job_resumed(job_id, now, partition)
            case HoldCores(_, hold):
                part.set_hold(hold)
            case ReleaseHold(job_id):
                part.release(job_id)
            case Route(job_id, to):
                self.job_requeued(replace(self._waiting(part, job_id), queue=to))
            case Send(call_id, _, _, partition):
                self.call_left(call_id, partition)
            case Reject(job_id, _, partition):
                self.job_withdrawn(job_id, partition)
            case GangSet(gang):
                old = part.gangs.by_name.get(gang.name) if self.usage_half_life_us else None
                for job_id in old.homes if old is not None and old.origin_us == gang.origin_us else ():
                    if job_id in part.running and part.gangs.of.get(job_id) == gang.name:
                        self._charge(part, part.running[job_id], now, gang)
                part.gangs.put(gang)
            case WakeAt():
                pass  # handled by the driver
        return None

    def apply(self, plan: Plan, now: int) -> list[Running]:
        """Applies every decision of the plan as carried out at once (the simulator's world). Returns the runs that began, in order."""
        runs = (self.carried_out(decision, now) for decision in plan.decisions)
        return [run for run in runs if run is not None]

    # -- records ----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Returns every record, sorted."""
        return records_of(self.partitions.values(), self.usage)

    @classmethod
    def restored(cls, snapshot: Snapshot, usage_half_life_us: int = 0) -> ClusterState:
        """Returns a new state with these records, whatever their order."""
        state = cls(snapshot.nodes, usage_half_life_us)
        for job in snapshot.waiting:
            for before in dict.fromkeys(job.after):
                state._dependents.setdefault(before, []).append(job)
        state._restore(snapshot)
        for before in sorted(state._dependents):
            state._settle(before)
        return state

    def _restore(self, snapshot: Snapshot) -> None:
        """Puts the records into new partitions, in order of dependency between records; job dependencies are left to the caller."""
        for name, limits in snapshot.limits:
            self._made(name).set_limits(limits)
        windows: dict[str, dict[int, Maintenance]] = {}
        for window in snapshot.windows:
            windows.setdefault(window.partition, {})[window.id] = window
        for name, planned in windows.items():
            self._made(name).set_windows(planned)
        for gang in snapshot.gangs:
            self._made(gang.partition).gangs.put(gang)
        for run in snapshot.running:
            self._made(run.job.partition).add_running(run)
        for run in snapshot.stopping:
            part = self._made(run.job.partition)
            part.stopping[run.job.id] = run
            if run.job.id in part.gangs:
                part.gangs.enter(part.pool, run)
        for gang in snapshot.gangs:
            part = self._made(gang.partition)
            part.gangs.keep({*part.running, *part.stopping})
        for time in snapshot.gang_times:
            part = self._made(time.partition)
            part.gang_shift_us, part.gang_why, part.gang_most = time.shift_us, time.why, time.most
        for stopped in snapshot.suspended:
            part = self._made(stopped.run.job.partition)
            part.suspended[stopped.run.job.id] = stopped
            part.pool.park(stopped.run.job, stopped.run.placement)
        for name, job_id in snapshot.pinned:
            self._made(name).pinned.add(job_id)
        home: dict[int, Partition] = {}
        for job in snapshot.waiting:
            home[job.id] = self._made(job.partition)
            home[job.id].add_job(job)
        for reservation in snapshot.reservations:
            home[reservation.job_id].reservations[reservation.job_id] = reservation
        for hold in snapshot.holds:
            home[hold.job_id].set_hold(hold)
        for call in snapshot.calls:
            self._made(call.partition).calls[call.id] = call
        for note in snapshot.notes:
            self._made(note.partition).set_note(note.policy, note.kind, note.id, note.value)
        for use in snapshot.usage:
            self.usage[use.user, use.account] = use
        for server in snapshot.servers:
            self._made(server.partition).servers[server.name] = server
        measured = {*snapshot.measured, *snapshot.servers}  # logs of older releases have only the latest measurement
        told = {one.partition for one in measured} | {one.partition for one in snapshot.answered}
        for name in sorted(told | {one.partition for one in snapshot.learnt}):
            self._made(name).records_of_calls.restore(
                (one for one in measured if one.partition == name),
                (one for one in snapshot.answered if one.partition == name),
                (one for one in snapshot.learnt if one.partition == name),
            )

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _start(self, part: Partition, job: Job, placement: Placement, now: int) -> Running:
        part.drop_job(job)
        if job.after:
            self._independent(job)
        run = of_tuple(Running, (job, now, now + job.planned_us, placement))
        part.add_running(run)
        return run

    def _left(self, part: Partition, job_id: int) -> Running:
        """Takes a stopping job off its nodes."""
        run = self._stopping(part, job_id)
        if job_id in part.gangs:
            part.gangs.leave(part.pool, run)
        return run

    @staticmethod
    def _stopping(part: Partition, job_id: int) -> Running:
        run = part.stopping.pop(job_id, None)
        if run is None:
            raise StateConflict(f"job {job_id} was not asked to give up its nodes in partition {part.name}")
        return run

    def _send_back(self, job_id: int, now: int, partition: str, *, moved: bool) -> Job:
        part = self._partition(partition)
        job = sent_back(self._off_nodes(part, job_id, now).job, now, moved=moved)
        if job.after:
            self._depend(part, job)
        part.add_job(job)
        return job

    def _off_nodes(self, part: Partition, job_id: int, now: int | None) -> Running:
        if part.pinned:
            part.pinned.discard(job_id)
        run = part.running.get(job_id)
        if run is not None:
            if self.usage_half_life_us:
                self._charge(part, run, now)
            part.drop_running(run)
            return run
        if job_id not in part.suspended:
            raise StateConflict(f"job {job_id} does not run in partition {part.name}")
        return part.drop_suspended(job_id)

    def _charge(self, part: Partition, run: Running, now: int | None, until: Gang | None = None) -> None:
        """Charges usage for the run. until: the record being set now, for a member of the previous record."""
        half_life = self.usage_half_life_us
        if not half_life:
            return
        if now is None:
            raise ValueError(f"job {run.job.id} left its nodes: when? (now is needed where usage is kept)")
        who = (run.job.user, run.job.account)
        had = self.usage.get(who) or Usage(*who, 0, now)
        since_us, given_us = part.uncharged(run, now, until)
        self.usage[who] = had.charged(charged_cores(run, part.nodes), since_us, now, half_life, given_us)

    def _dequeue(self, part: Partition, job: Job) -> None:
        part.drop_job(job)
        if job.after:
            self._independent(job)

    def _left_cluster(self, part: Partition, job: Job) -> None:
        if part.notes:
            part.forget(job.id)
        if self._dependents and job.id in self._dependents:
            self._settle(job.id)

    # -- dependencies -------------------------------------------------------------------------------------------------------

    def _depend(self, part: Partition, job: Job) -> None:
        for before in dict.fromkeys(job.after):
            self._dependents.setdefault(before, []).append(job)
        part.set_depends(job, self.waits_on(job))

    def _independent(self, job: Job) -> None:
        for before in dict.fromkeys(job.after):
            others = [other for other in self._dependents[before] if other.id != job.id]
            if others:
                self._dependents[before] = others
            else:
                del self._dependents[before]

    def _settle(self, job_id: int) -> None:
        """Updates jobs that depend on this job, which has come or left: orders show them or not."""
        for job in self._dependents[job_id]:
            self.partitions[job.partition].set_depends(job, self.waits_on(job))

    def waits_on(self, job: Job) -> Why | None:
        there = [before for before in job.after if self._is_there(before)]
        return Why("after", "starts after job {}", (", ".join(map(str, there)),)) if there else None

    def _is_there(self, job_id: int) -> bool:
        parts = self.partitions.values()
        return any(job_id in table for part in parts for table in (part.running, part.jobs, part.suspended, part.stopping))

    # -- partitions ---------------------------------------------------------------------------------------------------------

    def _made(self, name: str) -> Partition:
        if name not in self.partitions:
            self.partitions[name] = Partition(name, (), self.usage)
            self.partitions = dict(sorted(self.partitions.items()))
        return self.partitions[name]

    def _of_calls(self, name: str) -> Partition:
        """Returns the partition. Raises: StateConflict if it has nodes or jobs, where ids of calls and jobs could be confused."""
        part = self._made(name)
        if part.nodes or part.jobs or part.running or part.suspended or part.stopping:
            raise StateConflict(f"partition {name} places jobs, calls need one of their own")
        return part

    def _partition(self, name: str) -> Partition:
        part = self.partitions.get(name)
        if part is None:
            raise NotFound(f"no partition {name}", hint=f"partitions: {', '.join(self.partitions) or 'none'}")
        return part

    def _waiting(self, part: Partition, job_id: int) -> Job:
        job = part.jobs.get(job_id)
        if job is None:
            raise StateConflict(f"job {job_id} does not wait in partition {part.name}")
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every record of a state, read by a new leader. `ClusterState.snapshot` sorts it; the order has no meaning."""

    nodes: tuple[Node, ...] = ()
    waiting: tuple[Job, ...] = ()
    running: tuple[Running, ...] = ()
    suspended: tuple[Suspended, ...] = ()
    stopping: tuple[Running, ...] = ()
    pinned: tuple[tuple[str, int], ...] = ()  #: (partition, job)
    reservations: tuple[Reservation, ...] = ()
    notes: tuple[Note, ...] = ()
    holds: tuple[Hold, ...] = ()
    gangs: tuple[Gang, ...] = ()
    gang_times: tuple[GangTime, ...] = ()  #: of partitions where it differs from the time of passes
    windows: tuple[Maintenance, ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()  #: (partition, its limits)
    usage: tuple[Usage, ...] = ()
    calls: tuple[Call, ...] = ()
    servers: tuple[Server, ...] = ()
    measured: tuple[Server, ...] = ()  #: last measurements of each server, including the latest
    answered: tuple[Answered, ...] = ()
    learnt: tuple[Learnt, ...] = ()


def records_of(parts: Iterable[Partition], usage: Mapping[tuple[str, str], Usage]) -> Snapshot:
    """Returns all records of these partitions."""
    parts = tuple(parts)
    return Snapshot(
        nodes=tuple(sorted((node for part in parts for node in part.nodes.values()), key=lambda node: node.id)),
        waiting=tuple(sorted((job for part in parts for job in part.jobs.values()), key=lambda job: job.id)),
        running=tuple(sorted((run for part in parts for run in part.running.values()), key=lambda run: run.job.id)),
        suspended=tuple(sorted((stop for part in parts for stop in part.suspended.values()), key=lambda stop: stop.run.job.id)),
        stopping=tuple(sorted((run for part in parts for run in part.stopping.values()), key=lambda run: run.job.id)),
        pinned=tuple((part.name, job_id) for part in parts for job_id in sorted(part.pinned)),
        reservations=tuple(sorted(r for part in parts for r in part.reservations.values())),
        notes=tuple(sorted(note for part in parts for note in notes_of(part))),
        holds=tuple(sorted(hold for part in parts for hold in part.holds.values())),
        gangs=tuple(sorted(gang for part in parts for gang in part.gangs)),
        gang_times=tuple(
            GangTime(part.name, part.gang_shift_us, part.gang_why, part.gang_most)
            for part in parts
            if (part.gang_shift_us, part.gang_most) != (0, 0)
        ),
        windows=tuple(sorted(window for part in parts for window in part.windows.values())),
        limits=tuple((part.name, part.limits) for part in parts if part.limits is not None),
        usage=tuple(sorted(usage.values())),
        calls=tuple(sorted(call for part in parts for call in part.calls.values())),
        servers=tuple(sorted(server for part in parts for server in part.servers.values())),
        measured=tuple(sorted(one for part in parts for known in part.records_of_calls.measured.values() for one in known)),
        answered=tuple(sorted(answer for part in parts for answer in part.records_of_calls.answered)),
        learnt=tuple(sorted(known for part in parts for known in part.records_of_calls.learnt.values())),
    )


def notes_of(part: Partition) -> Iterable[Note]:
    for policy, kinds in part.notes.items():
        for kind, notes in kinds.items():
            for job_id, value in notes.items():
                yield Note(policy, kind, job_id, value, part.name)
