"""Codes the gang of a partition for `/gangs/<partition>`: nodes by name, for their numbers are one leader's own; jobs with their attempts.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmgr.coord.protocol.multi import MAX_GANGS_BYTES
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.core.facts import Names
from rmgr.model.cluster.gang import GangClock, GangRecord
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.job import Node
from rmgr.sched.records import Gang

#: Upper estimates in bytes: of a job in a record (an entry of its queue, its attempt), of a leaf's share of the front, of the rest.
_JOB, _LEAF, _REST = 60, 40, 2048


def encode_gang(gang: Gang, names: Names, attempts: Mapping[int, int], clock: GangClock) -> bytes:
    """attempts: of its jobs. One that has none yet, or no more, has empty slots."""
    return encode_record(
        GangRecord(
            policy=gang.name,
            slot_us=gang.slot_us,
            origin_us=gang.origin_us,
            slot=gang.slot,
            width=gang.width,
            leaves=tuple((names.name(node), cores) for node, cores in each_node(gang.leaves)),
            clock=clock,
            queues=gang.queues,
            front=gang.front,
            late=gang.late,
            next_round=gang.next_round,
            attempts=tuple((job, attempts[job], 0) for job in gang.jobs if job in attempts),
        )
    )


def gang_of(record: GangRecord, partition: str, names: Names) -> Gang:
    """The scheduler's record."""
    return Gang(
        name=record.policy,
        slot_us=record.slot_us,
        origin_us=record.origin_us,
        slot=record.slot,
        width=record.width,
        leaves=tuple((names.id(node), names.id(node), cores) for node, cores in record.leaves),
        queues=record.queues,
        front=record.front,
        late=record.late,
        next_round=record.next_round,
        policy=record.policy,
        partition=partition,
    )


def most_members(nodes: Mapping[int, Node], names: Names) -> int:
    """So many jobs fit into the record of a gang on these nodes, whatever its tree looks like."""
    leaves = sum(len(names.name(node.id).encode()) + 16 + _LEAF * node.cores for node in nodes.values())
    return max(0, (MAX_GANGS_BYTES - _REST - leaves) // _JOB)
