"""The hands of a Starter: slots that run commands and Python workers, each slot a spawner process of its own.

Every method returns at once and may be called from the Starter's one thread; facts arrive as `workevents` on the
selector thread, in lists, through `on_events`, which must only enqueue. A slot is one place to run work in; how many
core units of the node a task occupies is the Starter's count (a task of 4 cores takes one slot and four units).

    runner = NodeRunner(directory="/var/lib/rmgr/n1/run", node="n1", on_events=mailbox.put, cgroups=CgroupConfig())
    slot = runner.open_slot(0)                                   # -> SlotUp
    shape = Shape(submission=42, limit_us=60_000_000)
    seq = runner.next_seq()
    slot.run(CommandBatch(shape=shape, argv=("sh", "-c", "echo hi"), items=(CommandItem(seq=seq, index=0),)))
    # -> CommandsEnded(slot, (CommandEnd(seq, exit_code=0, out=Output(size=3, data=b"hi\n"), ...),))
    worker = slot.start_worker(WorkerSpec(environ={"OMP_NUM_THREADS": "1"}))   # tasks may be sent at once
    items = tuple(TaskItem(seq=runner.next_seq(), index=i, payload=payload[i]) for i in range(256))
    worker.send(TaskBatch(shape=shape, function=sha256, blob=blob, items=items))
    # -> WorkerReady, TasksEnded(slot, worker, (TaskEnd(seq, data=b"..."), ...)) in a few messages
    worker.recall()                                              # -> TasksReturned(slot, worker, seqs, NONE)
    worker.stop(seq, reason=Reason.USER_CANCEL)                  # -> TasksEnded (it gave way), WorkerEnded, TasksReturned
    runner.renew_lease(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 4 * 10**9)  # exclusive work lives until then
    runner.close(timeout_s=5)                                    # kills what runs, leaves no process and no directory

What runs is killed when this process dies (the spawners see their sockets close) or stops renewing the lease
(exclusive work). Files named in an event (`Output.path`, `Value.path`) belong to the Starter: store, then unlink.
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
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rmgr.adapters import distrust, leftovers
from rmgr.adapters.accounts import Account, acting
from rmgr.adapters.cgroup import CgroupConfig, Cgroups, SlotCgroup
from rmgr.adapters.channel import Channel, Loop
from rmgr.adapters.worker import Worker, WorkerSpec
from rmgr.adapters.workevents import (
    CommandsEnded,
    CommandsStarted,
    SlotLost,
    SlotUp,
    Surprised,
    TasksReturned,
    WorkEvent,
    death_words,
    lost_words,
    lost_worker,
)
from rmgr.model import frames
from rmgr.model.frames import CommandBatch, CommandStarted, WorkerGone
from rmgr.model.states import Reason
from rmgr.model.version import PROTOCOL
from rmgr.runner import home
from rmgr.runner.board import Board
from rmgr.runner.outputs import read_live

__all__ = ["Account", "CgroupConfig", "NodeRunner", "Slot", "Worker", "WorkerSpec"]

#: Variables of the Starter that never reach work.
_PRIVATE = ("RMGR_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
_BECOME = str(Path(__file__).resolve().parents[1] / "runner" / "privileges.py")


class NodeRunner:
    """All slots of one node.

    Args:
        directory: this node's own, created if absent; what an older incarnation left in it (processes, cgroups,
            files) is ended and removed first. One NodeRunner at a time uses it (`errors.StateConflict` otherwise).
        node: name of the node (RMGR_NODELIST of its work).
        on_events: gets lists of events on the selector thread; only enqueues.
        cgroups: where to make cgroups; None = none.
        pids_limit: processes and threads of one slot, where the system can limit them; 0 = no limit.
        environ: environment of work; default: this process's without RMGR_* and the service manager's variables.
        no_new_privs: setuid programs gain nothing in work (of accounts they never do).
    Cost: a thread; a spawner of about 12 MiB a slot.
    """

    def __init__(
        self,
        *,
        directory: str,
        node: str,
        on_events: Callable[[list[WorkEvent]], None],
        cgroups: CgroupConfig | None = None,
        pids_limit: int = 2048,
        environ: Mapping[str, str] | None = None,
        no_new_privs: bool = False,
    ) -> None:
        self.node = node
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._guard = leftovers.hold(self.directory)
        self.reaped = leftovers.reap(self.directory)  #: what the older incarnation left, one line each
        self.guid = uuid.uuid4().hex[:12]
        self.pids_limit = pids_limit
        self.no_new_privs = no_new_privs
        self.cache = self.directory / "cache"
        self.cache.mkdir(exist_ok=True)
        self.environ = dict(environ) if environ is not None else {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}
        self.lease_end_ns = 0
        self.check: Callable[[], None] = lambda: None  #: raises OSError when `directory` is not to be used now
        self.slots: dict[str, Slot] = {}  #: by name: a place may have a spawner for each of several users
        self._on_events = on_events
        self._seq = itertools.count(1)
        self._opened = itertools.count(1)
        self._cgroups = Cgroups.open(cgroups, f"{node}-{self.guid}") if cgroups is not None else None
        if self._cgroups is not None:
            leftovers.record_cgroups(self.directory, self._cgroups.directories)
        self.loop = Loop("rmgr-slots")

    def next_seq(self) -> int:
        """The number of one attempt of one task on this node; numbers grow, send them in that order."""
        return next(self._seq)

    def open_slot(self, number: int, *, python: str = "", account: Account | None = None) -> Slot:
        """Starts a spawner; `SlotUp` follows (about 0.1 s), work may be given at once.

        python: interpreter of its workers (rmgr must be importable there), "" = this one. account: who it and its work
        run as (this process must be root then), None = as this process. Raises: OSError when it cannot be started (no
        memory, no descriptors, full disk).
        """
        self.check()
        slot = Slot(self, number, next(self._opened), python=python or home.PYTHON, account=account)
        self.slots[slot.name] = slot
        return slot

    def put_file(self, name: str, data: bytes) -> str:
        """Path of a file of this node with `data` (functions, archives: named by hash, written once, kept until `close`)."""
        path = self.cache / name
        if not path.exists():
            part = self.cache / f".{name}.{uuid.uuid4().hex[:8]}"
            part.write_bytes(data)
            part.chmod(0o644)
            part.replace(path)
        return str(path)

    def renew_lease(self, end_ns: int) -> None:
        """Exclusive work may run until `end_ns` (CLOCK_BOOTTIME); 0: kill it now."""
        self.lease_end_ns = end_ns
        for slot in list(self.slots.values()):
            slot.order(frames.Lease(end_ns=end_ns))

    def close(self, *, timeout_s: float = 5.0, grace_us: int = 0) -> None:
        """Ends all work (SIGTERM, `grace_us`, SIGKILL), all spawners, the thread; removes directories and cgroups.

        At the end of `timeout_s` what is left is killed from here. Idempotent.
        """
        deadline = time.monotonic() + timeout_s
        slots = list(self.slots.values())
        for slot in slots:
            slot.close(grace_us=grace_us)
        for slot in slots:
            slot.wait(max(0.0, deadline - time.monotonic()))
        self.loop.close()
        if self._cgroups is not None:
            self._cgroups.close()
        leftovers.remove_tree(self.directory)
        self._guard.close()

    # -- for slots and workers -----------------------------------------------------------------------------------------

    def mended(self) -> None:
        """Its directory, or what was in it, was removed and made again: writes down anew what must not outlive this incarnation."""
        if not self._guard.is_of(self.directory):
            self._guard.close()
            self._guard = leftovers.hold(self.directory)
        if self._cgroups is not None:
            leftovers.record_cgroups(self.directory, self._cgroups.directories)
        for slot in list(self.slots.values()):
            leftovers.record_spawner(self.directory, slot.name, pid=slot.pid, marker=slot.marker)
            for number, worker in list(slot.workers.items()):
                if worker.pid:
                    leftovers.record_spawner(self.directory, f"{slot.name}.w{number}", pid=worker.pid, marker=slot.marker)

    def emit(self, *events: WorkEvent) -> None:
        """Hands events over."""
        if events:
            self._on_events(list(events))

    def slot_cgroup(self, name: str) -> SlotCgroup | None:
        """Cgroups for one spawner."""
        return self._cgroups.slot(name, pids_limit=self.pids_limit) if self._cgroups is not None else None

    def wall_times(self, started_ns: int) -> tuple[int, int]:
        """(started_us since the epoch, elapsed_us) of something that started at CLOCK_BOOTTIME `started_ns` and ends now."""
        elapsed_us = max(0, (time.clock_gettime_ns(_CLOCK) - started_ns) // 1000)
        return time.time_ns() // 1000 - elapsed_us, elapsed_us


class Slot:
    """One place to run work in: a spawner, at most one command at a time, and its Python workers."""

    def __init__(self, runner: NodeRunner, number: int, serial: int, *, python: str, account: Account | None) -> None:
        self.runner = runner
        self.account = account
        self.number = number
        self.name = f"s{number}-{serial}"
        self.directory = runner.directory / self.name
        self.pid = 0
        self.features: tuple[str, ...] = ()
        self.is_up = False
        self.is_lost = False
        self.uses = 0  #: how often it was given work, counted by its owner
        self.workers: dict[int, Worker] = {}
        self.marker = f"{runner.guid}-{self.name}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._commands: dict[int, CommandStarted | None] = {}
        self._board: Board | None = None
        self._closing = False
        self._gone = threading.Event()
        self.directory.mkdir(mode=0o755 if account is None else 0o700)
        self._home = leftovers.identity(self.directory)
        if account is not None:
            os.chown(self.directory, account.uid, account.gid, follow_symlinks=False)
        self._cgroup = group = runner.slot_cgroup(self.name)
        if group is not None and account is not None:
            group.give(account.uid, account.gid)
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                self._command(python, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                cwd=self.directory if account is None else "/",
                env=self._environ(python),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        leftovers.record_spawner(runner.directory, self.name, pid=self.pid, marker=self.marker)
        if group is not None and account is None:
            group.add(self.pid)
        self._channel = Channel(
            runner.loop, ours, frames.FromSpawner, on_frames=self._on_frames, on_end=self._on_end, passes_fds=True
        )
        self.order(
            frames.Setup(
                slot=number,
                node=runner.node,
                directory=str(self.directory),
                cgroup=group.unified if group is not None else "",
                has_memory=group is not None and group.has_memory,
                freezer=group.v1("freezer") if group is not None else "",
                memory=group.v1("memory") if group is not None else "",
                pids=group.v1("pids") if group is not None else "",
                no_new_privs=runner.no_new_privs,
                lease_end_ns=runner.lease_end_ns,
            )
        )

    def _command(self, python: str, fd: int) -> list[str]:
        """The spawner; for an account, what first becomes that account (in this interpreter, which is trusted: `python` may be his)."""
        argv = [python, "-P", "-m", "rmgr.runner.spawner", str(fd)]
        account = self.account
        if account is None:
            return argv
        plan = {
            "uid": account.uid,
            "gid": account.gid,
            "groups": account.groups,
            "cgroups": self._cgroup.doors if self._cgroup is not None else (),
            "fd": fd,
            "directory": str(self.directory),
            "argv": argv,
        }
        return [sys.executable, "-I", "-S", _BECOME, json.dumps(plan)]

    def _environ(self, python: str) -> dict[str, str]:
        environ = self.runner.environ if self.account is None else self.account.environment(self.runner.environ)
        environ = environ | {"RMGR_SLOT": self.marker}
        environ["RMGR_SPAWNER_PYTHONPATH"] = environ.get("PYTHONPATH", "")
        # An installed rmgr stands among packages built for this interpreter: another one has its own.
        root = "" if python != home.PYTHON and home.ROOT.name.endswith("-packages") else str(home.ROOT)
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
        return environ

    # -- the Starter's side ------------------------------------------------------------------------------------------

    @property
    def has_home(self) -> bool:
        """Its directory is the one that was made for it."""
        return leftovers.identity(self.directory) == self._home

    def start_worker(self, spec: WorkerSpec) -> Worker:
        """Forks a Python worker; tasks may be sent at once. `WorkerReady`, or `WorkerFailed` and `WorkerEnded`, follow."""
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
            )
        )
        if not sent and self.is_lost:
            self.runner.loop.call(lambda: self._worker_gone(lost_worker(worker.number, "its slot is lost")))
        return worker

    def run(self, batch: CommandBatch) -> bool:
        """Queues commands, run one after another; ends arrive as `CommandsEnded`. False: the slot is lost, nothing was sent."""
        with self._lock:
            if self.is_lost:
                return False
            for item in batch.items:
                self._commands[item.seq] = None
        self.order(batch)
        return True

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Seqs of commands given and not yet accounted for, in order."""
        with self._lock:
            return tuple(self._commands)

    def recall(self, *, keep: int = 0) -> None:
        """Takes back queued commands beyond the next `keep`; answered by `TasksReturned`, empty when there were none."""
        self.order(frames.RecallCommands(keep=keep))

    def stop(self, seq: int, *, reason: Reason = Reason.USER_CANCEL, grace_us: int = 5_000_000) -> None:
        """Ends command `seq`, running or queued; it is reported in `CommandsEnded` with `reason`."""
        self.order(frames.Stop(seq=seq, reason=reason, grace_us=grace_us))

    def signal(self, seq: int, signum: int) -> None:
        """Sends a signal to all processes of the running command `seq`."""
        self.order(frames.Signal(seq=seq, signum=signum))

    def suspend(self, seq: int) -> None:
        """Stops all processes of the running command in place."""
        self.order(frames.Suspend(seq=seq))

    def resume(self, seq: int) -> None:
        """Continues after `suspend`."""
        self.order(frames.Suspend(seq=seq, resume=True))

    def live_output(self, seq: int, stream: str, offset: int, limit: int = 64 * 1024) -> tuple[bytes, int] | None:
        """(what the running command `seq` has written to "stdout" or "stderr" from `offset`, the next offset).

        None: it is not running. Where its middle was dropped a line says so, and the next offset is beyond it.
        """
        with self._lock:
            started = self._commands.get(seq)
        if started is None:
            return None
        with acting(self.account):
            read = read_live(started.out if stream == "stdout" else started.err, offset, limit, started.cap)
        with self._lock:
            return read if seq in self._commands else None

    def close(self, *, grace_us: int = 0) -> None:
        """Ends its work and its spawner; `SlotLost(expected=True)` follows."""
        self._closing = True
        self.order(frames.Shutdown(grace_us=grace_us))

    def wait(self, timeout_s: float) -> None:
        """Waits until it is gone; at the end of `timeout_s` it is killed."""
        if not self._gone.wait(timeout_s):
            self.kill()
            self._gone.wait(2.0)

    def kill(self) -> None:
        """Kills the spawner and everything it started, from here."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def wake(self) -> None:
        """Continues the spawner, should its work have stopped it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)

    def order(self, frame: object) -> bool:
        """Sends a control frame."""
        return self._channel.send(frames.encode(frame))

    # -- the selector thread's side ------------------------------------------------------------------------------------

    def _on_frames(self, received: list[object], fds: list[int]) -> None:
        with self.guarded():
            for frame in received:
                self._on_frame(frame, fds)

    def _on_frame(self, frame: object, fds: list[int]) -> None:
        match frame:
            case frames.SpawnerUp():
                distrust.check_process(self.pid, self.account)
                distrust.check_board(fds[0], self.account)
                board = fds.pop(0)
                self._board = Board(board)
                os.close(board)
                self.is_up, self.features = True, frame.features
                self.runner.emit(SlotUp(self, frame.pid, frame.features))
            case frames.WorkerForked():
                distrust.check_process(frame.pid, self.account)
                distrust.check_board(fds[1], self.account)
                sock, board = fds.pop(0), fds.pop(0)
                leftovers.record_spawner(self.runner.directory, f"{self.name}.w{frame.worker}", pid=frame.pid, marker=self.marker)
                self.workers[frame.worker].attach(frame.pid, frame.directory, sock, board)
            case frames.WorkerGone():
                distrust.check_output(frame.out, frame.err)
                self._worker_gone(frame)
            case frames.CommandEnds():
                for end in frame.ends:
                    distrust.check_end(end, self.account)
                with self._lock:
                    for started in frame.started:
                        self._commands[started.seq] = started
                    for end in frame.ends:
                        self._commands.pop(end.seq, None)
                if frame.started:
                    self.runner.emit(CommandsStarted(self, frame.started))
                if frame.ends:
                    self.runner.emit(CommandsEnded(self, frame.ends))
            case frames.CommandsReturned():
                with self._lock:
                    for seq in frame.seqs:
                        self._commands.pop(seq, None)
                self.runner.emit(TasksReturned(self, None, frame.seqs, frame.reason))
            case frames.Surprise():
                self.runner.emit(Surprised(self, frame.what, frame.detail))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What a user's processes tell may make no sense: his slot ends then, the Starter goes on."""
        try:
            yield
        except distrust.NONSENSE as error:
            if self.account is None:
                raise
            self.runner.emit(Surprised(self, "imposture", f"work of {self.account.name}: {type(error).__name__}: {error}"))
            self.kill()

    def _worker_gone(self, gone: WorkerGone) -> None:
        with self._lock:
            worker = self.workers.pop(gone.worker, None)
        if worker is not None:
            leftovers.forget(self.runner.directory, f"{self.name}.w{gone.worker}")
            worker.end(gone)

    def _on_end(self, why: str) -> None:
        """The spawner is gone, or its stream is broken: make sure that all it started is dead, then account for it."""
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
        leftovers.remove_tree(self.directory)
        if self._cgroup is not None:
            self._cgroup.close()
        leftovers.forget(self.runner.directory, self.name)
        self.runner.slots.pop(self.name, None)
        events: list[WorkEvent] = [Surprised(self, "leftovers", f"{killed} processes of {self.marker}")] if killed else []
        events.append(
            SlotLost(
                slot=self,
                why=how,
                running=running,
                unstarted=tuple(seq for seq in left if seq not in running),
                expected=self._closing,
            )
        )
        self._gone.set()
        self.runner.emit(*events)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
