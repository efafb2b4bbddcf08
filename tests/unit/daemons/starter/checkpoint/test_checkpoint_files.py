"""The way of a checkpoint; checkpoint files into pieces and back, restored only with the seal of one of the cluster's Starters."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from rmgr.adapters.rpc.ranks import Step
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.seal import CheckpointSeal
from rmgr.daemons.starter.checkpoint import directories, files
from rmgr.daemons.starter.checkpoint.checkpoint import CheckpointKind, Checkpoints, OpenCheckpoint, kind_of
from rmgr.daemons.starter.checkpoint.directories import (
    DirectoryPool,
    LocalPart,
    RemotePart,
    RestoredCheckpoint,
    SaveRequest,
    Untouched,
    answer,
    newest,
    take,
)
from rmgr.daemons.starter.checkpoint.files import (
    OPEN,
    FileEntry,
    Manifest,
    Seals,
    StarterSeals,
    decode_manifest,
    encode_manifest,
    seals_of,
    united,
)
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.errors import DataLost, PermissionDenied, StateConflict, StoreUnavailable, ValueTooLarge
from rmgr.model.block import BlockData
from rmgr.model.identity import Role
from rmgr.model.node import Meta
from rmgr.model.states import Reason
from rmgr.model.submission import FROM_START, Rigid
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine
from rmgr.runtime.story import Stories
from tests.harness.bundles import session_bundles
from tests.harness.claimed import a_key
from tests.harness.memory_store import MemoryStore
from tests.harness.sparing_store import SparingStore


def a_tree(home: Path) -> Path:
    home.mkdir()
    (home / ".rmgr").mkdir()
    (home / ".rmgr" / "request").write_text("not kept")
    (home / "deep" / "er").mkdir(parents=True)
    (home / "deep" / "er" / "small").write_bytes(b"s")
    (home / "deep" / "empty").touch()
    (home / "script").write_text("#!/bin/sh\n")
    (home / "script").chmod(0o750)
    (home / "large").write_bytes(os.urandom(files.PIECE_BYTES + 5))
    (home / "deep" / "link").symlink_to("../script")
    (home / "deep" / "latest").symlink_to(home / "deep" / "er")
    (home / "out").symlink_to("/etc/passwd")
    (home / "up").symlink_to("../secret")
    os.mkfifo(home / "pipe")
    return home


def part(home: Path, store: MemoryStore, attempt: int = 1) -> LocalPart:
    return LocalPart(node="n1", directory=home, account=None, store=store, sub=42, index=0, attempt=attempt)


def save(store: MemoryStore, entries: tuple[FileEntry, ...], attempt: int, n: int) -> str:
    files.write_checkpoint(store, Manifest(sub=42, index=0, attempt=attempt, n=n, made_us=1, nodes=("n1",), size_bytes=0, files=entries))
    return Checkpoint(sub=42, index=0, attempt=attempt, n=n).key


def grow(store: SparingStore, key: str, most: int) -> None:
    """What stands there is larger than any that a Starter writes."""
    store.put(key, bytes(most + 1))
    store.large.add(key)


def contents(home: Path) -> dict[str, tuple[int, object]]:
    found: dict[str, tuple[int, object]] = {}
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        if not name.startswith(".rmgr") and path.name not in {"out", "up", "pipe"}:
            value = os.readlink(path).removeprefix(f"{home}/deep/") if path.is_symlink() else "" if path.is_dir() else path.read_bytes()
            found[name] = (path.lstat().st_mode, value)
    return found


def test_what_is_packed_comes_back_as_it_was_without_what_leads_out(tmp_path: Path) -> None:
    home, store = a_tree(tmp_path / "a"), MemoryStore()
    listing = files.scan(home, None)
    assert sorted(listing.left_out) == ["out", "pipe", "up"]
    mine = part(home, store)
    entries = mine.collect(stop=True, max_bytes=1 << 30)
    assert mine.lacks.startswith("left out: out, pipe, up (")
    assert mine.measure() == listing.size_bytes
    assert len({row[0] for entry in entries for row in entry.rows}) == 3, "small files share a piece, a large one has its own"
    manifest = files.read_checkpoint(store, Checkpoint(sub=42, index=0, attempt=1, n=1)) if save(store, entries, 1, 1) else None
    there = tmp_path / "b"
    there.mkdir()
    (there / "left over").write_text("of somebody")
    part(there, store, attempt=2).restore(manifest, "")
    assert contents(there) == contents(home)


def test_what_its_owner_may_not_read_is_told_before_a_job_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, store = a_tree(tmp_path / "a"), MemoryStore()
    os.chmod(home / "script", 0o200)
    if not os.geteuid():  # root may read everything
        os.chown(home / "script", 4711, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="script"):
        part(home, store).measure()
    mine = part(home, store)
    assert "script" not in {entry.path for entry in mine.collect(stop=True, max_bytes=1 << 30)}
    assert mine.lacks.startswith("left out: out, pipe, script and 1 more (")


def test_an_unchanged_file_is_stored_once(tmp_path: Path) -> None:
    home, store = a_tree(tmp_path / "a"), MemoryStore()
    mine = part(home, store)
    save(store, mine.collect(stop=True, max_bytes=1 << 30), 1, 1)
    before = store.usage(keys.checkpoints_of(42))[1]
    (home / "script").write_text("#!/bin/bash\n")
    save(store, mine.collect(stop=True, max_bytes=1 << 30), 1, 2)
    assert store.usage(keys.checkpoints_of(42))[1] - before < files.PIECE_BYTES / 100


def test_two_are_kept_with_what_they_need_and_nothing_of_a_later_attempt_is_touched(tmp_path: Path) -> None:
    home, store = tmp_path / "a", MemoryStore()
    home.mkdir()
    mine, later = part(home, store), part(home, store, attempt=2)
    for n in range(1, 5):
        (home / "file").write_text(f"{n}")
        save(store, mine.collect(stop=True, max_bytes=100), 1, n)
        files.prune_checkpoints(store, 42, 0, 1)
    assert [str(one) for one in files.checkpoints_of(store, 42, 0)] == ["1.4", "1.3"]
    assert store.usage(keys.checkpoints_of(42, 0, 1))[0] == 2
    (home / "file").write_text("of the next attempt")
    later.collect(stop=True, max_bytes=100)  # its list is not written yet
    (home / "file").write_text("3")
    save(store, mine.collect(stop=True, max_bytes=100), 1, 5)  # a piece that was removed comes back
    files.prune_checkpoints(store, 42, 0, 1)
    assert store.usage(keys.checkpoints_of(42, 0, 2))[0] == 1
    found = RestoredCheckpoint()
    there = tmp_path / "b"
    there.mkdir()
    newest(store, part(there, store, attempt=3), 42, 0, found)
    assert (there / "file").read_text() == "3"


DEFECTS = ["piece", "piece of others", "no piece", "size", "large piece", "list", "deep list", "large list", "path", "link"]


@pytest.mark.parametrize("defect", DEFECTS)
def test_one_that_cannot_be_read_is_told_and_the_one_before_is_taken(tmp_path: Path, defect: str) -> None:
    home, store = tmp_path / "a", SparingStore()
    home.mkdir()
    (home / "file").write_text("older")
    save(store, part(home, store).collect(stop=True, max_bytes=100), 1, 1)
    (home / "file").write_text("newer")
    entries = part(home, store).collect(stop=True, max_bytes=100)
    newer = save(store, entries, 1, 2)
    piece = keys.checkpoint_piece(42, 0, 1, entries[0].rows[0][0])
    match defect:
        case "piece":
            store.delete(piece)
        case "piece of others":
            store.put(piece, b"wrong")
        case "no piece":
            save(store, (FileEntry(path="file", size=5, sha256=entries[0].sha256, rows=(("piece", 0, 5),)),), 1, 2)
        case "size":
            save(store, (FileEntry(path="file", size=4, sha256=entries[0].sha256, rows=entries[0].rows),), 1, 2)
        case "large piece":
            grow(store, piece, files.MOST_PIECE_BYTES)
        case "list":
            store.put(newer, b"{")
        case "deep list":
            store.put(newer, b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
        case "large list":
            grow(store, newer, files.MOST_LIST_BYTES)
        case "path":
            save(store, (FileEntry(path="../file", size=5, sha256=entries[0].sha256, rows=entries[0].rows),), 1, 2)
        case _:
            save(store, (FileEntry(path="passwords", link="/etc/passwd"),), 1, 2)
    found = RestoredCheckpoint()
    there = tmp_path / "b"
    there.mkdir()
    newest(store, part(there, store, attempt=2), 42, 0, found)
    assert (there / "file").read_text() == "older"
    assert found.lost[0].startswith("checkpoint 1.2 cannot be read (DATA_LOST): ")
    assert [path.name for path in there.iterdir()] == ["file"]
    store.put(keys.checkpoint_piece(42, 0, 1, hashlib.sha256(b"older").hexdigest()), b"wrong")
    found = RestoredCheckpoint()
    newest(store, part(there, store, attempt=2), 42, 0, found)
    assert (found.manifest, len(found.lost), list(there.iterdir())) == (None, 2, [])


def test_what_nobody_can_read_pushes_out_nothing_and_keys_of_nothing_stop_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAGE", 2)
    home, store = tmp_path / "a", SparingStore()
    home.mkdir()
    for n in range(1, 4):
        (home / "file").write_text(f"{n}")
        save(store, part(home, store).collect(stop=True, max_bytes=100), 1, n)
    for n in range(7, 12):
        grow(store, Checkpoint(sub=42, index=0, attempt=1, n=n).key, files.MOST_LIST_BYTES)
    store.put(keys.checkpoints_of(42, 0) + "nonsense", b"")
    files.prune_checkpoints(store, 42, 0, 1)
    assert [str(one) for one in files.checkpoints_of(store, 42, 0)] == ["1.11", "1.10", "1.9", "1.8", "1.7", "1.3", "1.2"]
    found = RestoredCheckpoint()
    newest(store, part(home, store, attempt=2), 42, 0, found)
    assert (home / "file").read_text() == "3"
    assert len(found.lost) == 5


def test_no_piece_and_no_list_is_stored_that_nobody_would_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, there, store = tmp_path / "a", tmp_path / "b", MemoryStore()
    home.mkdir()
    there.mkdir()
    sizes = {"a": files.SMALL_BYTES, "b": files.PIECE_BYTES - files.SMALL_BYTES - 1, "grows": 9}
    for name, size in sizes.items():
        (home / name).write_bytes(os.urandom(size))
    monkeypatch.setattr(files, "SMALL_BYTES", files.PIECE_BYTES - files.SMALL_BYTES)  # all are small
    listing = files.scan(home, None)
    with (home / "grows").open("ab") as file:
        file.write(os.urandom(2 * files.PIECE_BYTES))
    put = files.piece_writer(store, 42, 0, 1, set())
    entries = files.pack(home, None, listing, put, max_bytes=1 << 30)
    assert max(store.about_many(store.keys("ckpt/")).values()).size <= files.PIECE_BYTES + files.SMALL_BYTES
    save(store, entries, 1, 1)
    newest(store, part(there, store, attempt=2), 42, 0, RestoredCheckpoint())
    assert contents(there) == contents(home)
    monkeypatch.setattr(files, "MOST_LIST_BYTES", 50)
    with pytest.raises(ValueTooLarge, match="at most 50 bytes are stored: put small files into one"):
        save(store, entries, 1, 2)


def test_too_much_and_what_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, store = tmp_path / "a", MemoryStore()
    home.mkdir()
    (home / "file").write_text("x" * 101)
    with pytest.raises(ValueTooLarge, match="have 101 bytes, at most 100 bytes"):
        part(home, store).collect(stop=True, max_bytes=100)
    scan = files.scan
    (home / "file").write_text("x")

    def slow(directory: Path, account: None) -> files.DirectoryListing:
        found = scan(directory, account)
        (home / "file").write_text(f"{len(found.entries)} more")
        return found

    monkeypatch.setattr("rmgr.daemons.starter.checkpoint.files.scan", slow)
    with pytest.raises(StateConflict, match="changed while"):
        part(home, store).collect(stop=False, max_bytes=100)
    monkeypatch.setattr(files, "MAX_FILES", 0)
    with pytest.raises(ValueTooLarge, match="more than 0 files"):
        scan(home, None)
    with pytest.raises(DataLost, match="format 2"):
        files.decode_manifest(b'{"format":2,"sub":1,"index":0,"attempt":1,"n":1,"made_us":1,"nodes":[],"size_bytes":0,"files":[]}')


def test_what_work_has_put_in_place_of_its_directory_goes_and_nothing_behind_it(tmp_path: Path) -> None:
    kept = a_tree(tmp_path / "kept")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "file").touch()
    for name in ("link", "file", "nothing"):
        with pytest.raises(StateConflict, match="removed its checkpoint directory"):
            files.scan(tmp_path / name, None)
        remove_tree(tmp_path / name)
    assert list(tmp_path.iterdir()) == [kept]
    assert (kept / "script").exists()


def entry(path: str, content: str = "", *, is_dir: bool = False) -> FileEntry:
    return FileEntry(path=path, sha256=content, is_dir=is_dir)


def test_each_node_counts_for_what_it_has_changed() -> None:
    base = [entry("rank0", "old"), entry("rank1", "old"), entry("both", "old"), entry("gone", "old"), entry("same", "old")]
    head = [entry("rank0", "new"), entry("rank1", "old"), entry("both", "head"), entry("same", "old"), entry("d", is_dir=True)]
    other = [entry("rank0", "old"), entry("rank1", "new"), entry("both", "other"), entry("gone", "old"), entry("same", "old")]
    fresh = [*other, entry("d", "file"), entry("new/file", "x")]
    found = {one.path: (one.sha256, one.is_dir) for one in united([head, fresh], base)}
    assert found == {
        "rank0": ("new", False), "rank1": ("new", False), "both": ("head", False), "same": ("old", False),
        "d": ("", True), "new/file": ("x", False),
    }  # fmt: skip
    assert [one.path for one in united([[entry("a", "file")], [entry("a", is_dir=True), entry("a/b", "x")]])] == ["a"]


def test_a_list_of_a_great_many_small_things_is_refused_before_it_is_decoded() -> None:
    entry, most = b'{"path":"a"}', files.MOST_VALUES
    assert len(files.decode_files(b"[" + b",".join([entry] * 1000) + b"]")) == 1000
    pieces = b",".join([b'["",0,0]'] * (most // 4 + 9))
    for data in (b"[" + b",".join([entry] * (most // 2 + 9)) + b"]", b'[{"path":"a","rows":[' + pieces + b"]}]"):
        assert len(data) < files.MOST_LIST_BYTES
        began_s = time.process_time()
        with pytest.raises(DataLost, match="more than rmgr ever writes"):
            files.decode_files(data)
        assert time.process_time() - began_s < 0.3, "decoding it takes a second"


def test_a_list_that_nobody_could_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_VALUES", 20)
    files.encode_files(tuple(FileEntry(path=f"{at}") for at in range(5)))
    with pytest.raises(ValueTooLarge, match="put small files into one"):
        files.encode_files(tuple(FileEntry(path=f"{at}") for at in range(11)))


BUNDLES = session_bundles()
PEOPLE = {"starter": (Role.STARTER, "n1"), "user": (Role.USER, "mallory")}


class Known:
    """Certificates of the cluster, and keys that were revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def find(self, key_id: str, *, at_s: float, zxid: int = 0, timeout_s: float = 10.0) -> Any:
        for who in PEOPLE.values():
            mine = BUNDLES.credentials(*who)
            if mine.identity.key_id == key_id and key_id not in self.revoked:
                from rmgr.adapters.identity.pki import verify_certificate

                return verify_certificate(mine.certificate_pem, BUNDLES.ca.cert_pem, now_s=at_s)
        return f"nobody is known by the key {key_id}"


