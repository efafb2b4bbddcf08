"""The leader's part in gangs: their records in ZooKeeper, and the clock that counts their slots.

Nodes turn without a leader. The leader only adds the next generation of the record, by which jobs come and go, and another reference for
the clock when its Starter is gone. Gang time continues across a change of reference: from the leader's own estimate, or (for a leader
that has none) from the time when the record was written plus the time since. The record names nodes, because node numbers are valid in
one leader only, and jobs with their attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_GANGS_BYTES, Stamped
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.facts import Names, natural
from rmgr.errors import LimitReached, RmgrError
from rmgr.model.node import LEAD_US, MOST_LEAVES, GangClock, GangRecord, NodeRecord, NodeState
from rmgr.model.units import counted, spanned
from rmgr.model.views import GangSummary
from rmgr.runtime import machine
from rmgr.runtime.gang_clock import ClockReader
from rmgr.sched.capacity.gangs import Carousel, numbered
from rmgr.sched.job import Node, Running, each_node, nodes_of
from rmgr.sched.policy import Cause
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: Smaller differences of clocks are not logged: they would fill the log.
_NEAR_US = 1_000
#: Makes a reader of a Starter's clock; its argument is called when there is a reading.
OpenClock = Callable[[Callable[[], None]], ClockReader]
#: Upper estimates in bytes: one job in a record (queue entry and attempt), the share of one leaf in the front, and the rest.
_JOB, _LEAF, _REST = 80, 40, 2048


@dataclass(slots=True, eq=False)
class _PartitionClock:
    """State of one partition. data, version: of its znode, None if absent. written_us: wall clock. clock: of the next generation.

    reader: reads that clock. next: reads the clock of its successor while the old Starter is gone. is_due: the record must be written
    again, because only its clock changed.
    """

    data: bytes = b""
    version: int | None = None
    written_us: int = 0
    record: GangRecord | None = None
    clock: GangClock | None = None
    reader: ClockReader | None = None
    next: ClockReader | None = None
    is_due: bool = False


class GangKeeper:
    """All gangs of one leadership. In its loop."""

    def __init__(self, placer: Placer, open_clock: OpenClock) -> None:
        self._placer = placer
        self._names = placer.names
        self._served = placer.served
        self._nodes = placer.known_nodes.records
        self._log = placer.term.log
        self._open_clock = open_clock
        self._kept: dict[str, _PartitionClock] = {}
        self._unreadable: set[tuple[str, int]] = set()
        self._rounds: dict[str, tuple[list[Gang], int]] = {}  # partition -> its gangs, their longest round in slots

    def close(self) -> None:
        """Closes all readers: the leadership is over."""
        for kept in self._kept.values():
            for reader in (kept.reader, kept.next):
                if reader is not None:
                    reader.close()
        self._kept.clear()

    # -- records -----------------------------------------------------------------------------------------------------------

    def adopt(self, found: Mapping[str, Stamped | None]) -> dict[str, Gang]:
        """Takes over the records that were read. Returns gangs by partition; an unreadable record is logged once, and left out."""
        gangs = {}
        for partition, stamped in found.items():
            kept = self._kept.setdefault(partition, _PartitionClock())
            kept.data, kept.version, kept.record = (b"", None, None) if stamped is None else (stamped.data, stamped.version, None)
            if stamped is None:
                continue
            kept.written_us = stamped.stat.mtime_ms * 1000
            try:
                kept.record = record = validity.decode(stamped.data, GangRecord, paths.gangs(partition))
            except (RmgrError, msgspec.DecodeError) as error:
                if (partition, stamped.version) not in self._unreadable:
                    self._unreadable.add((partition, stamped.version))
                    self._log.error("gang_not_readable", partition=partition, version=stamped.version, error=str(error))
                continue
            if kept.clock is None:
                kept.clock = record.clock
            kept.is_due = kept.clock != record.clock  # the commit of the new clock was refused
            gangs[partition] = gang_of(record, partition, self._names)
        return gangs

    def look_over(self, state: ClusterState) -> None:
        """Marks records that lack a member for rewriting, after a rebuild: the member would stand still."""
        for partition, kept in self._kept.items():
            part = state.partitions.get(partition)
            if part is not None and kept.record is not None and not part.gangs.of.keys() <= self.members(partition).keys():
                kept.is_due = True

    def members(self, partition: str) -> dict[int, int]:
        """Returns job -> attempt, from the record."""
        kept = self._kept.get(partition)
        return {job: attempt for job, attempt, _ in kept.record.attempts} if kept is not None and kept.record is not None else {}

    def encoded(self, partition: str, gang: Gang, attempts: Mapping[int, int]) -> tuple[str, bytes, int | None]:
        """Returns the record to write, and the version that it replaces (None for the first); assumes that it will be committed.

        Raises: LimitReached if it is too large; RuntimeError without a clock.
        """
        kept = self._kept.setdefault(partition, _PartitionClock())
        if kept.clock is None:
            raise RuntimeError(f"the gang of partition {partition} has no clock")
        data = encode_gang(gang, self._names, attempts, kept.clock, kept.record, self.gang_now_us(partition))
        if len(data) > MAX_GANGS_BYTES:
            raise LimitReached(f"the record of the gang of partition {partition} has {len(data)} bytes, at most {MAX_GANGS_BYTES} are read")
        before, kept.version = kept.version, self.next_generation(partition)
        kept.data, kept.written_us, kept.is_due = data, self._placer.term.wall_us(), False
        kept.record = validity.decode(data, GangRecord, paths.gangs(partition))
        return partition, data, before

    def generation(self, partition: str) -> int | None:
        """Returns the version of the record."""
        kept = self._kept.get(partition)
        return kept.version if kept is not None else None

    def next_generation(self, partition: str) -> int:
        """Returns the version that the next record will have."""
        version = self.generation(partition)
        return 0 if version is None else version + 1

    # -- views -----------------------------------------------------------------------------------------------------------------

    def turns(self) -> dict[int, MemberTurn]:
        """Returns for every member whether it has the current slot, and its share of the slots."""
        found: dict[int, MemberTurn] = {}
        for name, part in self._placer.partitions.items():
            for gang in part.gangs:
                there = {job: run for job, run in {**part.stopping, **part.running}.items() if part.gangs.of.get(job) == gang.name}
                turns, served = turns_of(gang, there, self.gang_now_us(name), self._names), self._served_us(name)
                found |= {job: turn._replace(served_us=served.get(job, 0)) for job, turn in turns.items()}
        return found

    def _served_us(self, partition: str) -> dict[int, int]:
        """Returns how long jobs have had their cores, from the record."""
        kept, now_us = self._kept.get(partition), self.gang_now_us(partition)
        if kept is None or kept.record is None or now_us is None:
            return {}
        record = kept.record
        slot = max(record.slot, (now_us - record.origin_us) // record.slot_us)
        return {job: slots * record.slot_us for (job, _), slots in served_until(record, slot).items()}

    def summary(self) -> dict[str, GangSummary]:
        """Returns a summary by partition, for partitions that have a gang."""
        found = {}
        for name, part in self._placer.partitions.items():
            kept, gangs = self._kept.get(name), list(part.gangs)
            if gangs and kept is not None and kept.version is not None:
                if self._rounds.get(name, ([], 0))[0] != gangs:
                    self._rounds[name] = gangs, max(Carousel(gang).rotation.rounds[0] for gang in gangs)
                reading = kept.reader.reading if kept.reader is not None else None
                node, error_us = (kept.clock.node, reading.error_us) if kept.clock is not None and reading is not None else ("", 0)
                most, jobs = self._rounds[name][1], len(part.gangs.of)
                found[name] = GangSummary(generation=kept.version, jobs=jobs, max_tqlb=most, reference=node, error_us=error_us)
        return found

    # -- nodes ---------------------------------------------------------------------------------------------------------------

    def is_unfit(self, name: str) -> bool:
        """Whether the node cannot stop work between slots although its partition shares nodes in time."""
        record = self._nodes.get(name)
        return record is not None and not record.freezer and record.attributes.partition in self._sharing()

    def _sharing(self) -> set[str]:
        stages = self._served.every
        return {name for stage in stages if getattr(stage.policy, "shares_time", False) for name in stage.partitions}

    # -- the clock -------------------------------------------------------------------------------------------------------------

    def tell(self, state: ClusterState) -> None:
        """Before a pass, tells the state how far gang time is ahead of the pass's time, in partitions that have a gang or may get one."""
        updates = self._placer.updates
        now_us = updates.now_us()
        sharing = self._sharing()
        for partition in sorted(sharing | {name for name, part in state.partitions.items() if part.gangs.by_name}):
            part = state.partitions.get(partition)
            if part is None:
                continue
            shift_us, why = self._shift_us(partition, now_us, is_used=bool(part.gangs.by_name))
            cores = sum(node.cores for node in part.nodes.values())
            if cores > MOST_LEAVES and partition in sharing:
                how = "rmgr starter --partition NAME gives some nodes a tree of their own"
                shift_us, why = None, f"partition {partition} has {counted(cores, 'core')}, and at most {MOST_LEAVES:,} are shared: {how}"
            most = max(1, most_members(part.nodes, self._names))
            before_us = part.gang_shift_us
            if before_us is not None and shift_us is not None and abs(shift_us - before_us) < _NEAR_US:
                shift_us = before_us
            if (before_us, part.gang_why, part.gang_most) != (shift_us, why, most):
                updates.tell(state, "gang_time", partition, shift_us, why, most)

    def due(self, state: ClusterState) -> list[str]:
        """Returns the partitions whose record must be written again because another node has the clock."""
        there = {name for name, part in state.partitions.items() if part.gangs.by_name}
        return [name for name, kept in self._kept.items() if kept.is_due and name in there and self.gang_now_us(name) is not None]

    def gang_now_us(self, partition: str) -> int | None:
        """Returns the gang's current time, None if it cannot be read."""
        kept = self._kept.get(partition)
        if kept is None or kept.clock is None or kept.reader is None or (reading := kept.reader.reading) is None:
            return None
        return machine.boottime_ns() // 1000 + reading.offset_us + kept.clock.offset_us

    def _shift_us(self, partition: str, now_us: int, *, is_used: bool) -> tuple[int | None, str]:
        kept = self._kept.setdefault(partition, _PartitionClock())
        clock = kept.clock
        if clock is None or not self._is_up(clock):
            if is_used and clock is not None:
                self._hand_over(partition, kept, clock)
            else:
                self._choose(partition, kept)
        elif is_used or kept.reader is not None:
            self._follow(kept, clock)
        else:
            self._choose(partition, kept)
        if kept.clock is None:
            how = f'rmgr nodes -o +freezer; [starter] freezer = "auto" there, or rmgr policy set easy --partition {partition}'
            return None, f"no node of partition {partition} is up that can stop work between slots: {how}"
        gang_us = self.gang_now_us(partition)
        if gang_us is None:
            problem = kept.reader.problem if kept.reader is not None else ""
            return None, f"the clock of node {kept.clock.node}, by which slots are counted, cannot be read: {problem}"
        return gang_us - now_us + LEAD_US, ""

    def _choose(self, partition: str, kept: _PartitionClock) -> None:
        """Gives the clock to the first node that is up; no slots are being counted there."""
        node = self._first_node(partition)
        kept.clock = None if node is None else GangClock(node=node.node, incarnation=node.incarnation, offset_us=0)
        if kept.clock is not None:
            self._follow(kept, kept.clock)

    def _hand_over(self, partition: str, kept: _PartitionClock, old: GangClock) -> None:
        """Gives the clock to another node, because the Starter of the reference is gone; gang time continues."""
        node = self._first_node(partition)
        if node is None:
            return
        if kept.next is None:
            kept.next = self._open_clock(self._on_clock)
        kept.next.follow(node.node, node.incarnation, node.endpoint)
        reading = kept.next.reading
        if reading is None:
            return
        gang_us = self.gang_now_us(partition)
        if gang_us is None and kept.record is not None:
            record = kept.record
            least_us = record.origin_us + (record.slot - 1) * record.slot_us - LEAD_US
            gang_us = max(record.set_us, least_us) + max(0, self._placer.term.wall_us() - kept.written_us)
        if gang_us is None:
            return
        offset_us = gang_us - machine.boottime_ns() // 1000 - reading.offset_us
        if kept.reader is not None:
            kept.reader.close()
        kept.reader, kept.next = kept.next, None
        kept.clock = GangClock(node=node.node, incarnation=node.incarnation, offset_us=offset_us)
        kept.is_due = True
        self._log.info("gang_clock_moved", partition=partition, before=old.node, target=node.node)

    def _follow(self, kept: _PartitionClock, clock: GangClock) -> None:
        if kept.reader is None:
            kept.reader = self._open_clock(self._on_clock)
        kept.reader.follow(clock.node, clock.incarnation, self._nodes[clock.node].endpoint)

    def _on_clock(self) -> None:
        """Wakes the placer from the reader's thread: a clock can be read now."""
        self._placer.term.soon(lambda: self._placer.look_again(Cause.NODES_CHANGED))

    def _is_up(self, clock: GangClock) -> bool:
        record = self._nodes.get(clock.node)
        return record is not None and record.state is NodeState.UP and record.incarnation == clock.incarnation

    def _first_node(self, partition: str) -> NodeRecord | None:
        there = [one for one in self._nodes.values() if one.attributes.partition == partition and one.freezer and one.endpoint]
        up = [one for one in there if one.state is NodeState.UP]
        return min(up, key=lambda one: natural(one.node), default=None)


