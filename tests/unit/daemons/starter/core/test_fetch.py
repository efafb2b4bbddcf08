"""What work needs is fetched once, compared and bounded: arguments and files, in parts, linked or copied, and uploads, unpacked safely."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import mmap
import os
import resource
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.client.content import hash_of, parts_of, put_rows
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_payloads
from rmgr.daemons.starter.core import fetch
from rmgr.daemons.starter.core import uploads as starter_unpack
from rmgr.daemons.starter.core.fetch import (
    ArgumentsPiece,
    Blob,
    Fetched,
    Fetcher,
    FetchFailure,
    KeptFile,
    OwnPiece,
    check_content,
    read_arguments,
)
from rmgr.daemons.starter.core.uploads import Uploads, unpack
from rmgr.errors import DataLost, PermissionDenied, RowGone, StoreUnavailable, ValueTooLarge
from rmgr.model.states import Reason
from tests.harness.claimed import StoreMail
from tests.harness.memory_store import MemoryStore
from tests.harness.sparing_store import SparingStore
from tests.harness.store_adapters import flip_bit, pattern, value_file

LARGE = (pattern(700_000), b"", pattern(300_000, 1), pattern(70_000, 2))
SMALL = (b"a" * 100,) * 3
MANY = tuple(pattern(40_000, seed) for seed in range(20))


def write(store: Store, payloads: tuple[bytes, ...]) -> str:
    parts = parts_of(payloads)
    assert decode_payloads(b"".join(parts)) == payloads
    key = keys.arguments(42, 0, hash_of(parts))
    put_rows(store, [(key, parts)])
    return key


def values(arguments: object) -> tuple[bytes, ...]:
    return tuple(one.read() if isinstance(one, ArgumentsPiece) else one for one in arguments)


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = SqliteStore(tmp_path / "store.db") if request.param == "sqlite" else MemoryStore(str(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("payloads", [LARGE, SMALL, MANY], ids=["large", "small", "many"])
def test_arguments_come_as_they_were_given_and_leave_no_file(store: Store, tmp_path: Path, payloads: tuple[bytes, ...]) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    arguments = read_arguments(store, write(store, payloads), folder, check_content)
    assert values(arguments) == payloads
    assert len(os.listdir(folder)) == (payloads is LARGE), "large ones are pieces of one file, others are in memory"
    del arguments
    assert os.listdir(folder) == []


def test_what_is_not_what_its_name_says_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    with SqliteStore(tmp_path / "store.db") as store:
        key = write(store, LARGE)
        other = keys.arguments(42, 0, "0" * 64)
        store.put(other, b"".join(parts_of(LARGE)))
        with pytest.raises(PermissionDenied):
            read_arguments(store, other, folder, check_content)
        store.put("args/x", pattern(2_000_000))
        with pytest.raises(DataLost, match="cannot be read"):
            read_arguments(store, "args/x", folder, check_content)
        flip_bit(value_file(tmp_path / "store.db", key), 500_000)
        with pytest.raises(DataLost):
            read_arguments(store, key, folder, check_content)
        with pytest.raises(DataLost):
            read_arguments(store, "args/none", folder, check_content)
    assert os.listdir(folder) == []


def test_a_large_row_that_claims_to_be_of_many_small_ones_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    with SqliteStore(tmp_path / "store.db") as store:
        honest = (pattern(1000),) * 255 + (pattern(2_000_000),)
        assert values(read_arguments(store, write(store, honest), folder, check_content)) == honest
        monkeypatch.setattr("rmgr.daemons.starter.core.fetch.MOST_SMALL_BYTES", 1_000_000)
        store.put("args/x", b"\xdd\xff\xff\xff\xff" + bytes(2_000_000))
        with pytest.raises(DataLost, match="have 2,000,005 bytes; in parts that small a block has 1,000,000 at most"):
            read_arguments(store, "args/x", folder, check_content)
    assert os.listdir(folder) == []


def test_arguments_from_4_gib_have_a_length_of_their_own(tmp_path: Path) -> None:
    with mmap.mmap(-1, 1 << 32) as room, memoryview(room) as whole:  # no memory is touched
        parts = parts_of((b"x", whole))
        assert (parts[1], parts[3], len(parts[4])) == (b"\xc6" + (1).to_bytes(4, "big"), b"\xc1" + (1 << 32).to_bytes(8, "big"), 1 << 32)
        del parts
    large = pattern(700_000)
    parts = [b"\xdc\x00\x02", b"\xc6" + (1).to_bytes(4, "big"), b"x", b"\xc1" + len(large).to_bytes(8, "big"), large]
    key = keys.arguments(42, 0, hash_of(parts))
    with SqliteStore(tmp_path / "store.db") as store:
        put_rows(store, [(key, parts)])
        assert values(read_arguments(store, key, tmp_path, check_content)) == (b"x", large)


def test_arguments_in_a_file_of_their_user_are_the_same(tmp_path: Path) -> None:
    large, small = pattern(700_000), b"small"
    with SqliteStore(tmp_path / "store.db") as store:
        found = read_arguments(store, write(store, (large, small)), tmp_path, check_content)
    assert (found.largest, found.size) == (700_000, 700_005)
    copy = KeptFile.of(tmp_path / "copy", 0)
    shutil.copyfile(found.path, copy)
    moved = found.moved(copy)
    assert all(type(piece) is OwnPiece for piece in moved)
    assert [len(piece) for piece in moved] == [700_000, 5]
    assert {type(piece.path) for piece in moved} == {str}, "a message bears no other kind"
    first = tmp_path / os.path.basename(found.path)
    del found, copy
    gc.collect()
    assert not first.exists()
    assert values(moved) == (large, small)
    del moved
    gc.collect()
    assert not (tmp_path / "copy").exists()


def test_arguments_that_no_message_bears_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk: the attempt ends as the node's fault, the Starter does not."""
    monkeypatch.setattr("rmgr.daemons.starter.core.fetch.MOST_IN_MESSAGE", 600_000)
    with SqliteStore(tmp_path / "store.db") as store:
        small, large = write(store, (pattern(550_000),)), write(store, (pattern(700_000),))
        gone = tmp_path / "gone"  # where no file can be made
        assert values(read_arguments(store, small, gone, check_content)) == (pattern(550_000),)
        with pytest.raises(OSError, match="gone"):
            read_arguments(store, large, gone, check_content)


