"""Servers and channels of daemons: ports in use, late starts for want of a thread, silent clients, kept channels."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import Caller, Expeller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Silence, Stalls, WaitingRoom
from rmgr.adapters.rpc.channels import IDLE_OPTIONS, KEEP_S, OPTIONS, Channels, answered
from rmgr.adapters.rpc.server import RpcServer, check_place
from rmgr.daemons.service.serving import VoiceCheck, check_voice, open_server, telling
from rmgr.errors import ConfigError, PermissionDenied, RmgrError, Unavailable
from rmgr.model.identity import Identity, Role
from rmgr.runtime.supervision import StallGuard
from tests.harness.bundles import session_bundles
from tests.harness.waiting import eventually, stand_still

_START = threading.Thread.start


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is set, every new thread of a server is refused as the system does it that has reached its limit of tasks."""
    refusing = threading.Event()

    def start(self: threading.Thread) -> None:
        if refusing.is_set() and self.name.startswith(("rpc", "stalls")):
            raise RuntimeError("can't start new thread")
        _START(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    yield refusing
    refusing.clear()


def test_a_server_whose_taking_thread_is_held_is_mute_and_one_whose_handlers_are_is_not() -> None:
    held, release = threading.Event(), threading.Event()

    class Held(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> None:
            if details.method == "/hold/it":
                held.set()
                release.wait(60)  # as a callback would hold that thread which never comes back

    server = RpcServer("127.0.0.1:0", threads=1)
    server.add_generic(Held())
    server.start()
    with grpc.insecure_channel(server.endpoint) as channel:
        try:
            watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
            assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
            assert not server.is_mute(20.0)
            hung = channel.unary_unary("/hold/it").future(b"", timeout=60)
            assert held.wait(20)
            assert server.is_mute(0.5)
            release.set()
            assert isinstance(hung.exception(20), grpc.RpcError)
            assert not server.is_mute(20.0)
        finally:
            release.set()
            server.stop()


def test_a_server_without_descriptors_is_mute_for_whoever_comes() -> None:
    server = RpcServer("127.0.0.1:0", threads=1)
    server.start()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert not server.is_mute(20.0)
        with structlog.testing.capture_logs() as lines:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4, limits[1]))  # what is open stays open
            try:
                is_mute = server.is_mute(20.0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert is_mute
        assert [(line["event"], line["limit"]) for line in lines] == [("no_descriptors", 4)]
        assert not server.is_mute(20.0)
    finally:
        server.stop()


def test_who_answers_lives_and_who_is_mute_is_ended() -> None:
    ended: list[str] = []
    mute = threading.Event()
    guard = StallGuard(2.0, name="the server", on_stall=ended.append)
    check = VoiceCheck(lambda _timeout_s: mute.is_set(), guard, pause_s=0.02).start()
    try:
        assert not mute.wait(3.0)
        assert not ended
        mute.set()
        end_s = time.monotonic() + 30
        while not ended:
            assert time.monotonic() < end_s
            time.sleep(0.02)
        assert ended[0].startswith("the server: no progress")
    finally:
        check.stop()


def test_a_starter_that_is_mute_says_so_again_and_again_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.service.serving.MUTE_S", 2.0)
    with structlog.testing.capture_logs() as lines:
        guard = telling("the Starter's", structlog.get_logger())
        check = VoiceCheck(lambda _timeout_s: True, guard, pause_s=0.02, answer_s=0.5).start()
        try:
            eventually(lambda: len(lines) > 1)
            assert check.trouble.startswith("its server has answered no call for")
        finally:
            check.stop()
    assert {line["event"] for line in lines} == {"server_is_mute"}
    assert "the Starter's server: it answers no call: no progress" in lines[0]["error"]


def test_a_daemon_greets_itself_and_says_why_nobody_could() -> None:
    log, bundles = structlog.get_logger(), session_bundles()
    mine = bundles.credentials(Role.STARTER, "n1")
    revoked: set[str] = set()
    server = RpcServer("127.0.0.1:0", credentials=mine, is_revoked=revoked.__contains__)
    with pytest.raises(Unavailable, match=r"own server at 127.0.0.1:\d+ does not take its connection, so nobody's") as refused:
        check_voice(server, mine, log, patience_s=0.5)  # it was not started
    assert f"another bundle than {mine.directory}: rmgr admin add-node n1 --role starter --renew" in refused.value.hint
    server.start()
    try:
        check_voice(server, mine, log)
        revoked.add(mine.identity.key_id)
        with pytest.raises(PermissionDenied, match=r"own server do not take each other: the key of starter n1 was revoked"):
            check_voice(server, mine, log)
    finally:
        server.stop()
    other = replace(mine, identity=replace(mine.identity, role=Role.WATCHDOG))  # a certificate that does not say so
    server = RpcServer("127.0.0.1:0", credentials=other)
    server.start()
    try:
        with pytest.raises(PermissionDenied, match=r"do not take each other: .* has no certificate of this cluster"):
            check_voice(server, other, log, patience_s=2.0)
    finally:
        server.stop()


def test_stalled_streams_are_cut_after_a_thread_was_refused_once(no_threads: threading.Event) -> None:
    class Context:
        cut = threading.Event()

        def cancel(self) -> None:
            self.cut.set()

    stalls = Stalls(0.1)
    no_threads.set()
    first = stalls.watched(Context(), ["a", "b"])  # type: ignore[arg-type]
    assert next(first) == "a"
    no_threads.clear()
    second = stalls.watched(Context(), ["a", "b"])  # type: ignore[arg-type]
    assert next(second) == "a"
    assert Context.cut.wait(20)


@pytest.mark.parametrize("make", [Stalls, partial(WaitingRoom, 4)])
def test_nobody_is_cut_for_the_time_in_which_this_process_stood_still(make: Callable[[float], Stalls]) -> None:
    cut = threading.Event()
    stalls = make(1.7)
    with stalls.waited(SimpleNamespace(cancel=cut.set)):
        with subprocess.Popen(["/bin/sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
        assert not cut.wait(0.6), "it has looked once since"


def test_a_question_whose_deadline_passed_while_this_process_stood_still_is_asked_again() -> None:
    asked: list[bytes] = []

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        asked.append(request)
        if request == b"slow" and asked.count(request) == 1:
            stand_still(3)
        return request

    server = RpcServer("127.0.0.1:0")
    server.add_generic(grpc.method_handlers_generic_handler("t", {"Ask": grpc.unary_unary_rpc_method_handler(answer)}))
    server.start()
    try:
        with grpc.insecure_channel(server.endpoint) as channel:
            ask = channel.unary_unary("/t/Ask")
            assert ask(b"connects", timeout=60) == b"connects"
            assert answered(ask, b"slow", 2.0, ()) == b"slow"
    finally:
        server.stop()
    assert asked.count(b"slow") == 2


@pytest.mark.parametrize(
    ("events", "silent_s"),
    [
        ("1 1 1", 3),
        ("1 heard 1 1", 2),
        ("9", 2),  # it stood still: a look adds twice its pause at most
        ("1 heard 9 1", 3),
        ("9 heard 1", 1),
        ("9 9 9", 6),
    ],
)
def test_silence_counts_only_while_its_owner_runs(events: str, silent_s: float) -> None:
    """events: seconds until each look, and what was heard right after one."""
    now = 100.0
    silence, seen = Silence(1.0, lambda: now), 0.0
    for event in events.split():
        if event == "heard":
            silence.heard()
        else:
            now += float(event)
            seen = silence.look()
    assert seen == silent_s


def test_revoked_callers_are_expelled_after_a_thread_was_refused_once(no_threads: threading.Event) -> None:
    class Context:
        def __init__(self) -> None:
            self.cut = threading.Event()

        def add_callback(self, _callback: object) -> bool:
            return True

        def cancel(self) -> None:
            self.cut.set()

    expeller = Expeller(lambda _: True, lambda *_: None)
    who = Caller(identity=Identity(name="mallory", role=Role.USER, cluster="c", key_id="0" * 32))
    contexts = [Context(), Context()]
    no_threads.set()
    with pytest.raises(Unavailable, match="no thread left"):  # a stream that nobody looks at is not served
        expeller.watch("/rmgr.v1.Node/Logs", who, contexts[0])  # type: ignore[arg-type]
    no_threads.clear()
    expeller.watch("/rmgr.v1.Node/Logs", who, contexts[1])  # type: ignore[arg-type]
    assert contexts[1].cut.wait(20)


def test_what_garbage_gives_back_while_its_user_is_counted_stops_nobody() -> None:
    now_s = [0.0]
    bounds = Bounds(clock=lambda: now_s[0])

    class Left:
        def __del__(self) -> None:
            bounds.give_back("followed", "mallory")

    class Amount(int):
        """Added up while a collection of garbage comes upon something of the same user."""

        def __radd__(self, other: int) -> Amount:
            if now_s[0]:
                Left()
            return Amount(int(self) + other)

    bounds.take("followed", "mallory", Amount(3))
    now_s[0] = 3600.0
    counted = threading.Thread(target=bounds.wait_s, args=("ann",), daemon=True)
    counted.start()
    counted.join(20)
    assert not counted.is_alive()
    assert bounds.used("mallory") == {"followed": 2}


ASKED = health_pb2.HealthCheckRequest(service="")


def test_what_is_not_used_is_let_go_and_calls_under_way_go_on() -> None:
    server = RpcServer("127.0.0.1:0")
    server.start()
    now = [1000.0]
    channels = Channels(lambda endpoint: grpc.insecure_channel(endpoint, options=(*OPTIONS, *IDLE_OPTIONS)), clock=lambda: now[0])
    try:
        first = channels.get(server.endpoint)
        followed = health_pb2_grpc.HealthStub(first).Watch(ASKED, timeout=60)
        assert next(followed).status == 1
        for number in range(1, 50):  # nodes that are gone
            channels.get(f"127.0.0.1:{number}")
        assert len(channels) == 50
        now[0] += KEEP_S - 1
        assert channels.get("127.0.0.1:49") is channels.get("127.0.0.1:49")
        now[0] += 2
        channels.get("127.0.0.1:49")
        assert len(channels) == 1
        gone = weakref.ref(first)
        del first
        gc.collect()
        assert gone() is None
        server.set_healthy(False)
        assert next(followed).status == 2  # its channel was let go, and it goes on
        followed.cancel()
        again = channels.get(server.endpoint)
        assert health_pb2_grpc.HealthStub(again).Check(ASKED, timeout=60).status == 2
        channels.forget(server.endpoint)
        assert channels.get(server.endpoint) is not again
    finally:
        channels.close()
        server.stop(0)
    assert len(channels) == 0


@pytest.mark.parametrize(
    ("place", "kind", "says"),
    [
        ("nonsense", ConfigError, "not a place to listen on"),
        ("127.0.0.1:", ConfigError, "not a place to listen on"),
        ("127.0.0.1:70000", ConfigError, "not a place to listen on"),
        ("no.such.host.invalid:0", Unavailable, "does not resolve"),
        ("192.0.2.1:0", Unavailable, "this machine has no such address"),
    ],
)
def test_a_place_that_is_none_is_named(place: str, kind: type[RmgrError], says: str) -> None:
    with pytest.raises(kind, match=says):
        check_place(place)


def test_a_port_that_is_taken_is_told_without_words_of_grpc(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(Unavailable, match="another process listens there"):
            RpcServer(taken)
    assert capfd.readouterr().err == ""
    check_place(taken)
    check_place("127.0.0.1:0")


def ask(endpoint: str, results: list[Any]) -> None:
    with grpc.insecure_channel(endpoint, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            results.append(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10).status)
        except grpc.RpcError as error:
            results.append(error)


def test_a_moment_without_threads_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RpcServer("127.0.0.1:0")
    server.start()
    held = threading.Event()
    started = threading.Thread.start
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("rpc"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        started(thread)

    try:
        for _ in range(8):  # every thread that there is has something to do
            server.pool.submit(held.wait, 60)
        monkeypatch.setattr(threading.Thread, "start", start)
        answers: list[Any] = []
        askers = [threading.Thread(target=ask, args=(server.endpoint, answers)) for _ in range(5)]
        for asker in askers:
            asker.start()
        end_s = time.monotonic() + 60
        while not refused and time.monotonic() < end_s:
            time.sleep(0.01)
        assert refused
        monkeypatch.undo()
        held.set()
        for asker in askers:
            asker.join(60)
        assert answers == [health_pb2.HealthCheckResponse.SERVING] * 5
    finally:
        held.set()
        monkeypatch.undo()
        server.stop()


def test_what_cannot_be_read_is_counted_and_has_a_line_of_audit_with_its_method() -> None:
    counted: list[tuple[str, str]] = []
    with structlog.testing.capture_logs() as lines:
        server = open_server("127.0.0.1:0", None, None, structlog.get_logger(), threads=8, count=lambda *what: counted.append(what))
        server.start()
        try:
            with grpc.insecure_channel(server.endpoint) as channel, pytest.raises(grpc.RpcError, match="the request cannot be read"):
                channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff\xff", timeout=60)
        finally:
            server.stop()
    assert counted == [("refused", "UsageError")]
    [line] = lines
    assert (line["event"], line["what"], line["allowed"]) == ("audit", "/grpc.health.v1.Health/Check", False)