def encode_gang(
    gang: Gang, names: Names, attempts: Mapping[int, int], clock: GangClock, before: GangRecord | None, set_us: int | None = None
) -> bytes:
    """Encodes a record. attempts: of its jobs; a job without an attempt has empty slots. before: the record that this one replaces.

    set_us: current gang time, None if unknown.
    """
    served = served_until(before, gang.slot) if before is not None and before.origin_us == gang.origin_us else {}
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
            memory_share=gang.memory_share,
            attempts=tuple((job, attempts[job], served.get((job, attempts[job]), 0)) for job in gang.jobs if job in attempts),
            set_us=set_us or 0,
        )
    )


def served_until(record: GangRecord, slot: int) -> dict[tuple[int, int], int]:
    """Returns (job, attempt) -> slots served before `slot`, as every reader of the record computes it."""
    carousel = Carousel(numbered(record))
    carousel.advance_to(slot)
    given = carousel.given()
    return {(job, attempt): served + given.get(job, 0) for job, attempt, served in record.attempts}


def gang_of(record: GangRecord, partition: str, names: Names) -> Gang:
    """Returns the scheduler's gang, with this leader's numbers of its nodes."""
    leaves = tuple((names.id(node), names.id(node), cores) for node, cores in record.leaves)
    return numbered(record)._replace(leaves=leaves, policy=record.policy, partition=partition)


