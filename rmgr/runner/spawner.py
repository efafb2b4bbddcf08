"""The spawner of a slot: a small single-threaded program that forks Python workers, starts commands, and kills what must end.

`Spawner` is the loop, with orders and ends of processes. `Commands` has the queue of commands, and the running one with its limits;
`command.py` starts a command. `Workers` watches what workers run.

Exec'd by the Starter (`python -m rmgr.runner.spawner FD`) with one end of a socket. It imports nothing heavy and never starts a thread, so
that forking is safe and cheap. It stands between work and Starter: when the socket closes (the Starter died) it kills everything; when the
lease ends (the Starter hangs) it kills exclusive work.
"""

from __future__ import annotations

import array
import contextlib
import gc
import math
import mmap
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

import cloudpickle  # noqa: F401 - loaded before the fork, so that every worker has it at once

from rmgr.model import frames, stream
from rmgr.model.frames import CommandBatch, CommandEnd, CommandItem, CommandStarted, Setup, ToSpawner
from rmgr.model.states import Reason
from rmgr.model.stream import FrameError, FrameReader
from rmgr.model.units import counted
from rmgr.runner.command import DirectoryGone, Launcher, RunningCommand, StartFailed
from rmgr.runner.current import running
from rmgr.runner.host import dispositions
from rmgr.runner.host.board import Board, create_board
from rmgr.runner.host.contain import (
    OF_WORK,
    WORK,
    Children,
    ControlGroup,
    Forks,
    kill_strangers,
    resident_bytes,
    send,
    send_all,
    send_group,
    write_file,
)
from rmgr.runner.host.files import remove_tree
from rmgr.runner.host.kernel import (
    CLOCK,
    CPU_BIND,
    DIRECTORY_GONE,
    OF_SPAWNERS,
    become_subreaper,
    bind_processors,
    close_to_others,
    prefer_for_oom,
    trim_memory,
)
from rmgr.runner.python.workers import Workers

_MS = 1_000_000
#: Pause between two checks of limits and output files; much longer for idle workers, since a worker that begins a task reports that.
_TICK_NS = 100 * _MS
_SLOW_TICK_NS = 5_000 * _MS
_LINGER_TICK_NS = 20 * _MS
#: If something cannot be killed for this long, the Starter ends the slot from outside and opens another.
_STUBBORN_NS = 5_000 * _MS
_OOM_SCORE = 500
_RECEIVE = 256 * 1024


