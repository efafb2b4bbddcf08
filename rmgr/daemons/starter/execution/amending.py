"""Time limits that were changed while work runs (`rmgr update -t`): reads the record anew, asks whether it is to be believed, tells slots.

A task that begins later has the new limit from its record. One that runs keeps its own where the change is not for what runs
(`coord/decisions/changing.py`): its user may only shorten it, an operator only lengthen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rmgr.coord.decisions.changing import limit_of_running
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.records import Info, RecordCache
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.daemons.starter.health.trust import Gate
from rmgr.model.tasks.block import BlockKey
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

#: Before a record that could not be read is read again.
_PAUSE_S = 1.0


class AmendedNode(Protocol):
    """The node whose work it is."""

    blocks: dict[BlockKey, ClaimedBlock]
    lanes: Lanes


@dataclass(slots=True)
class _Wanted:
    """A record that is to be read again. info: what was found."""

    info: Info | None = None
    is_reading: bool = False
    retry_s: float = 0.0


class Amendments:
    """The changes of one node's work. Owner's thread only."""

    def __init__(self, node: AmendedNode, records: RecordCache, gate: Gate | None, *, log: Log) -> None:
        self._node = node
        self._records = records
        self._gate = gate
        self._log = log
        self._wanted: dict[int, _Wanted] = {}
        self._limits: dict[int, int] = {}  #: limits (us) of running tasks that are not those of their blocks' records, by seq

    def order(self, submission: int) -> None:
        """Its terms were changed."""
        self._wanted[submission] = _Wanted()

    def is_under_way(self, submission: int) -> bool:
        """What was ordered is not carried out yet."""
        return submission in self._wanted

    def settle(self) -> float:
        """Carries out what can be. Returns: the monotonic time at which to ask again, inf = when something comes."""
        again_s = float("inf")
        for submission, wanted in list(self._wanted.items()):
            if wanted.info is None:
                if not wanted.is_reading and machine.monotonic() >= wanted.retry_s:
                    wanted.is_reading = True
                    self._records.renew(submission, partial(self._read, wanted))
                again_s = min(again_s, wanted.retry_s if not wanted.is_reading else again_s)
                continue
            believed = self._gate.believes(wanted.info.record) if self._gate is not None else True
            if believed is None:
                again_s = machine.monotonic() + _PAUSE_S
                continue
            del self._wanted[submission]
            if isinstance(believed, str):
                self._log.warning("amendment_refused", submission=submission, why=believed)
            else:
                self._carry_out(wanted.info)
        return again_s

    def _read(self, wanted: _Wanted, info: Info | None) -> None:
        wanted.info, wanted.is_reading = info, False
        wanted.retry_s = machine.monotonic() + _PAUSE_S

    def _carry_out(self, info: Info) -> None:
        running = {lane.running_seq for lane in self._node.lanes}
        self._limits = {seq: limit_us for seq, limit_us in self._limits.items() if seq in running}
        for block in self._node.blocks.values():
            old: Info | None = block.info
            if block.key.submission != info.record.id or old is None or len(old.record.changes) >= len(info.record.changes):
                continue
            since = len(old.record.changes)
            block.info = info
            self._tell(block, info, since, old.limit_us)

    def _tell(self, block: ClaimedBlock, info: Info, since: int, old_us: int) -> None:
        for lane in list(self._node.lanes):
            seq = lane.running_seq
            if not seq or lane.tasks[seq][0] is not block:
                continue
            before_us = self._limits.get(seq, old_us)
            limit_us = self._limits[seq] = block.limit_us = info.limited(limit_of_running(info.record, before_us, since))
            if limit_us == before_us:
                continue
            self._log.info("time_limit_changed", block=block.key.submission, first=lane.tasks[seq][1], limit_s=limit_us / 1e6)
            if lane.part:
                continue  # a job of a gang: by the time that it was served, see `gangs.py`
            if lane.worker is not None:
                lane.worker.limit(seq, limit_us)
            else:
                lane.slot.limit(seq, limit_us)
