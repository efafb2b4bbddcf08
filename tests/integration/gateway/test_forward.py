"""Questions to daemons through a gateway reach only daemons of the cluster; errors and live output pass unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from rmgr.adapters.access.auth import rebuild
from rmgr.adapters.gateway.forward import ClusterRoutes, Forwarder, LeaderLink
from rmgr.adapters.rpc.channels import TARGET_KEY
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient, LogPiece, NodeClient, NodeStats, RunningTask, leader_handler, node_handler
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Exists, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import DaemonFailed, NotFound, PermissionDenied, Unavailable, UsageError
from rmgr.model.base import Capacity
from rmgr.model.node import EpochRecord, NodeRecord, NodeState
from rmgr.model.states import State
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually

JOB = JobView(id=42, name="x", user="u", queue="default", state=State.RUNNING, tasks=3)


class Daemon:
    """A leader and a Starter in one, who remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left = threading.Event()
        self.server = RpcServer("127.0.0.1:0")
        self.server.add_generic(leader_handler(self))
        self.server.add_generic(node_handler(self))
        self.server.start()
        self.endpoint = self.server.endpoint

    def jobs(self, ids: tuple[int, ...], *, ended: bool, user: str, caller: object = None) -> list[JobView]:
        self.asked.append("jobs")
        return [JOB]

    def nodes(self) -> list[NodeView]:
        return []

    def queues(self) -> list[QueueView]:
        raise KeyError("a defect")

    def status(self, *, caller: object = None) -> StatusView:
        raise NotFound("no status", hint="look elsewhere")

    def explain(self, submission: int, index: int | None, *, caller: object = None) -> ExplainView:
        raise NotFound(f"no submission {submission}")

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int,
        stream: str,
        follow: bool,
        offsets: tuple[int, int],
        is_active: Callable[[], bool],
        caller: object = None,
    ) -> Iterator[LogPiece]:
        try:
            yield LogPiece(stream="stdout", data=b"hello\n", offset=offsets[0], attempt=2)
            if submission == 1:
                raise NotFound("gone")
            if submission == 2:
                raise KeyError("a defect")
            if follow:
                eventually(lambda: not is_active())
        finally:  # a reader who leaves while the piece is on its way: gRPC does not ask for the next one, it drops the iterator
            if follow:
                self.left.set()
        yield LogPiece(stream="stdout", data=b"", offset=6, attempt=2, ended=True)

    def running(self, submission: int, *, caller: object = None) -> list[RunningTask]:
        return [RunningTask(submission=submission, index=1, attempt=1, node="n1", started_us=5)]

    def stats(self) -> list[NodeStats]:
        return [NodeStats(node="n1", cores_used=1, memory_used_bytes=2, running=1, load=0.5)]


