"""Measures the disk that each user's work takes on a node beside what was staged for it; work of users that take too much ends.

Not every file system has quotas, so it is counted: an lstat for each name in the directories that were given to users, now and
then, on a thread of its own. Counting ends where the limit is reached, and takes 2 % of a processor at most. Files that were
unlinked and are still open are not seen; the node takes no work before its disk is full (`starter/core/home.py`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmgr.model.base.states import Reason
from rmgr.model.base.units import format_size
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.host.process import Slot
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.node.node import NodeAgent, Shared

#: Files, directories and links that a user's work may have on a node, and how deep.
MAX_THINGS, MAX_DEPTH = 1_000_000, 100
#: Between two counts, and how much longer than the last one took.
_EVERY_S, _TIMES = 10.0, 50
#: Between SIGTERM and SIGKILL.
_GRACE_US = 2_000_000
#: Shares of what is free when the Starter begins, where no limits are set.
_USER_SHARE, _ALL_SHARE = 0.5, 0.9
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Directories of a node below which users have theirs.
_KINDS = ("run", "stage", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCaps:
    """Bytes on disk: of one user's work, and of all."""

    user_bytes: int
    all_bytes: int

    @classmethod
    def of(cls, directory: Path, *, user_bytes: int, all_bytes: int) -> DiskCaps:
        """0: a share of what is free there now."""
        found = os.statvfs(directory)
        free = found.f_bavail * found.f_frsize
        return cls(user_bytes=user_bytes or int(free * _USER_SHARE), all_bytes=all_bytes or int(free * _ALL_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Content of a directory that was given to a user."""

    path: str
    uid: int
    size_bytes: int = 0
    things: int = 0
    is_deep: bool = False


def given(directory: Path) -> list[tuple[str, int]]:
    """Directories of a node that belong to users, and to whom: those that the Starter has made, not those that users make in them."""
    found = []
    for kind in _KINDS:
        try:
            with os.scandir(directory / kind) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid():
                        found.append((entry.path, status.st_uid))
        except FileNotFoundError:
            continue
    return found


def count(path: str, uid: int, *, max_things: int) -> Use:
    """What a directory holds on disk: each inode once, no link followed, no other file system entered. Stops at the limits.

    Its owner may change it meanwhile: every directory is opened below the one that it was found in. Cost: 2 us a name.
    """
    size = things = 0
    is_deep = False
    seen: set[int] = set()
    stack: list[tuple[int, Any]] = []
    try:
        stack.append(_opened(path, None))
        device = os.fstat(stack[0][0]).st_dev
        while stack and things <= max_things and not is_deep:
            fd, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                _closed(*stack.pop())
                continue
            try:
                found = entry.stat(follow_symlinks=False)
                things += 1
                if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                    if found.st_ino in seen:
                        continue
                    seen.add(found.st_ino)
                size += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                    is_deep = len(stack) > MAX_DEPTH
                    stack += [] if is_deep else [_opened(entry.name, fd)]
            except OSError:
                continue  # it went, or is something else by now
    except OSError:
        pass  # the directory itself went
    finally:
        for fd, entries in stack:
            _closed(fd, entries)
    return Use(path=path, uid=uid, size_bytes=size, things=things, is_deep=is_deep)


def _opened(name: str, below: int | None) -> tuple[int, Any]:
    fd = os.open(name, _DIRECTORY, dir_fd=below)
    try:
        return fd, os.scandir(fd)
    except OSError:
        os.close(fd)
        raise


def _closed(fd: int, entries: Any) -> None:
    entries.close()
    os.close(fd)


def excess(uses: Sequence[Use], caps: DiskCaps, *, max_things: int) -> list[tuple[Use, str]]:
    """Whose work ends, and why: the largest directories of users above their limit, then of the largest users, until the rest fits."""
    left: dict[int, list[Use]] = {}
    ended: list[tuple[Use, str]] = []
    for use in sorted(uses, key=lambda one: (one.size_bytes, one.things), reverse=True):
        if use.is_deep:
            ended.append((use, f"its directories are more than {MAX_DEPTH} deep"))
        else:
            left.setdefault(use.uid, []).append(use)
    for mine in left.values():
        while (total := _size(mine)) > caps.user_bytes:
            what = f"files of its user's work take {format_size(total)} here, and may take {format_size(caps.user_bytes)}"
            ended.append((mine.pop(0), f"{what} ([starter] work_cap_user_bytes)"))
        while (things := sum(use.things for use in mine)) > max_things:
            largest = max(mine, key=lambda one: one.things)
            mine.remove(largest)
            ended.append((largest, f"its user's work has more than {things - 1} files here, and may have {max_things}"))
    while (total := sum(map(_size, left.values()))) > caps.all_bytes:
        what = f"files of all work take {format_size(total)} here, and may take {format_size(caps.all_bytes)} ([starter] work_cap_bytes)"
        ended.append((max(left.values(), key=_size).pop(0), f"{what}; its user's take most"))
    return ended


def _size(uses: Iterable[Use]) -> int:
    return sum(use.size_bytes for use in uses)


class WorkLimits:
    """Counts for all nodes of a Starter whose work runs as its users. Owner's thread."""

    def __init__(self, agents: Mapping[str, NodeAgent], shared: Shared, caps: DiskCaps) -> None:
        self._agents = agents
        self._shared = shared
        self._caps = caps
        shared.after(_EVERY_S, self._look)

    def _look(self) -> None:
        machine.Thread(target=self._count, name="work-use", daemon=True).start()

    def _count(self) -> None:
        begun_s = machine.monotonic()
        uses: list[Use] = []
        left: dict[int, int] = {}
        try:
            for name in self._agents:
                for path, uid in given(self._shared.directory / name):
                    use = count(path, uid, max_things=max(0, left.get(uid, MAX_THINGS)))
                    left[uid] = left.get(uid, MAX_THINGS) - use.things
                    uses.append(use)
        except OSError as error:
            self._shared.log.warning("work_not_counted", error=str(error))
        took_s = machine.monotonic() - begun_s
        self._shared.post(partial(self._counted, uses, took_s))

    def _counted(self, uses: list[Use], took_s: float) -> None:
        self._shared.after(max(_EVERY_S, _TIMES * took_s), self._look)
        for use, why in excess(uses, self._caps, max_things=MAX_THINGS):
            name = Path(use.path).relative_to(self._shared.directory).parts[0]
            self._end(self._agents[name], use, f"ended on node {name}: {why}")

    def _end(self, agent: NodeAgent, use: Use, why: str) -> None:
        """Ends the tasks in a directory; where none runs, the slot. What was staged for tasks that have not begun stays."""
        tasks = _tasks_in(agent, use.path)
        ids = ",".join(f"{block.key.submission}_{index}" for block, index in tasks)
        agent.log.warning("work_over_limit", uid=use.uid, task_id=ids, bytes=use.size_bytes, total=use.things, why=why)
        for block, index in tasks:
            block.over_limit[index] = why
            agent.stop_tasks(block, frozenset({index}), Reason.DISK_LIMIT, _GRACE_US)
        for slot in agent.lanes.slots() if not tasks else ():
            if use.path in (str(slot.directory), _hold_in(agent, slot)):
                slot.kill()


def _hold_in(agent: NodeAgent, slot: Slot) -> str:
    """Directory of the processes that a job whose script runs on another node has in this slot, "" = none."""
    lane = agent.lanes.of_slot(slot)
    place = getattr(lane.owner, "place", None) if lane is not None else None
    return str(place or "")


def _tasks_in(agent: NodeAgent, path: str) -> list[tuple[ClaimedBlock, int]]:
    """Tasks whose directory it is: that of their slot, of what was staged for them, of their checkpoints."""
    found = []
    for lane in agent.lanes:
        for block, index in lane.tasks.values():
            staged = agent.stager.take(block, index)
            saved = agent.jobs.checkpoints.directories.place_of(block)
            places = (lane.slot.directory, staged.directory if staged is not None else "", saved)
            if path in map(str, places):
                found.append((block, index))
    return found
