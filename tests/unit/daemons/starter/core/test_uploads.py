"""Uploads on a node are fetched once, bounded, and unpacked safely: no path leads out, and disk, memory and time are limited."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import resource
import tarfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core import uploads as starter_unpack
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


MIB = 1024 * 1024


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, linkname: str = "", **pax: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname, made.pax_headers = kind, size, linkname, pax
    return made


def archive(path: Path, *members: tarfile.TarInfo, data: bytes = b"", layout: int = tarfile.PAX_FORMAT) -> Path:
    with path.open("wb") as file:
        for one in members:
            file.write(one.tobuf(layout))
            if one.isreg():
                file.write(data + b"\0" * (-len(data) % 512))
        file.write(b"\0" * 1024)
    return path


def made_in(target: Path) -> tuple[int, int]:
    """(things, bytes of files) below it."""
    found = list(target.rglob("*"))
    return len(found), sum(one.lstat().st_size for one in found if one.is_file() and not one.is_symlink())


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_unpack, "MAX_UPLOAD_MEMBERS", 50)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.REGTYPE])
def test_links_files_and_directories_count(tmp_path: Path, target: Path, kind: bytes) -> None:
    data = b"x" * 10
    first = member("first", size=len(data))
    others = [member(f"m{n}", kind, size=len(data) if kind == tarfile.REGTYPE else 0, linkname="first") for n in range(60)]
    with pytest.raises(PermissionDenied, match="larger unpacked than it may be"):
        unpack(archive(tmp_path / "a.tar", first, *others, data=data), target, name="up", max_bytes=MIB)
    assert made_in(target)[0] <= 50


def test_directories_on_the_way_count_and_are_checked_for_room(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path / "a.tar", *(member(f"{n}/" + "/".join("d" * 20) + "/f") for n in range(5)))
    with pytest.raises(PermissionDenied, match="larger unpacked"):
        unpack(path, target, name="up", max_bytes=MIB)
    asked: list[int] = []
    one = archive(tmp_path / "b.tar", member("/".join("e" * 20) + "/f"))
    unpack(one, target, name="up", max_bytes=MIB, check=asked.append)
    assert sum(asked) == 20 * 4096


def test_hard_links_count_with_what_they_copy(tmp_path: Path, target: Path) -> None:
    data = b"x" * (100 * 1024)
    links = [member(f"l{n}", tarfile.LNKTYPE, linkname="first") for n in range(40)]
    path = archive(tmp_path / "a.tar", member("first", size=len(data)), *links, data=data)
    asked: list[int] = []
    with pytest.raises(PermissionDenied, match="larger unpacked"):
        unpack(path, target, name="up", max_bytes=MIB, check=asked.append)
    assert made_in(target)[1] <= MIB
    assert sum(asked) <= 2 * MIB


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_negative_size_gives_nothing_back(tmp_path: Path, target: Path, layout: int) -> None:
    data = b"x" * (100 * 1024)
    less = member("less", size=-(10**9) if layout == tarfile.GNU_FORMAT else 0)
    less.pax_headers = {"size": str(-(10**9))} if layout == tarfile.PAX_FORMAT else {}
    links = [member(f"l{n}", tarfile.LNKTYPE, linkname="first") for n in range(40)]
    path = tmp_path / "a.tar"
    path.write_bytes(
        member("first", size=len(data)).tobuf(layout)
        + data
        + b"\0" * (-len(data) % 512)
        + less.tobuf(layout)
        + b"".join(link.tobuf(layout) for link in links)
        + b"\0" * 1024
    )
    with contextlib.suppress(PermissionDenied, DataLost):
        unpack(path, target, name="up", max_bytes=MIB)
    assert made_in(target)[1] <= MIB


@pytest.mark.parametrize("steps", [["d"] * 2000, ["n" * 300]])
def test_paths_have_a_length(tmp_path: Path, target: Path, steps: list[str]) -> None:
    with pytest.raises(PermissionDenied, match="path is too long"):
        unpack(archive(tmp_path / "a.tar", member("/".join(steps))), target, name="up", max_bytes=MIB)
    assert made_in(target) == (0, 0)


def test_headers_have_a_length(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path / "a.tar", member("f", comment="x" * 64 * MIB))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataLost, match="too long"):
        unpack(path, target, name="up", max_bytes=MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_headers_of_headers_have_an_end(tmp_path: Path, target: Path) -> None:
    one = member("f", tarfile.GNUTYPE_LONGNAME, size=2).tobuf(tarfile.GNU_FORMAT) + b"x\0" + b"\0" * 510
    path = tmp_path / "a.tar"
    path.write_bytes(one * 20_000 + member("f").tobuf() + b"\0" * 1024)
    with pytest.raises(DataLost):
        unpack(path, target, name="up", max_bytes=MIB)


def test_what_was_not_meant_to_harm_is_unpacked(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "f").write_bytes(b"f" * 1000)
    (source / "a" / "b" / "link").symlink_to("../f")
    (source / "a" / "hard").hardlink_to(source / "a" / "f")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(source, ".")
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    unpack(tmp_path / "a.tar", target, name="up", max_bytes=MIB)
    assert (target / "a" / "b" / "link").read_bytes() == b"f" * 1000
    assert (target / "a" / "hard").read_bytes() == b"f" * 1000
