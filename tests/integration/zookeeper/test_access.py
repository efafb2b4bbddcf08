"""Access lists on a real server: new znodes have their list, strangers are refused, roles have just their rights, mending."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rmgr.adapters.zookeeper.acl import RoleLists
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import ZkSecurity
from rmgr.adapters.zookeeper.tree import check_tree, secure_tree
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.acl import ROLES, TABLE, Right, may
from rmgr.coord.protocol.multi import MAX_MULTI_BYTES, MAX_OPS, MAX_OPS_OF_ONE_JOB, Check, Committed, Create, Delete, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import PermissionDenied
from rmgr.model.identity import AclRecord, Role
from rmgr.procedures.bootstrap import bootstrap, verify
from tests.harness.bundles import session_bundles
from tests.harness.waiting import eventually

Opened = Callable[..., ZkCoordinator]


def multi(*ops: Op) -> Multi:
    return Multi(name="TEST", ops=ops, proof=Exists("/never"))


@pytest.fixture
def opened(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[Opened]:
    """Opens clients of a role (None: a stranger) in one chroot."""
    clients: list[ZkCoordinator] = []

    def open_as(role: Role | None, *, secret: str = "", cluster: str = "") -> ZkCoordinator:
        if role is None:
            client = ZkCoordinator.connect(zookeeper.hosts, chroot)
        else:
            credentials = session_bundles(cluster).credentials(role)
            assert credentials.zookeeper_auth is not None
            scheme, known = credentials.zookeeper_auth
            lists = RoleLists({name: (ids,) for name, ids in credentials.roles.items()})
            client = ZkCoordinator.connect(
                zookeeper.hosts, chroot, security=ZkSecurity(auth_scheme=scheme, auth_credential=secret or known), acl=lists
            )
        clients.append(client)
        return client

    yield open_as
    for client in clients:
        client.close()


#: One path for each place of the table; the last name of those that lie below a sequence is free.
WHERE = {place: place.replace("*", "7").removesuffix("/") for place in TABLE}


@pytest.fixture
def tree(opened: Opened) -> ZkCoordinator:
    """A cluster's tree with something at every place; its WatchDog's client."""
    leader, admin = opened(Role.WATCHDOG), opened(Role.ADMIN)
    bootstrap(leader)
    for place in sorted(WHERE.keys() - {"/"}, key=lambda place: place.count("/")):
        admin.commit(multi(Create(WHERE[place], b"x"))).result(60)
    return leader


def test_every_role_can_do_what_the_table_says_and_nothing_else(tree: ZkCoordinator, opened: Opened) -> None:
    # Asks the server for every (role, place, right) and compares with the pure table: 6 * 46 * 4 questions in one session a role.
    for role in ROLES:
        client = opened(role)
        futures = []
        for place, path in WHERE.items():
            futures += [
                (place, Right.READ, client.get(path or "/")),
                (place, Right.WRITE, client.commit(multi(Set(path, b"x", -1)))),
                (place, Right.CREATE, client.commit(multi(Create(f"{path}/probe"), Check("/nowhere")))),  # never carried out
                (place, Right.DELETE, client.commit(multi(Delete(f"{path}/absent")))),
            ]
        for place, right, future in futures:
            refused = isinstance(future.exception(60), PermissionDenied)
            assert refused is not may(role, right, place), f"{role} {right!r} at {place}"


def test_a_stranger_can_do_nothing_under_the_chroot(tree: ZkCoordinator, opened: Opened) -> None:
    stranger = opened(None)
    for path in WHERE.values():
        for op in (Set(path, b"x", -1), Create(f"{path}/mine"), Delete(f"{path}/absent")):
            with pytest.raises(PermissionDenied):
                stranger.commit(multi(op)).result(60)
        with pytest.raises(PermissionDenied):
            stranger.get(path or "/").result(60)
        with pytest.raises(PermissionDenied):
            stranger.children(path or "/").result(60)
    with pytest.raises(PermissionDenied, match="this cluster is secured") as told:
        verify(stranger)
    assert "add-user" in told.value.hint


def test_everything_made_has_its_list_and_the_check_finds_what_has_not(tree: ZkCoordinator, opened: Opened) -> None:
    report = check_tree(tree)
    assert report.deviations == []
    assert report.checked >= len(TABLE)
    admin = opened(Role.ADMIN)
    admin.set_access("/queues", (*admin.lists.above,)).result(60)
    for role in (Role.SUBMITTER, Role.WATCHDOG):  # who may not change it is not shown the whole list, and sees it nevertheless
        seen = check_tree(opened(role))
        assert [item.path for item in seen.deviations] == ["/queues"]
        assert "world" in {entry.scheme for entry in seen.deviations[0].found}
    assert check_tree(opened(Role.STARTER)).hidden == ["/joins", "/secrets"]
    assert check_tree(admin, mend=True).mended == 1
    assert check_tree(tree).deviations == []


def test_the_largest_multi_goes_through_with_its_lists(tree: ZkCoordinator) -> None:
    # 200 creates with 1.2 KiB each fill the cap of 256 KiB; the lists come on top (70 KiB) and do not count.
    data = bytes(MAX_MULTI_BYTES // MAX_OPS - 100)
    answer = tree.commit(multi(*(Create(f"/queues/7/pending/k{number}-", data, sequence=True) for number in range(MAX_OPS)))).result(60)
    assert isinstance(answer, Committed)
    assert check_tree(tree).deviations == []


def test_a_job_on_as_many_nodes_as_one_commit_bears(opened: Opened) -> None:
    leader = opened(Role.WATCHDOG)
    bootstrap(leader)
    half = MAX_OPS_OF_ONE_JOB // 2
    checks = [Check(paths.NODES, -1) for _ in range(half)]
    holds = [Create(f"{paths.HOLDS}/n{number}", bytes(MAX_MULTI_BYTES // half - 100)) for number in range(half)]
    wide = Multi(name="PLACE", ops=(*checks, *holds), proof=Exists(f"{paths.HOLDS}/n0"), most_ops=MAX_OPS_OF_ONE_JOB)
    assert isinstance(leader.commit(wide).result(60), Committed)
    assert check_tree(leader).deviations == []


def test_a_tree_made_in_the_open_is_taken_over_by_the_first_watchdog(opened: Opened) -> None:
    open_cluster = opened(None)
    bootstrap(open_cluster)
    open_cluster.commit(multi(Create("/tokens/old", b"1"), Create(paths.subs_bucket(1)))).result(60)
    leader = opened(Role.WATCHDOG)
    bootstrap(leader)
    report = secure_tree(leader)
    assert report.mended == report.checked >= len(paths.SKELETON) + 5
    assert secure_tree(leader).mended == 0
    assert check_tree(leader).deviations == []
    with pytest.raises(PermissionDenied):
        open_cluster.get("/tokens/old").result(60)
    with pytest.raises(PermissionDenied, match="belongs to other credentials"):
        check_tree(opened(Role.WATCHDOG, cluster="other-cluster"), mend=True)


def test_a_wrong_secret_is_told_what_to_mend_and_nothing_hangs(tree: ZkCoordinator, opened: Opened, zookeeper: ZooKeeperServer) -> None:
    with pytest.raises(PermissionDenied, match="secret of role submitter") as told:
        verify(opened(Role.USER, secret="submitter:guessed"))
    assert "rotated" in told.value.hint
    assert "guessed" not in f"{told.value.message}{told.value.hint}"
    # An identity that the server does not take at all: it closes the connection, kazoo's thread ends, and we say so at once.
    with pytest.raises(PermissionDenied, match="refuses the identity"):
        ZkCoordinator.connect(zookeeper.hosts, "/t", security=ZkSecurity(auth_scheme="nonsense", auth_credential="x"), connect_timeout_s=20)


def test_new_secrets_are_used_for_what_is_made_as_soon_as_they_are_published(tree: ZkCoordinator, opened: Opened) -> None:
    admin, starter = opened(Role.ADMIN), opened(Role.STARTER)
    ids = session_bundles("").ca.roles
    other = session_bundles("other-cluster").ca
    both = {Role.STARTER.value: (ids["starter"], other.roles["starter"])}
    admin.commit(multi(Set("/acl", encode_record(AclRecord(generation=1, roles=both)), -1))).result(60)
    eventually(lambda: starter.lists.ids[Role.STARTER] == both["starter"])
    assert isinstance(starter.commit(multi(Create("/idle/n1"))).result(60), Committed)
    eventually(lambda: tree.lists.ids[Role.STARTER] == both["starter"])
    assert check_tree(tree, mend=True).mended > 0
    newcomer = opened(Role.STARTER, secret=f"starter:{other.secrets['starter']}")
    assert newcomer.get("/idle/n1").result(60) is not None
    # The old holder changes to the new secret without losing its session.
    session = starter.session_id
    starter.renew(ZkSecurity(auth_scheme="digest", auth_credential=f"starter:{other.secrets['starter']}"))
    assert starter.get("/idle/n1").result(60) is not None
    assert starter.session_id == session
