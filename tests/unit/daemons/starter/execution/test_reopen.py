"""After a slot was lost: the node is to blame only if no other slot of that user can be opened."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.daemons.starter.execution.lanes import Reopening
from rmgr.daemons.starter.node.trouble import OUT_S, OWN, Strikes

ANNA = Account(name="anna", uid=2000, gid=2000, home="/home/anna", groups=(2000,), shell="/bin/sh")


class Slot:
    """Killed: it is reported lost as soon as somebody asks."""

    def __init__(self, account: Account | None) -> None:
        self.number, self.account, self.is_up, self.killed, self.woken = 3, account, False, False, 0

    def kill(self) -> None:
        self.killed = True

    def wake(self) -> None:
        self.woken += 1


class Lanes:
    def __init__(self) -> None:
        self.unproven: set[Account | None] = set()
        self.opened: list[Slot] = []
        self.is_broken = False
        self.well: set[Account | None] = set()  #: who has another slot that is up

    def slots(self) -> list[Slot]:
        return self.opened

    def is_his_own_doing(self, slot: Slot) -> bool:
        return slot.account in self.well

    def open_idle(self, number: int, account: Account | None) -> Slot:
        assert number == 3
        if self.is_broken:
            raise OSError("no memory")
        self.opened.append(Slot(account))
        return self.opened[-1]


@pytest.fixture
def lanes() -> Lanes:
    return Lanes()


@pytest.fixture
def strikes() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def reopening(lanes: Lanes, strikes: list[tuple[str, str]]) -> Reopening:
    return Reopening(lanes, lambda what, why, _account: strikes.append((what, why)))  # type: ignore[arg-type]


def test_slots_that_die_again_and_again_are_no_strike_while_new_ones_come_up(reopening: Any, lanes: Any, strikes: Any) -> None:
    for turn in range(20):
        reopening.lost(Slot(ANNA), "was killed", float(turn))
        reopening.lost(Slot(ANNA), "was killed", float(turn))  # several at once: one proof is enough
        assert lanes.unproven == {ANNA}
        reopening.settle(float(turn))
        reopening.up(lanes.opened[-1])
        assert not lanes.unproven
    assert (len(lanes.opened), strikes) == (20, [])
    assert reopening.settle(100.0) == math.inf


def test_each_slot_that_does_not_come_up_is_a_strike_until_the_node_is_out(reopening: Any, lanes: Any) -> None:
    count, now_s = Strikes(), 0.0
    reopening._on_strike = lambda what, why, _account: count.add(what, why, now_s)
    reopening.lost(Slot(None), "was killed", now_s)
    while not count.is_out(now_s):
        due_s = reopening.settle(now_s)
        reopening.lost(lanes.opened[-1], "ended with exit code 1", now_s)
        assert due_s is not None
        now_s = min(trial.next_s for trial in reopening._trials.values())
        assert now_s < OUT_S
    assert (len(lanes.opened), count.last) == (OWN, "slot_lost: ended with exit code 1")
    assert lanes.unproven == {None}, "nor does it get work when the quarantine is over"


def test_a_slot_that_cannot_be_opened_is_a_strike_and_tried_again_later(reopening: Any, lanes: Any, strikes: Any) -> None:
    lanes.is_broken = True
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    assert reopening.settle(0.0) == 0.5
    assert reopening.settle(0.4) == 0.5
    assert reopening.settle(0.5) == 1.5
    assert strikes == [("slot_not_opened", "no memory")] * 2


def test_a_slot_that_hangs_is_killed_in_the_end(reopening: Any, lanes: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    due_s = reopening.settle(0.0)
    assert not lanes.opened[0].killed
    reopening.settle(due_s)
    assert lanes.opened[0].killed
    reopening.lost(lanes.opened[0], "was killed by SIGKILL", due_s)
    assert strikes == [("slot_lost", "was killed by SIGKILL")]


def test_what_kills_all_slots_of_a_user_may_kill_the_one_on_trial_too(reopening: Any, lanes: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    reopening.settle(0.0)
    reopening.lost(Slot(ANNA), "was killed", 0.1)
    reopening.lost(lanes.opened[0], "was killed", 0.1)
    assert strikes == []
    reopening.settle(0.1)
    assert len(lanes.opened) == 2
    reopening.lost(lanes.opened[1], "was killed", 0.2)
    assert len(strikes) == 1


def test_a_slot_on_trial_that_is_closed_for_another_user_is_followed_by_the_next_one(reopening: Any, lanes: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    reopening.settle(0.0)
    reopening.closed(lanes.opened[0], 0.1)
    reopening.settle(0.1)
    reopening.up(lanes.opened[1])
    assert (lanes.unproven, strikes) == (set(), [])


def test_a_user_who_kills_his_new_slots_from_another_one_puts_no_node_out(reopening: Any, lanes: Any, strikes: Any) -> None:
    lanes.well = {ANNA}
    now_s = 0.0
    reopening.lost(Slot(ANNA), "was killed", now_s)
    for turn in range(2 * OWN):
        reopening.settle(now_s)
        assert len(lanes.opened) == turn + 1
        reopening.lost(lanes.opened[-1], "was killed", now_s)
        now_s += 5.0
    assert strikes == []
    assert lanes.unproven == {ANNA}, "only his work waits"
