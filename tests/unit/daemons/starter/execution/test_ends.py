"""Ends of tasks: a bad one harms no other and leaves no task RUNNING; output that cannot be stored, or still grows."""

from __future__ import annotations

import errno
import math
import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.workevents import CommandsEnded, SlotLost, TasksEnded, TasksReturned, WorkerBlocked, WorkerEnded
from rmgr.client.logs import read_ended, read_flushed
from rmgr.config import StarterConfig
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.shares import Turns
from rmgr.daemons.starter.execution.ends import FIRST_FLUSH_S, MOST_IN_VAIN, Ends, LiveLogs
from rmgr.daemons.starter.staging.logs import LOG_PART_BYTES
from rmgr.daemons.starter.staging.outputs import Charge, Ending, Written, write
from rmgr.errors import StoreUnavailable, ValueTooLarge
from rmgr.model.block import BlockData, place
from rmgr.model.frames import NO_OUTPUT, CommandEnd, TaskEnd, TaskExtra
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from rmgr.runner.host.outputs import open_output, read_live, take, trim
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from tests.harness.claimed import a_key, claimed
from tests.harness.memory_store import MemoryStore


class Lane:
    def __init__(self) -> None:
        self.tasks: dict[int, tuple[ClaimedBlock, int]] = {}
        self.owner, self.since_s, self.recalling = None, 0.0, False


class Lanes:
    """One lane of a worker and one of commands; what is in them goes as in the real ones."""

    def __init__(self) -> None:
        self.runner = SimpleNamespace(node="n1")
        self.lane: Lane | None = Lane()
        self.left_by: list[object] = []

    def of_worker(self, _worker: object) -> Lane | None:
        return self.lane

    of_slot = of_worker

    def ended(self, lane: Lane, seqs: Any, now_s: float | None) -> list[Any]:
        self.left(lane, now_s)
        return [task for seq in seqs if (task := lane.tasks.pop(seq, None)) is not None]

    def left(self, lane: Lane, _now_s: float | None) -> None:
        self.left_by.append(lane)

    def drop_worker(self, _worker: object) -> Lane | None:
        lane, self.lane = self.lane, None
        return lane

    drop_slot = drop_worker

    def again(self, block: ClaimedBlock) -> None:
        """What waits of the block is given to another worker."""
        self.lane = Lane()
        self.lane.tasks = {index + 1: (block, index) for index in block.hand_out(len(block.ready))}

    def has_chosen_python(self, _slot: object) -> bool:
        return False

    def block(self, _lane: Lane, _seq: int) -> None:
        raise KeyError("what nobody thought of")


