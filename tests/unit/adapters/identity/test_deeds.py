"""Owners of values, verified with the cluster's certificates: forged and revoked signatures, shares, and a gateway's store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.client.values import Values
from rmgr.coord.decisions import rights
from rmgr.coord.decisions.rights import Person, ValueShare
from rmgr.coord.ops import membership
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Encoding
from rmgr.daemons.gateway.values import OwnedStore
from rmgr.daemons.leader.submissions.actions import keep_outputs
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.errors import PermissionDenied, UsageError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.identity import Revocation, Role
from rmgr.model.queue import SHARED, ClusterSettings
from rmgr.model.submission import Tail
from rmgr.procedures import authentic as deeds_module
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import Fates
from tests.harness.bundles import session_bundles
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree

KEY = "in/7"
ROW = keys.named(KEY)


class World:
    """A tree with identities, a store, and people."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
        self.bundles = session_bundles()
        self.store = MemoryStore()
        self.settings = ClusterSettings()

    def person(self, name: str, role: Role = Role.USER) -> Credentials:
        credentials = self.bundles.credentials(role, name)
        publish(self.coordinator, credentials)
        return credentials

    def deeds(self, name: str, role: Role = Role.USER) -> Deeds:
        credentials = self.person(name, role)
        trust = Trust(ZooKeeperKeys(self.coordinator), credentials.ca_pem)
        return Deeds(trust, "c", credentials, settings=lambda: self.settings)

    def values(self, name: str, role: Role = Role.USER) -> Values:
        return Values(self.store, Fates(self.store, self.coordinator), self.deeds(name, role))

    def revoke(self, credentials: Credentials, since_s: float) -> None:
        who = credentials.identity
        gone = Revocation(key_id=who.key_id, name=who.name, role=who.role, by="admin", since_us=int(since_s * 1e6))
        assert isinstance(self.coordinator.commit(membership.revoke(gone)).result(60), Committed)

    def owner(self, row: str, seen_by: str = "carol") -> str:
        about = self.store.about(row)
        assert about is not None
        return self.deeds(seen_by).holder(self.store, row, about).owner


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(deeds_module, "SHARES_S", 0.0)
    made = World()
    yield made
    made.coordinator.close()


def test_a_value_is_whose_key_signed_it(world: World) -> None:
    world.values("ann").put(KEY, b"hers")
    assert world.owner(ROW) == "ann"
    assert world.values("ann").get(KEY) == b"hers"
    found = world.store.get_noted(ROW)
    assert found is not None
    note = found[1].note
    for row, data, encoding, beside in (
        (ROW, b"forged", Encoding.RAW, note),
        (ROW, b"hers", Encoding.PICKLE, note),
        (keys.named("in/8"), b"hers", Encoding.RAW, note),
        (ROW, b"hers", Encoding.RAW, b""),
    ):
        world.store.put(row, data, encoding=encoding, note=beside)
        assert world.owner(row) == ""


def test_daemons_own_nothing_and_users_write_no_outputs(world: World) -> None:
    out = keys.output(1, 2, 1, 0)
    starter, ann = world.deeds("n1", Role.STARTER), world.deeds("ann")
    world.store.put(ROW, b"x", note=starter.noted(ROW, Encoding.RAW, owner="ann"))
    world.store.put(out, b"x", note=ann.noted(out, Encoding.RAW))
    assert world.owner(ROW) == world.owner(out) == ""
    world.store.put(out, b"x", note=starter.noted(out, Encoding.RAW, owner="ann"))
    assert world.owner(out) == "ann"


def test_what_a_revoked_user_signed_is_nobodys_what_a_node_wrote_before_stays(world: World) -> None:
    dora, node = world.person("dora"), world.person("n9", Role.STARTER)
    out = keys.output(1, 2, 1, 0)
    world.values("dora").put(KEY, b"hers")
    world.store.put(out, b"x", note=world.deeds("n9", Role.STARTER).noted(out, Encoding.RAW, owner="ann"))
    world.revoke(dora, time.time() + 60)
    world.revoke(node, time.time() + 60)
    assert world.owner(ROW) == ""
    assert world.owner(out) == "ann"


def test_what_a_node_wrote_after_it_was_revoked_is_not_believed(world: World) -> None:
    node = world.person("n8", Role.STARTER)
    out = keys.output(1, 2, 1, 0)
    world.revoke(node, time.time() - 60)
    world.store.put(out, b"x", note=world.deeds("n8", Role.STARTER).noted(out, Encoding.RAW, owner="ann"))
    assert world.owner(out) == ""


def test_an_output_that_is_kept_keeps_its_owner(world: World) -> None:
    out = keys.output(1, 2, 1, 0)
    world.store.put(out, b"x", note=world.deeds("n1", Role.STARTER).noted(out, Encoding.RAW, owner="ann"))
    fragment = Fragment(node="n1", outcomes=(Outcome(index=2, outputs=1),))
    assert keep_outputs(world.store, number=1, tail=Tail(next=3, reigns=((0, "g"),)), base=0, fragments=[fragment]) == 1
    final = keys.final(keys.Pointer(sub=1, index=2, n=0, by="g"))
    assert world.owner(final) == "ann"
    ann, bob = world.values("ann"), world.values("bob")
    for values in (ann, bob):
        name = values.deeds.me.name if values.deeds is not None else ""
        values.write_pointers([(keys.named(f"{name}/out"), keys.encode_pointer(keys.Pointer(sub=1, index=2, n=0, by="g")))])
    assert ann.get("ann/out") == b"x"  # its submission is gone
    with pytest.raises(PermissionDenied, match="belongs to bob, and points to what belongs to ann"):
        bob.get("bob/out")


