"""One place to run work in, as its Starter sees it: a spawner process, the orders to it, and the facts it reports.

Messages of a user's spawner are checked before they are believed (`host/distrust.py`): one that makes no sense ends the slot.
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
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rmgr.adapters.host import distrust, leftovers
from rmgr.adapters.host.accounts import Account, live_output
from rmgr.adapters.host.channel import Channel, end_program, start_program
from rmgr.adapters.host.worker import Worker, WorkerSpec
from rmgr.adapters.host.workevents import CommandsEnded, SlotLost, SlotUp, Surprised, TasksReturned, WorkEvent
from rmgr.model import frames, stream
from rmgr.model.frames import CommandBatch, CommandStarted, WorkerGone
from rmgr.model.states import Reason
from rmgr.model.units import counted
from rmgr.model.version import PROTOCOL
from rmgr.runner.host import home
from rmgr.runner.host.board import Board
from rmgr.runner.host.contain import processor_seconds
from rmgr.runner.host.files import remove_tree
from rmgr.runner.host.kernel import OF_SPAWNERS

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
            self._home = leftovers.identity(self.directory)
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
        return leftovers.identity(self.directory) == self._home

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

    def tell(self, event: WorkEvent) -> None:
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
                self.tell(SlotUp(self, frame.pid, frame.features))
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
                    self.tell(CommandsEnded(self, ends))
            case frames.CommandsReturned():
                with self._lock:
                    for seq in frame.seqs:
                        self._commands.pop(seq, None)
                    self._ordered_ends.over(frame.seqs)
                self.tell(TasksReturned(self, None, frame.seqs, frame.reason))
            case frames.Surprise():
                distrust.check_surprise(frame, self.account)
                self.tell(Surprised(self, frame.what, frame.detail[:_SHOWN]))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Ends the slot, not the Starter, when the messages of a user's processes make no sense."""
        try:
            yield
        except distrust.NONSENSE as error:
            if self.account is None:
                raise
            self.tell(Surprised(self, "imposture", f"work of {self.account.name}: {type(error).__name__}: {error}"))
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
            self.tell(Surprised(self, "leftovers", f"{counted(killed, 'process')} of {self.marker}"))
        unstarted = tuple(seq for seq in left if seq not in running)
        self.tell(SlotLost(slot=self, why=how, running=running, unstarted=unstarted, expected=self._closing))


def death_words(code: int | None) -> str:
    """Describes how a process ended, by its return code as in `subprocess` (None: it still lives)."""
    if code is None or code >= 0:
        return "does not answer" if code is None else f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def lost_words(how: str) -> str:
    """Explains the end of work whose slot has died."""
    return f"rmgr's process that ran it {how}; work that kills that itself (kill $PPID, pkill -u) ends so"


def lost_worker(worker: int, detail: str) -> WorkerGone:
    """Returns the report that the spawner would have sent about this worker."""
    return WorkerGone(worker=worker, reason=Reason.WORKER_LOST, seq=0, detail=detail)
