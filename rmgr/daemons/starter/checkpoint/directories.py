"""Directories of jobs for their checkpoints, made, lent again and removed; and the threads on which their files are moved."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rmgr.daemons.starter.checkpoint.parts import JobDirectory, LocalPart, RemotePart
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.staging.outputs import charged
from rmgr.model.tasks.placing import run_label
from rmgr.runner.host.files import blind_ns, marks_of, remove_tree
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

T = TypeVar("T")
#: Checkpoints that are copied at once by one process.
_AT_ONCE = threading.BoundedSemaphore(3)
#: What nobody has wanted for so long goes; so many of a kind are kept.
IDLE_S, MOST = 1.0, 64


class JobDirectories:
    """The directories of the jobs whose script one node runs.

    Args: directory: in which each job gets a directory of its own.
    """

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._directory = directory
        self._own: dict[ClaimedBlock, LocalPart] = {}
        self._places: dict[ClaimedBlock, Path] = {}
        self._pool = DirectoryPool(node.shared.after, self._remove)
        self._untouched = Untouched()

    def own_part(self, block: ClaimedBlock) -> LocalPart:
        """Its directory on this node."""
        part = self._own.get(block)
        if part is None:
            key = block.key
            part = self._own[block] = LocalPart(
                node=self._node.name,
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
                    hold=run_label(key.submission, key.first, key.attempt),
                    peers=peers,
                    coordinator=self._shared.coordinator,
                    store=charged(self._shared.io.store, self._shared.charge_of(block.info.record.user)),
                    is_over=is_over,
                )
            )
        return found

    def background(self, job: Callable[[], T], *, copies: bool = False) -> Future[T]:
        """Runs `job` on a thread of its own. copies: it moves files: only a few at once."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                with _AT_ONCE if copies else nullcontext():
                    result = job()
            except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the owner gets it
                answer.set_exception(error)
            else:
                answer.set_result(result)

        machine.Thread(target=run, name="checkpoint", daemon=True).start()
        return answer

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


# -- directories that are used again ---------------------------------------------------------------------------------------
# Directories, and names of them, used again by the next job: to make one and to remove it costs a Starter more than a short job does. Only
# what is as it was made is kept (the caller sees to that), and not for long: what nobody has wanted for a moment is removed.


class DirectoryPool:
    """Lends directories of one node again. after: calls later, in its thread. remove: takes one away for good; may raise OSError."""

    def __init__(self, after: Callable[[float, Callable[[], None]], object], remove: Callable[[Path], None]) -> None:
        self._after = after
        self._remove = remove
        self._free: dict[Hashable, list[Path]] = {}
        self._wanted_s = -math.inf
        self._is_looking = False

    def take(self, kind: Hashable) -> Path | None:
        """One of that kind that still stands, None: there is none. Cost: a stat."""
        self._wanted_s = machine.monotonic()
        free = self._free.get(kind)
        while free:
            place = free.pop()
            if place.exists():  # a cleaner may have been here: nobody notices until work misses it, and that work would have failed
                return place
            self._gone(place)
        return None

    def give(self, kind: Hashable, place: Path) -> None:
        """Nobody needs it now."""
        free = self._free.setdefault(kind, [])
        if len(free) >= MOST:
            self._gone(place)
            return
        free.append(place)
        if not self._is_looking:
            self._is_looking = True
            self._after(IDLE_S, self._look)

    def forget_lost(self) -> None:
        """Those that were removed by somebody else are not lent any more."""
        for kind, places in self._free.items():
            self._free[kind] = [place for place in places if place.exists()]
            for place in set(places).difference(self._free[kind]):
                self._gone(place)

    def _look(self) -> None:
        left_s = self._wanted_s + IDLE_S - machine.monotonic()
        if left_s > 0:
            self._after(left_s, self._look)
            return
        self._is_looking = False
        for places in self._free.values():
            for place in places:
                self._gone(place)
        self._free.clear()

    def _gone(self, place: Path) -> None:
        with contextlib.suppress(OSError):  # what stands there now is somebody else's doing, and goes with the next Starter
            self._remove(place)


class Untouched:
    """Whether an empty directory is as it was made. Cost: an lstat; for those lent as soon as they were made a reading, too."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[tuple[int, ...], float]] = {}  #: its marks, and since when any change of it changes them
        self._lent_s: dict[Path, float] = {}

    def made(self, place: Path) -> None:
        """It is made, empty, and its owner's. Raises: OSError."""
        marks = marks_of(place)
        self._made[place] = marks, machine.monotonic() + blind_ns(marks) / 1e9

    def lent(self, place: Path) -> None:
        """From now on somebody may change it."""
        self._lent_s[place] = machine.monotonic()

    def is_as_made(self, place: Path) -> bool:
        """Nobody has left anything in it, or changed it, since it was made."""
        made, lent_s = self._made.get(place), self._lent_s.get(place, -math.inf)
        try:
            return made is not None and marks_of(place) == made[0] and (lent_s > made[1] or not os.listdir(place))
        except OSError:
            return False

    def forget(self, place: Path) -> None:
        """It is gone, or somebody else's."""
        self._made.pop(place, None)
        self._lent_s.pop(place, None)
