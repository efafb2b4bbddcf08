"""Secrets of a running secured cluster are only in its bundles: not in arguments, environments, znodes, rows, logs or answers.

Not patterns are looked for but the very bytes that the bundles of this cluster hold.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmgr
from rmgr.adapters.stores import open_store
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.dev.cluster import DevCluster
from rmgr.model.identity import Role
from rmgr.runtime.secured import credentials_of, zookeeper_options
from tests.harness.gateway_process import GatewayProcess
from tests.integration.commands import Shell, wait_line

_PEM = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.+?)-----END", re.DOTALL)
#: Shorter pieces would be found by chance.
_LEAST = 16


@pytest.fixture(scope="module")
def gateway(live: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(live.daemon_environment("submitter", "g-secrets"), tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture(scope="module")
def shell(live: DevCluster, gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    assert live.security is not None
    bundle = str(live.security.bundle(Role.USER, "carla"))
    return Shell(tmp_path_factory.mktemp("home"), {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": bundle})


@pytest.fixture(scope="module")
def secrets(live: DevCluster, gateway: GatewayProcess, shell: Shell) -> dict[bytes, str]:
    """Secret -> the file that holds it, in the forms in which it could turn up."""
    found: dict[bytes, str] = {}
    for file in (live.directory / "security").rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        for body in _PEM.findall(data):
            for line in body.split():
                if len(line) >= _LEAST:
                    found[line] = str(file)
            raw = base64.b64decode(b"".join(body.split()))
            found[raw[-32:]] = found[raw[-32:].hex().encode()] = str(file)
        if file.name.startswith("zookeeper.secret"):
            for word in re.split(rb"[\s:\"{},]+", data):
                if len(word) >= _LEAST:
                    found[word] = str(file)
    names = {Path(name).name for name in found.values()}
    assert {"tls.key", "sign.key", "zookeeper.secret"} <= names, names
    return found


def leaks(secrets: dict[bytes, str], where: str, data: bytes) -> list[str]:
    return [f"{where} has a secret of {file}" for secret, file in secrets.items() if secret in data]


def test_secret_files_are_their_owners_alone(live: DevCluster) -> None:
    for file in (live.directory / "security").rglob("*"):
        if file.suffix == ".key" or "secret" in file.name:
            assert file.stat().st_mode & 0o077 == 0, file


def test_no_process_has_a_secret_in_its_arguments_and_no_task_in_its_environment(
    live: DevCluster, shell: Shell, secrets: dict[bytes, str]
) -> None:
    number = shell.submit("--", "sh", "-c", "env; echo ready; sleep 600")
    found: list[str] = []
    with shell.running("logs", "-f", number) as follower:
        wait_line(follower, "ready")
        tasks = 0
        for pid in (name for name in os.listdir("/proc") if name.isdigit()):
            try:
                cmdline, environ = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            found += leaks(secrets, f"the command line {cmdline[:80]!r}", cmdline)
            if b"RMGR_JOB_ID=" in environ:
                tasks += 1
                found += leaks(secrets, f"the environment of task {cmdline[:80]!r}", environ)
                assert b"RMGR_STORE_PASSWORD" not in environ
                starters = [str(live.directory / "security" / "bundles" / f"starter-{name}").encode() for name in ("n1", "n2", "n3")]
                assert not any(path in environ for path in starters), "not even where the Starter's own bundle lies"
        assert tasks >= 1
    shell.ok("cancel", number)
    assert found == []


def test_no_znode_and_no_row_has_a_secret(live: DevCluster, shell: Shell, secrets: dict[bytes, str]) -> None:
    shell.ok("submit", "--wait", "--", "echo", "hello")
    config = live.admin_config()
    hosts, chroot = config.cluster.hosts_and_chroot()
    found: list[str] = []
    count = 0
    with ZkCoordinator.connect(hosts, chroot, **zookeeper_options(config, credentials_of(config))) as coordinator:
        todo = ["/"]
        while todo:
            path = todo.pop()
            node = coordinator.get(path).result(60)
            if node is not None:
                count += 1
                found += leaks(secrets, f"the znode {path}", node.data + path.encode())
            names = coordinator.children(path).result(60) or []
            todo += [f"{path.rstrip('/')}/{name}" for name in names]
    assert count > 20
    store = open_store(config.cluster.store)
    try:
        for key in store.keys(""):
            row = store.get(key)
            found += leaks(secrets, f"the row {key}", key.encode() + (row[0] if row is not None else b""))
    finally:
        store.close()
    assert found == []


def test_no_answer_and_no_error_has_a_secret(live: DevCluster, gateway: GatewayProcess, shell: Shell, secrets: dict[bytes, str]) -> None:
    direct = Shell(shell.home / "direct", live.environment())
    number = shell.submit("--", "true")
    told = [
        *(shell(*words) for words in (("jobs", "-a", "--json"), ("nodes", "--json"), ("status", "--json"), ("show", number, "--json"))),
        *(one("config", "show") for one in (shell, direct)),
        *(one("doctor") for one in (shell, direct)),
        direct("drain", "no-such-node", "--json"),
        Shell(shell.home / "a", {**live.environment(), "RMGR_SECURITY_DIR": "/nonexistent"})("jobs"),
        Shell(shell.home / "b", {**live.environment(), "RMGR_SECURITY_DIR": str(live.directory)})("jobs"),
        Shell(shell.home / "c", {**live.environment(), "RMGR_SECURITY_DIR": ""})("jobs", "--timeout", "3"),
        direct("submitter", "--listen", "127.0.0.1:0"),
    ]
    found = [leak for one in told for leak in leaks(secrets, (one.out + one.err)[:60], (one.out + one.err).encode())]
    assert found == []
    with rmgr.connect() as connection:
        assert leaks(secrets, "repr", f"{connection!r} {connection.credentials!r} {connection.config!r}".encode()) == []


def test_no_log_has_a_secret(live: DevCluster, gateway: GatewayProcess, secrets: dict[bytes, str]) -> None:
    logs = [file for file in live.directory.rglob("*.log") if file.is_file()]
    assert len(logs) >= 4
    found = [leak for file in logs for leak in leaks(secrets, str(file), file.read_bytes())]
    assert found + leaks(secrets, "the gateway's log", gateway.log().encode()) == []
