"""The placing leader's records: more than one commit or znode holds, times of held cores, and a log that replays exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.daemons.leader.facts import Names
from rmgr.daemons.leader.placement.job_table import JobTable, decode_records, encode_records
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.base import Request
from rmgr.model.block import BlockData
from rmgr.model.states import Reason, State
from rmgr.model.submission import Rigid, Submission, Work
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.pipeline import configured
from rmgr.sched.records import Hold, Share
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.event_log import Opening, Passed
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
from tests.harness.leader_bench import Bench, placing
from tests.property.test_placing_failover import Story


def test_since_when_cores_are_held_is_recorded_with_the_hold() -> None:
    names = Names()
    names.learn(["n1", "n2"])
    hold = Hold(5, (Share(7, ((0, 0, 2),)),), (), "connection_reservation")
    nodes = tuple(Node(id=number, cores=2) for number in range(2))
    runs = Running(Job(id=7, submit_us=0, processes=2), 0, 1000, ((0, 0, 2),))
    state = ClusterState.restored(Snapshot(nodes=nodes, waiting=(Job(id=5, submit_us=0),), running=(runs,), holds=(hold,)))
    data = encode_records(state.partitions["default"], names, JobTable(routes={5: "big"}, since={5: 77, 6: 1}), {})
    records = decode_records(data)
    assert (dict(records.since), dict(records.routes)) == ({5: 77}, {5: "big"})
    assert records.of_jobs("default", names, frozenset({5}), frozenset({7}))[2] == [hold]
    assert dict(decode_records(b"").since) == {}


@pytest.mark.parametrize(
    "field", [{"request": Request(time_limit_us=1 << 63)}, {"backoff_us": 1 << 80}, {"rigid": Rigid(begin_us=1 << 63)}]
)
def test_a_time_of_more_than_64_bits_stops_nobody_who_reads_the_record(field: dict[str, object]) -> None:
    """It fits JSON and no MessagePack: once it was read, the leader's pass and the Starter's slot stood still over it."""
    record = Submission(id=1, name="x", user="ada", queue="batch", work=Work.COMMAND)
    assert decode_record(encode_record(record), Submission) == record
    with pytest.raises(WrongCluster, match="cannot be read"):
        decode_record(encode_record(replace(record, **field)), Submission)


NODES = tuple(f"n{number}" for number in range(30))  # of two cores each


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(placing(getattr(request, "param", "first_fit")))
    bench.lead()
    yield bench
    bench.close()


def submit(bench: Bench, jobs: int, **fields: object) -> None:
    for at in range(0, jobs, 20):
        bench.submitter.submit(min(20, jobs - at), block=1, queue="batch", rigid=Rigid(), **fields)


def running(bench: Bench) -> int:
    return len(bench.look.running(*NODES))


def test_jobs_with_large_arguments_are_placed_by_as_many_commits_as_they_need(bench: Bench) -> None:
    submit(bench, 60, data=BlockData(payloads=(b"x" * 12_000,)))
    bench.advance(1)
    bench.starter(*NODES)
    bench.advance(1)
    assert running(bench) == 60
    assert not bench.events("leader_multi_refused")
    assert not bench.events("placing_rebuilt")


FAIR = {"policy": "first_fit", "parameters": {"order": "fair_share"}}


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
    heads = bench.look.running(*many)
    if length == 1:
        assert heads == [wide]
        assert sum(len(bench.look.names(paths.hold(node))) for node in many) == 119
    else:
        end = bench.look.outcomes(wide)[0]
        assert (heads, end.state, end.reason) == ([], State.FAILED, Reason.START_FAILED)
        assert "120 nodes" in end.error
        number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
        bench.advance(1)
        assert bench.look.running(*many) == [number]


def test_a_job_that_no_name_of_a_block_can_tell_ends(bench: Bench) -> None:
    bench.starter("n0")
    odd = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(), request=Request(memory_bytes=1 << 70))
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
    bench.advance(1)
    assert not bench.look.outcomes(odd)
    assert "memory_bytes" in bench.leader.placer.view().jobs[odd, 0].reason
    assert bench.look.running("n0") == [number]


@pytest.mark.parametrize("policy", ["easy", "fcfs", "migration"])
def test_a_live_log_run_again_gives_the_decisions_that_were_made(policy: str, tmp_path: Path) -> None:
    story = Story(policy)
    try:
        story.play()
        story.bench.leader.close()
        file = story.bench.last_log(tmp_path / "live.jsonl")
    finally:
        story.close()
    entries = list(read_log(file))
    opening = entries[0]
    assert isinstance(opening, Opening)
    assert (opening.policy, opening.carried_out) == (policy, "at once")
    starts = [one for entry in entries if isinstance(entry, Passed) for one in entry.decisions if one["do"] == "start"]
    assert len(starts) == len(story.seen.starts)
    history = verify(entries, configured(policy).stages)  # raises at the first decision that differs
    assert history.passes == sum(isinstance(entry, Passed) for entry in entries)
    with pytest.raises(RmgrError, match="decision"):
        verify(entries, configured("ljf").stages)  # the check can fail
