"""Paper 000, table 2, of jobs that ask for nodes: the class is that of the processes and threads that were asked for (papers.md C0.1)."""

from __future__ import annotations

import pytest

from rmgr.daemons.leader.facts import job_of
from rmgr.model.base.resources import Request
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.submission import Rigid, Submission, Work
from rmgr.sched.job import Job
from rmgr.sched.policies.connection_reservation import constant
from rmgr.sched.queue_class import HOUR_US, HPC2500, selected
from tests.papers.test_paper000_selection import CLASSES, TABLE


def placed(processes: int, threads: int, hours: float, nodes: int) -> Job:
    record = Submission(
        id=7,
        name="x",
        user="ann",
        queue="batch",
        work=Work.COMMAND,
        request=Request(cores=threads, time_limit_us=round(hours * HOUR_US)),
        rigid=Rigid(processes=processes, nodes=nodes),
    )
    return job_of(record, BlockKey(priority=0, seq=1, submission=7, first=0, count=1, attempt=1, cores=threads, memory_mib=0), "default", 0)


@pytest.mark.parametrize(
    ("processes", "threads", "hours", "queue", "nodes"), [(*row, nodes) for row in TABLE for nodes in (0, 1, 3, 4) if nodes <= row[0]]
)
def test_nodes_do_not_change_the_class_of_a_job(processes: int, threads: int, hours: float, queue: str | None, nodes: int) -> None:
    found = selected(placed(processes, threads, hours, nodes), HPC2500)
    assert (found.name if found else None) == queue


def test_nodes_do_not_change_the_weight_of_an_overtaking_and_are_what_is_placed() -> None:
    spread, plain = placed(6, 8, 1, 4), placed(6, 8, 1, 0)
    assert constant(spread, CLASSES["s128"]) == constant(plain, CLASSES["s128"])
    assert ((spread.processes, spread.threads, spread.cpus), spread.wanted_cpus) == ((4, 16, 64), 48)
