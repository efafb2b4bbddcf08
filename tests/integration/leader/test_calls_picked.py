"""Real leaders pick servers for calls over gRPC by the set policy, after fail-overs too, and their log replays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.metaserver import MetaserverClient
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.cluster import DevCluster
from rmgr.errors import PermissionDenied, RmgrError, Unavailable
from rmgr.model.identity import Role
from rmgr.model.interface import encode_interface, interface_of
from rmgr.model.node import EpochRecord
from rmgr.model.servers import Candidate, GatewayReport, Pick, PickRequest, ServerLoad, ServerReport, ServersView
from tests.harness.waiting import eventually
from tests.integration.commands import Lend, Shell, new_watchdogs, watchdogs

TABLE = {"name": "linsolve", "version": 1, "arguments": ["inout b float64[n]"], "operations": "n"}
FUNCTION = encode_interface(interface_of(TABLE, "here"))


class Gateway:
    """Asks whoever leads, as a gateway does: a leader that does not know a server has it reported, and is asked again."""

    def __init__(self, cluster: DevCluster, role: Role = Role.SUBMITTER) -> None:
        self._cluster = cluster
        self._credentials = Credentials.load(cluster.security.bundle(role, "g1"), roles=(role,))
        self._client: MetaserverClient | None = None
        self.reports = 0

    def epoch(self) -> EpochRecord:
        return decode_record(self._cluster.coordinator.get(paths.EPOCH).result(60).data, EpochRecord)

    def asked(self, question: Callable[[MetaserverClient], Any]) -> Any:
        """The answer of who leads, when somebody does."""

        def answer() -> Any:
            endpoint = self.epoch().endpoint
            if self._client is None or self._client.endpoint != endpoint:
                self.close()
                self._client = MetaserverClient(endpoint, credentials=self._credentials, timeout_s=5.0)
            with suppress(Unavailable):
                return question(self._client)

        return eventually(answer, "an answer of the leader")

    def report(self, *loads: int) -> None:
        """Of servers s1, s2 and so on."""
        servers = tuple(
            ServerReport(name=f"s{number}", life=number, mops=400.0, functions=(FUNCTION,), load=ServerLoad(running=load), bytes_per_s=1e7)
            for number, load in enumerate(loads, 1)
        )
        self.reports += 1
        self.asked(lambda leader: leader.report(GatewayReport(gateway="g1:7071", site="here", servers=servers, refresh_us=60_000_000)))

    def pick(self) -> Pick:
        servers = tuple(Candidate(name=f"s{number}", life=number, bytes_per_s=1e7) for number in (1, 2))
        asked = PickRequest(gateway="g1:7071", function="linsolve@1", operations=144_720_000, bytes=2_889_600, servers=servers)
        found: Pick = self.asked(lambda leader: leader.pick(asked))
        if found.unknown:
            self.report(0, 0)
            found = self.asked(lambda leader: leader.pick(asked))
        return found

    def servers(self) -> ServersView:
        found: ServersView = self.asked(lambda leader: leader.servers())
        return found

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@pytest.fixture(scope="module")
def cluster(lend_secured: Lend) -> Iterator[DevCluster]:
    """Two new WatchDogs and nothing else."""
    with lend_secured() as lent:
        new_watchdogs(lent)
        yield lent


@pytest.fixture
def gateway(cluster: DevCluster) -> Iterator[Gateway]:
    made = Gateway(cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sh(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("user"), cluster.environment())


def exported(sh: Shell, file: Path, *, replays: bool) -> int:
    """How many picks all logs have; each log replays to the same ones."""
    logs = [one["log"] for one in json.loads(sh.ok("admin", "export-events", "--partition", "calls", "--list", "--json").out)["logs"]]
    found = 0
    for log in logs:
        file.unlink(missing_ok=True)
        sh.ok("admin", "export-events", "--partition", "calls", "--log", log, "-o", str(file))
        passes = file.read_text().count('"pass":')
        if replays:
            told = json.loads(sh.ok("sim", "replay", str(file), "--partial", "--json").out)["replay"]
            assert (told["identical"], told["passes"]) == (True, passes)
        found += passes
    return found


def test_picks_survive_another_policy_and_another_leader_and_replay(
    sh: Shell, gateway: Gateway, cluster: DevCluster, tmp_path: Path
) -> None:
    #   report, 10 picks -- policy set in a burst of 40 -- leader killed -- reported anew, 10 picks -- both logs replay
    gateway.report(0, 3)
    first = [gateway.pick() for _ in range(10)]
    assert [found.server for found in first] == ["s1", "s1", "s1", "s1", "s2", "s1", "s2", "s1", "s2", "s1"]
    assert {(found.policy, found.epoch) for found in first} == {("loth+l", gateway.epoch().epoch)}
    assert first[0].computing_s == pytest.approx(0.3618)
    assert [(view.name, view.state, view.assigned) for view in gateway.servers().servers] == [("s1", "open", 7), ("s2", "open", 3)]
    status = sh("status", "--json").json  # there is no node
    told = next(one for one in status["policies"] if one["partition"] == "calls")
    assert (told["policy"], told["servers"], told["passes"]) == ("loth+l", 2, 10)
    told = sh.ok("status").out  # there is no Starter: it does what it is there for
    assert "loth+l in partition calls; 2 servers" in told
    assert "no Starter: submitted work waits" in told

    rebuilt = [cluster.log_file(name).read_text("utf-8", "replace").count("placing_rebuilt") for name in watchdogs(cluster)]
    with ThreadPoolExecutor(4) as pool:
        burst = [pool.submit(gateway.pick) for _ in range(20)]
        sh.ok("policy", "set", "rr", "--partition", "calls")
        eventually(lambda: gateway.pick().policy == "rr", "the leader to take the policy")
        burst += [pool.submit(gateway.pick) for _ in range(20)]
        found = [pick.result(60) for pick in burst]
    assert {pick.server for pick in found} == {"s1", "s2"}  # none is lost
    assert {pick.policy for pick in found[20:]} == {"rr"}
    assert rebuilt == [cluster.log_file(name).read_text("utf-8", "replace").count("placing_rebuilt") for name in watchdogs(cluster)]
    turn = [gateway.pick().server for _ in range(4)]
    assert turn[:2] == turn[2:]
    assert set(turn) == {"s1", "s2"}

    before = gateway.epoch()
    file = tmp_path / "log.jsonl"
    eventually(lambda: exported(sh, file, replays=False) >= 54, "the log of the first leader")
    cluster.kill(next(name for name in watchdogs(cluster) if cluster.process(name).pid == before.pid))
    reports = gateway.reports
    eventually(lambda: gateway.epoch().epoch > before.epoch, "the next leader")
    after = [gateway.pick() for _ in range(10)]
    assert gateway.reports > reports  # it knew no server
    assert {(found.epoch > before.epoch, found.policy) for found in after} == {(True, "rr")}
    assert {found.server for found in after} == {"s1", "s2"}
    eventually(lambda: exported(sh, file, replays=False) >= 64, "the picks of both leaders")
    assert exported(sh, file, replays=True) >= 64


def test_only_gateways_report_and_pick(cluster: DevCluster) -> None:
    for role in (Role.OPERATOR, Role.STARTER):
        other = Gateway(cluster, role)
        with pytest.raises(PermissionDenied, match=f"Metaserver/Report is not for a {role}"):
            other.report(0)
        with pytest.raises(PermissionDenied, match="Metaserver/Pick"):
            other.pick()
        other.close()
    person = Gateway(cluster, Role.USER)
    assert isinstance(person.servers(), ServersView)
    person.close()


def test_a_watchdog_that_does_not_lead_refuses(cluster: DevCluster, gateway: Gateway) -> None:
    leader = gateway.epoch().pid
    other = next(name for name in watchdogs(cluster) if cluster.process(name).pid != leader)
    if cluster.process(other).find() is None:
        cluster.start_watchdog(other)

    credentials = Credentials.load(cluster.security.bundle(Role.SUBMITTER, "g1"), roles=(Role.SUBMITTER,))

    def refusal() -> str:
        """Of the process that has this name now: its log begins with those before it."""
        lines = [line for line in cluster.log_tail(other, 20_000).splitlines() if "watchdog_listens" in line]
        if not lines:
            return ""
        client = MetaserverClient(json.loads(lines[-1])["endpoint"], credentials=credentials, timeout_s=30.0)
        try:
            client.servers()
        except RmgrError as error:
            return error.message
        finally:
            client.close()
        return ""

    eventually(lambda: "does not lead" in refusal(), "the other WatchDog to refuse")
