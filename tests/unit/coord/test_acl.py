"""The table of access lists: every operation of the protocol has the rights it needs, and nobody has what he does not need."""

from __future__ import annotations

import pytest

from rmgr.coord.ops.owner import leave
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.acl import ALL, ROLES, TABLE, Right, may, place_of, rights
from rmgr.coord.protocol.multi import Check, Create, Delete, Op, Set
from rmgr.daemons.gateway.rights import OPERATIONS, ZnodeKind
from rmgr.model.cluster.identity import Role
from tests.places import ROOT

S, W = Role.STARTER, Role.WATCHDOG
USERS = (Role.USER, Role.OPERATOR, Role.SUBMITTER)
K = "0000001.0000000042.0000000000.001.000001.00001.000000000-0000000007"
SUB = paths.sub(42)

#: What Starters do (protocol.md section 3).
STARTERS_DO: list[Op] = [
    Create(paths.node("n")),
    Set(paths.node("n"), b"", 1),
    Create(paths.running_node("n")),
    Create(paths.inbox_node("n")),
    Create(paths.starter("g"), ephemeral=True, sequence=True),
    Delete(f"{paths.STARTERS}/s-g-0000000001"),
    Check(paths.node("n"), 1),
    Check(paths.gate(42)),
    Delete(f"{paths.pending('q')}/{K}"),
    Create(f"{paths.running_node('n')}/{K}"),
    Set(f"{paths.running_node('n')}/{K}", b"", 1),
    Delete(f"{paths.running_node('n')}/{K}"),
    Create(f"{paths.pending('q')}/{K}"),
    Create(f"{paths.held('q')}/{K}"),
    Create(paths.fragment_prefix(42), sequence=True),
    Create(paths.failed_range(42, 0, 1, 1)),
    Delete(paths.inbox("n", "g")),
    Create(paths.idle("n")),
    Delete(paths.idle("n")),
]

#: Examples of the places that clients have to do with.
AT = {
    ZnodeKind.IDS: paths.IDS,
    ZnodeKind.CONFIG: paths.CONFIG,
    ZnodeKind.NONCE: paths.nonce("u", "d", 1),
    ZnodeKind.TOKEN: paths.token("d"),
    ZnodeKind.BUCKET: paths.subs_bucket(42),
    ZnodeKind.RECORD: SUB,
    ZnodeKind.GATE: paths.gate(42),
    ZnodeKind.TAIL: paths.tail(42),
    ZnodeKind.DONE: paths.done(42),
    ZnodeKind.FAILED: paths.failed(42),
    ZnodeKind.FRAGMENT: paths.fragment(42, 0),
    ZnodeKind.FAILED_RANGE: paths.failed_range(42, 0, 1, 1),
    ZnodeKind.PENDING: f"{paths.pending('q')}/{K}",
    ZnodeKind.HELD: f"{paths.held('q')}/{K}",
    ZnodeKind.QUEUE: paths.pending("q"),
    ZnodeKind.SUBMITTER: paths.submitter("g"),
    ZnodeKind.DRAIN: paths.drain("n"),
    ZnodeKind.ORDER: paths.inbox("n", "g"),
    ZnodeKind.NODE: paths.node("n"),
    ZnodeKind.IDLE: paths.idle("n"),
    ZnodeKind.RUNNING: f"{paths.running_node('n')}/{K}",
}


def allowed(role: Role, kind: type[Op], path: str) -> bool:
    """As ZooKeeper decides: CREATE and DELETE are rights on the parent."""
    above = path.rpartition("/")[0] or "/"
    if kind is Create:
        return may(role, Right.CREATE, above)
    if kind is Delete:
        return may(role, Right.DELETE, above)
    return may(role, Right.WRITE if kind is Set else Right.READ, path)


@pytest.mark.parametrize("op", STARTERS_DO, ids=lambda op: f"{type(op).__name__} {place_of(op.path)}")
def test_a_starter_may_do_what_its_multis_do(op: Op) -> None:
    assert allowed(S, type(op), op.path)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_gateways_may_do_every_operation_of_their_clients(name: str) -> None:
    for kind, place in OPERATIONS[name]:
        if place in AT:
            assert allowed(Role.SUBMITTER, kind, AT[place]), f"{name}: {kind.__name__} {place.name}"


