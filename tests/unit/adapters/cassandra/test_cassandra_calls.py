"""How many requests a call of the store has in flight: as many as the cluster answers quickly."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.cassandra import link as cassandra_calls
from rmgr.adapters.cassandra.link import LARGEST_WINDOW, SMALLEST_WINDOW, WINDOW, Calls, RequestWindow
from rmgr.adapters.cassandra.schema import ask
from rmgr.adapters.store_rules import CallDeadline


def test_a_window_grows_while_answers_are_quick_and_shrinks_once_when_they_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cassandra_calls.time, "monotonic", lambda: now[0])
    window = RequestWindow()
    assert window.size == WINDOW
    for _ in range(10_000):
        window.answered(0.005)
    assert window.size == LARGEST_WINDOW
    window.answered(0.1)  # neither
    assert window.size == LARGEST_WINDOW
    for _ in range(LARGEST_WINDOW):  # what was in flight: one look at one time
        window.answered(0.5)
    assert window.size == int(LARGEST_WINDOW * 0.7)
    for _ in range(100):
        now[0] += 1.0
        window.shrink()
    assert window.size == SMALLEST_WINDOW
    window.answered(0.005)
    assert SMALLEST_WINDOW <= window.size <= WINDOW


class _Cluster:
    """Answers each request after some time, from a thread; counts how many wait."""

    def __init__(self, after_s: float) -> None:
        self.most = self._now = 0
        self._after_s = after_s
        self._lock = threading.Lock()

    def connection(self, *_: Any, **__: Any) -> _Cluster:
        return self

    def send(self, _request: Any, _timeout_s: float) -> Future[list[Any]]:
        future: Future[list[Any]] = Future()
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

        def answer() -> None:
            with self._lock:
                self._now -= 1
            future.set_result([])

        timer = threading.Timer(self._after_s, answer)
        timer.daemon = True
        timer.start()
        return future


def test_no_call_has_more_in_flight_than_its_window() -> None:
    cluster = _Cluster(0.3)
    calls = Calls(cluster, request_timeout_s=2.0)  # type: ignore[arg-type]
    started_s = time.monotonic()
    calls.all([ask("value", f"k{n}") for n in range(150)], CallDeadline(60.0), "read")
    assert cluster.most <= WINDOW
    assert calls.window.size < WINDOW  # 0.3 s are slow
    assert time.monotonic() - started_s < 30
    fixed = _Cluster(0.001)
    Calls(fixed, request_timeout_s=2.0).all([ask("value", f"k{n}") for n in range(50)], CallDeadline(60.0), "read", window=4)  # type: ignore[arg-type]
    assert fixed.most <= 4
