"""One place to run work in, as its Starter sees it: a spawner process, the orders to it, the facts it reports, and its Python workers.

Messages of a user's spawner are checked before they are believed (`host/distrust.py`): one that makes no sense ends the slot.

A worker gets tasks and gives facts back, each task accounted for exactly once, whatever dies. It runs tasks in the order sent. Tasks that
have not begun can be taken back at any moment (`recall`), even while another holds the interpreter, because the worker looks at the shared
board before each task.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rmgr.adapters.host import distrust, leftovers, workevents
from rmgr.adapters.host.accounts import Account, live_output
from rmgr.adapters.host.channel import Channel, end_program, start_program
from rmgr.model import frames, stream
from rmgr.model.frames import CommandBatch, CommandStarted, Output, TaskBatch, TaskEnd, WorkerGone
from rmgr.model.states import Reason
from rmgr.model.units import counted, signal_name
from rmgr.model.version import PROTOCOL
from rmgr.runner.host import home
from rmgr.runner.host.board import SETTLE_S, Board
from rmgr.runner.host.contain import processor_seconds
from rmgr.runner.host.files import identity_of, remove_tree
from rmgr.runner.host.kernel import CLOCK, OF_SPAWNERS

if TYPE_CHECKING:
    from rmgr.adapters.host.process import NodeRunner

#: Seconds that a killed spawner's socket may take to close.
_BURIED_S = 0.5
#: Seconds, beyond the grace of its work, that a user's spawner may take to end.
_DEAF_S = 15.0
#: Most characters of a surprise that are reported.
_SHOWN = 300


class Slot:
    """One place to run work in: a spawner, at most one command at a time, and its Python workers. Made by `NodeRunner.open_slot`.

    serial: number of slots that the node has opened, this one included.
    """

    def __init__(self, node: NodeRunner, number: int, serial: int, *, python: str, account: Account | None) -> None:
        self._node = node
        self.loop = node.loop
        self.account = account
        self.number = number
        self.name = f"s{number}-{serial}"
        self.directory = node.directory / self.name
        self.pid = 0
        self.features: tuple[str, ...] = ()
        self.is_up = False
        self.is_lost = False
        self.uses = 0  #: how often its owner has given it work
        self.workers: dict[int, Worker] = {}
        self.marker = f"{node.guid}-{self.name}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._commands: dict[int, CommandStarted | None] = {}
        self._board: Board | None = None
        self._closing = False
        self._talk = distrust.Talk() if account is not None else None
        self._ordered_ends = distrust.OrderedEnds()
        self._gone = threading.Event()
        ours = self._start(python)
        group = self._cgroup
        self._channel = Channel(self.loop, ours, frames.FromSpawner, on_frames=self._on_frames, on_end=self._on_end, passes_fds=True)
        self.order(
            frames.Setup(
                slot=number,
                node=node.node,
                directory=str(self.directory),
                cgroup=group.unified if group is not None else "",
                has_memory=group is not None and group.has_memory,
                freezer=group.v1("freezer") if group is not None else "",
                memory=group.v1("memory") if group is not None else "",
                pids=group.v1("pids") if group is not None else "",
                lease_end_ns=node.lease_end_ns,
            )
        )

    def _start(self, python: str) -> socket.socket:
        """Makes its directory and groups, and starts its spawner; returns our end of the socket. Raises: OSError, leaving nothing."""
        with contextlib.ExitStack() as undone:
            account = self.account
            self.directory.mkdir(mode=0o755 if account is None else 0o700)
            undone.callback(remove_tree, self.directory)
            self._home = identity_of(self.directory)
            if account is not None:
                os.chown(self.directory, account.uid, account.gid, follow_symlinks=False)
            self._cgroup = group = self._node.slot_cgroup(self.name)
            if group is not None:
                undone.callback(group.close)
                if account is not None:
                    group.give(account.uid, account.gid)
            # The packages around an installed rmgr were built for this interpreter: another interpreter uses its own rmgr.
            root = "" if python != home.PYTHON and home.ROOT.name.endswith("-packages") else str(home.ROOT)
            cwd = str(self.directory) if account is None else "/"
            self._process, ours = start_program(partial(self._command, python), cwd=cwd, environ=self._environ(), root=root)
            undone.callback(end_program, self._process, 0.0)
            undone.callback(ours.close)
            self.pid = self._process.pid
            leftovers.record_spawner(self._node.directory, self.name, pid=self.pid, marker=self.marker)
            if group is not None and account is None:
                group.add(self.pid)
            undone.pop_all()
        return ours

    def _command(self, python: str, fd: int) -> list[str]:
        """Returns the spawner's command. For an account this trusted interpreter becomes the account first (`python` may be the user's)."""
        argv = [python, "-P", "-m", "rmgr.runner.spawner", str(fd)]
        account = self.account
        if account is None:
            return argv
        argv.append("closed")
        plan = {
            "uid": account.uid,
            "gid": account.gid,
            "groups": account.groups,
            "cgroups": self._cgroup.doors if self._cgroup is not None else (),
            "fd": fd,
            "directory": str(self.directory),
            "processes": self._node.pids_limit_of_user if self._cgroup is None or not self._cgroup.limits_pids else 0,
            "argv": argv,
        }
        return [sys.executable, "-I", "-S", str(home.source("rmgr.runner.host.privileges")), json.dumps(plan)]

    def _environ(self) -> dict[str, str]:
        environ = dict(self._node.environ)
        environ = (environ if self.account is None else self.account.environment(environ)) | {"RMGR_SLOT": self.marker}
        for name in OF_SPAWNERS:
            environ[f"RMGR_SPAWNER_{name}"] = environ.get(name, "")
        environ["PYTHONHASHSEED"] = str(self._node.hash_seed)
        return environ

    # -- the Starter's side ------------------------------------------------------------------------------------------

    @property
    def has_home(self) -> bool:
        """Whether its directory is still the one that was made for it."""
        return identity_of(self.directory) == self._home

    @property
    def freeze_file(self) -> str:
        """File that stops its workers and isolated commands, "" if none."""
        return self._cgroup.freeze_file if self._cgroup is not None else ""

    def processor_seconds(self, worker: Worker) -> tuple[float, float, bool]:
        """Returns (processor time, time waiting for a processor, whether it uses or awaits one now) for a worker and its children.

        A control group also counts processes that the worker has orphaned. Cost: as the function of the same name.
        """
        if self._cgroup is None:
            return processor_seconds(worker.pid)
        group = f"w{worker.number}"
        used_s, waited_s, is_ready = processor_seconds(worker.pid, self._cgroup.members(group))
        return max(used_s, self._cgroup.processor_s(group)), waited_s, is_ready

    def start_worker(self, spec: WorkerSpec) -> Worker:
        """Forks a Python worker; tasks may be sent at once. If the worker cannot be made, `WorkerFailed` and `WorkerEnded` follow."""
        worker = Worker(self, next(self._numbers), spec)
        with self._lock:
            self.workers[worker.number] = worker
        sent = self.order(
            frames.StartWorker(
                worker=worker.number,
                environ=spec.environ,
                sys_path=spec.sys_path,
                archives=tuple(map(str, spec.archives)),
                initializer=spec.initializer,
                python_version=spec.python_version,
                memory_bytes=spec.memory_bytes,
                cloudpickle=spec.cloudpickle,
                protocol=PROTOCOL,
                inline_bytes=self._node.inline_bytes if self.account is None else frames.MAX_INLINE_VALUE,
                program=spec.program,
                argv=spec.argv,
                warnings=spec.warnings,
                settings=spec.settings,
                group=spec.group.rpartition("/")[2],  # behind the user, of whose work it is
            )
        )
        if not sent and self.is_lost:
            self.loop.call(lambda: self._worker_gone(lost_worker(worker.number, "its slot is lost")))
        return worker

    def run(self, batch: CommandBatch) -> bool:
        """Queues commands, run one after another; ends arrive as `CommandsEnded`. Returns False, and sends nothing, if the slot is lost."""
        with self._lock:
            if self.is_lost:
                return False
            for item in batch.items:
                self._commands[item.seq] = None
        self.order(batch)
        return True

    def recall(self, *, keep: int = 0) -> None:
        """Takes back queued commands beyond the next `keep`; `TasksReturned` follows, empty if there were none."""
        self.order(frames.RecallCommands(keep=keep))

    def stop(self, seq: int, *, reason: Reason = Reason.USER_CANCEL, grace_us: int = 5_000_000) -> None:
        """Ends command `seq`, running or queued; `CommandsEnded` reports it with `reason`."""
        with self._lock:
            if seq in self._commands and self.account is not None:
                self._ordered_ends.order(seq, reason)
        self.order(frames.Stop(seq=seq, reason=reason, grace_us=grace_us))

    def signal(self, seq: int, signum: int) -> None:
        """Sends a signal to all processes of the running command `seq`."""
        self.order(frames.Signal(seq=seq, signum=signum))

    def limit(self, seq: int, limit_us: int) -> None:
        """Changes the time limit of the running command (us, 0 = none)."""
        self.order(frames.LimitWork(seq=seq, limit_us=limit_us))

    def suspend(self, seq: int) -> None:
        """Stops all processes of the running command in place."""
        self.order(frames.SuspendWork(seq=seq))

    def resume(self, seq: int) -> None:
        """Continues after `suspend`."""
        self.order(frames.SuspendWork(seq=seq, resume=True))

    def live_output(self, seq: int, stream: str, offset: int, limit: int = 64 * 1024) -> tuple[bytes, int] | None:
        """Returns (output of the running command `seq` on "stdout" or "stderr" from `offset`, next offset).

        None if the command does not run. If the middle of the output was dropped, a line says so, and the next offset is beyond the gap.
        """
        with self._lock:
            started = self._commands.get(seq)
        if started is None:
            return None
        path, at = (started.out, started.out_at) if stream == "stdout" else (started.err, started.err_at)
        read = live_output(path, self.account, at + offset, limit, started.cap)
        with self._lock:
            return (read[0], read[1] - at) if read is not None and seq in self._commands else None

    def close(self, *, grace_us: int = 0) -> None:
        """Ends its work and its spawner; `SlotLost(expected=True)` follows."""
        self._closing = True
        self.order(frames.Shutdown(grace_us=grace_us))
        if self.account is not None:  # the user's processes may have made it deaf
            self.loop.later(grace_us / 1e6 + _DEAF_S, self._insist)

    def _insist(self) -> None:
        if not self._gone.is_set():
            self.kill()

    def wait(self, timeout_s: float) -> None:
        """Waits until it is gone; after `timeout_s` kills it."""
        if not self._gone.wait(timeout_s):
            self.kill()
            self._gone.wait(2.0)

    def kill(self) -> None:
        """Kills the spawner and everything it started, from here."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self.loop.later(_BURIED_S, self._bury)

    def wake(self) -> None:
        """Continues the spawner if its work has stopped it, and notices its death even if another process keeps its socket open."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        if self._process.returncode is not None:
            self.loop.call(self._bury)

    def _bury(self) -> None:
        """Ends the slot of a dead spawner, even if a process that got hold of the other end of its socket lives on."""
        if self._process.poll() is not None and not self._gone.is_set():
            self._channel.drain()
            self._channel.end("closed")

    def order(self, frame: object) -> bool:
        """Sends a control frame."""
        return self._channel.send(stream.encode(frame))

    # -- the selector thread's side ------------------------------------------------------------------------------------

    def tell(self, event: workevents.WorkEvent) -> None:
        """Reports an event of the slot, its commands, or one of its workers."""
        self._node.on_events([event])

    def _on_frames(self, received: list[object], fds: list[int]) -> None:
        try:
            with self.guarded():
                if self._talk is not None:
                    self._talk.heard(self._channel.received, len(received), self._awaited(received))
                for frame in received:
                    self._on_frame(frame, fds)
        except OSError as error:  # no descriptor or memory is left to watch what it has started: the slot ends, not the Starter
            self._channel.end(error.strerror or str(error))

    def _awaited(self, received: list[object]) -> int:
        """Counts the pieces of its work that these frames account for."""
        seqs: set[int] = set()
        workers: set[int] = set()
        for frame in received:
            match frame:
                case frames.CommandEnds():
                    seqs.update([end.seq for end in frame.ends])
                    seqs.update([started.seq for started in frame.started])
                case frames.CommandsReturned():
                    seqs.update(frame.seqs)
                case frames.WorkerForked() | frames.WorkerGone():
                    workers.add(frame.worker)
        return sum(seq in self._commands for seq in seqs) + sum(worker in self.workers for worker in workers)

    def _on_frame(self, frame: object, fds: list[int]) -> None:
        match frame:
            case frames.SpawnerUp():
                distrust.check_process(self.pid, self.account)
                distrust.check_board(fds[0], self.account)
                distrust.check_up(frame, self.account, again=self.is_up)
                with distrust.taken(fds, 1) as (board,):
                    self._board = Board(board)
                self.is_up, self.features = True, frame.features
                self.tell(workevents.SlotUp(self, frame.pid, frame.features))
            case frames.WorkerForked():
                distrust.check_process(frame.pid, self.account)
                distrust.check_board(fds[1], self.account)
                with distrust.taken(fds, 2) as given:
                    worker = self.workers[frame.worker]
                    name = f"{self.name}.w{frame.worker}"
                    with contextlib.suppress(OSError):  # a full disk: the worker is also found by the mark in its spawner's record
                        leftovers.record_spawner(self._node.directory, name, pid=frame.pid, marker=self.marker)
                    worker.attach(frame.pid, frame.directory, given)
            case frames.WorkerGone():
                distrust.check_gone(frame, self.account)
                self._worker_gone(frame)
            case frames.CommandEnds():
                for end in frame.ends:
                    distrust.check_end(end, self.account)
                ends = frame.ends
                with self._lock:
                    if self.account is not None and not all(one.seq in self._commands for one in frame.started):
                        raise distrust.Imposture("it names commands that it was not given")
                    for started in frame.started:
                        self._commands[started.seq] = started
                    if self.account is not None:
                        ends = tuple([self._ordered_ends.command(end) for end in ends])
                    for end in ends:
                        self._commands.pop(end.seq, None)
                    self._ordered_ends.over(end.seq for end in ends)
                if ends:
                    self.tell(workevents.CommandsEnded(self, ends))
            case frames.CommandsReturned():
                with self._lock:
                    for seq in frame.seqs:
                        self._commands.pop(seq, None)
                    self._ordered_ends.over(frame.seqs)
                self.tell(workevents.TasksReturned(self, None, frame.seqs, frame.reason))
            case frames.Surprise():
                distrust.check_surprise(frame, self.account)
                self.tell(workevents.Surprised(self, frame.what, frame.detail[:_SHOWN]))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Ends the slot, not the Starter, when the messages of a user's processes make no sense."""
        try:
            yield
        except distrust.NONSENSE as error:
            if self.account is None:
                raise
            self.tell(workevents.Surprised(self, "imposture", f"work of {self.account.name}: {type(error).__name__}: {error}"))
            self.kill()
            self.loop.call(lambda: self._channel.end("it said what makes no sense"))

    def _worker_gone(self, gone: WorkerGone) -> None:
        with self._lock:
            worker = self.workers.pop(gone.worker, None)
        if worker is not None:
            leftovers.forget(self._node.directory, f"{self.name}.w{gone.worker}")
            worker.end(gone)

    def _on_end(self, why: str) -> None:
        """Kills everything that the spawner started, which is gone or whose stream is broken, then accounts for it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        if self._cgroup is not None:
            self._cgroup.kill()
        killed = leftovers.kill_marked(self.marker)
        how = death_words(self._process.returncode) if why == "closed" else f"was ended: {why}"
        for worker in list(self.workers.values()):
            self._worker_gone(lost_worker(worker.number, lost_words(how)))
        with self._lock:
            self.is_lost = True
            left, self._commands = self._commands, {}
        last = 0
        if self._board is not None:
            last = self._board.begun
            self._board.close()
            self._board = None
        running = tuple(seq for seq in left if seq <= last)
        remove_tree(self.directory)
        if self._cgroup is not None:
            self._cgroup.close()
        leftovers.forget(self._node.directory, self.name)
        self._node.slots.pop(self.name, None)
        self._gone.set()
        if killed:
            self.tell(workevents.Surprised(self, "leftovers", f"{counted(killed, 'process')} of {self.marker}"))
        unstarted = tuple(seq for seq in left if seq not in running)
        self.tell(workevents.SlotLost(slot=self, why=how, running=running, unstarted=unstarted, expected=self._closing))


def death_words(code: int | None) -> str:
    """Describes how a process ended, by its return code as in `subprocess` (None: it still lives)."""
    if code is None or code >= 0:
        return "does not answer" if code is None else f"ended with exit code {code}"
    return f"was killed by {signal_name(-code)}"


def lost_words(how: str) -> str:
    """Explains the end of work whose slot has died."""
    return f"rmgr's process that ran it {how}; work that kills that itself (kill $PPID, pkill -u) ends so"


def lost_worker(worker: int, detail: str) -> WorkerGone:
    """Returns the report that the spawner would have sent about this worker."""
    return WorkerGone(worker=worker, reason=Reason.WORKER_LOST, seq=0, detail=detail)


# -- workers ------------------------------------------------------------------------------------------------------------------

#: Seconds of silence after which the results of a worker that has tasks are read from its board.
_RESCUE_S = 0.05
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_PART = 4 * 1024 * 1024
_ends = msgspec.msgpack.Decoder(tuple[TaskEnd, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Specification of a worker; work with the same specification may share a worker.

    environ: set in the worker from its first instruction (OMP_NUM_THREADS must be there before numpy is loaded).
    sys_path: added where they exist. argv: `sys.argv`. warnings: filters, () = the usual ones. settings: what differs from a fresh
        interpreter. archives: zip files on this node. initializer: pickle of (function, args).
    python_version, cloudpickle: the client's "3.11" and "3.1.1". memory_bytes: limit of the worker's own cgroup, 0 = none.
    group: workers of different groups are never shared (an Executor with an initializer, another user's work). program: nor are
        workers of different programs, which differ in `__main__`.
    """

    environ: dict[str, str] = field(default_factory=dict, hash=False)
    sys_path: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str, str, str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    archives: tuple[str, ...] = ()
    initializer: bytes = b""
    python_version: str = ""
    cloudpickle: str = ""
    memory_bytes: int = 0
    group: str = ""
    program: str = ""


