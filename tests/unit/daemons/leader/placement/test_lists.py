"""A long list of waiting jobs is not read again for what the leader itself took out of it, and nothing that others do to it is missed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol.multi import Create, Delete, Exists, Multi, Op
from rmgr.daemons.leader.metrics import LeaderMetrics
from rmgr.daemons.leader.placement.arrivals import LONG, QUIET_S, LongList
from rmgr.daemons.leader.tree import LeaderContext
from rmgr.runtime.mailbox import Mailbox
from tests.harness.leader_bench import Inline
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

PENDING = "/pending"


class Bench:
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

        self.ours.children = counted  # type: ignore[method-assign]
        context = LeaderContext(
            self.ours, MemoryStore(), self.mailbox, epoch_version=0, epoch=1, io=Inline(), deposed=print, may_act=lambda: True,
            log=structlog.wrap_logger(None), metrics=LeaderMetrics(), clock=lambda: self.now_s,
        )  # fmt: skip
        self.tree = context.tree
        self.list = LongList(self.tree, PENDING, lambda: None, lambda: self.took)
        self.list.pace_s = 0.05
        self.taken: set[str] = set()
        self.list.refresh()
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            while (message := self.mailbox.get(0)) is not None:
                message()
            due = self.mailbox._timers.next_s()
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
        self.tree.heard(self.tree.commit(multi), answered, about="PLACE")

    def known(self) -> list[str]:
        return sorted(set(self.list.value or ()) - self.taken)


def test_what_we_take_ourselves_is_not_listed_and_the_list_is_watched_again_afterwards() -> None:
    bench = Bench(LONG + 100)
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
    bench = Bench(LONG + 100)
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
    bench = Bench(LONG + 20)
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
