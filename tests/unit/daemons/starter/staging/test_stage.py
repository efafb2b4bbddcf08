"""Staging on one node: files and their room, inputs of keyed calls read ahead, and keys that are left to the node."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.client.submission.packing import Packed, TaskSpec
from rmgr.client.submission.sender import left_by, may_leave
from rmgr.client.values import Values
from rmgr.config import StarterConfig
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_keyed, encode_block, encode_keyed
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.io import StoreIO, was_quiet
from rmgr.daemons.starter.core.uploads import NoRoom, StagingRoom, StagingShare, Uploads, Wish, disk_bytes
from rmgr.daemons.starter.staging import stage as starter_stage
from rmgr.daemons.starter.staging.inputs import Input, Inputs, OutputClaims
from rmgr.daemons.starter.staging.stage import (
    INLINE_INPUT,
    VALUES_CAP_BYTES,
    FoundInputs,
    LeftKeys,
    Staged,
    Stager,
    TaskFiles,
    Want,
    to_file,
)
from rmgr.errors import CoordinationUnavailable, DataLost, KeyExists, PermissionDenied, RmgrError, StoreUnavailable, ValueTooLarge
from rmgr.model.block import MAX_KEYED_BYTES, MAX_KEYS, MAX_LEFT_KEYS, BlockData, BlockKey, KeyedPayload
from rmgr.model.frames import MAX_INLINE_PAYLOAD, KeyedCall
from rmgr.model.identity import Role
from rmgr.model.line import ClaimStage
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason
from rmgr.model.submission import Command, Upload
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import Fates
from tests.harness.bundles import session_bundles
from tests.harness.claimed import StoreMail, a_key, a_record, claimed
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree

MIB = 1 << 20
DEADLINE_S = 30.0


class Gated(MemoryStore):
    """A store whose values come once their gate is open; it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.streams = self.heads = 0

    def stream(self, key: str, **options: float) -> Iterator[bytes] | None:
        self.streams += 1
        assert self.gate.wait(DEADLINE_S)
        return super().stream(key, **options)

    def head(self, key: str, **options: float) -> Any:
        self.heads += 1
        return super().head(key, **options)

    def upload(self, name: str, data: bytes, *, is_dir: bool = False) -> Upload:
        digest = hashlib.sha256(data).hexdigest()
        self.put(keys.upload(digest), data)
        return Upload(name=name, sha256=digest, is_dir=is_dir)


class Node(StoreMail):
    """A Stager with its threads; messages are handled by `until`."""

    def __init__(self, directory: Path, cap_bytes: int, store: Any = None, values_cap: int = VALUES_CAP_BYTES) -> None:
        self.store = store or Gated()
        super().__init__(self.store)
        self.room = StagingRoom(cap_bytes)
        self.kept = directory / "uploads"
        self.uploads = Uploads(self.kept, room=self.room)
        self.stage = directory / "stage"
        self.blocks: dict[BlockKey, ClaimedBlock] = {}
        self.refused: list[tuple[list[int], FetchFailure]] = []
        self.most = 0
        inputs, uploads = Inputs(None), SimpleNamespace(uploads=self.uploads)
        config = StarterConfig(values_cap_bytes=values_cap)
        self.shared = SimpleNamespace(io=self.io, inputs=inputs, fetcher=uploads, claims=None, config=config)
        self.accounts, self.log = None, structlog.get_logger()
        self.ends, self.stager = self, Stager(self, self.stage)

    def pace(self, _block: ClaimedBlock) -> None:
        """It is not known."""

    def unstartable(self, _block: ClaimedBlock, indices: list[int], why: FetchFailure) -> None:
        self.refused.append((indices, why))

    def block(self, submission: int, *uploads: Upload, count: int = 1) -> ClaimedBlock:
        key, command = a_key(submission=submission, count=count), Command(argv=("true",), uploads=uploads)
        made = self.blocks[key] = claimed(key, record=a_record(submission, command))
        return made

    def until(self, condition: Callable[[], Any], *blocks: ClaimedBlock) -> None:
        """Handles messages and looks at `blocks`, as a node does, until `condition` holds."""

        def look() -> None:
            for block in blocks:
                self.stager.startable(block)
            self.most = max(self.most, self.held_bytes)

        super().until(condition, look)

    @property
    def held_bytes(self) -> int:
        return disk_bytes(self.stage) + disk_bytes(self.kept)

    def is_here(self, block: ClaimedBlock, index: int = 0) -> bool:
        return self.stager.take(block, index) is not None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, 4 * MIB + MIB // 2)
    yield made
    made.store.gate.set()
    made.io.close()


