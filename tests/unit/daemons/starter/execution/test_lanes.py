"""Cores, memory and processors of a node are never over-committed, and returned while a task waits; blame for a lost slot."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.slot import WorkerSpec
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.execution.lanes import Lanes, Reopening, WorkerLane, processors_of
from rmgr.daemons.starter.node.trouble import OUT_S, OWN, Strikes
from rmgr.errors import ConfigError
from rmgr.model.queue import QueueSpec
from rmgr.model.states import Reason
from rmgr.model.submission import PythonEnvironment, Submission, Work
from tests.harness.claimed import a_key, claimed


class FakeWorker:
    def __init__(self) -> None:
        self.granted: list[int] = []
        self.stopped: list[int] = []
        self.is_leaving = False
        self.pid = 0

    def grant(self, seq: int) -> None:
        self.granted.append(seq)

    def stop(self, seq: int = 0, **_: Any) -> None:
        self.stopped.append(seq)

    def recall(self, *, keep: int = 0) -> None:
        return


class FakeSlot:
    def __init__(self, number: int, python: str, account: Any = None) -> None:
        self.number, self.python, self.account = number, python, account
        self.is_lost = self.closed = False
        self.is_up, self.uses = True, 0
        self.workers: list[FakeWorker] = []

    def processor_seconds(self, _worker: FakeWorker) -> tuple[float, float, bool]:
        return 0.0, 0.0, False

    def start_worker(self, _spec: WorkerSpec) -> FakeWorker:
        self.workers.append(FakeWorker())
        return self.workers[-1]

    def close(self) -> None:
        self.closed = self.is_lost = True


class FakeRunner:
    def __init__(self) -> None:
        self.opened: list[FakeSlot] = []

    def open_slot(self, number: int, *, python: str = "", account: Any = None) -> FakeSlot:
        self.opened.append(FakeSlot(number, python, account))
        return self.opened[-1]


def info(number: int = 1, python: str = "") -> Info:
    record = Submission(id=number, name="x", user="u", queue="q", work=Work.PYTHON, python=PythonEnvironment(python=python))
    return Info(record, QueueSpec(name="q"), None)


SPEC, OTHER = WorkerSpec(), WorkerSpec(group="other")
BLOCK = claimed(a_key(count=9))


def lanes(cores: int = 2, memory_mib: int = 1000) -> Lanes:
    return Lanes(FakeRunner(), cores=cores, memory_mib=memory_mib)


def run(node: Lanes, seq: int, cores: int = 1, memory_mib: int = 0, spec: WorkerSpec = SPEC, python: str = "") -> WorkerLane | None:
    lane = node.open_for(info(python=python), spec, cores, memory_mib)
    if lane is not None:
        lane.tasks[seq] = (BLOCK, seq)
    return lane


def test_what_does_not_fit_is_refused_and_what_ends_makes_room() -> None:
    node = lanes()
    first = run(node, 1, cores=2, memory_mib=600)
    assert run(node, 2) is None
    node.ended(first, [1], 1.0)
    assert (node.free_cores, node.free_memory_mib) == (2, 1000)
    assert run(node, 3, memory_mib=600) is not None
    assert run(node, 4, memory_mib=600) is None, "memory counts too"
    assert run(node, 5) is not None


def test_an_idle_worker_of_the_same_kind_is_used_again() -> None:
    node = lanes()
    first = run(node, 1)
    node.ended(first, [1], 1.0)
    assert run(node, 2) is first
    other = run(node, 3, spec=OTHER)
    assert other.slot is not first.slot


def test_few_idle_workers_of_other_kinds_stay_warm() -> None:
    node = lanes(cores=1)
    made = []
    for number in range(5):
        lane = run(node, number + 1, spec=WorkerSpec(group=str(number)))
        made.append(lane)
        node.ended(lane, [number + 1], 1.0)
    assert [bool(lane.worker.stopped) for lane in made] == [True, True, True, False, False]


def test_a_task_that_waits_holds_nothing_and_goes_on_before_anything_new() -> None:
    node = lanes(cores=1)
    outer = run(node, 1)
    node.block(outer, 1)
    assert node.free_cores == 1
    inner = run(node, 2)
    assert inner is not outer
    node.unblock(outer, 1)
    node.grant()
    assert (outer.worker.granted, node.wants_grant) == ([], True)
    node.ended(inner, [2], 1.0)
    node.grant()
    assert (outer.worker.granted, node.free_cores) == ([1], 0)
    node.ended(outer, [1], 2.0)
    assert node.free_cores == 1


def test_a_worker_that_dies_while_its_task_waits_frees_nothing_twice() -> None:
    node = lanes(cores=1)
    outer = run(node, 1)
    node.block(outer, 1)
    node.unblock(outer, 1)
    node.drop_worker(outer.worker)
    assert (node.free_cores, node.wants_grant) == (1, False)


def test_a_chosen_interpreter_gets_a_slot_of_its_own() -> None:
    node = lanes(cores=1)
    first = run(node, 1)
    node.ended(first, [1], 1.0)
    chosen = run(node, 2, python="/opt/python")
    assert (first.slot.closed, chosen.slot.python) == (True, "/opt/python")
    assert node.has_chosen_python(chosen.slot)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_count_is_right(seed: int) -> None:
    rng = random.Random(seed)
    node = lanes(cores=4, memory_mib=100)
    held: list[WorkerLane] = []
    blocked: list[tuple[WorkerLane, int]] = []
    for seq in range(1, 400):
        act = rng.randrange(6)
        if act <= 1:
            lane = run(node, seq, cores=rng.randint(1, 3), memory_mib=rng.choice([0, 10, 60]), spec=rng.choice([SPEC, OTHER]))
            if lane is not None:
                held.append(lane)
        elif act == 2 and held:
            lane = held.pop(rng.randrange(len(held)))
            node.ended(lane, list(lane.tasks), 1.0)
        elif act == 3 and held:
            lane = held.pop(rng.randrange(len(held)))
            blocked.append((lane, lane.running_seq))
            node.block(lane, lane.running_seq)
        elif act == 4 and blocked:
            lane, running = blocked.pop(rng.randrange(len(blocked)))
            node.unblock(lane, running)
            node.stop(lane, running, Reason.USER_CANCEL, 0)
            node.drop_worker(lane.worker)
        elif act == 5 and held:
            lane = held.pop(rng.randrange(len(held)))
            node.drop_worker(lane.worker)
        given_away_too_soon = max(0, sum(lane.shape[0] for lane, _ in blocked) - 2 * 4)  # none was looked at
        assert node.free_cores == max(0, 4 - sum(lane.shape[0] for lane in held) - given_away_too_soon)
        assert node.free_memory_mib == 100 - sum(lane.shape[1] for lane in held)


ANNA, BEN, CARL, DORA = (Account(name=name, uid=uid, gid=uid) for uid, name in enumerate(("anna", "ben", "carl", "dora"), 1001))


def run_as(node: Lanes, seq: int, account: Account, spec: WorkerSpec | None = SPEC) -> WorkerLane:
    work = info(seq)
    work.account = account
    lane = node.open_for(work, spec, 1, 0)
    assert lane.slot.account == account
    lane.tasks[seq] = (BLOCK, seq)
    return lane


def test_users_never_share_a_slot_and_find_their_warm_ones_again() -> None:
    node = Lanes(FakeRunner(), cores=1, memory_mib=100, early=False)
    opened = node.runner.opened
    assert opened == [], "nobody's slot is opened before there is work"
    slots = {}
    for seq, (account, spec) in enumerate([(ANNA, SPEC), (BEN, SPEC), (ANNA, SPEC), (BEN, None), (ANNA, None)], 1):
        lane = run_as(node, seq, account, spec)
        assert slots.setdefault(account.name, lane.slot) is lane.slot
        node.ended(lane, [seq], 1.0)
    assert len(opened) == 2
    assert not any(slot.closed for slot in opened)


def test_of_many_users_a_place_keeps_the_last_few_warm() -> None:
    node = Lanes(FakeRunner(), cores=1, memory_mib=100, early=False)
    for seq, account in enumerate((ANNA, BEN, ANNA, CARL, DORA), 1):
        node.ended(run_as(node, seq, account), [seq], 1.0)
    closed = [slot.account.name for slot in node.runner.opened if slot.closed]
    assert closed == ["ben"], "the one used longest ago"


def test_nothing_is_queued_behind_the_work_of_another_user() -> None:
    node = Lanes(FakeRunner(), cores=1, memory_mib=100, early=False)
    lane = run_as(node, 1, ANNA)
    mine, other = info(2), info(3)
    mine.account, other.account = ANNA, BEN
    assert lane.is_for(mine, SPEC, 1, 0)
    assert not lane.is_for(other, SPEC, 1, 0)
    assert node.open_for(other, SPEC, 1, 0) is None, "no core is free for him"


def test_what_is_kept_for_somebody_is_lent_to_nobody_else_and_taken_as_it_comes_free() -> None:
    node = lanes(cores=4, memory_mib=100)
    first, second = run(node, 1, cores=2, memory_mib=60), run(node, 2)
    assert second is not None
    assert not node.keep("r-7.0", 3, 80), "two of its cores are in use"
    assert (node.free_cores, node.free_memory_mib) == (0, 0)
    assert run(node, 3) is None
    node.ended(first, [1], 1.0)
    assert node.keep("r-7.0", 3, 80)
    assert (node.free_cores, node.free_memory_mib) == (0, 20)
    assert node.keep("r-7.0", 2, 0), "it shrinks at once"
    assert run(node, 4) is not None
    assert node.keep("r-7.0", 0, 0)
    assert node.free_cores == 2


def test_pieces_of_other_resources_are_kept_for_somebody_too_as_they_come_free() -> None:
    """A pulled task does not get the pieces that a waiting job was promised, though cores are free for it."""
    node = Lanes(FakeRunner(), cores=4, memory_mib=0, resources={"gpu": 3, "tape": 1})
    one = (("gpu", 1),)
    first = node.open_for(info(1), SPEC, 1, 0, one)
    assert first.lent == {"gpu": [0]}
    assert not node.keep("r-7.0", 1, 0, (("gpu", 3), ("tape", 1))), "one of its pieces is in use"
    assert (node.free_cores, node.fits(1, 0), node.fits(1, 0, one), node.fits(1, 0, (("tape", 1),))) == (2, True, False, False)
    node.give_up(first)
    assert node.keep("r-7.0", 1, 0, (("gpu", 3), ("tape", 1)))
    assert not node.fits(1, 0, one)
    assert not node.keep("r-7.0", 1, 0, (("gpu", 4),)), "there are no more"
    assert node.keep("r-7.0", 1, 0, one), "it shrinks at once"
    assert node.free_of("gpu") == 2
    second = node.open_for(info(2), SPEC, 1, 0, one)
    assert second.lent == {"gpu": [0]}
    assert node.keep("r-7.0", 0, 0)
    node.give_up(second)
    assert node.free_of("gpu") == 3


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> dict[float, float]:
    """Processor seconds by pid, those waited for by its negative, the clock (0), and who stands in line by pid + 0.5."""
    spent = {0: 1000.0}

    def had(_: object, worker: FakeWorker) -> tuple[float, float, bool]:
        return spent.get(worker.pid, 0.0), spent.get(-worker.pid, 0.0), worker.pid + 0.5 in spent

    monkeypatch.setattr(FakeSlot, "processor_seconds", had)
    monkeypatch.setattr("rmgr.daemons.starter.execution.lanes.machine.monotonic", lambda: spent[0])
    return spent


def blocked(node: Lanes, count: int) -> list[WorkerLane]:
    made = []
    for seq in range(1, count + 1):
        lane = run(node, seq)
        lane.worker.pid = seq
        node.block(lane, seq)
        made.append(lane)
    return made


def second(node: Lanes, cpu: dict[float, float], **used: float) -> None:
    cpu[0] += 1.0
    for name, seconds in used.items():
        cpu[int(name[1:])] = cpu.get(int(name[1:]), 0.0) + seconds
    node.charge_blocked(cpu[0])


def test_cores_that_blocked_tasks_use_are_not_free(cpu: dict[float, float]) -> None:
    node = lanes(cores=4)
    blocked(node, 3)
    assert node.charge_blocked(cpu[0]) < float("inf")
    second(node, cpu, p1=1.0, p2=0.9)
    assert (node.free_cores, node.overdrawn) == (2, 2)
    assert run(node, 9, cores=3) is None
    second(node, cpu, p1=5.0, p2=2.0)
    assert node.free_cores == 0
    second(node, cpu)
    assert node.free_cores == 4, "they are quiet"


def test_on_a_busy_machine_what_is_waited_for_counts_of_those_who_compute(cpu: dict[float, float]) -> None:
    node = lanes(cores=4)
    blocked(node, 3)
    cpu[-1] = cpu[-2] = 0.9
    second(node, cpu, p1=0.1, p2=0.01)
    assert (node.free_cores, node.overdrawn) == (3, 1)


def test_who_stands_in_line_for_a_processor_has_not_shown_that_it_waits(cpu: dict[float, float]) -> None:
    node = lanes(cores=4)
    blocked(node, 3)
    second(node, cpu, p1=1.0, p2=1.0)
    assert node.overdrawn == 2
    cpu[1.5] = 1  # got none all the time
    second(node, cpu)
    assert node.overdrawn == 1, "what it used before counts on"
    del cpu[1.5]
    second(node, cpu)
    assert node.free_cores == 4, "it sleeps"


def test_who_gets_no_processor_stays_one_of_whom_nothing_is_known(cpu: dict[float, float]) -> None:
    node = lanes(cores=2)
    blocked(node, 5)
    cpu.update({number + 0.5: 1 for number in range(1, 6)})
    second(node, cpu)
    assert (node.overdrawn, node.free_cores) == (0, 1)
    del cpu[1.5]
    second(node, cpu)
    assert node.free_cores == 2, "it waits"


def test_before_they_were_looked_at_blocked_tasks_give_away_twice_the_cores_at_most(cpu: dict[float, float]) -> None:
    node = lanes(cores=2)
    blocked(node, 5)
    assert node.free_cores == 1
    lane = run(node, 6)
    lane.worker.pid = 6
    node.block(lane, 6)
    assert (node.free_cores, run(node, 7)) == (0, None)
    assert node.charge_blocked(cpu[0]) < cpu[0] + 0.2, "looked at soon"
    cpu[0] += 0.2
    node.charge_blocked(cpu[0])
    assert node.free_cores == 2, "they wait"


def test_tasks_that_really_wait_cost_no_core(cpu: dict[float, float]) -> None:
    node = lanes(cores=2)
    blocked(node, 4)
    for _ in range(5):
        second(node, cpu, p1=0.04, p2=0.04, p3=0.04, p4=0.04)
        assert node.free_cores == 2


def test_who_uses_cores_and_asks_for_them_gets_them_when_nobody_else_does(cpu: dict[float, float]) -> None:
    node = lanes(cores=1)
    first, other = blocked(node, 2)
    second(node, cpu, p1=1.0, p2=1.0)
    node.unblock(first, 1)
    node.grant()
    assert first.worker.granted == [], "the other one computes"
    node.ended(other, [2], 1.0)
    node.grant()
    assert first.worker.granted == [1]
    assert (node.free_cores, node.overdrawn) == (0, 0)
    node.ended(first, [1], 1.0)
    assert (node.free_cores, node.charge_blocked(cpu[0])) == (1, float("inf"))


def test_parts_of_gangs_have_slots_of_their_own_beside_the_cores() -> None:
    node = lanes(cores=1, memory_mib=100)
    assert node.keep("gangs", 1, 0)
    slots = [node.seat(name, info(), 0, 1) for name in ("a", "b", "c")]
    assert len({slot.number for slot in slots if slot is not None}) == 3
    assert all(slot is not None and slot.number >= node.cores for slot in slots)
    assert node.seat("a", info(), 0, 1) is slots[0]
    found = [node.open_for(info(), None, 0, 30, part=name) for name in ("a", "b", "c")]
    assert [lane.slot for lane in found if lane is not None] == slots
    assert (node.free_cores, node.free_memory_mib) == (0, 10)
    assert node.open_for(info(), None, 0, 30, part="a") is None, "memory adds up over all of them"
    assert node.open_for(info(), None, 0, 0, part="d") is None, "it has no slot"
    for lane in found:
        node.give_up(lane)
    assert node.free_memory_mib == 100
    node.unseat("a")
    assert slots[0].is_lost
    node.keep("gangs", 0, 0)
    assert node.free_cores == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_slot_that_falls_beside_a_well_one_of_its_user_falls_by_his_doing_though_that_one_fell_too(is_lost: bool) -> None:
    """As when work ends all processes of its user: of the other slot's loss nobody has heard yet."""
    node = lanes()
    well, falls = (node.open_idle(number, ANNA) for number in (0, 1))
    falls.is_up, well.is_lost = False, is_lost
    assert node.is_his_own_doing(falls)
    node.drop_slot(well)
    assert not node.is_his_own_doing(falls)


