"""Output keys claimed beside their HAND, with a store that writes without an extra thread, and when the claim fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.client.submission.packing import Packed, TaskSpec
from rmgr.client.submission.sender import HandedKeys
from rmgr.client.values import Values
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import encode_keyed
from rmgr.errors import KeyExists, RmgrError, StoreUnavailable
from rmgr.model.block import KeyedPayload
from rmgr.model.line import ClaimStage
from rmgr.procedures.output_keys import Fates
from rmgr.runtime.story import Stories
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree

GUID = "0123456789abcdef"


class Store(MemoryStore):
    """Begins writes, and ends them when it is told to."""

    puts_soon = True

    def __init__(self) -> None:
        super().__init__()
        self.takes: bool | Exception = True
        self.begun: list[Callable[[], None]] = []
        self.calls = 0

    def put_soon(self, rows: Sequence[tuple[str, bytes]], *, done: Callable[[RmgrError | None], None], **options: Any) -> bool:
        if isinstance(self.takes, Exception):
            raise self.takes

        def end() -> None:
            try:
                MemoryStore.put_many(self, rows, **options)
            except RmgrError as error:
                done(error)
            else:
                done(None)

        if self.takes:
            self.begun.append(end)
        return self.takes

    def put_many(self, rows: Sequence[tuple[str, bytes]], **options: Any) -> None:
        self.calls += 1
        super().put_many(rows, **options)


class Timer:
    """One of `Desk.after`."""

    def __init__(self, job: Callable[[], None]) -> None:
        self.job: Callable[[], None] | None = job

    def cancel(self) -> None:
        self.job = None


class Desk:
    """A Submitter's loop, its submission and its node, on this thread."""

    guid = GUID

    def __init__(self) -> None:
        self.store = Store()
        self.timers: list[Timer] = []
        self.said: list[ClaimStage] = []
        self.refused: dict[int, RmgrError] = {}
        self.number = 7
        self.loop = self.kept = self
        self.stories = Stories(self)
        self.keys = HandedKeys(self, Values(self.store, Fates(self.store, MemoryCoordinator(MemoryTree()))))  # type: ignore[arg-type]
        payload = encode_keyed(KeyedPayload((), ("out",)))
        packed = Packed(TaskSpec(keyed=True), 3, (payload,), solid=False, row="", to_row=False)
        [self.block] = self.keys.take([packed])

    def claim(self) -> None:
        self.keys.claim(self.block)

    @property
    def pointer(self) -> tuple[bytes, Encoding] | None:
        return self.store.get(keys.named("out"))

    # -- the loop

    def post(self, job: Callable[[], None]) -> None:
        job()

    def after(self, delay_s: float, job: Callable[[], None]) -> Timer:
        assert delay_s > 0
        self.timers.append(Timer(job))
        return self.timers[-1]

    def fire(self) -> None:
        for timer in self.timers:
            if timer.job is not None:
                timer.job()

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        made: Future[Any] = Future()
        try:
            made.set_result(job())
        except RmgrError as error:
            made.set_exception(error)
        return made

    def jitter(self, seconds: float) -> float:
        return seconds

    # -- the submission, and the node

    def is_open(self, block: Packed) -> bool:
        return block is self.block

    def refuse(self, refused: Mapping[int, RmgrError], *, is_early: bool = False) -> None:
        assert is_early
        self.refused.update(refused)

    def notify(self) -> None:
        """Nobody waits."""

    most_left = 1

    def claimed(self, stage: ClaimStage) -> None:
        self.said.append(stage)


MINE = (keys.encode_pointer(Pointer(sub=7, index=3, n=0, by=GUID)), Encoding.POINTER)


def test_a_free_key_is_claimed_without_a_thread() -> None:
    desk = Desk()
    desk.claim()
    assert (desk.said, desk.keys.first) == ([], 3)
    desk.store.begun[0]()
    assert (desk.said, desk.keys.first, desk.pointer) == ([ClaimStage.MADE], None, MINE)
    assert desk.store.calls == 0
    desk.fire()
    assert desk.said == [ClaimStage.MADE], "the answer has ended the wait for it"


def test_a_taken_key_is_looked_at_and_refused() -> None:
    desk = Desk()
    Values(desk.store, Fates(desk.store, MemoryCoordinator(MemoryTree()))).put("out", "theirs")
    desk.claim()
    desk.store.begun[0]()
    assert (desk.said, desk.keys.first) == ([ClaimStage.HERE], None)
    assert isinstance(desk.refused[3], KeyExists)


@pytest.mark.parametrize("how", ["refused", "full", "none", "silent"])
def test_what_does_not_begin_or_does_not_end_is_claimed_with_a_thread(how: str) -> None:
    desk = Desk()
    desk.store.puts_soon = how != "none"
    desk.store.takes = {"refused": StoreUnavailable("away"), "full": False}.get(how, True)
    desk.claim()
    if how == "silent":
        assert (desk.said, desk.store.calls) == ([], 0)
        desk.fire()
    assert (desk.said, desk.pointer, desk.store.calls) == ([ClaimStage.MADE], MINE, 1)
    for end in desk.store.begun:  # an answer that comes late
        end()
    assert (desk.said, desk.refused) == ([ClaimStage.MADE], {})


def test_while_the_store_is_away_it_is_tried_again() -> None:
    desk = Desk()
    desk.store.outage = "away"
    desk.claim()
    desk.store.begun[0]()
    assert (desk.said, desk.keys.first) == ([], 3)
    desk.store.outage = ""
    desk.fire()
    assert (desk.said, desk.pointer) == ([ClaimStage.MADE], MINE)


def test_a_hand_that_was_refused_is_not_said_to_be_claimed() -> None:
    desk = Desk()
    desk.claim()
    desk.keys.drop()
    desk.store.begun[0]()
    assert desk.said == []
