"""The leader's part played by the test: it places a waiting job on nodes with the leader's own multi, and does nothing else."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_block
from rmgr.model.block import Allocation, BlockKey
from tests.harness.starter_rig import Rig
from tests.harness.waiting import eventually


def waiting(rig: Rig, number: int, queue: str = "batch") -> BlockKey:
    """Waits for the one pending block of a submission, and returns it."""
    return eventually(lambda: next((key for key in rig.pending(queue) if key.submission == number), None), f"{number} waits")


def put(
    rig: Rig,
    number: int,
    shares: Sequence[tuple[str, int]] = (("n1", 1),),
    *,
    threads: int = 1,
    memory_mib: int = 0,
    whole: tuple[int, ...] = (),
    queue: str = "batch",
) -> place_ops.Assigned:
    """Commits ASSIGN of a job to these nodes (the first is its head), whose Starters must be registered. whole: see `Allocation`."""
    key = waiting(rig, number, queue)
    found = rig.zk.get(paths.pending_block(queue, key)).result(60)
    assert found is not None
    fences = []
    for node, _ in shares:
        fence = rig.zk.get(paths.node(node)).result(60)
        assert fence is not None
        fences.append((node, fence.version))
    record = rig.record(shares[0][0])
    assert record is not None
    for node, _ in shares[1:]:
        rig.zk.ensure([paths.hold(node)])
    allocation = Allocation(shares=tuple(shares), threads=threads, memory_mib=memory_mib, started_us=time.time_ns() // 1000, whole=whole)
    job = place_ops.Assigned(
        queue=queue,
        key=key,
        data=decode_block(found.data),
        version=found.version,
        allocation=allocation,
        fences=tuple(fences),
        incarnation=record.incarnation,
        guid=paths.start_order(uuid.uuid4().hex[:12], paths.block_name(place_ops.running_key(key, allocation))),
        stamp=uuid.uuid4().hex[:12],
    )
    outcome = rig.zk.commit(place_ops.place([job], [])).result(60)
    assert isinstance(outcome, Committed), outcome
    return job


def unhold(rig: Rig, job: place_ops.Assigned) -> None:
    """Removes a job's holds, as the leader does when the block is gone."""
    key = job.running
    for node, _ in job.allocation.helpers:
        outcome = rig.zk.commit(place_ops.unhold(node, key.submission, key.first, key.attempt)).result(60)
        assert isinstance(outcome, Committed), outcome
