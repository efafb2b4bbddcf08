"""Outputs on their way to the data store: many in a round trip, each task's failure its own, on disk while the store is away."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.daemons.starter.staging.outputs import Charge, Ending, OutputRows, StoringEnding, Written
from rmgr.errors import LimitReached, RmgrError, StoreUnavailable, UsageError
from rmgr.model.cluster.queue import UserLimits
from rmgr.model.tasks.block import BlockData
from rmgr.model.wire.frames import Output, Value
from rmgr.runtime import machine
from tests.harness.claimed import StoreMail, a_key, a_record, claimed
from tests.harness.memory_store import MemoryStore

MIB = 1024 * 1024
DEADLINE_S = 30.0


class Counting(MemoryStore):
    """Counts writes, which wait for the gate; refuses the keys that it is told to."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[int] = []
        self.refuses = ""
        self.notes: dict[str, bytes] = {}

    def put_many(self, rows: Sequence[tuple[str, bytes]], **options: Any) -> None:
        self.calls.append(len(rows))
        assert self.gate.wait(DEADLINE_S)
        if any(key == self.refuses for key, _ in rows):
            raise UsageError(f"{self.refuses} is refused")
        self.notes.update(zip((key for key, _ in rows), options.get("notes", ()), strict=False))
        super().put_many(rows, **options)


class Desk(StoreMail):
    """OutputRows with its threads; messages are handled by `until`."""

    def __init__(self, spool: Path, deeds: Any = None, store: Counting | None = None) -> None:
        self.store = store or Counting()
        super().__init__(self.store)
        self.bounds = Bounds()
        self.rows = OutputRows(self.io, deeds, partial(Charge, self.bounds), cap_bytes=MIB)
        self.spool = spool
        self.told: dict[int, Written | Exception] = {}
        self.block = claimed(a_key(submission=42, count=200, attempt=3), BlockData(keyed=True), a_record(42))

    def add(self, index: int, ending: Ending) -> None:
        def done(result: Written | Exception) -> None:
            assert index not in self.told
            self.told[index] = result

        self.rows.add(StoringEnding(self.block, index, ending, spool=self.spool, log_ttl_s=None, done=done))

    def add_values(self, count: int, size: int = 100) -> None:
        for index in range(count):
            self.add(index, Ending(values=(Value(data=bytes([index]) * size, pickled=False),)))

    def out(self, index: int, n: int = 0) -> tuple[bytes, Encoding] | None:
        return self.store.get(keys.output(42, index, 3, n))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.store.gate.set()
    made.io.close()


class Soon(Counting):
    """Begins writes of its own, and ends them when it is told to."""

    puts_soon = True

    def __init__(self) -> None:
        super().__init__()
        self.takes: bool | Exception = True
        self.begun: list[Callable[[RmgrError | None], None]] = []

    def put_soon(self, rows: Sequence[tuple[str, bytes]], *, done: Callable[[RmgrError | None], None], **options: Any) -> bool:
        if isinstance(self.takes, Exception):
            raise self.takes

        def end(error: RmgrError | None = None) -> None:
            if error is None:
                MemoryStore.put_many(self, rows, **options)
            done(error)

        if self.takes:
            self.begun.append(end)
        return self.takes


@pytest.fixture
def soon(tmp_path: Path) -> Iterator[tuple[Desk, Soon]]:
    store = Soon()
    made = Desk(tmp_path, store=store)
    yield made, store
    made.io.close()


def test_one_alone_goes_without_a_thread_and_others_meanwhile_with_one(soon: tuple[Desk, Soon]) -> None:
    desk, store = soon
    desk.add_values(3)
    desk.until(lambda: len(desk.told) == 2)
    assert (sum(store.calls), sorted(desk.told)) == (2, [1, 2])
    assert not desk.io.is_idle
    assert desk.io.pending_bytes == desk.rows.in_memory_bytes == 100
    store.begun[0](None)
    desk.until(lambda: len(desk.told) == 3)
    assert (desk.told[0], desk.out(0)) == (Written(outputs=1), (b"\0" * 100, Encoding.RAW))
    assert desk.io.is_idle
    assert desk.io.pending_bytes == desk.rows.in_memory_bytes == 0
    desk.add(3, Ending(values=(Value(data=b"again", pickled=False),)))
    assert len(store.begun) == 2