def test_what_is_being_staged_and_what_is_staged_is_kept_for_as_long_as_staging_took(node: Node) -> None:
    block = node.block(1, node.store.upload("x", bytes(100)), count=40)
    assert node.stager.kept(block, 0.0) == 0
    node.store.gate.clear()
    node.until(lambda: node.store.streams, block) if node.stager.startable(block) else None
    assert node.stager.kept(block, 1e9) == 1, "one is being staged: the others would wait for the same upload"
    node.store.gate.set()
    node.until(lambda: node.stager.startable(block) == 16, block)
    since_s = node.stager.take(block, 0).since_s
    assert node.stager.kept(block, since_s) == 16
    assert node.stager.kept(block, since_s + 60) == 0, "no slot was free for them all the time"
    assert node.store.streams == 1


def test_what_arrives_for_a_task_that_was_given_away_is_removed(node: Node) -> None:
    block = node.block(1, node.store.upload("x", bytes(MIB)), count=2)
    node.store.gate.clear()
    node.stager.startable(block)
    node.stager.done(block, 0)
    block.take_ready([0])
    node.store.gate.set()
    node.quiet()
    assert list(node.stage.iterdir()) == []
    node.until(lambda: node.is_here(block, 1), block)
    node.stager.forget(block)
    node.quiet()
    assert list(node.stage.iterdir()) == []
    assert node.room.used_bytes == disk_bytes(node.kept / block.info.record.command.uploads[0].sha256)


def test_when_the_room_is_full_the_next_task_waits_until_another_has_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_stage, "ASK_AGAIN_S", 3600.0)
    one, two = node.store.upload("one", bytes(MIB)), node.store.upload("two", bytes([1]) * MIB)
    running = [node.block(1, one), node.block(2, two), node.block(3, two)]
    for block in running:
        node.until(lambda block=block: node.is_here(block), block)
        block.take_ready()
    waiting, behind = node.block(4, two), node.block(5, two)
    node.until(lambda: node.stager.kept(waiting, 1e9) == 1, waiting)  # it has its place in the line here
    assert node.stager.startable(behind) == node.stager.kept(behind, 1e9) == 0
    node.quiet()
    asked = node.store.heads
    for _ in range(10):
        assert node.stager.startable(waiting) == 0
    assert node.store.heads == asked, "it asks again when something was given back, not before"
    assert not node.refused
    node.stager.done(running[0], 0)
    node.until(lambda: node.is_here(waiting), behind, waiting)
    assert node.most <= node.room.cap_bytes


def test_an_upload_that_nobody_uses_goes_for_one_that_is_needed(node: Node) -> None:
    for number in range(4):
        block = node.block(number + 1, node.store.upload("x", bytes([number]) * (2 * MIB)))
        node.until(lambda block=block: node.is_here(block), block)
        block.take_ready()
        node.stager.forget(block)
        node.quiet()
    assert len(list(node.kept.iterdir())) == 1
    assert node.most <= node.room.cap_bytes


def test_tasks_that_have_not_begun_give_their_room_to_one_before_them(node: Node) -> None:
    upload = node.store.upload("x", bytes(MIB))
    early, late = node.block(1, node.store.upload("y", bytes([1]) * MIB)), node.block(2, upload, count=2)
    node.until(lambda: node.stager.startable(late) == 2, late)
    node.until(lambda: node.is_here(early), early)
    early.take_ready()
    node.stager.forget(early)
    node.until(lambda: node.stager.startable(late) == 2, late, early)
    assert node.most <= node.room.cap_bytes


def test_a_task_that_needs_more_than_all_the_room_is_refused_with_the_limit(node: Node) -> None:
    block = node.block(7, node.store.upload("big", bytes(3 * MIB)))
    node.until(lambda: node.refused, block)
    ((indices, why),) = node.refused
    assert indices == [0]
    assert why.reason is Reason.START_FAILED
    assert not why.blames_node
    assert "7_0 would take 6" in why.error
    assert "staging_cap_bytes" in why.error
    assert list(node.stage.iterdir()) == []


