"""What one pass decides may be too much for one commit, and what policies remember too much for a small znode: it is carried out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.placement.job_table import decode_records
from rmgr.model.base.resources import Request
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.block import BlockData
from rmgr.model.tasks.submission import Rigid
from tests.harness.leader_bench import Bench

NODES = tuple(f"n{number}" for number in range(30))  # of two cores each


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    document = json.dumps(getattr(request, "param", {"stage": [{"policy": "first_fit"}]}))
    queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
    bench = Bench(ClusterSettings(queues=queues, pipelines=(PipelineSpec(partition="default", document=document),)))
    bench.lead()
    yield bench
    bench.close()


def submit(bench: Bench, jobs: int, **fields: object) -> None:
    for at in range(0, jobs, 20):
        bench.submitter.submit(min(20, jobs - at), block=1, queue="batch", rigid=Rigid(), **fields)  # type: ignore[arg-type]


def running(bench: Bench) -> int:
    return sum(len(bench.look.names(paths.running_node(node))) for node in NODES)


def test_jobs_with_large_arguments_are_placed_by_as_many_commits_as_they_need(bench: Bench) -> None:
    submit(bench, 60, data=BlockData(payloads=(b"x" * 12_000,)))
    bench.advance(1)
    bench.starter(*NODES)
    bench.advance(1)
    assert running(bench) == 60
    assert not bench.events("leader_multi_refused")
    assert not bench.events("placing_rebuilt")


FAIR = {"stage": [{"policy": "first_fit", "parameters": {"order": "fair_share"}}]}


@pytest.mark.parametrize("bench", [FAIR], indirect=True)
def test_what_policies_remember_may_be_larger_than_other_znodes(bench: Bench) -> None:
    for at in range(20):
        bench.submitter.submit(3, block=1, queue="batch", rigid=Rigid(), user=f"{at}" + "u" * 60, account="a" * 250)
    bench.advance(1)
    bench.starter(*NODES)
    bench.advance(1)
    assert running(bench) == 60
    assert not bench.events("leader_multi_refused")
    found = bench.outside.get(paths.placing("default")).result(60)
    assert len(found.data) > 16 * 1024
    assert len(decode_records(found.data).runs) == 60


@pytest.mark.parametrize("length", [1, 60])
def test_a_job_on_more_nodes_than_a_usual_commit_has_operations(bench: Bench, length: int) -> None:
    """It is placed; or, where its arguments and the names of its nodes are more than a znode may hold, it ends, and others are placed."""
    many = tuple("w" * length + str(number) for number in range(120))
    bench.starter(*many[:60])
    bench.starter(*many[60:])
    wide = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=240), data=BlockData(payloads=(b"x" * 12_000,)))
    bench.advance(1)
    heads = [key.submission for node in many for key in bench.look.keys(paths.running_node(node))]
    if length == 1:
        assert heads == [wide]
        assert sum(len(bench.look.names(paths.hold(node))) for node in many) == 119
    else:
        end = bench.look.outcomes(wide)[0]
        assert (heads, end.state, end.reason) == ([], State.FAILED, Reason.START_FAILED)
        assert "120 nodes" in end.error
        number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
        bench.advance(1)
        assert [key.submission for node in many for key in bench.look.keys(paths.running_node(node))] == [number]


def test_a_job_that_no_name_of_a_block_can_tell_ends(bench: Bench) -> None:
    bench.starter("n0")
    odd = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(), request=Request(memory_bytes=1 << 70))
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    bench.advance(1)
    assert not bench.look.outcomes(odd)
    assert bench.leader is not None
    assert "memory_bytes" in bench.leader.placer.view().jobs[odd, 0].reason
    assert [key.submission for key in bench.look.keys(paths.running_node("n0"))] == [number]
