"""Remembered numbers: a process that submits repeatedly reads /ids once, and never uses a wrong number."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.packing import TaskSpec, first_blocks
from rmgr.coord import nonces
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import UsageError
from rmgr.model.submission import Command, Submission, Work
from rmgr.runtime import machine
from rmgr.submitter.port import Order, Submitted, prepared
from rmgr.submitter.submitting import Numbers, submit, submit_many
from tests.harness.client_cluster import Cluster
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually


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


class CountingSigner:
    """Signs for ann, and counts how often."""

    def __init__(self) -> None:
        self.signed_often = 0

    def sign(self, record: Submission, blocks: Sequence[Block]) -> tuple[Submission, Sequence[Block]]:
        self.signed_often += 1
        return replace(record, user="ann", signature=f"{'a' * 32}:{'b' * 128}"), blocks


def one_task() -> Order:
    draft = draft_of(Options(name="x", queue="default"), work=Work.COMMAND, command=Command(argv=("true",)))
    return Order(draft=draft, blocks=first_blocks(draft, TaskSpec(), [b""]) or [], tasks=1, complete=True)


def alone(coordinator: Coordinator, order: Order, **more: Any) -> Submitted:
    return submit(coordinator, order, owner="", deadline_s=time.monotonic() + 60, **more)


def test_a_retry_under_another_number_signs_nothing_anew(coordinator: Counting) -> None:
    signer, numbers = CountingSigner(), Numbers()
    send(coordinator, numbers)
    send(coordinator, None)  # somebody else takes the number that is remembered
    made = alone(coordinator, prepared(one_task(), signer.sign), numbers=numbers)
    assert (made.submission.id, signer.signed_often) == (3, 1)
    names = coordinator.children(paths.pending("default")).result(60) or []
    assert [paths.parse_block(name).submission for name in names] == [3]


def test_a_nonce_is_one_submission_however_often_it_is_sent(coordinator: Counting) -> None:
    wanted = prepared(one_task())
    found = submit_many(coordinator, [wanted, wanted, prepared(one_task()), wanted], deadline_s=time.monotonic() + 60)
    assert [one.created for one in found] == [True, False, True, False]
    assert [one.submission.id for one in found] == [1, 1, found[2].submission.id, 1]
    nonce = coordinator.get(nonces.place_of(wanted.draft)).result(60)
    assert (nonce.data, nonce.version) == (b"1", 0)
    assert coordinator.children(paths.TOKENS).result(60) == []


@pytest.mark.parametrize("fate", ["lose_reply", "lose_request"])
def test_a_submission_whose_answer_is_lost_is_found_by_its_nonce(coordinator: Counting, fate: str) -> None:
    getattr(coordinator, fate)(1)
    made = alone(coordinator, prepared(one_task()))
    assert (made.submission.id, made.submission.nonce != "") == (1, True)
    assert coordinator.children(f"{paths.SUBS}/0").result(60) == ["1"]


def test_what_was_signed_hours_before_others_submitted_is_not_sent(coordinator: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper's clock is that of /ids at least; a record that nobody signs is run whatever its time."""
    monkeypatch.setattr(coordinator.tree, "now_ms", lambda: 1_800_007_300_000)
    send(coordinator, None)
    monkeypatch.setattr(machine, "wall_s", lambda: 1_800_000_000.0)
    with pytest.raises(UsageError, match=r"2027-01-15T08:00:00Z by the clock of .* submitted at 2027-01-15T10:01:40Z by ZooKeeper's clock"):
        alone(coordinator, prepared(one_task(), CountingSigner().sign))
    assert alone(coordinator, prepared(one_task())).submission.id == 2


def test_many_are_on_the_way_at_once_and_each_has_its_number(coordinator: Counting) -> None:
    numbers, made = Numbers(), list[int]()

    def looks_of_fifty() -> int:
        before = coordinator.looks
        with ThreadPoolExecutor(8) as pool:
            sent = pool.map(lambda _: alone(coordinator, prepared(one_task()), numbers=numbers), range(50))
            made.extend(one.submission.id for one in sent)
        assert sorted(made) == list(range(1, len(made) + 1))
        return coordinator.looks - before

    # Those that begin together read /ids, and stand in each other's way until one has made its submission while no other reads.
    eventually(lambda: looks_of_fifty() < 25)


def test_what_no_starter_would_believe_is_refused_before_anything_is_submitted(coordinator: Counting) -> None:
    good = draft_of(Options(name="x", queue="default"), work=Work.COMMAND, command=Command(argv=("true",)))
    for bad in (replace(good, retries=-1), replace(good, name="half \udcff"), replace(good, name="a" * 1001), replace(good, command=None)):
        with pytest.raises(UsageError, match="this cannot be submitted: the submission: "):
            prepared(Order(draft=bad))
    assert submit(coordinator, prepared(Order(draft=good)), owner="", deadline_s=time.monotonic() + 60).submission.id == 1