@pytest.fixture
def known() -> Known:
    return Known()


def seals(known: Known, who: str = "starter", *, cluster_id: str = "c") -> StarterSeals:
    return StarterSeals(BUNDLES.credentials(*PEOPLE[who]), known, cluster_id=cluster_id)


class Job:
    """The directory of a job, and its checkpoints."""

    def __init__(self, tmp_path: Path, mine: Seals, sub: int = 42) -> None:
        self.store = MemoryStore()
        self.seals = mine
        self.sub = sub
        self.home = tmp_path / f"job-{sub}"
        self.home.mkdir()

    def part(self, attempt: int = 1) -> LocalPart:
        return LocalPart(
            node="n1", directory=self.home, account=None, store=self.store, sub=self.sub, index=0, attempt=attempt, seals=self.seals
        )

    def take(self, n: int, text: str, *, by: Seals | None = None, attempt: int = 1) -> Checkpoint:
        (self.home / "file").write_text(text)
        saved = Checkpoint(sub=self.sub, index=0, attempt=attempt, n=n)
        now_us = time.time_ns() // 1000
        told = take(
            [self.part(attempt)], self.store, saved, (), stop=True, limit=1 << 20, made_us=now_us, is_over=lambda: False,
            seals=by or self.seals,
        )
        assert "stored" in told
        return saved

    def restored(self) -> tuple[str, list[str]]:
        """(what the job begins with, "" = nothing; what is told of others)."""
        found = newest(self.store, self.part(attempt=9), self.sub, 0, RestoredCheckpoint())
        left = self.home / "file"
        return left.read_text() if left.exists() else "", found.lost


