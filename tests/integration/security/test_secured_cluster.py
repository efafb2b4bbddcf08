"""A secured cluster as its users and machines see it: answers in each role, refusals of daemons, a server that is added and revoked."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials, context_of, load_ca, write_files
from rmgr.adapters.identity.pki import issue
from rmgr.adapters.rpc.services import LeaderClient, NodeClient
from rmgr.coord.ops import membership
from rmgr.coord.protocol.multi import Committed
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import PermissionDenied, Unavailable
from rmgr.model.identity import Revocation, Role
from rmgr.runtime.secured import credentials_of, open_zookeeper
from tests.harness.bundles import session_bundles
from tests.harness.calls_gateway import ServerProcess
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually
from tests.integration.commands import Ended, Lend, Shell, wait_line


@pytest.fixture(scope="module")
def cluster(lend_secured: Lend) -> Iterator[DevCluster]:
    with lend_secured() as lent:
        lent.start_starter("n1", cores=2)
        lent.wait_healthy(nodes=1, deadline_s=60)
        yield lent


def shell(cluster: DevCluster, home: Path, bundle: Path | str, **more: str) -> Shell:
    """A user with a bundle ("" = none)."""
    return Shell(home / "home", {**cluster.environment(), "RMGR_SECURITY_DIR": str(bundle), **more})


def security(cluster: DevCluster) -> Path:
    assert cluster.security is not None
    return cluster.security.directory


def test_users_work_and_notice_nothing(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    user = shell(cluster, tmp_path, cluster.security.bundle(Role.USER, "ann"))
    ended = user.ok("submit", "--wait", "--json", "--", "sh", "-c", "echo $RMGR_SECURITY_DIR; echo $RMGR_JOB_ID")
    number = str(ended.json["id"])
    assert user.ok("logs", number).out.splitlines() == [cluster.environment()["RMGR_SECURITY_DIR"], number]
    assert user.ok("show", number, "--json").json["user"] == "ann"
    assert user.ok("status", "--json").json["healthy"]
    assert user.ok("run", "--", "echo", "hi").out == "hi\n"
    eventually(lambda: [node["running"] for node in user.ok("nodes", "--json", "n1").json["nodes"]] == [0], "the Starter answers him")


@pytest.mark.parametrize("words", ["status --json", "submit --json -- true", "jobs --json", "nodes --json", "config show --cluster --json"])
def test_who_has_no_bundle_is_told_what_he_needs(cluster: DevCluster, tmp_path: Path, words: str) -> None:
    ended = shell(cluster, tmp_path, "")(*words.split())
    assert (ended.code, ended.error["code"]) == (4, "PERMISSION")
    assert "secured" in ended.error["message"]
    assert "rmgr admin add-user" in ended.error["hint"]


def test_who_comes_from_another_cluster_is_told(cluster: DevCluster, tmp_path: Path) -> None:
    ended = shell(cluster, tmp_path, session_bundles("elsewhere").dir(Role.USER, "ann"))("status", "--json")
    assert (ended.code, ended.error["code"]) == (4, "PERMISSION")


def test_daemons_answer_their_own_cluster_only(cluster: DevCluster) -> None:
    epoch = cluster.snapshot().epoch
    node = cluster.snapshot().nodes["n1"]
    assert epoch is not None
    mine = credentials_of(cluster.admin_config())
    with LeaderClient(epoch.endpoint, credentials=mine) as leader, NodeClient(node.endpoint, credentials=mine) as starter:
        assert leader.status().healthy
        assert starter.stats()
    with LeaderClient(node.endpoint, credentials=mine) as leader, pytest.raises(PermissionDenied):  # a Starter is no WatchDog
        leader.status()
    for endpoint in (epoch.endpoint, node.endpoint):
        with LeaderClient(endpoint) as leader, pytest.raises(Unavailable, match="does not talk to us"):
            leader.status()
        with LeaderClient(endpoint, credentials=session_bundles("elsewhere").credentials(Role.ADMIN)) as leader:
            assert not leader.is_serving()


def test_refused_calls_are_audited(cluster: DevCluster) -> None:
    node = cluster.snapshot().nodes["n1"]
    assert cluster.security is not None
    from rmgr.adapters.identity.credentials import Credentials

    joining = Credentials.load(cluster.security.bundle(Role.JOIN, "newcomer"))
    with NodeClient(node.endpoint, credentials=joining) as starter, pytest.raises(PermissionDenied, match="not for a join"):
        starter.stats()
    lines = [json.loads(line) for line in cluster.log_file("n1").read_text().splitlines() if '"audit"' in line]
    told = [line for line in lines if line["what"] == "/rmgr.v1.Node/Stats"]
    assert [(line["who"], line["allowed"]) for line in told] == [("newcomer", False)]


def test_doctor_says_whose_credentials_these_are_and_that_they_end(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    authority = load_ca(cluster.security.admin)
    for days, told in ((300, ""), (20, "they end in 19 days"), (1, "they end within a day")):
        mine = write_files(tmp_path / f"b{days}", issue(authority, "ann", Role.USER, days=days))
        ended = shell(cluster, tmp_path, mine)("doctor", "--json")
        found = next(check for check in ended.json["checks"] if check["name"] == "credentials")
        assert found["ok"]
        assert "user ann" in found["detail"]
        assert told in found["fix"]


def test_certificates_that_end_soon_are_a_warning_of_status_and_advice_of_doctor(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    authority = load_ca(cluster.security.admin)
    bundles = {}
    for name, role, days in (("n9", Role.STARTER, 9.5), ("flo", Role.USER, 5.5)):
        bundles[name] = tmp_path / name
        write_files(bundles[name], issue(authority, name, role, hosts=("localhost", "127.0.0.1"), days=days))
    environment = cluster.daemon_environment("starter", "n8") | {"RMGR_SECURITY_DIR": str(bundles["n9"])}
    starter = Shell(tmp_path / "home9", environment)
    user = shell(cluster, tmp_path, bundles["flo"])
    with starter.running("starter", "--node", "n9", "--cores", "1", "--work-dir", str(tmp_path / "w9")) as process:
        told = "the certificate of starter n9 ends in 9 days"
        eventually(lambda: any(told in warning for warning in user("status", "--json").json["warnings"]))
        ended = user.ok("status")  # a warning: all is well
        assert "the certificate of user flo ends in 5 days" in ended.out
        assert "rmgr admin add-node n9 --role starter --renew" in ended.out
        assert "rmgr admin add-user flo" in ended.out
        checks = user("doctor", "--json").json["checks"]
        [advice] = [check for check in checks if check["name"] == "certificate starter n9"]
        assert advice["ok"]
        assert "--renew" in advice["fix"]
        assert not any("starter n1" in check["name"] for check in checks)
        process.terminate()
        process.wait(60)


# -- daemons that must not start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["starter", "watchdog", "submitter"])
def test_no_daemon_listens_to_the_network_unguarded(cluster: DevCluster, tmp_path: Path, role: str) -> None:
    unguarded = shell(cluster, tmp_path, "", RMGR_INSECURE="1")  # must be typed: a variable is no word
    for options in (("--listen", "0.0.0.0:0"), ("--metrics", "0.0.0.0:0")):
        ended = unguarded(role, *options)
        assert (ended.code, "--insecure" in ended.err, "nobody has to prove an identity" in ended.err) == (2, True, True), ended


def test_a_guarded_daemon_shows_its_measurements_to_other_machines_by_tls_only(cluster: DevCluster, tmp_path: Path) -> None:
    bundle = cluster.daemon_environment("watchdog", "w9")["RMGR_SECURITY_DIR"]
    with shell(cluster, tmp_path, bundle).running("watchdog", "--metrics", "0.0.0.0", "--log-format", "json") as process:
        address = json.loads(wait_line(process, "watchdog_listens", stream="stderr"))["address"]
        here = f"localhost:{address.rpartition(':')[2]}"
        with pytest.raises(OSError, match=r"."):
            urllib.request.urlopen(f"http://{here}/healthz", timeout=60)
        owner = context_of(Credentials.load(cluster.environment()["RMGR_SECURITY_DIR"]), ssl.PROTOCOL_TLS_CLIENT)
        owner.check_hostname = False  # a scraper is told to expect watchdog.rmgr
        with urllib.request.urlopen(f"https://{here}/metrics", timeout=60, context=owner) as answer:
            assert "rmgr_leader" in answer.read().decode()
        process.terminate()
        assert process.wait(60) == 0


def test_a_daemon_needs_the_bundle_of_its_own_role(cluster: DevCluster, tmp_path: Path) -> None:
    ended = shell(cluster, tmp_path, cluster.environment()["RMGR_SECURITY_DIR"])("watchdog")
    assert ended.code == 2
    assert "is the bundle of operator" in ended.err
    assert "RMGR_SECURITY_DIR" in ended.err


@pytest.mark.parametrize("role", [Role.STARTER, Role.WATCHDOG, Role.SUBMITTER])
def test_a_daemon_whose_key_nobody_believes_says_so_at_its_start(cluster: DevCluster, tmp_path: Path, role: Role) -> None:
    assert cluster.security is not None
    mine = Credentials.load(cluster.security.bundle(role, "n8"))
    record = Revocation(key_id=mine.identity.key_id, name="n8", role=role, by="ops", since_us=1)
    config = cluster.admin_config()
    with open_zookeeper(config, credentials_of(config)) as admin:
        admin.require_connected(60)
        assert isinstance(admin.commit(membership.revoke(record)).result(60), Committed)
    options = ("--node", "n8", "--work-dir", str(tmp_path / "n8")) if role is Role.STARTER else ()
    ended = shell(cluster, tmp_path, cluster.daemon_environment(str(role), "n8")["RMGR_SECURITY_DIR"])(str(role), *options)
    assert ended.code == 4, ended
    assert f"nobody in this cluster would believe what {role} n8 signs: the key {mine.identity.key_id} was revoked" in ended.err
    assert "rmgr admin add-node" in ended.err


def test_a_bundle_open_to_others_is_refused_with_the_command_that_closes_it(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    mine = cluster.security.bundle(Role.USER, "careless")
    (mine / "sign.key").chmod(0o644)
    ended = shell(cluster, tmp_path, mine)("status", "--json")
    assert (ended.code, ended.error["hint"]) == (2, f"chmod 600 {mine / 'sign.key'}")


# -- the network, gateways, health ---------------------------------------------------------------------------------------------


def test_a_guarded_gateway_may_listen_anywhere_and_knows_its_callers(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    environment = cluster.daemon_environment("submitter", "g1")
    with GatewayProcess(environment, tmp_path, options=("--listen", "0.0.0.0:0")) as first:
        endpoint = next(json.loads(line)["endpoint"] for line in first.log().splitlines() if "submitter_listens" in line)
        there = f"127.0.0.1:{endpoint.rpartition(':')[2]}"
        for role, name in ((Role.USER, "ann"), (Role.OPERATOR, "olga")):
            bundle = str(cluster.security.bundle(role, name))
            user = Shell(tmp_path / name, {"RMGR_GATEWAY": there, "RMGR_SECURITY_DIR": bundle})
            assert user.ok("submit", "--wait", "--", "echo", name).out.startswith(name)
            assert user("drain", "n1").code == (0 if role is Role.OPERATOR else 4)
            user("resume", "n1")
        stranger = Shell(tmp_path / "stranger", {"RMGR_GATEWAY": there, "RMGR_CLUSTER_CONNECT_TIMEOUT_S": "1"})
        assert stranger("jobs").code == 5
        asked = [sys.executable, "-m", "rmgr.cli.health", there]

        def health(*bundle: str) -> int:
            return subprocess.run([*asked, *bundle], capture_output=True, timeout=120, check=False).returncode

        eventually(lambda: health(environment["RMGR_SECURITY_DIR"]) == 0, "it serves")  # it says so unless it was held up for 3 s
        assert health() == 1


def test_an_open_cluster_is_still_there_for_who_asks_for_it(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    where = tmp_path / "open"
    with DevCluster(where, nodes=1, cores=1, watchdogs=1, secured=False, guest_of=zookeeper, session_timeout_s=LONG_S) as opened:
        assert not (opened.directory / "security").exists()
        user = Shell(tmp_path / "home", opened.environment())
        assert user.ok("submit", "--wait", "--", "echo", "open").out.startswith("open")
        mine = Shell(tmp_path / "home", {**opened.environment(), "RMGR_SECURITY_DIR": str(session_bundles().dir(Role.USER, "ann"))})
        ended: Ended = mine("jobs", "--json")
        assert ended.code != 0
        assert "open" in ended.error["message"]
        for words in (["submit", "--", "true"], ["starter", "--work-dir", str(tmp_path / "work")]):  # its work would be stuck there
            refused = mine(*words)
            assert refused.code in {2, 5}, refused


def test_gateways_go_on_with_a_new_secret_and_a_direct_user_needs_it_again(cluster: DevCluster, tmp_path: Path) -> None:
    assert cluster.security is not None
    portal = cluster.security.bundle(Role.USER, "portal")
    gone = Path(shutil.copytree(portal, tmp_path / "gone"))
    direct, elsewhere = shell(cluster, tmp_path, portal), shell(cluster, tmp_path, gone)
    with GatewayProcess(cluster.daemon_environment("submitter", "g1"), tmp_path) as gateway:
        bundle = str(cluster.security.bundle(Role.USER, "ann"))
        ann = Shell(tmp_path / "ann", {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": bundle})
        for user in (ann, direct, elsewhere):
            assert user.ok("submit", "--wait", "--", "echo", "before").out.startswith("before")
        admin = shell(cluster, tmp_path, cluster.security.admin)
        told = admin.ok("admin", "rotate", "--role", "submitter", "--grace", "5s").err
        assert "users who were made with --direct need theirs again" in told
        for user in (ann, direct):
            assert user.ok("submit", "--wait", "--", "echo", "after").out.startswith("after")
        refused = elsewhere("submit", "--json", "--", "true")
        assert (refused.code, refused.error["code"]) == (4, "PERMISSION")
        assert "secret of role submitter" in refused.error["message"]
        assert "was the secret rotated" in refused.error["hint"]


def test_a_server_that_was_added_serves_until_it_is_revoked(cluster: DevCluster, tmp_path: Path) -> None:
    with GatewayProcess(cluster.daemon_environment("submitter", "g1"), tmp_path) as gateway:
        security = cluster.security
        assert security is not None
        environment = {**cluster.environment(), "RMGR_GATEWAY": gateway.endpoint}
        admin = Shell(tmp_path / "admin", {**cluster.environment(), "RMGR_SECURITY_DIR": str(security.admin)})
        ann = Shell(tmp_path / "ann", {**environment, "RMGR_SECURITY_DIR": str(security.bundle(Role.USER, "ann"))})
        bundle = Path(admin.ok("admin", "add-server", "s1", "--json").json["bundle"])
        assert sorted(path.name for path in bundle.iterdir() if "zookeeper" in path.name) == [], "no secret of ZooKeeper"
        assert {("s1", "server", "known")} <= {
            (one["name"], one["role"], one["state"]) for one in admin.ok("admin", "identities", "--json").json["identities"]
        }

        options = ("--speed", "100", "--slots", "1", "--security-dir", str(bundle))
        (tmp_path / "s1").mkdir()
        with ServerProcess(tmp_path / "s1", gateway.endpoint, *options) as server:
            eventually(lambda: server.lines("gateway_joined"), server.log)
            assert ann.ok("call", "echo", "hello").out == "hello"
            wrong = Shell(tmp_path / "wrong", {**environment, "RMGR_SECURITY_DIR": str(bundle)})
            assert wrong("call", "echo", "hello").code != 0, "a server calls nobody"
            admin.ok("admin", "revoke", "s1")
            eventually(lambda: server.lines("gateway_away"), server.log)
            eventually(lambda: any("revoked" in line["why"] for line in server.lines("gateway_away")), server.log)

        (tmp_path / "ann-server").mkdir()
        bundle_of_ann = str(security.bundle(Role.USER, "ann"))
        with ServerProcess(tmp_path / "ann-server", gateway.endpoint, "--speed", "1", "--security-dir", bundle_of_ann) as server:
            assert server.wait() == 2, "a person is no server"
            assert "a server needs its own" in server.log()
