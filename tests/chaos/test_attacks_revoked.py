"""A revoked key is worthless at once: its holder's open streams and sessions end, and submitted work no longer starts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import open_channel
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.identity.trust import publish
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.line import dial
from rmgr.adapters.rpc.services import NodeClient
from rmgr.adapters.terminals import Tunnel
from rmgr.client.connection import Connection, connect
from rmgr.config import ClusterConfig, Config
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.coord.views import answers
from rmgr.errors import RmgrError
from rmgr.model.identity import RevokedWork, Role
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Phase, Rigid
from rmgr.procedures.securing import revoke
from rmgr.submitter import messages as m
from rmgr.submitter.questions import ReadRecord
from tests.harness import forgeries
from tests.harness.attacker import Person, Scene, unique
from tests.harness.fair_time import FairTimer
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.harness.waiting import eventually, unchanged

#: Fair seconds. Two are promised; the rest is for machines that do eight other things.
PROMISED_S, SLACK_S = 2.0, 13.0


@pytest.fixture
def eve(scene: Scene) -> Iterator[Person]:
    made = Person(scene.cluster, Role.USER, f"eve-{unique()}")
    publish(made.zk, made.credentials)
    scene.canary.unlink(missing_ok=True)
    yield made
    made.zk.close()
    scene.canary.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def admin(attacked: Scene) -> Iterator[Person]:
    made = Person(attacked.cluster, Role.ADMIN, "admin")
    yield made
    made.zk.close()


def _revoke(scene: Scene, admin: Person, whom: Person, work: RevokedWork | None = None) -> None:
    made = revoke(admin.zk, admin.credentials.ca_pem, whom.name, role=None, by="admin", reason="left", work=work)
    assert [one.key_id for one in made] == [whom.credentials.identity.key_id]


@dataclass
class Work:
    """What eve has: two tasks that run until the test says so, on both cores of the node, and one that waits."""

    scene: Scene
    running: int
    waiting: int
    go: Path
    beats: Path

    def record(self, number: int) -> Any:
        return forgeries.record(self.scene, number)

    def ends(self) -> list[Any]:
        """What became of the tasks that run, once that is known."""
        return [outcome.state for outcome in self.scene.outcomes(self.running, 2)]

    def explained(self, number: int) -> Any:
        return answers.explain(self.scene.cluster.snapshot(), number, None)


def _work(scene: Scene, eve: Person, *, ends: int = 0, **record: Any) -> Work:
    name = unique()
    go, beats = scene.directory / f"go-{name}", scene.directory / f"beats-{name}"
    script = f"while [ ! -e {go} ]; do echo beat; echo $RMGR_ENTRY >> {beats}; sleep 0.05; done; echo ran >> {scene.canary}; exit {ends}"
    signer = scene.signer(eve)
    running = scene.submit(payloads=(b"a", b"b"), signer=signer, command=Command(argv=("/bin/sh", "-c", script)), **record)
    eventually(lambda: beats.exists() and {"a", "b"} <= set(beats.read_text().split()), lambda: f"both run: {scene.story(running)}")
    waiting = scene.submit(signer=signer)
    return Work(scene, running, waiting, go, beats)


# -- what is open ends ---------------------------------------------------------------------------------------------------------


class Ends:
    """Waits in threads for the ends of what is open. at_s: when each ended, by the timer."""

    def __init__(self, timer: FairTimer) -> None:
        self._timer = timer
        self.at_s: dict[str, float] = {}
        self.begun: dict[str, threading.Event] = {}

    def watch(self, what: str, read: Callable[[Callable[[], None]], None]) -> None:
        """read(begun) returns, or raises, when it is over."""
        self.begun[what] = threading.Event()

        def run() -> None:
            with contextlib.suppress(Exception):  # however it ends, it ends
                read(self.begun[what].set)
            self.at_s[what] = self._timer.elapsed_s

        threading.Thread(target=run, name=what, daemon=True).start()
        assert self.begun[what].wait(60), what


def _follow(client: NodeClient, number: int) -> Callable[[Callable[[], None]], None]:
    def read(begun: Callable[[], None]) -> None:
        for _ in client.logs(number, 0, follow=True):
            begun()

    return read


def test_all_that_is_open_ends(scene: Scene, admin: Person, eve: Person, tmp_path: Path) -> None:
    """Logs, tunnel, stream and questions through a gateway; logs, a watch of health and a line at the Starter itself."""
    security = scene.cluster.security
    assert security is not None
    daemons = scene.cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
    work, mine = _work(scene, eve), eve.credentials
    node = scene.cluster.snapshot().nodes["n1"]
    loop = Loop("lines", on_crash=lambda _: None)
    with GatewayProcess(daemons, tmp_path) as gateway, FairTimer() as timer:
        ends = Ends(timer)
        config = Config(cluster=ClusterConfig(gateway=gateway.endpoint), security=eve.config.security)
        with connect(config=config) as connection, NodeClient(node.endpoint, credentials=mine) as direct:
            ends.watch("log at the node", _follow(direct, work.running))
            through = NodeClient(node.endpoint, via=gateway.endpoint, credentials=mine)
            ends.watch("log through the gateway", _follow(through, work.running))
            tunnel = Tunnel(gateway.endpoint, node.endpoint, credentials=mine)
            ends.watch("tunnel", lambda begun: _idle_tunnel(tunnel, begun))
            channel = open_channel(node.endpoint, mine, Role.STARTER, OPTIONS)
            ends.watch("health", lambda begun: _health(channel, begun))
            line_ended = threading.Event()
            heard = {"on_message": lambda *_: None, "on_end": lambda _: line_ended.set()}
            line = dial(node.line, credentials=mine, key_id=node.key_id, loop=loop, **heard)
            ends.watch("line", lambda begun: (begun(), line_ended.wait()))
            talk = Handmade(gateway.endpoint, mine, scene.cluster_id)
            kept = talk.keep(work.running)
            ends.watch("stream", lambda begun: (begun(), talk.ended()))
            assert connection.asks.ask(ReadRecord(number=work.running), timeout_s=30).record.user == eve.name
            _revoke(scene, admin, eve)
            revoked_s = timer.elapsed_s
            eventually(lambda: len(ends.at_s) == len(ends.begun), "all streams end")
            assert all(at_s - revoked_s < PROMISED_S + SLACK_S for at_s in ends.at_s.values()), ends.at_s
            assert not line.is_open
            assert f"key of user {eve.name} was revoked" in str(talk.error), talk.error
            assert not talk.of(m.Dead, kept=kept)
            eventually(lambda: "revoked" in _refusal(connection, work.running).lower(), "questions are refused, and why is said")
            with pytest.raises(RmgrError, match=r"(?i)revoked"):
                Handmade(gateway.endpoint, mine, scene.cluster_id)
            talk.close()
            channel.close()
            through.close()
            tunnel.close()
    loop.close()
    work.go.touch()
    work.ends()


def _refusal(connection: Connection, number: int) -> str:
    """What a question is told: an answer that is late has other words."""
    with pytest.raises(RmgrError) as refused:
        connection.asks.ask(ReadRecord(number=number), timeout_s=3.0)
    return str(refused.value)


def _idle_tunnel(tunnel: Tunnel, begun: Callable[[], None]) -> None:
    """A connection to the Starter on which nothing is said."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(60)
    link.connect(tunnel.target.removeprefix("unix:"))
    link.sendall(b"PRI * HTTP/2.0\r\n")
    begun()
    while link.recv(4096):
        pass