def test_what_a_starter_took_is_restored(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    saved = job.take(1, "mine")
    (job.home / "file").write_text("changed")
    assert job.restored() == ("mine", [])
    assert answer(job.part(), SimpleNamespace(step="restore", row=saved.key)) == (0, "")


FORGERIES: dict[str, Callable[[Manifest, StarterSeals], Manifest]] = {
    "no Starter has sealed it": lambda manifest, _: msgspec.structs.replace(manifest, seal=None),
    "is not what Starter n1 has sealed": lambda manifest, _: msgspec.structs.replace(manifest, made_us=manifest.made_us + 1),
    "sealed by user mallory": lambda manifest, users: users.seal(manifest),
    "nobody is known": lambda manifest, _: msgspec.structs.replace(manifest, seal=CheckpointSeal(key_id="0" * 32, signature=b"x" * 64)),
}


@pytest.mark.parametrize("why", FORGERIES)
def test_a_forged_one_is_refused_and_the_job_begins_with_the_one_before(tmp_path: Path, known: Known, why: str) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "sealed")
    last = job.take(2, "forged")
    manifest = decode_manifest(job.store.get(last.key)[0])
    job.store.put(last.key, encode_manifest(FORGERIES[why](manifest, seals(known, "user"))))
    text, told = job.restored()
    assert text == "sealed"
    assert [sentence.startswith("checkpoint 1.2 is refused (UNTRUSTED): ") and why in sentence for sentence in told] == [True]
    with pytest.raises(DataLost, match=why):
        answer(job.part(), SimpleNamespace(step="restore", row=last.key))
    job.store.delete(Checkpoint(sub=42, index=0, attempt=1, n=1).key)
    assert job.restored()[0] == ""


