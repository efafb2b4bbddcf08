"""Fair share: usage decays, shares weigh, running work counts, ties fall back to arrival, and records alone decide."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rmgr.errors import ConfigError
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.pipeline import pipeline_from
from rmgr.sched.policies.orders import FairShare
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.world import shuffled

HOUR_US = 3_600_000_000
NODES = 8


@dataclass(frozen=True)
class Looks:
    """A policy that starts nothing and tells in which order it saw the queue."""

    order: FairShare
    seen: list[int]
    name: ClassVar[str] = "looks"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.seen[:] = [job.id for job in self.order.arrange(draft)]


def cluster(half_life_us: int = 24 * HOUR_US) -> ClusterState:
    return ClusterState((Node(id=i) for i in range(NODES)), usage_half_life_us=half_life_us)


def arrive(state: ClusterState, job_id: int, who: str, processes: int = 1, at_us: int = 0) -> None:
    account, _, user = who.partition("/")
    state.job_submitted(Job(id=job_id, submit_us=at_us, processes=processes, account=account, user=user, limit_us=HOUR_US))


def used(state: ClusterState, who: str, core_hours: int, at_us: int = 0, job_id: int = 900) -> int:
    """Somebody has used so many core hours on one core, from `at_us` on. When it ended."""
    arrive(state, job_id, who, at_us=at_us)
    state.job_started(job_id, ((0, 0, 1),), at_us)
    end_us = at_us + core_hours * HOUR_US
    state.job_ended(job_id, now=end_us)
    return end_us


def order_of(state: ClusterState, now: int, shares: str = "", half_life_us: int = 24 * HOUR_US) -> list[int]:
    pairs = tuple(sorted((who, int(share)) for who, _, share in (word.rpartition(":") for word in shares.split(",") if word)))
    seen: list[int] = []
    plan = run_pass(
        state, frozenset({Cause.JOB_SUBMITTED}), now=now, seed=0, pipeline=(Stage(Looks(FairShare(half_life_us, pairs), seen)),)
    )
    assert not plan.faults
    return seen


def test_a_heavy_user_yields_to_a_light_one() -> None:
    state = cluster()
    now = used(state, "chem/ann", 3)
    for job_id, who in ((1, "chem/ann"), (2, "chem/ann"), (3, "chem/bob"), (4, "chem/bob")):
        arrive(state, job_id, who)
    assert order_of(state, now) == [3, 4, 1, 2]


def test_the_account_counts_before_the_user() -> None:
    # bob has used nothing, but ann of his account has; eve has used a little, and alone in hers.
    state = cluster()
    used(state, "chem/ann", 5)
    now = used(state, "phys/eve", 2)
    for job_id, who in ((1, "chem/ann"), (2, "chem/bob"), (3, "phys/eve")):
        arrive(state, job_id, who)
    assert order_of(state, now) == [3, 2, 1]


def test_shares_weigh_accounts_and_users() -> None:
    state = cluster()
    used(state, "chem/ann", 5)
    used(state, "chem/bob", 3, job_id=901)
    now = used(state, "phys/eve", 6, job_id=902)
    for job_id, who in ((1, "chem/ann"), (2, "chem/bob"), (3, "phys/eve")):
        arrive(state, job_id, who)
    assert order_of(state, now) == [3, 2, 1]
    assert order_of(state, now, "chem:3") == [2, 1, 3]
    assert order_of(state, now, "chem:3,chem/ann:4") == [1, 2, 3]


def test_use_decays_with_the_half_life() -> None:
    # ann used 4 core hours, a day later bob 3: with a half-life of a day hers count 2 by then, with a long one 4.
    for half_life_us, first in ((24 * HOUR_US, 1), (24_000 * HOUR_US, 2)):
        state = cluster(half_life_us)
        used(state, "chem/ann", 4)
        now = used(state, "chem/bob", 3, at_us=25 * HOUR_US)
        arrive(state, 1, "chem/ann", at_us=now)
        arrive(state, 2, "chem/bob", at_us=now)
        assert order_of(state, now, half_life_us=half_life_us)[0] == first


def test_what_runs_counts_before_it_has_ended() -> None:
    state = cluster()
    arrive(state, 1, "chem/ann", processes=4)
    state.job_started(1, ((0, 3, 1),), 0)
    arrive(state, 2, "chem/ann")
    arrive(state, 3, "chem/bob")
    assert order_of(state, 0) == [2, 3]
    assert order_of(state, HOUR_US) == [3, 2]


def test_a_job_that_is_alone_on_its_nodes_is_charged_for_all_of_them() -> None:
    # ann's process asks for one core of four and has the node for itself, bob's three have a core each.
    state = ClusterState((Node(id=i, cores=4) for i in range(2)), usage_half_life_us=24 * HOUR_US)
    for job_id, who, processes in ((1, "chem/ann", 1), (2, "chem/bob", 3)):
        account, user = who.split("/")
        job = Job(id=job_id, submit_us=0, processes=processes, account=account, user=user, limit_us=HOUR_US, exclusive=processes == 1)
        state.job_submitted(job)
        state.job_started(job_id, ((job_id - 1, job_id - 1, processes),), 0)
    arrive(state, 3, "chem/ann", at_us=1)
    arrive(state, 4, "chem/bob", at_us=1)
    assert order_of(state, HOUR_US) == [4, 3]  # while they run
    for job_id in (1, 2):
        state.job_ended(job_id, now=HOUR_US)
    assert order_of(state, HOUR_US) == [4, 3]  # and afterwards


def test_jobs_that_share_cores_in_time_are_charged_the_slots_that_they_were_given() -> None:
    second = 1_000_000
    state = ClusterState((Node(id=i) for i in range(2)), usage_half_life_us=1 << 60)
    pipeline = (Stage(policy_named("dqt", {"quantum": "1s"})),)

    def passes(at_s: int) -> None:
        plan = run_pass(state, frozenset(Cause), now=at_s * second, seed=0, pipeline=pipeline)
        assert plan.faults == ()
        state.apply(plan, at_s * second)

    def charged(at_s: int) -> dict[str, int]:
        """Core seconds, of what has ended and what runs."""
        found = FairShare(1 << 60).standing(state.partitions["default"], at_s * second)
        return {user: round(own / second) for (_, user), (_, own) in found.items()}

    state.gang_time("default", 500 * second)
    for job_id in (1, 2):
        arrive(state, job_id, f"a/{'uv'[job_id - 1]}", processes=2)
    passes(0)
    assert charged(40) == {"u": 42, "v": 40}  # 41 slots have begun, in turn, of two cores each
    arrive(state, 3, "a/w", at_us=40 * second)
    passes(40)  # another record: what the one before gave is kept
    assert charged(40) == {"u": 42, "v": 40, "w": 0}
    assert charged(70)["w"] in {10, 11}  # of one core
    before = charged(70)
    again = ClusterState.restored(state.snapshot(), usage_half_life_us=1 << 60)
    assert FairShare(1 << 60).standing(again.partitions["default"], 70 * second).keys() == {("a", user) for user in "uvw"}
    state.job_ended(1, now=70 * second)
    own = {use.user: round(use.core_us / second) for use in state.usage.values()}
    assert own["u"] == before["u"] == pytest.approx(60, abs=2)
    state.gang_time("default", None, "nobody knows")
    state.job_ended(2, now=90 * second)
    assert {use.user: round(use.core_us / second) for use in state.usage.values()} == own  # what nobody could count is not charged


def test_a_draw_falls_back_to_arrival_across_users_and_accounts() -> None:
    state = cluster()
    for job_id, who in ((3, "chem/ann"), (1, "phys/eve"), (2, "chem/bob"), (4, "phys/eve"), (5, "/")):
        arrive(state, job_id, who)
    assert order_of(state, 0) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("search", ["head_blocking", "first_fit", "easy", "conservative"])
def test_records_alone_decide(search: str) -> None:
    """A day of random work under every search: a new leader, with its records in any order, makes the same plan at every pass."""
    rng = random.Random(search)
    state = cluster()
    pipeline = (Stage(policy_named("fair_share", {"search": search, "half_life": "1d", "shares": "a:2,a/0:3"})),)
    now, next_id, ends = 0, 1, {}
    for _ in range(120):
        now += rng.randrange(HOUR_US // 4)
        for job_id in [job_id for job_id, end_us in sorted(ends.items()) if end_us <= now]:
            state.job_ended(job_id, now=now)
            del ends[job_id]
        for _ in range(rng.randrange(3)):
            arrive(state, next_id, f"{rng.choice('ab')}/{rng.randrange(3)}", rng.randint(1, NODES), at_us=now)
            next_id += 1
        causes = frozenset({Cause.JOB_SUBMITTED, Cause.JOB_ENDED})
        plan = run_pass(state, causes, now=now, seed=0, pipeline=pipeline)
        assert not plan.faults
        again = ClusterState.restored(shuffled(state.snapshot(), rng), usage_half_life_us=24 * HOUR_US)
        assert run_pass(again, causes, now=now, seed=0, pipeline=pipeline) == plan
        state = again if rng.random() < 0.5 else state
        for run in state.apply(plan, now):
            ends[run.job.id] = now + rng.randrange(1, HOUR_US)
    assert next_id > 60


def test_a_pass_over_ten_thousand_jobs_stays_in_the_budget() -> None:
    """First-Fit <= 50 ms of a processor (issue 6, section 5); the queue of 40 users of 8 accounts is sorted in it."""
    state = ClusterState((Node(id=i, cores=4) for i in range(1000)), usage_half_life_us=24 * HOUR_US)
    for user in range(40):
        now = used(state, f"a{user % 8}/u{user}", user % 7, job_id=1_000_000 + user)
    for job_id in range(1, 10_001):
        arrive(state, job_id, f"a{job_id % 8}/u{job_id % 40}", processes=64 + job_id % 64, at_us=0)
    policy = policy_named("first_fit", {"order": "fair_share"})
    took = []
    for _ in range(3):
        began = time.thread_time()
        plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=now, seed=0, pipeline=(Stage(policy),))
        took.append(time.thread_time() - began)
    assert plan.decisions
    assert min(took) < 0.05


def test_two_half_lives_in_one_pipeline_are_refused() -> None:
    tables = [{"policy": "easy", "parameters": {"order": "fair_share", "half_life": life}} for life in ("7d", "1d")]
    assert pipeline_from({"stage": tables[:1]}).usage_half_life_us == 7 * 24 * HOUR_US
    assert pipeline_from({"stage": [{"policy": "easy"}]}).usage_half_life_us == 0
    with pytest.raises(ConfigError, match=r"different half-lives: 7d \(easy\) and 1d \(easy\)"):
        pipeline_from({"stage": tables})


def test_what_is_told_is_what_orders() -> None:
    state = cluster()
    used(state, "chem/ann", 5)
    now = used(state, "phys/eve", 2)
    for job_id, who in ((1, "chem/ann"), (2, "chem/bob"), (3, "phys/eve"), (4, "math/joe")):
        arrive(state, job_id, who)
    state.job_started(4, ((0, 0, 1),), now)
    arrive(state, 5, "math/joe")
    later = now + HOUR_US
    shares = "chem:4,chem/bob:2"
    told = FairShare(24 * HOUR_US, (("chem", 4), ("chem/bob", 2))).standing(state.partitions["default"], later)
    by_rank = sorted((1, 2, 3, 5), key=lambda job: told[("chem", "ann") if job == 1 else _WHO[job]])
    assert order_of(state, later, shares) == by_rank
    (account, user), joe = told["chem", "ann"], told["math", "joe"]
    assert account == user / 4 > 0
    assert told["chem", "bob"] == (account, 0.0)
    assert joe[0] == joe[1] == pytest.approx(HOUR_US, rel=0.03), "what runs counts, each moment of it halved since"


_WHO = {2: ("chem", "bob"), 3: ("phys", "eve"), 5: ("math", "joe")}
