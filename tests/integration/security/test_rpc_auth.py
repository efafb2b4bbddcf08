"""Every method of every service refuses callers without a certificate, with a stranger's or a revoked one, or in the wrong role."""

from __future__ import annotations

import importlib
import pkgutil
import socket
import ssl
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2

import rmgr.v1
from rmgr.adapters.access import auth as rpc_auth
from rmgr.adapters.access.auth import METHODS, Caller, caller_of, fail, open_channel, rebuild, speaking_for
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway.forward import Forwarder
from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.gateway.talk import Talks
from rmgr.adapters.identity.credentials import Credentials, write_files
from rmgr.adapters.identity.pki import issue, issue_server
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.metaserver import handler_of as picks
from rmgr.adapters.rpc.ranks import handler_of
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient, NodeClient, join_handler, leader_handler, node_handler, use_handler
from rmgr.adapters.terminals import Tunnels
from rmgr.adapters.terminals import handler_of as terminals
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.errors import NotFound, PermissionDenied, RmgrError, Unavailable, UsageError
from rmgr.model.identity import Identity, Revocation, Role
from rmgr.v1.calls_pb2_grpc import CallsServicer, add_CallsServicer_to_server
from tests.harness.bundles import session_bundles
from tests.harness.fair_time import undisturbed
from tests.harness.gateways import OpenRows
from tests.harness.proxy import Proxy
from tests.harness.talks import Echo, TalkClient
from tests.harness.waiting import eventually
from tests.unit.adapters.rpc.test_rpc import Answers

BUNDLES = session_bundles()
STRANGER = session_bundles("elsewhere")
DEADLINE_S = 30.0


def every_method() -> dict[str, Any]:
    """Full name -> descriptor, of every service that is compiled in."""
    files = [importlib.import_module(f"rmgr.v1.{found.name}") for found in pkgutil.iter_modules(rmgr.v1.__path__)]
    files = [file for file in files if hasattr(file, "DESCRIPTOR")] + [health_pb2]
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}


class AnyJoin:
    def redeem(self, invitation: str, nonce: str) -> Any:
        raise Unavailable("asked")

    def renew(self, role: Role, generation: int) -> Any:
        raise Unavailable("asked")


class AnyRanks:
    process = "any"

    def prepare(self, node: str, hold: str, **_: Any) -> Any:
        raise NotFound(f"{hold} on {node}")

    def suspend(self, node: str, hold: str, **_: Any) -> Any:
        raise NotFound(f"{hold} on {node}")

    def launch(self, node: str, hold: str) -> Any:
        raise NotFound(f"{hold} on {node}")

    def checkpoint(self, node: str, hold: str, step: Any) -> Any:
        raise NotFound(f"{step.step} of {hold} on {node}")


class AnyForwarder:
    def starter(self, context: grpc.ServicerContext) -> str:
        fail(context, NotFound("no node"))
        raise AssertionError


class AnyTerminal:
    def attach(self, submission: int, index: int, *, caller: Caller) -> Any:
        raise NotFound(f"{submission}_{index} for {caller.user}")


class AnyUse:
    def use(self, users: Any, *, fresh: bool, caller: Caller) -> Any:
        raise NotFound(f"{caller.user} asks")


class AnyMetaserver:
    def report(self, report: Any) -> Any:
        raise Unavailable(f"{report.gateway} reports")

    def pick(self, asked: Any) -> Any:
        raise Unavailable(f"{asked.gateway} asks")

    def servers(self, name: str) -> Any:
        raise NotFound(name)


class Services:
    """Services that have every method and carry none out."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        add_CallsServicer_to_server(CallsServicer(), self)

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        for handler in handlers:
            self._server.add_generic(handler)

    def add_registered_method_handlers(self, *_: object) -> None:
        pass


class Town:
    """One server with every service, in the role of each daemon in turn: what is allowed is the table's matter alone."""

    def __init__(self, credentials: Credentials | None = None, *, forward: bool = False) -> None:
        self.revoked: set[str] = set()
        self.refused: list[tuple[str, Identity | None, RmgrError]] = []
        self.callers: list[Caller] = []
        self.server = RpcServer(
            "127.0.0.1:0",
            credentials=credentials,
            is_revoked=lambda key_id: key_id in self.revoked,
            refused=lambda *told: self.refused.append(told),
        )
        self.rows = OpenRows()
        self.talks = Talks(Echo, most=200, is_revoked=lambda key_id: key_id in self.revoked, bounds=Bounds(), count=self.rows.counted)
        tunnels = Tunnels(AnyForwarder())  # type: ignore[arg-type]
        own = (join_handler(AnyJoin()), handler_of(AnyRanks()), terminals(AnyTerminal()), tunnels.handler, use_handler(AnyUse()))
        for handler in (self.talks.handler, self.rows.handler, *own, picks(AnyMetaserver())):
            self.server.add_generic(handler)
        Services(self.server)
        if not forward:
            self.server.add_generic(leader_handler(Answers()))
            self.server.add_generic(node_handler(Answers()))
        self.endpoint = self.server.endpoint

    def stop(self) -> None:
        self.talks.stop(0.1)
        self.server.stop(0.1)


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    made = Town(BUNDLES.credentials(Role.WATCHDOG))
    made.server.start()
    yield made
    made.stop()


