"""Arguments and files of work under way: in parts, linked or copied, always compared, no larger than clients may make them."""

from __future__ import annotations

import gc
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.client.content import hash_of, parts_of, put_rows
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_payloads
from rmgr.daemons.starter.core import fetch
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
from rmgr.errors import DataLost, PermissionDenied, ValueTooLarge
from rmgr.model.base.states import Reason
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
    return tuple(one.read() if isinstance(one, ArgumentsPiece) else one for one in arguments)  # type: ignore[attr-defined]


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
        flip_bit(value_file(tmp_path / "store.db", key), 500_000)  # type: ignore[arg-type]
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
        monkeypatch.setattr("rmgr.daemons.starter.core.fetch._MOST_SMALL_BYTES", 1_000_000)
        store.put("args/x", b"\xdd\xff\xff\xff\xff" + bytes(2_000_000))
        with pytest.raises(DataLost, match="have 2,000,005 bytes; in parts that small a block has 1,000,000 at most"):
            read_arguments(store, "args/x", folder, check_content)
    assert os.listdir(folder) == []


def test_arguments_from_4_gib_have_a_length_of_their_own(tmp_path: Path) -> None:
    with mmap.mmap(-1, 1 << 32) as room, memoryview(room) as whole:  # no memory is touched
        parts = parts_of((b"x", whole))  # type: ignore[arg-type]
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
    monkeypatch.setattr("rmgr.daemons.starter.core.fetch._MOST_IN_MESSAGE", 600_000)
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
    monkeypatch.setattr(fetch, "_MOST_BYTES", {"fn": 2 * MIB, "mod": 2 * MIB, "file": 2 * MIB})
    key, _ = node.put(family, 3 * MIB)
    with pytest.raises(ValueTooLarge, match="has 2,621,440 bytes; the limit is 2,097,152"):
        node.fetcher._streamed(node.store, key, 1)  # a smaller row stood there a moment ago
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
