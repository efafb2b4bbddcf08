"""Work whose files come slowly is staged once, on the node that claimed it, and abandoned files are removed.

n1  idle ─┐
n2  idle ─┼─ one task with a large upload, from a data store that hands out its bytes slowly
n3  idle ─┘
"""

from __future__ import annotations

import io
import tarfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core import uploads as starter_uploads
from rmgr.daemons.starter.core.uploads import disk_bytes
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.states import State
from rmgr.model.submission import Command, Upload
from tests.harness.local_accounts import LocalAccounts
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually

NODES = ("n1", "n2", "n3")
MIB = 1024 * 1024


class SlowStore:
    """The rig's store, whose streams take `delay_s` more in all."""

    def __init__(self, store: Store, delay_s: float) -> None:
        self._store = store
        self.delay_s = delay_s
        self.gets: list[str] = []
        self.goes_on = threading.Event()  #: what is streamed waits for it, too
        self.goes_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_noted_many(self, keys: Sequence[str], **options: Any) -> Any:
        self.gets += keys
        if any(key.startswith("fn/") for key in keys):
            threading.Event().wait(self.delay_s)
        return self._store.get_noted_many(keys, **options)

    def stream(self, key: str, **options: Any) -> Iterator[bytes] | None:
        chunks = self._store.stream(key, **options)
        if chunks is None:
            return None
        return self._slowly(list(chunks))

    def _slowly(self, chunks: list[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            threading.Event().wait(self.delay_s / len(chunks))
            assert self.goes_on.wait(120)
            yield chunk


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, place: Path) -> Iterator[Rig]:
    """Three idle nodes whose work runs as its users, and a store that takes 1.5 s for a value that is streamed."""
    with own_rig(zookeeper, place) as made:
        made.store = SlowStore(made.store, 1.5)
        for name in NODES:
            made.start(name, cores=1, as_users=True)
        for name in NODES:
            made.wait_registered(name)
        yield made


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where an upload was unpacked, in order."""
    where: list[Path] = []
    real = starter_uploads.unpack

    def unpack(archive: Path, target: Path, **options: Any) -> None:
        where.append(target)
        real(archive, target, **options)

    monkeypatch.setattr(starter_uploads, "unpack", unpack)
    return where


def archive_of_links(size: int, links: int) -> bytes:
    """One file of `size` bytes under `links` + 1 names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        first = tarfile.TarInfo("data")
        first.size = size
        tar.addfile(first, io.BytesIO(bytes(size)))
        for number in range(links):
            link = tarfile.TarInfo(f"link{number}")
            link.type, link.linkname = tarfile.LNKTYPE, "data"
            tar.addfile(link)
    return buffer.getvalue()


def all_idle(rig: Rig) -> None:
    eventually(lambda: all(running.agent(name).idle.is_set for name, running in zip(NODES, rig.starters, strict=True)), "three idle nodes")


def work(script: str, *uploads: Upload) -> Command:
    """A command of a kind that no node has run before: how long it takes is known nowhere."""
    return Command(argv=("sh", "-c", f"{script}; : {uuid.uuid4().hex}"), uploads=uploads)


def test_an_upload_of_hard_links_is_unpacked_once_where_it_was_claimed(rig: Rig, accounts: LocalAccounts, unpacked: list[Path]) -> None:
    user = accounts.make("s")
    upload = Upload(name="tree", sha256=rig.upload(archive_of_links(8 * MIB, 20)), is_dir=True)
    all_idle(rig)
    number = rig.submit(work("ls tree | wc -l; id -un", upload), user=user.name)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, outcome
    assert outcome.log[0].split() == [b"21", user.name.encode()]
    assert len(unpacked) == 1, f"{len(unpacked)} copies: {unpacked}"
    for name in NODES:
        rig.spool_is_empty(name)


def test_a_call_whose_function_comes_slowly_stays_where_it_was_claimed(rig: Rig, accounts: LocalAccounts) -> None:
    user = accounts.make("f")
    rig.store.gets = []
    all_idle(rig)
    token = uuid.uuid4().hex
    number = rig.submit(lambda: token, [call()], user=user.name)
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    functions = [key for key in rig.store.gets if key.startswith("fn/")]
    assert len(functions) == 1, f"{len(functions)} nodes fetched the function"


def test_what_is_staged_when_its_task_is_cancelled_is_removed_and_its_room_given_back(
    rig: Rig, accounts: LocalAccounts, unpacked: list[Path]
) -> None:
    user = accounts.make("c")
    upload = Upload(name="tree", sha256=rig.upload(archive_of_links(MIB, 3) + uuid.uuid4().bytes), is_dir=True)
    all_idle(rig)
    goes_on: threading.Event = rig.store.goes_on
    goes_on.clear()
    try:
        number = rig.submit(work("true", upload), user=user.name)
        name = eventually(lambda: next((name for name in NODES if rig.running(name)), ""), "somebody has claimed it")
        agent = rig.starters[NODES.index(name)].agent(name)
        shared = agent.shared
        block = eventually(lambda: next(iter(agent.blocks.values()), None), "it is that node's")
        eventually(lambda: shared.fetcher.uploads.room.used_bytes >= 4 * 4096, "it is being staged")
        shared.post(lambda: agent.cancel(block, None, "not wanted", 0))
    finally:
        goes_on.set()
    assert rig.outcomes(number, 1)[0].state is State.CANCELLED
    rig.spool_is_empty(name)
    eventually(lambda: shared.io.is_idle, "nothing is under way")
    kept = rig.directory / "work" / name / "blobs" / "uploads"
    eventually(lambda: shared.fetcher.uploads.room.used_bytes == sum(disk_bytes(path) for path in kept.iterdir()), "its room is given back")