def test_processors_of_parts_are_those_of_their_leaves_and_nobody_gives_them_back() -> None:
    node = Lanes(FakeRunner(), cores=4, memory_mib=0, processors=(8, 9, 10, 11))
    node.keep("gangs", 4, 0)
    node.seat("a", info(), 1, 2)
    node.seat("b", info(), 2, 2)
    one, two = node.open_for(info(), None, 0, 0, part="a"), node.open_for(info(), None, 0, 0, part="b")
    assert (one.cpus, two.cpus) == ([9, 10], [10, 11])
    for lane in (one, two):
        node.give_up(lane)
    node.keep("gangs", 0, 0)
    lane = run(node, 1, cores=4)
    assert lane.cpus == [8, 9, 10, 11]


def test_what_was_pulled_and_waits_for_others_leaves_its_cores_to_a_gang() -> None:
    node = lanes(cores=1)
    waiting = run(node, 1)
    assert not node.keep("gangs", 1, 0)
    node.block(waiting, 1)
    assert node.keep("gangs", 1, 0)
    node.unblock(waiting, 1)
    node.grant()
    assert node.wants_grant
    assert node.seat("a", info(), 0, 1) is not None
    assert node.open_for(info(), None, 0, 0, part="a") is not None
    node.keep("gangs", 0, 0)
    node.grant()
    assert not node.wants_grant