class Spawner:
    """State of the spawner process."""

    def __init__(self, control: socket.socket, setup: Setup, reader: FrameReader[object]) -> None:
        self._control = control
        self._setup = setup
        self._reader = reader
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._waits = False  #: whether it waits for room in the socket
        self._selector = selectors.DefaultSelector()
        # Only pages that a message has ever reached exist; a new buffer for each message would cost four system calls.
        self._buffer = memoryview(mmap.mmap(-1, _RECEIVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._closing = False
        self._dirty_since: int | None = None
        self._next_tick = -math.inf
        self._soon: int | None = None
        features = ["subreaper"] if become_subreaper() else []
        features += [name for name in ("cgroup", "freezer", "pids") if getattr(setup, name)]
        self.limits_memory = bool(setup.memory or setup.has_memory)
        features += ["memory"] if self.limits_memory else []
        self._children = Children()
        self._forks = Forks(setup.pids or setup.cgroup) if setup.pids or setup.cgroup else None
        self._wake_r, wake_w = _nonblocking_pipe()
        self._poke_r, poke_w = _nonblocking_pipe()
        self.launcher = Launcher(setup.directory, setup.node)
        board = create_board()
        self._commands = Commands(self, Board(board))
        self._workers = Workers(
            directory=setup.directory, node=setup.node, make_group=self.make_group, poke_fd=poke_w, surprise=self.surprise
        )
        self._set_lease(setup.lease_end_ns)
        signal.signal(signal.SIGCHLD, _ignore_signal)
        for signum in OF_WORK:
            signal.signal(signum, _ignore_signal)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        control.setblocking(False)
        for source in (control, self._wake_r, self._poke_r):
            self._selector.register(source, selectors.EVENT_READ)
        self.send(frames.SpawnerUp(pid=os.getpid(), features=tuple(features)), [board])

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, orders: list[object]) -> NoReturn:
        """Runs until the socket closes or a `Shutdown` is done. orders: those that came with the set-up."""
        gc.collect()
        gc.freeze()
        trim_memory()
        for order in orders:
            self._obey(order)
        while True:
            self._reap()
            now = time.clock_gettime_ns(CLOCK)
            if now >= self._next_tick or (self._soon is not None and now >= self._soon):
                self._tick(now)
            if self._dirty_since is None and not self._closing and self._commands.advance():
                self._look(now)
            self._commands.report(now)
            if self._closing and self._commands.is_idle and not self._workers:
                self._end()
            for key, _ in self._selector.select(self._timeout()):
                if key.fileobj is self._control:
                    self._push()
                    self._receive()
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.fd, 4096)
                    if key.fd == self._poke_r:
                        self._next_tick = -math.inf

    def _timeout(self) -> float:
        until = self._next_tick
        for when in (self._soon, self._commands.next_report()):
            if when is not None and when < until:
                until = when
        return max(0, until - time.clock_gettime_ns(CLOCK)) / 1e9

    def _tick(self, now: int) -> None:
        """Checks everything that is not reported: limits, leases, memory, growing files, lingering processes."""
        calm = self._workers.calm(now)
        self._soon = self._workers.check(now)
        self._look(now)
        if self._dirty_since is not None:
            self._clean(now)
        calm = calm and self._commands.is_idle
        self._next_tick = now + (
            _LINGER_TICK_NS if self._commands.lingers or self._dirty_since is not None else _SLOW_TICK_NS if calm else _TICK_NS
        )

    def _look(self, now: int) -> None:
        """Checks the current command."""
        soon = self._commands.check(now)
        if soon is not None and (self._soon is None or soon < self._soon):
            self._soon = soon
        self._next_tick = min(self._next_tick, now + _TICK_NS)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            size = self._control.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._end(orphaned=True)
        try:
            orders = self._reader.feed(self._buffer[:size])
        except FrameError as error:
            sys.stderr.write(f"rmgr spawner {os.getpid()}: {error}\n")
            self._end(orphaned=True)
        for order in orders:
            self._obey(order)

    def _obey(self, order: object) -> None:
        now = time.clock_gettime_ns(CLOCK)
        match order:
            case frames.CommandBatch():
                self._commands.add(order)
            case frames.StartWorker():
                self._start_worker(order)
            case frames.LeaseEnd():
                self._set_lease(order.end_ns)
            case frames.RecallCommands():
                self._commands.give_back(keep=order.keep)
            case frames.Shutdown():
                self._commands.give_back()
                self._stop_all(Reason.USER_CANCEL, order.grace_us, now)
            case frames.Stop() | frames.Signal() | frames.SuspendWork() | frames.LimitWork():
                if order.worker:
                    self._to_worker(order, now)
                else:
                    self._to_command(order, now)
            case _:
                self.surprise("unknown_order", type(order).__name__)
        self._next_tick = min(self._next_tick, now)

    def _to_worker(self, order: frames.Stop | frames.Signal | frames.SuspendWork | frames.LimitWork, now: int) -> None:
        watched = self._workers.get(order.worker)
        if watched is None or (order.seq and watched.board.seq != order.seq):
            return
        match order:
            case frames.Stop():
                self._workers.stop(watched, order.seq, order.reason, order.grace_us, now)
            case frames.Signal():
                self._workers.signal(watched, order.signum)
            case frames.SuspendWork():
                (self._workers.resume if order.resume else self._workers.suspend)(watched, now)
            case frames.LimitWork():
                watched.limit = (order.seq, order.limit_us * 1000)

    def _to_command(self, order: frames.Stop | frames.Signal | frames.SuspendWork | frames.LimitWork, now: int) -> None:
        match order:
            case frames.Stop():
                self._commands.stop(order.seq, order.reason, order.grace_us, now)
            case frames.Signal() if self._commands.is_running(order.seq):
                self._commands.signal(order.signum)
            case frames.SuspendWork() if self._commands.is_running(order.seq):
                (self._commands.resume if order.resume else self._commands.suspend)(now)
            case frames.LimitWork() if self._commands.is_running(order.seq):
                self._commands.limit_us = order.limit_us

    def _start_worker(self, spec: frames.StartWorker) -> None:
        try:
            forked, fds = self._workers.fork(spec)
        except OSError as error:
            detail = f"a worker cannot be started: {error.strerror}"
            what = "fork_failed"
            try:
                self.launcher.check()
            except DirectoryGone:
                what = DIRECTORY_GONE
            self.surprise(what, detail)  # first, so that returned tasks are not sent here again
            self.send(frames.WorkerGone(worker=spec.worker, reason=Reason.WORKER_LOST, detail=detail))
            return
        self.send(forked, fds)

    def _set_lease(self, end_ns: int) -> None:
        self._commands.lease_end_ns = end_ns
        self._workers.set_lease(end_ns)

    def _stop_all(self, reason: Reason, grace_us: int, now: int) -> None:
        self._closing = True
        self._commands.stop(0, reason, grace_us, now)
        for watched in self._workers:
            self._workers.stop(watched, 0, reason, grace_us, now)

    def make_group(self, name: str) -> ControlGroup | None:
        """Makes the group of a command or worker; None if there are no cgroups."""
        setup = self._setup
        if not (setup.cgroup or setup.freezer or setup.memory):
            return None
        try:
            unified = os.path.join(setup.cgroup, WORK) if setup.cgroup else ""
            return ControlGroup(unified, setup.freezer, setup.memory, name, has_memory=setup.has_memory)
        except OSError as error:
            self.surprise("cgroup_failed", f"{name}: {error.strerror}")
            return None

    # -- ends --------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._commands.exited(pid, status, usage):
                self._next_tick = min(self._next_tick, time.clock_gettime_ns(CLOCK) + _LINGER_TICK_NS)
                if self._children.none and self._commands.is_idle:  # looked at after its death
                    return
            elif pid in self.launcher.removers:
                self.launcher.removers.discard(pid)
            elif (buried := self._workers.bury(pid, status, usage)) is not None:
                watched, gone = buried
                if watched.group is not None:
                    watched.group.kill()
                send_group(pid, signal.SIGKILL)
                if self._commands.is_idle:  # otherwise its leftovers end together with the command's
                    self.sweep()
                self._workers.forget(watched, self.launcher.remove)
                self.send(gone)

    def strangers(self) -> list[int]:
        """Returns processes of this slot that are neither the command nor a worker."""
        known = self._known()
        return [pid for pid in self._children.pids() if pid not in known]

    def _known(self) -> set[int]:
        return self._workers.pids | self.launcher.removers | {self._commands.pid}

    def sweep(self) -> int:
        """Kills what the last piece of work left behind; returns the number of processes."""
        killed, left = kill_strangers(self._children, self._known(), forks=self._forks)
        if killed:
            self.surprise("leftovers", f"{counted(killed, 'process')} killed")
        if left and self._dirty_since is None:
            self._dirty_since = time.clock_gettime_ns(CLOCK)
            self._next_tick = -math.inf
        return killed

    def _clean(self, now: int) -> None:
        """Tries again to kill what did not die, and finally ends the whole slot."""
        _, left = kill_strangers(self._children, self._known(), forks=self._forks)
        if not left:
            self._dirty_since = None
        elif self._dirty_since is not None and now - self._dirty_since > _STUBBORN_NS:
            self.surprise("escaped", f"{counted(left, 'process')} cannot be killed")
            self._commands.report(now, at_once=True)
            self._end()

    def _end(self, *, orphaned: bool = False) -> NoReturn:
        """Kills everything, and ends."""
        for watched in self._workers:
            self._workers.kill(watched, Reason.NODE_LOST, 0)
        self._commands.kill(Reason.NODE_LOST)
        _, left = kill_strangers(self._children, set(), forks=self._forks)
        for watched in self._workers:
            if watched.group is not None:
                watched.group.remove()
        self._commands.remove_group()
        if orphaned:
            remove_tree(self._setup.directory)
            self._leave_cgroups()
        else:
            self._control.settimeout(1.0)
            self._push()
        if left and self._setup.cgroup:
            write_file(os.path.join(self._setup.cgroup, "cgroup.kill"), "1")
        os._exit(0)

    def _leave_cgroups(self) -> None:
        """Removes cgroups that no other process will remove (the last spawner of the node also removes the node's)."""
        setup = self._setup
        for slot in filter(None, (setup.cgroup, setup.freezer, setup.memory, setup.pids)):
            node = os.path.dirname(slot)
            write_file(os.path.join(os.path.dirname(node), "cgroup.procs"), str(os.getpid()))
            for path in (os.path.join(slot, WORK), os.path.join(slot, "main"), slot, node):
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    # -- messages to the Starter -----------------------------------------------------------------------------------------

    def surprise(self, what: str, detail: str) -> None:
        """Reports something unusual, which the Starter counts and logs."""
        self.send(frames.Surprise(what, detail))

    def send(self, frame: object, fds: list[int] | None = None) -> None:
        """Queues a frame, since a stopped Starter must not block the spawner."""
        self._outbox.append((stream.encode(frame), fds or []))
        if len(self._outbox) == 1:
            self._push()

    def _push(self) -> None:
        waits = False
        while self._outbox:
            data, fds = self._outbox[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._control.sendmsg([data], rights)
            except BlockingIOError:
                waits = True
                break
            except OSError:
                self._outbox.clear()  # the Starter is gone: the next read sees that
                return
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._outbox[0] = (data[sent:], [])
            else:
                self._outbox.popleft()
        if waits != self._waits:
            self._waits = waits
            self._selector.modify(self._control, selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0))


