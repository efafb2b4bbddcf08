"""ZooKeeper's quotas: every root below which people create has one, and together they leave the server alive."""

from __future__ import annotations

import re

from rmgr.coord.protocol import acl, paths
from rmgr.coord.protocol.acl import TABLE, Right
from rmgr.model.cluster.identity import Role

#: What a task that waits costs of heap, and a znode beside its data, on a real server (bytes).
TASK, ZNODE = 113, 400
#: What a server needs beside its znodes, for the last 500 requests of a block each.
FREE_MIB = 80
#: Of `rmgr dev`.
DEV_MIB = 512


def test_every_root_below_which_people_create_has_a_quota_and_no_other() -> None:
    created = {place for place, line in TABLE.items() if line[Role.SUBMITTER] & Right.CREATE}
    assert acl.SHARES.keys() == {"/" + place.split("/")[1] for place in created}


def test_two_million_waiting_tasks_fit() -> None:
    queues = acl.limits(DEV_MIB)[paths.QUEUES]
    assert queues.data_bytes > 2_000_000 * TASK
    assert queues.znodes > 4 * 2_000_000 // 256


def test_all_of_them_full_leave_room_in_the_heap() -> None:
    for heap_mib in (64, 100, 128, 256, DEV_MIB, acl.HEAP_MIB):
        full = sum(quota.data_bytes + quota.znodes * ZNODE for quota in acl.limits(heap_mib).values())
        assert full < 0.9 * heap_mib * 2**20
        assert full < (1.02 * max(0.375 * heap_mib, heap_mib - FREE_MIB) + 3) * 2**20


def test_a_small_heap_counts_as_one_that_a_server_can_start_with() -> None:
    assert acl.limits(1) == acl.limits(64)


def test_limits_are_hard_ones_as_zookeeper_reads_them() -> None:
    said = acl.encode(acl.Quota(7, 1000)).decode()
    assert acl.decode(said.encode()) == acl.Quota(7, 1000)
    assert acl.decode(b"count=3,bytes=40") == acl.Quota(3, 40)
    assert re.fullmatch(r"count=-1,bytes=-1=;byteHardLimit=1000;countHardLimit=7", said)
