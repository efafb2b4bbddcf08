"""Forked children of a process that uses a gateway connect themselves, or learn at once why they cannot."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmgr
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from tests.harness.fair_time import FairTimer
from tests.harness.gateway_process import GatewayProcess

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def gateway(live: DevCluster, tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(live.daemon_environment("submitter", "g1"), tmp_path) as made:
        yield made


@pytest.fixture
def connection(gateway: GatewayProcess) -> Iterator[Connection]:
    with rmgr.connect(gateway=gateway.endpoint) as made:
        yield made


def in_a_child(work: Callable[[], Any], within_s: float = 60.0) -> tuple[Any, float]:
    """(what `work` answers or raises in a forked child, how many fair seconds that took)."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def child() -> None:
        try:
            told.put(work())
        except Exception as error:  # what it is, the test looks at
            told.put((type(error).__name__, str(error)))

    process = context.Process(target=child)
    process.start()  # a timer is a thread, of which a forked child knows nothing: begun after it
    with FairTimer() as timer:
        process.join(within_s)
    took_s = timer.elapsed_s
    if process.is_alive():
        process.kill()
        process.join()
        pytest.fail(f"the child hangs: nothing after {took_s:.0f} s")
    assert process.exitcode == 0, "the child has ended without an answer"
    return told.get(), took_s


def call(number: int, connection: Connection) -> int:
    with rmgr.TaskQueue(abs, connection=connection) as tasks:
        answer: int = tasks.submit_call(number).result(60)
        return answer


def test_a_forked_child_is_told_at_once_that_it_cannot(gateway: GatewayProcess, connection: Connection) -> None:
    """gRPC has its threads in the parent."""
    assert call(-7, connection) == 7

    def work() -> None:
        rmgr.connect(gateway=gateway.endpoint)

    (kind, words), took_s = in_a_child(work)
    assert kind == "NotConnected"
    assert words.startswith(f"process {os.getpid()}, from which this one was forked, has used gRPC")
    assert took_s < 3.0
    (kind, words), took_s = in_a_child(lambda: call(-8, connection))
    assert (kind, "belongs to the parent process" in words) == ("NotConnected", True)
    assert took_s < 3.0
    assert call(-9, connection) == 9, "the parent goes on"


def test_one_forked_from_a_parent_that_goes_to_zookeeper_connects_and_has_no_lines_early(live: DevCluster, connection: Connection) -> None:
    """`connection` made this process use gRPC: what needs it says so in the child, the rest works."""

    def work() -> int:
        with rmgr.connect() as mine:
            return call(-8, mine)

    assert in_a_child(work)[0] == 8


def test_a_child_that_was_spawned_connects(gateway: GatewayProcess, connection: Connection) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_connected, (gateway.endpoint,)) == 8


def _connected(endpoint: str) -> int:
    with rmgr.connect(gateway=endpoint) as mine:
        return call(-8, mine)
