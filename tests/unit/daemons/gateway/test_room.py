"""What is left of ZooKeeper's room is for users who have little in it, as a gateway decides before it commits."""

from __future__ import annotations

import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.rpc.use import UseAnswer
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Exists, Multi, Set
from rmgr.coord.protocol.quotas import Quota
from rmgr.daemons.gateway.limits import ASK_S, ClusterUse
from rmgr.daemons.gateway.room import QuotaRoom
from rmgr.errors import LimitReached, Unavailable
from rmgr.model.cluster.limits import UserLimits
from rmgr.model.tasks.block import NO_SEQ, BlockKey


def waits(size: int) -> Multi:
    """One task more, with so many bytes to it."""
    key = BlockKey(priority=0, seq=NO_SEQ, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    made = Create(f"{paths.pending('default')}/{paths.block_prefix(key)}", b"x" * size, sequence=True)
    return Multi(name="ENQUEUE", ops=(Set(paths.tail(1), b"t", 1), made), proof=Exists(paths.tail(1)))


class Filled:
    """A cluster whose ZooKeeper has a quota of so many bytes below /queues and says how many are used; its leader knows of nobody."""

    def __init__(self, most: int) -> None:
        self.most, self.there, self.now_s = most, 0, 1000.0
        self.is_silent, self.said = False, ""
        self.bounds = Bounds(UserLimits(), clock=self.clock)
        self.room = QuotaRoom(self.look, clock=self.clock)
        self.use = ClusterUse(self.bounds, lambda _fresh: UseAnswer(users={}), clock=self.clock, room=self.room)

    def clock(self) -> float:
        return self.now_s

    def look(self) -> dict[str, tuple[Quota, Quota]]:
        if self.is_silent:
            raise Unavailable("nobody answers")
        return {paths.QUEUES: (Quota(5, self.there), Quota(1_000_000, self.most))}

    def fill(self, user: str, size: int) -> int:
        """How many tasks of so many bytes he submits until he is refused; what they weigh is there after it."""
        for count in range(10_000):
            try:
                self.use.check(user, waits(size))
            except LimitReached as error:
                self.said = error.message
                return count
            self.there += size + 200
        raise AssertionError("no end")


def test_the_last_of_a_quota_is_for_those_who_have_little_of_it() -> None:
    world = Filled(1_600_000)
    world.room.refresh()
    assert 1_100_000 < world.fill("mallory", 9_800) * 10_000 <= 1_125_000
    assert "who have less in it than mallory: of 1600000 bytes below /queues 1120000 are used, this user has 1120000" in world.said
    assert [world.fill(f"u{number}", 800) for number in range(15)] == [23] * 15
    assert world.there < 1_500_000
    world.use.check("ann", waits(800))
    assert world.bounds.refused("mallory")["zookeeper_bytes"] == 1
    world.there = 300_000  # much of it has ended
    world.now_s += 1
    world.use.check("mallory", waits(9_800))


def test_what_other_gateways_give_away_is_seen_and_nothing_is_counted_twice() -> None:
    world = Filled(1_600_000)
    world.room.refresh()
    for _ in range(50):
        world.use.check("ann", waits(9_800))
        world.there += 10_000
        world.now_s += ASK_S
        world.use.refresh()
    world.there = 1_124_000
    world.now_s += ASK_S
    world.use.refresh()
    with pytest.raises(LimitReached):
        world.use.check("ann", waits(29_800))
    world.use.check("ann", waits(5_800))  # the leader says that she has nothing


def test_without_quotas_or_an_answer_nobody_is_refused() -> None:
    world = Filled(-1)
    world.room.refresh()
    world.use.check("ann", waits(9_800))
    world = Filled(30_000)
    world.is_silent = True
    world.room.refresh()
    world.use.check("ann", waits(29_800))
    world.is_silent = False
    world.now_s += ASK_S
    world.room.refresh()
    with pytest.raises(LimitReached):
        world.use.check("ann", waits(29_800))
    world.now_s += ASK_S
    world.is_silent = True  # what was known stays
    with pytest.raises(LimitReached):
        world.use.check("ann", waits(29_800))