class Place:
    """A daemon that the cluster names, one that it does not, and a gateway."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.coordinator.ensure([paths.NODES])
        self.known, self.stranger = Daemon(), Daemon()
        node = NodeRecord(
            node="n1",
            guid="g",
            incarnation=1,
            state=NodeState.UP,
            capacity=Capacity(cores=1, memory_bytes=1),
            endpoint=self.known.endpoint,
        )
        self.write(paths.node("n1"), encode_record(node))
        self.lead(self.known.endpoint)
        self.counts: list[tuple[str, str]] = []
        self.forwarder = Forwarder(ClusterRoutes(self.coordinator, lambda what, kind: self.counts.append((what, kind))))
        self.gateway = RpcServer("127.0.0.1:0")
        for handler in self.forwarder.handlers:
            self.gateway.add_generic(handler)
        self.gateway.start()

    def write(self, path: str, data: bytes) -> None:
        there = self.coordinator.stat(path).result(60) is not None
        op = Set(path, data, -1) if there else Create(path, data)
        self.coordinator.commit(Multi(name="T", ops=(op,), proof=Exists(path))).result(60)

    def lead(self, endpoint: str) -> None:
        self.write(paths.EPOCH, encode_record(EpochRecord(leader="g", endpoint=endpoint, host="h", pid=1)))

    def close(self) -> None:
        self.gateway.stop(0)
        self.forwarder.close()
        for daemon in (self.known, self.stranger):
            daemon.server.stop(0)
        self.coordinator.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_questions_to_the_leader_pass(place: Place) -> None:
    with LeaderClient(place.known.endpoint, via=place.gateway.endpoint) as leader:
        assert leader.jobs() == [JOB]
        with pytest.raises(NotFound, match="no status") as caught:
            leader.status()
        assert caught.value.hint == "look elsewhere"
    assert ("passed_on", "Jobs") in place.counts


@pytest.mark.parametrize("method", ["Leader/Jobs", "Node/Running", "Node/Logs"])
def test_a_question_that_the_daemon_cannot_read_is_its_askers_fault_and_not_to_be_repeated(place: Place, method: str) -> None:
    with grpc.insecure_channel(place.gateway.endpoint) as channel, pytest.raises(grpc.RpcError) as failed:
        metadata = ((TARGET_KEY, place.known.endpoint),)
        list(channel.unary_stream(f"/rmgr.v1.{method}")(b"\xff\xff\xff", timeout=60, metadata=metadata))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert isinstance(rebuild(failed.value, "there"), UsageError)


def test_a_defect_of_a_daemon_is_named_and_logged_and_no_reason_to_ask_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for via in ("", place.gateway.endpoint):
        with LeaderClient(place.known.endpoint, via=via) as leader, pytest.raises(DaemonFailed, match="Queues failed there: KeyError: 'a"):
            leader.queues()
        with NodeClient(place.known.endpoint, via=via) as node, pytest.raises(DaemonFailed, match="Logs failed there"):
            list(node.logs(2, 0))
    traced = [record for record in caplog.records if record.exc_info is not None and record.exc_info[0] is KeyError]
    assert len(traced) == 4, "each call once, by the daemon: the gateway logs nothing"


def test_live_output_passes_as_it_comes_and_ends_with_its_reader(place: Place) -> None:
    with NodeClient(place.known.endpoint, via=place.gateway.endpoint) as node:
        assert [piece.data for piece in node.logs(42, 0, offsets=(3, 0))] == [b"hello\n", b""]
        assert node.running(7)[0].submission == 7
        assert node.stats()[0].load == 0.5
        broken = node.logs(1, 0)
        assert next(broken).data == b"hello\n"
        with pytest.raises(NotFound, match="gone"):
            next(broken)
        followed = node.logs(42, 0, follow=True)
        assert next(followed).data == b"hello\n"  # while the task runs
    assert place.known.left.wait(60)  # the reader has gone: the Starter is told


def test_nobody_is_called_whom_the_cluster_does_not_name(place: Place) -> None:
    with NodeClient(place.stranger.endpoint, via=place.gateway.endpoint) as node, pytest.raises(PermissionDenied, match="not the endpoint"):
        node.running()
    with NodeClient(place.stranger.endpoint, via=place.gateway.endpoint) as node, pytest.raises(PermissionDenied):
        list(node.logs(1, 0))
    with LeaderClient(place.stranger.endpoint, via=place.gateway.endpoint) as leader, pytest.raises(Unavailable, match="does not lead"):
        leader.jobs()
    assert place.stranger.asked == []


def test_a_node_that_has_just_registered_is_found(place: Place) -> None:
    with NodeClient(place.stranger.endpoint, via=place.gateway.endpoint) as node:
        with pytest.raises(PermissionDenied):
            node.running()
        record = NodeRecord(
            node="n2",
            guid="h",
            incarnation=1,
            state=NodeState.UP,
            capacity=Capacity(cores=1, memory_bytes=1),
            endpoint=place.stranger.endpoint,
        )
        place.write(paths.node("n2"), encode_record(record))

        def answers() -> bool:
            try:
                return bool(node.running())
            except PermissionDenied:
                return False

        eventually(answers)


def test_the_next_leader_is_found(place: Place) -> None:
    with LeaderClient(place.known.endpoint, via=place.gateway.endpoint) as leader:
        assert leader.jobs() == [JOB]
        place.known.server.stop(0)
        with pytest.raises(Unavailable, match="cannot be reached"):
            leader.jobs()
    place.lead(place.stranger.endpoint)
    with LeaderClient(place.stranger.endpoint, via=place.gateway.endpoint) as leader:
        assert leader.jobs() == [JOB]
    with LeaderClient(place.known.endpoint, via=place.gateway.endpoint) as old, pytest.raises(Unavailable, match="does not lead"):
        old.jobs()


def test_a_question_that_waits_for_zookeeper_holds_up_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    get, slow, waits = place.coordinator.get, Future[Any](), threading.Event()

    def answer(path: str, **options: Any) -> Future[Any]:
        if waits.is_set():
            return get(path, **options)
        waits.set()
        return slow

    monkeypatch.setattr(place.coordinator, "get", answer)
    monkeypatch.setattr("rmgr.adapters.gateway.forward._READ_S", 600.0)
    link = LeaderLink(ClusterRoutes(place.coordinator, lambda what, kind: None), LeaderClient)
    with ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(link.ask, LeaderClient.jobs)
            assert waits.wait(60)
            assert threads.submit(link.ask, LeaderClient.jobs).result(60) == [JOB]
        finally:
            slow.set_result(get(paths.EPOCH).result(60))
        assert first.result(60) == [JOB]
    link.close()


def test_without_a_leader_the_answer_says_so(place: Place) -> None:
    place.lead("")
    with LeaderClient("x:1", via=place.gateway.endpoint) as leader, pytest.raises(Unavailable, match="no WatchDog leads"):
        leader.jobs()


def test_what_is_not_listed_does_not_exist(place: Place) -> None:
    channel = grpc.insecure_channel(place.gateway.endpoint)
    for method in ("/rmgr.v1.Leader/Shutdown", "/rmgr.v1.Node/Kill", "/rmgr.v1.Other/Jobs"):
        call: Any = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    channel.close()