def test_files_that_nobody_has_sealed_are_not_even_decoded(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    last = job.take(1, "forged")
    manifest = decode_manifest(job.store.get(last.key)[0])
    row = encode_manifest(msgspec.structs.replace(manifest, seal=None))
    job.store.put(last.key, row.replace(b'"files":[', b'"files":[7,'))
    text, [told] = job.restored()
    assert text == ""
    assert "is refused (UNTRUSTED): no Starter has sealed it" in told


def test_one_of_another_job_attempt_or_cluster_is_refused(tmp_path: Path, known: Known) -> None:
    mallory, job = Job(tmp_path, seals(known), sub=41), Job(tmp_path, seals(known))
    job.take(1, "mine")
    his = mallory.take(1, "his")
    for key in mallory.store.keys("ckpt/"):
        value = mallory.store.get(key)
        job.store.put(key, value[0])
    row = job.store.get(his.key)
    mine = job.store.get(Checkpoint(sub=42, index=0, attempt=1, n=1).key)
    job.store.put(Checkpoint(sub=42, index=0, attempt=1, n=7).key, row[0])
    job.store.put(Checkpoint(sub=42, index=0, attempt=3, n=1).key, mine[0])
    text, told = job.restored()
    assert text == "mine"
    assert ["a copy of checkpoint" in sentence for sentence in told] == [True, True]
    job.seals = seals(known, cluster_id="another")
    assert job.restored()[0] == ""


def test_a_piece_or_a_list_of_a_node_that_was_exchanged_is_not_used(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "mine")
    row = next(key for key in job.store.keys("ckpt/") if keys.parse_checkpoint(key) is None)
    job.store.put(row, b"his")
    assert job.restored()[0] == ""
    remote = RemotePart(node="n2", hold="", peers=None, coordinator=None, store=job.store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemotePart, "stepped", lambda *_args, **_options: (0, row))
        with pytest.raises(DataLost, match="not what that node has stored"):
            remote.collect(stop=True, max_bytes=100)
        patch.setattr(files, "MOST_LIST_BYTES", 2)
        with pytest.raises(DataLost, match="3 bytes, more than rmgr ever writes there"):
            remote.collect(stop=True, max_bytes=100)


def test_forged_ones_push_out_no_sealed_one(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "first")
    forged = encode_manifest(Manifest(sub=42, index=0, attempt=9, n=9, made_us=1, nodes=("n1",), size_bytes=0, files=()))
    for attempt in (1, 8, 9):
        job.store.put(Checkpoint(sub=42, index=0, attempt=attempt, n=99).key, forged)
    job.take(2, "second")
    assert job.restored()[0] == "second"
    assert [str(one) for one in files.checkpoints_of(job.store, 42, 0)] == ["9.99", "8.99", "1.2", "1.1"]


def test_a_revoked_starters_are_refused(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "mine")
    known.revoked.add(BUNDLES.credentials(*PEOPLE["starter"]).identity.key_id)
    assert job.restored()[0] == ""


def test_an_older_release_reads_what_this_one_seals(known: Known) -> None:
    class Older(msgspec.Struct):
        sub: int
        n: int
        format: int = 1

    bare = Manifest(sub=1, index=0, attempt=1, n=2, made_us=1, nodes=("n1",), size_bytes=0, files=())
    old = msgspec.json.decode(encode_manifest(seals(known).seal(bare)), type=Older)
    assert (old.sub, old.n, old.format) == (1, 2, 1)
    before = msgspec.json.encode({**msgspec.to_builtins(bare), "newer": 5})
    with pytest.raises(PermissionDenied):
        seals(known).check(before, decode_manifest(before))


def test_an_open_cluster_seals_nothing() -> None:
    assert seals_of(None, None, Meta(cluster_id="c")) is OPEN


def test_a_directory_is_for_its_kind_and_goes_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[Callable[[], None]] = []
    now_s = [100.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now_s[0])
    pool = DirectoryPool(lambda _delay_s, call: later.append(call), Path.rmdir)
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
        pool.give(1000, place)
    assert len(later) == 1
    assert pool.take(1001) is None
    assert pool.take(1000) == places[2]
    now_s[0] += 0.5
    later.pop()()
    assert len(later) == 1, "one was wanted half a second ago"
    (places[1] / "left").touch()  # by whoever may
    now_s[0] += 1.0
    later.pop()()
    assert [place.exists() for place in places] == [False, True, True]
    assert pool.take(1000) is None
    assert not later


def test_no_more_than_a_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MOST", 1)
    removed: list[Path] = []
    pool = DirectoryPool(lambda _delay_s, _call: None, removed.append)
    pool.give(0, tmp_path / "a")
    pool.give(0, tmp_path / "b")
    assert removed == [tmp_path / "b"]


def test_what_a_cleaner_has_removed_is_not_lent(tmp_path: Path) -> None:
    removed: list[Path] = []

    def remove(place: Path) -> None:
        removed.append(place)
        place.unlink()

    pool = DirectoryPool(lambda _delay_s, _call: None, remove)
    target = tmp_path / "target"
    target.mkdir()
    for name in ("stands", "gone", "dangling"):
        (tmp_path / name).symlink_to(tmp_path if name == "stands" else target)
        pool.give(1, tmp_path / name)
    (tmp_path / "gone").unlink()
    target.rmdir()
    assert pool.take(1) == tmp_path / "stands"
    assert removed == [tmp_path / "dangling", tmp_path / "gone"]
    assert not (tmp_path / "dangling").is_symlink()
    assert pool.take(1) is None
    pool.give(1, tmp_path / "gone")
    pool.forget_lost()
    assert removed[2:] == [tmp_path / "gone"], "its marks are forgotten, too"


@pytest.mark.parametrize("aged", [False, True])
def test_a_directory_that_somebody_has_changed_is_not_as_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aged: bool) -> None:
    monkeypatch.setattr(directories, "blind_ns", lambda _marks: 0 if aged else 10**12)
    untouched = Untouched()

    def lend(name: str) -> Path:
        place = tmp_path / name
        place.mkdir(mode=0o700)
        untouched.made(place)
        _wait_for_the_clock_of(place)
        untouched.lent(place)
        return place

    place = lend("untouched")
    assert untouched.is_as_made(place)
    (lend("left") / "file").touch()
    assert not untouched.is_as_made(tmp_path / "left")
    lend("opened").chmod(0o755)
    assert not untouched.is_as_made(tmp_path / "opened")
    gone = lend("gone")
    gone.rmdir()
    assert not untouched.is_as_made(gone)
    (place / "file").touch()
    (place / "file").unlink()
    assert untouched.is_as_made(place) is False
    untouched.forget(place)
    assert not untouched.is_as_made(place)


