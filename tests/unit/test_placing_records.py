"""What the scheduler records of the ledger: since when cores are held for a job survives the leader, of those that still hold."""

from __future__ import annotations

from rmgr.daemons.placing_facts import Names, decode_records, decode_routes, decode_since, encode_records
from rmgr.sched.records import Hold, Share
from rmgr.sched.snapshot import Snapshot


def test_since_when_cores_are_held_is_recorded_with_the_hold() -> None:
    names = Names()
    names.learn(["n1", "n2"])
    hold = Hold(5, (Share(7, ((0, 0, 2),)),), (), "connection_reservation")
    data = encode_records(Snapshot(holds=(hold,)), "default", {5: "default"}, names, {5: "big"}, since={5: 77, 6: 1}, with_usage=False)
    assert (decode_since(data), decode_routes(data)) == ({5: 77}, {5: "big"})
    assert decode_records(data, "default", names, frozenset({5}), frozenset({7}))[2] == [hold]
    assert decode_since(b"") == {}