def links(size: int, count: int) -> bytes:
    """An archive with one file of `size` bytes and `count` hard links to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        first = tarfile.TarInfo("data")
        first.size = size
        tar.addfile(first, io.BytesIO(bytes(size)))
        for number in range(count):
            link = tarfile.TarInfo(f"link{number}")
            link.type, link.linkname = tarfile.LNKTYPE, "data"
            tar.addfile(link)
    return buffer.getvalue()


def test_hard_links_in_an_archive_count_as_the_files_that_they_become(node: Node, tmp_path: Path) -> None:
    fits = node.block(1, node.store.upload("fits", links(MIB, 1), is_dir=True))
    node.until(lambda: node.is_here(fits), fits)
    assert node.room.used_bytes >= 3 * MIB
    fits.take_ready()
    node.stager.forget(fits)
    bomb = node.block(2, node.store.upload("bomb", links(MIB, 50), is_dir=True))
    node.until(lambda: node.refused, bomb)
    assert "limit for staged files" in node.refused[0][1].error
    assert node.most <= node.room.cap_bytes
    sha256 = bomb.info.record.command.uploads[0].sha256
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PermissionDenied, match="larger unpacked than it may be"):
        patch.setattr("rmgr.daemons.starter.core.uploads.MAX_UNPACKED", 20 * MIB)
        other = Uploads(tmp_path / "other")
        with other.kept(node.store, sha256, name="bomb") as upload:
            other.copy(upload, tmp_path / "target", name="bomb", is_dir=True)
    assert disk_bytes(tmp_path / "target") <= 21 * MIB


def test_the_room_counts_each_inode_once_and_gives_nothing_that_it_has_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(MIB))
    before = disk_bytes(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("/usr")
    assert disk_bytes(tmp_path) - before <= 4096
    room = StagingRoom(100)
    room.take(60, "one")
    with pytest.raises(NoRoom):
        room.take(41, "two")
    given = room.given
    with pytest.raises(ValueTooLarge, match="two would take 101 of"):
        room.take(41, "two", held_bytes=60)
    room.settle(60, 50)
    assert room.given != given
    room.take(50, "two")
    assert room.used_bytes == 100


def test_a_value_that_grows_after_it_was_looked_at_takes_room_for_what_it_is(tmp_path: Path) -> None:
    store, room, path = MemoryStore(), StagingRoom(20 * MIB), tmp_path / "file"
    share = StagingShare(room, Wish(), "task 1_0", "ann")
    store.put(keys.named("in"), bytes(8 * MIB))
    share.making(1000)
    to_file(store, keys.named("in"), Input(row=keys.named("in"), size=1000), str(path), share)
    assert room.used_bytes >= path.stat().st_size == 8 * MIB
    store.put(keys.named("in"), bytes(32 * MIB))
    with pytest.raises((NoRoom, ValueTooLarge)):
        to_file(store, keys.named("in"), Input(row=keys.named("in"), size=1000), str(path), share)


def test_an_input_that_was_replaced_by_a_larger_one_takes_room_for_what_it_is(tmp_path: Path) -> None:
    store, room = MemoryStore(), StagingRoom(20 * MIB)
    store.put(keys.named("in"), bytes(8 * MIB))
    files = TaskFiles(Inputs(None), Uploads(tmp_path / "uploads", room=room), tmp_path / "stage", None)
    block = claimed(a_key(), record=a_record())
    want = Want(block, 0, Wish(), KeyedPayload(inputs=("in",), outputs=()), 0)
    found = FoundInputs([Input(row=keys.named("in"), size=1000)])
    staged = files.make(store, block, 0, want.wish, want, found)
    assert room.used_bytes >= Path(staged.files[0]).stat().st_size == 8 * MIB
    store.put(keys.named("in"), bytes(32 * MIB))
    with pytest.raises(NoRoom):
        files.make(store, block, 0, want.wish, want, found)


GUID = "g" * 32


class World:
    """A node without threads, a store, and users of a secured or open cluster."""

    def __init__(self, *, secured: bool) -> None:
        self.store = MemoryStore()
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
        self.secured = secured
        calls: list[Callable[[], None]] = []
        self.calls = calls
        self.io = StoreIO(self.store, calls.append, threads=0)
        self.begun: list[int] = []
        self.deeds = self.deeds_of("starter", Role.STARTER)
        self.left = LeftKeys(self.io, OutputClaims(self.store, self.coordinator, self.deeds), lambda want: self.begun.append(want.index))

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
def test_a_claim_waits_while_nobody_can_say_who_has_a_key(world: World, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]) -> None:
    is_away = True
    whole = OutputClaims.claim

    def claim(self: OutputClaims, *arguments: Any) -> Any:
        if is_away:
            raise trouble("away")
        return whole(self, *arguments)

    monkeypatch.setattr(OutputClaims, "claim", claim)
    monkeypatch.setattr("rmgr.daemons.starter.core.io.FIRST_PAUSE_S", 0.0)
    world = World(secured=world.secured)
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


class Counting(MemoryStore):
    """Counts what is read; one key may be damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = 0
        self.read: list[str] = []
        self.damaged = ""
        self.answers = threading.Event()
        self.answers.set()

    def get_noted_many(self, keys: Sequence[str], **options: Any) -> Any:
        self.trips += 1
        self.read += keys
        assert self.answers.wait(DEADLINE_S)
        if self.damaged in keys:
            raise DataLost(f"the stored value of {self.damaged!r} is damaged")
        return super().get_noted_many(keys, **options)


