"""From the end of an attempt to its outcome: stored and inline results, and results on disk while the store is away."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import brief, encode_failed, encode_outcomes
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging import outputs
from rmgr.daemons.starter.staging.logs import LOG_PART_BYTES, Flushed, StoredStream
from rmgr.daemons.starter.staging.outputs import Charge, Ending, Written, of_task, write
from rmgr.errors import LimitReached, RmgrError, StoreUnavailable, UsageError, ValueTooLarge
from rmgr.model.block import BlockData, FailedRange, Outcome, PastAttempt
from rmgr.model.frames import CommandEnd, Output, TaskEnd, TaskExtra, Value
from rmgr.model.queue import UserLimits
from rmgr.model.states import Reason, State
from rmgr.runtime import machine
from tests.harness.claimed import StoreMail, a_key, a_record, claimed
from tests.harness.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def a_block(count: int = 2, **data: object) -> ClaimedBlock:
    return claimed(a_key(seq=5, submission=42, count=count, attempt=3), BlockData(claimed_us=1000, **data))


def end(block: ClaimedBlock, ending: Ending, cancelled: str | None = None) -> Outcome | FailedRange:
    return outputs.conclude(block, 0, ending, None, backoff_us=100, max_losses=5, cancelled=cancelled)


def test_a_good_end_is_completed() -> None:
    outcome = end(a_block(), of_task(TaskEnd(seq=1, started_us=1500, elapsed_us=7, cpu_us=3, data=b"v")))
    assert outcome == Outcome(index=0, started_us=500, elapsed_us=7, cpu_us=3, value=b"v")


@pytest.mark.parametrize(
    ("reason", "data", "expected"),
    [
        (Reason.EXIT_CODE, {}, State.FAILED),
        (Reason.EXIT_CODE, {"retries": 1}, None),
        (Reason.EXIT_CODE, {"retries": 1, "failures": 1}, State.FAILED),
        (Reason.NODE_LOST, {}, None),
        (Reason.NODE_LOST, {"resubmit": False}, State.FAILED),
        (Reason.BAD_OUTPUT, {"retries": 5}, State.FAILED),
        (Reason.USER_CANCEL, {"retries": 5}, State.CANCELLED),
    ],
)
def test_the_rule_decides_whether_it_may_run_again(reason: Reason, data: dict[str, object], expected: State | None) -> None:
    ended = end(a_block(**data), Ending(reason=reason, started_us=5, elapsed_us=2))
    if expected is None:
        assert isinstance(ended, FailedRange)
        assert (ended.reason, ended.ended_us) == (reason, 7)
    else:
        assert isinstance(ended, Outcome)
        assert (ended.state, ended.reason) == (expected, reason)


def test_a_task_lost_alone_for_the_fifth_time_is_poison() -> None:
    ended = end(a_block(1, losses=4), Ending(reason=Reason.NODE_LOST))
    assert isinstance(ended, Outcome)
    assert ended.reason is Reason.POISON


def test_a_failure_during_a_cancel_is_the_cancel_but_a_success_counts() -> None:
    block = a_block(retries=5)
    failed = end(block, Ending(reason=Reason.SIGNAL, error="killed by signal 15"), cancelled="stop it")
    assert isinstance(failed, Outcome)
    assert (failed.state, failed.reason, failed.error) == (State.CANCELLED, Reason.USER_CANCEL, "stop it")
    assert end(block, Ending(), cancelled="stop it").state is State.COMPLETED


def test_commands_tell_exit_codes_as_a_shell_does() -> None:
    assert outputs.of_command(CommandEnd(seq=1, exit_code=0)).exit_code == 0
    failed = outputs.of_command(CommandEnd(seq=1, reason=Reason.EXIT_CODE, exit_code=3))
    assert (failed.exit_code, failed.error) == (3, "exit code 3")
    assert outputs.of_command(CommandEnd(seq=1, reason=Reason.SIGNAL, signal=9)).exit_code == 137


def test_the_short_way_of_a_command_says_what_the_long_one_says() -> None:
    block = a_block(past=(PastAttempt(1, "n2", Reason.EXIT_CODE),))
    plain = CommandEnd(seq=1, exit_code=0, started_us=1500, elapsed_us=3, cpu_us=2, max_rss_kib=4, out=Output(size=1, data=b"x"))
    assert end(block, outputs.of_command(plain)) == outputs.plain_outcome(block, 0, plain)
    unusual = {"reason": Reason.EXIT_CODE, "signal": 9, "detail": "d", "directory": "/d", "out": Output(size=9000, path="/o")}
    changes = [{name: value} for name, value in unusual.items()]
    assert [one for one in changes if outputs.plain_outcome(block, 0, msgspec.structs.replace(plain, **one))] == []


def test_an_exception_travels_as_the_value() -> None:
    extra = TaskExtra(reason=Reason.EXCEPTION, error=b"E", summary="E: x")
    outcome = end(a_block(), of_task(TaskEnd(seq=1, started_us=1, elapsed_us=1, cpu_us=0, extra=extra)))
    assert (outcome.value, outcome.error, outcome.pickled) == (b"E", "E: x", True)


def test_of_an_output_that_was_cut_only_what_is_kept_must_be_stored() -> None:
    ending = Ending(data=b"abc", out=Output(size=10 << 30, path="/spool/out", dropped=(10 << 30) - 1000), err=Output(size=2, data=b"ok"))
    assert ending.size_bytes == 3 + 1000 + 2



def test_small_things_need_no_store_and_large_ones_are_rows(store: MemoryStore) -> None:
    assert not Ending(data=b"x" * 8000, out=Output(size=3, data=b"abc")).needs_store
    large = Ending(data=b"x" * 9000)
    assert large.needs_store
    written = write(store, 42, 0, 3, large)
    assert (written.value_size, written.data) == (9000, b"")
    assert store.get(keys.output(42, 0, 3)) == (b"x" * 9000, Encoding.PICKLE)


def test_files_are_stored_and_then_removed(store: MemoryStore, tmp_path: Path) -> None:
    value, out, mine = tmp_path / "value", tmp_path / "out", tmp_path / "mine"
    value.write_bytes(b"v" * 1_500_000)
    out.write_bytes(b"o" * (LOG_PART_BYTES * 2 + 5))
    mine.write_bytes(b"m" * 10_000)
    ending = Ending(
        value=Value(pickled=False, path=str(value), size=1_500_000), out=Output(size=LOG_PART_BYTES * 2 + 5, path=str(out)),
        err=Output(size=10_000, path=str(mine)), kept_paths=(str(mine),),
    )
    written = write(store, 42, 1, 3, ending)
    assert written.value_size == 1_500_000
    assert (written.log_parts, written.log) == ((2, 1), (b"ooooo", b""))
    assert store.get(keys.output(42, 1, 3)) == (b"v" * 1_500_000, Encoding.RAW)
    outputs.discard(ending)
    assert (value.exists(), out.exists(), mine.exists()) == (False, False, True)


def test_what_was_flushed_while_it_ran_is_not_stored_again(store: MemoryStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"a" * 5000 + b"b" * 100)
    flushed = Flushed(streams=(StoredStream(size=5000, parts=2), StoredStream(size=2, parts=1)))
    ending = Ending(out=Output(size=5100, path=str(out)), err=Output(size=4, data=b"12er"), flushed=flushed)
    written = write(store, 42, 1, 3, ending)
    assert (written.log, written.log_parts) == ((b"b" * 100, b"er"), (2, 1))


def test_keyed_values_are_rows_in_the_order_of_their_keys(store: MemoryStore) -> None:
    written = write(store, 42, 1, 3, Ending(values=(Value(data=b"0"), Value(data=b"1", pickled=False))))
    assert written.outputs == 2
    assert store.get(keys.output(42, 1, 3, 0)) == (b"0", Encoding.PICKLE)
    assert store.get(keys.output(42, 1, 3, 1)) == (b"1", Encoding.RAW)


def test_values_wait_on_disk_while_the_store_is_away(store: MemoryStore, tmp_path: Path) -> None:
    ending = Ending(data=b"x" * 9000, values=(Value(data=b"y" * 9000), Value(data=b"small")))
    outputs.spill(ending, tmp_path)
    assert (ending.data, len(list(tmp_path.iterdir()))) == (b"", 2)
    outputs.spill(ending, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert write(store, 42, 1, 3, ending).value_size == 9000
    outputs.discard(ending)
    assert list(tmp_path.iterdir()) == []


def test_the_record_of_a_failure_fits_a_znode_whatever_it_carries(store: MemoryStore) -> None:
    past = tuple(PastAttempt(attempt=n, node="n" * 60, reason=Reason.EXIT_CODE, error="e" * 250) for n in range(8))
    block = a_block(1, retries=20, payloads=(b"p" * 12_000,), past=past)
    ending = Ending(
        reason=Reason.EXIT_CODE, error="e" * 5000, out=Output(size=4096, data=b"o" * 4096), err=Output(size=4096, data=b"o" * 4096)
    )
    assert outputs.crowded(block, 0, ending)
    ending.log_rows = True
    ended = outputs.conclude(block, 0, ending, write(store, 42, 0, 3, ending), backoff_us=0, max_losses=5, cancelled=None)
    assert len(encode_failed(ended)) < MAX_ZNODE_BYTES
    assert ended.log_parts == (1, 1)
    assert not outputs.crowded(a_block(payloads=(b"p", b"q")), 0, Ending(reason=ending.reason, error=ending.error)), "without output"


def test_the_wire_form_of_a_silent_success_is_short() -> None:
    outcome = end(a_block(), of_task(TaskEnd(seq=1, started_us=1500, elapsed_us=7, cpu_us=3, data=b"v")))
    assert len(encode_outcomes(brief((outcome,)))) <= 24


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_file_that_is_larger_than_the_runner_keeps_is_not_stored_whole(store: MemoryStore, tmp_path: Path, dropped: int) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        file.write(b"x" * 100)
        file.truncate(1 << 40)  # nothing of it is on the disk
    ending = Ending(out=Output(size=1 << 40, path=str(path), dropped=dropped), output_cap=4 * LOG_PART_BYTES)
    written = write(store, 42, 1, 3, ending)
    assert 4 <= written.log_parts[0] <= 6
    assert len(list(store.keys("log/"))) == written.log_parts[0]


def left(tmp_path: Path, *names: str, cap: int = 0) -> Ending:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "good").write_bytes(b"good")
    (tmp_path / "log").write_bytes(b"x" * LOG_PART_BYTES)
    out = Output(size=LOG_PART_BYTES, path=str(tmp_path / "log"))
    return Ending(files=("good", *names), files_home=str(home), out=out, file_cap=cap)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "was not written"),
        ("good/below", "was not written"),
        ("n" * 300, "File name too long"),
        ("directory", "not a plain file"),
        ("pipe", "not a plain file"),
        ("/dev/zero", "not a plain file"),
        ("link", "out of the work directory"),
        ("../log", "out of the work directory"),
        ("/proc/self/maps", "tells of itself"),
        ("kernel", "out of the work directory"),
        ("a\0b", "no file can have this name"),
        ("\ud800", "no file can have this name"),
    ],
)
def test_whatever_is_wrong_with_an_output_file_is_its_own_tasks(store: MemoryStore, tmp_path: Path, name: str, words: str) -> None:
    ending = left(tmp_path, name)
    (tmp_path / "home" / "directory").mkdir()
    os.mkfifo(tmp_path / "home" / "pipe")
    (tmp_path / "home" / "link").symlink_to(tmp_path / "log")
    (tmp_path / "home" / "kernel").symlink_to("/proc/self/maps")
    written = write(store, 42, 0, 3, ending)
    assert words in written.bad_output
    assert repr(name) in written.bad_output
    assert (written.outputs, written.log_parts) == (0, (1, 0)), "what it has put out is kept"


def test_what_is_wrong_with_the_node_is_not_the_tasks(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    ending = left(tmp_path)
    monkeypatch.setattr(outputs, "open_regular", fails)
    with pytest.raises(OSError, match="Too many"):
        write(store, 42, 0, 3, ending)


def test_holes_of_an_output_file_count(store: MemoryStore, tmp_path: Path) -> None:
    for size, is_stored in ((100_000, True), (100_001, False), (4 << 30, False), (6 << 30, False)):
        ending = left(tmp_path, "sparse", cap=100_000)
        with (tmp_path / "home" / "sparse").open("wb") as file:
            file.truncate(size)
        bad = write(store, 42, 0, 3, ending).bad_output
        assert bad == "" if is_stored else f"({size} bytes, holes counted)" in bad and "at most 98K" in bad
    with (tmp_path / "home" / "sparse").open("wb") as file:
        file.truncate(6 << 30)
    assert "at most 5.0G" in write(store, 42, 0, 3, left(tmp_path, "sparse")).bad_output, "as any value"


def test_a_file_that_grows_while_it_is_read_has_the_same_bound(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = left(tmp_path, "growing", cap=1 << 20)
    path = tmp_path / "home" / "growing"
    path.write_bytes(b"x" * (1 << 20))
    real = os.fstat

    def grows(fd: int) -> os.stat_result:
        found = real(fd)
        if found.st_size == 1 << 20:
            with path.open("ab") as file:
                file.truncate(1 << 30)
        return found

    monkeypatch.setattr(outputs.os, "fstat", grows)
    assert "holes counted" in write(store, 42, 0, 3, ending).bad_output


def test_values_that_a_worker_names_have_the_bound_of_files(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"x" * 2000)
    for value in ({"value": Value(path=str(tmp_path / "value"), size=10)}, {"values": (Value(path=str(tmp_path / "value"), size=10),)}):
        with pytest.raises(ValueTooLarge, match="2000 bytes"):
            write(store, 42, 0, 3, Ending(file_cap=1000, **value))


MIB = 1 << 20
DEADLINE_S = 30.0


class Counting(MemoryStore):
    """Counts writes, which wait for the gate; refuses the keys that it is told to."""

    def __init__(self) -> None:
        super().__init__()
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
    """outputs.OutputRows with its threads; messages are handled by `until`."""

    def __init__(self, spool: Path, deeds: Any = None, store: Counting | None = None) -> None:
        self.store = store or Counting()
        super().__init__(self.store)
        self.bounds = Bounds()
        self.rows = outputs.OutputRows(self.io, deeds, partial(Charge, self.bounds), cap_bytes=MIB)
        self.spool = spool
        self.told: dict[int, Written | Exception] = {}
        self.block = claimed(a_key(submission=42, count=200, attempt=3), BlockData(keyed=True), a_record(42))

    def add(self, index: int, ending: Ending) -> None:
        def done(result: Written | Exception) -> None:
            assert index not in self.told
            self.told[index] = result

        self.rows.add(outputs.StoringEnding(self.block, index, ending, spool=self.spool, log_ttl_s=None, done=done))

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
    assert b"the rest of this output is not stored: ann has reached the limit store_bytes" in desk.told[0].log[0]


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
