"""The spawner of a slot: a small single-threaded program that forks Python workers, starts commands, and kills what must end.

Exec'd by the Starter (`python -m rmgr.runner.spawner FD`) with one end of a socket. It imports nothing heavy and no
thread ever starts in it, so that forking is safe and cheap. It is the shim between work and Starter: when the socket
closes (the Starter died) everything is killed; when the lease ends (the Starter hangs) exclusive work is killed.
"""

from __future__ import annotations

import array
import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

import cloudpickle  # noqa: F401 - loaded before the fork, so that every worker has it at once

from rmgr.model import frames
from rmgr.model.frames import CommandBatch, CommandEnd, CommandItem, FrameError, FrameReader, Setup, ToSpawner
from rmgr.model.states import Reason
from rmgr.runner.board import Board, create_board
from rmgr.runner.command import Launcher, Running, StartFailed
from rmgr.runner.contain import Children, Forks, Group, kill_strangers, resident_bytes, send, send_all, send_group, write_file
from rmgr.runner.kernel import CLOCK, become, become_subreaper, forbid_new_privileges, prefer_for_oom
from rmgr.runner.outputs import trim_path
from rmgr.runner.workers import Workers

_MS = 1_000_000
#: Ends of commands are collected this long before they are reported; a command that runs longer is told of.
_REPORT_NS = 5 * _MS
#: How often limits and output files of running work are looked at; idle workers are looked at once a second.
_TICK_NS = 100 * _MS
_SLOW_TICK_NS = 1000 * _MS
_LINGER_TICK_NS = 20 * _MS
_OOM_SCORE = 500
_RECEIVE = 256 * 1024


@dataclass(slots=True)
class Ending:
    """The running command is being ended: SIGTERM was sent, SIGKILL follows."""

    reason: Reason
    kill_ns: int
    killed: bool = False


