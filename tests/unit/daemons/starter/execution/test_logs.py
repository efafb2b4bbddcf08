"""Output of running tasks on its way to the store: when the loop comes back for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.client.logs import read_ended, read_flushed
from rmgr.daemons.starter.execution.ends import FIRST_FLUSH_S, LiveLogs
from rmgr.daemons.starter.staging.outputs import Charge
from rmgr.model.tasks.gap import place
from rmgr.runtime import machine
from tests.harness.memory_store import MemoryStore

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
    return SimpleNamespace(running_seq=seq, since_s=since_s, tasks={seq: (block, 0)}, slot=slot, worker=None)


def test_a_write_that_takes_long_does_not_bring_the_loop_round_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0)]
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)  # type: ignore[arg-type]
    assert logs.flush(lanes, 0.0) == FIRST_FLUSH_S
    assert logs.flush(lanes, FIRST_FLUSH_S) == math.inf, "its end brings the loop round"
    assert logs.flush(lanes, 1000.0) == math.inf, "the store is away: there is nothing to do, and nothing to come back for"
    assert len(io.done) == 1
    monkeypatch.setattr(machine, "monotonic", lambda: 1000.0)
    io.done[0](None)
    assert logs.flush(lanes, 1000.0) == 1001.0


def test_other_lanes_are_looked_at_while_one_is_written() -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0), lane_of(2, since_s=100.0)]
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)  # type: ignore[arg-type]
    logs.flush(lanes, FIRST_FLUSH_S)
    assert logs.flush(lanes, 50.0) == 100.0 + FIRST_FLUSH_S


def test_who_puts_out_more_than_the_store_takes_gives_the_thread_back() -> None:
    io, lane = SlowIO(), lane_of(1, since_s=0.0)
    lane.slot.live_output = lambda _seq, _stream, offset, limit: (bytes(limit), offset + limit)  # there is always more
    logs = LiveLogs(io, lambda: None, 64 << 20, CHARGES)  # type: ignore[arg-type]
    logs.flush([lane], FIRST_FLUSH_S)
    written = iter(range(1000))

    def put(_key: str, _data: bytes, **_: object) -> None:
        assert next(written, None) is not None, "it goes on for ever"

    io.jobs[0](SimpleNamespace(put=put))
    flushed = logs.take(1)
    assert 0 < flushed.parts[0] == flushed.parts[1] < 500


def test_what_one_write_does_not_bear_follows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [FIRST_FLUSH_S]
    monkeypatch.setattr(machine, "monotonic", lambda: clock[0])
    io, lane, size = SlowIO(), lane_of(1, since_s=0.0), 0
    lane.slot.live_output = lambda _seq, _stream, offset, limit: (bytes(min(limit, size - offset)), min(offset + limit, size))
    logs = LiveLogs(io, lambda: None, 1 << 30, CHARGES)  # type: ignore[arg-type]

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
    logs = LiveLogs(io, lambda: None, cap, CHARGES)  # type: ignore[arg-type]

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
    assert (flushed.sizes[0], flushed.sizes[1]) == (written, 0)
    for pieces in (
        read_flushed(store, 1, 0, 1, "stdout"),
        read_ended(store, 1, 0, 1, "stdout", parts=flushed.parts[0], rest=b""),
    ):
        places = list(place(pieces))
        assert places[-1].end == written, "positions are those of what was written"
        assert sum(one.dropped > 0 for one in places) == 1
        assert places[0].data.startswith(b"%015d\n" % 0)
        assert b"".join(one.data for one in places[-2:]).endswith(b"%015d\n" % (written // 16 - 1))


def stored_bytes(store: MemoryStore) -> int:
    return sum(len((store.get(key) or (b"",))[0]) for key in store.keys(""))
