"""Reasons of the scheduler as people read them."""

from __future__ import annotations

from rmgr.daemons.placing_view import _blocker, label, said
from rmgr.model.placing import job_id
from rmgr.sched.plan import Why


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
