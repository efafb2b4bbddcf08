"""`rmgr admin`, `join` and daemons with useless credentials print one error that names the defect and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.identity.credentials import Credentials, load_ca
from rmgr.cli.admin import members as admin_rotate
from rmgr.cli.control.operate import drain_node, resume_node
from rmgr.cli.main import run
from rmgr.cli.session.context import Session
from rmgr.daemons.service.keepers import let_in
from rmgr.errors import PermissionDenied
from rmgr.model.cluster.identity import Role

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("RMGR_ZK", "RMGR_STORE", "RMGR_GATEWAY", "RMGR_CONFIG", "RMGR_SECURITY_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    where = tmp_path / "authority"
    assert run(["admin", "init", "--dir", str(where), "--cluster", "lab", "--user", "ann", "--user-dir", str(tmp_path / "ann")]) == 0
    assert run(["admin", "add-user", "bob", "--direct", "--authority", str(where)]) == 0
    assert run(["admin", "add-user", "eve", "--authority", str(where)]) == 0
    capsys.readouterr()
    return where


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["admin", "identities"], 4, "this is for who has the cluster's authority"),
        (["admin", "add-user", "carl"], 4, "--authority DIR"),
        (["admin", "revoke", " "], 2, "whom?"),
        (["admin", "rotate", "keys"], 2, "known: tls, zookeeper"),
        (["join", "/nowhere/token"], 2, "/nowhere/token: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_named(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    assert says in capsys.readouterr().err


def test_a_place_that_cannot_be_made_is_no_defect_of_ours(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "add-user", "carl", "--authority", str(authority), "--out", "/proc/none/carl", "--json"]) == 2
    assert "cannot be made" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_daemon_that_zookeeper_refuses_and_no_watchdog_knows_is_told_what_to_fetch(authority: Path) -> None:
    credentials = Credentials.load(authority / "bundles" / "starter")
    with pytest.raises(PermissionDenied) as refused:
        let_in(None, credentials, None, None)  # type: ignore[arg-type] - it gives up before it needs them
    assert str(authority / "bundles" / "starter") in refused.value.message
    assert "add-node starter --renew" in refused.value.hint


def test_bundles_of_a_rotated_role_beside_the_authority_get_the_new_secret(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = load_ca(authority)
    before = {name: (authority / "bundles" / name / "zookeeper.secret").read_bytes() for name in ("starter", "submitter", "bob")}
    assert run(["admin", "add-user", "mallory", "--direct", "--authority", str(authority)]) == 0
    gone = Credentials.load(authority / "bundles" / "mallory").identity
    known = [SimpleNamespace(identity=gone, is_revoked=True), SimpleNamespace(identity=SimpleNamespace(key_id=""), is_revoked=False)]
    monkeypatch.setattr("rmgr.procedures.securing.identities", lambda *_: known)
    for role, names in ((Role.STARTER, ["starter"]), (Role.SUBMITTER, ["bob", "submitter"])):
        fresh = type(ca)(cluster=ca.cluster, cert_pem=ca.cert_pem, key_pem=ca.key_pem, secrets={**ca.secrets, role.value: "fresh"})
        nobody: Any = None
        assert admin_rotate.refresh_bundles(nobody, fresh, authority, role) == [authority / "bundles" / name for name in names]
        for name in names:
            assert (authority / "bundles" / name / "zookeeper.secret").read_bytes() == f"{role}:fresh".encode() != before[name]
            Credentials.load(authority / "bundles" / name)  # and it is whole
    assert not (authority / "bundles" / "eve" / "zookeeper.secret").exists()  # behind a gateway: he never had one
    assert b"fresh" not in (authority / "bundles" / "mallory" / "zookeeper.secret").read_bytes()


@pytest.mark.parametrize("words", [["jobs"], ["submit", "--", "true"], ["status"], ["doctor"], ["jobs", "--zk", "h:1"]], ids=" ".join)
def test_a_bundle_for_gateways_and_no_gateway_is_told_what_to_type(
    authority: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RMGR_SECURITY_DIR", str(authority / "bundles" / "eve"))
    assert run(words) == (1 if words == ["doctor"] else 2)
    told = " ".join("".join(capsys.readouterr()).split())
    assert f"{authority / 'bundles' / 'eve'} are for gateways, and " in told
    assert "name a gateway: --gateway HOST:PORT or RMGR_GATEWAY" in told


def test_what_is_for_operators_is_said_in_words(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMGR_SECURITY_DIR", str(authority / "bundles" / "bob"))
    monkeypatch.setattr("rmgr.cli.control.operate.read_drain", lambda *_: object())
    with pytest.raises(PermissionDenied, match="draining a node is for operators"):
        drain_node(Session(), "n1", "x")
    with pytest.raises(PermissionDenied, match="resuming a node is for operators"):
        resume_node(Session(), "n1")