def test_the_setting_lets_others_read_what_nobody_shared_but_neither_write_nor_unpickle(world: World) -> None:
    world.values("ann").put(KEY, b"hers")
    world.values("ann").put("in/8", [1])
    world.store.put(keys.named("old"), b"old")
    bob = world.values("bob")
    for key in (KEY, "old"):
        with pytest.raises(PermissionDenied):
            bob.get(key)
    world.settings = ClusterSettings(values=SHARED)
    assert (bob.get(KEY), bob.get("old")) == (b"hers", b"old")
    with pytest.raises(PermissionDenied, match="pickle"):
        bob.get("in/8")
    for key in (KEY, "old"):
        with pytest.raises(PermissionDenied):
            bob.put(key, b"his")


def test_shares_name_a_key_or_how_keys_begin_and_end_when_they_are_taken_back(world: World) -> None:
    ann, bob, carol = world.values("ann"), world.values("bob"), world.values("carol")
    ann.put(KEY, b"7")
    ann.put("in/70", b"70")
    ann.share(KEY, "bob")
    assert bob.get(KEY) == b"7"
    for values, key in ((bob, "in/70"), (carol, KEY)):
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            values.get(key)
    ann.share("in/7", "all", is_prefix=True)
    assert (bob.get("in/70"), carol.get(KEY)) == (b"70", b"7")
    assert [(one.user, one.key, one.is_prefix) for one in carol.shares()] == [("*", "in/7", True)]
    assert ann.unshare("in/7", "all", is_prefix=True)
    assert not ann.unshare("in/7", "all", is_prefix=True)
    with pytest.raises(PermissionDenied):
        carol.get(KEY)
    assert bob.get(KEY) == b"7"
    forged = ValueShare(owner="ann", user="carol", key="in/", is_prefix=True)
    assert carol.deeds is not None
    carol.deeds.put_share(world.store, forged)  # a direct client of the store writes what he likes
    with pytest.raises(PermissionDenied):
        carol.get(KEY)


def owned(world: World, name: str, *, is_operator: bool = False) -> OwnedStore:
    """A gateway's store for one person."""
    person = Person(name=name, is_operator=is_operator)
    deeds = world.deeds("gateway", Role.SUBMITTER)
    return OwnedStore(world.store, person, deeds, Inputs(world.coordinator), lambda _: None, None)


def test_a_final_value_is_its_owners_to_read_and_to_remove(world: World) -> None:
    out, final = keys.output(1, 2, 1, 0), keys.final(keys.Pointer(sub=1, index=2, n=0, by="g"))
    starter = world.deeds("n1", Role.STARTER)
    world.store.put(out, b"x", note=starter.noted(out, Encoding.RAW, owner="ann"))
    about = world.store.about(out)
    assert about is not None
    world.store.put(final, b"x", note=about.note)
    bobs = owned(world, "bob")
    for call in (bobs.delete, bobs.get, bobs.head, bobs.stream):
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            call(final)
    assert owned(world, "ann").get(final) == (b"x", Encoding.RAW)
    assert owned(world, "ann").delete(final)


def test_several_rows_at_once_are_put_or_none_is(world: World) -> None:
    world.values("ann").put("ann/1", b"hers")
    bob = world.deeds("bob")
    rows = [(keys.named("bob/1"), b"1"), (keys.named("ann/1"), b"2")]
    digests = [(row, deeds_digest(data), "") for row, data in rows]
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        owned(world, "bob").put_many(rows, encoding=Encoding.RAW, overwrite=True, notes=bob.notes(digests, Encoding.RAW))
    assert world.store.head(keys.named("bob/1")) is None
    owned(world, "bob").put_many(rows[:1], encoding=Encoding.RAW, overwrite=True, notes=bob.notes(digests[:1], Encoding.RAW))
    assert world.owner(keys.named("bob/1")) == "bob"


def deeds_digest(data: bytes) -> bytes:
    from hashlib import sha256

    return sha256(data).digest()


def test_shares_among_rows_that_are_none_are_found_and_no_more_than_count_are_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob = world.values("ann"), world.deeds("bob")
    for number in range(3):
        ann.share(f"in/{number}", "bob")
    world.store.put("share/ann/bob/nonsense", b"[" * 100_000)
    world.store.put("share/ann/bob/huge", bytes(100_000))
    world.store.put("share/nobody/at/all/of/them", b"{}")
    assert [one.key for one in ann.shares()] == ["in/0", "in/1", "in/2"]
    assert {one.key for one in bob.shared_with(world.store, "ann", "bob")} == {"in/0", "in/1", "in/2"}
    monkeypatch.setattr(rights, "MOST_SHARES", 5)
    ann.share("in/0", "bob", write=True)
    with pytest.raises(UsageError, match="you share 5 keys and prefixes with bob already"):
        ann.share("in/3", "bob")
    monkeypatch.setattr(rights, "MOST_SHARES", 2)
    assert len(bob.shared_with(world.store, "ann", "bob")) == 2
