"""`rmgr admin init`: what it makes, that it makes it once, and where a user's credentials are looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials, load_ca
from rmgr.cli import main
from rmgr.config import load
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