def _wait_for_the_clock_of(directory: Path) -> None:
    """Until what changes in the directory has another time stamp."""
    made_ns, probe = directory.lstat().st_ctime_ns, directory.with_name("probe")
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        probe.touch()
        if probe.lstat().st_ctime_ns > made_ns:
            return


K = CheckpointKind


class Way:
    """One checkpoint on a node that is a mock; the test ends its waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kind: CheckpointKind, **rigid: Any) -> None:
        self.answer, self.now_s = 0, 0.0
        self.asked: list[Future[Any]] = []
        self._timers: list[Callable[[], None]] = []
        monkeypatch.setattr(directories, "answered", lambda *_: self.answer)
        monkeypatch.setattr(machine, "monotonic", lambda: self.now_s)
        self.node = Mock(lanes=[])
        self.node.notes.carries.return_value = False
        self.node.jobs.stories = Stories(Mock(after=lambda _s, call: self._timers.append(call), post=lambda job: job()))
        self.some = Checkpoints(self.node, Path("/nonexistent"))
        self.some.directories = Mock(background=self._background)
        self.block = Mock(live=1, ready=[], cancel_words=Mock(return_value=None))
        self.block.info.record.rigid = Rigid(checkpoint=True, **rigid)
        self.block.key = a_key()
        self.block.data = BlockData(resubmit=True)
        self.case = self.some.case(self.block, "", 10_000_000, kind=kind, orders=["o"])

    def _background(self, _job: Callable[[], Any], *, copies: bool = False) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]

    def begin(self) -> None:
        self.some.begin(self.case)

    def measured(self) -> None:
        """Its files are small enough; the request to the program is under way."""
        self.begin()
        self.answers(None)

    def answers(self, value: Any) -> None:
        """Answers the oldest question to the threads that wait."""
        first = self.asked.pop(0)
        if isinstance(value, Exception):
            first.set_exception(value)
        else:
            first.set_result(value)

    def wait(self) -> None:
        """Lets the timers that run end, once each."""
        timers, self._timers = self._timers, []
        for call in timers:
            call()

    def is_silent(self) -> None:
        """Its grace ends without an answer."""
        self.answers(None)  # it was told
        self.now_s = 11.0
        self.wait()

    def ends(self, reason: Reason = Reason.MIGRATED) -> bool:
        """The attempt ends."""
        self.tell = Mock()
        ending = Ending(reason=reason, exit_code=85) if reason is Reason.EXIT_CODE else Ending(reason=reason)
        return self.some.is_awaited(self.block, ending, self.tell)

    @property
    def told(self) -> list[str]:
        """What the job's story was told, without what is only shown."""
        return [call.args[1] for call in self.node.notes.tell.call_args_list if call.args[1]]

    @property
    def left(self) -> list[str]:
        return [call.args[2] for call in self.node.notes.give_up.call_args_list]

    @property
    def ended(self) -> list[tuple[Reason, int]]:
        return [call.args[2:] for call in self.node.stop_tasks.call_args_list]


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Way]:
    return partial(Way, monkeypatch)