class Node:
    """Ends of a node whose parts raise where `bad` says so."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.bad: set[int] = set()
        self.failures = 0
        self.strikes: list[str] = []
        self.stored: list[Any] = []
        self.killed = 0
        logs = SimpleNamespace(has=lambda _seq: False, take=self._taken, remember=lambda *_: None)
        stager = SimpleNamespace(
            is_needed=lambda _block: False, done=lambda *_: None, left=SimpleNamespace(has=lambda _block: False),
            named_outputs=lambda *_: ("", ""), appends=lambda _block: False, outputs_of=lambda *_: (),
        )
        shared: Any = SimpleNamespace(
            io=SimpleNamespace(run=lambda *_: None), rows=SimpleNamespace(add=self.stored.append, delete=lambda *_: None),
            times=SimpleNamespace(observe=lambda *_: None), turns=defaultdict(Turns), settings=ClusterSettings(),
            config=StarterConfig(log_cap_bytes=1), disk_caps=SimpleNamespace(user_bytes=0),
            aside=Aside(structlog.get_logger(), self._failed),
        )
        self.name, self.shared, self.stager, self.logs, self.log = "n1", shared, stager, logs, structlog.get_logger()
        me: Any = self
        self.ends = Ends(me, spool=Path())
        self.slot: Any = SimpleNamespace(directory="/slot", number=0, account=None, is_up=True, uses=1, kill=self._kill)

    def strike(self, what: str, _detail: str, _account: object = None) -> None:
        self.strikes.append(what)

    def ended(self, *_: object) -> None:
        """It is counted."""

    def missed(self) -> None:
        """Files may be gone."""

    def _taken(self, seq: int) -> None:
        if seq in self.bad:
            raise PermissionError(13, "Permission denied")

    def _failed(self) -> None:
        self.failures += 1

    def _kill(self) -> None:
        self.killed += 1

    def give(self, count: int = 3, **command: Any) -> ClaimedBlock:
        """A block of commands whose tasks all run, with seqs from 1 on."""
        block = claimed(a_key(submission=7, count=count))
        record = SimpleNamespace(command=Command(argv=("x",), **command), backoff_us=0, user="ann")
        block.info = SimpleNamespace(record=record, account=None, kind=7)
        self.lanes.lane.tasks = {index + 1: (block, index) for index in block.hand_out(count)}
        return block


def told(block: ClaimedBlock) -> list[tuple[int, Reason]]:
    """How its tasks ended; none of them is anywhere else."""
    assert (block.live, block.writing) == (0, 0)
    return sorted([(one.index, one.reason) for one in block.arrived] + [(index, one.reason) for index, one in block.failed])


GOOD, BAD, LOST = Reason.NONE, Reason.BAD_OUTPUT, Reason.WORKER_LOST
LONG = {"cwd": "/x", "out": "o"}  # not the short way of plain commands


def test_one_bad_end_loses_no_other_of_its_event_and_none_of_other_events() -> None:
    node = Node()
    block = node.give(**LONG)
    node.bad = {2}
    ends = tuple(CommandEnd(seq=seq) for seq in (1, 2, 3))
    node.ends.take([CommandsEnded(node.slot, ends[:2]), CommandsEnded(node.slot, ends[2:])])
    assert told(block) == [(0, GOOD), (1, BAD), (2, GOOD)]
    bad = next(outcome for outcome in block.arrived if outcome.index == 1)
    assert bad.state is State.FAILED
    assert "node n1 could not take in how it ended: PermissionError" in bad.error
    assert node.lanes.lane.tasks == {}, "its core is free"
    assert (node.failures, node.killed, node.strikes) == (1, 0, [])


def test_a_bad_end_of_a_task_that_is_being_cancelled_is_its_cancel() -> None:
    node = Node()
    block = node.give(1, **LONG)
    node.bad, block.cancel_all = {1}, "enough"
    node.ends.take([CommandsEnded(node.slot, (CommandEnd(seq=1),))])
    assert [(one.state, one.error) for one in block.arrived] == [(State.CANCELLED, "enough")]


def test_calls_have_the_same_boundary() -> None:
    node = Node()
    block = node.give()
    node.bad = {2}
    extra = TaskExtra(reason=Reason.EXCEPTION)
    node.ends.take([TasksEnded(node.slot, None, tuple(TaskEnd(seq, 1, 1, 1, b"", True, extra) for seq in (1, 2, 3)))])
    assert told(block) == [(0, Reason.EXCEPTION), (1, BAD), (2, Reason.EXCEPTION)]
    assert node.lanes.left_by, "its core is free"


def test_a_block_whose_quick_ends_cannot_be_taken_in_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    block = node.give()
    settle, first = block.settle, [True]

    def fails_once(self: ClaimedBlock, outcomes: Any, now_s: float) -> None:
        if first:
            first.clear()
            raise ValueError("a story")
        settle(outcomes, now_s)

    monkeypatch.setattr(ClaimedBlock, "settle", fails_once)
    node.ends.take([TasksEnded(node.slot, None, tuple(TaskEnd(seq, 1, 1, 1, b"", True) for seq in (1, 2, 3)))])
    assert told(block) == [(0, BAD), (1, BAD), (2, BAD)]


@pytest.mark.parametrize("kind", ["worker", "slot"])
def test_tasks_of_what_is_lost_end_whatever_raises(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    block = node.give()
    block.data = BlockData(resubmit=False)
    node.bad = {2}
    worker = WorkerEnded(node.slot, None, 2, Reason.NONE, 1, 0, "", 1, 1, 1, 1, NO_OUTPUT, NO_OUTPUT, (1, 3))
    slot = SlotLost(node.slot, "killed", (2,), (1, 3), expected=True)
    monkeypatch.setattr(node.ends.reopening, "closed", lambda *_: None)
    node.ends.take([worker if kind == "worker" else slot])
    assert list(block.ready) == [0, 2]
    assert block.live == 0
    assert [(one.index, one.reason) for one in block.arrived] == [(1, LOST)]


@pytest.mark.parametrize("kind", ["worker", "slot"])
def test_where_even_the_event_itself_cannot_be_read_its_tasks_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    block = node.give()

    def fails(*_: object) -> None:
        raise TypeError("nonsense")

    worker = WorkerEnded(node.slot, None, 2, Reason.NONE, 1, 0, "", 1, 1, 1, 1, NO_OUTPUT, NO_OUTPUT, (1, 3))
    slot = SlotLost(node.slot, "killed", (2,), (1, 3), expected=True)
    monkeypatch.setattr(node.ends, "worker_ended" if kind == "worker" else "slot_lost", fails)
    node.ends.take([worker if kind == "worker" else slot])
    assert told(block) == [(0, LOST), (1, LOST), (2, LOST)]
    assert node.lanes.lane is None


def test_an_event_that_says_nothing_of_ends_ends_its_slot_and_no_other_event() -> None:
    node = Node()
    block = node.give(**LONG)
    ends = CommandsEnded(node.slot, tuple(CommandEnd(seq=seq) for seq in (1, 2, 3)))
    node.ends.take([WorkerBlocked(node.slot, None, 1), ends, TasksReturned(node.slot, None, (), Reason.NONE)])
    assert told(block) == [(0, GOOD), (1, GOOD), (2, GOOD)]
    assert (node.killed, node.failures) == (1, 1), "the slot tells what becomes of the rest"


def test_what_raises_once_it_is_stored_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    block = node.give(1, output_files=(("k", "f"),))
    node.ends.take([CommandsEnded(node.slot, (CommandEnd(seq=1, directory="/slot/t1"),))])
    assert (block.live, block.writing) == (0, 1)
    monkeypatch.setattr("rmgr.daemons.starter.staging.outputs.conclude", lambda *_, **__: 1 / 0)
    node.stored[0].done(Written())
    assert told(block) == [(0, BAD)]


def test_files_of_commands_are_named_and_not_looked_at() -> None:
    node = Node()
    block = node.give(1, output_files=(("k", "f"), ("l", "/far/x")))
    node.ends.take([CommandsEnded(node.slot, (CommandEnd(seq=1, directory="/slot/t1"),))])
    ending = node.stored[0].ending
    assert (ending.files, ending.files_home, ending.is_far) == (("f", "/far/x"), "/slot/t1/", True)
    node.stored[0].done(Written(bad_output="its output file '/far/x' cannot be stored: Permission denied"))
    assert told(block) == [(0, BAD)]
    assert "/far/x" in block.arrived[0].error


def worker_lost(node: Node, seq: int = 0) -> WorkerEnded:
    return WorkerEnded(node.slot, None, seq, LOST, None, 9, "", 1, 1, 1, 1, NO_OUTPUT, NO_OUTPUT, ())


@pytest.mark.parametrize("kind", ["worker", "slot"])
def test_tasks_whose_workers_always_die_before_they_begin_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(node.ends.reopening, "lost", lambda *_: None)
    block = node.give()
    block.data = BlockData(resubmit=False)
    tries = 0
    while block.unfinished and tries < 100:
        node.ends.take([worker_lost(node) if kind == "worker" else SlotLost(node.slot, "killed", (), (1, 2, 3), expected=False)])
        tries += 1
        node.lanes.again(block)
    assert tries == MOST_IN_VAIN
    assert told(block) == [(0, LOST), (1, LOST), (2, LOST)]
    assert "before it began" in block.arrived[0].error


def test_tasks_behind_those_that_kill_their_worker_are_begun_as_often_as_it_takes() -> None:
    node = Node()
    block = node.give(4 * MOST_IN_VAIN)
    block.data = BlockData(resubmit=False)
    for seq in range(1, 4 * MOST_IN_VAIN + 1):
        node.ends.take([worker_lost(node, seq)])
        node.lanes.again(block)
    assert [(one.index, one.reason) for one in block.arrived] == [(index, LOST) for index in range(4 * MOST_IN_VAIN)]
    assert not any("before it began" in one.error for one in block.arrived)


def test_a_slot_that_was_closed_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(node.ends.reopening, "closed", lambda *_: None)
    block = node.give()
    for _ in range(4 * MOST_IN_VAIN):
        node.ends.take([SlotLost(node.slot, "closed", (), (1, 2, 3), expected=True)])
        node.lanes.again(block)
    assert not block.arrived


def block() -> Any:
    info = SimpleNamespace(record=SimpleNamespace(user="ann"))
    return SimpleNamespace(writing=1, key=SimpleNamespace(submission=1), info=info)


def stored_badly(node: Node, error: Exception) -> list[tuple[int, Reason]]:
    """How a task ended whose output the store did not take."""
    block = node.give(1, output_files=(("k", "f"),))
    node.ends.take([CommandsEnded(node.slot, (CommandEnd(seq=1, directory="/slot/t1"),))])
    node.stored.pop().done(error)
    return told(block)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("embedded null byte"), Reason.BAD_OUTPUT),
        (ValueError("Exceeds the limit (4300 digits) for integer string conversion"), Reason.BAD_OUTPUT),
        (ValueTooLarge("6 GiB"), Reason.BAD_OUTPUT),
        (StoreUnavailable("away"), Reason.NODE_LOST),
        (OSError(errno.EIO, "the disk"), Reason.NODE_LOST),
    ],
)
def test_what_users_choose_blames_no_node(error: Exception, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(node, "missed", lambda: pytest.fail("nothing is missing"))
    assert stored_badly(node, error) == [(0, reason)]
    assert bool(node.strikes) is (reason is Reason.NODE_LOST)


def test_outputs_that_a_user_cannot_store_fill_no_log() -> None:
    node, lines = Node(), list[str]()
    node.log = SimpleNamespace(error=lambda event, **_: lines.append(event), info=lambda event, **_: lines.append(event))
    for _ in range(1000):
        stored_badly(node, ValueTooLarge("6 GiB"))
    assert 0 < len(lines) < 200


CHARGES = partial(Charge, Bounds())


class SlowIO:
    """A store that answers when told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[Any], object]] = []
        self.done: list[Callable[[object], None]] = []

    def run(self, job: Callable[[Any], object], done: Callable[[object], None], *, user: str) -> None:
        assert user == "u"
        self.jobs.append(job)
        self.done.append(done)


