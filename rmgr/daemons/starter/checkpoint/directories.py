"""Directories of jobs for their checkpoints, on this node and on the others of a job; and the threads on which their files are moved."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmgr.daemons.starter.checkpoint.parts import JobDirectory, LocalPart, RemotePart
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging.charged import Charge, charged
from rmgr.daemons.starter.staging.directory_pool import DirectoryPool, Untouched
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.rpc.ranks import Peers
    from rmgr.daemons.starter.checkpoint.seal import Seals
    from rmgr.daemons.starter.core.doors import TreeAccess
    from rmgr.daemons.starter.core.home import Home
    from rmgr.daemons.starter.core.io import StoreIO

T = TypeVar("T")

#: Checkpoints that are copied at once by one process.
_AT_ONCE = threading.BoundedSemaphore(3)


class DirectoryServices(Protocol):
    """Files, the store, other Starters and seals. peers: None: there are no other Starters."""

    home: Home
    io: StoreIO
    peers: Peers | None
    seals: Seals

    def charge_of(self, user: str) -> Charge:
        """For something that `user`'s work is about to write into the store."""
        ...


class JobDirectories:
    """`doors.JobParts` of one node: the directories of the jobs whose script it runs.

    Args: directory: in which each job gets a directory of its own.
    """

    def __init__(self, node: str, tree: TreeAccess, shared: DirectoryServices, directory: Path) -> None:
        self._node = node
        self._tree = tree
        self._shared = shared
        self._directory = directory
        self._own: dict[ClaimedBlock, LocalPart] = {}
        self._places: dict[ClaimedBlock, Path] = {}
        self._pool = DirectoryPool(tree.after, self._remove)
        self._untouched = Untouched()

    def own_part(self, block: ClaimedBlock) -> LocalPart:
        """Its directory on this node."""
        part = self._own.get(block)
        if part is None:
            key = block.key
            part = self._own[block] = LocalPart(
                node=self._node,
                directory=self.make(block),
                account=block.info.account,
                store=charged(self._shared.io.store, self._shared.charge_of(block.info.record.user)),
                sub=key.submission,
                index=key.first,
                attempt=key.attempt,
                seals=self._shared.seals,
            )
        return part

    def parts(self, block: ClaimedBlock, is_over: Callable[[], bool]) -> list[JobDirectory]:
        """Its directories, this node's first."""
        found: list[JobDirectory] = [self.own_part(block)]
        allocation, peers, key = block.data.allocation, self._shared.peers, block.key
        for helper, _ in allocation.helpers if allocation is not None and peers is not None else ():
            assert peers is not None
            found.append(
                RemotePart(
                    node=helper,
                    hold=f"{key.submission}.{key.first}.{key.attempt}",
                    peers=peers,
                    coordinator=self._tree.coordinator,
                    store=charged(self._shared.io.store, self._shared.charge_of(block.info.record.user)),
                    is_over=is_over,
                )
            )
        return found

    def background(self, job: Callable[[], T], done: Callable[[T | Exception], None], *, copies: bool = False) -> None:
        """Runs `job` on a thread of its own. `done` gets its result, or what it raised, as a message.

        copies: it moves files: only a few at once.
        """

        def run() -> None:
            try:
                with _AT_ONCE if copies else nullcontext():
                    result: T | Exception = job()
            except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the owner gets it
                result = error
            self._tree.post(lambda: done(result))

        machine.Thread(target=run, name="checkpoint", daemon=True).start()

    def place_of(self, block: ClaimedBlock) -> Path | None:
        """Its directory here, None = there is none."""
        return self._places.get(block)

    def make(self, block: ClaimedBlock) -> Path:
        """Its directory here, made the first time. Raises: OSError. Cost: a directory."""
        place = self._places.get(block)
        if place is None:
            place = self._places[block] = self._pool.take(_uid(block)) or self._fresh(block)
            self._untouched.lent(place)
        return place

    def forget_lost(self) -> None:
        """Directories were removed: those of jobs that have not started are made again."""
        self._pool.forget_lost()
        for block in [block for block, place in self._places.items() if block.ready and not place.is_dir()]:
            self._untouched.forget(self._places.pop(block))

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over, or not the node's own any more: its directory is lent again when nobody has used it, else removed."""
        was_asked = self._own.pop(block, None) is not None
        place = self._places.pop(block, None)
        if place is not None and not was_asked and self._untouched.is_as_made(place):
            self._pool.give(_uid(block), place)
        elif place is not None:
            try:
                self._remove(place)
            except OSError:
                self._shared.io.run(lambda _store: remove_tree(place), lambda _result: None)

    def _remove(self, place: Path) -> None:
        self._untouched.forget(place)
        place.rmdir()

    def _fresh(self, block: ClaimedBlock) -> Path:
        key = block.key
        place = self._directory / f"saved-{key.submission}_{key.first}.{key.attempt}"
        if os.path.lexists(place):
            remove_tree(place)
        self._shared.home.check()
        place.mkdir(mode=0o700)
        if block.info.account is not None:
            os.lchown(place, block.info.account.uid, block.info.account.gid)
        self._untouched.made(place)
        return place


def _uid(block: ClaimedBlock) -> int:
    """Whose its directory is."""
    return block.info.account.uid if block.info.account is not None else os.getuid()
