"""The spawner's side of Python workers: forks them, enforces limits of their tasks (time, lease, memory, output), reports how they died."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from rmgr.model.frames import NO_OUTPUT, Output, StartWorker, WorkerForked, WorkerGone
from rmgr.model.states import Reason
from rmgr.model.units import signal_name
from rmgr.runner.host.board import Board, create_board
from rmgr.runner.host.contain import OF_WORK, ControlGroup, resident_bytes, send, send_all, send_group
from rmgr.runner.host.kernel import DISK_WAS_FULL, become_subreaper, die_with_parent, is_full, oom_kills, open_to_others, prefer_for_oom
from rmgr.runner.host.outputs import open_output, take, trim_path
from rmgr.runner.python import worker as worker_process

_OOM_SCORE = 800
#: Most bytes of results on the way from a worker: 1 MiB is one send and receive, not five. The system's limit may be lower.
_SEND_BYTES = 1024 * 1024
#: A worker that has been idle this long is looked at less often; it pokes when it starts again.
_CALM_NS = 1_000_000_000


@dataclass(slots=True)
class _Stopping:
    """A stop under way. seq: 0 = the worker itself ends, whatever it runs."""

    seq: int
    reason: Reason
    kill_ns: int


@dataclass(slots=True)
class Watched:
    """A living worker."""

    number: int
    pid: int
    board: Board
    directory: str
    group: ControlGroup | None
    memory_bytes: int
    ooms: int
    stopping: _Stopping | None = None
    killed_for: tuple[int, Reason] | None = None  #: (seq for which it was meant, reason)
    limit: tuple[int, int] = (0, 0)  #: (seq, ns): the changed time limit of a running task
    limit_seq: int = 0  #: the task whose limit was enforced
    suspended_ns: int | None = None  #: start of its suspension; None = not suspended
    shift: tuple[int, int] = (0, 0)  #: (seq, ns by which suspensions extend its time limit)
    busy_ns: float = -math.inf  #: when the worker was last found at work
    capped: set[int] = field(default_factory=set)
    used_bytes: int = 0  #: memory of all its processes when it was killed for that


class Workers:
    """All workers of one slot."""

    def __init__(
        self,
        *,
        directory: str,
        node: str,
        make_group: Callable[[str], ControlGroup | None],
        poke_fd: int,
        surprise: Callable[[str, str], None],
    ) -> None:
        self._directory = directory
        self._node = node
        self._make_group = make_group
        self._poke_fd = poke_fd
        self._surprise = surprise
        self.by_pid: dict[int, Watched] = {}
        self.by_number: dict[int, Watched] = {}
        self.lease_end_ns = 0

    def __len__(self) -> int:
        return len(self.by_pid)

    def __iter__(self) -> Iterator[Watched]:
        return iter(list(self.by_pid.values()))

    @property
    def pids(self) -> set[int]:
        """Pids of the workers themselves."""
        return set(self.by_pid)

    def get(self, number: int) -> Watched | None:
        """Returns a worker, None if it is dead."""
        return self.by_number.get(number)

    # -- birth -------------------------------------------------------------------------------------------------------

    def fork(self, spec: StartWorker) -> tuple[WorkerForked, list[int]]:
        """Forks a worker; returns the message for the Starter, and descriptors to pass (which the caller closes). Raises: OSError."""
        directory = os.path.join(self._directory, f"w{spec.worker}")
        os.mkdir(directory)  # not makedirs: a slot's removed directory must not be made here
        os.mkdir(os.path.join(directory, "cwd"))
        fd = create_board()
        with contextlib.ExitStack() as undo:  # without descriptors, memory or processes nothing stays behind
            undo.callback(os.close, fd)
            board = Board(fd)
            board.lease_end_ns = self.lease_end_ns
            ours, theirs = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            undo.callback(ours.close)
            undo.callback(theirs.close)
            group = self._make_group(f"w{spec.worker}")
            if group is not None and spec.memory_bytes:
                group.set_memory(spec.memory_bytes)
            parent = os.getpid()
            pid = os.fork()
            undo.pop_all()
        if pid == 0:
            self._child(spec, ours, board, directory, group, parent)
        ours.close()
        watched = Watched(spec.worker, pid, board, directory, group, spec.memory_bytes, oom_kills())
        self.by_pid[pid] = self.by_number[spec.worker] = watched
        return WorkerForked(worker=spec.worker, pid=pid, directory=directory), [theirs.detach(), fd]

    def _child(
        self, spec: StartWorker, sock: socket.socket, board: Board, directory: str, group: ControlGroup | None, parent: int
    ) -> NoReturn:
        """Runs in the child, which keeps only what a worker needs of the spawner's."""
        try:
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGCHLD, *OF_WORK):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the worker sets its own handler
            os.setsid()
            if group is not None:
                group.enter()
            become_subreaper()
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
            _close_others({0, 1, 2, sock.fileno(), self._poke_fd})
            line, poke_fd = socket.socket(fileno=worker_process.aside(sock.detach())), worker_process.aside(self._poke_fd)
            open_to_others()
            prefer_for_oom(_OOM_SCORE)

            def poke() -> None:
                with contextlib.suppress(OSError):
                    os.write(poke_fd, b"p")

            worker_process.run(spec, line, board, directory, self._node, poke)
        except BaseException:  # noqa: BLE001 - the end of a process: whatever it is, it is shown and ends here
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    # -- life --------------------------------------------------------------------------------------------------------

    def calm(self, now: int) -> bool:
        """Returns whether all workers can be looked at less often."""
        quiet = True
        for watched in self.by_pid.values():
            board = watched.board
            if watched.stopping is not None:
                quiet = False
            if board.busy:
                watched.busy_ns = now
                board.watched = True
            if board.watched:
                if now - watched.busy_ns > _CALM_NS:
                    board.watched = False
                    if not board.busy:
                        continue
                    board.watched = True
                quiet = False
        return quiet

    def check(self, now: int) -> int | None:
        """Enforces limits; returns when to look again at the latest (ns), None for the usual tick."""
        soonest: int | None = None
        for watched in self:
            board = watched.board
            seq, started = board.running()
            if (stopping := watched.stopping) is not None:
                if stopping.seq and seq != stopping.seq:
                    watched.stopping = None
                elif now >= stopping.kill_ns or (not stopping.seq and not seq):
                    self.kill(watched, stopping.reason, stopping.seq or seq)
                    continue
                else:
                    soonest = _sooner(soonest, stopping.kill_ns)
                    if not stopping.seq:
                        soonest = _sooner(soonest, now + 20_000_000)
            if not seq:
                continue
            if board.exclusive and now >= self.lease_end_ns:
                self._surprise("lease_kill", f"worker {watched.number} task {seq}")
                self.kill(watched, Reason.LEASE_LOST, seq)
                continue
            if board.exclusive:
                soonest = _sooner(soonest, self.lease_end_ns)
            limit_ns = watched.limit[1] if watched.limit[0] == seq else board.limit_ns
            if limit_ns and watched.limit_seq != seq and watched.suspended_ns is None:
                end = started + limit_ns + (watched.shift[1] if watched.shift[0] == seq else 0)
                if now >= end:
                    watched.limit_seq = seq
                    self.stop(watched, seq, Reason.TIME_LIMIT, board.grace_ns // 1000, now)
                    soonest = _sooner(soonest, now + board.grace_ns)
                else:
                    soonest = _sooner(soonest, end)
            limit = board.memory_bytes or watched.memory_bytes
            if limit and not (watched.group is not None and watched.group.limits_memory and watched.memory_bytes):
                used = resident_bytes(watched.pid, watched.group)
                if used > limit:
                    watched.used_bytes = used
                    self.kill(watched, Reason.OUT_OF_MEMORY, seq)
                    continue
                soonest = _sooner(soonest, now + max(2_000_000, min(100_000_000, (limit - used) // 5)))  # 5 bytes/ns
            for stream in ("stdout", "stderr"):
                if trim_path(os.path.join(watched.directory, stream), board.output_cap) and seq not in watched.capped:
                    watched.capped = {seq}
                    self._surprise("output_capped", f"worker {watched.number} task {seq}")
        return soonest

    def stop(self, watched: Watched, seq: int, reason: Reason, grace_us: int, now: int) -> None:
        """Asks a task (or, with seq 0, the worker) to end; kills it after the grace. Ignores a task that does not run."""
        current = watched.board.seq
        if seq and current != seq:
            return
        if grace_us <= 0:
            self.kill(watched, reason, seq or current)
            return
        watched.stopping = _Stopping(seq, reason, now + grace_us * 1000)
        watched.board.terminate(current, reason)
        send(watched.pid, signal.SIGTERM)
        send_all(watched.pid, signal.SIGTERM, watched.group, leader_too=False)
        if watched.suspended_ns is not None:
            self.resume(watched, now)

    def kill(self, watched: Watched, reason: Reason, seq: int) -> None:
        """Kills the worker and all that it started; `bury` follows when it is reaped."""
        watched.killed_for = (seq, reason)
        watched.stopping = None
        if watched.group is not None:
            watched.group.kill()
        send_group(watched.pid, signal.SIGKILL)
        send(watched.pid, signal.SIGKILL)

    def signal(self, watched: Watched, signum: int) -> None:
        """Sends a signal to the worker and all that it started."""
        send_all(watched.pid, signum, watched.group)

    def suspend(self, watched: Watched, now: int) -> None:
        """Stops it in place; its time limit stops, too."""
        if watched.suspended_ns is None:
            watched.suspended_ns = now
            if watched.group is None or not watched.group.freeze(True):
                send_all(watched.pid, signal.SIGSTOP)

    def resume(self, watched: Watched, now: int) -> None:
        """Continues a suspended worker."""
        if watched.suspended_ns is not None:
            seq = watched.board.seq
            before = watched.shift[1] if watched.shift[0] == seq else 0
            watched.shift = (seq, before + now - watched.suspended_ns)
            watched.suspended_ns = None
            if watched.group is not None:
                watched.group.freeze(False)
            send_all(watched.pid, signal.SIGCONT)

    def set_lease(self, end_ns: int) -> None:
        """Sets the time until which exclusive tasks may run."""
        self.lease_end_ns = end_ns
        for watched in self.by_pid.values():
            watched.board.lease_end_ns = end_ns

    # -- death -------------------------------------------------------------------------------------------------------

    def bury(self, pid: int, status: int, usage: resource.struct_rusage) -> tuple[Watched, WorkerGone] | None:
        """Explains the death of process `pid`; None if it is no worker. The caller ends what the worker left behind."""
        watched = self.by_pid.pop(pid, None)
        if watched is None:
            return None
        del self.by_number[watched.number]
        seq = watched.board.seq
        code, signum = (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), 0)
        meant, reason, detail = seq, Reason.WORKER_LOST, ""
        if watched.killed_for is not None:
            meant, reason = watched.killed_for
        elif signum == signal.SIGKILL:
            reason = Reason.OUT_OF_MEMORY if self._had_oom(watched) else Reason.WORKER_LOST
            detail = "its worker process was killed from outside" if reason is Reason.WORKER_LOST else ""
        elif signum:
            reason, detail = Reason.SIGNAL, f"killed by {signal_name(signum)}"
        elif seq:
            reason, detail = Reason.EXIT_CODE, f"the task ended its worker process with exit code {code}"
        if (code is not None or reason is Reason.WORKER_LOST) and not os.path.isdir(watched.directory):
            code, signum = None, 0  # not its own fault, even if it died of that while being stopped
            if watched.killed_for is None:
                reason, detail = Reason.NODE_LOST, f"its directory on node {self._node} was removed"
        if reason in {Reason.EXIT_CODE, Reason.SIGNAL} and watched.killed_for is None and is_full(self._directory):
            reason, detail = Reason.NODE_LOST, f"{DISK_WAS_FULL} on node {self._node} when it ended ({detail})"
        rss_kib = usage.ru_maxrss
        if reason is Reason.OUT_OF_MEMORY:  # what was compared with the limit: memory of all its processes
            rss_kib = max(rss_kib, watched.used_bytes // 1024, watched.group.peak_bytes() // 1024 if watched.group is not None else 0)
        out, err = self._outputs(watched, seq) if seq or watched.killed_for is None else (NO_OUTPUT, NO_OUTPUT)
        return watched, WorkerGone(
            worker=watched.number,
            reason=reason,
            seq=meant,
            exit_code=code,
            signal=signum,
            cpu_us=int((usage.ru_utime + usage.ru_stime) * 1e6),
            max_rss_kib=rss_kib,
            detail=detail,
            out=out,
            err=err,
        )

    def forget(self, watched: Watched, remove: Callable[[str], None]) -> None:
        """Tidies up after a buried worker; spool files and long outputs stay for the Starter."""
        watched.board.close()
        if watched.group is not None and not watched.group.remove():
            self._surprise("escaped", f"something still lives in the cgroup of worker {watched.number}")
        cwd = os.path.join(watched.directory, "cwd")
        try:
            os.rmdir(cwd)
        except OSError:
            remove(cwd)
        with contextlib.suppress(OSError):
            for stream in ("stdout", "stderr"):
                os.unlink(os.path.join(watched.directory, stream))
            os.rmdir(watched.directory)

    def _outputs(self, watched: Watched, seq: int) -> tuple[Output, Output]:
        taken = []
        for stream, name in (("stdout", "out"), ("stderr", "err")):
            path = os.path.join(watched.directory, stream)
            try:
                fd = open_output(path)
                try:
                    taken.append(take(fd, path, os.path.join(watched.directory, f"{seq}.{name}"), watched.board.output_cap))
                finally:
                    os.close(fd)
            except OSError:
                taken.append(NO_OUTPUT)
        return taken[0], taken[1]

    def _had_oom(self, watched: Watched) -> bool:
        if watched.group is not None and watched.group.limits_memory:
            return watched.group.had_oom()
        return oom_kills() > watched.ooms


def _sooner(soonest: int | None, when: int) -> int:
    return when if soonest is None or when < soonest else soonest


def _close_others(keep: set[int]) -> None:
    try:
        fds = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        fds = list(range(256))
    for fd in fds:
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)
