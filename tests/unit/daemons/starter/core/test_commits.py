"""Commits of a Starter: unknown ones are read back, fenced ones are reported, and old ones are reported to no one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import structlog

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Exists, Multi, Outcome, Set, Unknown
from rmgr.daemons.starter.core.tree import IDLE_CHANGES, Committer, IdleMark, IdleStage
from rmgr.errors import QuotaReached, RequestTooLarge
from tests.harness.memory import MemoryCoordinator


class World:
    def __init__(self, zk: MemoryCoordinator | None = None) -> None:
        self.zk = zk or MemoryCoordinator(guarded=False)
        self.zk.ensure([paths.node("n1"), "/things"])
        self.messages: deque[Callable[[], None]] = deque()
        self.fenced: list[str] = []
        self.counted: list[str] = []
        self.answers: list[Outcome] = []
        self.committer = Committer(self.zk, self, count=self.counted.append, log=structlog.get_logger())
        self.committer.on_fenced = self.fenced.append
        self.committer.start({"n1": 0})

    def post(self, job: Any) -> None:
        self.messages.append(job)

    def after(self, _delay_s: float, job: Any) -> None:
        self.messages.append(job)

    def deliver(self) -> None:
        while self.messages:
            self.messages.popleft()()

    def multi(self, name: str) -> Multi:
        fence = ops.fence_check("n1", self.committer.fence("n1"))
        return Multi(name="T", ops=(fence, Create(f"/things/{name}")), proof=Exists(f"/things/{name}"), guard=fence)

    def commit(self, multi: Multi | None = None) -> list[type]:
        """Returns the kinds of all answers so far."""
        self.committer.commit(multi or self.multi("a"), self.answers.append)
        self.deliver()
        return [type(answer) for answer in self.answers]

    def move_fence(self) -> None:
        node = paths.node("n1")
        self.zk.commit(Multi(name="F", ops=(Set(node, b"x", 0),), proof=Exists(node))).result(60)


class Doubtful(MemoryCoordinator):
    """Answers Unknown to the first commit, which is carried out or not."""

    doubt = 0
    carried_out = True

    def commit(self, multi: Multi, *, timeout_s: float = 10.0):
        if not self.doubt:
            return super().commit(multi, timeout_s=timeout_s)
        self.doubt -= 1
        future = super().commit(multi if self.carried_out else replace(multi, ops=(multi.ops[0],)), timeout_s=timeout_s)
        future.result(60)
        answer: Future[Outcome] = Future()
        answer.set_result(Unknown("lost"))
        return answer


def doubtful(*, carried_out: bool) -> World:
    zk = Doubtful(guarded=False)
    world = World(zk)
    zk.doubt, zk.carried_out = 1, carried_out
    return world


def test_a_commit_is_answered_in_the_mailbox() -> None:
    world = World()
    assert world.commit() == [Committed]
    assert world.commit() == [Committed, Conflict]
    assert world.committer.in_flight == 0


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_unknown_commit_is_committed_if_it_was_made_and_else_is_made_then(carried_out: bool) -> None:
    world = doubtful(carried_out=carried_out)
    assert world.commit() == [Committed]
    assert world.counted == ["ambiguous_commits"]
    assert world.zk.stat("/things/a").result(60) is not None


def test_an_unknown_commit_behind_a_moved_fence_is_fenced() -> None:
    world = doubtful(carried_out=True)
    world.committer.commit(world.multi("a"), world.answers.append)
    world.move_fence()
    world.deliver()
    assert (world.answers, world.fenced) == ([], ["n1"])


def test_a_moved_fence_is_told_once_and_not_as_an_answer() -> None:
    world = World()
    multi = world.multi("a")
    world.move_fence()
    world.commit(multi)
    assert (world.answers, world.fenced, world.counted) == ([], ["n1"], ["fenced_writes"])


def test_what_a_quota_refuses_is_sent_again_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    commit, full = world.zk.commit, [True, True]

    told: list[str] = []

    def refuse(multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        told.append(world.committer.over_quota)
        if not full:
            return commit(multi, timeout_s=timeout_s)
        full.pop()
        refused: Future[Outcome] = Future()
        refused.set_exception(QuotaReached("full"))
        return refused

    monkeypatch.setattr(world.zk, "commit", refuse)
    assert world.commit() == [Committed]
    assert told == ["", "full", "full"], "while it waits"
    assert world.committer.over_quota == ""
    assert (world.committer.in_flight, world.counted, world.fenced) == (0, [], [])


def test_a_commit_that_is_too_large_is_not_under_way() -> None:
    world = World()
    large = Multi(name="X", ops=(Create("/x", bytes(4 << 20)),), proof=Exists("/x"))
    with pytest.raises(RequestTooLarge):
        world.committer.commit(large, lambda _: None)
    assert world.committer.in_flight == 0


def test_answers_of_an_older_registration_reach_nobody() -> None:
    world = World()
    world.committer.commit(world.multi("a"), world.answers.append)
    world.committer.stop()
    world.deliver()
    assert world.answers == []
    assert not world.committer.is_registered


@pytest.mark.parametrize("before", IdleStage)
@pytest.mark.parametrize("after", IdleStage)
def test_the_idle_mark_changes_as_its_table_says(before: IdleStage, after: IdleStage) -> None:
    mark = IdleMark(before)
    assert mark.goes(after) is (after in IDLE_CHANGES[before])
    assert mark.stage is (after if after in IDLE_CHANGES[before] else before)


def test_one_commit_at_a_time_changes_the_idle_mark() -> None:
    mark = IdleMark()
    assert mark.goes(IdleStage.SETTING)
    assert not mark.goes(IdleStage.SETTING)
    mark.answered(stands=True)
    assert (mark.is_set, mark.stood) == (True, True)
    assert mark.goes(IdleStage.CLEARING)
    assert (mark.is_set, mark.stood) == (False, True), "until it is known that it is gone"
    mark.answered(stands=False)
    assert mark.stage is IdleStage.ABSENT
