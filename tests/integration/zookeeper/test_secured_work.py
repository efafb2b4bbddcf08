"""A secured cluster at work: every znode of daemons and users has its access list, and secrets help no other user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import rmgr
from rmgr.adapters.identity.credentials import Credentials, load_ca, write_files
from rmgr.adapters.identity.pki import issue
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.tree import check_tree
from rmgr.config import load
from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import Change, Doer
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.acl import ROLES, TABLE
from rmgr.coord.protocol.multi import Delete, Exists, Multi, Set
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import PermissionDenied
from rmgr.model.identity import Role
from rmgr.model.submission import Phase, Submission, Terms
from rmgr.runtime.secured import credentials_of, zookeeper_options
from tests.harness.bundles import session_bundles
from tests.harness.ended_sessions import LONG_S, expiring
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually


@pytest.fixture(scope="module")
def secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster of this file alone, which forges records in it; ZooKeeper is shared."""
    where = tmp_path_factory.mktemp("secured")
    made = DevCluster(where, nodes=2, watchdogs=1, cores=2, secured=True, guest_of=zookeeper, session_timeout_s=LONG_S)
    with made as cluster, expiring(cluster):
        yield cluster


def environment_of(cluster: DevCluster, role: Role, name: str) -> dict[str, str]:
    assert cluster.security is not None
    return cluster.environment() | {"RMGR_SECURITY_DIR": str(cluster.security.bundle(role, name))}


def session_of(cluster: DevCluster, user: str) -> ZkCoordinator:
    """A user's own session with ZooKeeper."""
    config = load(env=environment_of(cluster, Role.USER, user))
    hosts, _, chroot = config.cluster.zk.partition("/")
    return ZkCoordinator.connect(hosts, f"/{chroot}", **zookeeper_options(config, credentials_of(config)))


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=60, check=False)


def may_fail(number: int) -> int:
    if number == 7 and os.environ["RMGR_ATTEMPT"] == "1":
        raise ValueError(number)
    if number == 9:
        raise KeyError(number)
    return number * number


def test_after_real_work_every_znode_has_its_list_and_none_is_open(secured: DevCluster) -> None:
    alice = environment_of(secured, Role.USER, "alice")
    with (
        rmgr.connect(config=load(env=alice)) as connection,
        rmgr.TaskQueue(may_fail, retries=1, connection=connection) as queue,
    ):
        futures = queue.map(None, range(60))
        for number, future in enumerate(futures):
            if number == 9:
                with pytest.raises(KeyError):
                    future.result(60)
            else:
                assert future.result(60) == number * number
    operator = secured.environment()
    number = run(alice, "submit", "--parsable", "--array", "1-200", "--", "sleep", "2").stdout.strip()
    assert run(alice, "submit", "--hold", "--", "true").returncode == 0
    caps = (operator, "admin", "limit", "alice", "--cores", "100")
    for environment, *words in (
        caps, (alice, "hold", number), (alice, "release", number), (operator, "drain", "n2"), (operator, "resume", "n2"),
    ):  # fmt: skip
        done = run(environment, *words)
        assert done.returncode == 0, done.stderr
    seen: set[str] = set()

    def look() -> None:
        report = check_tree(secured.coordinator)
        assert [item.path for item in report.deviations] == report.hidden == []
        seen.update(report.places)

    look()  # while it works
    secured.kill("n2")

    def is_taken_back() -> bool:
        look()  # while a lost node's work moves
        return not secured.coordinator.children(paths.running_node("n2")).result(60)

    eventually(is_taken_back, "the leader takes back what n2 had")
    for which in (f"{number}_190", number):
        assert run(alice, "cancel", which).returncode == 0
    look()
    never = {paths.ACL, *(place for place in TABLE if place.startswith((paths.JOINS, paths.SECRETS, paths.REVOKED, paths.HOLDS)))}
    seldom = (paths.INBOX + "/*", paths.REQUESTS, paths.DRAINS, paths.TROUBLES, paths.IDLE, f"{paths.SUBS}/*/*/failed")
    brief = {f"{path}/*" for path in seldom}  # seldom there when one looks
    assert {place for place in TABLE if place not in never} - seen <= brief
    refused = [line for name in ("w1", "n1") for line in secured.log_tail(name, 1 << 20).splitlines() if "not allowed" in line]
    assert refused == [], "no daemon lacks a right"