@pytest.mark.parametrize("how", ["refused", "broken", "full", "away", "failed", "silent"])
def test_what_could_not_be_begun_or_did_not_end_well_is_written_by_a_thread(soon: tuple[Desk, Soon], how: str) -> None:
    """Once, and an answer that comes late is not heard."""
    desk, store = soon
    errors = {"refused": UsageError("no"), "broken": ValueError("a bug"), "away": StoreUnavailable("away")}
    store.takes = errors.get(how, how != "full")
    desk.add_values(1)
    if how == "failed":
        store.begun[0](StoreUnavailable("away"))
    elif how == "silent":
        desk.io.settle(machine.monotonic() + 4)
        assert not store.calls
        desk.io.settle(machine.monotonic() + 6)
    desk.until(lambda: len(desk.told) == 1)
    assert (desk.told[0], desk.out(0), store.calls) == (Written(outputs=1), (b"\0" * 100, Encoding.RAW), [1])
    if how == "silent":
        store.begun[0](None)
        desk.messages.get(timeout=DEADLINE_S)()
    assert desk.io.is_idle
    assert desk.io.pending_bytes == desk.rows.in_memory_bytes == 0


def test_large_values_mixed_encodings_and_dropped_blocks_are_not_begun(soon: tuple[Desk, Soon]) -> None:
    desk, store = soon
    desk.add_values(1, size=33 * 1024)
    desk.add(1, Ending(values=(Value(data=b"p"), Value(data=b"r", pickled=False))))
    desk.until(lambda: len(desk.told) == 2)
    desk.block.is_dropped = True
    desk.add(2, Ending(values=(Value(data=b"r", pickled=False),)))
    desk.until(lambda: len(desk.told) == 3)
    assert not store.begun
    assert desk.out(2) is None


def test_what_gathers_while_the_store_is_busy_goes_together(desk: Desk) -> None:
    desk.store.gate.clear()
    desk.add_values(100)
    desk.until(lambda: desk.store.calls)
    assert desk.told == {}, "nothing counts before it is stored"
    desk.store.gate.set()
    desk.until(lambda: len(desk.told) == 100)
    assert sum(desk.store.calls) == 100
    assert len(desk.store.calls) <= 4
    assert desk.told[7] == Written(outputs=1)
    assert [desk.out(index) for index in range(100)] == [(bytes([index]) * 100, Encoding.RAW) for index in range(100)]
    assert desk.rows.in_memory_bytes == desk.io.pending_bytes == 0


def test_values_of_both_encodings_and_a_large_result_find_their_rows(desk: Desk) -> None:
    desk.add(0, Ending(values=(Value(data=b"p"), Value(data=b"r", pickled=False))))
    desk.add(1, Ending(data=b"x" * 9000, out=Output(size=2, data=b"hi")))
    desk.until(lambda: len(desk.told) == 2)
    assert (desk.out(0), desk.out(0, 1), desk.out(1)) == ((b"p", Encoding.PICKLE), (b"r", Encoding.RAW), (b"x" * 9000, Encoding.PICKLE))
    large = desk.told[1]
    assert isinstance(large, Written)
    assert (large.value_size, large.data, large.log) == (9000, b"", (b"hi", b""))


def test_large_values_go_each_on_a_thread_of_its_own_and_count_as_memory_until_they_are_stored(desk: Desk) -> None:
    desk.add_values(3, size=MIB)
    assert desk.rows.is_full
    desk.until(lambda: len(desk.told) == 3)
    assert desk.store.calls == []
    assert [desk.out(index) for index in range(3)] == [(bytes([index]) * MIB, Encoding.RAW) for index in range(3)]
    assert desk.rows.in_memory_bytes == desk.io.pending_bytes == 0


def test_a_value_that_cannot_be_stored_fails_its_task_and_no_other(desk: Desk) -> None:
    desk.store.gate.clear()
    desk.store.refuses = keys.output(42, 11, 3)
    desk.add_values(40)
    desk.store.gate.set()
    desk.until(lambda: len(desk.told) == 40)
    assert [index for index, told in desk.told.items() if isinstance(told, Exception)] == [11]
    assert [index for index in range(40) if desk.out(index) is None] == [11]