def ask(channel: grpc.Channel, name: str, method: Any) -> grpc.StatusCode:
    """Calls a method with an empty request; how it ended, OK when an answer came."""
    kinds = {(False, False): "unary_unary", (False, True): "unary_stream", (True, False): "stream_unary", (True, True): "stream_stream"}
    request = message_factory.GetMessageClass(method.input_type)().SerializeToString()
    call = getattr(channel, kinds[method.client_streaming, method.server_streaming])(name)
    try:
        answer = call(iter([request]) if method.client_streaming else request, timeout=DEADLINE_S)
        if method.server_streaming:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def is_refused(code: grpc.StatusCode) -> bool:
    return code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE)


def test_the_table_has_every_method_and_no_other() -> None:
    compiled = set(every_method())
    assert compiled - set(METHODS) == set()
    assert set(METHODS) - compiled <= {"/grpc.health.v1.Health/List"}  # of newer releases of grpcio-health-checking
    assert not any(roles >= set(Role) for name, roles in METHODS.items() if "Health" not in name or "Store" in name)


def test_without_a_certificate_of_the_cluster_no_method_answers(town: Town) -> None:
    ca, (own_crt, own_key) = BUNDLES.ca.cert_pem, STRANGER.credentials(Role.ADMIN).tls_pair
    target = (*OPTIONS, ("grpc.ssl_target_name_override", "watchdog.rmgr"))
    channels = {
        "plain": grpc.insecure_channel(town.endpoint, options=OPTIONS),
        "no certificate": grpc.secure_channel(town.endpoint, grpc.ssl_channel_credentials(ca), options=target),
        "another authority": grpc.secure_channel(town.endpoint, grpc.ssl_channel_credentials(ca, own_key, own_crt), options=target),
    }
    for kind, channel in channels.items():
        with channel:
            for name, method in every_method().items():
                assert ask(channel, name, method) is grpc.StatusCode.UNAVAILABLE, (kind, name)
    assert town.rows.counts == {}


@pytest.mark.parametrize("role", list(Role))
def test_every_role_may_call_what_the_table_says_and_nothing_else(town: Town, role: Role) -> None:
    town.refused.clear()
    with open_channel(town.endpoint, BUNDLES.credentials(role, "somebody"), Role.WATCHDOG, OPTIONS) as channel:
        for name, method in every_method().items():
            code = ask(channel, name, method)
            assert (code is grpc.StatusCode.PERMISSION_DENIED) == (role not in METHODS[name]), (name, code)
    told = {(name, who.name, who.role) for name, who, _ in town.refused if who is not None}
    assert told == {(name, "somebody", role) for name in every_method() if role not in METHODS[name]}


#: Methods that the town's stand-ins end before they read anything.
_UNREAD = {"/rmgr.v1.Calls/Serve", "/rmgr.v1.Calls/Call", "/rmgr.v1.Calls/Give", "/rmgr.v1.Tunnel/Open"}


