"""Other machines (network namespaces) join a secured cluster with one command, run work, are revoked, and cannot come back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import ZkSecurity
from rmgr.coord.protocol import paths
from rmgr.dev.server import free_port
from rmgr.dev.zookeeper import ServerTls, ZooKeeperServer
from rmgr.errors import PermissionDenied
from tests.conftest import need_zookeeper
from tests.harness import netns
from tests.harness.ended_sessions import LONG_S
from tests.harness.netns import Machines
from tests.harness.terminal import SHELL, Terminal
from tests.harness.waiting import eventually
from tests.integration.commands import Ended, Shell, wait_line

RMGR = (sys.executable, "-m", "rmgr.cli.main")
CHROOT = "/rmgr/lab"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    need_zookeeper()
    why = netns.missing()
    if why and os.environ.get("CI") != "true":
        pytest.skip(why)
    assert not why, why
    with Machines() as network:
        yield network


@dataclass
class Lab:
    """A secured cluster on the head machine: ZooKeeper with TLS, a WatchDog, and an operator's shell."""

    directory: Path
    machines: Machines
    shell: Shell
    environment: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def join(self, name: str, *options: str, listens: str = "") -> Ended:
        """add-node here, join there, and a Starter is started as the output of join says. listens: elsewhere than join wrote."""
        address = self.machines.add(name)
        line = self.shell.ok("admin", "add-node", name, "--hosts", address, *options).out
        words = line.split()
        assert (words[0], words[2:]) == ("echo", ["|", "rmgr", "join", "-"])
        where = self.directory / name
        joined = self.on(name, "join", "-", "--dir", str(where), text=words[1])
        assert joined.code == 0, joined
        if listens:
            config = where / "starter.toml"
            config.write_text(config.read_text().replace(f"{address}:0", listens))
        self.start(name)
        return joined

    def on(self, name: str, *words: str, text: str = "", timeout_s: float = 30.0) -> Ended:
        """An rmgr command on a machine."""
        code, out, err = self.machines.run(name, [*RMGR, *words], text=text, environment=self.bare(), timeout_s=timeout_s)
        return Ended(code=code, out=out, err=err)

    def start(self, name: str) -> None:
        """A Starter, where the configuration that `join` wrote says."""
        where = self.directory / name
        words = ("starter", "--config", str(where / "starter.toml"), "--work-dir", f"{where}/work", "-c", "2")
        self.processes[name] = self.machines.start(name, [*RMGR, *words], log=where / "log", environment=self.bare())

    @contextmanager
    def gateway(self) -> Iterator[Shell]:
        """Somebody who reaches a gateway on the head machine, and nothing else."""
        bundles = self.directory / "authority" / "bundles"
        daemon = Shell(self.directory / "home", {**self.environment, "RMGR_SECURITY_DIR": str(bundles / "submitter")})
        endpoint = f"{self.machines.address}:{free_port()}"
        with daemon.running("submitter", "--listen", endpoint):
            user = Shell(self.directory / "user", {"RMGR_GATEWAY": endpoint, "RMGR_SECURITY_DIR": str(bundles / "operator-ops")})
            eventually(lambda: user("status", "--json").code == 0)
            yield user

    def stop(self, name: str) -> None:
        """Its Starter ends in good order."""
        process = self.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, self.log(name)

    def empty(self) -> None:
        """Ends all Starters and their work, so that the next test has only the machines that join in it."""
        self.shell("cancel", "--state", "INITIAL,HELD,STARTING,RUNNING,SUSPENDED")
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)
        self.processes.clear()

    def bare(self) -> dict[str, str]:
        """A machine that knows nothing of the cluster; work runs as root, as this test does."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory / "nobody"), "RMGR_SECURITY_RUN_AS": "self"}

    def state(self, node: str) -> str:
        found = [one for one in self.shell.ok("nodes", "--json").json["nodes"] if one["id"] == node]
        return found[0]["state"] if found else ""

    def log(self, name: str) -> str:
        return (self.directory / name / "log").read_text()


@pytest.fixture(scope="module")
def laboratory(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("lab")
    authority = directory / "authority"
    head = machines.address
    made = Shell(directory / "home")("admin", "init", "--dir", str(authority), "--user", "ops", "--hosts", head, "--servers", head)
    assert made.code == 0, made
    pem = (authority / "servers" / head / "server.pem").read_bytes()
    at = pem.index(b"-----BEGIN CERTIFICATE")
    tls = ServerTls(certificate=pem[at:], key=pem[:at], ca=(authority / "ca.crt").read_bytes())
    server = ZooKeeperServer(directory / "zookeeper", host=head, tick_ms=500, tls=tls)
    server.start()
    environment = {
        "RMGR_ZK": f"{server.hosts}{CHROOT}",
        "RMGR_STORE": f"sqlite:{directory / 'store.db'}",
        "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(LONG_S),
        "RMGR_SECURITY_ZOOKEEPER_TLS": "true",
    }
    dog = Shell(directory / "home", environment | {"RMGR_SECURITY_DIR": str(authority / "bundles" / "watchdog")})
    try:
        with dog.running("watchdog", "--listen", f"{head}:0"):
            shell = Shell(directory / "home", environment | {"RMGR_SECURITY_DIR": str(authority / "bundles" / "operator-ops")})
            lab = Lab(directory, machines, shell, environment)
            eventually(lambda: shell("status", "--json").out and shell("status", "--json").json.get("leader"))
            (directory / "nobody").mkdir()
            yield lab
    finally:
        server.stop()


@pytest.fixture
def lab(laboratory: Lab) -> Iterator[Lab]:
    """The shared cluster; each test names machines that no other does."""
    yield laboratory
    laboratory.empty()


def test_a_machine_joins_works_is_revoked_and_cannot_come_back(lab: Lab) -> None:
    shell = lab.shell
    again = lab.join("n1")
    assert "this machine is starter n1 now" in again.out
    eventually(lambda: lab.state("n1") == "up")
    shell.ok("submit", "--wait", "--array", "1-20", "--", "sh", "-c", "echo done $RMGR_ARRAY_INDEX")
    assert sum("done" in line for line in shell.ok("logs", "last").out.splitlines()) == 20

    assert "already" in shell("admin", "add-node", "n1").err
    token = shell.ok("admin", "add-node", "n1", "--renew").out.split()[1]
    renewed = lab.on("n1", "join", "-", "--dir", str(lab.directory / "n1"), text=token)
    assert "has new credentials" in renewed.out, renewed
    used = lab.on("n1", "join", "-", "--dir", str(lab.directory / "other"), text=token)
    assert (used.code, "used already" in used.err) == (4, True), used

    revoked = shell.ok("admin", "revoke", "n1", "--role", "starter", "--grace", "3s", "--reason", "stolen")
    assert "starter n1 is revoked" in revoked.out
    eventually(lambda: lab.state("n1") == "fenced")
    process = lab.processes["n1"]
    eventually(lambda: process.poll() is not None)
    assert "was revoked" in lab.log("n1")

    waiting = shell.submit("--", "true")
    lab.start("n1")
    back = lab.processes["n1"]
    eventually(lambda: back.poll() is not None)
    assert back.poll() == 4, lab.log("n1")
    assert lab.state("n1") == "fenced"
    eventually(lambda: _refused(lab, "n1"))  # when the secret is another one: the grace may not be over yet

    lab.join("n2")
    assert shell("wait", waiting, timeout_s=60).code == 0
    assert [one["node"] for one in shell.ok("tasks", waiting, "--json").json["tasks"]] == ["n2"]
    shell.ok("drain", "n1")  # that it does not come back is known


def test_output_ranks_and_terminals_work_from_other_machines_once_they_have_joined(lab: Lab, tmp_path: Path) -> None:
    shell = lab.shell
    for name in ("n3", "n4"):
        joined = lab.join(name)
        address = lab.machines.addresses[name]
        assert f"others will reach it at {address} ([starter] listen there)" in joined.out
        assert f'listen = "{address}:0"' in (lab.directory / name / "starter.toml").read_text()
        eventually(lambda name=name: lab.state(name) == "up")  # type: ignore[misc]

    number = shell.submit("--", "sh", "-c", f"echo begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo over")
    with shell.running("logs", "-f", number) as logs:
        wait_line(logs, "begun")
        (tmp_path / "go").touch()
        out, err = logs.communicate(timeout=60)
        assert (logs.returncode, out, err) == (0, "over\n", "")

    script = shell.file("job.sh", "rmgr run --label sh -c 'echo on $RMGR_NODE'\n")
    ran = shell("run", "-q", "batch", "-N", "2", "--", "sh", str(shell.directory / script))
    assert (ran.code, sorted(ran.out.splitlines())) == (0, ["0: on n3", "1: on n4"]), ran
    terminal = Terminal(["-q", "batch", "-N", "2", "--pty", *SHELL], environment=shell.environment)
    try:
        terminal.wait(r"\$ ")
        terminal.type("echo at=$RMGR_NODE.; exit 7\r")
        terminal.wait(r"\nat=n[34]\.")
        assert terminal.process.wait(60) == 7
    finally:
        terminal.close()


def test_a_node_that_listens_to_itself_alone_is_told_of_and_its_output_comes_from_the_store(lab: Lab, tmp_path: Path) -> None:
    shell = lab.shell
    lab.join("n5", listens="127.0.0.1:0")
    eventually(lambda: lab.state("n5") == "up")
    number = shell.submit("--", "sh", "-c", f"echo begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo over; echo bad >&2")
    with lab.gateway() as user, shell.running("logs", "-f", number) as direct, user.running("logs", "-f", number) as by_gateway:
        for logs in (direct, by_gateway):
            wait_line(logs, "begun")
        so_far = shell.ok("logs", number)
        assert so_far.out == "begun\n"
        assert "what the data store has of its output follows" in so_far.err
        (tmp_path / "go").touch()
        for logs in (direct, by_gateway):
            out, err = logs.communicate(timeout=60)
            assert (logs.returncode, out) == (0, "over\n")
            told = err.splitlines()
            assert [line for line in told if "comes from the data store" in line] == told[:1]
            assert "node n5 does not answer at 127.0.0.1:" in told[0]
            assert told[1:] == ["bad"]

    terminal = Terminal(["-q", "batch", "--pty", *SHELL], environment=shell.environment)
    try:
        terminal.wait(r"job \d+ has no terminal yet: node n5: 127\.0\.0\.1:\d+ cannot be reached")
        terminal.type("\x03")
        assert terminal.process.wait(60) == 130
    finally:
        terminal.close()

    told = eventually(lambda: [line for line in shell.ok("status", "--json").json["warnings"] if "does not reach node n5" in line])
    assert "at 127.0.0.1:" in told[0]
    status = shell("status")
    assert (status.code, "does not reach node n5" in status.out.replace("\n           ", " ")) == (0, True), status
    where = lab.directory / "n5" / "starter.toml"
    where.write_text(where.read_text().replace("127.0.0.1:0", f"{lab.machines.addresses['n5']}:0"))
    lab.stop("n5")
    lab.start("n5")
    eventually(lambda: lab.state("n5") == "up" and not [line for line in shell("status", "--json").json["warnings"] if "reach" in line])


def _refused(lab: Lab, node: str) -> bool:
    try:
        _meta(lab, node)
    except PermissionDenied:
        return True
    return False


def _meta(lab: Lab, node: str) -> object:
    """What a machine sees that speaks to ZooKeeper itself, with all that its bundle has."""
    bundle = Credentials.load(lab.directory / node / "starter.d")
    assert bundle.zookeeper_auth is not None
    security = ZkSecurity(
        tls=True,
        ca_file=bundle.path("ca.crt"),
        cert_file=bundle.path("tls.crt"),
        key_file=bundle.path("tls.key"),
        auth_scheme=bundle.zookeeper_auth[0],
        auth_credential=bundle.zookeeper_auth[1],
    )
    hosts = lab.environment["RMGR_ZK"].partition("/")[0]
    with ZkCoordinator.connect(hosts, CHROOT, security=security) as coordinator:
        return coordinator.get(paths.META).result(60)
