"""Records of placed work: since when cores are held for a job survives the leader; what no codec can carry is not read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.daemons.leader.facts import Names
from rmgr.daemons.leader.placement.job_table import JobTable, decode_records, encode_records
from rmgr.errors import WrongCluster
from rmgr.model.base.resources import Request
from rmgr.model.tasks.submission import Rigid, Submission, Work
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.records import Hold, Share
from rmgr.sched.state.cluster import ClusterState, Snapshot


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
        decode_record(encode_record(replace(record, **field)), Submission)  # type: ignore[arg-type]