def test_each_node_has_processors_of_its_own() -> None:
    found = processors_of(("a", "b"), cores=2, mode="yes", has_all=False, available=[7, 1, 3, 5])
    assert found == {"a": (1, 3), "b": (5, 7)}


@pytest.mark.parametrize(
    ("mode", "cores", "has_all", "available"),
    [("no", 2, True, [0, 1]), ("auto", 2, False, [0, 1]), ("yes", 4, False, [0, 1]), ("auto", 1, True, [0])],
)
def test_nothing_is_bound_where_it_is_not_wanted_or_there_is_too_little(mode: str, cores: int, has_all: bool, available: list[int]) -> None:
    assert processors_of(("a",), cores=cores, mode=mode, has_all=has_all, available=available) == {}


def test_a_whole_machine_is_bound_by_itself_and_other_words_are_refused() -> None:
    assert processors_of(("a",), cores=2, mode="auto", has_all=True, available=[0, 1]) == {"a": (0, 1)}
    with pytest.raises(ConfigError, match="bind_cpus = 'maybe' is not known"):
        processors_of(("a",), cores=2, mode="maybe", has_all=True, available=[0, 1])


class Slot:
    """Killed: it is reported lost as soon as somebody asks."""

    def __init__(self, account: Account | None) -> None:
        self.number, self.account, self.is_up, self.killed, self.woken = 3, account, False, False, 0

    def kill(self) -> None:
        self.killed = True

    def wake(self) -> None:
        self.woken += 1


