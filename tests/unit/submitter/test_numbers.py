"""Numbers that are remembered: a process that submits again and again reads /ids once, and is never wrong about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmgr.client.specs import Options, draft_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import UsageError
from rmgr.model.tasks.submission import Command, Work
from rmgr.submitter.port import Order, Submitted, prepared
from rmgr.submitter.submitting import Numbers, submit
from tests.harness.client_cluster import Cluster
from tests.harness.memory import MemoryCoordinator


class Counting(MemoryCoordinator):
    """Counts readings of /ids."""

    looks = 0

    def get(self, path: str, **options: Any) -> Any:
        self.looks += path == paths.IDS
        return super().get(path, **options)


@pytest.fixture
def coordinator() -> Iterator[Counting]:
    cluster = Cluster()
    made = Counting(cluster.tree)
    yield made
    made.close()
    cluster.stop()


def send(coordinator: Coordinator, numbers: Numbers | None, *, token: str = "") -> Submitted:
    draft = draft_of(Options(name="x", token=token, queue="default"), work=Work.COMMAND, command=Command(argv=("true",)))
    return submit(coordinator, prepared(Order(draft=draft)), owner="", deadline_s=time.monotonic() + 60, numbers=numbers)


def test_who_submits_alone_reads_the_next_number_once(coordinator: Counting) -> None:
    numbers = Numbers()
    assert [send(coordinator, numbers).submission.id for _ in range(4)] == [1, 2, 3, 4]
    assert coordinator.looks == 1


def test_a_number_that_somebody_else_took_is_noticed_and_none_is_used_twice(coordinator: Counting) -> None:
    mine, theirs = Numbers(), Numbers()
    found = [send(coordinator, numbers).submission.id for _ in range(3) for numbers in (mine, theirs)]
    assert found == [1, 2, 3, 4, 5, 6]


def test_a_token_that_was_used_before_is_looked_up_whatever_is_remembered(coordinator: Counting) -> None:
    numbers = Numbers()
    first = send(coordinator, numbers, token="t-1")
    again = send(coordinator, numbers, token="t-1")
    assert (again.submission.id, again.created) == (first.submission.id, False)
    assert send(coordinator, numbers).submission.id == 2


def test_a_number_is_made_once_although_its_answer_is_lost(coordinator: Counting) -> None:
    numbers = Numbers()
    send(coordinator, numbers)
    coordinator.lose_reply(1)
    assert send(coordinator, numbers).submission.id == 2
    assert send(coordinator, numbers).submission.id == 3


def test_what_no_starter_would_believe_is_refused_before_anything_is_submitted(coordinator: Counting) -> None:
    good = draft_of(Options(name="x", queue="default"), work=Work.COMMAND, command=Command(argv=("true",)))
    for bad in (replace(good, retries=-1), replace(good, name="half \udcff"), replace(good, name="a" * 1001), replace(good, command=None)):
        with pytest.raises(UsageError, match="this cannot be submitted: the submission: "):
            prepared(Order(draft=bad))
    assert submit(coordinator, prepared(Order(draft=good)), owner="", deadline_s=time.monotonic() + 60).submission.id == 1