def test_what_cannot_be_read_is_refused_with_words_and_fills_no_log(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    town.refused.clear()
    names = [name for name in every_method() if name not in _UNREAD]
    for name in names:
        role = min(METHODS[name])
        with open_channel(town.endpoint, BUNDLES.credentials(role, "somebody"), Role.WATCHDOG, OPTIONS) as channel:
            with pytest.raises(grpc.RpcError) as failed:
                list(channel.stream_stream(name)(iter([b"\xff\xff\xff"]), timeout=DEADLINE_S))
            told = rebuild(failed.value, town.endpoint)
        assert isinstance(told, UsageError), (name, told)
        assert "the request cannot be read" in told.message, name
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name  # type: ignore[attr-defined]
    told_of = [(name, who.name, type(why)) for name, who, why in town.refused if who is not None]
    assert told_of == [(name, "somebody", UsageError) for name in names]
    assert not [record for record in caplog.records if record.name.startswith("grpc")]


def test_methods_that_are_not_in_the_table_are_for_nobody(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(METHODS, "/rmgr.v1.Leader/Nodes")
    with LeaderClient(town.endpoint, credentials=BUNDLES.credentials(Role.ADMIN)) as leader:
        assert leader.jobs()
        with pytest.raises(PermissionDenied, match="Leader/Nodes is not for a admin"):
            leader.nodes()
    assert ask_unknown(town) is grpc.StatusCode.UNIMPLEMENTED


def ask_unknown(town: Town) -> grpc.StatusCode:
    with open_channel(town.endpoint, BUNDLES.credentials(Role.ADMIN), Role.WATCHDOG, OPTIONS) as channel:
        try:
            channel.unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(b"", timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_certificates_that_name_nobody_or_have_no_key_are_refused(town: Town) -> None:
    server = issue_server(BUNDLES.ca, "zk1", ["localhost"])
    target = (*OPTIONS, ("grpc.ssl_target_name_override", "watchdog.rmgr"))
    secured = grpc.ssl_channel_credentials(BUNDLES.ca.cert_pem, server[1], server[0])
    with grpc.secure_channel(town.endpoint, secured, options=target) as channel:
        for name, method in every_method().items():
            assert is_refused(ask(channel, name, method)), name


def test_an_expired_certificate_opens_nothing(town: Town, tmp_path: Any) -> None:
    old = issue(BUNDLES.ca, "late", Role.ADMIN, days=1, now_s=time.time() - 3 * 86400)
    secured = grpc.ssl_channel_credentials(BUNDLES.ca.cert_pem, old["tls.key"], old["tls.crt"])
    with grpc.secure_channel(town.endpoint, secured, options=(("grpc.ssl_target_name_override", "watchdog.rmgr"),)) as channel:
        assert ask(channel, "/rmgr.v1.Leader/Jobs", every_method()["/rmgr.v1.Leader/Jobs"]) is grpc.StatusCode.UNAVAILABLE


def test_revoked_keys_are_refused_at_once_and_their_streams_end_with_words(town: Town) -> None:
    alice = BUNDLES.credentials(Role.USER, "alice")
    leader = LeaderClient(town.endpoint, credentials=alice)
    stream = None
    gateway = Town(BUNDLES.credentials(Role.SUBMITTER))
    gateway.server.start()
    try:
        assert leader.jobs()
        stream = TalkClient(gateway.endpoint, credentials=alice)
        stream.reaches(b"hello")
        assert len(gateway.talks) == 1
        for place in (town, gateway):
            place.revoked.add(alice.identity.key_id)
        with pytest.raises(PermissionDenied, match="key of user alice was revoked"):
            leader.jobs()
        eventually(lambda: not len(gateway.talks))
        eventually(lambda: isinstance(stream.link.refusal, PermissionDenied) and "revoked" in stream.link.refusal.message)
        ups = stream.ups
        eventually(lambda: stream.ups > ups + 2)  # it tries again, in vain
        assert not len(gateway.talks)
        with LeaderClient(town.endpoint, credentials=BUNDLES.credentials(Role.USER, "bob")) as other:
            assert other.jobs()
    finally:
        leader.close()
        if stream is not None:
            stream.close(1.0)
        gateway.stop()
        town.revoked.clear()


def test_a_connection_outlives_no_persons_certificate(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS has looked at the dates when the connection was made."""
    alice = BUNDLES.credentials(Role.USER, "alice")
    gateway = Town(BUNDLES.credentials(Role.SUBMITTER))
    gateway.server.start()
    stream = TalkClient(gateway.endpoint, credentials=alice)
    try:
        with LeaderClient(town.endpoint, credentials=alice) as leader:
            assert leader.jobs()
            stream.reaches(b"hello")
            days_left = (alice.not_after_s - time.time()) / 86400
            monkeypatch.setattr(rpc_auth, "time", SimpleNamespace(time=lambda: time.time() + (days_left + 1) * 86400))
            with pytest.raises(Unavailable, match="the certificate of user alice has ended"):
                leader.jobs()
        eventually(lambda: not len(gateway.talks))
        eventually(lambda: "the certificate of user alice has ended" in stream.link.last_error)
        with LeaderClient(town.endpoint, credentials=BUNDLES.credentials(Role.SUBMITTER)) as daemon:  # renews its own
            assert daemon.jobs()
    finally:
        stream.close(1.0)
        gateway.stop()


def test_a_daemon_must_be_what_it_is_taken_for(town: Town) -> None:
    """The town shows a WatchDog's certificate; whoever looks for a Starter or a gateway there is not satisfied."""
    admin = BUNDLES.credentials(Role.ADMIN)
    with NodeClient(town.endpoint, credentials=admin) as node, pytest.raises(PermissionDenied, match="has no certificate of this cluster"):
        node.stats()
    store = GatewayStore(town.endpoint, credentials=admin)

    @undisturbed
    def is_refused() -> None:
        with pytest.raises(RmgrError, match="no certificate of this cluster"):
            store.get("x", timeout_s=3.0)  # it looks for another gateway until then

    is_refused()
    store.close()
    stream = TalkClient(town.endpoint, credentials=admin)
    eventually(lambda: "no certificate of this cluster" in stream.link.last_error)
    stream.close()


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.JOIN, Role.ADMIN])
def test_people_cannot_play_daemons(role: Role) -> None:
    """Their certificates are not good for a server, whatever name they chose."""
    impostor = Town(BUNDLES.credentials(role, "watchdog"))
    impostor.server.start()
    try:
        with LeaderClient(impostor.endpoint, credentials=BUNDLES.credentials(Role.USER, "bob")) as leader, pytest.raises(PermissionDenied):
            leader.jobs()
    finally:
        impostor.stop()


def test_open_and_secured_do_not_mix_unnoticed(town: Town) -> None:
    with LeaderClient(town.endpoint) as plain, pytest.raises(Unavailable) as told:
        plain.jobs()
    assert "RMGR_SECURITY_DIR" in told.value.hint
    stream = TalkClient(town.endpoint)
    eventually(lambda: "does not talk to us" in stream.link.last_error)
    stream.close()
    opened = Town()
    opened.server.start()
    try:
        leader = LeaderClient(opened.endpoint, credentials=BUNDLES.credentials(Role.USER))
        with leader, pytest.raises(PermissionDenied, match="does not speak TLS"):
            leader.jobs()
    finally:
        opened.stop()


def test_a_gateway_speaks_for_its_user_and_nobody_else_may(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog, gateway = (
        RpcServer("127.0.0.1:0", credentials=BUNDLES.credentials(Role.WATCHDOG)),
        Town(BUNDLES.credentials(Role.SUBMITTER), forward=True),
    )
    watchdog.add_generic(leader_handler(Answers()))
    callers: list[Caller] = []

    class Routes:
        def leader(self, wanted: str) -> str:
            return watchdog.endpoint

        def node(self, wanted: str) -> str:
            return wanted

        def lost(self, endpoint: str) -> None: ...
        def count(self, what: str, kind: str) -> None: ...

    def noting(context: grpc.ServicerContext) -> Caller:
        callers.append(caller_of(context))
        return callers[-1]

    monkeypatch.setattr(rpc_auth, "caller_of", noting)
    routes: Any = Routes()
    forwarder = Forwarder(routes, credentials=BUNDLES.credentials(Role.SUBMITTER))
    for handler in forwarder.handlers:
        gateway.server.add_generic(handler)
    watchdog.start()
    gateway.server.start()
    try:
        for role in (Role.USER, Role.OPERATOR):
            mine = BUNDLES.credentials(role, "carol")
            with LeaderClient(watchdog.endpoint, via=gateway.endpoint, credentials=mine) as leader:
                assert leader.jobs()
            at_gateway, at_leader = callers[-2:]
            assert (at_gateway.who, at_gateway.on_behalf_of) == (mine.identity, None)
            assert at_leader.identity is not None
            assert at_leader.identity.role is Role.SUBMITTER
            assert (at_leader.user, at_leader.is_operator()) == ("carol", role is Role.OPERATOR)
        # A user who says that he speaks for somebody else is still himself.
        with open_channel(watchdog.endpoint, BUNDLES.credentials(Role.USER, "dave"), Role.WATCHDOG, OPTIONS) as channel:
            told = (("rmgr-user", "carol"), ("rmgr-role", "operator"))
            channel.unary_unary("/rmgr.v1.Leader/Jobs")(b"", timeout=DEADLINE_S, metadata=told)
        assert (callers[-1].user, callers[-1].is_operator(), callers[-1].on_behalf_of) == ("dave", False, None)
        assert callers[-1].is_operator(["dave"])
    finally:
        forwarder.close()
        gateway.stop()
        watchdog.stop()


def test_callers_of_an_open_cluster_are_believed_what_they_say() -> None:
    caller = Caller(claimed="eve")
    assert (caller.is_open, caller.user, caller.is_operator(), caller.who) == (True, "eve", True, None)
    assert dict(speaking_for(caller)) == {"rmgr-user": "eve", "rmgr-role": "user"}
    assert speaking_for(Caller()) == ()


def days_shown(town: Town, client: ssl.SSLContext) -> int:
    """For how long the certificate is valid that the server shows to a new connection."""
    host, _, port = town.endpoint.rpartition(":")
    client.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 5.0) as plain, client.wrap_socket(plain, server_hostname="watchdog.rmgr") as link:
        ends_s = ssl.cert_time_to_seconds(str((link.getpeercert() or {})["notAfter"]))
    return int((ends_s - time.time()) // 86400)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Any) -> None:
    ending = issue(BUNDLES.ca, "w1", Role.WATCHDOG, days=30)
    town = Town(Credentials.load(write_files(tmp_path / "w1", ending)))
    town.server.start()
    try:
        mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        mine.load_verify_locations(cadata=BUNDLES.ca.cert_pem.decode())
        user = BUNDLES.credentials(Role.USER)
        mine.load_cert_chain(user.path("tls.crt"), user.path("tls.key"))
        assert days_shown(town, mine) == 29
        (tmp_path / "w1" / "tls.crt").write_bytes(b"half writ")  # a moment of somebody's cp
        assert days_shown(town, mine) == 29
        write_files(tmp_path / "w1", issue(BUNDLES.ca, "w1", Role.WATCHDOG, days=90), replace=True)
        assert days_shown(town, mine) == 89
        with LeaderClient(town.endpoint, credentials=user) as leader:
            assert leader.jobs()
    finally:
        town.stop()


def test_who_dials_shows_a_renewed_certificate_without_a_restart(tmp_path: Any) -> None:
    town = Town(BUNDLES.credentials(Role.WATCHDOG))
    town.server.start()
    where = write_files(tmp_path / "ann", issue(BUNDLES.ca, "ann", Role.USER))
    mine = Credentials.load(where)

    def jobs() -> object:
        with LeaderClient(town.endpoint, credentials=mine) as leader:
            return leader.jobs()

    try:
        assert jobs()
        certificate = (where / "tls.crt").read_bytes()
        (where / "tls.crt").write_bytes(b"half writ")  # a moment of somebody's cp
        assert jobs()
        (where / "tls.crt").write_bytes(certificate)
        town.revoked.add(mine.identity.key_id)
        with pytest.raises(PermissionDenied):
            jobs()
        write_files(where, issue(BUNDLES.ca, "bob", Role.USER), replace=True)  # somebody else's
        with pytest.raises(PermissionDenied):
            jobs()
        write_files(where, issue(BUNDLES.ca, "ann", Role.USER), replace=True)
        assert jobs()
    finally:
        town.stop()


def test_who_is_far_away_is_served(town: Town) -> None:
    with Proxy(town.endpoint, framed=False) as far:
        far.delay(0.15)  # of answers: a round trip round half of the world
        with LeaderClient(far.hosts, timeout_s=30.0, credentials=BUNDLES.credentials(Role.USER)) as leader:
            assert leader.jobs()


def test_health_is_for_everybody_of_the_cluster(town: Town) -> None:
    for role in Role:
        with LeaderClient(town.endpoint, credentials=BUNDLES.credentials(role, "probe")) as client:
            assert client.is_serving(), role
    with LeaderClient(town.endpoint) as client:
        assert not client.is_serving()


def test_a_revocation_is_heard_at_once_by_who_has_read_the_list_before(coordinator: ZkCoordinator) -> None:
    coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
    trusted = session_bundles().credentials(Role.STARTER, "n1")
    trust, key_id = Trust(ZooKeeperKeys(coordinator), trusted.ca_pem), trusted.identity.key_id
    eventually(lambda: trust.look(key_id, at_s=time.time()) is not None, "the list is read")
    gone = Revocation(key_id=key_id, name="n1", role=Role.STARTER, by="admin", since_us=1)
    assert isinstance(coordinator.commit(membership.revoke(gone)).result(60), Committed)
    eventually(lambda: trust.is_revoked(key_id), "the revocation is heard", within_s=10.0)