def _health(channel: Any, begun: Callable[[], None]) -> None:
    for _ in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="")):
        begun()


# -- what he had submitted -------------------------------------------------------------------------------------------------------


def _held(work: Work, number: int) -> None:
    eventually(lambda: work.record(number).phase is Phase.HELD, "it is held")
    assert work.record(number).reason == Reason.REVOKED


def test_what_waits_is_held_and_what_runs_goes_on(scene: Scene, admin: Person, eve: Person) -> None:
    work = _work(scene, eve)
    _revoke(scene, admin, eve)
    _held(work, work.waiting)
    _held(work, work.running)
    why = work.explained(work.waiting)
    assert (why.state, why.reason) == (State.HELD, Reason.REVOKED)
    assert "the credentials of" in why.why[0].detail
    assert "left" in why.why[0].detail
    work.go.touch()
    assert work.ends() == [State.COMPLETED] * 2
    assert scene.canary.read_text() == "ran\n" * 2
    scene.canary.unlink()
    after = scene.submit()
    assert scene.outcomes(after)[0].state is State.COMPLETED
    assert scene.canary.read_text() == "ran\n"
    assert work.record(work.waiting).phase is Phase.HELD


def test_so_it_is_with_placed_jobs(scene: Scene, admin: Person, eve: Person) -> None:
    go, place = scene.directory / f"go-{unique()}", {"queue": "batch", "rigid": Rigid()}
    beats = [scene.directory / f"beats-{unique()}" for _ in range(3)]
    signer, numbers = scene.signer(eve), []
    for at, beat in enumerate(beats):
        script = f"touch {beat}; while [ ! -e {go} ]; do sleep 0.05; done; echo ran >> {scene.canary}"
        numbers.append(scene.submit(signer=signer, command=Command(argv=("/bin/sh", "-c", script)), **place))
        if at < 2:
            eventually(beat.exists, lambda number=numbers[-1]: f"it runs: {scene.story(number)}")
    _revoke(scene, admin, eve)
    for number in numbers:
        eventually(lambda number=number: forgeries.record(scene, number).reason == Reason.REVOKED, "it is held")
    go.touch()
    assert [scene.outcomes(number)[0].state for number in numbers[:2]] == [State.COMPLETED] * 2
    scene.outcomes(scene.submit(**place))
    assert scene.canary.read_text() == "ran\n" * 3
    assert not beats[2].exists()
    assert forgeries.record(scene, numbers[2]).phase is Phase.HELD


