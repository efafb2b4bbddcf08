"""A Starter's checks before it claims and runs a block: whether its queue admits the submission, and the rest of a cap of cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.decisions.admitted import capped, not_admitted, room_below_cap
from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.ops.leader import tell_use
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_USAGE_BYTES, Create, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.coord.views.snapshot import BlockOnNode, by_node, in_all
from rmgr.model.base import Request
from rmgr.model.block import Allocation, BlockKey
from rmgr.model.queue import CORES, JOBS, CappedUse, QueueSpec, UserLimits
from rmgr.model.submission import Submission, Terms, Work


def asked(queue: dict[str, Any], record: dict[str, Any], *, is_newer: bool = True) -> str:
    made = Submission(**({"id": 1, "name": "a", "user": "ann", "queue": "q", "work": Work.COMMAND} | record))
    key = BlockKey(priority=5, seq=1, submission=1, first=0, count=1, attempt=1, cores=4, memory_mib=1)
    return not_admitted(QueueSpec(name="q", **queue), made, key, is_newer=is_newer)


def test_what_a_queue_admits() -> None:
    assert asked({}, {}) == ""
    limits = {"users": ("ann",), "max_cores": 4, "max_memory_bytes": 10, "max_priority": 5}
    assert asked(limits, {"request": Request(memory_bytes=10)}) == ""


@pytest.mark.parametrize(
    ("queue", "record", "why"),
    [
        ({"state": "closed"}, {}, "queue q is closed"),
        ({"max_cores": 3}, {}, "allows 3 cores"),
        ({"max_memory_bytes": 9}, {"request": Request(memory_bytes=10)}, "allows 9 bytes"),
        ({"max_priority": 4}, {}, "allows priority 4"),
    ],
    ids=lambda item: str(item)[:30],
)
def test_limits_concern_what_came_after_they_were_set(queue: dict[str, Any], record: dict[str, Any], why: str) -> None:
    assert why in asked(queue, record)
    assert asked(queue, record, is_newer=False) == ""


@pytest.mark.parametrize("is_newer", [True, False])
def test_a_name_with_the_tag_of_another_user_is_not_admitted(is_newer: bool) -> None:
    record = Submission(id=1, name="a", user="ann", queue="q", work=Work.COMMAND)
    key = BlockKey(priority=5, seq=1, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=1)
    told = [
        not_admitted(QueueSpec(name="q"), record, replace(key, user=user), is_newer=is_newer)
        for user in ("", paths.user_tag("ann"), paths.user_tag("bob"))
    ]
    assert told == ["", "", "its name has the tag of another user than ann"]


def test_only_what_an_operator_has_raised_may_say_so() -> None:
    record = Submission(id=1, name="a", user="ann", queue="q", work=Work.COMMAND)
    change = amended(record, Terms(priority=5), Doer(name="root", is_operator=True, now_us=1))
    assert isinstance(change, Change)
    key = BlockKey(priority=5, seq=1, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=1, user=paths.RAISED)
    told = [not_admitted(QueueSpec(name="q"), one, key, is_newer=True) for one in (change.record, record)]
    assert told == ["", "its name says that an operator has raised it, and none has"]
    bounded = QueueSpec(name="q", max_priority=3)
    assert not_admitted(bounded, change.record, key, is_newer=True) == "", "what an operator raises may pass the queue's bound"
    mine = replace(key, user=paths.user_tag("ann"))
    assert not_admitted(bounded, record, mine, is_newer=True) == "queue q allows priority 3"
    assert paths.parse_block(paths.block_name(key)).user == paths.tag_in(paths.block_name(key)) == paths.RAISED


@pytest.mark.parametrize("is_newer", [True, False])
def test_who_may_not_use_a_queue_has_nothing_run_there(is_newer: bool) -> None:
    assert asked({"users": ("bob",)}, {}, is_newer=is_newer) == "user ann may not use queue q"
    assert asked({}, {"queue": "other"}, is_newer=is_newer) == "its submission is of queue other"


def block(submission: int, count: int = 1, cores: int = 1) -> BlockKey:
    return BlockKey(priority=0, seq=1, submission=submission, first=0, count=count, attempt=1, cores=cores, memory_mib=0)


def test_cores_in_use_are_those_of_what_is_left_on_every_node_of_a_job() -> None:
    users = {1: "ann", 2: "bob"}
    placed = Allocation(shares=(("n1", 1), ("n2", 2)), threads=2, memory_mib=0, started_us=0, planned_us=0)
    claimed = [
        BlockOnNode(node="n1", key=block(1, 4), done=0b0110),  # two are left
        BlockOnNode(node="n1", key=block(1, 2, cores=2), serial=True),  # one after another
        BlockOnNode(node="n1", key=block(2), allocation=placed),
        BlockOnNode(node="n2", key=block(1, 200)),  # most of it is claimed ahead
        BlockOnNode(node="n2", key=block(3, 9)),  # nobody knows whose
        BlockOnNode(node="n2", key=block(2), done=1),
    ]
    used = by_node(claimed, lambda one: users.get(one.key.submission), {"n1": 8, "n2": 8})
    assert used == {"n1": {"ann": 4, "bob": 2}, "n2": {"bob": 4, "ann": 8}}
    assert in_all(used) == {"ann": 12, "bob": 6}


def test_jobs_that_take_turns_hold_no_more_of_a_node_than_it_has() -> None:
    users = {1: "ann", 2: "ann", 3: "bob", 4: "ann"}
    turns = Allocation(shares=(("n1", 2), ("n2", 2)), threads=2, memory_mib=0, started_us=0, planned_us=0, gang="default")
    own = Allocation(shares=(("n2", 1),), threads=1, memory_mib=0, started_us=0, planned_us=0)
    claimed = [
        *(BlockOnNode(node="n1", key=block(number), allocation=turns) for number in (1, 2, 3)),
        BlockOnNode(node="n2", key=block(4), allocation=own),
    ]
    used = by_node(claimed, lambda one: users.get(one.key.submission), {"n1": 4, "n2": 6})
    assert used == {"n1": {"ann": 4, "bob": 4}, "n2": {"ann": 6, "bob": 4}}
    used = by_node(claimed, lambda one: users.get(one.key.submission), {"n1": 4})
    assert used["n2"] == {"ann": 1}, "a node whose record has gone: what else is there stays"


def test_only_of_users_who_have_a_cap_is_told() -> None:
    limits = UserLimits(cores_of={"ann": 4, "cy": 0}, max_jobs_per_user=9, jobs_of={"bob": 0})
    told = capped(limits, {"n1": {"ann": 1, "bob": 6}, "n2": {"ann": 3, "cy": 1}}, {"ann": 2, "bob": 3}, 3)
    assert told == CappedUse(cores={"ann": 4}, nodes={"ann": 2}, jobs={"ann": 2}, free=3)
    assert [type(tell_use(told, version).ops[0]) for version in (None, 7)] == [Create, Set]
    assert tell_use(told, 7).ops[0].path == paths.USAGE
    assert (limits.of(CORES, "ann"), limits.of(CORES, "bob"), limits.of(JOBS, "bob"), limits.of(JOBS, "ann")) == (4, 0, 0, 9)
    assert [one.has_caps for one in (limits, UserLimits(), UserLimits(cores_of={"ann": 0}), UserLimits(max_cores_per_user=1))] == [
        True, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "more", "among", "cores", "least", "most"),
    [
        (0, 0, 1, 1, 40, 40),
        (0, 0, 4, 1, 10, 10),  # its part: the others claim, too
        (0, 10, 4, 1, 0, 0),  # it has had its part of it
        (0, 0, 100, 1, 0, 1),  # some of a hundred claim a task
        (0, 1, 100, 1, 0, 0),
        (40, 0, 4, 1, 0, 0),
        (40, -2, 4, 1, 2, 2),  # what has ended here may be begun anew at once
        (43, -1, 4, 1, 0, 1),  # of what is too much, it has ended its part
        (48, -2, 4, 1, 0, 0),
        (38, 0, 1, 4, 0, 0),  # a task of 4 cores has no room
        (30, 0, 4, 4, 0, 4),
    ],
)
def test_a_starter_claims_its_part_of_what_a_cap_leaves(told: int, more: int, among: int, cores: int, least: int, most: int) -> None:
    found = [room_below_cap(cap=40, told=told, more=more, part=1 / among, cores=cores, chance=at / 100) for at in range(100)]
    assert (min(found), max(found)) == (least, most)


def test_of_many_users_those_who_are_nearest_to_their_caps_have_room() -> None:
    users = [f"{'u' * 200}{at:05d}" for at in range(3000)]
    has = {user: 1 + at % 40 for at, user in enumerate(users)}
    told = capped(UserLimits(max_cores_per_user=40, max_jobs_per_user=40), {"n1": has}, has, 1)
    assert len(encode_record(told)) <= MAX_USAGE_BYTES
    assert set(told.cores.values()) == {40}
    assert told.cores == told.jobs
    assert len(told.cores) > 50
