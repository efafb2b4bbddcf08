"""Reads who shares nodes in time: records of gangs, and which slot is the present one by the clock that they name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.errors import RmgrError
from rmgr.model.cluster.gang import GangRecord
from rmgr.submitter.questions import GangRead, ReadGangs

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.queries.doors import LeaderHost

#: How long the node whose clock counts may take to answer.
_ASK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    """A gang as its record has it. generation: version of the record. slot: the present one, None = no clock could be read."""

    partition: str
    generation: int
    record: GangRecord
    slot: int | None = None


def read_gangs(host: LeaderHost) -> list[GangView]:
    """All gangs of which a job runs, by partition. Raises: CoordinationUnavailable; InvalidRecord for one that cannot be read."""
    via, credentials = host.via, host.credentials()
    return [
        GangView(partition=one.partition, generation=one.generation, record=one.record, slot=_present_slot(one, via, credentials))
        for one in host.ask(ReadGangs())
    ]


def _present_slot(gang: GangRead, via: str, credentials: Credentials | None) -> int | None:
    from rmgr.adapters.rpc.server import NodeClient

    record, clock = gang.record, gang.record.clock
    if not gang.clock_endpoint:
        return None
    with suppress(RmgrError), NodeClient(gang.clock_endpoint, timeout_s=_ASK_S, via=via, credentials=credentials) as client:
        boot_us, incarnation = client.clock(clock.node)
        if incarnation == clock.incarnation:
            return int(boot_us + clock.offset_us - record.origin_us) // record.slot_us
    return None
