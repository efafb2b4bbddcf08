"""A simulated cluster between two passes: what is told to the scheduler's state, and what it means for jobs, cores and time.

Each method is one thing that happens: a job arrives, ends, is lost with its node, is cancelled, moves. State, stays and outcomes stay in
step because nobody else touches them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from typing import TypeAlias

from rmgr.model.base.states import State
from rmgr.sched import job as sched
from rmgr.sched.job import Running
from rmgr.sched.plan import Decision, GangSet, Migrate, Preempt, Reject, Resume, Route, Suspend
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.kernel import Kernel, Rank
from rmgr.sim.engine.machine import Machine, Stay, Stays
from rmgr.sim.engine.outcome import Outcomes, Parting, Setting, Stretches
from rmgr.sim.engine.turns import Turns
from rmgr.sim.workload.events import Event
from rmgr.sim.workload.jobs import Workload, WorkloadJob, stream

#: Plain integers: compared once an event.
_END, _ARRIVAL = int(Rank.END), int(Rank.ARRIVAL)
#: So often a job starts again after it lost its nodes; a job much longer than nodes last would never end.
MOST_LOSSES = 100
What: TypeAlias = Stay | WorkloadJob | Event | None


class World:
    """Job numbers are ids of the scheduler's jobs. `open`: how many jobs are not over."""

    def __init__(self, workload: Workload, setting: Setting, recorder: Recorder | None = None) -> None:
        self._workload, self._recorder = workload, recorder
        self._partitions, self._requeue, self._seed = setting.partitions, setting.requeue, setting.seed
        self._requests = setting.requests
        self.pipeline = setting.pipeline
        self.machine = Machine(setting.nodes, setting.cores)
        nodes = self.nodes = self.machine.described()
        self._memory = any(node.memory_bytes for node in nodes)
        self.kernel: Kernel[What] = Kernel()
        self._serve(ClusterState(nodes, setting.usage_half_life_us))
        if recorder is not None:
            recorder.begin(self.state, seed=setting.seed, half_life_us=setting.usage_half_life_us)
        self._stretches = Stretches(len(workload.jobs), self.machine.processors)
        self.stays = Stays(workload.jobs, self.machine, setting.execution, self._stretches)
        self.turns = Turns(self.stays, self.kernel, self.machine, spells=setting.spells)
        self._states: dict[int, State] = {}  # of jobs that are over and did not complete
        self._losses: Counter[int] = Counter()
        self._over, self._arrived = bytearray(len(workload.jobs) + 1), bytearray(len(workload.jobs) + 1)
        self._submits: dict[int, WorkloadJob] = {}  # of jobs that were submitted at another time than the workload says
        self._queues: dict[int, str] = {}  # of rerouted jobs
        self._followers: dict[int, list[WorkloadJob]] = {}  # job -> those that are submitted after its end
        self.count = self.open = len(workload.jobs)

    # -- jobs ---------------------------------------------------------------------------------------------------------------

    def arrivals(self) -> Iterator[WorkloadJob]:
        """The jobs that are submitted at their own times, in order; the others are kept until the end of the job they follow."""
        for job in self._workload.jobs:
            if job.after and job.think_us >= 0:
                self._followers.setdefault(job.after, []).append(job)
        return (job for job in self._workload.jobs if not job.after or job.think_us < 0) if self._followers else iter(self._workload.jobs)

    def arrive(self, job: WorkloadJob) -> bool:
        """Submits it. False: it was refused at once, or cancelled before it came."""
        now, number = self.kernel.now_us, job.number
        if self._over[number]:
            return False
        if job.after and self._is_to_come(job):
            self._followers.setdefault(job.after, []).append(job)
            return False
        if job.submit_us != now:
            job = self._submits[number] = replace(job, submit_us=now)
        self._arrived[number] = 1
        if self.tell.job_submitted(self._as_request(job)):
            return True
        self.refuse(number)
        return False

    def begin(self, run: Running) -> None:
        """The state says that it starts now: it takes its cores, and its end is known."""
        if self.turns.of and run.job.id in self.turns.of:
            self.turns.begin(run)
            return
        stay = self.stays.begin(run)
        self.kernel.put(run.start_us + stay.duration_us, _END, run.job.id, stay)

    def end(self, stay: Stay) -> bool:
        """Its time has come. False: it has left these nodes, or was stopped on them, since that was said."""
        job = stay.run.job
        if self.stays.running.get(job.id) is not stay or stay.since_us + stay.rest_us != self.kernel.now_us:
            return False
        self.tell.job_ended(job.id, job.partition, now=self.kernel.now_us)
        if self.turns.of:
            self.turns.leave(job.id)
        self.stays.end(job.id, self.kernel.now_us)
        self._close(job.id, State.COMPLETED)
        return True

    def refuse(self, number: int) -> None:
        """A waiting job can never run here."""
        self.tell.job_withdrawn(number, self._home(number) or "default")
        self._close(number, State.FAILED)

    def refuse_infeasible(self, partition: str) -> None:
        """Ends what can never run there any more."""
        for number in sorted(self.state.partitions[partition].infeasible):
            self.refuse(number)

    def cancel(self, number: int) -> Cause | None:
        """Its user does not want it any more, wherever it is; what that gives the scheduler to think about."""
        if not 0 < number < len(self._over) or self._over[number]:
            return None
        stay = self.stays.of(number)
        if stay is not None:
            self.tell.job_ended(number, stay.run.job.partition, now=self.kernel.now_us)
            self.turns.leave(number)
            self.stays.end(number, self.kernel.now_us, Parting.CANCELLED)
            self._close(number, State.CANCELLED)
            return Cause.JOB_ENDED
        home = self._home(number)
        if home is not None:
            self.tell.job_withdrawn(number, home)
        self._close(number, State.CANCELLED)
        return Cause.JOB_WITHDRAWN if home is not None else None

    def carry_out(self, decision: Decision) -> None:
        """What a plan decided beside starts and wakes."""
        now, state = self.kernel.now_us, self.state
        match decision:
            case Migrate(number):
                self.turns.leave(number)
                self.stays.migrate(number, now)
                state.carried_out(decision, now)
            case Preempt(number):
                self.turns.leave(number)
                self.stays.end(number, now, Parting.PREEMPTED)
                state.carried_out(decision, now)
            case Suspend(number):
                self.stays.suspend(number, now)
                state.carried_out(decision, now)
            case Resume(number):
                state.carried_out(decision, now)
                stay = self.stays.resume(number, now)
                self.kernel.put(now + stay.rest_us, _END, number, stay)
            case Reject(number):
                state.carried_out(decision, now)
                self._close(number, State.FAILED)
            case Route(number, to):
                state.carried_out(decision, now)
                self._queues[number] = to
            case GangSet(gang):
                state.carried_out(decision, now)
                self.turns.set(gang)
            case _:
                state.carried_out(decision, now)

    def lose(self, number: int) -> None:
        """Its nodes are gone, and what it had done with them: it waits again, or has failed (also when that happens too often)."""
        self.turns.leave(number)
        job = self.stays.end(number, self.kernel.now_us, Parting.LOST).run.job
        self._losses[number] += 1
        if self._requeue and self._losses[number] < MOST_LOSSES:
            self.tell.job_preempted(number, self.kernel.now_us, job.partition)
        else:
            self.tell.job_ended(number, job.partition, now=self.kernel.now_us)
            self._close(number, State.FAILED)

    def take_over(self) -> None:
        """A new leader reads the records, in whatever order they come, and builds state and policies from them."""
        shuffle = stream(self._seed, f"take-over/{self.kernel.now_us}").shuffle
        snapshot, found = self.state.snapshot(), {}
        for part in fields(Snapshot):
            records = getattr(snapshot, part.name)
            if isinstance(records, tuple):
                records = list(records)
                shuffle(records)
                found[part.name] = tuple(records)
        self._serve(ClusterState.restored(replace(snapshot, **found), self.state.usage_half_life_us))
        self.pipeline = deepcopy(self.pipeline)

    # -- what became of them ---------------------------------------------------------------------------------------------------

    def outcomes(self) -> Outcomes:
        """Of every job."""
        return Outcomes(self._workload.jobs, self._stretches, states=self._states, submits=self._submits, queues=self._queues)

    def waiting(self) -> list[WorkloadJob]:
        """Jobs that are not over."""
        return [job for job in self._workload.jobs if not self._over[job.number]]

    def because(self, reason: str) -> None:
        """Why the facts that come next are told, for the log."""
        if self._recorder is not None:
            self._recorder.because = reason

    def _serve(self, state: ClusterState) -> None:
        """This is the state from now on."""
        self.state = state
        #: where facts go
        self.tell = state if self._recorder is None else self._recorder.around(state, lambda: self.kernel.now_us)

    def _is_to_come(self, job: WorkloadJob) -> bool:
        """The job that this one follows has not been submitted yet."""
        return not self._arrived[job.after] and not self._over[job.after]

    def _home(self, number: int) -> str | None:
        """The partition in which it waits; None when it does not."""
        for name, part in self.state.partitions.items():
            if number in part.jobs:
                return name
        return None

    def _close(self, number: int, state: State) -> None:
        self._over[number] = 1
        self.open -= 1
        if state is not State.COMPLETED:
            self._states[number] = state
        if self._followers:
            for job in self._followers.pop(number, ()):
                self.kernel.put(self.kernel.now_us + max(job.think_us, 0), _ARRIVAL, job.number, job)

    def partition_of(self, job: WorkloadJob) -> str:
        """Where its queue lives."""
        return self._partitions.get(job.queue, "default")

    def _as_request(self, job: WorkloadJob) -> sched.Job:
        """What the scheduler is told of a job: everything but how long it will really run."""
        if self._requests:
            return replace(self._requests[job.number], id=job.number, submit_us=job.submit_us, queued_us=-1)
        return sched.Job(
            id=job.number,
            submit_us=job.submit_us,
            processes=job.processes,
            threads=job.threads,
            limit_us=job.estimate_us,
            user=job.user,
            account=job.account,
            queue=job.queue or "default",
            partition=self._partitions.get(job.queue, "default") if self._partitions else "default",
            memory_bytes=job.memory_bytes if self._memory else 0,
            after=(job.after,) if job.after and job.think_us < 0 else (),
        )