def lane_of(seq: int, *, since_s: float) -> Any:
    key = SimpleNamespace(submission=1, attempt=1)
    slot = SimpleNamespace(live_output=lambda *_: None)
    block = SimpleNamespace(key=key, info=SimpleNamespace(record=SimpleNamespace(user="u")))
    return SimpleNamespace(running_seq=seq, since_s=since_s, tasks={seq: (block, 0)}, slot=slot, worker=None, runs_by=slot)


def test_a_write_that_takes_long_does_not_bring_the_loop_round_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0)]
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)
    assert logs.flush(lanes, 0.0) == FIRST_FLUSH_S
    assert logs.flush(lanes, FIRST_FLUSH_S) == math.inf, "its end brings the loop round"
    assert logs.flush(lanes, 1000.0) == math.inf, "the store is away: there is nothing to do, and nothing to come back for"
    assert len(io.done) == 1
    monkeypatch.setattr(machine, "monotonic", lambda: 1000.0)
    io.done[0](None)
    assert logs.flush(lanes, 1000.0) == 1001.0


def test_other_lanes_are_looked_at_while_one_is_written() -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0), lane_of(2, since_s=100.0)]
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)
    logs.flush(lanes, FIRST_FLUSH_S)
    assert logs.flush(lanes, 50.0) == 100.0 + FIRST_FLUSH_S


