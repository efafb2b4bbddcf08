"""The parts that gang jobs have of one node: they have slots of their own, and run when the record of their partition says so.

    /gangs/<partition> -> Timetable -> rows of the next half minute -> turner, which stops and continues
    a part: seated (its slot is open, and stopped) -> its first turn has begun: its work may start -> turns -> its slot is empty: left

The record may come before or after the jobs that it names, and a new generation may come at any time: rows up to the first slot of a
generation come from the one before. While a part is here, the gang has all cores of the node, so that nothing is pulled beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmgr.adapters.host.workevents import PartBegan, PartsServed, PartStubborn, TurnerRestarted, TurnEvent
from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.daemons.starter.core.tree import SELDOM_S, WatchedZnode, record_of, settle_again
from rmgr.errors import RmgrError
from rmgr.model.block import run_label
from rmgr.model.node import GangClock, GangRecord, NodeRecord
from rmgr.model.states import Reason
from rmgr.runtime import machine
from rmgr.runtime.gang_clock import OWN, ClockReader
from rmgr.runtime.story import Pause, Story
from rmgr.sched.capacity.gangs import SlotRow, Timetable

if TYPE_CHECKING:
    from rmgr.adapters.host.slot import Slot
    from rmgr.coord.protocol.multi import Stamped
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.core.submissions import Info
    from rmgr.daemons.starter.node.node import NodeAgent
    from rmgr.model.block import Allocation, NodeHold

#: The turner knows at least the rows of this time, and of this many slots: it goes on while its Starter stands still.
AHEAD_US, _AHEAD_SLOTS = 45_000_000, 4
#: More rows are computed when less than this is left.
_AGAIN_US = 32_000_000
#: Rows computed in one turn of the node (up to half a millisecond each, in a tree of hundreds of leaves); pause before the next ones.
_AT_ONCE, _SOON_S = 100, 0.02
#: Longest time that an attempt may run out of turn.
_OUT_OF_TURN_US = 60_000_000
#: Smaller changes of a clock do not need new rows.
_DRIFT_US = 500
_LOOK_S = 1.0
#: Time after which an unreadable clock is logged.
SILENT_S = 3.0
#: Why an attempt ended that the turner had to kill.
OVERRAN = "it computed on for a second after the end of its turn, and was killed"
#: Name under which the lanes keep all cores of a node for its gangs.
_OURS = "gangs"


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """One attempt on this node. served_us, turns: as counted by the turner."""

    name: str
    gang: str
    slot: Slot
    has_begun: bool = False
    is_over_limit: bool = False  #: and was ended for that
    was_killed: bool = False  #: by the turner
    served_us: int = 0
    turns: int = 0


@dataclass(slots=True, eq=False)
class _Gang:
    """What is known of the gang of a partition.

    rows: from the current one on; goal_us: time up to which they are being computed; is_due: the turner must be told. ahead_us: gang time
    minus this machine's boot time, give or take error_us; None if no clock was read yet. It stays valid while the current reference
    clock cannot be read: gang time goes on when the reference changes.
    """

    name: str
    clock: ClockReader
    watch: WatchedZnode[Stamped | None] | None = None
    version: int = -1
    table: Timetable | None = None
    rows: list[SlotRow] = field(default_factory=list)
    goal_us: int = 0
    is_due: bool = False
    ahead_us: int | None = None
    error_us: int = 0
    sent_us: int | None = None  #: `ahead_us` as the turner was last told
    error: str = ""
    endpoint_of: tuple[str, int] = ("", 0)  #: reference whose record was read last, or is being read
    follows: tuple[str, int] = ("", 0)  #: the reference that `clock` asks
    tells_s: float = math.inf  #: when to log that it cannot be read


class Gangs:
    """All parts of gangs on one node. Owned by the node's thread."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._parts: dict[str, _Part] = {}
        self._gangs: dict[str, _Gang] = {}
        self._suspended: set[str] = set()  # parts, even if they have no slot
        self.switches = self.late_switches = 0
        self._told = (0, 0, 0)  # switches, late switches, ns out of turn

    # -- calls of jobs -----------------------------------------------------------------------------------------------------

    def seat(self, placed: Allocation | NodeHold, part: str, info: Info) -> Slot | None:
        """Returns the slot in which the part is stopped until its first turn; None: not yet. Raises: OSError if no slot can be opened."""
        gang = placed.gang
        if any(other.gang != gang for other in self._parts.values()):
            return None  # parts of the node's former partition: two trees would give a core to two jobs
        found = self._gang(gang)
        if found.table is None or found.version < placed.generation or (cores := found.table.cores_of(part)) is None:
            return None  # the record that placed it has not come; an older one may name other cores
        lanes = self._node.lanes
        if not lanes.keep(_OURS, lanes.cores, 0):
            return None  # pulled work must end first
        slot = lanes.seat(part, info, *cores)
        if slot is None:
            return None
        known = self._parts.get(part)
        if known is None or known.slot is not slot:
            if known is not None:
                lanes.runner.turner.drop(part)
            lanes.runner.turner.add(part, slot)
            if part in self._suspended:
                lanes.runner.turner.hold(part, on=True)
            self._parts[part] = _Part(name=part, gang=gang, slot=slot)
            found.is_due = True
        return slot

    def has_begun(self, part: str) -> bool:
        """Returns whether its first turn has come, so that its work may start."""
        found = self._parts.get(part)
        return found is not None and found.has_begun

    def served_us(self, part: str) -> tuple[int, int]:
        """Returns (time for which it had its cores, number of turns)."""
        found = self._parts.get(part)
        return (found.served_us, found.turns) if found is not None else (0, 0)

    def was_killed(self, part: str) -> bool:
        """Returns whether the turner killed it because it went on after its turn."""
        found = self._parts.get(part)
        return found is not None and found.was_killed

    def let_go(self, part: str, for_us: int) -> None:
        """Lets a part run out of turn so that it can end or save its state; for a minute at most."""
        if part in self._parts:
            until_ns = machine.boottime_ns() + min(for_us + 2_000_000, _OUT_OF_TURN_US) * 1000
            self._node.lanes.runner.turner.let_go(part, until_ns)

    def hold(self, part: str, *, on: bool) -> None:
        """Suspends or resumes a part: its turns pass idle meanwhile."""
        (self._suspended.add if on else self._suspended.discard)(part)
        if part in self._parts:
            self._node.lanes.runner.turner.hold(part, on)

    def clock_error_us(self) -> int | None:
        """Returns how far this node's slots may be off from those of others; None if no clock is read."""
        return max((gang.error_us for gang in self._gangs.values() if gang.ahead_us is not None), default=None)

    # -- facts ---------------------------------------------------------------------------------------------------------------

    def take(self, event: TurnEvent) -> None:
        """Takes a report of the turner."""
        match event:
            case PartBegan():
                if (found := self._parts.get(event.part)) is not None:
                    found.has_begun = True
            case PartsServed():
                told = (event.switches, event.late, event.out_of_turn_ns)
                more, late, out_ns = (max(0, now - before) for now, before in zip(told, self._told, strict=True))
                self._told = told
                self.switches, self.late_switches = self.switches + more, self.late_switches + late
                self._shared.metrics.gang_switches.inc(more)
                self._shared.metrics.gang_late.inc(late)
                self._shared.metrics.gang_out_of_turn.inc(out_ns / 1e9)
                self._shared.metrics.gang_clock_error.set((self.clock_error_us() or 0) / 1e6)
                for part, served_ns, turns, _ in event.parts:
                    if (found := self._parts.get(part)) is not None:
                        found.served_us, found.turns = served_ns // 1000, turns
            case PartStubborn():
                why = OVERRAN if event.killed else "it waits in the kernel at the end of its turn: it is stopped when it wakes"
                if event.killed and (found := self._parts.get(event.part)) is not None:
                    found.was_killed = True
                    if (hold := self._node.jobs.holds.get(event.part)) is not None:
                        hold.killed = OVERRAN
                self._node.log.warning("part_stubborn", name=event.part, why=why)
            case TurnerRestarted():
                self._node.log.warning("turner_restarted")

    def reset(self) -> None:
        """Starts all watches again after a new registration."""
        for gang in self._gangs.values():
            gang.version = -1  # the tree may have been restored from an older state
            if gang.watch is not None:
                gang.watch.start()

    def settle(self) -> float:
        """Gives up parts that are over, ends those over their limit, sends rows to the turner. Cost: O(parts), and now and then the rows.

        Returns: when to call again without a new fact (monotonic, s).
        """
        if not self._parts and not self._gangs:
            return math.inf
        lanes, wanted = self._node.lanes, self._held_parts()  # part -> its gang
        heads: dict[str, ClaimedBlock] = {}
        for block in self._node.blocks.values():
            allocation = block.data.allocation
            if allocation is not None and allocation.gang and (block.ready or block.live):
                heads[self.label(block)], wanted[self.label(block)] = block, allocation.gang
        for name, part in list(self._parts.items()):
            if name not in wanted and not lanes.is_used(part.slot):
                del self._parts[name]
                lanes.runner.turner.drop(name)
                lanes.unseat(name)
        self._suspended &= wanted.keys() | self._parts.keys()
        if not self._parts:
            lanes.keep(_OURS, 0, 0)
        for name, block in heads.items():
            limit_us = block.limit_us if block.limit_us >= 0 else block.info.limit_us if block.info is not None else 0
            part_here = self._parts.get(name)
            if part_here is not None and block.live and limit_us and part_here.served_us >= limit_us and not part_here.is_over_limit:
                part_here.is_over_limit = True
                self._node.stop_tasks(block, None, Reason.TIME_LIMIT, block.info.record.grace_us)
        is_ahead = self._send_rows()
        for gone in self._gangs.keys() - {*wanted.values(), *(part.gang for part in self._parts.values())}:
            self._close(self._gangs.pop(gone))
        return machine.monotonic() + (_LOOK_S if is_ahead else _SOON_S) if self._gangs else math.inf

    def _held_parts(self) -> dict[str, str]:
        """Returns the parts here of attempts whose script runs elsewhere, with their gangs."""
        holds = self._node.jobs.holds
        return {hold.name: hold.record.gang for hold in holds if hold.record is not None and hold.record.gang}

    def turn_on(self) -> None:
        """Keeps turns going while the node may not act."""
        if self._parts:
            self._send_rows()

    def label(self, block: ClaimedBlock) -> str:
        """Returns the name of a gang's block as a part, "" for any other block."""
        allocation, key = block.data.allocation, block.key
        return run_label(key.submission, key.first, key.attempt) if allocation is not None and allocation.gang else ""

    def close(self) -> None:
        """Stops reading clocks."""
        for gang in self._gangs.values():
            self._close(gang)
        self._gangs.clear()

    def _close(self, gang: _Gang) -> None:
        gang.clock.close()
        if gang.watch is not None:
            gang.watch.stop()

    # -- record and clock ------------------------------------------------------------------------------------------------------

    def _gang(self, name: str) -> _Gang:
        found = self._gangs.get(name)
        if found is None:
            found = self._gangs[name] = _Gang(name, self._shared.open_clock(lambda: self._shared.post(settle_again)))
            found.watch = WatchedZnode(
                self._shared.coordinator.get,
                paths.gangs(name),
                self._on_record,
                found,
                loop=self._shared,
                aside=self._shared.aside,
                resync_s=SELDOM_S,
            )
            found.watch.start()
        return found

    def _on_record(self, gang: _Gang, found: Stamped | None) -> None:
        if found is None or found.version <= gang.version:
            return
        try:
            record = validity.decode(found.data, GangRecord, paths.gangs(gang.name))
            table = Timetable(record, self._node.name)
        except (RmgrError, ValueError) as error:
            words = error.message if isinstance(error, RmgrError) else str(error)
            if words != gang.error:  # the last readable record stands
                gang.error = words
                self._node.log.error("gang_not_readable", gang=gang.name, version=found.version, error=words)
            return
        if gang.table is None or gang.table.record.origin_us != record.origin_us:  # another tree, with a clock of its own
            gang.rows, gang.ahead_us = [], None
        if gang.table is None or gang.table.record.clock != record.clock:
            gang.tells_s = machine.monotonic() + SILENT_S
        first_us = table.start_us(record.slot)
        gang.rows = [row for row in gang.rows if row.start_us < first_us]
        gang.version, gang.table, gang.error, gang.is_due = found.version, table, "", True
        self._node.log.info("gang_read", gang=gang.name, version=found.version, slot=record.slot, jobs=len(record.attempts))
        self._find_clock(gang)

    def _find_clock(self, gang: _Gang) -> None:
        if gang.table is None or self._gangs.get(gang.name) is not gang:
            return
        clock = gang.table.record.clock
        if clock.node == self._node.name or gang.endpoint_of == (clock.node, clock.incarnation):
            return
        gang.endpoint_of = asked = (clock.node, clock.incarnation)
        self._node.jobs.stories.begin(self._follow(gang, asked))

    def _follow(self, gang: _Gang, asked: tuple[str, int]) -> Story[None]:
        """Reads the clock of a node once its record names the Starter's endpoint."""
        try:
            record: NodeRecord | None = yield from record_of(self._shared.coordinator, asked[0])
        except RmgrError as error:
            self._node.log.warning("gang_clock_not_found", gang=gang.name, target=asked[0], error=error.message)
            record = None
        if gang.endpoint_of != asked or self._gangs.get(gang.name) is not gang:
            return
        if record is not None and record.endpoint:
            gang.clock.follow(*asked, record.endpoint)
            gang.follows = asked
            return
        gang.endpoint_of = ("", 0)
        yield Pause(_LOOK_S)
        self._find_clock(gang)

    def _ahead_us(self, gang: _Gang, clock: GangClock) -> int | None:
        """Returns how far gang time is ahead of this machine's boot clock, by the reference or else as last known."""
        reading = gang.clock.reading if gang.follows == (clock.node, clock.incarnation) else None
        if (clock.node, clock.incarnation) == (self._node.name, self._node.incarnation):
            reading = OWN
        if reading is not None:
            gang.ahead_us, gang.error_us, gang.tells_s = reading.offset_us + clock.offset_us, reading.error_us, math.inf
        elif machine.monotonic() >= gang.tells_s:
            gang.tells_s = math.inf
            what = "its slots are counted as before" if gang.ahead_us is not None else "nothing of it runs here before that"
            self._node.log.warning("gang_clock_not_read", gang=gang.name, target=clock.node, why=what, error=gang.clock.problem)
        return gang.ahead_us

    # -- rows ----------------------------------------------------------------------------------------------------------------

    def _send_rows(self) -> bool:
        """Sends the rows of the node's gang to the turner if they are new. Returns: False if more rows must be computed soon."""
        gang = next((self._gangs[part.gang] for part in self._parts.values()), None)
        if gang is None or gang.table is None or (ahead_us := self._ahead_us(gang, gang.table.record.clock)) is None:
            return True
        is_ahead = self._extend(gang, gang.table, machine.boottime_ns() // 1000 + ahead_us)
        if gang.is_due or gang.sent_us is None or abs(gang.sent_us - ahead_us) > _DRIFT_US:
            gang.sent_us, gang.is_due = ahead_us, False
            rows = [((row.start_us - ahead_us) * 1000, row.parts) for row in _changes(gang.rows)]
            self._node.lanes.runner.turner.rows(tuple(rows))
        return is_ahead

    @staticmethod
    def _extend(gang: _Gang, table: Timetable, now_us: int) -> bool:
        """Extends the rows to the horizon and drops past ones; False if some are still missing."""
        slot_us = table.record.slot_us
        table.skip_to((now_us - table.record.origin_us) // slot_us)
        if table.start_us(table.slot) < now_us + max(_AGAIN_US, (_AHEAD_SLOTS - 1) * slot_us):
            gang.goal_us = now_us + max(AHEAD_US, _AHEAD_SLOTS * slot_us)
        if table.start_us(table.slot) > gang.goal_us:
            return True
        most = table.slot + _AT_ONCE
        while table.slot < most and table.start_us(table.slot) <= gang.goal_us:
            gang.rows.append(table.next())
        over = next((at for at, row in enumerate(gang.rows) if row.start_us > now_us - slot_us), len(gang.rows))
        del gang.rows[: max(0, over - 1)]
        gang.is_due = True
        return table.start_us(table.slot) > gang.goal_us


def _changes(rows: list[SlotRow]) -> Iterator[SlotRow]:
    """Yields the rows that differ from the one before."""
    before: frozenset[str] | None = None
    for row in rows:
        parts = frozenset(row.parts)
        if parts != before:
            yield row
        before = parts