class KeyedNode(Node):
    """Its blocks are of keyed calls whose tasks take no time."""

    refused: dict[int, FetchFailure]

    def __init__(self, directory: Path, cap_bytes: int) -> None:
        super().__init__(directory, 4 << 30, Counting(), cap_bytes)
        self.refused = {}

    def pace(self, _block: ClaimedBlock) -> float:
        return 0.001

    def unstartable(self, _block: ClaimedBlock, indices: list[int], why: FetchFailure) -> None:
        self.refused.update(dict.fromkeys(indices, why))

    def block(self, *tasks: Sequence[str], submission: int = 1) -> ClaimedBlock:
        """One task for each list of input keys."""
        key = a_key(submission=submission, count=len(tasks))
        payloads = tuple(encode_keyed(KeyedPayload(tuple(inputs), ("out",))) for inputs in tasks)
        made = self.blocks[key] = claimed(key, BlockData(keyed=True, payloads=payloads), a_record(submission))
        return made

    def hear_of(self, block: ClaimedBlock) -> None:
        """It is announced, and not the node's own."""
        del self.blocks[block.key]
        self.stager.meet(block)
        self.quiet()

    def values(self, count: int, size: int = 100) -> list[str]:
        """So many keys with values."""
        names = [f"in/{number}" for number in range(count)]
        for number, name in enumerate(names):
            self.store.put(keys.named(name), bytes([number % 256]) * size)
        return names

    @property
    def held_bytes(self) -> int:
        return self.stager.held_bytes

    def run(self, block: ClaimedBlock) -> list[KeyedCall]:
        """Runs all its tasks, as many at once as may start; returns what they were given."""
        calls: list[KeyedCall] = []

        def some() -> bool:
            for index in block.hand_out(self.stager.startable(block)):
                calls.append(call_of(self.stager.take(block, index)))
                block.live -= 1
                self.stager.done(block, index)
            return not block.ready

        self.until(some)
        return calls


def call_of(staged: Staged | None) -> KeyedCall:
    data = staged.payload if isinstance(staged.payload, bytes) else Path(staged.payload).read_bytes()
    return msgspec.msgpack.decode(data, type=KeyedCall)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[KeyedNode]:
    made = KeyedNode(tmp_path, 64 * MIB)
    yield made
    made.io.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[KeyedNode]:
    made = KeyedNode(tmp_path, MIB)
    yield made
    made.io.close()


def test_inputs_of_many_tasks_are_read_together_and_each_once(keyed: KeyedNode) -> None:
    names = keyed.values(200)
    block = keyed.block(*([name] for name in names))
    keyed.store.answers.clear()  # until all that is asked for at once is asked for: else it is up to the machine how much travels together
    keyed.stager.startable(block)
    keyed.store.answers.set()
    keyed.until(lambda: keyed.stager.startable(block) == 128, block)
    keyed.quiet()
    assert sorted(keyed.store.read) == sorted(map(keys.named, names))
    assert keyed.store.trips <= 2 + 5, "two trips may leave before all is asked for; the rest travels as 42 tasks a trip"
    taken = block.hand_out(50)
    block.put_back(taken)  # their worker has died before they began
    calls = keyed.run(block)
    assert [(one.inputs[0].data, one.outputs) for one in calls] == [(bytes([number % 256]) * 100, 1) for number in range(200)]
    assert len(keyed.store.read) == 200, "nothing is read twice for a task that runs here"
    assert keyed.held_bytes == 0


def test_tasks_of_several_blocks_share_a_reading(keyed: KeyedNode) -> None:
    names = keyed.values(40)
    blocks = [keyed.block([name], submission=number) for number, name in enumerate(names, 1)]
    keyed.until(lambda: all(keyed.stager.take(block, 0) for block in blocks), *blocks)
    assert keyed.store.trips < 20