class Worker:
    """Handle of one worker; made by `Slot.start_worker`. Its methods may be called from any thread and never block."""

    def __init__(self, slot: Slot, number: int, spec: WorkerSpec) -> None:
        self.slot = slot
        self.number = number
        self.spec = spec
        self.pid = 0
        self.directory = ""
        self.is_ready = False
        self.is_refused = False  #: its environment could not be set up
        self.is_leaving = False  #: takes no more tasks (it ends itself, or is dead)
        self.blocked_seq = 0
        self._lock = threading.Lock()
        self._outstanding: dict[int, None] = {}
        self._last_seq = 0
        self._highest = 0  # every task up to this one has been run or skipped
        self._revoked = (0, 0)
        self._early: list[bytes] = []
        self._channel: Channel | None = None
        self._board: Board | None = None
        self._watching = False
        self._heard = False
        self._talk = distrust.Talk() if slot.account is not None else None
        self._ordered_ends = distrust.OrderedEnds()
        self._is_asking = False  #: whether it asks for the cores of its blocked task

    # -- the Starter's side ----------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Number of outstanding tasks."""
        return len(self._outstanding)

    @property
    def backlog(self) -> int:
        """Bytes sent but not yet taken by the worker."""
        channel = self._channel
        return channel.backlog if channel is not None else sum(map(len, self._early))

    def running(self) -> tuple[int, int]:
        """Returns (seq, started_ns CLOCK_BOOTTIME) of the running task, or (0, 0) if none runs."""
        board = self._board
        try:
            return board.running() if board is not None and self._outstanding else (0, 0)
        except ValueError:  # the worker has just ended: the board is closed
            return 0, 0

    def send(self, batch: TaskBatch) -> bool:
        """Sends tasks (seqs from `NodeRunner.next_seq`, ascending). Returns False if the worker is gone; then nothing was sent.

        Raises: FrameError when one task alone is longer than a frame may be (large payloads go in files).
        """
        data = b"".join(stream.encode(part) for part in _parts(batch))
        with self._lock:
            if self.is_leaving:
                return False
            for item in batch.items:
                self._outstanding[item.seq] = None
            self._last_seq = batch.items[-1].seq
            if self._channel is None:
                self._early.append(data)
                return True
            watch = not self._watching and len(self._outstanding) > 1  # a single task waits for no other: its end is reported at once
            self._watching = self._watching or watch
        self._channel.send(data)
        if watch:
            self.slot.loop.later(_RESCUE_S, self._rescue)
        return True

    def recall(self, *, keep: int = 0) -> None:
        """Takes back the tasks that have not begun, beyond the next `keep` (all of them while the worker is being forked).

        `TasksReturned` follows after a few ms; it is empty if there was nothing to take back.
        """
        self.slot.loop.call(lambda: self._recall(keep))

    def stop(self, seq: int = 0, *, reason: Reason = Reason.USER_CANCEL, grace_us: int = 5_000_000) -> None:
        """Ends task `seq`; 0 ends the worker.

        A running task gets SIGTERM, then SIGKILL after `grace_us`; it is reported in `TasksEnded` (it gave way, the worker lives on) or in
        `WorkerEnded`, with `reason`. A task that has not begun comes back in `TasksReturned`, together with the tasks behind it.
        """
        order = frames.Stop(worker=self.number, seq=seq, reason=reason, grace_us=grace_us)
        if seq:
            with self._lock:
                if seq in self._outstanding and self.slot.account is not None:
                    self._ordered_ends.order(seq, reason)
            self.slot.loop.call(lambda: self._stop(order))
        else:
            self.slot.order(order)

    def signal(self, signum: int, seq: int = 0) -> None:
        """Sends a signal to all processes of the running task."""
        self.slot.order(frames.Signal(worker=self.number, seq=seq, signum=signum))

    def suspend(self) -> None:
        """Stops the worker and its child processes in place."""
        self.slot.order(frames.SuspendWork(worker=self.number))

    def resume(self) -> None:
        """Continues after `suspend`."""
        self.slot.order(frames.SuspendWork(worker=self.number, resume=True))

    def limit(self, seq: int, limit_us: int) -> None:
        """Changes the time limit of the running task (us, 0 = none)."""
        self.slot.order(frames.LimitWork(worker=self.number, seq=seq, limit_us=limit_us))

    def grant(self, seq: int) -> None:
        """Answers `WorkerUnblocking`: the task gets its cores back."""
        self.blocked_seq = 0
        self._is_asking = False
        if self._channel is not None:
            self._channel.send(stream.encode(frames.Granted(seq)))

    def live_output(self, seq: int, stream: str, offset: int, limit: int = 64 * 1024) -> tuple[bytes, int] | None:
        """Returns (output of the running task `seq` on "stdout" or "stderr" from `offset`, next offset), as `Slot.live_output` does."""
        board = self._board
        if board is None or self.running()[0] != seq:
            return None
        try:
            cap = board.output_cap
        except ValueError:  # the worker has just ended: the board is closed
            return None
        read = live_output(os.path.join(self.directory, stream), self.slot.account, offset, limit, cap)
        return read if self.running()[0] == seq else None

    # -- the selector thread's side ----------------------------------------------------------------------------------

    def attach(self, pid: int, directory: str, given: list[int]) -> None:
        """Connects to the worker that the spawner has forked. given: descriptors of its socket (taken out of the list) and its board."""
        if self._channel is not None:
            raise distrust.Imposture("it forks a worker twice")
        self.pid, self.directory = pid, directory
        self._board = Board(given[1])
        channel = Channel(
            self.slot.loop,
            distrust.stream_socket(given),
            frames.FromWorker,
            on_frames=self._on_frames,
            on_end=_nothing,  # the spawner reports its death
        )
        with self._lock:  # nothing overtakes what was sent early
            early, self._early = self._early, []
            for data in early:
                channel.send(data)
            self._channel = channel
            self._watching = bool(early)
        if early:
            self.slot.loop.later(_RESCUE_S, self._rescue)

    def end(self, gone: WorkerGone) -> None:
        """Accounts for every task of the dead worker, after reading the results that it left."""
        with self._lock:
            self.is_leaving = True
        started = current = 0
        if self._channel is not None:
            self._channel.drain()
        if self._board is not None:
            self._take_unsent()
            current, started = self._board.running()
        with self._lock:
            left, self._outstanding = tuple(self._outstanding), {}
        seq = current if current in left else 0
        in_initializer = not self.is_ready and not self.is_refused and bool(self.spec.initializer)
        if not self.is_ready and not self.is_refused and (gone.exit_code is not None or gone.signal in _CRASHES):
            how = f"exit code {gone.exit_code}" if gone.exit_code is not None else signal_name(gone.signal)
            where = "initializer" if in_initializer else "set-up"
            self._refuse(b"", f"the worker process ended in its {where} ({how})", in_initializer, gone.out, gone.err)
        if self._channel is not None:
            self._channel.close()
        if self._board is not None:
            self._board.close()
            self._board = None
        started_us, elapsed_us = _wall_times(started) if seq else (0, 0)
        unstarted = tuple(other for other in left if other != seq)
        if seq and self.slot.account is not None:
            gone = msgspec.structs.replace(gone, reason=self._ordered_ends.believed(seq, gone.reason))
        ended = workevents.WorkerEnded(
            slot=self.slot,
            worker=self,
            seq=seq,
            reason=gone.reason,
            exit_code=gone.exit_code,
            signal=gone.signal,
            detail=f"{gone.detail} while its initializer ran" if in_initializer and gone.detail else gone.detail,
            started_us=started_us,
            elapsed_us=elapsed_us,
            cpu_us=gone.cpu_us if seq else 0,
            max_rss_kib=gone.max_rss_kib,
            out=gone.out,
            err=gone.err,
            unstarted=unstarted,
        )
        self.slot.tell(ended)

    def _on_frames(self, received: list[object], _fds: list[int]) -> None:
        with self.slot.guarded():
            if self._talk is not None and self._channel is not None:
                self._talk.heard(self._channel.received, len(received), self._awaited(received))
            self._take(received)

    def _awaited(self, received: list[object]) -> int:
        """Counts the pieces of its work that these frames account for."""
        seqs: set[int] = set()
        asks = False
        for frame in received:
            match frame:
                case frames.TaskEnds():
                    seqs.update([end.seq for end in frame.ends])
                case frames.Skipped():
                    seqs.update(frame.seqs)
                case frames.Blocked():
                    asks = asks or not self.blocked_seq
                case frames.Unblocking():  # after which it waits for an answer
                    asks = asks or not self._is_asking
        return sum(seq in self._outstanding for seq in seqs) + asks

    def _take(self, received: list[object]) -> None:
        self._heard = True
        slot = self.slot
        for frame in received:
            match frame:
                case frames.TaskEnds():
                    if known := self._account(frame.ends):
                        slot.tell(workevents.TasksEnded(slot, self, known))
                case frames.Skipped():
                    with self._lock:
                        self._highest = max(self._highest, frame.seqs[-1])
                        seqs = tuple(seq for seq in frame.seqs if self._outstanding.pop(seq, self) is None)
                        self._ordered_ends.over(frame.seqs)
                    if seqs:
                        slot.tell(workevents.TasksReturned(slot, self, seqs, Reason.NONE))
                case frames.Blocked():
                    self.blocked_seq = frame.seq
                    slot.tell(workevents.WorkerBlocked(slot, self, frame.seq))
                    self._recall(0)
                case frames.Unblocking():
                    if frame.seq in self._outstanding:
                        self._is_asking = True
                        slot.tell(workevents.WorkerUnblocking(slot, self, frame.seq))
                    else:  # a thread that outlived its task: no task needs cores
                        self.grant(frame.seq)
                case frames.WorkerUp():
                    if self.is_ready:
                        raise distrust.Imposture("a worker is up twice")
                    self.is_ready = True
                case frames.WorkerRefused():
                    distrust.check_output(frame.out, frame.err)
                    self._refuse(frame.error, frame.summary, frame.initializer, frame.out, frame.err)
                case frames.Leaving():
                    self.is_leaving = True

    def _refuse(self, error: bytes, summary: str, initializer: bool, out: Output, err: Output) -> None:
        self.is_leaving = self.is_refused = True
        self.slot.tell(workevents.WorkerFailed(self.slot, self, error, summary, initializer, out, err))

    def _account(self, ends: tuple[TaskEnd, ...]) -> tuple[TaskEnd, ...]:
        """Removes the tasks from the outstanding ones; returns those not yet accounted for (socket and board may both bring an end)."""
        if self.slot.account is not None:
            for end in ends:
                distrust.check_end(end, self.slot.account)
            with self._lock:
                ends = tuple([self._ordered_ends.task(end) for end in ends])
                self._ordered_ends.over(end.seq for end in ends)
        with self._lock:
            self._highest = max(self._highest, ends[-1].seq)
            pop = self._outstanding.pop
            known = tuple([end for end in ends if pop(end.seq, self) is None])
        if known and known[-1].seq == self.blocked_seq:
            self.blocked_seq = 0
        return known

    def _recall(self, keep: int, *, answer: bool = True) -> None:
        board = self._board
        if board is None:
            with self._lock:  # not forked yet: nothing has been sent
                seqs = tuple(self._outstanding)
                self._early.clear()
                self._outstanding.clear()
            self.slot.tell(workevents.TasksReturned(self.slot, self, seqs, Reason.NONE))
            return
        with self._lock:
            current = board.begun
            ahead = [seq for seq in self._outstanding if seq > current]
            if len(ahead) > keep:
                after = ahead[keep - 1] if keep else current
                if max(self._highest, current) < self._revoked[1]:  # tasks revoked before and not yet skipped stay revoked
                    after = min(after, self._revoked[0])
                self._revoked = (after, self._last_seq)
                board.revoke(*self._revoked)
            revoked = self._revoked
        self.slot.loop.later(SETTLE_S, lambda: self._settle(*revoked, answer=answer))

    def _stop(self, order: frames.Stop) -> None:
        board = self._board
        begun = board.begun if board is not None else 0  # read once, and first: a task that begins later counts as ahead, and is rechecked
        with self._lock:
            ahead = [seq for seq in self._outstanding if seq > begun]
        if order.seq in ahead:
            self._recall(ahead.index(order.seq), answer=False)
            # if it has begun in the meantime, it is still outstanding, and this stops it
            self.slot.loop.later(2 * SETTLE_S, lambda: self._stop(order))
        elif board is not None and board.seq == order.seq:
            self.slot.order(order)

    def _settle(self, after: int, until: int, *, answer: bool) -> None:
        """Returns the tasks revoked a moment ago that are still ahead of the worker: they cannot start any more."""
        board = self._board
        if board is None:  # the worker has died in the meantime: everything is accounted for
            if answer:
                self.slot.tell(workevents.TasksReturned(self.slot, self, (), Reason.NONE))
            return
        with self._lock:
            after = max(after, board.begun)
            seqs = tuple(seq for seq in self._outstanding if after < seq <= until)
            for seq in seqs:
                del self._outstanding[seq]
            self._ordered_ends.over(seqs)
        if seqs or answer:
            self.slot.tell(workevents.TasksReturned(self.slot, self, seqs, Reason.NONE))

    def _rescue(self) -> None:
        """Reads results from the board, so that a quick task's result does not wait for a slow task later in its batch."""
        with self._lock:
            if len(self._outstanding) < 2 or self._board is None:
                self._watching = False
                return
        if not self._heard:
            self._take_unsent()
        self._heard = False
        self.slot.loop.later(_RESCUE_S, self._rescue)

    def _take_unsent(self) -> None:
        if self._board is None:
            return
        data, count = self._board.unsent()
        if count:
            with self.slot.guarded():
                known = self._account(ends_on_board(data, count))
                if known:
                    self.slot.tell(workevents.TasksEnded(self.slot, self, known))


