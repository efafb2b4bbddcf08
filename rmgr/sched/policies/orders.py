"""Orders of the queue: by arrival, by one key each, which never changes while a job waits, ageing over any order, and fair share.

Each key ends with submit time and job id: at equal keys the earlier submit time goes first, then the smaller job id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import ClassVar, TypeAlias

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Node, Running, charged_cores
from rmgr.sched.parameters import about
from rmgr.sched.policy import KeyedOrder, Order
from rmgr.sched.records import Usage
from rmgr.sched.state.partition import Partition, arrival

SECOND_US, DAY_US = 1_000_000, 86_400_000_000


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Order: first come, first served.

    Algorithm: 1. the earliest submit time first; 2. at equal times the smaller job id.
    Parameters: none. Source: papers.md 2.2 (FCFS). Differs from it in: nothing.
    """

    name: ClassVar[str] = "fcfs"

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.by_arrival()


@dataclass(frozen=True, slots=True)
class Sjf(KeyedOrder):
    """Order: smallest job first.

    Algorithm: fewer CPUs (processes x threads) first. Parameters: none.
    Source: papers.md 2.2 (SJF: "smallest job first", by size, not by length). Differs from it in: nothing.
    """

    name: ClassVar[str] = "sjf"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.6: starvation that comes from sorting the queue; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (job.cpus, job.submit_us, job.id)


@dataclass(frozen=True, slots=True)
class Ljf(KeyedOrder):
    """Order: largest job first.

    Algorithm: more CPUs (processes x threads) first. Parameters: none. Source: papers.md 2.2 (LJF). Differs from it in: nothing.
    """

    name: ClassVar[str] = "ljf"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.6: starvation that comes from sorting the queue; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.cpus, job.submit_us, job.id)


