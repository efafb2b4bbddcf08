"""A client believes only unchanged outcomes, signed by a Starter before any revocation of its key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.pki import Certified
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.client.identity import secured_by
from rmgr.config import SecurityConfig
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Stamped
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import encode_fragment
from rmgr.coord.seal import seal_fragment
from rmgr.errors import CoordinationUnavailable, PermissionDenied
from rmgr.model.block import Fragment, Outcome
from rmgr.model.identity import Revocation, Role
from rmgr.model.states import Reason, State
from rmgr.procedures.authentic import Authenticity, doubted
from rmgr.submitter.port import PAGED
from rmgr.submitter.questions import ReadRevoked
from tests.harness.bundles import session_bundles
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually

VALUE = Fragment(node="n1", base_us=0, outcomes=(Outcome(index=3, value=b"v"),))
FAILED = Fragment(node="n1", outcomes=(Outcome(index=3, state=State.FAILED, reason=Reason.EXIT_CODE),))


class World:
    """A tree with the places of identities, and signers of every kind."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
        self.bundles = session_bundles()
        self.node = self.published(Role.STARTER, "n1")
        self.trust = Trust(ZooKeeperKeys(self.coordinator), self.node.ca_pem)
        self.authenticity = Authenticity(self.trust, "c")

    def published(self, role: Role, name: str) -> Credentials:
        credentials = self.bundles.credentials(role, name)
        publish(self.coordinator, credentials)
        return credentials

    def signed(self, who: Credentials, fragment: Fragment = VALUE, *, submission: int = 7, cluster: str = "c") -> Fragment:
        return seal_fragment(fragment, cluster_id=cluster, submission=submission, key_id=who.identity.key_id, sign=who.sign)

    def doubt(self, fragment: Fragment, *, zxid: int = PAGED, data: bytes = b"") -> str:
        return self.authenticity.find_doubt(7, fragment, zxid, data)

    def zxid(self) -> int:
        """Of a transaction of now."""
        path = f"/t{time.monotonic_ns()}"
        assert isinstance(self.coordinator.commit(Multi(name="T", ops=(Create(path),), proof=Exists(path))).result(60), Committed)
        stat = self.coordinator.stat(path).result(60)
        return stat.mzxid


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.coordinator.close()


def test_what_a_starter_signed_is_believed_also_from_its_bytes(world: World) -> None:
    fragment = world.signed(world.node)
    assert world.doubt(fragment) == ""
    assert world.doubt(fragment, data=encode_fragment(fragment)) == ""
    assert world.authenticity.doubt(7, fragment, PAGED) == ""  # known now: nothing is asked


def test_the_first_look_does_not_wait(world: World) -> None:
    """Unknown at first, asked for, and known soon: who lives on one thread is never held up."""
    heard: list[int] = []
    world.trust.listen(lambda: heard.append(1))
    fragment = world.signed(world.node)
    end_s = time.monotonic() + 60
    while (doubt := world.authenticity.doubt(7, fragment, PAGED)) is None:
        assert time.monotonic() < end_s
    assert doubt == ""
    assert heard


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.WATCHDOG, Role.SUBMITTER, Role.ADMIN])
def test_only_starters_tell_how_tasks_ended(world: World, role: Role) -> None:
    assert "only Starters" in world.doubt(world.signed(world.published(role, "x")))


def test_what_was_signed_for_another_submission_or_cluster_is_not_believed(world: World) -> None:
    assert "not what Starter n1 signed" in world.doubt(world.signed(world.node, submission=8))
    assert "not what Starter n1 signed" in world.doubt(world.signed(world.node, cluster="d"))


def test_any_changed_byte_is_noticed(world: World) -> None:
    fragment = world.signed(world.node)
    other = msgspec.structs.replace(fragment, outcomes=(Outcome(index=3, value=b"w"),))
    assert "not what Starter n1 signed" in world.doubt(other, data=encode_fragment(other))
    assert "not what Starter n1 signed" in world.doubt(other)


def test_without_a_seal_only_what_carries_nothing_is_believed(world: World) -> None:
    assert world.doubt(VALUE) == "nobody signed it"
    assert world.doubt(Fragment(row="frag/1/x")) == "nobody signed it"
    assert world.doubt(FAILED) == ""
    assert world.authenticity.doubt(7, FAILED, 5) == ""


def test_a_key_that_nobody_knows_or_another_authority_vouches_for(world: World) -> None:
    assert "nobody is known" in world.doubt(world.signed(world.bundles.credentials(Role.STARTER, "n9")))
    stranger = session_bundles("another").credentials(Role.STARTER, "n1")
    publish(world.coordinator, stranger)
    assert "another authority" in world.doubt(world.signed(stranger))


def test_what_was_committed_before_a_revocation_stays_believed(world: World) -> None:
    node = world.published(Role.STARTER, f"n{time.monotonic_ns()}")
    fragment, before = world.signed(node), world.zxid()
    gone = Revocation(key_id=node.identity.key_id, name="n", role=Role.STARTER, by="admin", since_us=1)
    assert isinstance(world.coordinator.commit(membership.revoke(gone)).result(60), Committed)
    after = world.zxid()
    end_s = time.monotonic() + 60
    while not world.trust.is_revoked(node.identity.key_id):
        assert time.monotonic() < end_s
    assert world.doubt(fragment, zxid=before) == ""
    assert world.doubt(fragment, zxid=PAGED) == ""
    assert "was revoked" in world.doubt(fragment, zxid=after)


