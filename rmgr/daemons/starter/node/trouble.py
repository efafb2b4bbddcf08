"""Why a node takes no work, or none of some users: reasons to drain, its own failures, disk used up by users; and how the leader learns it.

The record `/troubles/<node>` tells the leader, which then places no work there. Drains by an operator and stopping Starters are known
otherwise and not published.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.io import on_thread
from rmgr.errors import RmgrError
from rmgr.model.node import Drain, Trouble, TroubleKind
from rmgr.model.states import Reason
from rmgr.model.units import format_duration, format_size
from rmgr.runner.host import home
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.adapters.host.process import Slot
    from rmgr.coord.protocol.multi import Stamped
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.node.node import NodeAgent, Shared

#: Reasons to drain that are published, most important first.
_KINDS = (
    TroubleKind.QUARANTINE, TroubleKind.STORE, TroubleKind.DISK, TroubleKind.QUOTA, TroubleKind.TRUST, TroubleKind.OTHER
)  # fmt: skip
#: Pause after a refused commit (an older tree has no place for troubles), and between two wordings of the same trouble.
_RETRY_S, _REWORD_S = 5.0, 30.0
#: Pauses between two looks at the package, and at the disk.
_PACKAGE_S, _DISK_S = 1.0, 2.0
#: A look that has not ended after this time hangs; the loop itself waits for it no longer than the second.
HANGS_S, PROMPT_S = 10.0, 0.01
_LONGEST = 1000
_MOST_USERS = 32
#: The node is drained when inputs have waited for the store this long.
_STARVED_S = 2.0
#: Failures of slots, files and spool within the window that quarantine the node.
OWN = 5
#: How many of these may be in slots of one user.
OF_ONE_USER = 2
#: Different submissions with work that could not be started that quarantine the node, if they are of two users; of one user, they keep
#: only that user's work out. A single bad submission does neither.
SUBMISSIONS = 4
WINDOW_S = 60.0
#: How long the quarantine lasts.
OUT_S = 60.0
#: Most files, directories and links that a user's work may have on a node, and their greatest depth.
MAX_THINGS, MAX_DEPTH = 1_000_000, 100
#: Shortest pause between two counts, and its multiple of the last count's duration.
_EVERY_S, _TIMES = 10.0, 50
#: Time between SIGTERM and SIGKILL.
_GRACE_US = 2_000_000
#: Shares of the space free at the start that serve as limits if none are set.
_USER_SHARE, _ALL_SHARE = 0.5, 0.9
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Directories of a node that contain directories of users.
_GIVEN_BELOW = ("run", "stage", "jobs")


class TroubleMark:
    """The published trouble of one node. Owned by the Starter's thread."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.reset()

    def reset(self) -> None:
        """Forgets what is published, for a new registration: the record of an older one is looked up before the first change."""
        self._stands: bool | None = None
        self._shown: Trouble | None = None
        self._next_s = -math.inf

    def settle(self, now_s: float) -> None:
        """Begins and ends the quarantine; publishes changes. Cost: nothing while the node is well."""
        self._quarantine(now_s)
        if now_s < self._next_s:
            return
        if self._stands is None:
            self._node.stories.begin(self._look(), key="trouble")
        elif self._is_news(wanted := self._wanted(now_s)):
            self._node.stories.begin(self._publish(wanted, stands=self._stands), key="trouble")

    def _look(self) -> Story[None]:
        """Looks whether a record of an older incarnation stands."""
        try:
            self._stands = (yield self._shared.coordinator.stat(paths.trouble(self._node.name))) is not None
        except RmgrError:
            self._next_s = machine.monotonic() + _RETRY_S

    def _publish(self, wanted: Trouble | None, *, stands: bool) -> Story[None]:
        multi = ops.trouble(self._node.name, self._shared.committer.fence(self._node.name), wanted, stands=stands)
        outcome: Outcome = yield self._shared.committer.outcome_of(multi)
        if isinstance(outcome, Committed):
            self._stands, self._shown = wanted is not None, wanted
            return
        assert isinstance(outcome, Conflict)
        self._node.log.warning("trouble_not_published", path=outcome.path, kind=outcome.kind.value)
        self._stands = None
        self._next_s = machine.monotonic() + _RETRY_S

    def _is_news(self, wanted: Trouble | None) -> bool:
        shown = self._shown
        if wanted is None:
            return bool(self._stands)
        if shown is None or not self._stands or not _are_alike(wanted, shown):
            return True
        return wanted.reason != shown.reason and wanted.since_us - shown.since_us >= _REWORD_S * 1e6

    def _quarantine(self, now_s: float) -> None:
        node, kind = self._node, TroubleKind.QUARANTINE
        is_out = node.strikes.is_out(now_s)
        if is_out and kind not in node.drains:
            node.drains[kind] = f"too many failures of the node itself: {node.strikes.last}"
            node.log.error("node_quarantined", why=node.strikes.last)
        elif not is_out and node.drains.pop(kind, None) is not None:
            node.log.info("node_released", why="quarantine is over")

    def _wanted(self, now_s: float) -> Trouble | None:
        node = self._node
        reasons = {**node.drains, TroubleKind.OTHER: node.fault} if node.fault else node.drains
        kind = next((kind for kind in _KINDS if kind in reasons), None)
        refused = dict(list(node.accounts.refused.items())[:_MOST_USERS]) if node.accounts is not None else {}
        aside = node.aside.words
        if kind is None and not refused and not aside:
            return None
        now_us = machine.wall_us()
        until_s = node.strikes.out_until_s if kind is TroubleKind.QUARANTINE else now_s
        return Trouble(
            node=node.name,
            incarnation=node.incarnation,
            kind=kind or (TroubleKind.ASIDE if aside else TroubleKind.USERS),
            reason=(reasons[kind] if kind is not None else "; ".join(filter(None, (aside, *refused.values()))))[:_LONGEST],
            refused={user: why[:_LONGEST] for user, why in refused.items()},
            barred=tuple(sorted(refused.keys() & node.accounts.barred)) if node.accounts is not None else (),
            since_us=now_us,
            until_us=now_us + int((until_s - now_s) * 1e6) if until_s > now_s else 0,
        )


