"""Gang time takes the reading with the least round trip, and a reading under load does not spoil a good one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from rmgr.runtime import machine
from rmgr.runtime.gang_clock import ClockReader, ClockReading, better
from rmgr.v1 import node_pb2, node_pb2_grpc
from tests.harness.waiting import eventually

S_NS = 10**9


def test_an_exact_reading_stays_until_drift_may_have_spoilt_it() -> None:
    exact = ClockReading(1_000, 50, 0)
    assert better(None, exact) is exact
    loaded = ClockReading(9_000, 8_000, 10 * S_NS)
    assert better(exact, loaded) is exact
    as_good = ClockReading(1_300, 60, 10 * S_NS)
    assert better(exact, as_good) is as_good
    assert better(exact, ClockReading(9_000, 8_000, 100 * S_NS)).error_us == 8_000


class Answers(node_pb2_grpc.NodeServicer):
    """A Starter whose machine was started `ahead_s` earlier; it answers late where it is told to."""

    def __init__(self) -> None:
        self.ahead_s, self.incarnation, self.asked = 1_000.0, 3, 0
        self.delay: Callable[[int], float] = lambda _: 0.0

    def Clock(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked += 1
        threading.Event().wait(self.delay(self.asked))
        return node_pb2.ClockReply(boot_us=machine.boottime_ns() // 1000 + round(self.ahead_s * 1e6), incarnation=self.incarnation)


@pytest.fixture
def answers() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    made = Answers()
    server = grpc.server(ThreadPoolExecutor(4))
    node_pb2_grpc.add_NodeServicer_to_server(made, server)
    made.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"  # type: ignore[attr-defined]
    server.start()
    yield made
    server.stop(None)


def read(answers: Any, incarnation: int = 3) -> tuple[ClockReader, Future[None]]:
    told: Future[None] = Future()
    reader = ClockReader(None, lambda: told.done() or told.set_result(None))
    reader.follow("n1", incarnation, answers.endpoint)
    return reader, told


def test_the_true_difference_lies_within_the_error_that_is_shown(answers: Any) -> None:
    answers.delay = lambda asked: 0.05 if asked % 3 else 0.005
    reader, told = read(answers)
    told.result(60)
    found = reader.reading
    assert found is not None
    assert abs(found.offset_us - 1_000_000_000) <= found.error_us + 1
    assert found.error_us < 45_000 / 2 + 20_000, "of eight questions the quickest counts"
    reader.close()


def test_another_incarnation_has_no_reading_and_says_why(answers: Any) -> None:
    reader, told = read(answers, incarnation=2)
    eventually(lambda: "anew" in reader.problem)
    assert reader.reading is None
    assert not told.done()
    reader.follow("n1", 3, answers.endpoint)
    told.result(60)
    assert reader.reading is not None
    assert reader.problem == ""
    reader.close()


def test_a_starter_that_does_not_answer_is_named(answers: Any) -> None:
    reader = ClockReader(None, lambda: None)
    reader.follow("n1", 3, "127.0.0.1:1")
    eventually(lambda: reader.problem != "it has not answered yet")
    assert reader.reading is None
    reader.close()
