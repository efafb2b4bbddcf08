"""What a Starter asks before it runs a block: does its queue admit the submission?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.protocol import paths
from rmgr.model.base.resources import Request
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.submission import Submission, Terms, Work


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