class PlayedLanes:
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
def played() -> PlayedLanes:
    return PlayedLanes()


@pytest.fixture
def strikes() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def reopening(played: PlayedLanes, strikes: list[tuple[str, str]]) -> Reopening:
    return Reopening(played, lambda what, why, _account: strikes.append((what, why)))


def test_slots_that_die_again_and_again_are_no_strike_while_new_ones_come_up(reopening: Any, played: Any, strikes: Any) -> None:
    for turn in range(20):
        reopening.lost(Slot(ANNA), "was killed", float(turn))
        reopening.lost(Slot(ANNA), "was killed", float(turn))  # several at once: one proof is enough
        assert played.unproven == {ANNA}
        reopening.settle(float(turn))
        reopening.up(played.opened[-1])
        assert not played.unproven
    assert (len(played.opened), strikes) == (20, [])
    assert reopening.settle(100.0) == math.inf


def test_each_slot_that_does_not_come_up_is_a_strike_until_the_node_is_out(played: Any) -> None:
    count, now_s = Strikes(), 0.0
    reopening: Any = Reopening(played, lambda what, why, _account: count.add(what, why, now_s))
    reopening.lost(Slot(None), "was killed", now_s)
    while not count.is_out(now_s):
        assert reopening.settle(now_s) > now_s
        reopening.lost(played.opened[-1], "ended with exit code 1", now_s)
        now_s = reopening.settle(now_s)
        assert now_s < OUT_S
    assert (len(played.opened), count.last) == (OWN, "slot_lost: ended with exit code 1")
    assert played.unproven == {None}, "nor does it get work when the quarantine is over"


