"""`rmgr admin` without a cluster: `init` makes everything once; users' credentials, and new ones for expiring certificates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials, load_ca
from rmgr.cli import main
from rmgr.cli.main import run
from rmgr.config import load
from rmgr.dev.keeper import DevState, write_state
from rmgr.model.cluster.identity import Role


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory of ours."""
    for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "RMGR_CONFIG", "RMGR_SECURITY_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".config" / "rmgr"


def init(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = main.run(["admin", "init", "--json", *words])
    out = capsys.readouterr().out
    return code, json.loads(out)


def test_it_makes_everything_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = init(capsys, "--cluster", "lab", "--hosts", "head")
    assert (code, told["cluster"], told["kept"]) == (0, "lab", [])
    authority = home / "authority"
    assert load_ca(authority).cluster == "lab"
    for role in (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER):
        found = Credentials.load(authority / "bundles" / role.value, roles=(role,))
        assert (found.identity.cluster, found.identity.name) == ("lab", role.value)
    assert Credentials.load(home / "bundle").identity.role is Role.OPERATOR
    assert Credentials.load(authority).identity.role is Role.ADMIN
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in before)
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in home.rglob("*") if path.is_dir())
    code, again = init(capsys)
    assert (code, again["made"], again["kept"]) == (0, [], told["made"])
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_credentials_of_another_cluster_are_left_alone(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(capsys, "--cluster", "lab")
    mine = (home / "bundle" / "sign.key").read_bytes()
    code, told = init(capsys, "--cluster", "other", "--dir", str(tmp_path / "second"))
    assert code == 0
    assert (home / "bundle" / "sign.key").read_bytes() == mine
    user = told["user"]
    assert isinstance(user, dict)
    assert Path(user["dir"]).is_relative_to(tmp_path / "second")
    assert main.run(["admin", "init", "--cluster", "third"]) == 2
    assert "is the authority of the cluster lab" in capsys.readouterr().err


def test_servers_get_certificates_of_their_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = init(capsys, "--servers", "zk1,cassandra1")
    assert code == 0
    pem = (home / "authority" / "servers" / "zk1" / "server.pem").read_bytes()
    assert (pem.count(b"PRIVATE KEY"), pem.count(b"BEGIN CERTIFICATE")) == (2, 1)


def test_the_user_s_bundle_is_found_unless_something_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"HOME": str(home.parent.parent), "RMGR_ZK": "zk1:2181"}
    assert load(env=env).security.dir == ""
    init(capsys)
    assert load(env=env).security.dir == str(home / "bundle")
    assert load(env={**env, "RMGR_SECURITY_DIR": ""}).security.dir == ""
    assert load(env={**env, "RMGR_SECURITY_DIR": "/x"}).security.dir == "/x"
    (home / "config.toml").write_text('[security]\ndir = "/y"\n')
    assert load(env=env).security.dir == "/y"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RMGR_SECURITY_DIR", "RMGR_CONFIG", "RMGR_ZK", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    where = tmp_path / "authority"
    assert run(["admin", "init", "--dir", str(where), "--cluster", "lab", "--user", "ops", "--hosts", "head", "--json"]) == 0
    return where


def test_a_user_gets_a_bundle_of_his_own_once(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["admin", "add-user", "ann", "--authority", str(authority), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ann = Credentials.load(told["bundle"])
    assert (ann.identity.name, ann.identity.role, ann.identity.cluster) == ("ann", Role.USER, "lab")
    assert ann.zookeeper_auth is None
    assert told["direct"] is False
    assert run(["admin", "add-user", "ann", "--authority", str(authority)]) == 2
    assert "not overwritten" in capsys.readouterr().err


def test_who_adds_a_user_to_a_cluster_of_rmgr_dev_is_told_whose_rights_work_has(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", "add-user", "ann", "--authority", str(authority)]) == 0
    assert "rmgr dev" not in capsys.readouterr().err
    write_state(DevState(directory=str(authority.parent), zookeeper="", store="", session_timeout_s=6.0))
    assert run(["admin", "add-user", "bob", "--authority", str(authority)]) == 0
    told = capsys.readouterr().err
    assert "all work of this cluster of rmgr dev runs as you: tasks of bob can read your files" in told
    assert str(authority) in told


def test_operators_and_users_behind_a_gateway(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    place = str(authority / "far")
    assert run(["admin", "add-user", "bob", "--operator", "--out", place, "--authority", str(authority)]) == 0
    bob = Credentials.load(place)
    assert (bob.identity.role, bob.zookeeper_auth) == (Role.OPERATOR, None)


def test_a_direct_user_is_told_in_one_sentence_what_that_means(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    place = str(authority / "app")
    assert run(["admin", "add-user", "portal", "--direct", "--out", place, "--authority", str(authority)]) == 0
    told = capsys.readouterr().err
    assert "trusted with everybody's state" in told
    assert "SECURITY.md" in told
    portal = Credentials.load(place)
    assert portal.zookeeper_auth is not None
    assert portal.zookeeper_auth[1].startswith("submitter:")
    assert portal.zookeeper_auth == Credentials.load(authority / "bundles" / "submitter").zookeeper_auth


def test_a_bundle_gets_new_keys_in_its_place_and_stays_who_it_is(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = authority / "bundles" / "watchdog"
    before = Credentials.load(place)
    capsys.readouterr()
    assert run(["admin", "rotate", "tls", str(place), "--authority", str(authority), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["renewed"] == [{"name": "watchdog", "role": "watchdog", "bundle": str(place)}]
    after = Credentials.load(place)
    assert (after.identity.name, after.identity.role) == (before.identity.name, before.identity.role)
    assert after.identity.key_id != before.identity.key_id
    assert after.zookeeper_auth == before.zookeeper_auth
    assert run(["admin", "rotate", "tls", "--authority", str(authority)]) == 2
    assert run(["admin", "rotate", "tls", str(authority / "nowhere"), "--authority", str(authority)]) == 2
    assert "is not a bundle" in capsys.readouterr().err


def test_another_clusters_authority_renews_nothing_of_this_one(authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    assert run(["admin", "init", "--dir", str(other), "--cluster", "elsewhere", "--user", "eve", "--user-dir", str(tmp_path / "eve")]) == 0
    place = authority / "bundles" / "starter"
    before = (place / "sign.crt").read_bytes()
    assert run(["admin", "rotate", "tls", str(place), "--authority", str(other)]) == 2
    assert "of the cluster lab" in capsys.readouterr().err
    assert (place / "sign.crt").read_bytes() == before
