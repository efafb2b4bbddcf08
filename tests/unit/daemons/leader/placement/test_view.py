"""Reasons of the scheduler in words for people; where and when a request would run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.answering import LeaderAnswering
from rmgr.daemons.leader.facts import Names, job_of
from rmgr.daemons.leader.placement.view import WhatIfTrial, blocker, label, said, tried
from rmgr.errors import Infeasible, InvalidRecord
from rmgr.model.base import Request
from rmgr.model.block import NO_SEQ, BlockKey, job_id
from rmgr.model.submission import Command, Rigid, Submission, Work
from rmgr.model.views import ShareView
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.pipeline import configured, pipeline_from
from rmgr.sched.plan import Why
from rmgr.sched.state.cluster import Snapshot
from tests.harness.leader_bench import Bench, placing


def test_ids_of_jobs_are_those_of_their_submissions() -> None:
    assert (label(job_id(42, 0)), label(job_id(42, 7))) == ("42", "42_7")
    why = Why("order", "job {} is before it and blocks the queue", (job_id(42, 7),))
    assert (said(why), blocker(why)) == ("job 42_7 is before it and blocks the queue", "42_7")
    several = Why("hold", "has been promised the cores of running jobs {}", (f"{job_id(3, 0)}, {job_id(4, 2)}",))
    assert (said(several), blocker(several)) == ("has been promised the cores of running jobs 3, 4_2", "3, 4_2")


def test_times_are_dates_and_other_numbers_stay() -> None:
    assert said(Why("begin", "may not start before {} us", (1_700_000_000_000_000,))) == "may not start before 2023-11-14T22:13:20Z"
    assert said(Why("resources", "needs {} x {} cores, {} are free", (4, 2, 3))) == "needs 4 x 2 cores, 3 are free"
    assert blocker(Why("resources", "needs {} cores", (4,))) == ""


def test_nobody_knows_when_a_job_behind_one_without_a_limit_starts() -> None:
    bench = Bench(placing("conservative"))
    try:
        bench.lead()
        bench.starter("n1")  # of two cores
        first, second, third = (bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=size)) for size in (1, 2, 2))
        bench.advance(0.5)
        jobs = bench.leader.placer.view().jobs
        assert (jobs[first, 0].state, jobs[second, 0].state) == ("running", "waiting")
        assert (jobs[second, 0].expected_start_us, jobs[third, 0].expected_start_us) == (0, 0)
        assert jobs[second, 0].reason
    finally:
        bench.close()


NOW = 1_000_000_000
S = 1_000_000
TRUE = Command(argv=("true",))


def run(job: int, node: int, cores: int, end_s: int) -> Running:
    made = Job(id=job, submit_us=0, processes=cores, limit_us=end_s * S)
    return Running(made, NOW, NOW + end_s * S if end_s else 1 << 60, ((node, node, cores),))


def trial(rigid: Rigid, *running: Running, waiting: tuple[Job, ...] = (), policy: str = "easy", limit_s: int = 10) -> WhatIfTrial:
    names = Names()
    names.learn(["n1", "n2", "n3"])
    nodes = tuple(Node(id=number, cores=4, name=names.name(number)) for number in range(3))
    request = Request(time_limit_us=limit_s * S)
    record = Submission(id=0, name="x", user="ann", queue="batch", work=Work.COMMAND, request=request, rigid=rigid, submitted_us=NOW)
    key = BlockKey(priority=0, seq=NO_SEQ, submission=99, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    return WhatIfTrial(
        snapshot=Snapshot(nodes=nodes, running=running, waiting=waiting), job=job_of(record, key, "default", NOW), submission=record,
        names=names, stages=configured(policy).stages, half_life_us=0, now_us=NOW,
    )


def shares(*pairs: tuple[str, int]) -> tuple[ShareView, ...]:
    return tuple(ShareView(node=node, processes=processes) for node, processes in pairs)


FULL = (run(1, 0, 4, 60), run(2, 1, 4, 30), run(3, 2, 4, 90))
BEFORE = Job(id=50, submit_us=0, processes=12, limit_us=100 * S)
TRIALS = {
    "what fits now starts at once": (trial(Rigid(processes=6), FULL[0]), True, NOW, shares(("n2", 4), ("n3", 2))),
    "a begin time and exact nodes are kept": (
        trial(Rigid(processes=4, nodes=2, begin_us=NOW + 5 * S), FULL[0]), False, NOW + 5 * S, shares(("n2", 2), ("n3", 2)),
    ),
    "those that wait before it are counted": (
        trial(Rigid(processes=12), FULL[0], waiting=(BEFORE,)), False, NOW + 160 * S, shares(("n1", 4), ("n2", 4), ("n3", 4)),
    ),
    "behind a run without a limit nobody can say when": (trial(Rigid(processes=12), run(1, 0, 4, 0)), False, 0, ()),
} | {
    f"what does not fit starts when enough has ended: {policy}": (
        trial(Rigid(processes=8), *FULL, policy=policy), False, NOW + 60 * S, shares(("n1", 4), ("n2", 4)),
    )
    for policy in ("fcfs", "easy", "conservative", "connection_reservation")
}  # fmt: skip


@pytest.mark.parametrize("what", TRIALS)
def test_where_and_when_it_would_run(what: str) -> None:
    asked, at_once, start_us, nodes = TRIALS[what]
    found = tried(asked)
    assert (found.at_once, found.start_us, found.nodes) == (at_once, start_us, nodes)
    assert at_once or found.reason


@pytest.mark.parametrize(
    "record",
    [
        Submission(id=0, name="x", user="ann", queue="batch", work=Work.COMMAND, command=TRUE, rigid=Rigid(processes=10**15)),
        Submission(id=0, name="x", user="ann", queue="batch", work=Work.COMMAND, command=TRUE, rigid=Rigid(processes=-1)),
        Submission(id=0, name="x", user="ann", queue="batch", work=Work.COMMAND, command=TRUE, priority=10**9, rigid=Rigid()),
    ],
)
def test_what_no_submission_may_hold_reaches_no_policy(record: Submission) -> None:
    asked: list[object] = []
    call: Any = asked.append
    answering = LeaderAnswering(SimpleNamespace(coordinator=None, leader=None, call=call), dict)
    with pytest.raises(InvalidRecord, match="the request: "):
        answering.what_if(encode_record(record))
    assert asked == []


def test_what_no_class_admits_is_said_to_fail() -> None:
    stages = pipeline_from({"stage": [{"policy": "queue_select"}], "queue": [{"name": "small", "max_cpus": 2}]}).stages
    assert tried(replace(trial(Rigid(processes=2)), stages=stages)).route == "small"
    with pytest.raises(Infeasible, match="FAILED: no queue admits 3 processes"):
        tried(replace(trial(Rigid(processes=3)), stages=stages))


def test_the_time_of_a_trial_is_bounded() -> None:
    clock = iter(range(0, 10_000, 3))
    found = tried(trial(Rigid(processes=12), run(1, 0, 4, 60)), clock=lambda: float(next(clock)))
    assert found.start_us == 0
