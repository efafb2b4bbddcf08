"""What is fetched for work has the limits of clients: what is larger is neither fetched nor held, and blames no node."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core import fetch
from rmgr.daemons.starter.core.fetch import Blob, Fetched, Fetcher, FetchFailure, KeptFile
from rmgr.errors import ValueTooLarge
from rmgr.model.base.states import Reason
from tests.harness.claimed import StoreMail
from tests.harness.sparing_store import SparingStore

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
