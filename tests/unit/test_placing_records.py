"""What the scheduler records of the ledger: since when cores are held for a job survives the leader, of those that still hold."""

from __future__ import annotations

from rmgr.daemons.placing_book import Book
from rmgr.daemons.placing_facts import Names
from rmgr.daemons.placing_records import decode_records, encode_records
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.records import Hold, Share
from rmgr.sched.snapshot import Snapshot
from rmgr.sched.state import ClusterState


def test_since_when_cores_are_held_is_recorded_with_the_hold() -> None:
    names = Names()
    names.learn(["n1", "n2"])
    hold = Hold(5, (Share(7, ((0, 0, 2),)),), (), "connection_reservation")
    nodes = tuple(Node(id=number, cores=2) for number in range(2))
    runs = Running(Job(id=7, submit_us=0, processes=2), 0, 1000, ((0, 0, 2),))
    state = ClusterState.restored(Snapshot(nodes=nodes, waiting=(Job(id=5, submit_us=0),), running=(runs,), holds=(hold,)))
    data = encode_records(state.partitions["default"], names, Book(routes={5: "big"}, since={5: 77, 6: 1}), {})
    records = decode_records(data)
    assert (dict(records.since), dict(records.routes)) == ({5: 77}, {5: "big"})
    assert records.of_jobs("default", names, frozenset({5}), frozenset({7}))[2] == [hold]
    assert dict(decode_records(b"").since) == {}
