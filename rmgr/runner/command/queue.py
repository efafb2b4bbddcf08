"""The commands of a slot, one after another: the queue, the one that runs, its limits, how it is ended, what is told of it."""

from __future__ import annotations

import math
import os
import resource
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import CommandBatch, CommandEnd, CommandEnds, CommandItem, CommandsReturned, CommandStarted
from rmgr.runner.command.command import DirectoryGone, Launcher, RunningCommand, StartFailed
from rmgr.runner.host import affinity
from rmgr.runner.host.board import Board
from rmgr.runner.host.contain import ControlGroup, resident_bytes, send, send_all, send_group
from rmgr.runner.host.kernel import CLOCK, DIRECTORY_GONE
from rmgr.runner.host.outputs import trim_path

_MS = 1_000_000
#: Ends are collected this long before they are reported, while others follow: less than what is queued here when the
#: Starter sends more (`starter_estimate.LOW_COMMANDS_S`), or the slot would run dry before it is known to.
_REPORT_NS = 10 * _MS
#: A command that runs longer than this is told of while it runs.
_TELL_NS = 20 * _MS
_MEMORY_TICK_NS = 100 * _MS


@dataclass(slots=True)
class CommandEnding:
    """The running command is being ended: SIGTERM was sent, SIGKILL follows."""

    reason: Reason
    kill_ns: int
    killed: bool = False


