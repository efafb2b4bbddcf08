"""The echo of calls that last: when it looks for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.client.echo import LongEcho


def test_a_slow_look_is_followed_by_another_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr("rmgr.client.echo.machine.monotonic", lambda: clock.now_s)
    looks: list[float] = []

    def look_now() -> None:
        looks.append(clock.now_s)
        clock.now_s += 2.0 if len(looks) == 1 else 0.001  # the first one loads what it needs, on a busy machine

    core: Any = SimpleNamespace(has_pending=True)
    live: Any = SimpleNamespace(look_now=look_now, follows=False)
    echo = LongEcho(core)
    while clock.now_s < 120.0:
        echo._look(live)
        clock.now_s += echo._tick_s(live)
    assert looks[1] - looks[0] < 8.0
    assert len(looks) >= 10