def test_a_job_that_goes_on_is_copied_when_it_has_answered(way: Callable[..., Way]) -> None:
    some = way(kind=K.GO_ON)
    some.measured()
    some.answer = 1
    some.wait()
    some.answers(None)  # it was told
    some.answers("stored")
    assert (some.told, some.case.is_over, some.ended, some.left) == (["stored"], True, [], [])
    assert some.block.data.answered
    assert not some.some.is_obeying("o")


def test_a_silent_job_that_goes_on_is_copied_as_it_is_and_again_if_its_files_change(way: Callable[..., Way]) -> None:
    some = way(kind=K.GO_ON)
    some.measured()
    some.is_silent()
    for _ in range(4):
        some.answers(StateConflict("a file changed"))
        some.wait()
    some.answers(StateConflict("a file changed once more"))
    assert some.told == ["checkpoint refused: a file changed once more"]
    assert (some.asked, some.ended, some.left) == ([], [], [])


@pytest.mark.parametrize("kind", [K.GO_ON, K.STOP, K.POLICY])
def test_a_job_whose_files_cannot_be_stored_is_not_disturbed(way: Callable[..., Way], kind: CheckpointKind) -> None:
    some = way(kind=kind)
    some.begin()
    some.answers(ValueTooLarge("too large"))
    assert some.told[0].endswith(" refused: too large")
    assert (len(some.told), some.asked, some.ended, some.case.is_over) == (1, [], [], True)