def _are_alike(one: Trouble, other: Trouble) -> bool:
    """Returns whether two troubles differ only in wording or time."""
    return abs(one.until_us - other.until_us) < 1_000_000 and replace(one, reason="", since_us=0, until_us=0) == replace(
        other, reason="", since_us=0, until_us=0
    )


# -- reasons to drain ------------------------------------------------------------------------------------------------------
# Reasons for which the nodes of a Starter take no new work: an operator, a full disk, a data store that is away, a used up quota of
# ZooKeeper, a wrong clock, a package that was removed, or the end of the Starter. Each reason comes and goes by itself; a node works
# again when none is left.


class Outlook:
    """A look at a file system, now and then, on a thread of its own: a file server that is dead lets it hang for ever. Owner's thread.

    look: returns what is wrong there, "" if nothing is. place: what it looks at, for people. every_s: least pause between two looks.
    """

    def __init__(self, look: Callable[[], str], *, place: str, every_s: float) -> None:
        self._look, self._place, self._every_s = look, place, every_s
        self._answer: Future[str] | None = None
        self._begun_s = -math.inf
        self._why = ""
        self._hangs = False

    def why(self, now_s: float) -> str:
        """Returns what the last look found, or that it hangs. Cost: a thread for each look, and a wait of 10 ms at most."""
        if self._answer is None and now_s - self._begun_s >= self._every_s:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next call tries again
                self._answer = on_thread(self._look, "look")
                self._begun_s = now_s
                self._wait()
        elif self._answer is not None and not self._hangs and now_s - self._begun_s >= HANGS_S:
            self._wait()  # this process may have stood still
            self._hangs = not self._answer.done()
        if self._answer is not None and self._answer.done():
            self._why, self._hangs, self._answer = self._answer.result(), False, None
        elif self._hangs:
            self._why = f"{self._place} has not answered for {format_duration(HANGS_S)}: its file system hangs; is a file server away?"
        return self._why

    def _wait(self) -> None:
        assert self._answer is not None
        if not self._answer.done():
            with contextlib.suppress(TimeoutError):
                machine.result(self._answer, PROMPT_S)


