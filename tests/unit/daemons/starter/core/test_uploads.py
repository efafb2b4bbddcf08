"""Uploads on a node: fetched once, bounded, and unpacked where nothing can lead out."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core.uploads import Uploads, unpack
from rmgr.errors import DataLost, PermissionDenied, RowGone, StoreUnavailable
from tests.harness.memory_store import MemoryStore

DIRECTORY, CHARACTER, FIFO = tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE


def tar(*members: tuple[str, bytes | str] | tarfile.TarInfo) -> bytes:
    """(name, bytes) a file of mode 4777, (name, text) a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for one in members:
            if isinstance(one, tarfile.TarInfo):
                archive.addfile(one)
                continue
            name, content = one
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size, member.mode = len(content), 0o4777
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def special(name: str, kind: bytes, linkname: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, linkname
    return member


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "work" / "code"
    made.mkdir(parents=True)
    return made


def place(uploads: Uploads, store: MemoryStore, sha256: str, target: Path, *, name: str, is_dir: bool) -> None:
    """Puts an upload at `target`, as the work directory of a task gets it."""
    with uploads.kept(store, sha256, name=name) as upload:
        uploads.copy(upload, target, name=name, is_dir=is_dir)


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(data)
    return path


def test_files_directories_and_links_are_made_without_special_bits(tmp_path: Path, target: Path) -> None:
    data = tar(("sub/f", b"x"), ("link", "sub/f"), special("empty", DIRECTORY), special("again", tarfile.LNKTYPE, "sub/f"))
    unpack(put(tmp_path, data), target, name="code", max_bytes=100)
    assert (target / "link").read_bytes() == b"x"
    assert os.readlink(target / "link") == "sub/f"
    assert (target / "empty").is_dir()
    assert (target / "sub" / "f").stat().st_mode & 0o7777 == 0o755
    assert (target / "again").read_bytes() == b"x"
    assert (target / "again").stat().st_ino != (target / "sub" / "f").stat().st_ino


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("../evil", b"x")], "leads out of the work directory"),
        ([("a/../../evil", b"x")], "leads out of the work directory"),
        ([("/etc/evil", b"x")], "leads out of the work directory"),
        ([("link", "/etc/passwd")], "leads out of it"),
        ([("a/link", "../../x")], "leads out of it"),
        ([("dot", "."), ("up", "dot/.."), ("up/evil", b"x")], "two things of one name"),  # the chain that fools a check of texts
        ([("d", "sub"), ("d/evil", b"x")], "two things of one name"),
        ([("f", b"x"), ("f/g", b"y")], "no directory"),
        ([("f", b"x"), ("f", b"y")], "two things of one name"),
        ([special("null", CHARACTER)], "no file, directory or link"),
        ([special("pipe", FIFO)], "no file, directory or link"),
        ([special("hard", tarfile.LNKTYPE, "/etc/passwd")], "leads out of the work directory"),
        ([special("hard", tarfile.LNKTYPE, "nothing")], "no file before it"),
        ([("s", "x"), special("hard", tarfile.LNKTYPE, "s")], "no file before it"),
        ([("big", b"x" * 2000)], "larger unpacked"),
    ],
)
def test_what_reaches_out_is_refused_by_name_and_leaves_nothing_outside(
    tmp_path: Path, target: Path, members: list[tuple[str, bytes | str] | tarfile.TarInfo], told: str
) -> None:
    with pytest.raises(PermissionDenied, match=told) as caught:
        unpack(put(tmp_path, tar(*members)), target, name="code", max_bytes=1000)
    assert "the upload code" in str(caught.value)
    assert not [path for path in tmp_path.rglob("evil") if not path.is_relative_to(target)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "work"]


def test_bytes_that_are_no_archive_are_lost_data(tmp_path: Path, target: Path) -> None:
    with pytest.raises(DataLost, match="code cannot be unpacked"):
        unpack(put(tmp_path, b"not an archive" * 100), target, name="code", max_bytes=1000)


# -- the cache --------------------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    """A store that counts what is fetched, and may be away."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.streams = 0
        self.away = 0

    def stream(self, key: str, **options: float) -> Iterator[bytes] | None:  # type: ignore[override]
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        self.streams += 1
        return super().stream(key, **options)  # type: ignore[arg-type]

    def upload(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.put(keys.upload(digest), data)
        return digest


def test_an_upload_is_fetched_once_for_all_tasks_of_a_node(tmp_path: Path) -> None:
    store, uploads = Counting(), Uploads(tmp_path / "cache")
    file, tree = store.upload(b"#!/bin/sh\n"), store.upload(tar(("a/b", b"1")))
    gate = threading.Barrier(8)

    def task(number: int) -> None:
        gate.wait(60)
        work = tmp_path / f"work{number}"
        work.mkdir()
        place(uploads, store, file, work / "tool", name="tool", is_dir=False)
        place(uploads, store, tree, work / "lib", name="lib", is_dir=True)
        (work / "tool").write_bytes(b"spoilt by a task")
        (work / "lib" / "a" / "b").write_bytes(b"spoilt by a task")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(task, range(8)))
    assert store.streams == uploads.fetched == 2
    place(uploads, store, file, tmp_path / "late", name="tool", is_dir=False)
    assert (tmp_path / "late").read_bytes() == b"#!/bin/sh\n"
    assert os.access(tmp_path / "late", os.X_OK)


def test_the_cache_is_bounded_and_throws_out_what_was_not_used_longest(tmp_path: Path) -> None:
    store, uploads = Counting(), Uploads(tmp_path / "cache", cap_bytes=250)
    one, two, three = (store.upload(bytes([n]) * 100) for n in range(3))
    for number, sha256 in enumerate((one, two, one, three, one, two)):
        place(uploads, store, sha256, tmp_path / str(number), name="x", is_dir=False)
    assert store.streams == 4, "two was thrown out for three"
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 250
    huge = store.upload(b"x" * 1000)
    place(uploads, store, huge, tmp_path / "huge", name="x", is_dir=False)
    assert (tmp_path / "huge").stat().st_size == 1000
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 250


def test_what_is_absent_exchanged_or_away_is_not_kept(tmp_path: Path) -> None:
    store, uploads = Counting(), Uploads(tmp_path / "cache")
    with pytest.raises(RowGone, match="is not in the data store"):
        place(uploads, store, "0" * 64, tmp_path / "x", name="x", is_dir=False)
    store.put(keys.upload("1" * 64), b"something else")
    with pytest.raises(PermissionDenied, match="is not what its name says"):
        place(uploads, store, "1" * 64, tmp_path / "x", name="x", is_dir=False)
    sha256 = store.upload(b"there")
    store.away = 1
    with pytest.raises(StoreUnavailable):
        place(uploads, store, sha256, tmp_path / "x", name="x", is_dir=False)
    place(uploads, store, sha256, tmp_path / "x", name="x", is_dir=False)
    assert (tmp_path / "x").read_bytes() == b"there"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [sha256]


def test_a_row_that_grows_after_it_was_looked_at_takes_no_more_room_than_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, uploads = Counting(), Uploads(tmp_path / "cache")
    exchanged = store.upload(b"small")
    chunks = iter([b"s" * 5, b"x" * 1000])

    def stream(_key: str, **_: object) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            assert chunk == b"s" * 5, "all of it is written"

    monkeypatch.setattr(store, "stream", stream)
    with pytest.raises(PermissionDenied, match="is not what its name says: it has grown from 5 bytes"):
        place(uploads, store, exchanged, tmp_path / "file", name="file", is_dir=False)
    assert os.listdir(tmp_path / "cache") == []
    assert uploads.room.used_bytes == 0