def test_who_puts_out_more_than_the_store_takes_gives_the_thread_back() -> None:
    io, lane = SlowIO(), lane_of(1, since_s=0.0)
    lane.slot.live_output = lambda _seq, _stream, offset, limit: (bytes(limit), offset + limit)  # there is always more
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)
    logs.flush([lane], FIRST_FLUSH_S)
    written = iter(range(1000))

    def put(_key: str, _data: bytes, **_: object) -> None:
        assert next(written, None) is not None, "it goes on for ever"

    io.jobs[0](SimpleNamespace(put=put))
    flushed = logs.take(1)
    assert 0 < flushed.streams[0].parts == flushed.streams[1].parts < 500


def test_what_one_write_does_not_bear_follows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [FIRST_FLUSH_S]
    monkeypatch.setattr(machine, "monotonic", lambda: clock[0])
    io, lane, size = SlowIO(), lane_of(1, since_s=0.0), 0
    lane.slot.live_output = lambda _seq, _stream, offset, limit: (bytes(min(limit, size - offset)), min(offset + limit, size))
    logs = LiveLogs(io, lambda: None, 1 << 30, CHARGES)

    def flush() -> float:
        assert logs.flush([lane], clock[0]) == math.inf
        io.done[-1](io.jobs[-1](SimpleNamespace(put=lambda *_, **__: None)))
        due_s = logs.flush([lane], clock[0])
        assert due_s is not None
        return due_s - clock[0]

    waits = []
    for _ in range(12):  # a task that says little is looked at ever more rarely
        size += 100
        waits.append(flush())
        clock[0] += waits[-1]
    assert waits[-1] > 10 > waits[0]
    size += 20 * 1024 * 1024
    assert flush() == FIRST_FLUSH_S
    clock[0] += FIRST_FLUSH_S
    assert flush() > 10


