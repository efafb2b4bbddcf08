"""Room for placed jobs while their records are read: pulled work may not take cores that are about to be theirs."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.execution.holds import HeldParts, Reservations
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.errors import CoordinationUnavailable
from rmgr.model.tasks.block import NodeHold, Reserved
from rmgr.runtime.story import Stories

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

    def turn(self) -> None:
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
    node.holds.seen([HOLD])
    node.turn()
    node.turn()  # for another reason, while its record is on its way
    node.reads.answer(HOLD, HELD)
    node.turn()
    assert not node.may_pull
    assert not node.reads.asked, "a record that has come is not asked for again"


def test_a_hold_that_is_read_again_keeps_pulled_work_out(node: Node) -> None:
    node.holds.seen([HOLD])
    node.turn()
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
    node.holds.seen([HOLD])
    node.turn()
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
    node.holds._holds[ending] = SimpleNamespace(record=HELD, is_ready=True, is_too_large=False, is_stale=False)  # type: ignore[assignment]
    node.reservations.seen([PROMISE])
    node.turn()
    node.reads.answer(PROMISE, Reserved(shares=((ending, 3),)))
    node.turn()
    # Its commit lets the job start: the promise is gone, what ends has not given up its cores yet.
    del node.holds._holds[ending]
    if is_head:
        node.taking.add(13)
    node.reservations.seen([])
    if not is_head:
        node.holds.seen([HOLD])
    node.turn()
    node.runs(CORES - 3)
    node.turn()
    assert not node.may_pull
    node.taking.clear()
    node.holds._holds.clear()
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
