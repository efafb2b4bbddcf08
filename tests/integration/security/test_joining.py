"""Machines join a secured cluster with tokens that are redeemed over real TLS, once."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from rmgr.adapters.access.auth import METHODS
from rmgr.adapters.identity.invitation import TlsPair, Token, seal, seal_secret
from rmgr.adapters.identity.pki import issue
from rmgr.adapters.rpc import services
from rmgr.adapters.rpc.server import RpcServer
from rmgr.config import StarterConfig, check_file
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.daemons.leader.answering import Joining
from rmgr.errors import PermissionDenied, Unavailable
from rmgr.model.identity import AclRecord, Invitation, Revocation, Role
from rmgr.procedures import securing
from rmgr.procedures.bootstrap import bootstrap
from tests.harness.bundles import Bundles, session_bundles
from tests.harness.memory import MemoryCoordinator, MemoryTree
from tests.integration.commands import Shell


@dataclass
class Door:
    """A WatchDog's server, as far as those who join see it."""

    bundles: Bundles
    coordinator: MemoryCoordinator
    endpoint: str
    revoked: set[str]

    def invite(self, name: str = "n9", *, lasts_s: float = 60.0) -> TlsPair:
        files = issue(self.bundles.ca, f"{name}-token", Role.JOIN)
        invitation = Invitation(
            id=f"{name}-token",
            name=name,
            role=Role.STARTER,
            key_id="k",
            expires_us=int((time.time() + lasts_s) * 1e6),
            sealed=base64.b64encode(seal(b"s", "x", b"bundle")).decode(),
        )
        assert isinstance(self.coordinator.commit(membership.invite(invitation)).result(60), Committed)
        return TlsPair(files["ca.crt"], files["tls.crt"], files["tls.key"])

    def redeem(self, pair: TlsPair, nonce: str = "5e" * 16) -> tuple[str, Role, str]:
        *found, answered = services.redeem([self.endpoint], pair, nonce, timeout_s=30.0)
        assert answered == self.endpoint
        return tuple(found)  # type: ignore[return-value]


@pytest.fixture
def door() -> Iterator[Door]:
    bundles = session_bundles()
    coordinator = MemoryCoordinator(MemoryTree())
    bootstrap(coordinator)
    credentials = bundles.credentials(Role.WATCHDOG)
    revoked: set[str] = set()
    server = RpcServer("127.0.0.1:0", credentials=credentials, is_revoked=revoked.__contains__)
    server.add_generic(services.join_handler(Joining(coordinator, dict(credentials.zookeeper_secrets), structlog.get_logger())))
    server.start()
    yield Door(bundles, coordinator, server.endpoint, revoked)
    server.stop(0.0)
    coordinator.close()


def test_a_token_works_once_and_again_only_for_the_same_machine(door: Door) -> None:
    pair = door.invite()
    name, role, sealed = door.redeem(pair)
    assert (name, role) == ("n9", Role.STARTER)
    assert door.redeem(pair) == (name, role, sealed)
    with pytest.raises(PermissionDenied, match="used already"):
        door.redeem(pair, "ab" * 16)


@pytest.mark.parametrize("nonce", ["", "me", "5e" * 15, "z" * 32, "5e" * 65, "\u0663" * 32])
def test_without_a_nonce_of_its_own_nobody_redeems_and_the_token_stays_good(door: Door, nonce: str) -> None:
    pair = door.invite()
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(PermissionDenied, match="nonce of 16 random bytes"):
                door.redeem(pair, nonce)
    told = [(line["what"], line["target"], line["allowed"]) for line in lines if line["event"] == "audit"]
    assert told == [("join", "n9-token", False)] * 2
    assert door.redeem(pair)[0] == "n9"


def test_every_use_of_a_token_leaves_a_line_of_audit(door: Door) -> None:
    pair = door.invite()
    with capture_logs() as lines:
        door.redeem(pair)
        door.redeem(pair)
        with pytest.raises(PermissionDenied, match="used already"):
            door.redeem(pair, "ab" * 16)
        with pytest.raises(PermissionDenied, match="expired"):
            door.redeem(door.invite("n1", lasts_s=-1.0))
    told = [(line["who"], line["allowed"], line["why"].split(":")[0]) for line in lines if line["event"] == "audit"]
    assert told == [
        ("n9", True, "the token's first use"),
        ("n9", True, "again, to the same machine"),
        ("n9-token", False, "the token of n9 was used already"),
        ("n1-token", False, "the token of n1 has expired"),
    ]


