"""Search: First-Fit with migration that frees the head of the queue: jobs that passed the head give their nodes back.

Algorithm:
1. Start the jobs at the head of the queue while they fit.
2. Followers of the head that does not fit: running jobs that First-Fit started (step 5) while the head waited ahead of them. If the head
   needs no more than the free cores and those of its candidates together (condition (1)), all candidates are migrated, the latest start
   first (at one time: the larger id). They go back to the place in the queue that their key gives them, and continue from where they were
   when they start again. The head starts; go to 1. Candidates are the followers that may be moved and lose nothing: `candidates=savers`,
   those that can save their state (all jobs of the paper can; `all`: every job is asked, and goes on in place if it does not save); none
   that was moved `max_moves` times, by its own limit or the policy's.
3. `suspend=minimal`: they are migrated only until the head fits. Suits live clusters, where each migration is work for a real program.
4. `followers=strict`: only the jobs that passed this head while it was the head; `any`: jobs that passed any head count for later ones.
5. Scan the rest of the queue once, in order; start each job that fits, and note which head it passed. A job that starts as head is no
   follower.
The driver determines what a migration costs: the execution model of the simulator, real checkpoints of the leader.
A committed note says of each follower which head it passed. Whether another job waited ahead of it follows from the time when that job
came to the queue and from the order at that time; with fair share, and for jobs with dependencies, only the head is known to be passed.
Parameters: order (default fcfs), followers (head | strict | any), suspend (all | minimal), candidates (savers | all), max_moves (0 = no
cap).
Source: papers.md 2.2; seed 001, section 2.3 and figure 1, where all followers are suspended (its 4.2 suggests the fewest). Differs
from it in: condition (1) is printed with >=, which could never start the head; its
text ("until the nodes that the head needs are there") has <=. Larger jobs may suspend a job again and again (LJF).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from rmgr.model.units import counted
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.orders import Ageing, Fcfs
from rmgr.sched.policies.searches import HEAD, REST
from rmgr.sched.policy import Cause, Order
from rmgr.sched.state.partition import arrival

if TYPE_CHECKING:
    from rmgr.sched.draft import Draft
    from rmgr.sched.job import Job, Running

#: Kind of the notes: follower -> (the head it passed,).
PASSED = "passed"
STAY = "first in the queue; jobs {} passed it and go on: they do not save their state, or were moved as often as they may be"


class Followers(StrEnum):
    """Which jobs a head may suspend."""

    HEAD = "head"  #: jobs that started while the head waited ahead of them
    STRICT = "strict"  #: jobs that passed it while it was the head
    ANY = "any"  #: jobs that passed any head


class SuspendedShare(StrEnum):
    """How many of the followers are suspended."""

    ALL = "all"
    MINIMAL = "minimal"  #: until the head fits


class Candidates(StrEnum):
    """Which followers may be migrated."""

    SAVERS = "savers"  #: jobs that can save their state on request
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Migration:
    name: ClassVar[str] = "migration"
    order: Order = field(default_factory=Fcfs)
    followers: Followers = field(default=Followers.HEAD, metadata=about("jobs a head may suspend: that passed it, it as head, any head"))
    suspend: SuspendedShare = field(default=SuspendedShare.ALL, metadata=about("how many of them: all, or until the head fits"))

    candidates: Candidates = field(default=Candidates.SAVERS, metadata=about("jobs that are asked to move: those that save, or all"))
    max_moves: int = field(default=0, metadata=about("moves of one job at most; 0: as many as it comes", least=0))

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        head = self._start_heads(draft)
        while head is not None and self.make_room(draft, head):
            head = self._start_heads(draft)
        if head is None:
            return
        passes = Why("first_fit", "fits now while job {}, first in the queue, does not", (head.id,))
        for job in draft.startable(self.order.arrange(draft)):
            if isinstance(draft.start(job.id, passes), Accepted):
                draft.note(PASSED, job.id, (head.id,))
        draft.leave_rest(REST)

    def _start_heads(self, draft: Draft) -> Job | None:
        """Carries out step 1. Returns the head that does not fit, or None when the queue is empty."""
        for job in self.order.arrange(draft):
            match draft.start(job.id, HEAD):
                case Accepted():
                    draft.forget(PASSED, job.id)
                case Insufficient(why) | Infeasible(why):
                    draft.leave_pending(job.id, why)
                    return job
        return None

    def make_room(self, draft: Draft, head: Job) -> bool:
        """Carries out step 2. Returns whether the head has started in place of followers."""
        followers = self.followers_of(draft, head)
        if not followers or head.cpus > sum(run.job.cpus for run in followers) + draft.free_cores:
            return False
        anyone, passed = self.candidates is Candidates.ALL, followers
        followers = [run for run in passed if (anyone or run.job.saves) and not (run.job.moves and self.stays(run.job))]
        if len(followers) < len(passed) and (not followers or head.cpus > sum(run.job.cpus for run in followers) + draft.free_cores):
            stay = ", ".join(map(str, sorted(run.job.id for run in passed if self.stays(run.job))))
            draft.leave_pending(head.id, Why("migration", STAY, (stay,)))
            return False
        gives_way = Why("migration", "gives way to job {}, first in the queue, which it had passed", (head.id,))
        with draft.fork() as trial:  # on nodes of several cores enough cores may not be enough room
            for run in followers:
                if self.suspend is SuspendedShare.MINIMAL and draft.fits(head):
                    break
                draft.migrate(run.job.id, gives_way)
                draft.forget(PASSED, run.job.id)
            why = Why("migration", "first in the queue; jobs that had passed it give way")
            if isinstance(draft.start(head.id, why), Accepted):
                draft.forget(PASSED, head.id)
                trial.keep()
                return True
        return False

    def stays(self, job: Job) -> str:
        """Returns why a running job is never moved; "" if it may be."""
        if not job.saves and self.candidates is Candidates.SAVERS:
            return "it is not moved: nothing says that it saves its state (submit --checkpoint does, or one answer to a request)"
        caps = [cap for cap in (self.max_moves, job.max_moves) if cap and job.moves >= cap]
        return f"it is not moved again: that was done {counted(job.moves, 'time')}, and {min(caps)} is the most" if caps else ""

    def followers_of(self, draft: Draft, head: Job) -> list[Running]:
        """Returns the followers, the latest start first. followers=head: First-Fit started them while the head waited ahead of them."""
        any_head = self.followers is Followers.ANY
        # nothing records since when a dependent job waits only for nodes
        place = None if head.after or self.followers is Followers.STRICT else _place_in(self.order)
        came_us = max(head.queued_us, head.begin_us)
        found = []
        for job_id, (passed,) in draft.notes(PASSED).items():
            run = draft.run(job_id)
            if run is None or draft.is_pinned(job_id):  # it waits (its node was lost) or may not move
                continue
            job, start_us = run.job, run.start_us
            if any_head or (
                came_us <= start_us and (passed == head.id or (place is not None and place(head, start_us) < place(job, start_us)))
            ):
                found.append(run)
        found.sort(key=lambda run: (run.start_us, run.job.id), reverse=True)
        return found


def _place_in(order: Order) -> Callable[[Job, int], tuple[int, ...]] | None:
    """Returns a function from job and time to the place in the queue; None if these do not determine it (fair share)."""
    if isinstance(order, Ageing):
        base, oldest = _place_in(order.base), order.max_wait_us
        if base is None:
            return None
        return lambda job, at_us: (0, *arrival(job)) if job.submit_us <= at_us - oldest else (1, *base(job, at_us))
    key = arrival if isinstance(order, Fcfs) else getattr(order, "key", None)
    return None if key is None else lambda job, _at_us: key(job)