def test_a_slot_that_cannot_be_opened_is_a_strike_and_tried_again_later(reopening: Any, played: Any, strikes: Any) -> None:
    played.is_broken = True
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    assert reopening.settle(0.0) == 0.5
    assert reopening.settle(0.4) == 0.5
    assert reopening.settle(0.5) == 1.5
    assert strikes == [("slot_not_opened", "no memory")] * 2


def test_a_slot_that_hangs_is_killed_in_the_end(reopening: Any, played: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    due_s = reopening.settle(0.0)
    assert not played.opened[0].killed
    reopening.settle(due_s)
    assert played.opened[0].killed
    reopening.lost(played.opened[0], "was killed by SIGKILL", due_s)
    assert strikes == [("slot_lost", "was killed by SIGKILL")]


def test_what_kills_all_slots_of_a_user_may_kill_the_one_on_trial_too(reopening: Any, played: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    reopening.settle(0.0)
    reopening.lost(Slot(ANNA), "was killed", 0.1)
    reopening.lost(played.opened[0], "was killed", 0.1)
    assert strikes == []
    reopening.settle(0.1)
    assert len(played.opened) == 2
    reopening.lost(played.opened[1], "was killed", 0.2)
    assert len(strikes) == 1


def test_a_slot_on_trial_that_is_closed_for_another_user_is_followed_by_the_next_one(reopening: Any, played: Any, strikes: Any) -> None:
    reopening.lost(Slot(ANNA), "was killed", 0.0)
    reopening.settle(0.0)
    reopening.closed(played.opened[0], 0.1)
    reopening.settle(0.1)
    reopening.up(played.opened[1])
    assert (played.unproven, strikes) == (set(), [])


def test_a_user_who_kills_his_new_slots_from_another_one_puts_no_node_out(reopening: Any, played: Any, strikes: Any) -> None:
    played.well = {ANNA}
    now_s = 0.0
    reopening.lost(Slot(ANNA), "was killed", now_s)
    for turn in range(2 * OWN):
        reopening.settle(now_s)
        assert len(played.opened) == turn + 1
        reopening.lost(played.opened[-1], "was killed", now_s)
        now_s += 5.0
    assert strikes == []
    assert played.unproven == {ANNA}, "only his work waits"
