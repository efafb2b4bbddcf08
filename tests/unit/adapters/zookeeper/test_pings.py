"""When a connection to ZooKeeper pings: exactly as late as it may, and whatever else is waited for keeps its own deadline."""

from __future__ import annotations

import socket
import time

import pytest

from rmgr.adapters.zookeeper.client import Pings


def test_the_loop_sleeps_until_a_ping_is_due_whatever_kazoo_says_and_wakes_for_bytes() -> None:
    pings = Pings()
    here, there = socket.socketpair()
    wake_here, wake_there = socket.socketpair()
    with here, there, wake_here, wake_there:
        pings.begin(0.2)
        started_s = time.monotonic()
        assert pings.select([here, wake_here], [], 0.0) == ([], [], [])
        assert time.monotonic() - started_s >= 0.19
        pings.sent()
        assert list(pings.awaited_s) == [pytest.approx(time.monotonic(), abs=10)]
        pings.begin(1000.0)  # another connection: nothing is awaited on it
        assert not pings.awaited_s
        wake_there.send(b"x")
        assert pings.select([here, wake_here], [], 0.0) == ([wake_here], [], [])
        assert pings.select([here], [], 0.0) == ([], [], [])  # what is awaited within a request has its own time-out
        assert pings.select([], [here], None) == ([], [here], [])
