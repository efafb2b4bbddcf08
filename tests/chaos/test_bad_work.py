"""Work that misbehaves, floods and oversized requests: rows 34, 37 and 38 of the fault matrix."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import replace

import pytest
from breakable import Chaos

from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.errors import PickleFailed, QueueFull, RmgrError, SubmitUnknown, TaskFailed, ValueTooLarge
from rmgr.model.queue import ClusterSettings
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


def crash(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_: int) -> None:
    os._exit(137)


def nothing() -> None:
    """A task in the keyed form, without keys."""


def fine(value: int) -> int:
    return value


def test_poison_ends_alone_and_others_go_on(pair: Chaos):
    connection = pair.connection()
    try:
        with Executor(connection=connection) as executor:
            bad = [executor.submit(crash, 1), executor.submit(leave, 1)]
            good = [executor.submit(fine, value) for value in range(200)]
            assert [future.result(timeout=60) for future in good] == list(range(200))
            for future, reason in zip(bad, ("SIGNAL", "EXIT_CODE"), strict=True):
                with pytest.raises(RmgrError) as caught:
                    future.result(timeout=60)
                assert isinstance(caught.value, TaskFailed)
                assert caught.value.reason == reason
    finally:
        connection.close()
    assert pair.cluster.process("n1").state == "running"


def test_a_gigabyte_of_output_and_a_task_that_ignores_sigterm_hurt_nobody(pair: Chaos):
    loud = pair.rmgr("submit", "--parsable", "--", "sh", "-c", "head -c 1000000000 /dev/zero | tr '\\0' x")
    stubborn = pair.rmgr("submit", "--parsable", "--time", "1", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    waited = pair.rmgr("wait", loud.stdout.strip(), timeout=120)
    assert waited.returncode == 0, waited.stderr
    waited = pair.rmgr("wait", stubborn.stdout.strip(), timeout=60)
    assert waited.returncode == 124, waited.stderr
    shown = json.loads(pair.rmgr("show", stubborn.stdout.strip(), "--json").stdout)
    assert shown["reason"] == "TIME_LIMIT"
    pair.submit(10, 0.0)
    pair.finish()


def test_a_flood_is_refused_at_the_cap_and_drains(pair: Chaos):
    def capped(usual: ClusterSettings) -> ClusterSettings:
        return replace(usual, queues=tuple(replace(queue, max_pending_blocks=20) for queue in usual.queues))

    pair.rmgr("drain", "n1", "n2", "--reason", "flood")
    eventually(lambda: pair.rmgr("nodes", "--json").stdout.count('"drained"') == 2, "they are drained")
    with pair.settings(capped), pair.connection() as connection:
        queue = TaskQueue(nothing, connection=connection)
        with pytest.raises(QueueFull):  # at the flush, or before it: `submit_call` would wait there until somebody takes some
            for value in range(100_000):
                queue.submit(block=False)
                if value % 256 == 255:
                    with contextlib.suppress(SubmitUnknown):  # no answer yet: it is sent meanwhile
                        queue.flush(timeout=5)
        refused = pair.rmgr("submit", "--array", "1-100000", "--", "true")
        assert refused.returncode == 7, refused.stderr
        pair.rmgr("resume", "n1", "n2")
        queue.close(timeout=60)
        counts, failed = queue.wait_all(timeout=120)
        assert not failed
        assert counts["COMPLETED"] == len(queue)


def test_oversized_requests_are_typed_errors_and_the_connection_stays(pair: Chaos, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rmgr.client.pickling.MAX_VALUE_BYTES", 256 << 20)  # the true limit needs more memory than machines have
    connection = pair.connection()
    try:
        with Executor(connection=connection) as executor:
            with pytest.raises(ValueTooLarge):
                executor.submit(fine, b"x" * (300 << 20)).result(timeout=120)
            with pytest.raises(PickleFailed):
                executor.submit(fine, (lambda: (yield))()).result(timeout=60)
            big = b"y" * (20 << 20)
            assert executor.submit(fine, big).result(timeout=120) == big
            assert executor.submit(fine, 7).result(timeout=60) == 7
    finally:
        connection.close()
