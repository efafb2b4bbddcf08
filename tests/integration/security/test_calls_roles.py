"""Calls on a secured cluster: which roles may offer, take, give and call, and which keys are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rmgr.adapters.access.auth import open_channel, rebuild
from rmgr.adapters.calls.links import VERSION
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.errors import PermissionDenied
from rmgr.model.identity import Role
from rmgr.v1 import calls_pb2 as pb
from rmgr.v1 import calls_pb2_grpc
from tests.harness.called import Called
from tests.harness.waiting import eventually
from tests.integration.commands import Lend

grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def world(lend_secured: Lend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    with lend_secured() as cluster, closing(Called(tmp_path_factory.mktemp("guarded"), cluster, servers=("r1", "r2"))) as made:
        yield made


def bundle(world: Called, role: Role, name: str) -> Path:
    return world.cluster.security.bundle(role, name)


def stub(world: Called, role: Role, name: str) -> calls_pb2_grpc.CallsStub:
    channel = open_channel(world.cluster.state.gateway, Credentials.load(bundle(world, role, name)), Role.SUBMITTER, OPTIONS)
    return calls_pb2_grpc.CallsStub(channel)


def refusal(call) -> str:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    error = rebuild(failed.value, "gateway")
    assert isinstance(error, PermissionDenied), error
    return error.message


def test_users_call_and_only_those_that_a_function_names(world: Called) -> None:
    with world.caller(bundle(world, Role.USER, "alice")) as alice, world.caller(bundle(world, Role.USER, "mallory")) as mallory:
        assert alice.call("nap", 0.0, timeout=60) == mallory.call("nap", 0.0, timeout=60) == 0.0
        assert alice.call("alices", 0.0, timeout=60) == 0.0
        assert (alice.user, mallory.user) == ("alice", "mallory"), "as servers and gateways name their calls"
        with pytest.raises(PermissionDenied, match="alices@1 is not for mallory"):
            mallory.call("alices", 0.0, timeout=60)


def test_a_user_offers_takes_and_gives_nothing_and_a_server_calls_nothing(world: Called) -> None:
    user, server = stub(world, Role.USER, "mallory"), stub(world, Role.SERVER, "s7")
    hello = pb.FromServer(hello=pb.ServerHello(version=VERSION, name="mallory", life=1, slots=1))
    assert "is not for a user" in refusal(lambda: next(user.Serve(iter([hello]))))
    assert "is not for a user" in refusal(lambda: next(user.Take(pb.TakeRequest(key=b"k" * 16))))
    assert "is not for a user" in refusal(lambda: user.Give(iter([pb.GivePart(key=b"k" * 16)])))
    assert "is not for a server" in refusal(lambda: next(server.Call(iter([pb.FromCaller(ask=pb.CallAsk())]))))
    assert "is not for a server" in refusal(lambda: server.Functions(pb.FunctionsRequest()))


def test_a_server_has_the_name_of_its_certificate(world: Called) -> None:
    hello = pb.FromServer(hello=pb.ServerHello(version=VERSION, name="r1", life=7, slots=1))
    with pytest.raises(grpc.RpcError) as failed:
        next(stub(world, Role.SERVER, "s7").Serve(iter([hello])))
    assert "has a certificate of s7" in rebuild(failed.value, "gateway").message
    with world.caller() as caller:
        assert world.open_servers(caller) == 2


def test_only_gateways_ask_the_leader(world: Called) -> None:
    endpoint = world.cluster.snapshot().epoch.endpoint
    channel = open_channel(endpoint, Credentials.load(bundle(world, Role.USER, "mallory")), Role.WATCHDOG, OPTIONS)
    metaserver = calls_pb2_grpc.MetaserverStub(channel)
    assert "is not for a user" in refusal(lambda: metaserver.Report(pb.ReportRequest(gateway="mine"), timeout=20))
    assert "is not for a user" in refusal(lambda: metaserver.Pick(pb.PickRequest(function="nap@1"), timeout=20))


def test_a_server_that_is_revoked_is_gone_and_stays_so(world: Called) -> None:
    with world.caller() as caller:
        words = [sys.executable, "-m", "rmgr.cli.main", "admin", "revoke", "r2", "--role", "server", "--json"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")} | world.cluster.environment()
        environment["RMGR_SECURITY_DIR"] = str(world.cluster.security.admin)
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)
        eventually(lambda: world.open_servers(caller) == 1, "its stream has ended")
        assert caller.call_async("nap", 0.0).result(60) == 0.0
