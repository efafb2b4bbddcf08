"""A node's part in gangs, and room for placed jobs while their records are read: pulled work takes no cores that are about to be theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from rmgr.adapters.host.workevents import PartBegan, PartsServed, PartStubborn
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.execution.gangs import AHEAD_US, Gangs
from rmgr.daemons.starter.execution.holds import HeldParts, Reservations
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.daemons.starter.node.service import StarterMetrics
from rmgr.errors import CoordinationUnavailable
from rmgr.model.base import Capacity
from rmgr.model.block import NodeHold, Reserved, job_id, run_label
from rmgr.model.node import GangClock, GangRecord, NodeRecord, NodeState
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.gang_clock import ClockReading
from rmgr.runtime.story import Stories

QUANTUM_US = 100_000
ONE, TWO = job_id(1, 0), job_id(2, 0)
ONE_PART, TWO_PART = run_label(1, 0, 1), run_label(2, 0, 3)


class Turner:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.held: dict[str, bool] = {}
        self.told: tuple[tuple[int, tuple[str, ...]], ...] = ()
        self.times = 0

    def add(self, part: str, _slot: object) -> None:
        self.parts.append(part)

    def drop(self, part: str) -> None:
        self.parts.remove(part)
        self.held.pop(part, None)

    def hold(self, part: str, on: bool) -> None:
        assert part in self.parts
        self.held[part] = on

    def rows(self, rows: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
        self.told, self.times = rows, self.times + 1


class OneCore:
    """Of one core, with nothing pulled on it."""

    cores = 1

    def __init__(self) -> None:
        self.runner = self
        self.turner = Turner()
        self.kept = 0
        self.is_free = True
        self.slots: dict[str, str] = {}

    def keep(self, _whose: str, cores: int, _memory_mib: int) -> bool:
        self.kept = cores
        return self.is_free

    def seat(self, part: str, _info: object, first: int, cores: int) -> str:
        assert (first, cores) == (0, 1)
        return self.slots.setdefault(part, f"slot of {part}")

    def unseat(self, part: str) -> None:
        assert part

    def is_used(self, _slot: object) -> bool:
        return False


class Clock:
    problem = "nobody answers"

    def __init__(self) -> None:
        self.followed: list[tuple[str, int, str]] = []
        self.reading: ClockReading | None = None

    def follow(self, *target: Any) -> None:
        if self.followed and self.followed[-1][:2] != target[:2]:
            self.reading = None
        self.followed.append(target)

    def close(self) -> None:
        self.followed.clear()


class Holds:
    """The parts that jobs with another head have on this node."""

    def __init__(self, here: Here) -> None:
        self.here = here

    def __iter__(self) -> Iterator[Any]:
        return iter([SimpleNamespace(name=name, record=SimpleNamespace(gang=gang)) for name, gang in self.here.held])

    def get(self, name: str) -> Any:
        self.here.killed.append(name)
        return SimpleNamespace()


class Here:
    """Node n2 of a partition of two, where everything is told by hand; n1 has the clock, which is a thousand seconds ahead."""

    def __init__(self) -> None:
        self.name, self.incarnation, self.blocks, self.lanes = "n2", 1, {}, OneCore()
        self.coordinator = self
        #: Slot 0 began a second ago, by the clock of n1 and what the record adds to it.
        self.origin_us = machine.boottime_ns() // 1000 + 1_000_000_000 + 5 - 1_000_000
        self.clock = Clock()
        self.znodes: dict[str, Stamped] = {}
        self.watches: list[Callable[[], None]] = []
        self.held: list[tuple[str, str]] = []
        self.settled = 0
        self.killed: list[str] = []
        self.log = Mock()
        self.shared = self.jobs = self
        self.stories = Stories(self)
        self.aside = Aside(self.log, lambda: None)
        self.holds = Holds(self)
        self.metrics = StarterMetrics()
        self.gangs = Gangs(self,)
        self.register("n1", 4, "h:1")

    def register(self, name: str, incarnation: int, endpoint: str) -> None:
        capacity = Capacity(cores=1, memory_bytes=1)
        node = NodeRecord(node=name, incarnation=incarnation, state=NodeState.UP, guid="g", capacity=capacity, endpoint=endpoint)
        self.znodes[paths.node(name)] = Stamped(encode_record(node), Stat(0, 0, 0, 0, 0, 0, 0))

    def get(self, path: str, watch: Callable[[], None] | None = None, **_: Any) -> Future[Stamped | None]:
        future: Future[Stamped | None] = Future()
        future.set_result(self.znodes.get(path))
        if watch is not None:
            self.watches.append(watch)
        return future

    def post(self, call: Callable[[], None]) -> None:
        call()

    def after(self, _delay_s: float, _call: Callable[[], None]) -> Any:
        return Mock()  # which never comes about

    def open_clock(self, _told: object) -> Clock:
        return self.clock

    def publish(self, data: bytes, version: int, partition: str = "default") -> None:
        self.znodes[paths.gangs(partition)] = Stamped(data, Stat(version, 0, 0, 0, 0, 0, 0))
        watches, self.watches = self.watches, []
        for watch in watches:
            watch()

    def take(self, *parts: str, partition: str = "default", generation: int = 0) -> None:
        self.held = [one for one in self.held if one[1] != partition] + [(part, partition) for part in parts]
        for part in parts:
            placed = NodeHold(head="n1", key="k", cores=1, gang=partition, generation=generation)
            self.gangs.seat(placed, part, None)
        self.settle()

    def settle(self) -> None:
        """Turns of the node, as many as it asks for at once."""
        self.settled += 1
        while self.gangs.settle() < machine.monotonic() + 0.5:
            self.settled += 1

    def rows(self) -> list[tuple[int, tuple[str, ...]]]:
        """(slot of the record, parts), as the turner was told."""
        offset_us = 1_000_000_000 + 5
        return [((start // 1000 + offset_us - self.origin_us) // QUANTUM_US, parts) for start, parts in self.lanes.turner.told]


def record(
    here: Here, slot: int, queue: tuple[int, ...] = (ONE, TWO), incarnation: int = 4, clock: str = "n1", offset_us: int = 5
) -> bytes:
    """One queue at the root of a tree of two leaves."""
    made = GangRecord(
        policy="dqt", slot_us=QUANTUM_US, origin_us=here.origin_us, slot=slot, width=2, leaves=(("n1", 1), ("n2", 1)),
        clock=GangClock(node=clock, incarnation=incarnation, offset_us=offset_us), queues=((0, tuple((job, 1) for job in queue)),),
        attempts=tuple((job, {ONE: 1, TWO: 3}[job], 0) for job in queue),
    )
    return encode_record(made)


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def turning(here: Here) -> None:
    """Both parts have their turns, in slots from 12 on."""
    here.publish(record(here, 12), 0)
    here.clock.reading = ClockReading(1_000_000_000, 40, 0)
    here.take(ONE_PART, TWO_PART)


@pytest.mark.usefixtures("turning")
def test_rows_are_those_of_the_record_in_the_time_of_this_machine(here: Here) -> None:
    assert here.clock.followed == [("n1", 4, "h:1")]
    assert here.lanes.turner.parts == [ONE_PART, TWO_PART]
    assert here.settled > 3, "no turn of the node takes long"
    found = here.rows()
    assert found[:3] == [(12, (ONE_PART,)), (13, (TWO_PART,)), (14, (ONE_PART,))]
    assert found[-1][0] * QUANTUM_US >= AHEAD_US, "the turner goes on while its Starter stands still"
    assert here.gangs.clock_error_us() == 40


def test_a_part_is_not_seated_before_its_record_is_there_or_while_pulled_work_ends(here: Here) -> None:
    here.take(ONE_PART)
    assert here.lanes.turner.parts == []
    here.publish(record(here, 12), 0)
    here.lanes.is_free = False
    here.take(ONE_PART)
    assert here.lanes.turner.parts == []
    here.lanes.is_free = True
    here.take(ONE_PART)
    assert here.lanes.turner.parts == [ONE_PART]
    assert here.lanes.turner.told == (), "without a clock nobody knows when its turn is"
    here.clock.reading = ClockReading(1_000_000_000, 40, 0)
    here.settle()
    assert here.rows()[0] == (12, (ONE_PART,))
    assert not here.gangs.has_begun(ONE_PART)
    here.gangs.take(PartBegan(ONE_PART))
    assert here.gangs.has_begun(ONE_PART)


def test_a_part_waits_for_the_generation_that_has_placed_it(here: Here) -> None:
    here.publish(record(here, 12), 3)
    here.clock.reading = ClockReading(1_000_000_000, 40, 0)
    here.take(ONE_PART, generation=4)
    assert here.lanes.turner.parts == [], "the one that is here may have it on other cores"
    here.publish(record(here, 14), 5)
    here.take(ONE_PART, generation=4)
    assert here.lanes.turner.parts == [ONE_PART]


@pytest.mark.usefixtures("turning")
def test_a_generation_holds_from_its_first_slot_on(here: Here) -> None:
    here.publish(record(here, 30, (TWO,)), 1)
    here.settle()
    found = here.rows()
    assert [row for row in found if row[0] < 30] == [(at, (ONE_PART if at % 2 == 0 else TWO_PART,)) for at in range(12, 30)][: len(found)]
    assert found[-1] == (29, (TWO_PART,)), "from then on nothing changes"


@pytest.mark.usefixtures("turning")
def test_what_cannot_be_read_leaves_the_last_record_in_force(here: Here) -> None:
    before, times = here.lanes.turner.told, here.lanes.turner.times
    here.publish(b"{", 1)
    here.publish(record(here, 30, (TWO,))[:-9], 2)
    here.settle()
    assert (here.lanes.turner.told, here.lanes.turner.times) == (before, times)
    here.publish(record(here, 30, (TWO,)), 3)
    here.settle()
    assert here.rows()[-1] == (29, (TWO_PART,))


def test_another_reference_is_followed_and_a_small_drift_is_not_told(here: Here) -> None:
    here.publish(record(here, 12), 0)
    here.clock.reading = ClockReading(1_000_000_000, 40, 0)
    here.take(ONE_PART)
    times = here.lanes.turner.times
    here.clock.reading = ClockReading(1_000_000_100, 40, 0)
    here.settle()
    assert here.lanes.turner.times == times
    here.clock.reading = ClockReading(1_000_002_000, 40, 0)
    here.settle()
    assert here.lanes.turner.times == times + 1
    here.publish(record(here, 14, incarnation=5), 1)
    assert here.clock.followed[-1] == ("n1", 5, "h:1")


@pytest.mark.usefixtures("turning")
def test_slots_are_counted_as_before_until_another_reference_has_been_read(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.publish(record(here, 30, (TWO,), clock="n3", offset_us=777_000_000), 1)  # nobody knows yet where n3 is
    here.settle()
    assert here.rows()[-1] == (29, (TWO_PART,)), "the next generation holds, in the time that was known"
    here.register("n3", 4, "h:3")
    monkeypatch.setattr("rmgr.daemons.starter.execution.gangs.SILENT_S", 0.0)
    here.publish(record(here, 40, (ONE,), clock="n3", offset_us=777_000_001), 2)
    assert here.clock.followed[-1] == ("n3", 4, "h:3")
    for _ in range(2):
        here.settle()
    assert here.rows()[-1][1] == (ONE_PART,)
    assert here.gangs.clock_error_us() == 40
    (told,) = [call.kwargs for call in here.log.warning.call_args_list if call.args == ("gang_clock_not_read",)]
    assert (told["target"], told["error"]) == ("n3", "nobody answers")
    times = here.lanes.turner.times
    here.clock.reading = ClockReading(223_000_004, 90, 0)
    here.settle()
    assert here.gangs.clock_error_us() == 90
    assert here.lanes.turner.times == times, "it is as far ahead as it was"


def test_the_gang_of_one_partition_has_the_node_until_its_last_part_has_left(here: Here) -> None:
    here.publish(record(here, 12, (ONE,)), 0)
    here.publish(record(here, 12, (TWO,)), 0, "other")
    here.clock.reading = ClockReading(1_000_000_000, 40, 0)
    here.take(ONE_PART)
    here.take(TWO_PART, partition="other")
    assert here.lanes.turner.parts == [ONE_PART]
    assert {parts for _, parts in here.rows()} == {(ONE_PART,)}
    here.take()
    assert here.lanes.turner.parts == []
    here.take(TWO_PART, partition="other")
    assert here.lanes.turner.parts == [TWO_PART]
    assert {parts for _, parts in here.rows()} == {(TWO_PART,)}


def test_a_part_that_gets_another_slot_stays_suspended_until_it_is_resumed(here: Here) -> None:
    here.publish(record(here, 12), 0)
    here.take(ONE_PART)
    here.gangs.hold(ONE_PART, on=True)
    here.lanes.slots[ONE_PART] = "another slot, for the first one was lost"
    here.take(ONE_PART)
    assert here.lanes.turner.held == {ONE_PART: True}
    here.gangs.hold(ONE_PART, on=False)
    here.lanes.slots[ONE_PART] = "a third one"
    here.take(ONE_PART)
    assert here.lanes.turner.held == {}
    here.held = [(TWO_PART, "default")]
    here.settle()
    here.gangs.hold(TWO_PART, on=True)
    here.take(TWO_PART)
    assert here.lanes.turner.held == {TWO_PART: True}, "also when it is suspended before it has a slot"


def test_who_was_killed_by_the_turner_is_known_and_who_sleeps_is_another(here: Here) -> None:
    here.publish(record(here, 12), 0)
    here.take(ONE_PART, TWO_PART)
    here.gangs.take(PartStubborn(ONE_PART, killed=True))
    here.gangs.take(PartStubborn(TWO_PART, killed=False))
    assert (here.gangs.was_killed(ONE_PART), here.gangs.was_killed(TWO_PART)) == (True, False)
    assert here.killed == [ONE_PART]


@pytest.mark.usefixtures("turning")
def test_what_is_over_leaves_and_gives_the_cores_back(here: Here) -> None:
    here.gangs.take(PartsServed(((ONE_PART, 7_000_000_000, 9, False),), 20, 1, 0))
    assert here.gangs.served_us(ONE_PART) == (7_000_000, 9)
    here.held = [(TWO_PART, "default")]
    here.settle()
    assert here.lanes.turner.parts == [TWO_PART]
    assert here.lanes.kept == 1
    here.held = []
    here.settle()
    assert here.lanes.turner.parts == []
    assert here.lanes.kept == 0
    assert here.clock.followed == [], "nobody asks for the time any more"


CORES = 4
HOLD = "13.0.1"
PROMISE = "r-13.0"
HELD = NodeHold(head="n1", key="k", cores=1)


class Reads:
    """The coordinator and the mailbox: what is asked for is answered when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Future[Stamped | None]]] = {}
        self.records: Any = None

    @property
    def coordinator(self) -> Reads:
        return self

    def get(self, path: str) -> Future[Stamped | None]:
        self.asked.setdefault(path.rpartition("/")[2], []).append(Future())
        return self.asked[path.rpartition("/")[2]][-1]

    def answer(self, name: str, record: object) -> None:
        (asked,) = self.asked.pop(name)
        stat: Any = None
        asked.set_result(Stamped(encode_record(record), stat))

    def post(self, what: Any) -> None:
        what()

    def after(self, _delay_s: float, _what: Any) -> None:
        return