@pytest.mark.parametrize("kind", [K.STOP, K.POLICY, K.PREEMPT])
def test_a_job_that_may_run_only_once_is_not_stopped(way: Callable[..., Way], kind: CheckpointKind) -> None:
    some = way(kind=kind)
    some.block.data = BlockData(resubmit=False)
    some.begin()
    assert some.told == ["stop refused: its job may run only once (--no-requeue)"]
    assert (some.asked, some.ended) == ([], [])


@pytest.mark.parametrize("kind", list(K))
def test_a_job_that_begins_from_the_start_is_only_stopped_and_nothing_of_it_is_measured(
    way: Callable[..., Way], kind: CheckpointKind
) -> None:
    some = way(kind=kind, restart=FROM_START)
    some.begin()
    assert (some.told == []) == (kind in {K.STOP, K.PREEMPT})
    assert len(some.asked) == (kind is K.STOP)  # the request to the program
    assert bool(some.ended) == (kind is K.PREEMPT)


def test_a_silent_job_is_ended_by_a_person_and_told_to_go_on_by_a_policy(way: Callable[..., Way]) -> None:
    person = way(kind=K.STOP)
    person.measured()
    person.is_silent()
    assert [reason for reason, _ in person.ended] == [Reason.MIGRATED]
    policy = way(kind=K.POLICY)
    policy.measured()
    policy.now_s = 11.0
    policy.wait()
    assert len(policy.asked) == 1, "a request is still being sent"
    policy.answers(None)
    policy.wait()
    policy.answers(None)
    assert policy.told == ["stop refused: it has not saved its state within 10s"]
    assert (policy.ended, policy.left, policy.case.is_over) == ([], [], True)


@pytest.mark.parametrize("kind", [K.STOP, K.POLICY])
def test_a_job_that_has_answered_but_not_ended_is_ended(way: Callable[..., Way], kind: CheckpointKind) -> None:
    some = way(kind=kind)
    some.measured()
    some.answer = 1
    some.wait()
    assert not some.ended
    some.is_silent()
    assert [reason for reason, _ in some.ended] == [Reason.MIGRATED]


@pytest.mark.parametrize("when", ["measured", "asked", "ending", "withdrawn"])
def test_an_order_that_kills_waits_for_nothing(way: Callable[..., Way], when: str) -> None:
    some = way(kind=K.POLICY if when == "withdrawn" else K.STOP)
    some.begin()
    if when != "measured":
        some.answers(None)
    if when in {"ending", "withdrawn"}:
        some.is_silent()
    some.some.order(some.block, "kill", Mock(detail="", extra={"then": "stop", "kill": "1", "grace_us": "5"}))
    assert some.ended[-1] == (Reason.PREEMPTED, 5)
    assert some.some.is_obeying("kill")
    while some.asked:  # what was under way changes nothing
        some.answers(None)
    some.wait()
    assert some.told == []
    assert some.ends(Reason.PREEMPTED)
    some.answers("")
    assert some.left == [""]


@pytest.mark.parametrize("when", ["measured", "asked", "silent"])
def test_a_stopped_attempt_leaves_when_what_it_saved_is_stored(way: Callable[..., Way], when: str) -> None:
    some = way(kind=K.STOP)
    some.measured()
    some.is_silent() if when == "silent" else some.answers(None)
    assert some.ends(Reason.EXIT_CODE)
    assert some.left == []
    some.answers(StoreUnavailable("away"))
    assert some.left == []
    some.wait()
    some.answers("stored")
    assert (some.left, some.told) == (["stored"], [])


