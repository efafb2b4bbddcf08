"""Reasons of the scheduler as people read them."""

from __future__ import annotations

import json

from rmgr.daemons.leader.placement.view import _blocker, label, said
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.block import job_id
from rmgr.model.tasks.submission import Rigid
from rmgr.sched.plan import Why
from tests.harness.leader_bench import Bench


def test_ids_of_jobs_are_those_of_their_submissions() -> None:
    assert (label(job_id(42, 0)), label(job_id(42, 7))) == ("42", "42_7")
    why = Why("order", "job {} is before it and blocks the queue", (job_id(42, 7),))
    assert (said(why), _blocker(why)) == ("job 42_7 is before it and blocks the queue", "42_7")
    several = Why("hold", "has been promised the cores of running jobs {}", (f"{job_id(3, 0)}, {job_id(4, 2)}",))
    assert (said(several), _blocker(several)) == ("has been promised the cores of running jobs 3, 4_2", "3, 4_2")


def test_times_are_dates_and_other_numbers_stay() -> None:
    assert said(Why("begin", "may not start before {} us", (1_700_000_000_000_000,))) == "may not start before 2023-11-14T22:13:20Z"
    assert said(Why("resources", "needs {} x {} cores, {} are free", (4, 2, 3))) == "needs 4 x 2 cores, 3 are free"
    assert _blocker(Why("resources", "needs {} cores", (4,))) == ""


def test_nobody_knows_when_a_job_behind_one_without_a_limit_starts() -> None:
    pipeline = PipelineSpec(partition="default", document=json.dumps({"stage": [{"policy": "conservative"}]}))
    queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
    bench = Bench(ClusterSettings(queues=queues, pipelines=(pipeline,)))
    try:
        bench.lead()
        bench.starter("n1")  # of two cores
        first, second, third = (bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=size)) for size in (1, 2, 2))
        bench.advance(0.5)
        assert bench.leader is not None
        jobs = bench.leader.placer.view().jobs
        assert (jobs[first, 0].state, jobs[second, 0].state) == ("running", "waiting")
        assert (jobs[second, 0].expected_start_us, jobs[third, 0].expected_start_us) == (0, 0)
        assert jobs[second, 0].reason
    finally:
        bench.close()