class Drains:
    """Drains the nodes of one Starter, and resumes them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._nodes = shared.agents.values()
        self._log = shared.log
        self._disk = Outlook(shared.disk.look, place=f"the work directory {shared.disk.directory}", every_s=_DISK_S)
        self._package = Outlook(_PackageLook(), place=f"the package in {home.ROOT}", every_s=_PACKAGE_S)

    def settle(self, now_s: float) -> None:
        """Checks the disk, the store, ZooKeeper's quotas, the clock, the certificate and the package."""
        self._set("disk", self._disk.why(now_s), over="there is room on the disk again")
        self._set("store", self._store_trouble(now_s), over="the data store answers again")
        full, gate = self._shared.committer.over_quota, self._shared.gate
        self._set(TroubleKind.QUOTA, f"its commits wait: {full}" if full else "", over="ZooKeeper takes its commits")
        self._set(TroubleKind.TRUST, gate.fault(now_s) if gate is not None else "", over="it judges and signs work")
        self._set(TroubleKind.OTHER, self._package.why(now_s), over="rmgr is there again")

    def ordered(self, node: NodeAgent, found: Stamped | None) -> None:
        """Drains or resumes the node as an operator has ordered."""
        drain = decode_record(found.data, Drain, paths.drain(node.name)) if found is not None else None
        if drain is None or drain.is_over:
            if node.drains.pop("operator", None) is not None:
                self._log.info("node_resumed", node=node.name, by=drain.user if drain is not None else "")
        elif node.drains.get("operator") != drain.reason:
            node.drains["operator"] = drain.reason
            self._log.info("node_drained", node=node.name, why=drain.reason)

    def stopping(self) -> None:
        """Drains all nodes because the Starter stops."""
        for node in self._nodes:
            node.drains["stopping"] = "the Starter stops"

    def _store_trouble(self, now_s: float) -> str:
        """Returns why the store stops new work, "" if it does not. Running work goes on while inputs cannot come or outputs find no
        room."""
        spool, cap = self._shared.io, self._shared.config.spool_cap_bytes
        starved_s, pending = spool.starved_since_s, spool.pending_bytes
        is_drained = any("store" in node.drains for node in self._nodes)
        if pending >= (cap // 2 if is_drained and spool.down_since_s is not None else cap):
            return f"outputs that wait for the data store fill the spool ({format_size(pending)} of {format_size(cap)})"
        if starved_s is not None and now_s - starved_s > _STARVED_S:
            return "the data store does not answer, so inputs of work cannot be read"
        return ""

    def _set(self, who: str, why: str, *, over: str) -> None:
        for node in self._nodes:
            if why and who not in node.drains:
                self._log.error("node_drained", node=node.name, why=why)
                node.drains[who] = why
            elif not why and node.drains.pop(who, None) is not None:
                self._log.info("node_resumed", node=node.name, why=over)


class _PackageLook:
    """Looks whether the package is there with which work is started, and still the one that was there first."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None

    def __call__(self) -> str:
        """Returns what is wrong: without the package no slot opens, and with another one calls that import more of it are lost."""
        try:
            found = os.stat(home.source("rmgr.runner.spawner"))
        except (FileNotFoundError, NotADirectoryError):
            return f"rmgr was removed from {home.ROOT}: install it there, or restart the Starter elsewhere"
        except OSError as error:  # a server of files that is away, or rights that have changed
            return f"the package in {home.ROOT} cannot be read: {error.strerror or error}"
        now = found.st_size, found.st_mtime_ns  # not its number: on FUSE (sshfs, CVMFS) the same file may have another one later
        self._first = self._first or now
        return "" if now == self._first else f"rmgr was replaced in {home.ROOT}: restart the Starter, which runs what was there before"


# -- failures of the node itself -------------------------------------------------------------------------------------------
# Failures that are the node's own: after enough of them it takes no work for a while (or it would swallow the queue as a black hole).
# Pure. Failures only in slots of one user may be that user's doing (processes, disk quota or memory used up): then only the user's work
# stays out.


class Strikes:
    """Recent failures of the node."""

    def __init__(self) -> None:
        self.last = ""
        self._own: deque[float] = deque(maxlen=OWN)
        self._users: dict[str, deque[float]] = {}
        self._starts: dict[str, tuple[float, str]] = {}  #: submission that could not be started -> (when, whose)
        self.out_until_s = -math.inf  #: the node takes no work before this time (monotonic)

    def add(self, what: str, detail: str, now_s: float, *, user: str = "") -> bool:
        """Counts a failure of the node at `what`; for `start_failed`, `detail` begins with the submission and a colon.

        user: whose slot or work it was, "" = the Starter's own failure. Returns: whether work of this user should stay out for a while.
        """
        self.last = f"{what}: {detail}"
        if what == "start_failed":
            return self._count_start(detail.partition(":")[0], user, now_s)
        his = self._count_failure(user, now_s) if user else 0
        if his <= OF_ONE_USER:
            self._own.append(now_s)
            if len(self._own) == OWN and now_s - self._own[0] < WINDOW_S:
                self._out(now_s)
        if his < OWN:
            return False
        del self._users[user]
        return True

    def _count_start(self, submission: str, user: str, now_s: float) -> bool:
        self._starts[submission] = now_s, user
        self._starts = {one: found for one, found in self._starts.items() if now_s - found[0] < WINDOW_S}
        if len(self._starts) < SUBMISSIONS:
            return False
        if {whose for _, whose in self._starts.values()} != {user} or not user:
            self._out(now_s)
            return False
        self._starts.clear()
        return True

    def _count_failure(self, user: str, now_s: float) -> int:
        """Returns the number of recent failures of this user, with a new one."""
        self._users = {one: seen for one, seen in self._users.items() if now_s - seen[-1] < WINDOW_S}
        failures = self._users.setdefault(user, deque())
        failures.append(now_s)
        while now_s - failures[0] >= WINDOW_S:
            failures.popleft()
        return len(failures)

    def success(self) -> None:
        """Notes that work ran well here."""
        self._starts.clear()

    def is_out(self, now_s: float) -> bool:
        """Returns whether the node is in quarantine."""
        return now_s < self.out_until_s

    def _out(self, now_s: float) -> None:
        self.out_until_s = now_s + OUT_S
        self._own.clear()
        self._users.clear()
        self._starts.clear()


# -- disk that users' work takes -------------------------------------------------------------------------------------------
# Disk that users' work takes besides staged files; work of users that take too much ends. Not every file system has quotas, so it is
# counted: now and then, on a thread of its own, with an lstat for each name in the directories that were given to users. A count stops at
# the limit, and all take at most 2 % of a processor. Deleted files that are still open are not seen; the node takes no work when its disk
# is nearly full (`starter/core/home.py`).


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCaps:
    """Most bytes on disk: of one user's work, and of all work."""

    user_bytes: int
    all_bytes: int

    @classmethod
    def of(cls, directory: Path, *, user_bytes: int, all_bytes: int) -> DiskCaps:
        """Returns the caps; 0 is replaced by a share of what is free there now."""
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
    """Returns the directories of a node that belong to users, with their uids: those made by the Starter, not those made inside them."""
    found = []
    for kind in _GIVEN_BELOW:
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
    """Counts what a directory holds on disk: each inode once, no link followed, no other file system entered. Stops at the limits.

    Its owner may change it meanwhile, so every directory is opened relative to the one it was found in. Cost: 2 us a name.
    """
    size = things = 0
    is_deep = False
    seen: set[int] = set()
    stack: list[tuple[int, Any]] = []
    try:
        stack.append(_open_directory(path, None))
        device = os.fstat(stack[0][0]).st_dev
        while stack and things <= max_things and not is_deep:
            fd, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                _close_directory(*stack.pop())
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
                    stack += [] if is_deep else [_open_directory(entry.name, fd)]
            except OSError:
                continue  # it is gone or something else by now
    except OSError:
        pass  # the directory itself is gone
    finally:
        for fd, entries in stack:
            _close_directory(fd, entries)
    return Use(path=path, uid=uid, size_bytes=size, things=things, is_deep=is_deep)


def _open_directory(name: str, below: int | None) -> tuple[int, Any]:
    fd = os.open(name, _DIRECTORY, dir_fd=below)
    try:
        return fd, os.scandir(fd)
    except OSError:
        os.close(fd)
        raise


def _close_directory(fd: int, entries: Any) -> None:
    entries.close()
    os.close(fd)


def excess(uses: Sequence[Use], caps: DiskCaps, *, max_things: int) -> list[tuple[Use, str]]:
    """Returns which work ends, and why: the largest of users above their limit, then of the largest users, until the rest fits."""
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
    """Counts the disk use of users' work on all nodes of a Starter. Owner's thread."""

    def __init__(self, shared: Shared) -> None:
        self._agents = shared.agents
        self._shared = shared
        self._stories = shared.stories()
        self._stories.begin(self._look_again_and_again())

    def _look_again_and_again(self) -> Story[None]:
        pause_s = _EVERY_S
        while True:
            yield Pause(pause_s)
            begun_s = machine.monotonic()
            uses: list[Use] = yield on_thread(self._count, "work-use")
            pause_s = max(_EVERY_S, _TIMES * (machine.monotonic() - begun_s))
            for use, why in excess(uses, self._shared.disk_caps, max_things=MAX_THINGS):
                self._shared.aside.attempt(self._end, use, why)  # a failure must not keep other directories from being ended

    def _count(self) -> list[Use]:
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
        return uses

    def _end(self, use: Use, why: str) -> None:
        """Ends the tasks in a directory; if none runs there, the slot. Staged files of tasks that have not begun stay."""
        agent = self._agents[Path(use.path).relative_to(self._shared.directory).parts[0]]
        why = f"ended on node {agent.name}: {why}"
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
    """Returns the directory of processes in this slot whose job's script runs on another node, "" if none."""
    lane = agent.lanes.of_slot(slot)
    place = getattr(lane.owner, "place", None) if lane is not None else None
    return str(place or "")


def _tasks_in(agent: NodeAgent, path: str) -> list[tuple[ClaimedBlock, int]]:
    """Returns the tasks that use the directory: for their slot, their staged files or their checkpoints."""
    found = []
    for lane in agent.lanes:
        for block, index in lane.tasks.values():
            staged = agent.stager.take(block, index)
            saved = agent.jobs.checkpoints.directories.place_of(block)
            places = (lane.slot.directory, staged.directory if staged is not None else "", saved)
            if path in map(str, places):
                found.append((block, index))
    return found