def test_a_revocation_that_comes_while_another_is_read_is_known_soon(world: World) -> None:
    """The watch of the list is spent before its records have come: they are read again, not at some later look of its own."""
    nodes = [world.published(Role.STARTER, f"n{number}-{time.monotonic_ns()}") for number in (1, 2)]
    held, told, here = Future[list[Stamped | None]](), threading.Event(), world.coordinator

    class Slow:
        """The answer about the first key waits for the test."""

        def children(self, path: str, *, watch: Callable[[], None]) -> Future[list[str] | None]:
            return here.children(path, watch=lambda: (watch(), told.set()))  # type: ignore[arg-type, return-value]

        def get_many(self, wanted: list[str]) -> Future[list[Stamped | None]]:
            return held if wanted == [paths.revoked(nodes[0].identity.key_id)] and not held.done() else here.get_many(wanted)

    def revoke(node: Credentials) -> None:
        gone = Revocation(key_id=node.identity.key_id, name="n", role=Role.STARTER, by="admin", since_us=1)
        assert isinstance(here.commit(membership.revoke(gone)).result(60), Committed)

    revoke(nodes[0])
    keys = ZooKeeperKeys(Slow())  # type: ignore[arg-type] - what it asks for
    keys.resync_s = 3600.0
    trust = Trust(keys, world.node.ca_pem)
    assert not trust.is_revoked(nodes[0].identity.key_id)
    revoke(nodes[1])
    assert told.wait(60)
    held.set_result(here.get_many([paths.revoked(nodes[0].identity.key_id)]).result(60))
    eventually(lambda: all(trust.is_revoked(node.identity.key_id) for node in nodes))


def test_when_a_key_was_revoked_is_asked_again_where_it_could_not_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then nothing of that key is believed, afterwards what was committed before is."""
    monkeypatch.setattr(ZooKeeperKeys, "resync_s", 0.0)
    node = world.published(Role.STARTER, f"n{time.monotonic_ns()}")
    key_id, here, fails = node.identity.key_id, world.coordinator, [True]

    class Failing:
        """A lost connection fails the first read of the record."""

        def children(self, path: str, *, watch: Callable[[], None]) -> Future[list[str] | None]:
            return here.children(path, watch=watch)

        def get(self, path: str) -> Future[Stamped | None]:
            return self._lost() if path == paths.revoked(key_id) and fails else here.get(path)

        def get_many(self, wanted: list[str]) -> Future[list[Stamped | None]]:
            return self._lost() if paths.revoked(key_id) in wanted and fails else here.get_many(wanted)

        def _lost(self) -> Future[Any]:
            fails.clear()
            lost = Future[Any]()
            lost.set_exception(CoordinationUnavailable("the connection was lost"))
            return lost

    before = world.zxid()
    gone = Revocation(key_id=key_id, name="n", role=Role.STARTER, by="admin", since_us=1)
    assert isinstance(here.commit(membership.revoke(gone)).result(60), Committed)
    trust = Trust(ZooKeeperKeys(Failing()), world.node.ca_pem)  # type: ignore[arg-type] - what it asks for
    eventually(lambda: trust.is_revoked(key_id))
    eventually(lambda: isinstance(trust.look(key_id, at_s=time.time(), zxid=before), Certified))


def test_a_certificate_must_have_been_valid_when_it_signed(world: World) -> None:
    longago = msgspec.structs.replace(VALUE, base_us=1_000_000)
    assert "not valid then" in world.doubt(world.signed(world.node, longago))


def test_a_name_that_is_taken_by_another_certificate_is_told(world: World) -> None:
    mine, other = world.bundles.credentials(Role.USER, "zoe"), world.bundles.credentials(Role.USER, "yan")
    path = paths.identity(mine.identity.key_id)
    taken = Multi(name="T", ops=(Create(path, other.certificate_pem),), proof=Exists(path))
    assert isinstance(world.coordinator.commit(taken).result(60), Committed)
    with pytest.raises(PermissionDenied, match="another certificate"):
        publish(world.coordinator, mine)
    assert "that of another key" in world.doubt(world.signed(mine))
    publish(world.coordinator, other)
    publish(world.coordinator, other)  # again: it is there


def test_what_is_left_of_outcomes_that_are_not_believed() -> None:
    outcomes = (VALUE.outcomes[0], FAILED.outcomes[0], Outcome(index=4, value_size=9, value_sha256=b"h" * 32, outputs=2))
    left = doubted(outcomes, "of this")
    assert [outcome.state for outcome in left] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert left[1] == FAILED.outcomes[0]
    for outcome in (left[0], left[2]):
        assert (outcome.value, outcome.value_size, outcome.outputs) == (b"", -1, 0)
        assert outcome.error == "DATA_LOST: its outcome cannot be believed: of this"


class _Published:
    """Whoever takes certificates."""

    hosts, session_timeout_s = "", 1.0

    def __init__(self) -> None:
        self.pems: list[bytes] = []

    def ask(self, question: Any, *, timeout_s: float) -> Any:
        if isinstance(question, ReadRevoked):
            return ()
        self.pems.append(question.pem)
        return None


def test_a_value_is_signed_by_a_person_whose_certificate_is_there_before() -> None:
    ann, asks = session_bundles().credentials(Role.USER, "ann"), _Published()
    deeds = secured_by(asks, ann, SecurityConfig(), "c").deeds
    assert deeds is not None
    for _ in range(2):
        assert deeds.notes([("name/x", b"0" * 32, "")], Encoding.RAW)
    assert asks.pems == [ann.certificate_pem]


def test_a_bundle_of_a_daemon_stores_no_value_which_nobody_would_read() -> None:
    asks = _Published()
    deeds = secured_by(asks, session_bundles().credentials(Role.SUBMITTER, "gate"), SecurityConfig(), "c").deeds
    assert deeds is not None
    with pytest.raises(PermissionDenied, match="only users submit work and store values"):
        deeds.notes([("name/x", b"0" * 32, "")], Encoding.RAW)
    assert asks.pems == []
