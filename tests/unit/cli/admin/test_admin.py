"""`rmgr admin` and `rmgr doctor` without a cluster: `init`, users' credentials, new ones, `init-store`, and errors that name the remedy."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.identity.credentials import Credentials, load_ca
from rmgr.adapters.zookeeper import server as zk_server
from rmgr.cli import doctor
from rmgr.cli.admin import members as admin_rotate
from rmgr.cli.control.operate import drain_node, resume_node
from rmgr.cli.main import run
from rmgr.cli.session import Session
from rmgr.config import load
from rmgr.daemons.service.keepers import let_in
from rmgr.dev.keeper import DevState, write_state
from rmgr.errors import PermissionDenied
from rmgr.model.identity import Role


@pytest.fixture
def home(bare_home: Path) -> Path:
    return bare_home / ".config" / "rmgr"


def init(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = run(["admin", "init", "--json", *words])
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
    assert run(["admin", "init", "--cluster", "third"]) == 2
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
def authority(bare_home: Path) -> Path:
    where = bare_home / "authority"
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


# -- useless credentials


@pytest.fixture
def lab(bare_home: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    where = bare_home / "authority"
    assert run(["admin", "init", "--dir", str(where), "--cluster", "lab", "--user", "ann", "--user-dir", str(bare_home / "ann")]) == 0
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
@pytest.mark.usefixtures("bare_home")
def test_what_cannot_be_done_is_named(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    assert says in capsys.readouterr().err


def test_a_place_that_cannot_be_made_is_no_defect_of_ours(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "add-user", "carl", "--authority", str(lab), "--out", "/proc/none/carl", "--json"]) == 2
    assert "cannot be made" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_daemon_that_zookeeper_refuses_and_no_watchdog_knows_is_told_what_to_fetch(lab: Path) -> None:
    credentials = Credentials.load(lab / "bundles" / "starter")
    with pytest.raises(PermissionDenied) as refused:
        let_in(None, credentials, None, None)  # type: ignore[arg-type] - it gives up before it needs them
    assert str(lab / "bundles" / "starter") in refused.value.message
    assert "add-node starter --renew" in refused.value.hint


def test_bundles_of_a_rotated_role_beside_the_authority_get_the_new_secret(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = load_ca(lab)
    before = {name: (lab / "bundles" / name / "zookeeper.secret").read_bytes() for name in ("starter", "submitter", "bob")}
    assert run(["admin", "add-user", "mallory", "--direct", "--authority", str(lab)]) == 0
    gone = Credentials.load(lab / "bundles" / "mallory").identity
    known = [SimpleNamespace(identity=gone, is_revoked=True), SimpleNamespace(identity=SimpleNamespace(key_id=""), is_revoked=False)]
    monkeypatch.setattr("rmgr.procedures.securing.identities", lambda *_: known)
    for role, names in ((Role.STARTER, ["starter"]), (Role.SUBMITTER, ["bob", "submitter"])):
        fresh = type(ca)(cluster=ca.cluster, cert_pem=ca.cert_pem, key_pem=ca.key_pem, secrets={**ca.secrets, role.value: "fresh"})
        nobody: Any = None
        assert admin_rotate.refresh_bundles(nobody, fresh, lab, role) == [lab / "bundles" / name for name in names]
        for name in names:
            assert (lab / "bundles" / name / "zookeeper.secret").read_bytes() == f"{role}:fresh".encode() != before[name]
            Credentials.load(lab / "bundles" / name)  # and it is whole
    assert not (lab / "bundles" / "eve" / "zookeeper.secret").exists()  # behind a gateway: he never had one
    assert b"fresh" not in (lab / "bundles" / "mallory" / "zookeeper.secret").read_bytes()


@pytest.mark.parametrize("words", [["jobs"], ["submit", "--", "true"], ["status"], ["doctor"], ["jobs", "--zk", "h:1"]], ids=" ".join)
def test_a_bundle_for_gateways_and_no_gateway_is_told_what_to_type(
    lab: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RMGR_SECURITY_DIR", str(lab / "bundles" / "eve"))
    assert run(words) == (1 if words == ["doctor"] else 2)
    told = " ".join("".join(capsys.readouterr()).split())
    assert f"{lab / 'bundles' / 'eve'} are for gateways, and " in told
    assert "name a gateway: --gateway HOST:PORT or RMGR_GATEWAY" in told


def test_what_is_for_operators_is_said_in_words(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMGR_SECURITY_DIR", str(lab / "bundles" / "bob"))
    monkeypatch.setattr("rmgr.cli.control.operate.read_drain", lambda *_: object())
    with pytest.raises(PermissionDenied, match="draining a node is for operators"):
        drain_node(Session(), "n1", "x")
    with pytest.raises(PermissionDenied, match="resuming a node is for operators"):
        resume_node(Session(), "n1")


# -- init-store


def test_a_sqlite_store_is_made_and_found_again(bare_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = bare_home / "store.db"
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
@pytest.mark.usefixtures("bare_home")
def test_what_a_store_lacks_or_has_wrong_is_named(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    told = capsys.readouterr().err
    assert says in told
    assert "geheim" not in told


def test_who_may_not_lock_is_told_who_may(bare_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    authority, mine = bare_home / "authority", bare_home / "mine"
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


# -- doctor


_SAID = {"conf": "clientPort=2181\nmaxClientCnxns=0\n"}


@pytest.mark.parametrize(("mismatches", "is_well"), [("", True), ("0", True), ("3", False)])
def test_a_server_whose_data_differ_from_the_leader_s_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, mismatches: str, is_well: bool
) -> None:
    mntr = "zk_version\t3.9.5\nzk_avg_fsynctime\t1.5\nzk_max_fsynctime\t9\n"
    mntr += f"zk_digest_mismatches_count\t{mismatches}\n" if mismatches else ""
    monkeypatch.setattr(zk_server, "four_letter", lambda _host, _port, word, **_options: {**_SAID, "mntr": mntr}[word])
    found = list(doctor.measured("zookeeper a:2181", "a:2181", None))
    assert all(check.ok for check in found) is is_well
    diverged = [check for check in found if check.name == "zookeeper a:2181 data"]
    assert len(diverged) == (0 if is_well else 1)
    for check in diverged:
        assert "3 digests" in check.detail
        for words in ("stop this server", "version-2", "keep myid", "fetches all from the leader", "majority"):
            assert words in check.fix


def test_a_server_of_a_secured_cluster_that_tells_strangers_much_gets_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"mntr": "zk_version\t3.9.5\n", "conf": "clientPort=2181\nmaxClientCnxns=0\n"}
    monkeypatch.setattr(zk_server, "four_letter", lambda _host, _port, word, **_options: said[word])
    [words] = [check for check in doctor.measured("zookeeper a:2181", "a:2181", None, is_secured=True) if check.name.endswith("words")]
    assert words.ok
    assert "conf, mntr" in words.detail
    assert "4lw.commands.whitelist=srvr" in words.fix
    said |= dict.fromkeys(said, "mntr is not executed because it is not in the whitelist.\n")
    assert list(doctor.measured("zookeeper a:2181", "a:2181", None, is_secured=True)) == []


def test_a_starter_that_cannot_hold_the_scores_of_work_is_told() -> None:
    assert not doctor.judged("CapInh:\t0\nCapEff:\t000001ffffffffff\n", "0\n").fix
    lacking = doctor.judged("CapEff:\t000001fffeffffff\n", "-200\n")
    assert lacking.ok
    assert "to -200" in lacking.fix
    assert "CAP_SYS_RESOURCE" in lacking.fix


def test_packages_are_held_to_what_the_installation_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["kazoo>=2.11,<2.12", "rich>=13.7,<16", "structlog>=24.1", "numpy>=1.24 ; extra == 'examples'".replace("'", '"')]
    has = {"kazoo": "2.12.0", "rich": "13.6.2"}

    def version(package: str) -> str:
        if package not in has:
            raise metadata.PackageNotFoundError(package)
        return has[package]

    monkeypatch.setattr(metadata, "requires", lambda _package: required)
    monkeypatch.setattr(metadata, "version", version)
    _, packages = doctor.this_python(None)  # type: ignore[arg-type]
    assert not packages.ok
    assert packages.detail == (
        "kazoo 2.12.0 is too new, it must be before 2.12; rich 13.6.2 is too old, it must be 13.7 at least; structlog is missing"
    )
    has |= {"kazoo": "2.11.3", "rich": "15.9", "structlog": "26.1.0"}
    _, packages = doctor.this_python(None)  # type: ignore[arg-type]
    assert (packages.ok, packages.detail) == (True, "3 packages are as required")