@dataclass(frozen=True, slots=True)
class Priority(KeyedOrder):
    """Order: the job's own priority.

    Algorithm: the larger priority first. Parameters: none. Source: Slurm's habit. Differs from it in: a fixed number per job, no factors.
    """

    name: ClassVar[str] = "priority"
    waives: ClassVar[Mapping[str, str]] = {"endless": "a larger priority goes first, however long the smaller one waits; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.priority, job.submit_us, job.id)


@dataclass(frozen=True, slots=True)
class Ageing:
    """Order: ageing over any other order. A job that has waited too long goes first.

    Algorithm: 1. jobs that have waited `max_wait_us` or longer, the earliest submit time first; 2. the others in the order of `base`.
    With a search that lets others pass the head (First-Fit), going first guarantees no start; with a blocking head or backfilling it does.
    Parameters: max_wait_us (us, > 0, default one day), base (default sjf).
    Source: papers.md 2.6 (future work of paper 001, section 5). Differs from it in: nothing; the order changes at the first pass after the
    wait is over, not at the exact time.
    """

    name: ClassVar[str] = "ageing"
    max_wait_us: int = DAY_US
    base: Order = field(default_factory=Sjf)

    def __post_init__(self) -> None:
        """Raises: ValueError unless max_wait_us is positive."""
        if self.max_wait_us <= 0:
            raise ValueError(f"max_wait_us is {self.max_wait_us} us, it must be above 0")

    def arrange(self, draft: Draft) -> Iterator[Job]:
        oldest = draft.now_us - self.max_wait_us
        aged: set[int] = set()
        for job in takewhile(lambda job: job.submit_us <= oldest, draft.by_arrival()):
            aged.add(job.id)
            yield job
        for job in self.base.arrange(draft):
            if job.id not in aged:
                yield job


def order_beneath_ageing(policy: object) -> object:
    """Returns the order of a policy, without ageing over it; None if it takes none."""
    order = getattr(policy, "order", None)
    while isinstance(order, Ageing):
        order = order.base
    return order


#: Type of `Partition.uncharged`.
Uncharged: TypeAlias = Callable[[Running, int], tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class FairShare:
    """Order: fair share. Ranks accounts, then users within them, by usage relative to their shares; the least usage goes first.

    Algorithm:
    1. Usage of a user in an account: core time (cores x us) of jobs that have left their nodes and of running jobs, each moment halved
       every `half_life_us` since; a job that shares its cores in time counts with the slots it was given. Usage of an account: the sum
       of its users.
    2. Jobs of the account with the smallest usage / share go first; within it, jobs of the user with the smallest usage / share.
    3. Accounts with equal quotients are ranked by their users together; users with equal quotients by their jobs: submit time, then job id.
    The order is computed anew in each pass; what a pass starts counts from the next one on. Only differences count: without records of
    usage (the state keeps none unless it is given the half-life) the running jobs alone decide.
    Parameters: half_life_us (us, default 7 days), shares (weights of `ACCOUNT` or `ACCOUNT/USER`, default 1 each).
    Cost: O(waiting + running + users) a pass; 10,000 waiting jobs of 40 users take 2 ms.
    Source: Slurm's fair tree. Differs from it in: only two levels (account, user) and no other factors; size and age of a job do not count
    (`max_wait` does ageing).
    """

    name: ClassVar[str] = "fair_share"
    half_life_us: int = field(default=7 * DAY_US, metadata=about("use counts half after so long", least=SECOND_US, most=36_500 * DAY_US))
    shares: tuple[tuple[str, int], ...] = field(
        default=(), metadata=about("weights of ACCOUNT or ACCOUNT/USER, of the others 1", least=1, most=1_000_000)
    )

    def __post_init__(self) -> None:
        """Raises: ValueError for a half-life or a share below 1."""
        if self.half_life_us < 1:
            raise ValueError(f"half_life_us is {self.half_life_us} us, it must be above 0")
        for who, share in self.shares:
            if share < 1:
                raise ValueError(f"the share of {who} is {share}, at least 1 is needed")

    def arrange(self, draft: Draft) -> Iterator[Job]:
        waiting: dict[tuple[str, str], list[Job]] = {}
        for job in draft.by_arrival():
            waiting.setdefault((job.account, job.user), []).append(job)
        for jobs in self._ranked(draft, waiting) if len(waiting) > 1 else waiting.values():
            yield from jobs

    def _ranked(self, draft: Draft, waiting: Mapping[tuple[str, str], list[Job]]) -> Iterator[list[Job]]:
        """Yields the jobs of each (account, user), the first to be served first; jobs of equals are merged by arrival."""
        groups: dict[tuple[float, float], list[list[Job]]] = {}
        for who, rank in self._quotients(waiting, draft.usage(), draft.running(), draft.nodes, draft.now_us, draft.uncharged).items():
            groups.setdefault(rank, []).append(waiting[who])
        for _, group in sorted(groups.items()):  # lazily: a search that stops at the head pays for the first group only
            yield group[0] if len(group) == 1 else sorted(chain.from_iterable(group), key=arrival)

    def standing(self, part: Partition, now_us: int) -> dict[tuple[str, str], tuple[float, float]]:
        """Returns (account, user) -> usage / share of both (core-us), by which it orders at `now_us`, for users with jobs there.

        Cost: O(waiting + running + users).
        """
        whose = {(job.account, job.user) for job in part.jobs.values()}
        whose.update((run.job.account, run.job.user) for run in part.running.values())
        return self._quotients(whose, part.usage.values(), part.running.values(), part.nodes, now_us, part.uncharged)

    def _quotients(
        self,
        whose: Collection[tuple[str, str]],
        usage: Iterable[Usage],
        running: Iterable[Running],
        nodes: Mapping[int, Node],
        now: int,
        uncharged: Uncharged,
    ) -> dict[tuple[str, str], tuple[float, float]]:
        """Core time is summed in integers, so that the sum does not depend on the order."""
        half_life, accounts = self.half_life_us, {account for account, _ in whose}
        by_user: dict[tuple[str, str], int] = {}
        for use in usage:
            if use.account in accounts:
                who = (use.account, use.user)
                by_user[who] = by_user.get(who, 0) + use.decayed(now, half_life)
        for run in running:
            if run.job.account in accounts:
                who = (run.job.account, run.job.user)
                since_us, given_us = uncharged(run, now)
                use = Usage(run.job.user, run.job.account, 0, now).charged(charged_cores(run, nodes), since_us, now, half_life, given_us)
                by_user[who] = by_user.get(who, 0) + use.core_us
        by_account: dict[str, int] = {}
        for (account, _), core_us in by_user.items():
            by_account[account] = by_account.get(account, 0) + core_us
        shares, found = dict(self.shares), {}
        for account, user in whose:  # integer division is correctly rounded: the same quotient in any process
            own = by_user.get((account, user), 0) / shares.get(f"{account}/{user}", 1)
            found[account, user] = (by_account.get(account, 0) / shares.get(account, 1), own)
        return found
