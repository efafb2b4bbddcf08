"""A server of calls in a secured cluster: added by `rmgr admin add-server`, accepted by the cluster, out when revoked."""

from __future__ import annotations

from pathlib import Path

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.cluster.identity import Role
from tests.harness.calls_gateway import ServerProcess
from tests.harness.ended_sessions import LONG_S
from tests.harness.waiting import eventually
from tests.integration.commands import Shell


def test_a_server_that_was_added_serves_until_it_is_revoked(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    where = tmp_path / "cluster"
    with DevCluster(where, nodes=1, cores=1, watchdogs=1, secured=True, guest_of=zookeeper, session_timeout_s=LONG_S) as cluster:
        cluster.start_gateway()
        security = cluster.security
        assert security is not None
        environment = {**cluster.environment(), "RMGR_GATEWAY": cluster.state.gateway}
        admin = Shell(tmp_path / "admin", {**cluster.environment(), "RMGR_SECURITY_DIR": str(security.admin)})
        ann = Shell(tmp_path / "ann", {**environment, "RMGR_SECURITY_DIR": str(security.bundle(Role.USER, "ann"))})
        bundle = Path(admin.ok("admin", "add-server", "s1", "--json").json["bundle"])
        assert sorted(path.name for path in bundle.iterdir() if "zookeeper" in path.name) == [], "no secret of ZooKeeper"
        assert {("s1", "server", "known")} <= {
            (one["name"], one["role"], one["state"]) for one in admin.ok("admin", "identities", "--json").json["identities"]
        }

        options = ("--speed", "100", "--slots", "1", "--security-dir", str(bundle))
        (tmp_path / "s1").mkdir()
        with ServerProcess(tmp_path / "s1", cluster.state.gateway, *options) as server:
            eventually(lambda: server.lines("gateway_joined"), server.log)
            assert ann.ok("call", "echo", "hello").out == "hello"
            wrong = Shell(tmp_path / "wrong", {**environment, "RMGR_SECURITY_DIR": str(bundle)})
            assert wrong("call", "echo", "hello").code != 0, "a server calls nobody"
            admin.ok("admin", "revoke", "s1")
            eventually(lambda: server.lines("gateway_away"), server.log)
            eventually(lambda: any("revoked" in line["why"] for line in server.lines("gateway_away")), server.log)

        (tmp_path / "ann-server").mkdir()
        bundle_of_ann = str(security.bundle(Role.USER, "ann"))
        with ServerProcess(tmp_path / "ann-server", cluster.state.gateway, "--speed", "1", "--security-dir", bundle_of_ann) as server:
            assert server.wait() == 2, "a person is no server"
            assert "a server needs its own" in server.log()
