"""Queue classes in the leader: where a job stands whose user named one, and what is done with one that its class does not admit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.cli.words.selectors import Filter
from rmgr.coord.protocol import paths
from rmgr.coord.views import answers
from rmgr.daemons.leader.placement.view import copied
from rmgr.errors import Infeasible
from rmgr.model.base.resources import Request
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.submission import Rigid
from rmgr.model.views import QueueView
from rmgr.procedures.queue_classes import class_views
from tests.harness.leader_bench import Bench

CLASSES = {
    "stage": [{"policy": "connection_reservation"}],
    "queue": [
        {"name": "small", "max_cpus": 2, "max_threads": 2, "max_reservations": 1},
        {"name": "wide", "max_cpus": 8, "max_threads": 2, "max_reservations": 1},
    ],
}


@pytest.fixture
def bench() -> Iterator[Bench]:
    queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
    bench = Bench(ClusterSettings(queues=queues, pipelines=(PipelineSpec(partition="default", document=json.dumps(CLASSES)),)))
    bench.lead()
    bench.starter("n1", "n2")  # of two cores each
    bench.advance(1)
    yield bench
    bench.close()


def submit(bench: Bench, processes: int, queue_class: str = "", **fields: object) -> int:
    rigid = Rigid(processes=processes, queue_class=queue_class)
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=rigid, **fields)  # type: ignore[arg-type]
    bench.advance(1)
    return number


def running(bench: Bench) -> set[int]:
    return {key.submission for node in ("n1", "n2") for key in bench.look.keys(paths.running_node(node))}


def classes_of(bench: Bench) -> dict[int, str]:
    """Of every job that waits or runs, as the scheduler sees it."""
    assert bench.leader is not None
    state = bench.leader.placer.state
    part = state.partitions["default"]
    return {job.id >> 20: job.queue for job in (*part.jobs.values(), *(run.job for run in part.running.values()))}


def test_a_job_stands_in_the_class_that_its_user_named_under_every_leader(bench: Bench) -> None:
    chosen, named, waits = submit(bench, 1), submit(bench, 1, "wide"), submit(bench, 4, "wide")
    expected = {chosen: "small", named: "wide", waits: "wide"}
    assert classes_of(bench) == expected
    assert running(bench) == {chosen, named}
    bench.lead()
    bench.advance(1)
    assert classes_of(bench) == expected


def test_what_its_class_does_not_admit_is_set_aside_with_the_reason_and_others_are_placed(bench: Bench) -> None:
    """Whoever went round his client; also before and after another leader has come."""
    large, threads = submit(bench, 3, "small"), submit(bench, 1, "small", request=Request(cores=3))
    told = "queue class small, which its user named, allows CPUs <= 2, threads a process <= 2; it asks for 3 processes x 1 thread (3 CPUs)"
    for _ in range(2):
        assert bench.leader is not None
        jobs = bench.leader.placer.view().jobs
        assert told in jobs[large, 0].reason
        assert "it asks for 1 process x 3 threads" in jobs[threads, 0].reason
        assert submit(bench, 1, "small") in running(bench)
        bench.lead()
        bench.advance(1)
    assert not running(bench) & {large, threads}
    record = bench.look.sub(large)
    assert record is not None
    with pytest.raises(Infeasible, match="it would never start: queue class small"):
        copied(bench.leader.placer, record)


def told(bench: Bench) -> dict[str, QueueView]:
    """What `rmgr queues` is told of each class."""
    assert bench.leader is not None
    return {view.id: view for view in bench.leader.placer.view().classes}


def test_a_class_tells_who_waits_and_runs_in_it_what_was_promised_and_which_trigger_fired(bench: Bench) -> None:
    """Also after another leader has come: counts of triggers are records."""
    submit(bench, 2), submit(bench, 2)
    large = submit(bench, 4)
    submit(bench, 1, "small")
    for _ in range(2):
        small, wide = told(bench)["small"], told(bench)["wide"]
        assert small.of_class is not None
        assert wide.of_class is not None
        assert [(view.pending, view.running, view.state, view.partition) for view in (small, wide)] == [
            (1, 2, "open", "default"),
            (1, 0, "open", "default"),
        ]
        assert wide.limits == {"max_cpus": 8, "max_threads": 2}
        assert wide.of_class.fired == (0, 0, 1)
        (promise,) = wide.of_class.promised
        assert (promise.job, promise.cores, promise.held, promise.waits_for) == (str(large), 4, 0, ("1", "2"))
        assert wide.of_class.chosen == "by connection_reservation: the strictest that admits it"
        bench.lead()
        bench.advance(1)
    registry = bench.metrics.registry
    bench.advance(2)
    where = {"partition": "default", "queue_class": "wide"}
    assert registry.get_sample_value("rmgr_leader_class_waiting_jobs", where) == 1
    assert registry.get_sample_value("rmgr_leader_class_promised_cores", where) == 4
    assert registry.get_sample_value("rmgr_leader_class_reservations", {**where, "trigger": "no_waiter"}) == 1
    assert registry.get_sample_value("rmgr_leader_class_running_jobs", {**where, "queue_class": "small"}) == 2


def test_explain_names_the_class_and_the_rule_that_chose_it(bench: Bench) -> None:
    chosen, named = submit(bench, 2), submit(bench, 1, "wide")
    assert bench.leader is not None
    snapshot = replace(bench.leader.snapshot(), placing=bench.leader.placer.view())
    details = [answers.explain(snapshot, number, None).why[-1] for number in (chosen, named)]
    assert [(why.what, why.id) for why in details] == [("class", "small"), ("class", "wide")]
    assert details[0].detail == (
        "its queue class, chosen for 2 processes x 1 thread by connection_reservation: the strictest that admits it "
        "(CPUs <= 2, threads a process <= 2)"
    )
    assert details[1].detail == "its queue class, named by its user (-q wide) (CPUs <= 8, threads a process <= 2)"
    jobs = answers.jobs(snapshot)
    assert {job.id: job.route for job in jobs} == {chosen: "small", named: "wide"}
    assert [job.id for job in jobs if Filter(queue="wide").admits(job)] == [named]
    assert len([job for job in jobs if Filter(queue="batch").admits(job)]) == 2


def test_without_a_leader_the_settings_tell_of_classes(bench: Bench) -> None:
    assert bench.leader is not None
    views = class_views(bench.leader.settings)
    assert [(view.id, view.limits) for view in views] == [(view.id, view.limits) for view in told(bench).values()]
    assert not any(view.of_class.is_known for view in views if view.of_class is not None)


def test_a_job_whose_class_is_gone_is_given_another(bench: Bench) -> None:
    number = submit(bench, 2, "narrow")
    assert classes_of(bench) == {number: "small"}