class MemberTurn(NamedTuple):
    """Turn of one member. runs: it has the current slot, or that slot is unknown. told: its share of its nodes, in words; slots: as 1/4.

    served_us: how long it has had its cores.
    """

    runs: bool
    told: str
    slots: str = ""
    served_us: int = 0


def turns_of(gang: Gang, members: Mapping[int, Running], now_us: int | None, names: Names) -> dict[int, MemberTurn]:
    """Returns the turn of each member, by job. now_us: gang time, None if unknown. Cost: O(nodes of the tree + nodes of members)."""
    carousel = Carousel(gang)
    rotation, tree = carousel.rotation, carousel.tree
    share = [1.0] * tree.nodes  # share of all slots that serve a tree node or one below it
    for node in range(tree.nodes):
        round_, own = rotation.rounds[node], len(rotation.queues[node].entries)
        for child in tree.children(node):
            share[child] = share[node] * (round_ - own) / round_ if round_ else 0.0
    slot = -1 if now_us is None else (now_us - gang.origin_us) // gang.slot_us
    served: set[int] | None = None
    rounds = list(rotation.rounds)
    if slot >= gang.slot:
        carousel.advance_to(slot)
        served = {job for _, job in rotation.row()}
    beside: dict[int, set[int]] = {}
    for job, run in members.items():
        for at in nodes_of(run.placement):
            beside.setdefault(at, set()).add(job)
    found = {}
    for job, run in members.items():
        if job not in carousel:
            continue
        node, weight = carousel.node_of(job), carousel.weights[job]
        slowdown = rounds[node] / (weight * share[node]) if share[node] and rounds[node] else float(rounds[0])
        there = sorted(nodes_of(run.placement))
        where = spanned([names.name(at) for at in there])
        others = len(set().union(*(beside[at] for at in there))) - 1
        slots = f"{weight} {'slot' if weight == 1 else 'slots'} of {slowdown * weight:.3g}"
        beside_it = f"{where} with {others} {'other' if others == 1 else 'others'}"
        message = f"{beside_it}: {slots}, slowdown {slowdown:.1f} (at most {rounds[0] / weight:.3g})"
        found[job] = MemberTurn(served is None or job in served, message, f"{weight}/{slowdown * weight:.3g}")
    return found


def most_members(nodes: Mapping[int, Node], names: Names) -> int:
    """Returns how many jobs surely fit into the record of a gang on these nodes, for any tree."""
    leaves = sum(len(names.name(node.id).encode()) + 16 + _LEAF * node.cores for node in nodes.values())
    return max(0, (MAX_GANGS_BYTES - _REST - leaves) // _JOB)