def test_a_large_row_that_finds_no_room_on_the_disk_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.starter.core.fetch.IN_MEMORY_BYTES", 600_000)
    with SqliteStore(tmp_path / "store.db") as store:
        small, large = write(store, (pattern(550_000),)), write(store, (pattern(700_000),))
        gone = tmp_path / "gone"  # where no file can be made
        with pytest.raises(OSError, match="gone"):
            read_arguments(store, large, gone, check_content)
        assert values(read_arguments(store, small, gone, check_content)) == (pattern(550_000),)


MIB = 1 << 20
FAMILIES: dict[str, Callable[[str], str]] = {"fn": keys.function, "mod": keys.module, "file": keys.upload}


class Node(StoreMail):
    """What is fetched on one node."""

    def __init__(self, directory: Path) -> None:
        self.store = SparingStore()
        self.directory = directory / "blobs"
        super().__init__(self.store, threads=2)
        self.fetcher = Fetcher(self.io, self.directory)

    def put(self, family: str, size: int) -> tuple[str, bytes]:
        value = os.urandom(size)
        key = FAMILIES[family](hashlib.sha256(value).hexdigest())
        self.store.put(key, value)
        if size > MIB:
            self.store.large.add(key)
        return key, value

    def wait(self, ask: Callable[[], Any]) -> Any:
        found: list[Any] = []

        def is_answered() -> bool:
            found[:] = [ask()]
            return found[0] is not None

        self.until(is_answered)
        return found[0]

    def get(self, key: str) -> Any:
        kind: Fetched[Any] = self.fetcher.files if key.startswith("mod/") else self.fetcher.blobs
        return self.wait(lambda: kind.get(key))

    def files(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.is_file()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.io.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_large_comes_as_a_file_without_being_held(node: Node, family: str) -> None:
    key, value = node.put(family, 3 * MIB)
    found = node.get(key)
    path = found.path if isinstance(found, Blob) else found
    assert (type(path), found.size) == (KeptFile, 3 * MIB)
    assert Path(path).read_bytes() == value
    assert getattr(found, "data", b"") == b""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_client_puts_is_refused(node: Node, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST_BYTES", {"fn": 2 * MIB, "mod": 2 * MIB, "file": 2 * MIB})
    key, _ = node.put(family, 3 * MIB)
    with pytest.raises(ValueTooLarge, match="has 2,621,440 bytes; the limit is 2,097,152"):
        node.fetcher.streamed(node.store, key, 1)  # a smaller row stood there a moment ago
    monkeypatch.setattr(node.store, "stream", lambda _key: pytest.fail("it is read"))
    failure = node.get(key)
    assert isinstance(failure, FetchFailure)
    assert (failure.reason, failure.blames_node, failure.is_final) == (Reason.START_FAILED, False, False)
    assert failure.error == f"{key} has 3,145,728 bytes; the limit is 2,097,152"
    assert node.files() == []


def test_what_goes_into_messages_has_less(node: Node) -> None:
    key, value = node.put("file", MIB // 2)
    assert node.wait(lambda: node.fetcher.content(key, MIB)) == value
    failure = node.wait(lambda: node.fetcher.content(key, 1000))
    assert isinstance(failure, FetchFailure)
    assert (failure.reason, failure.blames_node) == (Reason.START_FAILED, False)
    assert failure.error == f"{key} has 524,288 bytes; the limit is 1,000"


def test_what_is_empty_has_no_file_and_is_read_all_the_same(node: Node) -> None:
    key, _ = node.put("file", 0)
    assert node.wait(lambda: node.fetcher.content(key, MIB)) == b""


DIRECTORY, CHARACTER, FIFO = tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE


def tar_of(*members: tuple[str, bytes | str] | tarfile.TarInfo) -> bytes:
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


def archived(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(data)
    return path


def test_files_directories_and_links_are_made_without_special_bits(tmp_path: Path, target: Path) -> None:
    data = tar_of(("sub/f", b"x"), ("link", "sub/f"), special("empty", DIRECTORY), special("again", tarfile.LNKTYPE, "sub/f"))
    unpack(archived(tmp_path, data), target, name="code", max_bytes=100)
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
        unpack(archived(tmp_path, tar_of(*members)), target, name="code", max_bytes=1000)
    assert "the upload code" in str(caught.value)
    assert not [path for path in tmp_path.rglob("evil") if not path.is_relative_to(target)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "work"]


def test_bytes_that_are_no_archive_are_lost_data(tmp_path: Path, target: Path) -> None:
    with pytest.raises(DataLost, match="code cannot be unpacked"):
        unpack(archived(tmp_path, b"not an archive" * 100), target, name="code", max_bytes=1000)


class Counting(MemoryStore):
    """A store that counts what is fetched, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = 0
        self.away = 0

    def stream(self, key: str, **options: float) -> Iterator[bytes] | None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        self.streams += 1
        return super().stream(key, **options)

    def upload(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.put(keys.upload(digest), data)
        return digest


def test_an_upload_is_fetched_once_for_all_tasks_of_a_node(tmp_path: Path) -> None:
    store, uploads = Counting(), Uploads(tmp_path / "cache")
    file, tree = store.upload(b"#!/bin/sh\n"), store.upload(tar_of(("a/b", b"1")))
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


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_unpack, "MAX_UPLOAD_MEMBERS", 50)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.REGTYPE])
def test_links_files_and_directories_count(tmp_path: Path, target: Path, kind: bytes) -> None:
    data = b"x" * 10
    first = member("first", size=len(data))
    others = [member(f"m{n}", kind, size=len(data) if kind == tarfile.REGTYPE else 0, linkname="first") for n in range(60)]
    with pytest.raises(PermissionDenied, match="larger unpacked than it may be"):
        unpack(archive(tmp_path / "a.tar", first, *others, data=data), target, name="up", max_bytes=MIB)
    assert made_in(target)[0] <= 50


@pytest.mark.usefixtures("few")
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