# -- commands, one after another -------------------------------------------------------------------------------------------------


#: Ends are collected this long before they are reported, while commands follow. It must be shorter than the work left here when the Starter
#: sends more (`LOW_COMMANDS_S` in `daemons/starter/core/shares.py`), or the slot would run dry unnoticed.
_REPORT_NS = 10 * _MS
#: A command that runs longer is reported while it runs.
_TELL_NS = 20 * _MS
_MEMORY_TICK_NS = 100 * _MS


@dataclass(slots=True)
class CommandEnding:
    """End of the running command: SIGTERM was sent, SIGKILL follows."""

    reason: Reason
    kill_ns: int
    killed: bool = False


class Commands:
    """Queue and current command of one slot."""

    def __init__(self, spawner: Spawner, board: Board) -> None:
        self._spawner = spawner
        self._launcher = spawner.launcher
        self._board = board
        self._queue: deque[tuple[CommandBatch, CommandItem]] = deque()
        self._current: RunningCommand | None = None
        self._exit: tuple[int, resource.struct_rusage] | None = None  # of an ended command with processes that still live
        self._ending: CommandEnding | None = None
        self._suspended_ns: int | None = None
        self.limit_us = 0  #: time limit of the current command, 0 = none; may have changed since its batch
        self._shift_ns = 0  # extension of the time limit by suspensions
        self._ends: list[CommandEnd] = []
        self._ends_since = -math.inf
        self._capped = 0
        self.lease_end_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs (commands may be queued)."""
        return self._current is None

    @property
    def lingers(self) -> bool:
        """Whether the command has ended, but its processes have not, and still may."""
        return self._exit is not None

    @property
    def pid(self) -> int:
        """Pid of the running command, 0 if none."""
        return self._current.pid if self._current is not None and self._exit is None else 0

    # -- orders ------------------------------------------------------------------------------------------------------

    def add(self, batch: CommandBatch) -> None:
        """Queues a batch."""
        self._queue.extend((batch, item) for item in batch.items)

    def give_back(self, *, keep: int = 0, reason: Reason = Reason.NONE, exclusive_only: bool = False) -> None:
        """Returns queued commands beyond the first `keep`; also reports an empty result (unless only exclusive ones are asked for)."""
        entries = [entry for entry in list(self._queue)[keep:] if entry[0].shape.exclusive or not exclusive_only]
        if entries or not exclusive_only:
            gone = {item.seq for _, item in entries}
            self._queue = deque(entry for entry in self._queue if entry[1].seq not in gone)
            self._spawner.send(frames.CommandsReturned(tuple(item.seq for _, item in entries), reason))

    def is_running(self, seq: int) -> bool:
        """Returns whether `seq` (0: any) is running."""
        return self._current is not None and seq in {0, self._current.item.seq}

    def stop(self, seq: int, reason: Reason, grace_us: int, now: int) -> None:
        """Ends command `seq`: SIGTERM, grace, SIGKILL; a queued one is dropped. seq 0: the running one."""
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
        """Kills the current command and all that it started; a reason given before stays."""
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
        """Sends a signal to everything that the current command started."""
        if self._current is not None:
            send_all(self._current.pid, signum, self._current.group)

    def suspend(self, now: int) -> None:
        """Stops it in place; its time limit stops, too."""
        current = self._current
        if current is not None and self._suspended_ns is None:
            self._suspended_ns = now
            if current.group is None or not current.group.freeze(True):
                send_all(current.pid, signal.SIGSTOP)

    def resume(self, now: int) -> None:
        """Continues a suspended command."""
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
        """Starts the next command if none runs. Returns: whether something was started or reported."""
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
            group = self._spawner.make_group(f"c{item.seq}") if batch.isolate or (memory and self._spawner.limits_memory) else None
            if group is not None and memory:
                group.set_memory(memory)
            self._board.start(item.seq, now)
            self._shift_ns, self._suspended_ns, self.limit_us = 0, None, batch.shape.limit_us
            bind_processors(batch.shape.environ.get(CPU_BIND, ""))  # this process, and so the command
            try:
                self._current = self._launcher.start(batch, item, group)
            except DirectoryGone:
                if group is not None:
                    group.remove()
                self._queue.appendleft((batch, item))
                self._spawner.surprise(DIRECTORY_GONE, "its directory was removed")
                self.give_back()
            except StartFailed as error:
                if group is not None:
                    group.remove()
                self._ended(self._launcher.failed(batch, item, error))
        return moved

    def check(self, now: int) -> int | None:
        """Enforces limits; returns when to look again at the latest (ns), None for the usual tick."""
        current = self._current
        if current is None:
            return None
        shape = current.batch.shape
        if self._exit is not None and (not self._spawner.strangers() or (self._ending is not None and now >= self._ending.kill_ns)):
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
                self._spawner.surprise("lease_kill", f"command {current.item.seq}")
                self.kill(Reason.LEASE_LOST)
                return None
            moments.append(self.lease_end_ns)
        if self.limit_us and self._ending is None and self._suspended_ns is None:
            end = current.started_ns + self.limit_us * 1000 + self._shift_ns
            if now >= end:
                self.stop(0, Reason.TIME_LIMIT, shape.grace_us, now)
                end = now + shape.grace_us * 1000
            moments.append(end)
        if shape.memory_bytes and not (current.group is not None and current.group.limits_memory):
            used = resident_bytes(current.pid, current.group, also=self._spawner.strangers())
            if used > shape.memory_bytes:
                current.used_bytes = used
                self.kill(Reason.OUT_OF_MEMORY)
                return None
            moments.append(now + max(2 * _MS, min(_MEMORY_TICK_NS, (shape.memory_bytes - used) // 5)))  # it may grow by 5 bytes/ns
        return min(moments, default=None)

    def _trim(self, current: RunningCommand) -> None:
        if self._launcher.trim(current) and self._capped != current.item.seq:
            self._capped = current.item.seq
            self._spawner.surprise("output_capped", f"command {current.item.seq}")

    def exited(self, pid: int, status: int, usage: resource.struct_rusage) -> bool:
        """Takes the status of a reaped process. Returns: whether it was the command."""
        current = self._current
        if current is None or pid != current.pid or self._exit is not None:
            return False
        self._exit = (status, usage)
        if self._ending is None or self._ending.killed or not self._spawner.strangers():
            self._finish(current, status, usage)
        return True  # otherwise its processes have the rest of the grace

    def _finish(self, current: RunningCommand, status: int, usage: resource.struct_rusage) -> None:
        if current.group is not None:
            current.group.kill()
        leftovers = self._spawner.sweep()
        reason = self._ending.reason if self._ending is not None else Reason.NONE
        self._current = self._ending = self._exit = None
        end = self._launcher.finish(current, status, usage, reason=reason, leftovers=leftovers)
        if current.group is not None:
            current.group.remove()
        self._ended(end)

    # -- reports -------------------------------------------------------------------------------------------------------

    def next_report(self) -> float | None:
        """Returns when `report` has something to report at the latest (ns)."""
        moments = [self._ends_since + _REPORT_NS] if self._ends else []
        if self._launcher.tidies_ns is not None:
            moments.append(self._launcher.tidies_ns)
        if self._current is not None and not self._current.is_told:
            moments.append(self._current.started_ns + _TELL_NS)
        return min(moments, default=None)

    def report(self, now: int, *, at_once: bool = False) -> None:
        """Reports ends; short commands share a message, a long one is reported while it runs."""
        current = self._current
        started: tuple[CommandStarted, ...] = ()
        if current is not None and not current.is_told and now - current.started_ns >= _TELL_NS:
            current.is_told = True
            started = (current.started(),)
        due = at_once or (current is None and not self._queue) or now - self._ends_since >= _REPORT_NS
        if started or (self._ends and due):
            self._spawner.send(frames.CommandEnds(tuple(self._ends), started))
            self._ends.clear()
        if current is None and not self._queue:
            self._launcher.tidy(now)

    def _ended(self, end: CommandEnd) -> None:
        if not self._ends:
            self._ends_since = time.clock_gettime_ns(CLOCK)
        self._ends.append(end)

    def remove_group(self) -> None:
        """Removes the group at the very end."""
        os.chdir("/")
        if self._current is not None and self._current.group is not None:
            self._current.group.remove()


def _ignore_signal(_signum: int, _frame: object) -> None:
    """Does nothing: the byte in the wake-up pipe counts."""


def _nonblocking_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def main(fd: int, *, closed: bool = False) -> None:
    """Runs a spawner on control socket `fd`; its first frame is the `Setup`. closed: other processes of its user cannot look into it."""
    prefer_for_oom(_OOM_SCORE)
    if closed:
        close_to_others()
    running.hash_seed = os.environ.get("PYTHONHASHSEED", "")
    for name in OF_SPAWNERS:  # work should not see them
        if (value := os.environ.pop(f"RMGR_SPAWNER_{name}", None)) is None:
            continue
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
    dispositions.begin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    control = socket.socket(fileno=fd)
    reader: FrameReader[object] = FrameReader(ToSpawner)
    orders: list[object] = []
    while not orders:
        data = control.recv(_RECEIVE)
        if not data:
            return
        orders = reader.feed(data)
    setup = orders[0]
    if not isinstance(setup, Setup):
        raise SystemExit("rmgr spawner: the first frame is not a set-up")
    try:
        os.chdir(setup.directory)
    except OSError as error:
        control.sendall(stream.encode(frames.Surprise("spawner_failed", f"{error}")))
        raise SystemExit(1) from None
    os.umask(0o022)
    Spawner(control, setup, reader).run(orders[1:])


if __name__ == "__main__":
    main(int(sys.argv[1]), closed="closed" in sys.argv[2:])
