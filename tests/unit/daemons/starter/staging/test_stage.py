"""Staging on one node: what stays here, what is given up, and what happens when the room for staged files is full."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.uploads import NoRoom, StagingRoom, StagingShare, Uploads, Wish, disk_bytes
from rmgr.daemons.starter.staging import stage as starter_stage
from rmgr.daemons.starter.staging.inputs import Input, Inputs
from rmgr.daemons.starter.staging.stage import VALUES_CAP_BYTES, FoundInputs, Stager, TaskFiles, Want, to_file
from rmgr.errors import PermissionDenied, ValueTooLarge
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import BlockKey, KeyedPayload
from rmgr.model.tasks.submission import Command, Upload
from tests.harness.claimed import StoreMail, a_key, a_record, claimed
from tests.harness.memory_store import MemoryStore

MIB = 1024 * 1024
DEADLINE_S = 30.0


class Gated(MemoryStore):
    """A store whose values come once their gate is open; it counts them."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.gate = threading.Event()
        self.gate.set()
        self.streams = self.heads = 0

    def stream(self, key: str, **options: float) -> Iterator[bytes] | None:  # type: ignore[override]
        self.streams += 1
        assert self.gate.wait(DEADLINE_S)
        return super().stream(key, **options)  # type: ignore[arg-type]

    def head(self, key: str, **options: float) -> Any:  # type: ignore[override]
        self.heads += 1
        return super().head(key, **options)

    def upload(self, name: str, data: bytes, *, is_dir: bool = False) -> Upload:
        digest = hashlib.sha256(data).hexdigest()
        self.put(keys.upload(digest), data)
        return Upload(name=name, sha256=digest, is_dir=is_dir)


class Node(StoreMail):
    """A Stager with its threads; messages are handled by `until`."""

    def __init__(self, directory: Path, cap_bytes: int) -> None:
        self.store = Gated()
        super().__init__(self.store)
        self.room = StagingRoom(cap_bytes)
        self.uploads = Uploads(directory / "uploads", room=self.room)
        self.stage = directory / "stage"
        self.blocks: dict[BlockKey, ClaimedBlock] = {}
        self.refused: list[tuple[list[int], FetchFailure]] = []
        self.most = 0
        inputs, uploads = Inputs(None), SimpleNamespace(uploads=self.uploads)  # type: ignore[arg-type]
        self.shared = SimpleNamespace(io=self.io, inputs=inputs, fetcher=uploads, claims=None, values_cap=VALUES_CAP_BYTES)
        self.accounts, self.log = None, structlog.get_logger()
        self.stager = Stager(self, self.stage)  # type: ignore[arg-type]

    def pace(self, _block: ClaimedBlock) -> None:
        """It is not known."""

    def unstartable(self, _block: ClaimedBlock, indices: list[int], why: FetchFailure) -> None:
        self.refused.append((indices, why))

    def block(self, submission: int, *uploads: Upload, count: int = 1) -> ClaimedBlock:
        key, command = a_key(submission=submission, count=count), Command(argv=("true",), uploads=uploads)
        made = self.blocks[key] = claimed(key, record=a_record(submission, command))
        return made

    def until(self, condition: Callable[[], Any], *blocks: ClaimedBlock) -> None:  # type: ignore[override]
        """Handles messages and looks at `blocks`, as a node does, until `condition` holds."""

        def look() -> None:
            for block in blocks:
                self.stager.startable(block)
            self.most = max(self.most, disk_bytes(self.stage) + disk_bytes(self.uploads._directory))

        super().until(condition, look)

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
    since_s = node.stager.take(block, 0).since_s  # type: ignore[union-attr]
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
    assert node.room.used_bytes == disk_bytes(node.uploads._directory / block.info.record.command.uploads[0].sha256)


def test_when_the_room_is_full_the_next_task_waits_until_another_has_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_stage, "_ASK_AGAIN_S", 3600.0)
    one, two = node.store.upload("one", bytes(MIB)), node.store.upload("two", bytes([1]) * MIB)
    running = [node.block(1, one), node.block(2, two), node.block(3, two)]
    for block in running:
        node.until(lambda block=block: node.is_here(block), block)  # type: ignore[misc]
        block.take_ready()
    waiting, behind = node.block(4, two), node.block(5, two)
    node.until(lambda: bool(node.stager._short), waiting)
    assert node.stager.kept(waiting, 1e9) == 1, "it has its place in the line here"
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
        node.until(lambda block=block: node.is_here(block), block)  # type: ignore[misc]
        block.take_ready()
        node.stager.forget(block)
        node.quiet()
    assert len(list(node.uploads._directory.iterdir())) == 1
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
        patch.setattr("rmgr.daemons.starter.core.uploads._MAX_UNPACKED", 20 * MIB)
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
    store, room, path = MemoryStore(uuid.uuid4().hex), StagingRoom(20 * MIB), tmp_path / "file"
    share = StagingShare(room, Wish(), "task 1_0", "ann")
    store.put(keys.named("in"), bytes(8 * MIB))
    share.making(1000)
    to_file(store, keys.named("in"), Input(row=keys.named("in"), size=1000), str(path), share)
    assert room.used_bytes >= path.stat().st_size == 8 * MIB
    store.put(keys.named("in"), bytes(32 * MIB))
    with pytest.raises((NoRoom, ValueTooLarge)):
        to_file(store, keys.named("in"), Input(row=keys.named("in"), size=1000), str(path), share)


def test_an_input_that_was_replaced_by_a_larger_one_takes_room_for_what_it_is(tmp_path: Path) -> None:
    store, room = MemoryStore(uuid.uuid4().hex), StagingRoom(20 * MIB)
    store.put(keys.named("in"), bytes(8 * MIB))
    files = TaskFiles(Inputs(None), Uploads(tmp_path / "uploads", room=room), tmp_path / "stage", None)  # type: ignore[arg-type]
    block = claimed(a_key(), record=a_record())
    want = Want(block, 0, Wish(), KeyedPayload(inputs=("in",), outputs=()), 0)
    found = FoundInputs([Input(row=keys.named("in"), size=1000)])
    staged = files.make(store, block, 0, want.wish, want, found)
    assert room.used_bytes >= Path(staged.files[0]).stat().st_size == 8 * MIB
    store.put(keys.named("in"), bytes(32 * MIB))
    with pytest.raises(NoRoom):
        files.make(store, block, 0, want.wish, want, found)
