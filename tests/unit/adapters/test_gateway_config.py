"""Configurations choose the way to the cluster, and the addresses on which a gateway may listen."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials, write_files
from rmgr.adapters.identity.pki import issue
from rmgr.adapters.rpc.channels import Gateways
from rmgr.config import load
from rmgr.errors import ConfigError, NotConnected, UsageError
from rmgr.model.identity import Role
from rmgr.runtime.secured import check_exposure
from tests.harness.bundles import session_bundles


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Variables of a user with a file that names ZooKeeper."""
    (tmp_path / "c.toml").write_text('[cluster]\nzk = "zk1:2181"\nstore = "sqlite:/s.db"\n')
    return {"HOME": str(tmp_path), "RMGR_CONFIG": str(tmp_path / "c.toml")}


def test_a_gateway_that_is_named_above_replaces_the_zookeeper_below(home: dict[str, str]) -> None:
    assert not load(env=home).cluster.uses_gateway
    by_variable = load(env={**home, "RMGR_GATEWAY": "g:1"})
    assert by_variable.cluster.uses_gateway
    assert by_variable.cluster.zk == ""
    by_option = load({"cluster": {"zk": None, "store": None, "gateway": "g:2"}}, env={**home, "RMGR_ZK": "zk2:2181"})
    assert (by_option.cluster.gateway, by_option.cluster.uses_gateway) == ("g:2", True)


def test_a_zookeeper_that_is_named_above_replaces_the_gateway_below(home: dict[str, str]) -> None:
    typed = load({"cluster": {"zk": "zk3:2181"}}, env={**home, "RMGR_GATEWAY": "g:1"})
    assert (typed.cluster.zk, typed.cluster.gateway, typed.cluster.uses_gateway) == ("zk3:2181", "", False)


def test_where_one_layer_names_both_zookeeper_itself_is_used(home: dict[str, str]) -> None:
    both = load(env={**home, "RMGR_ZK": "zk2:2181", "RMGR_GATEWAY": "g:1"})
    assert not both.cluster.uses_gateway
    assert both.cluster.hosts_and_chroot()[0] == "zk2:2181"


def test_a_daemon_with_a_gateway_only_is_told_what_it_lacks(home: dict[str, str]) -> None:
    with pytest.raises(NotConnected, match="only a gateway"):
        load(env={**home, "RMGR_GATEWAY": "g:1"}).cluster.hosts_and_chroot()


def test_several_gateways_are_taken_in_turn() -> None:
    gateways = Gateways(" a:1, b:2 ,[::1]:3")
    assert set(gateways.endpoints) == {"a:1", "b:2", "[::1]:3"}
    first = gateways.current
    gateways.failed("a:9")  # another one than the one in use: nothing changes
    assert gateways.current == first
    seen = []
    for _ in range(4):
        seen.append(gateways.current)
        gateways.failed(gateways.current)
    assert sorted(seen[:3]) == sorted(gateways.endpoints)
    assert seen[3] == first


@pytest.mark.parametrize("text", ["", " , ", "host", "host:", ":7071", "host:0", "host:70000", "host:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"gateway"):
        Gateways(text)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.9:7071", "localhost:1", "[::1]:0"])
def test_loopback_needs_no_word(listen: str) -> None:
    check_exposure(None, listen=listen, metrics=listen, insecure=False)


@pytest.mark.parametrize("listen", ["0.0.0.0:7071", "[::]:7071", "10.0.0.5:7071", "gate.example:7071", ":7071"])
def test_anywhere_else_needs_insecure_to_be_typed(listen: str) -> None:
    for listens, metrics in ((listen, "127.0.0.1:0"), ("127.0.0.1:0", listen)):
        with pytest.raises(ConfigError, match="nobody has to prove an identity") as caught:
            check_exposure(None, listen=listens, metrics=metrics, insecure=False)
        assert "--insecure" in caught.value.hint
    check_exposure(None, listen=listen, metrics=listen, insecure=True)


def test_with_credentials_daemons_may_listen_anywhere() -> None:
    mine = session_bundles().credentials(Role.WATCHDOG)
    for metrics in ("127.0.0.1:0", "0.0.0.0:9100", "0.0.0.0"):  # by TLS where that is not loopback
        check_exposure(mine, listen="0.0.0.0:7070", metrics=metrics, insecure=False)


def test_a_renewed_bundle_is_shown_once_a_gateway_has_failed(tmp_path: Path) -> None:
    """TLS may have refused the old certificate, or a gateway has ended the connection that had shown it."""
    files = partial(issue, session_bundles().ca, "alice", Role.USER)
    where = write_files(tmp_path / "b", files())
    gateways = Gateways("127.0.0.1:1", Credentials.load(where))
    first = gateways.channel("127.0.0.1:1")
    gateways.failed("127.0.0.1:1")
    assert gateways.channel("127.0.0.1:1") is first
    write_files(where, files(), replace=True)
    gateways.failed("127.0.0.1:1")
    second = gateways.channel("127.0.0.1:1")
    assert second is not first
    gateways.failed("127.0.0.1:1")
    assert gateways.channel("127.0.0.1:1") is second
    gateways.close()