def test_gateways_let_go_of_clients_that_have_gone_and_nobody_else_does() -> None:
    entry = f"{paths.SUBMITTERS}/s-g-0000000001"
    for op in leave(entry).ops:
        assert allowed(Role.SUBMITTER, type(op), entry)
        assert not any(allowed(role, type(op), entry) for role in (Role.USER, Role.OPERATOR, Role.STARTER))


def test_users_may_do_what_submits_and_follows_and_nothing_of_operators() -> None:
    clients = ("SUBMIT", "ENQUEUE", "HAND", "RESUBMIT", "GIVE_UP", "CANCEL_FAILED", "ENTER", "TAKE_OWNERSHIP", "GATE", "ORDER")
    for name in clients:
        for kind, place in OPERATIONS[name]:
            if place in AT:
                assert allowed(Role.USER, kind, AT[place]), f"{name}: {kind.__name__} {place.name}"
    for name in ("DRAIN", "RESUME", "SETTINGS"):
        for kind, place in OPERATIONS[name]:
            assert not allowed(Role.USER, kind, AT[place])
            assert allowed(Role.OPERATOR, kind, AT[place])
    assert allowed(Role.USER, Create, paths.request("g"))


@pytest.mark.parametrize("role", USERS)
def test_who_submits_neither_fences_nor_leads_nor_claims(role: Role) -> None:
    for path in (paths.EPOCH, paths.META, paths.node("n"), f"{paths.running_node('n')}/{K}", paths.ACL, paths.revoked("k")):
        assert not rights(path)[role] & (ALL & ~Right.READ), path
    assert rights(paths.running_node("n"))[role] == Right.READ | Right.CREATE, "HAND, to which a mark belongs"
    assert rights(paths.IDLE)[role] == Right.READ | Right.DELETE
    for path in (paths.NODES, paths.WATCHDOGS, paths.STARTERS, paths.RUNNING, paths.REVOKED, paths.SECRETS, "/"):
        assert not rights(path).get(role, Right.NONE) & (Right.CREATE | Right.DELETE), path


def test_only_daemons_operators_and_gateways_take_anything_out_of_a_queue() -> None:
    for path in (paths.pending("q"), paths.held("q")):
        assert not may(Role.USER, Right.DELETE, path)
    assert not may(S, Right.DELETE, paths.held("q"))


def test_what_only_the_admin_may_change_a_watchdog_may_not() -> None:
    for path in (paths.ACL, paths.REVOKED, paths.revoked("k"), paths.SECRETS, paths.secret("starter")):
        assert rights(path)[W] == Right.READ
        assert rights(path)[Role.ADMIN] == ALL
    others = [place for place in TABLE if rights(place)[W] != ALL]
    assert {place.split("/")[1] for place in others} == {path[1:] for path in (paths.ACL, paths.REVOKED, paths.SECRETS, paths.JOINS)}


def test_every_directory_of_the_tree_has_a_line_and_what_has_none_is_only_read() -> None:
    assert {*paths.SKELETON, paths.META, paths.CONFIG, paths.IDS, paths.EPOCH, paths.ACL} <= set(TABLE)
    for path in (SUB, paths.gate(42), paths.fragment_prefix(42), f"{paths.pending('q')}/{K}", paths.idle("n"), paths.request("g")):
        assert place_of(path) in TABLE
    unknown = rights(f"{paths.JOBS}/0/42")
    assert {role: right for role, right in unknown.items() if role not in {Role.ADMIN, W}} == dict.fromkeys((S, *USERS), Right.READ)


LETTERS = {Right.READ: "r", Right.WRITE: "w", Right.CREATE: "c", Right.DELETE: "d", Right.ADMIN: "a"}


def table_for_people() -> str:
    """The table as SECURITY.md has it."""
    rows = ["| znode | " + " | ".join(ROLES) + " |", "|---|" + "---|" * len(ROLES)]
    for place in TABLE:
        mine = [rights(place).get(role, Right.NONE) for role in ROLES]
        words = ["".join(letter for right, letter in LETTERS.items() if held & right) or "-" for held in mine]
        rows.append(f"| `{place}` | " + " | ".join(words) + " |")
    return "\n".join(rows)


def test_the_document_shows_the_table() -> None:
    document = (ROOT / "SECURITY.md").read_text()
    assert table_for_people() in document, f"SECURITY.md, section 'ZooKeeper: rights by role', should have:\n{table_for_people()}"