def test_while_the_store_is_away_every_value_is_on_disk_and_none_is_lost(desk: Desk) -> None:
    desk.store.outage = "it is away"
    desk.store.gate.clear()
    desk.add_values(60, size=20_000)
    assert desk.rows.in_memory_bytes == 60 * 20_000
    assert desk.rows.is_full, "nothing more may begin"
    desk.store.gate.set()
    desk.until(lambda: desk.rows.in_memory_bytes == 0)
    assert not desk.rows.is_full
    assert len(list(desk.spool.iterdir())) == 60
    assert desk.io.pending_bytes == 60 * 20_000
    assert desk.told == {}
    desk.store.outage = ""
    desk.until(lambda: len(desk.told) == 60)
    assert {type(told) for told in desk.told.values()} == {Written}
    assert [desk.out(index) for index in range(60)] == [(bytes([index]) * 20_000, Encoding.RAW) for index in range(60)]
    assert list(desk.spool.iterdir()) == []
    assert desk.io.pending_bytes == 0


def test_what_work_writes_is_counted_for_its_user_once_and_above_the_limit_its_task_alone_fails(desk: Desk, tmp_path: Path) -> None:
    desk.bounds.limits = UserLimits(store_bytes=1_000_000)
    files = []
    for number, size in enumerate((300_000, 400_000)):
        files.append(tmp_path / f"value-{number}")
        files[-1].write_bytes(bytes(size))
    desk.store.outage = "away"
    desk.add(0, Ending(value=Value(path=str(files[0]), size=300_000)))
    desk.add(1, Ending(values=(Value(data=bytes(100_000)),)))
    desk.until(lambda: desk.io.down_since_s is not None)
    desk.store.outage = ""
    desk.until(lambda: len(desk.told) == 2)
    assert desk.bounds.written() == {"ann": {0: 400_000}}, "tried twice, counted once"
    desk.add(2, Ending(value=Value(path=str(files[1]), size=400_000)))
    desk.add(3, Ending(values=(Value(data=bytes(250_000)),)))
    desk.until(lambda: len(desk.told) == 4)
    refused = [result for result in desk.told.values() if isinstance(result, LimitReached)]
    assert len(refused) == 1
    assert "ann has reached the limit store_bytes = 1000000" in refused[0].message
    desk.add(4, Ending(values=(Value(data=bytes(100_000)),)))
    desk.until(lambda: 4 in desk.told)
    assert isinstance(desk.told[4], Written), "what fits is stored"


def test_logs_above_the_limit_are_cut_with_a_line_that_says_so(desk: Desk, tmp_path: Path) -> None:
    desk.bounds.limits = UserLimits(store_bytes=1_000_000)
    out = tmp_path / "out"
    out.write_bytes(b"x" * 2_000_000)
    desk.add(0, Ending(out=Output(size=2_000_000, path=str(out))))
    desk.until(lambda: 0 in desk.told)
    told = desk.told[0]
    assert isinstance(told, Written)
    assert b"the rest of this output is not stored: ann has reached the limit store_bytes" in told.log[0]


def test_of_a_block_that_is_not_the_nodes_own_any_more_nothing_is_written(desk: Desk) -> None:
    desk.block.is_dropped = True
    desk.add_values(3)
    desk.until(lambda: len(desk.told) == 3)
    assert desk.store.calls == []


def test_values_under_output_keys_have_deeds_with_one_signature(tmp_path: Path) -> None:
    class Deeds:
        signed = 0

        def notes(self, rows: Sequence[tuple[str, bytes, str]], encoding: Encoding) -> list[bytes]:
            self.signed += 1
            return [f"{owner} {row} {encoding}".encode() for row, _, owner in rows]

    desk = Desk(tmp_path, deeds := Deeds())
    try:
        desk.add(0, Ending(values=(Value(data=b"one"), Value(data=b"two"))))
        desk.until(lambda: desk.told)
        assert deeds.signed == 1
        row = keys.output(42, 0, 3, 1)
        assert desk.store.notes[row] == f"ann {row} pickle".encode()
        desk.add(1, Ending(data=b"x" * 9000))
        desk.until(lambda: len(desk.told) == 2)
        assert deeds.signed == 1, "a result has its hash in the fragment"
    finally:
        desk.io.close()
