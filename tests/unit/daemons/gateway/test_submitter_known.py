"""What a gateway knows of the cluster when it builds a client's change anew: by version, and without a reading for honest clients."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.identity.pki import issue, make_ca, signing_certificate
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, ConflictKind, Create, Exists, Multi, Op, Set, Stamped
from rmgr.coord.protocol.records import encode_record
from rmgr.coord.rebuild.multis import rebuild
from rmgr.coord.rebuild.parts import Moved
from rmgr.daemons.gateway.known import Cluster
from rmgr.daemons.gateway.owners import Owners
from rmgr.errors import PermissionDenied
from rmgr.model.cluster.identity import Identity, Role
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Tail
from tests.harness.client_multis import ANN, TAIL, block
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore


class Counted(MemoryCoordinator):
    """Counts what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def get(self, path: str, **how: Any) -> Future[Stamped | None]:
        self.asked.append(path)
        return super().get(path, **how)

    def sync(self, **how: Any) -> Future[None]:
        self.asked.append("sync")
        return super().sync(**how)

    def write(self, *given: Op) -> None:
        done = self.commit(Multi(name="TEST", ops=given, proof=Exists(given[0].path))).result(60)
        assert isinstance(done, Committed), done


@pytest.fixture
def zk() -> Counted:
    made = Counted()
    made.ensure([*paths.SKELETON, paths.pending("default"), paths.held("default"), paths.subs_bucket(42)], timeout_s=60)
    made.write(Create(paths.IDS, b"41"), Create(paths.CONFIG, encode_record(ClusterSettings())))
    made.write(Set(paths.IDS, b"42", 0))
    made.asked.clear()
    return made


@pytest.fixture
def cluster(zk: Counted) -> Cluster:
    return Cluster(zk, Owners(zk, MemoryStore("")))


def submit(version: int = 1) -> Multi:
    tail = replace(TAIL, next=4)
    return ops.submit(ANN, ids_version=version, tail=tail, blocks=[block()], make_bucket=False)


def test_whoever_reads_the_number_through_the_gateway_and_goes_on_costs_no_reading(zk: Counted, cluster: Cluster) -> None:
    found = zk.get(paths.IDS).result(60)
    assert found is not None
    cluster.saw(found)
    zk.asked.clear()
    known = cluster.asked_by(Caller())
    for multi in (
        submit(),
        ops.enqueue(42, "default", tail=replace(TAIL, next=8, enqueued="1"), tail_version=0, blocks=[block(4)], held=False),
        ops.enqueue(42, "default", tail=replace(TAIL, next=12, enqueued="2"), tail_version=1, blocks=[block(8)], held=False),
    ):
        built = rebuild(multi, known)
        assert isinstance(zk.commit(built.multi).result(60), Committed)
        cluster.committed(built)
    assert cluster.number(2) == 43
    assert zk.asked == []


def test_a_submission_follows_another_that_is_on_its_way(zk: Counted, cluster: Cluster) -> None:
    built = rebuild(submit(), cluster.asked_by(Caller()))
    with pytest.raises(Moved):
        cluster.number(2)
    zk.asked.clear()
    cluster.sends(built)
    assert cluster.number(2) == 43
    assert zk.asked == []
    with pytest.raises(Moved):  # nothing like it was sent
        cluster.number(3)


def test_what_it_has_not_seen_it_reads_once(zk: Counted, cluster: Cluster) -> None:
    known = cluster.asked_by(Caller())
    for _ in range(3):
        rebuild(submit(), known)
    assert zk.asked == [paths.IDS]
    zk.write(*submit().ops)
    zk.asked.clear()
    grows = ops.enqueue(42, "default", tail=replace(TAIL, next=8, enqueued="1"), tail_version=0, blocks=[block(4)], held=False)
    for _ in range(3):
        rebuild(grows, known)
    assert zk.asked == [paths.sub(42), paths.tail(42)]


def test_a_version_that_is_over_or_to_come_is_a_conflict(zk: Counted, cluster: Cluster) -> None:
    for version, asked in ((0, [paths.IDS]), (2, [paths.IDS, "sync", paths.IDS]), (-1, [paths.IDS])):
        with pytest.raises(Moved) as moved:
            cluster.number(version)
        assert (moved.value.path, moved.value.kind) == (paths.IDS, ConflictKind.BAD_VERSION)
        assert zk.asked == asked
        zk.asked.clear()
    with pytest.raises(Moved) as moved:
        cluster.tail(42, 0)
    assert moved.value.kind is ConflictKind.NO_NODE
    with pytest.raises(Moved):
        cluster.facts(42)


def test_a_server_that_is_behind_catches_up_first(zk: Counted, cluster: Cluster) -> None:
    real, late = zk.get, [True]

    def behind(path: str, **how: Any) -> Future[Stamped | None]:
        if not late.pop():
            return real(path, **how)
        late.append(False)
        old: Future[Stamped | None] = Future()
        found = real(path).result(60)
        assert found is not None
        old.set_result(replace(found, data=b"41", stat=replace(found.stat, version=0)))
        return old

    zk.get = behind  # type: ignore[method-assign]
    assert cluster.number(1) == 42


def test_settings_are_read_again_when_they_have_changed(zk: Counted, cluster: Cluster) -> None:
    assert [cluster.settings().max_losses for _ in range(3)] == [5, 5, 5]
    assert zk.asked == [paths.CONFIG]
    zk.write(Set(paths.CONFIG, encode_record(ClusterSettings(max_losses=9)), 0))
    assert [cluster.settings().max_losses for _ in range(2)] == [9, 9]
    assert zk.asked == [paths.CONFIG] * 2


def test_a_tail_that_somebody_else_has_changed_is_read_again(zk: Counted, cluster: Cluster) -> None:
    zk.write(*submit().ops)
    assert cluster.tail(42, 0).next == 4
    zk.write(Set(paths.tail(42), encode_record(Tail(next=9)), 0))
    assert cluster.tail(42, 1).next == 9


def test_a_certificate_is_ones_own_and_written_in_one_way(zk: Counted) -> None:
    authority = make_ca("c-1")
    ann, bob = issue(authority, "ann", Role.USER), issue(authority, "bob", Role.USER)
    other = issue(make_ca("c-1"), "ann", Role.USER)

    def certify(pem: bytes) -> tuple[str, bytes]:
        return signing_certificate(pem, authority.cert_pem)

    key_id, written = certify(ann["sign.crt"])
    assert written == ann["sign.crt"]
    caller = Caller(identity=Identity(name="ann", role=Role.USER, cluster="c-1", key_id=key_id))
    cluster = Cluster(zk, Owners(zk, MemoryStore("")), certify)
    assert cluster.asked_by(caller).certificate(ann["sign.crt"]) == (key_id, written)
    assert cluster.asked_by(caller).certificate(b"# padded\n" * 1000 + ann["sign.crt"] * 2) == (key_id, written)
    for pem in (bob["sign.crt"], other["sign.crt"], ann["tls.crt"], b"", b"x" * 9000):
        with pytest.raises(PermissionDenied):
            cluster.asked_by(caller).certificate(pem)
    with pytest.raises(PermissionDenied, match="your own key"):
        cluster.asked_by(Caller()).certificate(ann["sign.crt"])
    with pytest.raises(PermissionDenied, match="open cluster"):
        Cluster(zk, Owners(zk, MemoryStore(""))).asked_by(caller).certificate(ann["sign.crt"])
