"""Execution on a node: slots that run commands and Python workers, each slot a spawner process of its own; and the turner of gangs.

Every method returns at once and may be called from the Starter's one thread; facts arrive as `workevents` on the
selector thread, in lists, through `on_events`, which must only enqueue. A slot is one place to run work in; how many
core units of the node a task occupies is the Starter's count (a task of 4 cores takes one slot and four units).

    runner = NodeRunner(directory="/var/lib/rmgr/n1/run", node="n1", on_events=mailbox.put, cgroups=CgroupConfig())
    slot = runner.open_slot(0)                                   # -> SlotUp
    shape = Shape(submission=42, limit_us=60_000_000)
    seq = runner.next_seq()
    slot.run(CommandBatch(shape=shape, argv=("sh", "-c", "echo hi"), items=(CommandItem(seq=seq, index=0),)))
    # -> CommandsEnded(slot, (CommandEnd(seq, exit_code=0, out=Output(size=3, data=b"hi
"), ...),))
    worker = slot.start_worker(WorkerSpec(environ={"OMP_NUM_THREADS": "1"}))   # tasks may be sent at once
    items = tuple(TaskItem(seq=runner.next_seq(), index=i, payload=payload[i]) for i in range(256))
    worker.send(TaskBatch(shape=shape, function=sha256, blob=blob, items=items))
    # -> TasksEnded(slot, worker, (TaskEnd(seq, data=b"..."), ...)) in a few messages
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
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.cgroup import CgroupConfig, Cgroups, SlotCgroup
from rmgr.adapters.host.channel import Channel, Loop, end_program, start_program
from rmgr.adapters.host.slot import Slot, Worker, WorkerSpec
from rmgr.adapters.host.workevents import NodeEvent, PartBegan, PartsServed, PartStubborn, TurnerRestarted
from rmgr.errors import ConfigError
from rmgr.model import frames, stream, turns
from rmgr.model.node import AUTO, Freezer
from rmgr.runner.host import home
from rmgr.runner.host.contain import lists_children, write_file
from rmgr.runner.host.files import remove_tree

__all__ = ["Account", "CgroupConfig", "NodeRunner", "Slot", "Worker", "WorkerSpec"]

#: Variables of the Starter that never reach work.
_PRIVATE = ("RMGR_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "GRPC_VERBOSITY")


class NodeRunner:
    """All slots of one node.

    Args:
        directory: this node's own, created if absent; leftovers of an older incarnation in it (processes, cgroups,
            files) are ended and removed first. One NodeRunner at a time uses it (`errors.StateConflict` otherwise).
        node: name of the node (RMGR_NODELIST of its work).
        on_events: gets lists of events on the selector thread; must only enqueue.
        cgroups: where to make cgroups; None = none.
        pids_limit: most processes and threads of one slot, where a cgroup can limit them; 0 = no limit. Elsewhere each account may
            have that many per processor, at most a quarter of the machine's.
        freezer: `AUTO`, or the one method of stopping parts of gangs. Raises: ConfigError where it is not possible.
    Cost: a thread; a spawner of about 12 MiB per slot.
    """

    def __init__(
        self,
        *,
        directory: str,
        node: str,
        on_events: Callable[[list[NodeEvent]], None],
        cgroups: CgroupConfig | None = None,
        pids_limit: int = 2048,
        freezer: str = AUTO,
    ) -> None:
        self.node = node
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._guard = leftovers.hold(self.directory)
        self.reaped = leftovers.reap(self.directory)  #: what the older incarnation left, one line each
        self.guid = uuid.uuid4().hex[:12]
        self.pids_limit = pids_limit
        self.pids_limit_of_user = _pids_of_user(pids_limit)  #: the limit on this machine where no cgroup counts processes
        self.cache = self.directory / "cache"
        self.cache.mkdir(exist_ok=True)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}  #: of work
        self.lease_end_ns = 0
        self.inline_bytes = frames.MAX_INLINE_VALUE  #: largest inline result of calls with this process's rights; larger: files
        self.hash_seed = 0  #: hash seed of the workers' interpreters: `hash("word")` is the same in all of them
        self.check: Callable[[], None] = lambda: None  #: raises OSError while `directory` must not be used
        self.slots: dict[str, Slot] = {}  #: by name: one place may have spawners for several users
        self.on_events = on_events
        self._seq = itertools.count(1)
        self._opened = itertools.count(1)
        self._cgroups = Cgroups.open(cgroups, f"{node}-{self.guid}") if cgroups is not None else None
        if self._cgroups is not None:
            leftovers.record_cgroups(self.directory, self._cgroups.directories)
        self.loop = Loop("rmgr-slots")
        self.freezer = freezer_of(self._cgroups, freezer)  #: how parts of gangs are stopped
        self.turner = Turner(self)

    def next_seq(self) -> int:
        """Returns the number of one attempt of one task on this node; numbers grow, and tasks must be sent in their order."""
        return next(self._seq)

    def open_slot(self, number: int, *, python: str = "", account: Account | None = None) -> Slot:
        """Starts a spawner; `SlotUp` follows (about 0.1 s), work may be given at once.

        python: interpreter of its workers (rmgr must be importable there), "" = this one. account: the user as which it and its work
        run (this process must then be root), None = as this process. Raises: OSError if it cannot be started (no
        memory, no descriptors, full disk).
        """
        self.check()
        slot = Slot(self, number, next(self._opened), python=python or home.PYTHON, account=account)
        self.slots[slot.name] = slot
        return slot

    def renew_lease(self, end_ns: int) -> None:
        """Lets exclusive work run until `end_ns` (CLOCK_BOOTTIME); 0 kills it now."""
        self.lease_end_ns = end_ns
        for slot in list(self.slots.values()):
            slot.order(frames.LeaseEnd(end_ns=end_ns))

    def close(self, *, timeout_s: float = 5.0, grace_us: int = 0) -> None:
        """Ends all work (SIGTERM, `grace_us`, SIGKILL), all spawners, the thread; removes directories and cgroups.

        After `timeout_s` it kills what is left itself. Idempotent.
        """
        deadline = time.monotonic() + timeout_s
        self.turner.close()
        slots = list(self.slots.values())
        for slot in slots:
            slot.close(grace_us=grace_us)
        for slot in slots:
            slot.wait(max(0.0, deadline - time.monotonic()))
        self.loop.close()
        if self._cgroups is not None:
            self._cgroups.close()
        remove_tree(self.directory)
        self._guard.close()

    # -- for slots and workers -----------------------------------------------------------------------------------------

    def mended(self) -> None:
        """Records anew what must not outlive this incarnation, after its directory, or the content, was removed and made again."""
        with contextlib.suppress(FileNotFoundError):  # removed once more: this is called again after the next repair
            if not self._guard.is_of(self.directory):
                guard = leftovers.hold(self.directory)
                self._guard.close()
                self._guard = guard
            if self._cgroups is not None:
                leftovers.record_cgroups(self.directory, self._cgroups.directories)
            for slot in list(self.slots.values()):
                leftovers.record_spawner(self.directory, slot.name, pid=slot.pid, marker=slot.marker)
                for number, worker in list(slot.workers.items()):
                    if worker.pid:
                        leftovers.record_spawner(self.directory, f"{slot.name}.w{number}", pid=worker.pid, marker=slot.marker)

    def slot_cgroup(self, name: str) -> SlotCgroup | None:
        """Makes the cgroups of one spawner."""
        return self._cgroups.slot(name, pids_limit=self.pids_limit) if self._cgroups is not None else None


def freezer_of(cgroups: Cgroups | None, wanted: str) -> str:
    """Returns how this machine stops parts of gangs (`Freezer`), "" if it cannot. Raises: ConfigError for a method it does not have."""
    if wanted not in (AUTO, *Freezer):
        raise ConfigError(f"[starter] freezer = {wanted!r} is not known", hint="auto, v2 or signals")
    has_v2 = cgroups is not None and cgroups.can_freeze
    if wanted == Freezer.V2 and not has_v2:
        raise ConfigError(
            "freezer = v2, and this Starter cannot make control groups of version 2",
            hint='delegate them (Delegate=yes in its unit), run it as root, or set freezer = "signals" in [starter]',
        )
    if wanted == Freezer.SIGNALS and not lists_children():
        raise ConfigError(
            "freezer = signals, and this system does not list the children of a process (/proc/PID/task/PID/children)",
            hint='set freezer = "auto" in [starter]; without control groups of version 2 the node then takes no jobs of gangs',
        )
    if has_v2 and wanted != Freezer.SIGNALS:
        return Freezer.V2
    return Freezer.SIGNALS if lists_children() else ""


def _pids_of_user(pids_limit: int) -> int:
    """Returns the limit for one account: the slots of a machine might need that many, yet other users keep theirs; 0 = no limit."""
    try:
        most = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii")) // 4
    except (OSError, ValueError):
        most = 8192
    return min(pids_limit * (os.cpu_count() or 1), most)


_DEVICE = re.compile(r"nvidia\d+")


def gpus_here(directory: str = "/dev") -> int:
    """Counts the device files nvidia0, nvidia1, ... in `directory`; 0 if unreadable. CUDA's indices are 0 to one less than the count."""
    try:
        return sum(_DEVICE.fullmatch(name) is not None for name in os.listdir(directory))
    except OSError:
        return 0


