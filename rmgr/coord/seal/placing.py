"""Builds the statement that a leader signs of a job that it places, and the node recomputes. Pure: bytes in, bytes out.

ZooKeeper does not tell who has made a znode, and users may make some below `/running` (HAND) and `/inbox`. So a Starter of a secured
cluster begins a placed block only with the seal of a WatchDog of the cluster over

    where     cluster id, the name of its block there (submission, task, attempt, cores, memory), all nodes and processes, the head first
    how       cores of one process, memory, nodes for itself, when it was placed and for how long, its gang and the generation of that,
              and how often its submission's terms had been changed
    once      epoch and serial number of the placing, and the incarnation of the head: begun once, by that incarnation, or never

which is all of its allocation and nothing that changes while it runs, so that the leader who comes after can ask the same. What runs
is not the leader's to say: that has its user signed (`coord/seal/work.py`). Jobs that are placed together share signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rmgr.coord.seal.tree import sign_together
from rmgr.model.tasks.placing import Allocation, PlacingSeal

_PLACED = "rmgr placed 1"
#: So many jobs share a signature: each carries a path of five hashes.
TOGETHER = 32

_pack = msgspec.msgpack.Encoder()


def placing_statement(name: str, allocation: Allocation, *, cluster_id: str) -> bytes:
    """What the seal of an allocation must be a signature of. name: of the block under `/running/<head>`. Cost: 2 us."""
    seal = allocation.seal
    assert seal is not None
    return _statement(name, allocation, cluster_id, seal.epoch, seal.serial, seal.incarnation)


def _statement(name: str, allocation: Allocation, cluster_id: str, epoch: int, serial: int, incarnation: int) -> bytes:
    return _pack.encode(
        (
            _PLACED,
            cluster_id,
            name,
            epoch,
            serial,
            incarnation,
            allocation.shares,
            allocation.threads,
            allocation.memory_mib,
            allocation.started_us,
            allocation.planned_us,
            allocation.whole,
            *((allocation.gang, allocation.generation) if allocation.gang or allocation.generation else ()),
            *((allocation.changes,) if allocation.changes else ()),
        )
    )


def seal_placings(
    jobs: Sequence[tuple[str, Allocation, int]], *, cluster_id: str, key_id: str, epoch: int, serial: int, sign: Callable[[bytes], bytes]
) -> list[Allocation]:
    """Allocations with their seals.

    Args:
        jobs: (name of its block, allocation, incarnation of its head). serial: of the first, the others have the numbers after it.
    Cost: 0.03 ms for each `TOGETHER` of them, and 4 us each.
    """
    statements = [_statement(name, one, cluster_id, epoch, at, incarnation) for at, (name, one, incarnation) in enumerate(jobs, serial)]
    signatures: list[bytes] = []
    for at in range(0, len(statements), TOGETHER):
        signatures += sign_together(statements[at : at + TOGETHER], sign)
    return [
        msgspec.structs.replace(one, seal=PlacingSeal(key_id=key_id, epoch=epoch, serial=at, incarnation=incarnation, signature=signature))
        for at, ((_, one, incarnation), signature) in enumerate(zip(jobs, signatures, strict=True), serial)
    ]
