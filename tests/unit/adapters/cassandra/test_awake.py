"""Which contacts answer, and threads that do not hold up the end: without a Cassandra."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from rmgr.adapters.cassandra.link import DaemonPool, Lost, awake
from tests.harness.fair_time import FairTimer


def test_of_several_hosts_those_that_say_something_are_found_at_once() -> None:
    with socket.create_server(("127.0.0.2", 0)) as hangs:
        port = hangs.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)) as serves:

            def answer() -> None:
                link, _ = serves.accept()
                with link:
                    link.sendall(b"\x85")

            threading.Thread(target=answer, daemon=True).start()
            with FairTimer() as timer:
                assert awake(("127.0.0.2", "127.0.0.1", "127.0.0.3"), port, tls=None, timeout_s=60.0) == ("127.0.0.1",)
            assert timer.elapsed_s < 2.0


def test_when_nobody_answers_each_host_is_told_with_why() -> None:
    with socket.create_server(("127.0.0.2", 0)) as hangs:
        told = r"127\.0\.0\.3: Connection refused; 127\.0\.0\.2: no answer in 300ms"
        with FairTimer() as timer, pytest.raises(Lost, match=told) as caught:
            awake(("127.0.0.2", "127.0.0.3"), hangs.getsockname()[1], tls=None, timeout_s=0.3)
        assert caught.value.is_outage
        assert timer.elapsed_s < 2.0


def test_work_of_a_pool_is_done_by_as_many_threads_as_it_needs_and_may_have() -> None:
    pool = DaemonPool(3)
    meeting = threading.Barrier(3)
    assert sorted(future.result(60) for future in [pool.submit(meeting.wait, 60) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_a_process_ends_while_its_pool_is_at_work() -> None:
    code = "import time; from rmgr.adapters.cassandra.link import DaemonPool; DaemonPool(1).submit(time.sleep, 60)"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
