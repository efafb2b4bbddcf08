"""`rmgr admin` without a cluster: users' credentials, and new ones for bundles whose certificates end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.cli.main import run
from rmgr.model.cluster.identity import Role


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