def test_what_is_read_ahead_stays_within_its_memory_and_all_of_it_comes(narrow: KeyedNode) -> None:
    names = narrow.values(60, size=100_000)
    early, late = narrow.block(*([name] for name in names[:30])), narrow.block(*([name] for name in names[30:]), submission=2)
    narrow.until(lambda: narrow.stager.startable(early) >= 4, early, late)
    narrow.quiet()
    assert narrow.stager.read_ahead(late) is False
    calls = narrow.run(early) + narrow.run(late)
    assert [one.inputs[0].data[0] for one in calls] == list(range(60))
    assert narrow.most <= MIB
    assert narrow.held_bytes == 0


def test_a_block_that_is_given_back_or_over_gives_its_memory_back(narrow: KeyedNode) -> None:
    names = narrow.values(8, size=100_000)
    block = narrow.block(*([name] for name in names))
    narrow.until(lambda: narrow.stager.startable(block) >= 4, block)
    narrow.quiet()
    held = narrow.held_bytes
    narrow.stager.done(block, 0)
    assert 0 < narrow.held_bytes < held - 100_000
    narrow.stager.forget(block)
    assert narrow.held_bytes == 0


def test_what_is_being_read_for_a_block_that_has_gone_is_given_back_when_it_comes(narrow: KeyedNode) -> None:
    block = narrow.block(*([name] for name in narrow.values(4, size=100_000)))
    narrow.stager.startable(block)
    assert narrow.held_bytes == 4 * INLINE_INPUT
    narrow.stager.forget(block)
    narrow.quiet()
    assert narrow.held_bytes == 0


def test_the_first_block_reads_a_task_though_others_hold_the_memory(narrow: KeyedNode) -> None:
    names = narrow.values(10, size=100_000)
    first = narrow.block([names[0]])
    late = narrow.block(*([name] for name in names[1:]), submission=2)
    narrow.until(lambda: not narrow.stager.read_ahead(late), late)  # the first one is kept up by something
    narrow.quiet()
    narrow.until(lambda: narrow.stager.startable(first) == 1, first)


def test_a_missing_and_a_damaged_value_fail_their_tasks_and_no_other(keyed: KeyedNode) -> None:
    names = keyed.values(50)
    tasks = [[name] for name in names]
    tasks[7], tasks[9] = ["nowhere"], [names[9], "nowhere"]
    keyed.store.damaged = keys.named(names[20])
    block = keyed.block(*tasks)
    calls = keyed.run(block)
    assert len(calls) == 47
    assert sorted(keyed.refused) == [7, 9, 20]
    assert "'nowhere' does not exist" in keyed.refused[7].error
    assert keyed.refused[20].reason is Reason.DATA_LOST
    assert keyed.held_bytes == 0


@pytest.mark.parametrize("payload", [b"", b"x", b"\x91\x91\xa2\xff\xfe", b"\x97\x90\x90\xc2\x90\xa0\x90" + b"\x91" * 50_000 + b"\x01"])
def test_arguments_that_are_no_keys_end_their_task_and_the_node_goes_on(keyed: KeyedNode, payload: bytes) -> None:
    names = keyed.values(3)
    block = keyed.block(*([name] for name in names))
    assert isinstance(block.payloads, tuple)
    block.payloads = (block.payloads[0], payload, block.payloads[2])
    other = keyed.block([names[0]], submission=2)
    assert (len(keyed.run(block)), len(keyed.run(other))) == (2, 1)
    assert {index: why.reason for index, why in keyed.refused.items()} == {1: Reason.UNTRUSTED}
    assert not keyed.refused[1].blames_node
    assert keyed.stager.outputs_of(block, 1) == ()
    assert keyed.held_bytes == 0