class Commands:
    """Queue and present command of one slot.

    strangers: processes of this slot that are neither the command nor a worker. sweep: kills them, says how many.
    """

    def __init__(
        self,
        launcher: Launcher,
        board: Board,
        *,
        make_group: Callable[[str], ControlGroup | None],
        limits_memory: bool,
        strangers: Callable[[], list[int]],
        sweep: Callable[[], int],
        send: Callable[[object], None],
        surprise: Callable[[str, str], None],
    ) -> None:
        self._launcher = launcher
        self._board = board
        self._make_group = make_group
        self._limits_memory = limits_memory
        self._strangers = strangers
        self._sweep = sweep
        self._send = send
        self._surprise = surprise
        self._queue: deque[tuple[CommandBatch, CommandItem]] = deque()
        self._current: RunningCommand | None = None
        self._exit: tuple[int, resource.struct_rusage] | None = None  # of a command whose processes are not all gone yet
        self._ending: CommandEnding | None = None
        self._suspended_ns: int | None = None
        self._shift_ns = 0  # by how much suspensions move the time limit
        self._ends: list[CommandEnd] = []
        self._ends_since = -math.inf
        self._capped = 0
        self.lease_end_ns = 0

    @property
    def is_idle(self) -> bool:
        """Nothing runs (something may be queued)."""
        return self._current is None

    @property
    def lingers(self) -> bool:
        """The command has ended, what it started has not, and still may."""
        return self._exit is not None

    @property
    def pid(self) -> int:
        """Of the command that runs, 0 = none."""
        return self._current.pid if self._current is not None and self._exit is None else 0

    # -- orders ------------------------------------------------------------------------------------------------------

    def add(self, batch: CommandBatch) -> None:
        """Queues a batch."""
        self._queue.extend((batch, item) for item in batch.items)

    def give_back(self, *, keep: int = 0, reason: Reason = Reason.NONE, exclusive_only: bool = False) -> None:
        """Returns queued commands beyond the first `keep`; says so even when there are none (unless only exclusive ones are meant)."""
        entries = [entry for entry in list(self._queue)[keep:] if entry[0].shape.exclusive or not exclusive_only]
        if entries or not exclusive_only:
            gone = {item.seq for _, item in entries}
            self._queue = deque(entry for entry in self._queue if entry[1].seq not in gone)
            self._send(CommandsReturned(tuple(item.seq for _, item in entries), reason))

    def is_running(self, seq: int) -> bool:
        """`seq` (0: any) is what runs."""
        return self._current is not None and seq in {0, self._current.item.seq}

    def stop(self, seq: int, reason: Reason, grace_us: int, now: int) -> None:
        """Ends command `seq`: SIGTERM, grace, SIGKILL; a queued one is dropped. seq 0: whatever runs."""
        current = self._current
        if current is None or not self.is_running(seq):
            self._drop(seq, reason)
            return
        if self._ending is not None and self._ending.killed:
            return
        if grace_us <= 0:
            self.kill(reason)
            return
        kill_ns = now + grace_us * 1000
        if self._ending is None:
            self._ending = CommandEnding(reason, kill_ns)
        else:
            self._ending.kill_ns = min(self._ending.kill_ns, kill_ns)
        send_all(current.pid, signal.SIGTERM, current.group)
        self.resume(now)

    def kill(self, reason: Reason) -> None:
        """SIGKILL to the present command and all it started; a reason given before stays."""
        current = self._current
        if current is None:
            return
        reason = self._ending.reason if self._ending is not None else reason
        self._ending = CommandEnding(reason, 0, killed=True)
        if current.group is not None:
            current.group.kill()
        send_group(current.pid, signal.SIGKILL)
        if self._exit is None:
            send(current.pid, signal.SIGKILL)
        else:
            self._finish(current, *self._exit)

    def signal(self, signum: int) -> None:
        """To everything the present command started."""
        if self._current is not None:
            send_all(self._current.pid, signum, self._current.group)

    def suspend(self, now: int) -> None:
        """Stops it in place; its time limit stands still too."""
        current = self._current
        if current is not None and self._suspended_ns is None:
            self._suspended_ns = now
            if current.group is None or not current.group.freeze(True):
                send_all(current.pid, signal.SIGSTOP)

    def resume(self, now: int) -> None:
        """Continues it."""
        current = self._current
        if current is not None and self._suspended_ns is not None:
            self._shift_ns += now - self._suspended_ns
            self._suspended_ns = None
            if current.group is not None:
                current.group.freeze(False)
            send_all(current.pid, signal.SIGCONT)

    def _drop(self, seq: int, reason: Reason) -> None:
        for entry in list(self._queue):
            if entry[1].seq == seq:
                self._queue.remove(entry)
                self._ended(CommandEnd(seq=seq, reason=reason, started_us=time.time_ns() // 1000, detail="it had not begun"))

    # -- life --------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Starts the next command when there is none; True: something was started or reported."""
        moved = False
        while self._current is None and self._queue:
            batch, item = self._queue.popleft()
            now = time.clock_gettime_ns(CLOCK)
            if batch.shape.exclusive and now >= self.lease_end_ns:
                self._queue.appendleft((batch, item))
                self.give_back(reason=Reason.LEASE_LOST, exclusive_only=True)
                continue
            moved = True
            memory = batch.shape.memory_bytes
            group = self._make_group(f"c{item.seq}") if batch.isolate or (memory and self._limits_memory) else None
            if group is not None and memory:
                group.set_memory(memory)
            self._board.start(item.seq, now)
            self._shift_ns, self._suspended_ns = 0, None
            affinity.bind(batch.shape.environ.get(affinity.VARIABLE, ""))  # this process, and so the command
            try:
                self._current = self._launcher.start(batch, item, group)
            except DirectoryGone:
                if group is not None:
                    group.remove()
                self._queue.appendleft((batch, item))
                self._surprise(DIRECTORY_GONE, "its directory was removed")
                self.give_back()
            except StartFailed as error:
                if group is not None:
                    group.remove()
                self._ended(self._launcher.failed(batch, item, error))
        return moved

    def check(self, now: int) -> int | None:
        """Enforces limits; returns when to look again at the latest (ns), None = no sooner than the usual tick."""
        current = self._current
        if current is None:
            return None
        shape = current.batch.shape
        if self._exit is not None and (not self._strangers() or (self._ending is not None and now >= self._ending.kill_ns)):
            self._finish(current, *self._exit)
            return None
        if now - current.started_ns >= _TELL_NS:  # before that it cannot have written much
            self._trim(current)
        moments: list[int] = []
        if (ending := self._ending) is not None:
            if ending.killed:
                return None
            if now >= ending.kill_ns:
                self.kill(ending.reason)
                return None
            moments.append(ending.kill_ns)
        if shape.exclusive:
            if now >= self.lease_end_ns:
                self._surprise("lease_kill", f"command {current.item.seq}")
                self.kill(Reason.LEASE_LOST)
                return None
            moments.append(self.lease_end_ns)
        if shape.limit_us and self._ending is None and self._suspended_ns is None:
            end = current.started_ns + shape.limit_us * 1000 + self._shift_ns
            if now >= end:
                self.stop(0, Reason.TIME_LIMIT, shape.grace_us, now)
                end = now + shape.grace_us * 1000
            moments.append(end)
        if shape.memory_bytes and not (current.group is not None and current.group.limits_memory):
            used = resident_bytes(current.pid, current.group, also=self._strangers())
            if used > shape.memory_bytes:
                current.used_bytes = used
                self.kill(Reason.OUT_OF_MEMORY)
                return None
            moments.append(now + max(2 * _MS, min(_MEMORY_TICK_NS, (shape.memory_bytes - used) // 5)))  # it may grow by 5 bytes/ns
        return min(moments, default=None)

    def _trim(self, current: RunningCommand) -> None:
        for path in (current.out_path, current.err_path):
            if trim_path(path, current.batch.shape.output_cap) and self._capped != current.item.seq:
                self._capped = current.item.seq
                self._surprise("output_capped", f"command {current.item.seq}")

    def exited(self, pid: int, status: int, usage: resource.struct_rusage) -> bool:
        """Process `pid` was reaped; True: it was the command."""
        current = self._current
        if current is None or pid != current.pid or self._exit is not None:
            return False
        self._exit = (status, usage)
        if self._ending is None or self._ending.killed or not self._strangers():
            self._finish(current, status, usage)
        return True  # else what it started has the rest of the grace time

    def _finish(self, current: RunningCommand, status: int, usage: resource.struct_rusage) -> None:
        if current.group is not None:
            current.group.kill()
        leftovers = self._sweep()
        reason = self._ending.reason if self._ending is not None else Reason.NONE
        self._current = self._ending = self._exit = None
        end = self._launcher.finish(current, status, usage, reason=reason, leftovers=leftovers)
        if current.group is not None:
            current.group.remove()
        self._ended(end)

    # -- telling -------------------------------------------------------------------------------------------------------

    def next_report(self) -> float | None:
        """When `report` has something to tell at the latest (ns)."""
        moments = [self._ends_since + _REPORT_NS] if self._ends else []
        if self._launcher.tidies_ns is not None:
            moments.append(self._launcher.tidies_ns)
        if self._current is not None and not self._current.is_told:
            moments.append(self._current.started_ns + _TELL_NS)
        return min(moments, default=None)

    def report(self, now: int, *, at_once: bool = False) -> None:
        """Tells what ended; short commands share a message, a long one is told of while it runs."""
        current = self._current
        started: tuple[CommandStarted, ...] = ()
        if current is not None and not current.is_told and now - current.started_ns >= _TELL_NS:
            current.is_told = True
            started = (current.started(),)
        due = at_once or (current is None and not self._queue) or now - self._ends_since >= _REPORT_NS
        if started or (self._ends and due):
            self._send(CommandEnds(tuple(self._ends), started))
            self._ends.clear()
        if current is None and not self._queue:
            self._launcher.tidy(now)

    def _ended(self, end: CommandEnd) -> None:
        if not self._ends:
            self._ends_since = time.clock_gettime_ns(CLOCK)
        self._ends.append(end)

    def remove_group(self) -> None:
        """At the very end."""
        os.chdir("/")
        if self._current is not None and self._current.group is not None:
            self._current.group.remove()
