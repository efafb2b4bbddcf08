"""Access lists and quotas: every operation of the protocol has just the rights it needs, and the server stays alive."""

from __future__ import annotations

import re

import pytest

from rmgr.coord.protocol import acl, paths
from rmgr.coord.protocol.acl import ALL, ROLES, TABLE, Right, may, place_of, rights
from rmgr.coord.protocol.multi import Check, Create, Delete, Op, Set
from rmgr.model.identity import Role
from tests.places import ROOT

S, W = Role.STARTER, Role.WATCHDOG
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

_QUEUED = (Create(f"{paths.pending('q')}/{K}", sequence=True), Create(f"{paths.held('q')}/{K}", sequence=True))
_GATED = (Set(SUB, b"", 1), Set(paths.gate(42), b"", 1), Create(paths.gate(42)), Delete(paths.gate(42)))
_DRAINED = (Create(paths.drain("n")), Delete(paths.drain("n")))
_FAILED, _ENDED = Delete(paths.failed_range(42, 0, 1, 1)), Create(paths.fragment(42, 0), sequence=True)

#: What gateways and direct users do (protocol.md section 3).
SUBMITTERS_DO: dict[str, tuple[Op, ...]] = {
    "SUBMIT": (
        *(Set(paths.IDS, b"", 1), Create(paths.nonce("u", "d", 1)), Create(paths.token("d")), Create(paths.subs_bucket(42)), Create(SUB)),
        *(Create(path) for path in (paths.gate(42), paths.tail(42), paths.done(42), paths.failed(42))),
        *_QUEUED,
    ),
    "ENQUEUE": (Set(paths.tail(42), b"", 1), *_QUEUED, _ENDED),
    "HAND": (
        *(Set(paths.tail(42), b"", 1), Check(paths.gate(42)), Check(paths.node("n"), 1), Delete(paths.idle("n"))),
        Create(f"{paths.running_node('n')}/{K}"),
    ),
    "RESUBMIT": (_FAILED, *_QUEUED),
    "GIVE_UP": (_FAILED, _ENDED),
    "ENTER": (Create(paths.submitter("g"), ephemeral=True, sequence=True),),
    "EXIT": (Delete(f"{paths.SUBMITTERS}/s-g-0000000001"),),
    "TAKE_OWNERSHIP": (Set(SUB, b"", 1), Set(paths.tail(42), b"", 1)),
    "GATE": _GATED,
    "UPDATE": (*_GATED, Check(f"{paths.pending('q')}/{K}"), Check(f"{paths.held('q')}/{K}")),
    "ORDER": (Create(paths.inbox("n", "g")),),
    "ASK": (Create(paths.request("g")),),
    "IDENTIFY": (Create(paths.identity("k")),),
    "TAKE_OUT": (Delete(f"{paths.pending('q')}/{K}"), Delete(f"{paths.held('q')}/{K}"), *_QUEUED, _ENDED),
    "DRAIN, RESUME": _DRAINED,
    "SETTINGS": (Set(paths.CONFIG, b"", 1),),
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


@pytest.mark.parametrize("name", sorted(SUBMITTERS_DO))
def test_who_submits_may_do_what_submits_and_follows(name: str) -> None:
    for op in SUBMITTERS_DO[name]:
        assert allowed(Role.SUBMITTER, type(op), op.path), f"{type(op).__name__} {op.path}"


def test_users_and_operators_have_no_rights_at_all() -> None:
    assert allowed(Role.SUBMITTER, Create, paths.request("g"))
    for place in (*TABLE, f"{paths.JOBS}/0/42"):
        assert set(rights(place)) == {Role.ADMIN, W, S, Role.SUBMITTER}, place


def test_a_gateway_neither_fences_nor_leads_nor_claims() -> None:
    role = Role.SUBMITTER
    for path in (paths.EPOCH, paths.META, paths.node("n"), f"{paths.running_node('n')}/{K}", paths.ACL, paths.revoked("k")):
        assert not rights(path)[role] & (ALL & ~Right.READ), path
    assert rights(paths.running_node("n"))[role] == Right.READ | Right.CREATE, "HAND, to which a mark belongs"
    assert rights(paths.IDLE)[role] == Right.READ | Right.DELETE
    for path in (paths.NODES, paths.WATCHDOGS, paths.STARTERS, paths.RUNNING, paths.REVOKED, paths.SECRETS, "/"):
        assert not rights(path).get(role, Right.NONE) & (Right.CREATE | Right.DELETE), path


def test_a_starter_takes_nothing_out_of_what_is_held() -> None:
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
    assert {role: right for role, right in unknown.items() if role not in {Role.ADMIN, W}} == dict.fromkeys((S, Role.SUBMITTER), Right.READ)


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


#: What a task that waits costs of heap, and a znode beside its data, on a real server (bytes).
TASK, ZNODE = 113, 400
#: What a server needs beside its znodes, for the last 500 requests of a block each.
FREE_MIB = 80
#: Of `rmgr dev`.
DEV_MIB = 512


def test_every_root_below_which_people_create_has_a_quota_and_no_other() -> None:
    created = {place for place, line in TABLE.items() if line[Role.SUBMITTER] & Right.CREATE}
    assert acl.SHARES.keys() == {"/" + place.split("/")[1] for place in created}


def test_two_million_waiting_tasks_fit() -> None:
    queues = acl.limits(DEV_MIB)[paths.QUEUES]
    assert queues.data_bytes > 2_000_000 * TASK
    assert queues.znodes > 4 * 2_000_000 // 256


def test_all_of_them_full_leave_room_in_the_heap() -> None:
    for heap_mib in (64, 100, 128, 256, DEV_MIB, acl.HEAP_MIB):
        full = sum(quota.data_bytes + quota.znodes * ZNODE for quota in acl.limits(heap_mib).values())
        assert full < 0.9 * heap_mib * 2**20
        assert full < (1.02 * max(0.375 * heap_mib, heap_mib - FREE_MIB) + 3) * 2**20


def test_a_small_heap_counts_as_one_that_a_server_can_start_with() -> None:
    assert acl.limits(1) == acl.limits(64)


def test_limits_are_hard_ones_as_zookeeper_reads_them() -> None:
    said = acl.encode(acl.Quota(7, 1000)).decode()
    assert acl.decode(said.encode()) == acl.Quota(7, 1000)
    assert acl.decode(b"count=3,bytes=40") == acl.Quota(3, 40)
    assert re.fullmatch(r"count=-1,bytes=-1=;byteHardLimit=1000;countHardLimit=7", said)
