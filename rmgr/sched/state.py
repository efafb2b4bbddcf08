"""The cluster as facts have made it: partitions with their nodes, waiting and running jobs, reservations. Facts in; passes read it.

A driver (the elected leader, the simulator) owns one `ClusterState`, tells it every fact, and runs passes on it. Facts of one instant
are told in this order: ends, arrivals, then one pass (papers.md, common rules). `snapshot` and `restored` carry it across a change of
leader: a state restored from its snapshot decides exactly as the old one would have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmgr.errors import NotFound, StateConflict
from rmgr.sched.job import Job, Node, Placement, Reservation, Running
from rmgr.sched.partition import Partition
from rmgr.sched.plan import Decision, Plan, Reserve, Start, Unreserve, WakeAt


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every record of a state, sorted by id: what a new leader reads."""

    nodes: tuple[Node, ...] = ()
    waiting: tuple[Job, ...] = ()
    running: tuple[Running, ...] = ()
    reservations: tuple[Reservation, ...] = ()


class ClusterState:
    """Mutable by facts only (the methods below). A pass does not change it."""

    __slots__ = ("partitions",)

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            groups.setdefault(node.partition, []).append(node)
        #: by name, in order of name
        self.partitions: dict[str, Partition] = {name: Partition(name, groups[name]) for name in sorted(groups)}

    # -- facts ------------------------------------------------------------------------------------------------------------

    def job_submitted(self, job: Job) -> bool:
        """The job waits from now on. False: its partition can never run it as it is (it waits for a change of nodes; no order shows it).

        Raises: NotFound for an unknown partition; StateConflict when the id is known there.
        """
        partition = self._partition(job.partition)
        if job.id in partition.jobs or job.id in partition.running:
            raise StateConflict(f"job {job.id} was submitted before to partition {job.partition}")
        partition.add_job(job)
        return job.id not in partition.infeasible

    def job_withdrawn(self, job_id: int, partition: str = "default") -> Job:
        """A waiting job was cancelled or held: it waits no longer, its reservation goes."""
        part = self._partition(partition)
        job = self._waiting(part, job_id)
        part.drop_job(job)
        return job

    def job_started(self, job_id: int, placement: Placement, now: int, partition: str = "default") -> Running:
        """A waiting job runs on these nodes since `now` (us). Its reservation is kept no longer.

        Raises: StateConflict when it does not wait, or the nodes are not free for it: never over-committed, whoever says so.
        """
        part = self._partition(partition)
        job = self._waiting(part, job_id)
        if not part.pool.holds(job, placement):
            raise StateConflict(f"job {job_id} cannot have started on {placement}: not free in partition {partition}")
        return self._start(part, job, placement, now)

    def job_ended(self, job_id: int, partition: str = "default") -> Running:
        """A running job is off its nodes, for whatever reason. Raises: StateConflict when it does not run."""
        part = self._partition(partition)
        run = part.running.get(job_id)
        if run is None:
            raise StateConflict(f"job {job_id} does not run in partition {partition}")
        part.drop_running(run)
        return run

    def node_changed(self, node: Node) -> None:
        """A node is new, or closed, or open again, or has other attributes. It keeps its partition for life. O(partition)."""
        if node.partition not in self.partitions:
            self.partitions[node.partition] = Partition(node.partition, ())
            self.partitions = dict(sorted(self.partitions.items()))
        self.partitions[node.partition].set_node(node)

    def node_removed(self, node_id: int, partition: str = "default") -> None:
        """A node is gone for good. Raises: StateConflict while a job runs on it."""
        part = self._partition(partition)
        for run in part.running.values():
            if any(first <= node_id <= last for first, last, _ in run.placement):
                raise StateConflict(f"node {node_id} cannot be removed: job {run.job.id} runs on it")
        if node_id not in part.nodes:
            raise NotFound(f"no node {node_id} in partition {partition}")
        part.drop_node(node_id)

    def carried_out(self, decision: Decision, now: int) -> Running | None:
        """A decision of a plan made on this very state was carried out at once: the fact that follows. The run it began, if it did."""
        part = self._partition(decision.partition)
        match decision:
            case Start(job_id, placement):
                return self._start(part, part.jobs[job_id], placement, now)
            case Reserve(job_id, start_us, held, keep, _, _, policy):
                if keep:
                    part.reservations[job_id] = Reservation(job_id, start_us, held, policy)
            case Unreserve(job_id):
                part.reservations.pop(job_id, None)
            case WakeAt():
                pass  # the driver's own
        return None

    def apply(self, plan: Plan, now: int) -> list[Running]:
        """Every decision of the plan was carried out at once (the simulator's world): the runs that began, in order."""
        runs = []
        for decision in plan.decisions:
            run = self.carried_out(decision, now)
            if run is not None:
                runs.append(run)
        return runs

    # -- records ----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        parts = self.partitions.values()
        return Snapshot(
            nodes=tuple(sorted((node for part in parts for node in part.nodes.values()), key=lambda node: node.id)),
            waiting=tuple(sorted((job for part in parts for job in part.jobs.values()), key=lambda job: job.id)),
            running=tuple(sorted((run for part in parts for run in part.running.values()), key=lambda run: run.job.id)),
            reservations=tuple(sorted(r for part in parts for r in part.reservations.values())),
        )

    @classmethod
    def restored(cls, snapshot: Snapshot) -> ClusterState:
        """A new state of these records, in whatever order they come."""
        state = cls(snapshot.nodes)
        home: dict[int, Partition] = {}
        for run in snapshot.running:
            state._partition(run.job.partition).add_running(run)
        for job in snapshot.waiting:
            home[job.id] = state._partition(job.partition)
            home[job.id].add_job(job)
        for reservation in snapshot.reservations:
            home[reservation.job_id].reservations[reservation.job_id] = reservation
        return state

    def _start(self, part: Partition, job: Job, placement: Placement, now: int) -> Running:
        part.drop_job(job)
        run = Running(job, now, now + job.planned_us, placement)
        part.add_running(run)
        return run

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
