"""One turn of placement: its ordered steps, the list of waiting jobs that it reads, and the state that it rebuilds in slices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Multi, Op
from rmgr.daemons.leader.placement import arrivals
from rmgr.daemons.leader.placement.arrivals import LONG, QUIET_S, LongList
from rmgr.daemons.leader.term import LeaderMetrics, Term
from rmgr.errors import StateConflict
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Rigid
from rmgr.runtime.mailbox import Mailbox
from rmgr.sched.state.cluster import ClusterState
from tests.harness.leader_bench import Bench, Inline, placing
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

SETTINGS = placing()


def test_the_placer_tells_an_end_then_a_node_then_an_arrival_then_lets_policies_plan(bench: Bench) -> None:
    """All three have happened before the turn begins; the log of the scheduler has them in the order of the turn."""
    placer = bench.lead().placer
    starter = bench.starter("n1")
    first = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2))
    bench.advance(1)
    (key,) = bench.look.keys(paths.running_node("n1"))
    assert key.submission == first
    told: list[str] = []
    updates, tell = placer.updates, placer.updates.tell

    def seen(state: ClusterState, fact: str, *arguments: object, **named: object) -> None:
        told.append(fact)
        tell(state, fact, *arguments, **named)

    updates.tell = seen
    updates.passed = lambda *_: told.append("a pass")
    placer.is_due = True  # the turn waits until everything has been read
    bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2))
    bench.starter("n2")
    starter.complete("n1", key)
    bench.advance(1)
    assert told == []
    placer.turn()
    bench.advance(1)
    assert told[:4] == ["job_ended", "node_changed", "job_submitted", "a pass"]


def test_a_fact_that_contradicts_the_state_ends_the_turn_and_the_state_is_made_anew(bench: Bench) -> None:
    placer = bench.lead().placer
    bench.starter("n1")
    bench.advance(1)
    tell, told = placer.updates.tell, []

    def refused(state: ClusterState, fact: str, *arguments: object, **named: object) -> None:
        told.append(fact)
        if told == ["job_submitted"]:
            raise StateConflict("it contradicts the state")
        tell(state, fact, *arguments, **named)

    placer.updates.tell = refused
    placer.updates.passed = lambda *_: told.append("a pass")
    bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=2))
    bench.advance(1)
    assert len(bench.events("placing_rebuilt")) == 1
    assert told[:2] == ["job_submitted", "a pass"]
    assert len(bench.look.keys(paths.running_node("n1"))) == 1


PENDING = "/pending"


class Listing:
    """A list, the commits of its leader, and somebody else."""

    def __init__(self, names: int) -> None:
        self.now_s = 100.0
        self.mailbox: Mailbox[Callable[[], None]] = Mailbox(lambda: self.now_s)
        self.ours = MemoryCoordinator(guarded=False)
        self.others = MemoryCoordinator(self.ours.tree, guarded=False)
        self.ours.ensure([PENDING, "/epoch"])
        self.lists = self.took = self.made = 0
        for _ in range(names):
            self.make()
        children = self.ours.children

        def counted(path: str, **options: Any) -> Any:
            self.lists += 1
            return children(path, **options)

        self.ours.children = counted
        self.term = Term(
            self.ours, MemoryStore(), Inline(), self.mailbox, epoch=1, epoch_version=0, log=structlog.wrap_logger(None),
            metrics=LeaderMetrics(), deposed=print, may_act=lambda: True, clock=lambda: self.now_s,
        )  # fmt: skip
        self.list = LongList(self.term, PENDING, lambda: None, lambda: self.took)
        self.list.pace_s = 0.05
        self.taken: set[str] = set()
        self.list.refresh()
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            while (message := self.mailbox.get(0)) is not None:
                message()
            due = self.mailbox.due_s()
            if due is None or due > end_s:
                break
            self.now_s = max(self.now_s, due)
        self.now_s = end_s

    def do(self, op: Op) -> None:
        self.others.commit(Multi(name="OTHERS", ops=(op,), proof=Exists("/no"))).result(60)

    def make(self) -> None:
        self.made += 1
        self.do(Create(f"{PENDING}/{self.made:06d}"))

    def there(self) -> list[str]:
        return sorted(self.others.children(PENDING).result(60) or [])

    def take(self, name: str) -> None:
        def answered(_outcome: object) -> None:
            self.took += 1
            self.taken.add(name)

        multi = Multi(name="PLACE", ops=(Delete(f"{PENDING}/{name}"),), proof=Exists("/no"))
        self.term.heard(self.term.commit(multi), answered, about="PLACE")

    def known(self) -> list[str]:
        return sorted(set(self.list.value or ()) - self.taken)


def test_what_we_take_ourselves_is_not_listed_and_the_list_is_watched_again_afterwards() -> None:
    bench = Listing(LONG + 100)
    assert bench.lists == 1
    bench.list.refresh()  # a long one is counted from its second reading
    bench.advance(0.0)
    before = bench.lists
    for name in bench.there()[:50]:
        bench.take(name)
        bench.advance(0.01)
    assert bench.lists == before
    assert bench.known() == bench.there()
    bench.advance(QUIET_S + 1)
    assert bench.lists == before + 1
    bench.advance(60)
    assert bench.lists == before + 1
    bench.make()  # there is a watch
    bench.advance(0.2)
    assert bench.known() == bench.there()


@pytest.mark.parametrize("what", ["make", "delete", "both"])
def test_what_others_do_meanwhile_is_noticed_within_the_pace(what: str) -> None:
    bench = Listing(LONG + 100)
    bench.list.refresh()
    bench.advance(0.0)
    bench.take(bench.there()[0])
    bench.advance(0.06)
    if what != "delete":
        bench.make()
    if what != "make":
        bench.do(Delete(f"{PENDING}/{bench.there()[5]}"))
    bench.take(bench.there()[0])
    bench.advance(0.11)
    assert bench.known() == bench.there()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_and_in_whatever_order_the_list_is_right_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    bench = Listing(LONG + 20)
    for _ in range(120):
        match rng.randrange(8):
            case 0:
                bench.make()
            case 1:
                bench.do(Delete(f"{PENDING}/{rng.choice(bench.there())}"))
            case 2:
                bench.ours.cut()
            case 3:
                bench.list.refresh()
            case _:
                bench.take(rng.choice([name for name in bench.there() if name not in bench.taken]))
        bench.advance(rng.choice([0.0, 0.0, 0.01, 0.06, 0.3, 3.0]))
    bench.advance(0.2)
    assert bench.known() == bench.there()


def test_whatever_happens_between_two_slices_of_a_rebuild_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ends, one is cancelled, one comes, a node is lost: after each message of the loop once."""
    monkeypatch.setattr(arrivals, "SLICE_S", -1.0)
    monkeypatch.setattr(arrivals, "SOME", 1)
    at, ended = 0, False
    while not ended:
        bench = Bench(placing("easy"))
        try:
            ended = _disturbed(bench, at)
        finally:
            bench.close()
        at += 3
    assert at > 30


def _disturbed(bench: Bench, at: int) -> bool:
    """True: the rebuild had ended before that message."""
    placer = bench.lead().placer
    nodes, lost = bench.starter("n1", "n2", "n3"), bench.starter("n4")
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(12)]
    bench.advance(1)
    where = {key.submission: (node, key) for node in nodes.nodes for key in bench.look.keys(paths.running_node(node))}
    placer.rebuild("as a test")
    for _ in range(at):
        message = bench.mailbox.get(0)
        if message is not None:
            message()
    is_over = placer.state is not None
    nodes.complete(*where[min(where)])
    bench.submitter.change(numbers[-1], gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    numbers.append(bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()))
    lost.close()
    for _ in range(12):
        bench.advance(15)
        running = {node: bench.look.keys(paths.running_node(node)) for node in nodes.nodes}
        assert max(map(len, running.values())) <= 2
        for node, keys in running.items():
            for key in keys:
                nodes.complete(node, key)
    bench.advance(15)
    ends = {number: [outcome.state for outcome in bench.look.outcomes(number).values()] for number in numbers}
    cancelled = numbers[-2]
    assert ends == {number: [State.CANCELLED if number == cancelled else State.COMPLETED] for number in numbers}
    return is_over
