"""`rmgr admin init-store` without Cassandra: a SQLite file, refusals, and its help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.cli.main import run


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RMGR_ZK", "RMGR_STORE", "RMGR_GATEWAY", "RMGR_CONFIG", "RMGR_SECURITY_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def test_a_sqlite_store_is_made_and_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "store.db"
    words = ["--store", f"sqlite:{file}", "admin", "init-store"]
    assert run([*words, "--dry-run"]) == 0
    assert not file.exists()
    assert f"would make sqlite:{file}" in capsys.readouterr().err
    for _ in range(2):
        assert run(words) == 0
        assert capsys.readouterr().out == f"sqlite:{file} is ready\n"
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "rmgr/1", "store": f"sqlite:{file}", "dry_run": False}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["admin", "init-store"], 5, "no data store is configured"),
        (["--store", "sqlite:/x/y.db", "admin", "init-store", "--replication-factor", "3"], 2, "no replication factor"),
        (["--store", "sqlite:/x/y.db", "admin", "init-store", "--accept-loss", "--dry-run"], 2, "leave out one of them"),
        (["--store", "cassandra://h/ks?user=me&password=geheim", "admin", "init-store"], 2, "cannot hold a password"),
        (["--store", "cassandra://127.0.0.1:1/ks", "admin", "init-store"], 5, "no ZooKeeper is configured"),
        (["--store", "cassandra://127.0.0.1:1/ks", "admin", "init-store", "--dry-run", "--timeout", "1s"], 5, "does not answer"),
    ],
)
def test_what_is_missing_or_wrong_is_named(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    told = capsys.readouterr().err
    assert says in told
    assert "geheim" not in told


def test_who_may_not_lock_is_told_who_may(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    authority, mine = tmp_path / "authority", tmp_path / "mine"
    assert run(["admin", "init", "--dir", str(authority), "--user", "ann", "--user-dir", str(mine)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("RMGR_SECURITY_DIR", str(mine))
    words = ["--zk", "127.0.0.1:1", "--store", "cassandra://127.0.0.1:1/ks", "--timeout", "1s", "admin", "init-store"]
    assert run(words) == 4
    assert "operator ann may not make" in capsys.readouterr().err
    assert run([*words, "--authority", str(authority)]) in {5, 6}  # with the admin's rights it goes on to ZooKeeper, which is not there
    assert "may not make" not in capsys.readouterr().err


def test_its_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "init-store", "--help"]) == 0
    assert "rmgr admin init-store --dry-run" in capsys.readouterr().out
