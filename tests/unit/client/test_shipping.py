"""What leaves the submitting machine: archives named by their content, and clear words for what cannot travel."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.client.commands import sending
from rmgr.client.commands.sending import pack_directory, ship_uploads
from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core.uploads import unpack
from rmgr.errors import UsageError, ValueTooLarge
from tests.harness.memory_store import MemoryStore


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "sub" / "__pycache__").mkdir(parents=True)
    (made / "sub" / "__pycache__" / "x.pyc").write_bytes(b"cache")
    (made / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (made / "sub" / "run.sh").chmod(0o755)
    (made / "a.txt").write_text("a")
    (made / "link").symlink_to("sub/run.sh")
    os.link(made / "a.txt", made / "twin.txt")
    return made


def session(store: MemoryStore) -> Any:
    return SimpleNamespace(data_store=lambda: store, left_s=lambda default: default)


def test_a_directory_is_the_same_archive_wherever_and_whenever_it_is_packed(tree: Path, tmp_path: Path) -> None:
    first = pack_directory(tree)
    copy = tmp_path / "copy"
    copy.mkdir()
    unpack(put(tmp_path, first), copy, name="tree", max_bytes=1 << 20)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["a.txt", "link", "sub", "sub/run.sh", "twin.txt"]
    assert os.access(copy / "sub" / "run.sh", os.X_OK)
    assert pack_directory(copy) == first


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(data)
    return path


def test_uploads_are_stored_once_by_the_hash_of_their_content(tree: Path) -> None:
    store = MemoryStore("shipping")
    puts: list[str] = []
    store_put = store.put
    store.put = lambda key, *rest, **options: (puts.append(key), store_put(key, *rest, **options))[1]  # type: ignore[method-assign]
    first = ship_uploads(session(store), [str(tree), str(tree / "a.txt")])
    again = ship_uploads(session(store), [f"{tree}/.", str(tree / "a.txt")])
    assert first == again
    assert [upload.name for upload in first] == ["tree", "a.txt"]
    assert puts == [keys.upload(upload.sha256) for upload in first], "each was stored once"


def test_what_cannot_travel_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("refused")

    def refused(kind: type[Exception], told: str, *names: Path | str) -> None:
        with pytest.raises(kind, match=told):
            ship_uploads(session(store), [str(name) for name in names])

    refused(UsageError, "there is no file or directory", tree / "absent")
    refused(UsageError, "two of them have the same name", tree / "a.txt", tree / ".." / "tree" / "a.txt")
    refused(UsageError, "no name to go by", "/")
    (tree / "out").symlink_to("/etc/passwd")
    refused(UsageError, "the link .*/tree/out leads out of .*/tree, to /etc/passwd", tree)
    (tree / "out").unlink()
    (tree / "sub" / "up").symlink_to("../../other")
    refused(UsageError, "leads out of", tree)
    (tree / "sub" / "up").unlink()
    (tree / "sub" / "up").symlink_to("../a.txt")
    ship_uploads(session(store), [str(tree)])
    os.mkfifo(tree / "pipe")
    refused(UsageError, "pipe is neither a file, a directory nor a link", tree)
    refused(UsageError, "pipe is neither a file nor a directory", tree / "pipe")
    (tree / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree)
        listener.bind("sock")
        refused(UsageError, "sock is neither a file, a directory nor a link", tree)
    (tree / "sock").unlink()
    monkeypatch.setattr(sending, "MAX_UPLOAD_BYTES", 10_000)
    with (tree / "huge").open("wb") as file:
        file.truncate(1 << 40)  # refused by its size, not after reading it
    refused(ValueTooLarge, "huge has 1.0T or more", tree / "huge")
    refused(ValueTooLarge, "tree has 1.0T or more", tree)
    (tree / "huge").unlink()
    monkeypatch.setattr(sending, "MAX_UPLOAD_MEMBERS", 3)
    refused(ValueTooLarge, "more than 3 files", tree)
    refused(UsageError, "is not UTF-8", os.fsdecode(bytes(tree) + b"/\xff"))