@pytest.mark.parametrize(
    "payload",
    [
        KeyedPayload(("x",) * (MAX_KEYS + 1)),
        KeyedPayload((), ("x",) * (MAX_KEYS + 1)),
        KeyedPayload(("x" * 1000,) * (MAX_KEYED_BYTES // 1000)),
        KeyedPayload((), ("x",) * (MAX_LEFT_KEYS + 1), claims_by="g"),
    ],
    ids=["inputs", "outputs", "bytes", "left"],
)
def test_more_keys_than_a_task_may_have_end_it(keyed: KeyedNode, payload: KeyedPayload) -> None:
    names = keyed.values(1)
    block = keyed.block(names, names)
    block.payloads = (encode_keyed(payload), block.payload(1))
    assert len(keyed.run(block)) == 1
    assert (keyed.refused[0].reason, keyed.refused[0].blames_node) == (Reason.UNTRUSTED, False)


def test_a_task_with_a_great_many_inputs_keeps_no_other_waiting(keyed: KeyedNode) -> None:
    names = keyed.values(2)
    gate = threading.Event()
    read = keyed.store.get_noted_many

    def slow(keys: Sequence[str], **options: Any) -> Any:
        if "name/many/0" in keys or "name/many/999" in keys:
            assert gate.wait(DEADLINE_S)
        return read(keys, **options)

    keyed.store.get_noted_many = slow
    many = [f"many/{number}" for number in range(1000)]
    for name in many:
        keyed.store.put(keys.named(name), b"x")
    hogs = [keyed.block(many, submission=number) for number in range(2, 10)]
    for hog in hogs:
        keyed.stager.startable(hog)
    assert len(keyed.run(keyed.block(*([name] for name in names)))) == 2, "while eight others are read"
    gate.set()
    assert all(len(keyed.run(hog)[0].inputs) == 1000 for hog in hogs)


def test_a_task_whose_arguments_never_came_has_no_output_keys(keyed: KeyedNode) -> None:
    block = keyed.block(["in/0"])
    block.payloads = None  # their row could not be read
    assert keyed.stager.outputs_of(block, 0) == ()


def test_arguments_that_are_no_keys_end_nothing_of_a_block_that_is_only_announced(keyed: KeyedNode) -> None:
    block = keyed.block(["in/0"])
    block.payloads = (b"x",)
    keyed.hear_of(block)
    assert keyed.refused == {}


def test_large_values_are_files_and_those_beside_them_are_in_the_message(keyed: KeyedNode) -> None:
    keyed.store.put("name/large", b"L" * (INLINE_INPUT + 1))
    keyed.store.put("name/small", b"s")
    block = keyed.block(["small", "large"], ["small"])
    keyed.until(lambda: keyed.stager.startable(block) == 2, block)
    small, large = call_of(keyed.stager.take(block, 0)).inputs
    assert (small.data, Path(large.path).read_bytes()) == (b"s", b"L" * (INLINE_INPUT + 1))
    keyed.run(block)
    keyed.quiet()
    assert list(keyed.stage.iterdir()) == []


def test_many_middling_values_of_one_task_do_not_fill_its_message(keyed: KeyedNode) -> None:
    names = keyed.values(300, size=50_000)
    block = keyed.block(names)
    keyed.until(lambda: keyed.stager.startable(block) == 1, block)
    staged = keyed.stager.take(block, 0)
    assert len(staged.payload) <= MAX_INLINE_PAYLOAD
    inputs = call_of(staged).inputs
    found = [one.data or Path(one.path).read_bytes() for one in inputs]
    assert found == [bytes([number % 256]) * 50_000 for number in range(300)]
    keyed.run(block)
    keyed.quiet()
    assert list(keyed.stage.iterdir()) == []


def test_inputs_are_read_while_a_claim_is_under_way_and_given_back_when_it_fails(keyed: KeyedNode) -> None:
    block = keyed.block(*([name] for name in keyed.values(3)))
    keyed.hear_of(block)
    assert keyed.store.read
    keyed.blocks[block.key] = block  # the claim was made
    assert keyed.stager.startable(block) == 3, "nothing is waited for any more"
    other = keyed.block(["in/0"], submission=2)
    keyed.hear_of(other)
    keyed.stager.forget(block)
    keyed.stager.forget(other)
    assert keyed.held_bytes == 0


def test_what_is_missing_before_a_claim_is_made_is_looked_for_again_after_it(keyed: KeyedNode) -> None:
    block = keyed.block(["late"])
    keyed.hear_of(block)
    assert keyed.refused == {}, "the task is not the node's own: nothing of it is ended"
    keyed.store.put("name/late", b"it came")
    keyed.blocks[block.key] = block
    assert keyed.run(block)[0].inputs[0].data == b"it came"


def test_nodes_settle_for_inputs_of_their_own_blocks_and_not_for_those_that_were_only_announced(keyed: KeyedNode) -> None:
    announced, own = keyed.block(keyed.values(1)), keyed.block(keyed.values(1), submission=2)
    del keyed.blocks[announced.key]
    heard: dict[int, bool] = {}
    for block in (announced, own):
        keyed.stager.meet(block)
        message = keyed.messages.get(timeout=DEADLINE_S)
        message()
        heard[block.key.submission] = was_quiet(message)
        assert keyed.stager.startable(block) == 1
    assert heard == {1: True, 2: False}