def ends_on_board(data: bytes, count: int) -> tuple[TaskEnd, ...]:
    """Decodes the `count` ends that a worker has left on its board. Raises FrameError, as for a frame of the worker."""
    try:
        return _ends.decode(b"\xdd" + count.to_bytes(4, "big") + data)
    except stream.UNREADABLE as error:
        raise stream.FrameError(f"the board does not decode: {str(error)[:300]}") from None


def _parts(batch: TaskBatch) -> list[TaskBatch]:
    """Splits the batch where its payloads would make a frame too long."""
    parts, start, size = [], 0, 0
    for number, item in enumerate(batch.items):
        size += len(item.payload)
        if size > _PART and number > start:
            parts.append(msgspec.structs.replace(batch, items=batch.items[start:number]))
            start, size = number, len(item.payload)
    if not parts:
        return [batch]
    parts.append(msgspec.structs.replace(batch, items=batch.items[start:]))
    return parts


def _wall_times(started_ns: int) -> tuple[int, int]:
    """Returns (started_us since the epoch, elapsed_us) of work that started at CLOCK_BOOTTIME `started_ns` and ends now."""
    elapsed_us = max(0, (time.clock_gettime_ns(CLOCK) - started_ns) // 1000)
    return time.time_ns() // 1000 - elapsed_us, elapsed_us


def _nothing(_why: str) -> None:
    """Ignores the end of a data socket: the spawner reports it better."""