def test_an_attempt_leaves_with_the_checkpoint_before_it_if_this_one_is_not_stored(way: Callable[..., Way]) -> None:
    some = way(kind=K.STOP)
    some.measured()
    some.is_silent()
    assert some.ends()
    some.asked[-1].set_exception(StateConflict("changed"))
    assert [words.endswith("was not stored: changed") for words in some.left] == [True]


def test_a_cancel_and_a_lost_node_win_over_a_stop_whose_files_are_being_stored(way: Callable[..., Way]) -> None:
    for reason in (Reason.USER_CANCEL, Reason.NODE_LOST):
        some = way(kind=K.STOP)
        some.measured()
        some.is_silent()
        assert not some.some.lose(some.block, "n2"), "it has not ended"
        assert some.ends()
        if reason is Reason.NODE_LOST:
            assert some.some.lose(some.block, "n2")
        else:
            some.block.cancel_words = Mock(return_value="cancelled")
        some.asked[-1].set_result("stored")
        assert (some.case.ending.reason, some.tell.call_count, some.left) == (reason, 1, [])


def test_a_job_that_was_asked_only_to_save_and_wants_to_run_again_is_given_up(way: Callable[..., Way]) -> None:
    some = way(kind=K.GO_ON)
    some.measured()
    assert some.ends(Reason.EXIT_CODE)
    some.asked[-1].set_result("stored")
    assert (some.left, some.case.is_over) == (["stored"], True)


def test_a_stop_takes_over_the_orders_of_a_checkpoint_under_way_and_a_forgotten_one_is_over(way: Callable[..., Way]) -> None:
    some = way(kind=K.GO_ON)
    some.measured()
    some.some.order(some.block, "stop", Mock(detail="", extra={"then": "stop"}))
    assert some.case.is_over
    assert some.some.is_obeying("o")
    assert some.some.is_obeying("stop")
    some.some.forget(some.block)
    while some.asked:
        some.answers(None)
    some.wait()
    assert not some.some.is_obeying("stop")
    assert (some.told, some.ended, some.left, len(some.node.jobs.stories)) == ([], [], [], 0)


def test_periodic_checkpoints_of_a_job_that_shares_its_cores_count_served_time() -> None:
    timers: list[tuple[float, Callable[[], None]]] = []
    served_us: list[int | None] = [0]
    loop = Mock(after=lambda delay_s, call: timers.append((delay_s, call)))
    jobs = Mock(stories=Stories(loop), served_us=lambda _block: served_us[0])
    some = Checkpoints(Mock(jobs=jobs), Path("/nonexistent"))
    begun: list[OpenCheckpoint] = []
    some.begin = begun.append
    some.case = Mock()
    block = Mock(live=True)
    block.info.record.rigid = Rigid(checkpoint=True, checkpoint_every_us=10_000_000)
    some.started(block)

    def wakes(now_served_us: int | None) -> tuple[int, float]:
        served_us[0] = now_served_us
        _, call = timers.pop()
        call()
        return len(begun), timers[-1][0]

    assert timers[0][0] == 10
    assert wakes(4_000_000) == (0, 6)
    assert wakes(9_900_000) == (0, 0.5)
    assert wakes(10_200_000) == (1, 10)
    assert wakes(15_200_000) == (1, 5)
    assert wakes(20_200_000) == (2, 10)
    assert wakes(None) == (3, 10)  # the time on the wall, where it has its cores for itself


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ({}, K.GO_ON),
        ({"unsaved": "go-on"}, K.GO_ON),
        ({"kill": "1"}, K.GO_ON),
        ({"then": "stop"}, K.STOP),
        ({"then": "stop", "unsaved": "go-on"}, K.POLICY),
        ({"then": "stop", "unsaved": "go-on", "kill": "1"}, K.PREEMPT),
    ],
)
def test_the_kind_is_what_was_asked(order: dict[str, str], kind: CheckpointKind) -> None:
    case = OpenCheckpoint(block=Mock(), number=1, why="", grace_us=0, made_us=0, kind=kind_of(order))
    assert (case.kind, case.is_stop, case.kills) == (kind, kind is not K.GO_ON, kind is K.PREEMPT)


def test_every_node_tells_the_program_the_end_of_its_grace_by_its_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SaveRequest(number=1, stop=True, end_s=machine.monotonic() + 30)
    wall_us = machine.wall_us
    monkeypatch.setattr(machine, "wall_us", lambda: wall_us() - 3_600_000_000)
    assert answer(part(tmp_path, MemoryStore()), Step(step="ask", number=1, stop=True, left_us=asked.left_us())) == (0, "")
    told = json.loads((tmp_path / ".rmgr" / "request").read_text())
    assert told["deadline"] == pytest.approx(time.time() - 3600 + 30, abs=20)