class Spawner:
    """State of the spawner process."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control = control
        self._setup = setup
        self._reader: FrameReader[object] = FrameReader(ToSpawner)
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._queue: deque[tuple[CommandBatch, CommandItem]] = deque()
        self._current: Running | None = None
        self._ending: Ending | None = None
        self._exit: tuple[int, object] | None = None  # of a command whose processes are not all gone yet
        self._suspended_ns = 0
        self._shift_ns = 0
        self._ends: list[CommandEnd] = []
        self._ends_since = 0
        self._lease_end_ns = setup.lease_end_ns
        self._closing_ns = 0
        self._dirty_since = 0
        self._next_tick = 0
        self._soon: int | None = None
        self._capped = 0
        board = create_board()
        self._board = Board(board)
        features = ["subreaper"] if become_subreaper() else []
        features += [name for name in ("cgroup", "freezer", "memory", "pids") if getattr(setup, name)]
        if setup.has_memory and "memory" not in features:
            features.append("memory")
        self._children = Children()
        self._forks = Forks(setup.pids or setup.cgroup) if setup.pids or setup.cgroup else None
        self._launcher = Launcher(setup.directory, setup.node)
        self._wake_r, self._wake_w = _pipe()
        self._poke_r, self._poke_w = _pipe()
        self._workers = Workers(
            directory=setup.directory, node=setup.node, make_group=self._make_group, poke_fd=self._poke_w, surprise=self._surprise
        )
        self._workers.set_lease(setup.lease_end_ns)
        signal.signal(signal.SIGCHLD, _wake)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        control.setblocking(False)
        for source in (control, self._wake_r, self._poke_r):
            self._selector.register(source, selectors.EVENT_READ)
        self._send(frames.SpawnerUp(pid=os.getpid(), features=tuple(features)), [board])

    def adopt(self, reader: FrameReader[object], orders: list[object]) -> None:
        """Goes on with what arrived together with the set-up."""
        self._reader = reader
        for order in orders:
            self._obey(order)
        self._advance()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        """Until the socket closes or a `Shutdown` is done."""
        gc.collect()
        gc.freeze()
        while True:
            for key, _ in self._selector.select(self._timeout()):
                if key.fileobj is self._control:
                    self._push()
                    self._receive()
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.fileobj, 4096)  # type: ignore[arg-type]
                    if key.fileobj == self._poke_r:
                        self._next_tick = 0
            self._reap()
            now = time.clock_gettime_ns(CLOCK)
            if now >= self._next_tick or (self._soon is not None and now >= self._soon):
                self._tick(now)
            self._advance()
            self._report()
            if self._closing_ns and self._current is None and not self._workers:
                self._end()

    def _timeout(self) -> float:
        now = time.clock_gettime_ns(CLOCK)
        until = self._next_tick if self._soon is None else min(self._next_tick, self._soon)
        if self._ends:
            until = min(until, self._ends_since + _REPORT_NS)
        if self._current is not None and not self._current.is_told:
            until = min(until, self._current.started_ns + _REPORT_NS)
        return max(0, until - now) / 1e9

    def _tick(self, now: int) -> None:
        """Everything that nobody tells: limits, leases, memory, files that grow, what lingers."""
        calm = self._workers.calm(now)
        self._soon = self._workers.check(now)
        if self._current is not None:
            calm = False
            self._check_command(self._current, now)
        if self._dirty_since:
            self._clean(now)
        lingers = self._exit is not None or self._dirty_since
        self._next_tick = now + (_LINGER_TICK_NS if lingers else _SLOW_TICK_NS if calm else _TICK_NS)

    def _sooner(self, when: int) -> None:
        self._soon = when if self._soon is None else min(self._soon, when)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data = self._control.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(orphaned=True)
        try:
            orders = self._reader.feed(data)
        except FrameError as error:
            sys.stderr.write(f"rmgr spawner {os.getpid()}: {error}\n")
            self._end(orphaned=True)
        for order in orders:
            self._obey(order)

    def _obey(self, order: object) -> None:
        now = time.clock_gettime_ns(CLOCK)
        match order:
            case frames.CommandBatch():
                self._queue.extend((order, item) for item in order.items)
            case frames.StartWorker():
                self._start_worker(order)
            case frames.Lease():
                self._lease_end_ns = order.end_ns
                self._workers.set_lease(order.end_ns)
                self._next_tick = 0
            case frames.RecallCommands():
                self._return(list(self._queue)[order.keep :], Reason.NONE)
            case frames.Shutdown():
                self._closing_ns = now + order.grace_us * 1000 + 1
                self._return(list(self._queue), Reason.NONE)
                self._stop_all(Reason.USER_CANCEL, order.grace_us, now)
            case frames.Stop() | frames.Signal() | frames.Suspend():
                self._next_tick = 0
                if order.worker:
                    self._to_worker(order, now)
                else:
                    self._to_command(order, now)
            case _:
                self._surprise("unknown_order", type(order).__name__)

    def _to_worker(self, order: frames.Stop | frames.Signal | frames.Suspend, now: int) -> None:
        watched = self._workers.get(order.worker)
        if watched is None or (order.seq and watched.board.seq != order.seq):
            return
        match order:
            case frames.Stop():
                self._workers.stop(watched, order.seq, order.reason, order.grace_us, now)
            case frames.Signal():
                self._workers.signal(watched, order.signum)
            case frames.Suspend():
                (self._workers.resume if order.resume else self._workers.suspend)(watched, now)

    def _to_command(self, order: frames.Stop | frames.Signal | frames.Suspend, now: int) -> None:
        current = self._current
        if current is None or (order.seq and current.item.seq != order.seq):
            if isinstance(order, frames.Stop):
                self._drop(order.seq, order.reason)
            return
        match order:
            case frames.Stop():
                self._stop_command(order.reason, order.grace_us, now)
            case frames.Signal():
                send_all(current.pid, order.signum, current.group)
            case frames.Suspend(resume=False):
                self._suspend(current, now)
            case frames.Suspend():
                self._resume(current, now)

    def _drop(self, seq: int, reason: Reason) -> None:
        """A queued command is not to run."""
        for entry in list(self._queue):
            if entry[1].seq == seq:
                self._queue.remove(entry)
                self._ended(CommandEnd(seq=seq, reason=reason, started_us=time.time_ns() // 1000, detail="it had not begun"))

    def _return(self, entries: list[tuple[CommandBatch, CommandItem]], reason: Reason) -> None:
        for entry in entries:
            self._queue.remove(entry)
        if entries:
            self._send(frames.CommandsReturned(tuple(item.seq for _, item in entries), reason))

    # -- workers -----------------------------------------------------------------------------------------------------

    def _start_worker(self, spec: frames.StartWorker) -> None:
        try:
            forked, fds = self._workers.fork(spec)
        except OSError as error:
            detail = f"a worker cannot be started: {error.strerror}"
            self._send(frames.WorkerGone(worker=spec.worker, reason=Reason.WORKER_LOST, detail=detail))
            self._surprise("fork_failed", detail)
            return
        self._send(forked, fds)
        self._next_tick = 0

    def _make_group(self, name: str) -> Group | None:
        setup = self._setup
        if not (setup.cgroup or setup.freezer or setup.memory):
            return None
        try:
            return Group(setup.cgroup, setup.freezer, setup.memory, name, has_memory=setup.has_memory)
        except OSError as error:
            self._surprise("cgroup_failed", f"{name}: {error.strerror}")
            return None

    # -- commands ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Starts the next command when there is none and nothing of the last one is left."""
        while self._current is None and self._queue and not self._dirty_since and not self._closing_ns:
            batch, item = self._queue.popleft()
            now = time.clock_gettime_ns(CLOCK)
            if batch.shape.exclusive and now >= self._lease_end_ns:
                self._queue.appendleft((batch, item))
                self._return([entry for entry in self._queue if entry[0].shape.exclusive], Reason.LEASE_LOST)
                continue
            limited = batch.shape.memory_bytes and (self._setup.has_memory or self._setup.memory)
            group = self._make_group(f"c{item.seq}") if batch.isolate or limited else None
            if group is not None and batch.shape.memory_bytes:
                group.set_memory(batch.shape.memory_bytes)
            self._board.start(item.seq, now)
            try:
                self._current = self._launcher.start(batch, item, group)
            except StartFailed as error:
                if group is not None:
                    group.remove()
                self._ended(self._launcher.failed(batch, item, error))
            self._shift_ns = self._suspended_ns = 0
            self._next_tick = min(self._next_tick, now + _TICK_NS)
            shape = batch.shape
            if shape.limit_us:
                self._sooner(now + shape.limit_us * 1000)
            if shape.memory_bytes:
                self._sooner(now + 2 * _MS)

    def _check_command(self, current: Running, now: int) -> None:
        shape = current.batch.shape
        if self._exit is not None and (not self._strangers() or (self._ending is not None and now >= self._ending.kill_ns)):
            self._finish(current)
            return
        if self._ending is not None:
            if now >= self._ending.kill_ns and not self._ending.killed:
                self._kill_command(current, self._ending.reason)
            elif not self._ending.killed:
                self._sooner(self._ending.kill_ns)
        if shape.exclusive and not (self._ending is not None and self._ending.killed):
            if now >= self._lease_end_ns:
                self._surprise("lease_kill", f"command {current.item.seq}")
                self._kill_command(current, Reason.LEASE_LOST)
                return
            self._sooner(self._lease_end_ns)
        if shape.limit_us and self._ending is None and not self._suspended_ns:
            end = current.started_ns + shape.limit_us * 1000 + self._shift_ns
            if now >= end:
                self._stop_command(Reason.TIME_LIMIT, shape.grace_us, now)
            else:
                self._sooner(end)
        if shape.memory_bytes and not (current.group is not None and current.group.limits_memory):
            used = resident_bytes(current.pid, current.group, also=self._strangers())
            if used > shape.memory_bytes:
                self._kill_command(current, Reason.OUT_OF_MEMORY)
                return
            self._sooner(now + max(2 * _MS, min(_TICK_NS, (shape.memory_bytes - used) // 5)))  # it may grow by 5 bytes/ns
        for path in (current.out_path, current.err_path):
            if trim_path(path, shape.output_cap) and self._capped != current.item.seq:
                self._capped = current.item.seq
                self._surprise("output_capped", f"command {current.item.seq}")

    def _stop_command(self, reason: Reason, grace_us: int, now: int) -> None:
        current = self._current
        if current is None or (self._ending is not None and self._ending.killed):
            return
        if grace_us <= 0:
            self._kill_command(current, reason)
            return
        if self._ending is None:
            self._ending = Ending(reason, now + grace_us * 1000)
        else:
            self._ending.kill_ns = min(self._ending.kill_ns, now + grace_us * 1000)
        self._sooner(self._ending.kill_ns)
        send_all(current.pid, signal.SIGTERM, current.group)
        if self._suspended_ns:
            self._resume(current, now)

    def _kill_command(self, current: Running, reason: Reason) -> None:
        reason = self._ending.reason if self._ending is not None else reason
        self._ending = Ending(reason, 0, killed=True)
        if current.group is not None:
            current.group.kill()
        send_group(current.pid, signal.SIGKILL)
        send(current.pid, signal.SIGKILL)
        if self._exit is not None:
            self._finish(current)

    def _suspend(self, current: Running, now: int) -> None:
        if not self._suspended_ns:
            self._suspended_ns = now
            if current.group is None or not current.group.freeze(True):
                send_all(current.pid, signal.SIGSTOP)

    def _resume(self, current: Running, now: int) -> None:
        if self._suspended_ns:
            self._shift_ns += now - self._suspended_ns
            self._suspended_ns = 0
            if current.group is not None:
                current.group.freeze(False)
            send_all(current.pid, signal.SIGCONT)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            current = self._current
            if current is not None and pid == current.pid:
                self._exit = (status, usage)
                if self._ending is None or self._ending.killed or not self._strangers():
                    self._finish(current)
                else:
                    self._next_tick = 0  # it has the grace time to end what it started
            elif pid in self._launcher.removers:
                self._launcher.removers.discard(pid)
            elif (buried := self._workers.bury(pid, status, usage)) is not None:
                watched, gone = buried
                if watched.group is not None:
                    watched.group.kill()
                send_group(pid, signal.SIGKILL)
                if self._current is None:
                    self._sweep()
                self._workers.forget(watched, self._launcher.remove)
                self._send(gone)
                self._next_tick = 0

    def _finish(self, current: Running) -> None:
        assert self._exit is not None
        status, usage = self._exit
        if current.group is not None:
            current.group.kill()
        leftovers = self._sweep()
        reason = self._ending.reason if self._ending is not None else Reason.NONE
        self._current = self._ending = self._exit = None
        end = self._launcher.finish(current, status, usage, reason=reason, leftovers=leftovers)  # type: ignore[arg-type]
        if current.group is not None:
            current.group.remove()
        self._ended(end)

    def _ended(self, end: CommandEnd) -> None:
        if not self._ends:
            self._ends_since = time.clock_gettime_ns(CLOCK)
        self._ends.append(end)

    def _report(self) -> None:
        """Tells what ended; many short commands share a message, a long one is told of while it runs."""
        current = self._current
        now = time.clock_gettime_ns(CLOCK)
        idle = current is None and not self._queue
        started = ()
        if current is not None and not current.is_told and now - current.started_ns >= _REPORT_NS:
            current.is_told = True
            started = (current.started(),)
        if started or (self._ends and (idle or now - self._ends_since >= _REPORT_NS)):
            self._send(frames.CommandEnds(tuple(self._ends), started))
            self._ends.clear()

    def _known(self) -> set[int]:
        known = self._workers.pids | self._launcher.removers
        if self._current is not None and self._exit is None:
            known.add(self._current.pid)
        return known

    def _strangers(self) -> list[int]:
        known = self._known()
        return [pid for pid in self._children.pids() if pid not in known]

    def _sweep(self) -> int:
        """Ends what the last piece of work left behind; returns how many processes that was."""
        killed, left = kill_strangers(self._children, self._known(), forks=self._forks)
        if killed:
            self._surprise("leftovers", f"{killed} processes killed")
        if left and not self._dirty_since:
            self._dirty_since = time.clock_gettime_ns(CLOCK)
            self._next_tick = 0
        return killed

    def _clean(self, now: int) -> None:
        """Something did not die: again, and then the whole slot (the Starter opens another)."""
        _, left = kill_strangers(self._children, self._known(), forks=self._forks)
        if not left:
            self._dirty_since = 0
        elif now - self._dirty_since > 5_000 * _MS:
            self._surprise("escaped", f"{left} processes cannot be killed")
            self._report()
            self._end()

    def _stop_all(self, reason: Reason, grace_us: int, now: int) -> None:
        if self._current is not None:
            self._stop_command(reason, grace_us, now)
        for watched in self._workers:
            self._workers.stop(watched, 0, reason, grace_us, now)

    def _end(self, *, orphaned: bool = False) -> NoReturn:
        """Kills everything, and ends."""
        for watched in self._workers:
            self._workers.kill(watched, Reason.NODE_LOST, 0)
        if self._current is not None:
            self._kill_command(self._current, Reason.NODE_LOST)
        kill_strangers(self._children, set(), forks=self._forks)
        for watched in self._workers:
            if watched.group is not None:
                watched.group.remove()
        if self._current is not None and self._current.group is not None:
            self._current.group.remove()
        if orphaned:
            os.chdir("/")
            shutil.rmtree(self._setup.directory, ignore_errors=True)
        else:
            self._control.setblocking(True)
            self._control.settimeout(1.0)
            self._push()
        _, left = kill_strangers(self._children, set(), forks=self._forks)
        if left and self._setup.cgroup:
            write_file(os.path.join(self._setup.cgroup, "cgroup.kill"), "1")
        os._exit(0)

    def _on_term(self, _signum: int, _frame: object) -> None:
        if not self._closing_ns:
            self._closing_ns = time.clock_gettime_ns(CLOCK)
            self._stop_all(Reason.NODE_LOST, 0, self._closing_ns)

    # -- telling the Starter ---------------------------------------------------------------------------------------------

    def _surprise(self, what: str, detail: str) -> None:
        self._send(frames.Surprise(what, detail))

    def _send(self, frame: object, fds: list[int] | None = None) -> None:
        """Queues a frame: a Starter that is stopped must not stop the spawner."""
        self._outbox.append((frames.encode(frame), fds or []))
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
                self._outbox.clear()  # the Starter is gone: the read side says so
                return
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._outbox[0] = (data[sent:], [])
            else:
                self._outbox.popleft()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        if self._selector.get_key(self._control).events != events:
            self._selector.modify(self._control, events)


def _wake(_signum: int, _frame: object) -> None:
    """The byte in the wake-up pipe is what counts."""


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def main(fd: int) -> None:
    """Runs a spawner on control socket `fd`; its first frame is the `Setup`."""
    path = os.environ.pop("RMGR_SPAWNER_PYTHONPATH", None)
    if path:
        os.environ["PYTHONPATH"] = path
    elif path is not None:
        os.environ.pop("PYTHONPATH", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    control = socket.socket(fileno=fd)
    reader: FrameReader[object] = FrameReader(ToSpawner)
    first: list[object] = []
    while not first:
        data = control.recv(_RECEIVE)
        if not data:
            return
        first = reader.feed(data)
    setup = first[0]
    assert isinstance(setup, Setup)
    prefer_for_oom(_OOM_SCORE)
    try:
        os.chdir(setup.directory)
        become(setup.uid, setup.gid, setup.groups)
    except OSError as error:
        control.sendall(frames.encode(frames.Surprise("spawner_failed", f"{error}")))
        raise SystemExit(1) from None
    if setup.no_new_privs:
        forbid_new_privileges()
    os.umask(0o022)
    spawner = Spawner(control, setup)
    spawner.adopt(reader, first[1:])
    spawner.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