def test_who_floods_for_hours_keeps_both_ends_of_a_stream_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    cap, written = 4 << 20, 0
    io, lane, store = SlowIO(), lane_of(1, since_s=0.0), MemoryStore("logs")
    logs = LiveLogs(io, lambda: None, cap, CHARGES)

    def live_output(_seq: int, stream: str, offset: int, limit: int) -> tuple[bytes, int] | None:
        end = min(offset + limit, written)
        lines = b"".join(b"%015d\n" % at for at in range(offset // 16, end // 16))
        return (lines, end) if stream == "stdout" else (b"", 0)

    lane.slot.live_output = live_output
    for at in range(1, 20):
        written += 3 << 20
        monkeypatch.setattr(machine, "monotonic", lambda: 1000.0 * at)  # noqa: B023
        logs.flush([lane], 1000.0 * at)
        io.done.pop()(io.jobs.pop()(store))
        assert stored_bytes(store) <= cap + 1024
    flushed = logs.take(1)
    assert (flushed.streams[0].size, flushed.streams[1].size) == (written, 0)
    for pieces in (read_flushed(store, 1, 0, 1, "stdout"), read_ended(store, 1, 0, 1, "stdout", parts=flushed.streams[0].parts, rest=b"")):
        places = list(place(pieces))
        assert places[-1].end == written, "positions are those of what was written"
        assert sum(one.dropped > 0 for one in places) == 1
        assert places[0].data.startswith(b"%015d\n" % 0)
        assert b"".join(one.data for one in places[-2:]).endswith(b"%015d\n" % (written // 16 - 1))


@pytest.mark.parametrize("bursts", [(3, 3, 0), (1, 1, 9), (9, 9), (1, 0, 2, 9, 1, 1, 3, 9), (2, 2), (1, 1, 1)], ids=str)
def test_at_the_end_the_store_has_the_first_and_the_last_half_and_one_gap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bursts: tuple[int, ...]
) -> None:
    """Whether the flushes followed the work or fell behind it. Each burst has this many times half a cap; after the last, the work ends."""
    cap, written = 4_000_000, b""
    io, lane, store, path = SlowIO(), lane_of(1, since_s=0.0), MemoryStore(str(tmp_path)), str(tmp_path / "live")
    fd = open_output(path)
    lane.slot.live_output = lambda _seq, stream, offset, limit: read_live(fd, offset, limit, cap) if stream == "stdout" else None
    logs = LiveLogs(io, lambda: None, cap, CHARGES)
    for at, burst in enumerate(bursts, 1):
        more = b"".join(b"%06d %06d\n" % (at, number) for number in range(burst * cap // 2 // 14 + 1))
        written += more
        os.write(fd, more)
        trim(fd, cap)
        if at < len(bursts):
            monkeypatch.setattr(machine, "monotonic", lambda: 1000.0 * at)  # noqa: B023
            logs.flush([lane], 1000.0 * at)
            io.done.pop()(io.jobs.pop()(store))
            assert stored_bytes(store) <= cap + LOG_PART_BYTES
    output = take(fd, path, str(tmp_path / "final"), cap)
    os.close(fd)
    ending = Ending(out=output, flushed=logs.take(1), output_cap=cap)
    ended = write(store, 1, 0, 1, ending)
    assert write(store, 1, 0, 1, ending) == ended, "after a failure it is written again"
    assert stored_bytes(store) <= cap + LOG_PART_BYTES
    places = list(place(read_ended(store, 1, 0, 1, "stdout", parts=ended.log_parts[0], rest=ended.log[0])))
    assert places[-1].end == len(written)
    assert sum(one.dropped > 0 for one in places) == 1
    for one in places:
        assert one.dropped or one.data == written[one.start : one.end]


def stored_bytes(store: MemoryStore) -> int:
    return sum(len((store.get(key) or (b"",))[0]) for key in store.keys(""))