class Node:
    """A node with all its cores in use, by what the test says."""

    def __init__(self) -> None:
        runner: Any = None
        self.name, self.incarnation = "n2", 1
        self.blocks: dict[Any, Any] = {}
        self.orders = SimpleNamespace(is_settled=True)
        self.lanes = Lanes(runner, cores=CORES, memory_mib=1000, early=False)
        self.reads = Reads()
        self.taking: set[int] = set()
        self.refused: set[int] = set()
        self.reads.records = SimpleNamespace(get=lambda _job: None, is_refused=lambda job: job in self.refused)
        self.shared, self.accounts, self.log = self.reads, None, structlog.get_logger()
        self.stories = Stories(self.reads)
        me: Any = self
        self.jobs = me  # none of its jobs takes turns
        self.reservations = Reservations(me)
        self.holds = HeldParts(me, Path())

    def is_taking(self, submission: int) -> bool:
        return submission in self.taking

    def runs(self, cores: int) -> None:
        """So many cores are in use."""
        self.lanes.keep("in use", cores, 0)

    def turn(self, *holds: str) -> None:
        """holds: names that have come since the last one."""
        for name in holds:
            self.holds.seen([name])
        self.reservations.settle()
        self.holds.settle()

    @property
    def may_pull(self) -> bool:
        """A pulled task would begin now, if it needs one core."""
        lanes = self.lanes
        return not (lanes.is_owed or lanes.is_unsure) and lanes.fits(1, 0)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_hold_whose_record_came_while_more_was_asked_for_keeps_pulled_work_out(node: Node) -> None:
    node.turn(HOLD)
    node.turn()  # for another reason, while its record is on its way
    node.reads.answer(HOLD, HELD)
    node.turn()
    assert not node.may_pull
    assert not node.reads.asked, "a record that has come is not asked for again"


