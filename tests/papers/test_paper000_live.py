"""Paper 000, table 2 (papers.md C0.1), on the paper's machine: admission, `--dry-run` and the leader agree on every row.

With and without a number of nodes: the processes and threads that a user asks for choose the class.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator

import pytest

from rmgr.coord.views import answers
from rmgr.daemons.leader.placement.placer import Placer
from rmgr.daemons.leader.placement.view import copied, tried
from rmgr.errors import Infeasible
from rmgr.model.base.resources import Request
from rmgr.model.base.states import State
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.block import job_id
from rmgr.model.tasks.submission import Rigid, Submission, Work
from rmgr.procedures.queue_classes import check_class
from rmgr.sched.queue_class import HOUR_US
from tests.harness.leader_bench import Bench
from tests.papers.test_paper000_selection import TABLE
from tests.places import ROOT

NODES, CORES = tuple(f"n{number}" for number in range(1, 12)), 128
DOCUMENT = tomllib.loads((ROOT / "deploy/policies/hpc2500.toml").read_text())
QUEUES = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
SETTINGS = ClusterSettings(queues=QUEUES, pipelines=(PipelineSpec(partition="default", document=json.dumps(DOCUMENT)),))


class Machine:
    """Eleven nodes of 128 processors, and whoever leads."""

    def __init__(self) -> None:
        self.bench = Bench(SETTINGS)
        self.bench.lead()
        self.bench.starter(*NODES, cores=CORES)
        self.bench.advance(1)

    @property
    def placer(self) -> Placer:
        assert self.bench.leader is not None
        return self.bench.leader.placer

    def admitted(self, request: Request, rigid: Rigid) -> bool:
        """As the client says it before anything is submitted."""
        try:
            check_class(request, rigid, QUEUES[1], SETTINGS)
        except Infeasible:
            return False
        return True

    def would(self, request: Request, rigid: Rigid) -> str | None:
        """The class that `--dry-run` names, None = it would fail."""
        record = Submission(id=0, name="x", user="u", queue="batch", work=Work.COMMAND, request=request, rigid=rigid, submitted_us=1)
        trial = copied(self.placer, record)
        assert trial is not None
        try:
            return tried(trial).route
        except Infeasible:
            return None

    def placed(self, request: Request, rigid: Rigid) -> str | None:
        """The class that the leader chooses for it, None = it ends FAILED. Whoever submits does not ask whether it is admitted."""
        number = self.bench.submitter.submit(1, block=1, queue="batch", rigid=rigid, request=request)
        self.bench.advance(1)
        if (job := job_id(number, 0)) not in self.placer.job_table.placed:
            assert self.bench.leader is not None
            assert [view.state for view in answers.jobs(self.bench.leader.snapshot(), (number,))] == [State.FAILED]
            return None
        return self.placer.job_table.class_of(job)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    try:
        yield made
    finally:
        made.bench.close()


def shapes() -> list[tuple[int, int, float, str | None, int]]:
    """Each row, and on so many nodes as its processes need: all, or one more."""
    found = []
    for processes, threads, hours, queue in TABLE:
        room = CORES // threads  # processes on one node
        least = -(-processes // room) if room else 0
        found.append((processes, threads, hours, queue, 0))
        found += [(processes, threads, hours, queue, nodes) for nodes in (least, least + 1) if 0 < nodes <= min(processes, len(NODES))]
    return found


@pytest.mark.parametrize(("processes", "threads", "hours", "queue", "nodes"), shapes())
def test_admission_a_dry_run_and_the_leader_choose_what_the_table_says(
    machine: Machine, processes: int, threads: int, hours: float, queue: str | None, nodes: int
) -> None:
    request, rigid = Request(cores=threads, time_limit_us=round(hours * HOUR_US)), Rigid(processes=processes, nodes=nodes)
    assert machine.admitted(request, rigid) is (queue is not None)
    if threads <= CORES:
        assert machine.would(request, rigid) == queue
        assert machine.placed(request, rigid) == queue


def test_five_hundred_and_twelve_processes_on_four_nodes_are_a_job_of_the_paper(machine: Machine) -> None:
    request, rigid = Request(cores=1, time_limit_us=HOUR_US), Rigid(processes=512, nodes=4)
    assert (machine.admitted(request, rigid), machine.would(request, rigid), machine.placed(request, rigid)) == (True, "d512", "d512")
