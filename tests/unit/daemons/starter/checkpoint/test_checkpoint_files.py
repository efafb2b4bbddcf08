"""Files of a checkpoint into pieces and back, what is refused, and one checkpoint out of several directories."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.daemons.starter.checkpoint import files
from rmgr.daemons.starter.checkpoint.checkpoint import RestoredCheckpoint, newest
from rmgr.daemons.starter.checkpoint.directories import LocalPart
from rmgr.daemons.starter.checkpoint.files import FileEntry, Manifest, united
from rmgr.errors import DataLost, StateConflict, ValueTooLarge
from rmgr.runner.host.files import remove_tree
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
    home, store = a_tree(tmp_path / "a"), MemoryStore("")
    listing = files.scan(home, None)
    assert sorted(listing.left_out) == ["out", "pipe", "up"]
    mine = part(home, store)
    entries = mine.collect(stop=True, max_bytes=1 << 30)
    assert mine.lacks.startswith("left out: out, pipe, up (")
    assert mine.measure() == listing.size_bytes
    assert len({row[0] for entry in entries for row in entry.rows}) == 3, "small files share a piece, a large one has its own"
    manifest = files.read_checkpoint(store, Checkpoint(sub=42, index=0, attempt=1, n=1)) if save(store, entries, 1, 1) else None
    assert manifest is not None
    there = tmp_path / "b"
    there.mkdir()
    (there / "left over").write_text("of somebody")
    part(there, store, attempt=2).restore(manifest, "")
    assert contents(there) == contents(home)


def test_what_its_owner_may_not_read_is_told_before_a_job_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, store = a_tree(tmp_path / "a"), MemoryStore("")
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
    home, store = a_tree(tmp_path / "a"), MemoryStore("")
    mine = part(home, store)
    save(store, mine.collect(stop=True, max_bytes=1 << 30), 1, 1)
    before = store.usage(keys.checkpoints_of(42))[1]
    (home / "script").write_text("#!/bin/bash\n")
    save(store, mine.collect(stop=True, max_bytes=1 << 30), 1, 2)
    assert store.usage(keys.checkpoints_of(42))[1] - before < files.PIECE_BYTES / 100


def test_two_are_kept_with_what_they_need_and_nothing_of_a_later_attempt_is_touched(tmp_path: Path) -> None:
    home, store = tmp_path / "a", MemoryStore("")
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
    monkeypatch.setattr(files, "_PAGE", 2)
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
    home, there, store = tmp_path / "a", tmp_path / "b", MemoryStore("")
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
    home, store = tmp_path / "a", MemoryStore("")
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

    monkeypatch.setattr("rmgr.daemons.starter.checkpoint.directories.scan", slow)
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