def test_a_hold_that_is_read_again_keeps_pulled_work_out(node: Node) -> None:
    node.turn(HOLD)
    node.reads.answer(HOLD, HELD)
    node.holds.seen([HOLD])
    node.holds.seen([HOLD])  # and changes once more
    for _ in range(3):
        node.turn()
        assert not node.may_pull
    (asked,) = node.reads.asked.pop(HOLD)
    asked.set_exception(CoordinationUnavailable("away"))
    node.turn()
    assert not node.may_pull, "what it was before is known"


def test_a_hold_that_cannot_be_taken_for_a_moment_keeps_pulled_work_out(node: Node) -> None:
    node.turn(HOLD)
    node.reads.answer(HOLD, HELD)
    node.turn()
    assert not node.may_pull
    (hold,) = node.holds
    hold.again_s = float("inf")  # as after a program that could not be started
    node.turn()
    assert not node.may_pull


@pytest.mark.parametrize("is_head", [True, False])
def test_what_ends_after_its_waiting_job_was_placed_is_kept_for_it(node: Node, is_head: bool) -> None:
    ending = "12.0.1"
    node.runs(CORES)
    node.holds.known[ending] = SimpleNamespace(record=HELD, is_ready=True, is_too_large=False, is_stale=False)
    node.reservations.seen([PROMISE])
    node.turn()
    node.reads.answer(PROMISE, Reserved(shares=((ending, 3),)))
    node.turn()
    # Its commit lets the job start: the promise is gone, what ends has not given up its cores yet.
    del node.holds.known[ending]
    if is_head:
        node.taking.add(13)
    node.reservations.seen([])
    if not is_head:
        node.turn(HOLD)
    node.runs(CORES - 3)
    node.turn()
    assert not node.may_pull
    node.taking.clear()
    node.holds.known.clear()
    node.turn()
    assert node.may_pull, "who is not placed here after all keeps nothing"
    assert node.lanes.free_cores == 3


def test_a_promise_that_left_before_it_was_read_keeps_pulled_work_out_until_its_job_is_known(node: Node) -> None:
    node.reservations.seen([PROMISE])
    node.turn()
    node.taking.add(13)
    node.reservations.seen([])
    node.turn()
    assert not node.may_pull
    node.taking.clear()
    node.turn()
    assert node.may_pull
