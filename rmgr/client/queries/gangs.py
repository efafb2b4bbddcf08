"""Reads who shares nodes in time: records of gangs, and which slot is the present one by the clock that they name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.coord.validity import records as validity
from rmgr.errors import RmgrError
from rmgr.model.cluster.gang import GangRecord
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.tasks.placing import MAX_INDEX, job_id
from rmgr.procedures.snapshot import fetch

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.coord.protocol.ports import Coordinator

#: How long the node whose clock counts may take to answer.
_ASK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    """A gang as its record has it. generation: version of the record. slot: the present one, None = no clock could be read."""

    partition: str
    generation: int
    record: GangRecord
    slot: int | None = None


def read_gangs(coordinator: Coordinator, via: str, credentials: Credentials | None, *, timeout_s: float) -> list[GangView]:
    """All gangs of which a job runs, by partition: the record of one whose jobs have all ended stays until others come.

    Raises: CoordinationUnavailable; InvalidRecord for one that cannot be read.
    """
    (names,) = fetch([paths.GANGS], coordinator.children, timeout_s=timeout_s)
    found = sorted(names or ())
    stamped = fetch([paths.gangs(name) for name in found], coordinator.get, timeout_s=timeout_s)
    views = []
    for partition, one in zip(found, stamped, strict=True):
        if one is None:
            continue
        record = validity.decode(one.data, GangRecord, paths.gangs(partition))
        if _turns(record, coordinator, timeout_s):
            slot = _present_slot(record, coordinator, via, credentials, timeout_s)
            views.append(GangView(partition=partition, generation=one.version, record=record, slot=slot))
    return views


def _turns(record: GangRecord, coordinator: Coordinator, timeout_s: float) -> bool:
    """Some attempt that it names has its nodes."""
    named = {(job, attempt) for job, attempt, _ in record.attempts}
    lists = fetch([paths.running_node(node) for node, _ in record.leaves], coordinator.children, timeout_s=timeout_s) if named else []
    keys = (key for names in lists for _, key in paths.blocks_in(names))
    return any((job_id(key.submission, key.first), key.attempt) in named for key in keys if key.first < MAX_INDEX)


def _present_slot(record: GangRecord, coordinator: Coordinator, via: str, credentials: Credentials | None, timeout_s: float) -> int | None:
    from rmgr.adapters.rpc.server import NodeClient

    clock = record.clock
    with suppress(RmgrError):
        (found,) = fetch([paths.node(clock.node)], coordinator.get, timeout_s=timeout_s)
        node = decode_record(found.data, NodeRecord, clock.node) if found is not None else None
        if node is None or not node.endpoint:
            return None
        with NodeClient(node.endpoint, timeout_s=_ASK_S, via=via, credentials=credentials) as client:
            boot_us, incarnation = client.clock(clock.node)
        if incarnation == clock.incarnation:
            return int(boot_us + clock.offset_us - record.origin_us) // record.slot_us
    return None
