"""Rows of the store that a client may read, write and list through a gateway: by family, and by their submission's owner."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from rmgr.adapters.access.limits import Shares
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Exists, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.values import Owners, check_content, check_rows, visible
from rmgr.errors import PermissionDenied
from rmgr.model.submission import Command, Submission, Work
from rmgr.procedures.history import history_rows, summary
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

ANNA, BEN, OLGA = Person(name="anna", role="user"), Person(name="ben", role="user"), Person(name="olga", role="operator", is_operator=True)


def owner_of(submission: int) -> str | None:
    return "anna" if submission == 42 else None


def test_the_clusters_own_rows_are_not_a_clients() -> None:
    check_rows(ANYBODY, "PUT", ["in/7", "fn/x", "metadata"])
    check_rows(ANYBODY, "DELETE", ["in/7"])
    for verb, rows in (("PUT", ["in/7", "meta/cluster_id"]), ("DELETE", ["meta/cluster_id"])):
        with pytest.raises(PermissionDenied):
            check_rows(ANYBODY, verb, rows)


HIST, HISTU = keys.history(42), keys.history_of_user("anna", 42)
HASH = "a" * 64


@pytest.mark.parametrize(
    "row", [keys.arguments(42, 0, "g"), keys.output(42, 0, 1), keys.log(42, 0, 1, "stdout", 0), keys.page(42, 0), HIST, HISTU]
)
def test_rows_of_a_submission_are_its_users(row: str) -> None:
    check_rows(ANNA, "GET", [row], owner_of)
    for verb in ("GET", "PUT", "DELETE"):
        with pytest.raises(PermissionDenied, match=r"anna|leader"):
            check_rows(BEN, verb, [keys.named("x"), row], owner_of)
    if row in {HIST, HISTU}:
        for person, verb in ((ANNA, "PUT"), (ANNA, "DELETE"), (OLGA, "PUT")):
            with pytest.raises(PermissionDenied, match="leader"):
                check_rows(person, verb, [row], owner_of)
        check_rows(OLGA, "DELETE", [row], owner_of)  # rmgr history purge
    else:
        check_rows(ANNA, "PUT", [row], owner_of)


def test_values_by_name_are_everybodys_and_content_is_what_it_says() -> None:
    for verb in ("GET", "PUT", "DELETE"):
        check_rows(BEN, verb, [keys.named("of/anna")], owner_of)
    check_rows(BEN, "PUT", [keys.function(HASH), keys.upload(HASH), keys.arguments(43, 0, "g")], owner_of)
    check_rows(BEN, "GET", [keys.module(HASH), "meta/cluster_id"], owner_of)
    final = keys.final(keys.Pointer(sub=42, index=0))
    check_rows(BEN, "DELETE", [final], owner_of)  # goes with its name, which is everybody's
    for verb in ("GET", "PUT"):
        with pytest.raises(PermissionDenied, match="42 belongs to anna"):
            check_rows(BEN, verb, [final], owner_of)
    for verb, row in (("DELETE", keys.function(HASH)), ("PUT", "fn/short")):
        with pytest.raises(PermissionDenied):
            check_rows(BEN, verb, [row], owner_of)
    for row in ("metric/n1/1", "unknown/x", "out/x", f"out/{'9' * 5000}/0", "out/\u0664\u0662/0", keys.output(43, 0, 1)):
        with pytest.raises(PermissionDenied):
            check_rows(BEN, "PUT", [row], owner_of)
    with pytest.raises(PermissionDenied, match="another hash"):
        check_content(keys.function(HASH), "b" * 64)
    check_content(keys.function(HASH), HASH)


def test_lists_tell_of_ones_own_work_and_of_names() -> None:
    rows = [HIST, HISTU, keys.output(42, 0, 1), keys.output(43, 0, 1), keys.function(HASH), keys.named("x"), keys.history_of_user("ben", 1)]
    assert visible(ANNA, rows, owner_of) == [HIST, HISTU, rows[2], rows[5]]
    assert visible(BEN, rows, owner_of) == [rows[5], rows[6]]
    assert visible(OLGA, rows, owner_of) == visible(ANYBODY, rows, owner_of) == rows


def test_the_schedulers_log_is_for_operators() -> None:
    row = keys.events(1, 0, 0)
    check_rows(OLGA, "GET", [row], owner_of)
    assert visible(OLGA, [row], owner_of) == [row]
    assert visible(ANNA, [row], owner_of) == []
    for person, verb in ((ANNA, "GET"), (ANNA, "PUT"), (OLGA, "PUT"), (OLGA, "DELETE")):
        with pytest.raises(PermissionDenied):
            check_rows(person, verb, [row], owner_of)
    with pytest.raises(PermissionDenied, match="reading the scheduler's log is for operators"):
        check_rows(ANNA, "GET", [row], owner_of)


def test_nobody_takes_all_places_of_a_gateway() -> None:
    shares = Shares(8)
    assert [shares.take("anna") for _ in range(8)] == [True] * 6 + [False] * 2
    assert [shares.take("ben") for _ in range(3)] == [True, True, False]
    assert len(shares) == 8
    giver = threading.Timer(0.05, shares.give_back, ["anna"])
    giver.start()
    assert shares.take("ben", timeout_s=60)
    giver.join()
    for user in ("anna",) * 5 + ("ben",) * 3:
        shares.give_back(user)
    assert len(shares) == 0
    assert [Shares(most).of_one for most in (1, 2, 4)] == [1, 2, 3]


ANN = Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))


class World:
    def __init__(self) -> None:
        self.zk, self.store = MemoryCoordinator(), MemoryStore()
        self.zk.ensure([*paths.SKELETON, paths.subs_bucket(ANN.id)], timeout_s=60)
        self.owners = Owners(self.zk, self.store)

    def history_says(self, record: Submission) -> None:
        for key, row in history_rows(summary(record, Progress(), now_us=1)):
            self.store.put(key, row)

    def submits(self, record: Submission) -> None:
        path = paths.sub(record.id)
        self.zk.commit(Multi(name="TEST", ops=(Create(path, encode_record(record)),), proof=Exists(path))).result(60)


@pytest.fixture
def world() -> World:
    return World()


def test_what_left_before_a_submission_that_is_there_is_read_once(world: World) -> None:
    world.history_says(ANN)
    world.submits(replace(ANN, id=ANN.id + 1))
    assert world.owners(ANN.id + 1) == "ann"
    assert world.owners(ANN.id) == "ann"
    world.history_says(replace(ANN, user="eve"))
    assert world.owners(ANN.id) == "ann"