# -- the turner as its Starter sees it: its parts, their rows, and its replacement when it dies ---------------------------------


#: Least time between two starts of a turner.
_APART_S = 1.0
_NONE = (0, 0)


class Turner:
    """Stops and continues parts of gangs. Every method returns at once, from any thread; events come on the selector thread.

    Its counts survive the death of the program, except for the last half second, which the program had not reported.
    """

    def __init__(self, node: NodeRunner) -> None:
        self._node = node
        self._lock = threading.Lock()  #: guards everything below: the Starter's thread and the loop's use it
        self._parts: dict[str, turns.AddPart] = {}
        self._held: set[str] = set()
        self._let_go: dict[str, int] = {}
        self._rows = turns.Rows(())
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._started_s = -_APART_S
        self._closed = False
        self._served: dict[str, tuple[int, int]] = {}  #: by part, as last reported to the Starter (ns, turns)
        self._served_before: dict[str, tuple[int, int]] = {}  #: by part, under earlier turners
        self._counts = self._counts_before = (0, 0, 0)
        self.restarts = 0

    @property
    def pid(self) -> int:
        """Process id of the program, 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    def add(self, part: str, slot: Slot) -> None:
        """Adds a part whose work runs in this slot and is stopped until its first turn. Raises: OSError if no turner can be started."""
        with self._lock:
            added = turns.AddPart(part, slot.pid, slot.freeze_file if self._node.freezer == Freezer.V2 else "")
            self._parts[part] = added
            self._served_before.pop(part, None)
            if added.freeze:
                write_file(added.freeze, "1")  # work may start before the turner has heard of it: while the turner starts, or stands still
            if self._process is not None:
                self._order(added)  # if the program has just died, its successor gets the order
                return
            try:
                self._start()
            except OSError:
                del self._parts[part]
                if added.freeze:
                    write_file(added.freeze, "0")
                raise

    def drop(self, part: str) -> None:
        """Removes a part that is over."""
        with self._lock:
            if self._parts.pop(part, None) is not None:
                self._held.discard(part)
                self._let_go.pop(part, None)
                self._order(turns.DropPart(part))

    def rows(self, rows: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
        """Sets whose turn is when (CLOCK_BOOTTIME, ns), replacing all earlier rows."""
        with self._lock:
            self._rows = turns.Rows(rows)
            self._order(self._rows)

    def let_go(self, part: str, until_ns: int) -> None:
        """Lets the part run until then, whosever turn it is; 0 returns it to its turns."""
        with self._lock:
            if part in self._parts:
                self._let_go[part] = until_ns
                self._order(turns.LetGo(part, until_ns))

    def hold(self, part: str, on: bool) -> None:
        """Suspends the part (on), so that its turns pass idle, or resumes it."""
        with self._lock:
            if part in self._parts:
                (self._held.add if on else self._held.discard)(part)
                self._order(turns.HoldPart(part, on))

    def close(self) -> None:
        """Ends the program; anything its parts still run is killed. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            process = self._process
        if channel is not None:
            channel.close()
        if process is not None:
            end_program(process, 2.0)

    # -- under the lock ----------------------------------------------------------------------------------------------------

    def _order(self, frame: turns.ToTurner) -> None:
        if self._channel is not None:
            self._channel.send(stream.encode(frame))

    def _start(self) -> None:
        self._started_s = time.monotonic()
        argv = [sys.executable, "-P", "-m", "rmgr.runner.turner"]
        process, ours = start_program(lambda fd: [*argv, str(fd)], cwd="/", environ=self._node.environ, root=str(home.ROOT))
        try:
            leftovers.record_spawner(self._node.directory, "turner", pid=process.pid, marker="")
        except OSError:  # an unrecorded turner would outlive a Starter that is killed
            ours.close()
            end_program(process, 0.0)
            raise
        self._process = process
        self._channel = Channel(self._node.loop, ours, turns.FromTurner, on_frames=self._on_frames, on_end=self._on_end)
        for part in self._parts.values():
            self._order(part)
        for held in sorted(self._held):
            self._order(turns.HoldPart(held, on=True))
        for part_name, until_ns in self._let_go.items():
            self._order(turns.LetGo(part_name, until_ns))
        self._order(self._rows)

    # -- on the selector thread --------------------------------------------------------------------------------------------

    def _on_frames(self, received: list[object], _fds: list[int]) -> None:
        events: list[NodeEvent] = []
        for frame in received:
            match frame:
                case turns.Began():
                    events.append(PartBegan(frame.part))
                case turns.Served():
                    events.append(self._in_all(frame))
                case turns.Stubborn():
                    events.append(PartStubborn(frame.part, frame.killed))
        self._node.on_events(events)

    def _in_all(self, told: turns.Served) -> PartsServed:
        """Returns the totals: this turner's counts plus those of earlier ones."""
        with self._lock:
            parts = []
            for part, ns, count, runs in told.parts:
                before_ns, before = self._served_before.get(part, _NONE)
                self._served[part] = (before_ns + ns, before + count)
                parts.append((part, *self._served[part], runs))
            for gone in self._served.keys() - self._parts.keys():
                del self._served[gone]
                self._served_before.pop(gone, None)
            switches, late, out_ns = self._counts_before
            self._counts = (switches + told.switches, late + told.late, out_ns + told.out_of_turn_ns)
            return PartsServed(tuple(parts), *self._counts)

    def _on_end(self, _why: str) -> None:
        process = self._process
        if process is not None:
            end_program(process, 0.5)  # before its successor turns the same parts
        with self._lock:
            self._channel = None
            if not self._closed:
                self._node.loop.later(max(0.0, self._started_s + _APART_S - time.monotonic()), self._again)

    def _again(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._served_before, self._counts_before = dict(self._served), self._counts
            try:
                self._start()
            except OSError:
                self._node.loop.later(_APART_S, self._again)
                return
            self.restarts += 1
        self._node.on_events([TurnerRestarted()])
