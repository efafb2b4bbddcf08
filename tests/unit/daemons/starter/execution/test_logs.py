"""Output of running tasks on its way to the store: when the loop comes back for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.daemons.starter.execution.logs import FIRST_FLUSH_S, LiveLogs
from rmgr.runtime import machine


class SlowIO:
    """A store that answers when told to."""

    def __init__(self) -> None:
        self.done: list[Callable[[object], None]] = []

    def run(self, _job: object, done: Callable[[object], None]) -> None:
        self.done.append(done)


def lane_of(seq: int, *, since_s: float) -> Any:
    key = SimpleNamespace(submission=1, attempt=1)
    slot = SimpleNamespace(live_output=lambda *_: None)
    return SimpleNamespace(running_seq=seq, since_s=since_s, tasks={seq: (SimpleNamespace(key=key), 0)}, slot=slot, worker=None)


def test_a_write_that_takes_long_does_not_bring_the_loop_round_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0)]
    logs = LiveLogs(io, lambda: None)  # type: ignore[arg-type]
    assert logs.flush(lanes, 0.0) == FIRST_FLUSH_S
    assert logs.flush(lanes, FIRST_FLUSH_S) is None, "its end brings the loop round"
    assert logs.flush(lanes, 1000.0) is None, "the store is away: there is nothing to do, and nothing to come back for"
    assert len(io.done) == 1
    monkeypatch.setattr(machine, "monotonic", lambda: 1000.0)
    io.done[0](None)
    assert logs.flush(lanes, 1000.0) == 1001.0


def test_other_lanes_are_looked_at_while_one_is_written() -> None:
    io, lanes = SlowIO(), [lane_of(1, since_s=0.0), lane_of(2, since_s=100.0)]
    logs = LiveLogs(io, lambda: None)  # type: ignore[arg-type]
    logs.flush(lanes, FIRST_FLUSH_S)
    assert logs.flush(lanes, 50.0) == 100.0 + FIRST_FLUSH_S