def test_an_expired_or_withdrawn_token_opens_nothing(door: Door) -> None:
    with pytest.raises(PermissionDenied, match="expired"):
        door.redeem(door.invite("n1", lasts_s=-1.0))
    pair = door.invite("n2")
    found = door.coordinator.get(paths.join("n2-token")).result(60)
    assert isinstance(door.coordinator.commit(membership.withdraw("n2-token", found.version)).result(60), Committed)
    with pytest.raises(PermissionDenied, match="nothing waits"):
        door.redeem(pair)


def test_no_other_role_redeems_and_no_token_of_another_cluster(door: Door) -> None:
    starter = door.bundles.credentials(Role.STARTER)
    with pytest.raises(PermissionDenied, match="not for a starter"):
        door.redeem(TlsPair(starter.ca_pem, *starter.tls_pair))
    other = session_bundles("elsewhere")
    files = issue(other.ca, "n9-token", Role.JOIN)
    with pytest.raises((PermissionDenied, Unavailable)):
        door.redeem(TlsPair(files["ca.crt"], files["tls.crt"], files["tls.key"]))


def test_a_token_is_good_for_nothing_else(door: Door) -> None:
    assert [method for method, roles in METHODS.items() if Role.JOIN in roles and "Health" not in method] == ["/rmgr.v1.Join/Redeem"]
    assert door.redeem(door.invite("n3"))[0] == "n3"


def test_a_rotated_secret_reaches_its_role_and_no_revoked_key(door: Door) -> None:
    starter = door.bundles.credentials(Role.STARTER)
    secrets = door.bundles.ca.secrets
    assert services.renew([door.endpoint], starter, 0) == (0, f"starter:{secrets['starter']}")
    record = AclRecord(generation=1, roles={"starter": ("starter:old", "starter:new")})
    sealed = seal_secret(secrets["watchdog"], "starter", 1, "brand-new")
    assert b"brand-new" not in base64.b64decode(sealed.sealed)
    outcome = door.coordinator.commit(membership.publish_acl(record, None, {"starter": sealed}, {})).result(60)
    assert isinstance(outcome, Committed)
    assert services.renew([door.endpoint], starter, 0) == (1, "starter:brand-new")
    stolen = door.bundles.credentials(Role.STARTER, "n8")  # the door has not heard of it yet; the tree says so
    record = Revocation(key_id=stolen.identity.key_id, name="n8", role=Role.STARTER, by="ops", since_us=1)
    assert isinstance(door.coordinator.commit(membership.revoke(record)).result(60), Committed)
    with pytest.raises(PermissionDenied, match="revoked"):
        services.renew([door.endpoint], stolen, 0)
    door.revoked.add(starter.identity.key_id)
    with pytest.raises(PermissionDenied, match="revoked"):
        services.renew([door.endpoint], starter, 0)
    with pytest.raises(PermissionDenied, match="not for a user"):
        services.renew([door.endpoint], door.bundles.credentials(Role.USER, "ann"), 0)


def test_a_machine_that_reaches_its_watchdog_over_loopback_listens_there_and_is_told_nothing_of_it(door: Door, tmp_path: Path) -> None:
    draft = Token(
        ca=b"",
        certificate=b"",
        key=b"",
        invitation="",
        name="n9",
        role=Role.STARTER,
        endpoints=("127.0.0.1:1", door.endpoint),
        zk="127.0.0.1:2181/rmgr",
        store="sqlite:/srv/store.db",
        zookeeper_tls=False,
        session_timeout_s=6.0,
    )
    token = securing.invite(door.coordinator, door.bundles.ca, draft, hosts=("n9",), lasts_s=60.0, renews=False)
    joined = Shell(tmp_path / "home").ok("join", "-", "--dir", str(tmp_path / "n9"), stdin=token)
    config = tmp_path / "n9" / "starter.toml"
    told = f"this machine is starter n9 now: credentials in {tmp_path}/n9/starter.d, configuration in {config}\n"
    assert joined.out == f"{told}start it: rmgr starter --config {config}\n"
    assert check_file(config).starter == StarterConfig(node="n9")