@pytest.mark.parametrize("way", ["zookeeper", "gateway"])
def test_a_program_signs_with_the_bundle_as_it_is_now_and_what_it_signed_before_stays_good(
    secured: DevCluster, tmp_path: Path, way: str
) -> None:
    assert secured.security is not None
    authority, where = load_ca(secured.security.admin), tmp_path / "bundle"
    old = Credentials.load(write_files(where, issue(authority, "gil", Role.USER)))

    def signer_of(number: int) -> str:
        return decode_record(secured.coordinator.get(paths.sub(number)).result(60).data, Submission).signature.partition(":")[0]

    with ExitStack() as opened:
        environment = secured.environment() | {"RMGR_SECURITY_DIR": str(where)}
        if way == "gateway":
            gateway = GatewayProcess(secured.daemon_environment("submitter", "g1"), tmp_path)
            opened.enter_context(gateway)
            environment = {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": str(where), "HOME": str(tmp_path)}
        connection = opened.enter_context(rmgr.connect(config=load(env=environment)))
        before = opened.enter_context(rmgr.TaskQueue(may_fail, connection=connection))
        connection.store.put("gil/before", 1)
        assert before.submit_call(2).result(60) == 4
        write_files(where, issue(authority, "gil", Role.USER), replace=True)
        new = Credentials.load(where)
        after = opened.enter_context(rmgr.TaskQueue(may_fail, connection=connection))
        connection.store.put("gil/after", 2)
        assert after.submit_call(3).result(60) == 9
        assert before.submit_call(4).result(60) == 16
        wanted = old if way == "gateway" else new  # a gateway takes the key alone that its client's connection has shown
        assert [signer_of(queue.id) for queue in (before, after)] == [old.identity.key_id, wanted.identity.key_id]
        fresh = opened.enter_context(rmgr.connect(config=load(env=environment)))
        assert [fresh.store.get(f"gil/{name}") for name in ("before", "after")] == [1, 2]


def test_a_gateways_secret_neither_fences_nor_leads(secured: DevCluster) -> None:
    with session_of(secured, "mallory") as mallory:
        for op in (
            Set(paths.EPOCH, b"mine", -1),
            Set(paths.node("n1"), b"mine", -1),
            Delete(paths.node("n1")),
            Set(paths.META, b"mine", -1),
        ):
            with pytest.raises(PermissionDenied):
                mallory.commit(Multi(name="ATTACK", ops=(op,), proof=Exists("/never"))).result(60)
    assert check_tree(secured.coordinator).deviations == []


def test_a_user_cancels_single_waiting_tasks(secured: DevCluster) -> None:
    bob = environment_of(secured, Role.USER, "bob")
    number = run(bob, "submit", "--parsable", "--array", "0-99", "--", "sleep", "3").stdout.strip()
    done = run(bob, "cancel", f"{number}_90-99")
    assert (done.returncode, f"{number}_95" in done.stdout) == (0, True), done.stderr
    tasks = run(bob, "tasks", number).stdout
    assert tasks.count("CANCELLED") == 10, tasks
    with rmgr.connect(config=load(env=bob)) as connection, rmgr.TaskQueue(time.sleep, connection=connection) as queue:
        futures = queue.map(None, [0.5] * 40)
        assert futures[-1].cancel()
        assert futures[-1].cancelled()
        queue.cancel()
    assert run(bob, "cancel", number).returncode == 0
    assert check_tree(secured.coordinator).deviations == []


def _amended(record: Submission) -> Submission:
    """In her name, by nobody who has her key."""
    change = changing.amended(replace(record, phase=Phase.OPEN, reason=""), Terms(name="evil"), Doer(name=record.user, now_us=1))
    assert isinstance(change, Change)
    return replace(change.record, phase=record.phase, reason=record.reason)


def test_an_amendment_is_run_if_its_maker_has_signed_it_and_not_if_somebody_wrote_it(secured: DevCluster) -> None:
    alice = environment_of(secured, Role.USER, "alice")
    submit = ("submit", "--hold", "--parsable", "-t", "1h", "--", "sh", "-c", "echo $RMGR_JOB_NAME")
    mine, attacked = (run(alice, *submit).stdout.strip() for _ in range(2))
    told = run(alice, "update", mine, "--name", "hers", "-t", "30m", "--mem", "64M")
    assert (told.returncode, "name sh -> hers" in told.stdout) == (0, True), told
    assert run(secured.environment(), "update", mine, "--priority", "7").returncode == 0  # an operator
    path = paths.sub(int(attacked))
    with session_of(secured, "mallory") as attacker:
        found = attacker.get(path).result(60)
        forged = _amended(decode_record(found.data, Submission, path))
        attacker.commit(Multi(name="ATTACK", ops=(Set(path, encode_record(forged), -1),), proof=Exists(path))).result(60)
    for number in (mine, attacked):
        assert run(alice, "release", number).returncode == 0
    assert run(alice, "wait", mine).returncode == 0
    assert run(alice, "logs", mine).stdout == "hers\n"
    assert run(alice, "wait", attacked).returncode != 0
    [task] = json.loads(run(alice, "tasks", attacked, "--json").stdout)["tasks"]
    assert (task["reason"], "amendment 1, by alice: nobody signed it" in task["error"]) == ("UNTRUSTED", True), task


def test_a_record_that_was_changed_is_not_run_again(secured: DevCluster) -> None:
    """A stolen gateway can write records of others: nobody signs by `rerun` what somebody else has put there."""
    alice, mallory = (environment_of(secured, Role.USER, name) for name in ("alice", "mallory"))
    number = run(alice, "submit", "--parsable", "--array", "1-3", "--", "sh", "-c", "exit 3").stdout.strip()
    assert run(alice, "wait", number).returncode == 3
    own = run(alice, "submit", "--parsable", "--wait", "--", "true").stdout.strip()
    again = run(alice, "rerun", number, "--failed", "--wait")
    assert (again.returncode, f"3 tasks of {number}" in again.stderr) == (3, True), again.stderr
    others = run(mallory, "rerun", number, "--trust", "alice")
    assert (others.returncode, f"{number} belongs to alice" in others.stderr) == (4, True), others.stderr
    operator = secured.environment()
    warned = run(operator, "rerun", number)
    assert (warned.returncode, "it would run what alice wrote as you, " in warned.stderr) == (4, True), warned.stderr
    assert "--trust alice" in warned.stderr
    trusting = run(operator, "rerun", number, "--trust", "alice", "--wait")
    assert trusting.returncode == 3, trusting.stderr
    assert '"user": "alice"' not in run(operator, "show", "last", "--json").stdout

    path = paths.sub(int(number))
    with session_of(secured, "mallory") as attacker:
        found = attacker.get(path).result(60)
        record = decode_record(found.data, Submission, path)
        assert record.command is not None
        evil = replace(record.command, argv=("sh", "-c", "id"))
        another = decode_record(attacker.get(paths.sub(int(own))).result(60).data, Submission)  # type: ignore[union-attr]
        for changed, why in (
            (replace(record, command=evil), "is not what alice has signed"),
            (replace(record, command=evil, signature=""), "nobody has signed its record"),
            (replace(record, entries="a" * 64), "is not what alice has signed"),
            (_amended(record), "amendment 1, by alice: nobody has signed it"),
            (replace(another, id=int(number)), "is one that alice has signed for another"),
        ):
            attacker.commit(Multi(name="ATTACK", ops=(Set(path, encode_record(changed), -1),), proof=Exists(path))).result(60)
            refused = run(alice, "rerun", number)
            assert (refused.returncode, why in refused.stderr) == (4, True), refused.stderr
        taken = Set(path, encode_record(replace(record, user="mallory")), -1)
        attacker.commit(Multi(name="ATTACK", ops=(taken,), proof=Exists(path))).result(60)
        assert run(alice, "rerun", number).returncode == 4, "what is said to be another's is not hers to run"


def test_nobody_and_the_credentials_of_another_cluster_are_kept_out(secured: DevCluster) -> None:
    nobody = run(secured.environment() | {"RMGR_SECURITY_DIR": ""}, "jobs")
    assert (nobody.returncode, "this cluster is secured" in nobody.stderr) == (4, True), nobody.stderr
    assert "add-user" in nobody.stderr
    foreign = run(secured.environment() | {"RMGR_SECURITY_DIR": str(session_bundles("elsewhere").dir(Role.OPERATOR))}, "jobs")
    assert (foreign.returncode, "secret of role submitter" in foreign.stderr) == (4, True), foreign.stderr


def test_no_secret_lies_in_a_znode(secured: DevCluster) -> None:
    # Every znode as the admin sees it: neither a role's secret nor a private key.
    assert secured.security is not None
    config = secured.admin_config()
    credentials = credentials_of(config)
    assert credentials is not None
    secrets = [secret.encode() for secret in credentials.zookeeper_secrets.values()]
    assert len(secrets) == len(ROLES)
    level, looked = ["/"], 0
    while level:
        below = []
        for path in level:
            found = secured.coordinator.get(path).result(60)
            if found is not None:
                looked += 1
                assert not [path for secret in (*secrets, b"PRIVATE KEY") if secret in found.data]
                below += [f"{path.rstrip('/')}/{name}" for name in secured.coordinator.children(path).result(60) or []]
        level = below
    assert looked > 40
