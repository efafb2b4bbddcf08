"""Places where a daemon cannot listen: each is named with its reason, before gRPC says anything."""

from __future__ import annotations

import socket

import pytest

from rmgr.adapters.rpc.server import RpcServer, check_place
from rmgr.errors import ConfigError, RmgrError, Unavailable


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