def test_nothing_is_tried_again(scene: Scene, admin: Person, eve: Person) -> None:
    work = _work(scene, eve, ends=1, retries=3)
    _revoke(scene, admin, eve, RevokedWork.KEEP)
    _held(work, work.running)
    work.go.touch()
    held = paths.held("default")

    def aside() -> int:
        names = scene.ann.zk.children(held).result(60)
        return sum(key.count for _, key in paths.blocks_in(names) if key.submission == work.running)

    eventually(lambda: aside() == 2, "what failed waits aside")
    scene.outcomes(scene.submit())
    assert scene.canary.read_text() == "ran\n" * 3


def test_a_client_of_his_own_making_cannot_let_it_go_on(scene: Scene, admin: Person, eve: Person) -> None:
    """He has a session of his own in ZooKeeper, where users may change records: the gate stands open again, for a moment."""
    work = _work(scene, eve)
    _revoke(scene, admin, eve)
    _held(work, work.waiting)
    found = eve.zk.get(paths.sub(work.waiting)).result(60)
    assert found is not None
    open_again = forgeries.record(scene, work.waiting)
    data = encode_record(type(open_again)(**{**_fields(open_again), "phase": Phase.OPEN, "reason": "", "reason_detail": ""}))
    made = eve.commit(Set(paths.sub(work.waiting), data, found.version), Create(paths.gate(work.waiting)))
    assert isinstance(made, Committed)
    work.go.touch()
    work.ends()
    _held(work, work.waiting)
    scene.outcomes(scene.submit())
    assert scene.canary.read_text() == "ran\n" * 3


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_all_of_it_ends_when_the_operator_says_so_at_once_or_later(scene: Scene, admin: Person, eve: Person) -> None:
    work = _work(scene, eve)
    _revoke(scene, admin, eve)
    _held(work, work.running)
    _revoke(scene, admin, eve, RevokedWork.CANCEL)
    assert work.ends() == [State.CANCELLED] * 2
    [outcome] = scene.outcomes(work.waiting)
    assert (outcome.state, outcome.reason) == (State.CANCELLED, Reason.REVOKED)
    assert not scene.canary.exists()


def test_what_runs_stands_still_until_the_operator_has_decided(scene: Scene, admin: Person, eve: Person) -> None:
    work = _work(scene, eve)
    _revoke(scene, admin, eve, RevokedWork.HOLD)
    eventually(lambda: unchanged(lambda: work.beats.stat().st_size, 0.5), "it stands still")
    _held(work, work.waiting)
    _revoke(scene, admin, eve, RevokedWork.KEEP)
    before = work.beats.stat().st_size
    eventually(lambda: work.beats.stat().st_size > before, "it goes on")
    work.go.touch()
    assert work.ends() == [State.COMPLETED] * 2
