"""Output keys that are left to a node: when a task may begin, when it may be committed, and who is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.client.ports import TaskSpec
from rmgr.client.submission.packing import Packed
from rmgr.client.submission.sender import left_by, may_leave
from rmgr.client.values import Values
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_keyed, encode_block, encode_keyed
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.uploads import Wish
from rmgr.daemons.starter.staging.inputs import OutputClaims
from rmgr.daemons.starter.staging.stage import LeftKeys, Want
from rmgr.errors import CoordinationUnavailable, KeyExists, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockData, KeyedPayload
from rmgr.model.wire.line import ClaimStage
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import Fates
from tests.harness.bundles import session_bundles
from tests.harness.claimed import a_key, a_record, claimed
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree

GUID = "g" * 32


class World:
    """A node without threads, a store, and users of a secured or open cluster."""

    def __init__(self, *, secured: bool) -> None:
        self.store = MemoryStore("")
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
        self.secured = secured
        calls: list[Callable[[], None]] = []
        self.calls = calls
        self.io = StoreIO(self.store, calls.append, threads=0)
        self.begun: list[int] = []
        self.deeds = self.deeds_of("starter", Role.STARTER)
        self.left = LeftKeys(
            self.io, OutputClaims(self.store, self.coordinator, self.deeds), lambda want: self.begun.append(want.index)
        )

    def deeds_of(self, name: str, role: Role = Role.USER) -> Deeds | None:
        if not self.secured:
            return None
        credentials: Credentials = session_bundles().credentials(role, name)
        publish(self.coordinator, credentials)
        return Deeds(Trust(ZooKeeperKeys(self.coordinator), credentials.ca_pem), "c", credentials, settings=ClusterSettings)

    def values(self, user: str) -> Values:
        return Values(self.store, Fates(self.store, self.coordinator), self.deeds_of(user))

    def want(self, *outputs: str, user: str = "ann", signer: str = "", number: int = 1, stage: ClaimStage = ClaimStage.HERE) -> Want:
        """A task as its Submitter leaves it."""
        packed = Packed(TaskSpec(keyed=True), 0, (encode_keyed(KeyedPayload(("in",), outputs)),), solid=False, row="", to_row=False)
        payload = left_by(packed, self.values(signer or user), number, GUID).block.payloads[0]
        return self.wanted(bytes(payload), user, number, stage)

    def wanted(self, payload: bytes, user: str, number: int, stage: ClaimStage) -> Want:
        block = claimed(a_key(submission=number), BlockData(keyed=True, payloads=(payload,)), a_record(number, user=user))
        block.claims = stage
        return Want(block, 0, Wish(), decode_keyed(payload), 0)

    def run(self) -> None:
        while self.calls or self.io.step():
            if self.calls:
                self.calls.pop(0)()

    def refusal(self, want: Want) -> Exception | None:
        """What the end of the task is told; it is told once."""
        told: list[Exception | None] = []
        self.left.when_claimed(want.block, want.index, told.append)
        self.run()
        (refusal,) = told
        return refusal

    def pointer(self, key: str) -> Pointer | None:
        found = self.store.get(keys.named(key))
        return keys.decode_pointer(found[0]) if found is not None and found[1] is Encoding.POINTER else None


@pytest.fixture(params=["open", "secured"])
def world(request: pytest.FixtureRequest) -> World:
    return World(secured=request.param == "secured")


def test_a_task_whose_client_says_nothing_begins_when_this_node_has_claimed_its_keys(world: World) -> None:
    want = world.want("out/1", "out/2", stage=ClaimStage.AWAITED)
    world.left.begin(want)
    world.run()
    assert (world.begun, world.pointer("out/1")) == ([], None)
    world.left.advance(want.block, ClaimStage.HERE)
    world.run()
    assert world.begun == [0]
    assert [world.pointer(key) for key in ("out/1", "out/2")] == [Pointer(sub=1, index=0, n=n, by=GUID) for n in range(2)]
    assert world.refusal(want) is None


def test_a_task_begins_when_it_is_decided_and_ends_when_its_keys_are_claimed(world: World) -> None:
    want = world.want("out", stage=ClaimStage.AWAITED)
    world.left.begin(want)
    world.left.advance(want.block, ClaimStage.DECIDED)
    assert world.begun == [0]
    told: list[Exception | None] = []
    world.left.when_claimed(want.block, 0, told.append)
    world.run()
    assert told == []
    world.left.advance(want.block, ClaimStage.MADE)
    assert told == [None]
    world.left.advance(want.block, ClaimStage.HERE)
    world.run()
    assert (world.begun, told, world.pointer("out")) == ([0], [None], None), "it is told once, and nothing is done after the last word"


def test_what_a_client_has_decided_and_not_made_before_it_died_is_claimed_here(world: World) -> None:
    want = world.want("out", stage=ClaimStage.AWAITED)
    world.left.begin(want)
    for stage in (ClaimStage.DECIDED, ClaimStage.HERE):
        world.left.advance(want.block, stage)
    assert world.refusal(want) is None
    assert world.pointer("out") == Pointer(sub=1, index=0, n=0, by=GUID)
    assert world.begun == [0]


def test_a_key_that_somebody_took_before_is_refused_and_stays_as_it_is(world: World) -> None:
    world.values("bob").put("out", "bob's")
    want = world.want("free", "out")
    world.left.begin(want)
    refusal = world.refusal(want)
    assert isinstance(refusal, KeyExists)
    assert "'out'" in str(refusal)
    assert world.values("bob").get("out") == "bob's"
    assert world.begun == [0], "it is told that it cannot begin"


def test_a_claim_that_the_client_has_made_already_is_found_to_be_the_same(world: World) -> None:
    want = world.want("out")
    world.values("ann").claim_pointers([("out", Pointer(sub=1, index=0, n=0, by=GUID))], overwrite=False)
    world.left.begin(want)
    assert world.refusal(want) is None


@pytest.mark.parametrize("signer", ["bob", ""])
def test_nothing_is_written_that_the_user_of_the_task_has_not_signed(signer: str) -> None:
    world = World(secured=True)
    want = world.want("out", user="ann", signer="bob")
    if not signer:
        bare = encode_keyed(KeyedPayload(("in",), ("out",), claims_by=GUID))
        want = world.wanted(bare, "ann", 1, ClaimStage.HERE)
    world.left.begin(want)
    refusal = world.refusal(want)
    assert isinstance(refusal, PermissionDenied)
    assert "not signed by ann" in str(refusal)
    assert world.pointer("out") is None


def test_a_deed_for_another_task_is_worth_nothing() -> None:
    world = World(secured=True)
    want = world.want("out", number=1)
    moved = world.wanted(encode_keyed(want.keyed), "ann", 2, ClaimStage.HERE)
    world.left.begin(moved)
    assert isinstance(world.refusal(moved), PermissionDenied)
    assert world.pointer("out") is None


@pytest.mark.parametrize("key", ["", "a\0b", "x" * 2000, "spoilt"])
def test_what_is_no_key_and_what_is_no_pointer_concerns_its_own_task_only(world: World, key: str) -> None:
    world.store.put(keys.named("spoilt"), b"{", encoding=Encoding.POINTER)
    bad = world.wanted(encode_keyed(KeyedPayload((), (key,), claims_by=GUID)), "eve", 2, ClaimStage.HERE)
    good = world.want("out")
    for want in (bad, good):  # they go to the store together
        world.left.begin(want)
    assert world.refusal(good) is None
    assert world.pointer("out") == Pointer(sub=1, index=0, n=0, by=GUID)
    assert isinstance(world.refusal(bad), RmgrError)


@pytest.mark.parametrize("trouble", [CoordinationUnavailable, StoreUnavailable])
def test_a_claim_waits_while_nobody_can_say_who_has_a_key(
    world: World, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]
) -> None:
    is_away = True
    whole = OutputClaims.claim

    def claim(self: OutputClaims, *arguments: Any) -> Any:
        if is_away:
            raise trouble("away")
        return whole(self, *arguments)

    monkeypatch.setattr(OutputClaims, "claim", claim)
    monkeypatch.setattr("rmgr.daemons.starter.core.io._FIRST_PAUSE_S", 0.0)
    world.io._pause_s = 0.0
    want = world.want("out")
    world.left.begin(want)
    assert world.io.step()
    assert (world.begun, world.calls) == ([], [])
    is_away = False
    assert world.refusal(want) is None
    assert world.begun == [0]


def test_all_that_may_be_left_fits_into_a_znode() -> None:
    world = World(secured=True)
    names = tuple(f"{n}{'o' * 999}" for n in range(8))
    payload = encode_keyed(KeyedPayload((), names))
    while len(payload) < 8 * 1024 - 200:
        payload = encode_keyed(KeyedPayload((*decode_keyed(payload).inputs, "i" * 100), names))
    block = Packed(TaskSpec(keyed=True), 0, (payload,), solid=False, row="", to_row=False)
    assert may_leave(block)
    left = left_by(block, world.values("a" * 60), 10**9, GUID).block
    assert len(encode_block(BlockData(keyed=True, payloads=left.payloads))) < MAX_ZNODE_BYTES - 2048


def test_only_few_new_keys_are_left_to_a_node() -> None:
    def packed(*tasks: KeyedPayload, keyed: bool = True, to_row: bool = False) -> Packed:
        return Packed(TaskSpec(keyed=keyed), 0, tuple(map(encode_keyed, tasks)), solid=False, row="", to_row=to_row)

    few, many = (KeyedPayload((), tuple(f"out/{n}" for n in range(count))) for count in (8, 9))
    assert may_leave(packed(few))
    assert not may_leave(packed(many))
    assert not may_leave(packed(KeyedPayload(("x" * 1000,) * 9, ("out",)))), "its deeds would not fit into the znode beside it"
    assert not may_leave(packed(KeyedPayload((), ("out",), overwrite=True)))
    assert not may_leave(packed(few, keyed=False))
    assert not may_leave(packed(few, to_row=True))
