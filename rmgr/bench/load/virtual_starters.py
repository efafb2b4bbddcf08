"""Many Starters in one process: the whole engine, with a session and a node each, but without real workers, so that a task costs nothing.

A task "runs" for a given time on one of its node's slots and returns its argument's bytes. Everything else is as in `rmgr starter`:
claims, commits, watches, store, lease. `rmgr bench scale` runs it as `python -m rmgr.bench.load.virtual_starters SPEC`; it says
`{"ready": n}` when all nodes are registered, `{"asked": {what: how often}}` for each line of its standard input, and
`{"ran": n}` after its end.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rmgr import log as logs
from rmgr.adapters.host.workevents import SlotLost, SlotUp, TasksEnded, TasksReturned, WorkEvent
from rmgr.adapters.stores import open_store
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.bench.load.processes import say
from rmgr.config import ClusterConfig, Config, LogConfig, StarterConfig
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Multi, Outcome
from rmgr.daemons.starter.main import build
from rmgr.daemons.starter.node.loop import Registrant, Starter
from rmgr.errors import Unavailable
from rmgr.model.frames import TaskBatch, TaskEnd
from rmgr.model.states import Reason
from rmgr.procedures.bootstrap import read_meta
from rmgr.runtime import machine
from rmgr.runtime.secured import open_zookeeper
from rmgr.runtime.supervision import StallGuard

_CONNECT_S = 60.0
#: Longest turn of a loop; no loop is killed before, since the processor may be far too slow for so many.
_STALL_S = 600.0
_MEMORY_BYTES = 1 << 34
#: Switch interval of threads: the many Starters of one interpreter should not take it from each other as often as one Starter's do.
_SWITCH_S = 0.02


class VirtualStartersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one process: nodes v<first> .. v<first+count-1> of `slots` slots, tasks of `task_s` seconds."""

    zk: str
    store: str
    session_timeout_s: float
    directory: str
    first: int
    count: int
    slots: int
    task_s: float


# -- workers that are not there --------------------------------------------------------------------------------------------------


class Clockwork:
    """One thread that makes timed calls for all nodes of the process."""

    def __init__(self) -> None:
        self.ran = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="rmgr-virtual", daemon=True).start()

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        """Calls `call` at `due_s` (monotonic)."""
        with self._changed:
            heapq.heappush(self._due, (due_s, next(self._number), call))
            if self._due[0][0] == due_s:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or (wait_s := self._due[0][0] - machine.monotonic()) > 0:
                    self._changed.wait(wait_s if self._due else None)
                call = heapq.heappop(self._due)[2]
            call()


class VirtualRunner:
    """Replaces `NodeRunner`; `on_events` gets the same facts."""

    def __init__(
        self, clockwork: Clockwork, task_s: float, *, node: str, directory: str, on_events: Callable[[list[WorkEvent]], None], **_: Any
    ) -> None:
        self.node = node
        self.directory = Path(directory)
        self.environ: dict[str, str] = {}
        self.reaped: list[str] = []
        self.clockwork = clockwork
        self.task_s = task_s
        self.emit = on_events
        self.freezer = ""  #: it cannot suspend anything
        self._seq = itertools.count(1)

    def next_seq(self) -> int:
        """See `NodeRunner`."""
        return next(self._seq)

    def open_slot(self, number: int, **_: Any) -> VirtualSlot:
        """See `NodeRunner`."""
        return VirtualSlot(self, number)

    def renew_lease(self, end_ns: int) -> None:
        """Does nothing: no process could outlive the lease."""

    def mended(self) -> None:
        """Does nothing: no file was written."""

    def close(self, **_: Any) -> None:
        """Does nothing: nothing is left."""


class VirtualSlot:
    """A slot that is up at once."""

    is_up, is_lost, pid, features, account, has_home = True, False, 0, (), None, True

    def __init__(self, runner: VirtualRunner, number: int) -> None:
        self.runner = runner
        self.number = number
        self.directory = runner.directory / f"s{number}"  #: stays empty
        self.uses = 0
        self._tell(SlotUp(self, 0, ()))  # type: ignore[arg-type]

    def start_worker(self, spec: object) -> VirtualWorker:  # noqa: ARG002 - the signature of `Slot`
        """See `Slot`."""
        return VirtualWorker(self)

    def wake(self) -> None:
        """Does nothing: the slot cannot be suspended."""

    def close(self, **_: Any) -> None:
        """See `Slot`."""
        self.is_lost = True
        self._tell(SlotLost(slot=self, why="closed", running=(), unstarted=(), expected=True))  # type: ignore[arg-type]

    def _tell(self, event: WorkEvent) -> None:
        """Emits the event later, as real facts come: the caller is not done yet."""
        runner = self.runner
        runner.clockwork.at(machine.monotonic(), lambda: runner.emit([event]))


class VirtualWorker:
    """Runs tasks one after another, all of the same length; the ends of a batch are reported together."""

    is_leaving = False
    backlog = 0  #: no data waits to be sent

    def __init__(self, slot: VirtualSlot) -> None:
        self.slot = slot
        self._queue: deque[tuple[float, int, bytes]] = deque()  #: (when it will have ended, seq, payload)
        self._lock = threading.Lock()

    def send(self, batch: TaskBatch) -> bool:
        """See `Worker`."""
        runner = self.slot.runner
        with self._lock:
            at_s = max(machine.monotonic(), self._queue[-1][0]) if self._queue else machine.monotonic()
            for item in batch.items:
                at_s += runner.task_s
                self._queue.append((at_s, item.seq, item.payload))
        runner.clockwork.at(at_s, self._ended)
        return True

    def recall(self, *, keep: int = 0) -> None:
        """See `Worker`."""
        runner = self.slot.runner
        with self._lock:
            now_s = machine.monotonic()
            waiting = sum(1 for due_s, _, _ in self._queue if due_s - runner.task_s > now_s)
            taken = [self._queue.pop()[1] for _ in range(max(0, waiting - keep))]
            last_s = self._queue[-1][0] if self._queue else now_s
        returned = TasksReturned(self.slot, self, tuple(reversed(taken)), Reason.NONE)  # type: ignore[arg-type]
        runner.clockwork.at(now_s, lambda: runner.emit([returned]))
        runner.clockwork.at(last_s, self._ended)

    def stop(self, seq: int = 0, **_: Any) -> None:
        """Does nothing: no task of this cluster is cancelled, and a running one ends in a moment."""

    def grant(self, seq: int) -> None:
        """Does nothing: no task waits for another."""

    def live_output(self, seq: int, stream: str, offset: int, limit: int) -> None:
        """Does nothing: there is no output."""

    def running(self) -> tuple[int, int]:
        """See `Worker`."""
        return 0, 0

    def _ended(self) -> None:
        runner = self.slot.runner
        elapsed_us = round(runner.task_s * 1e6)
        with self._lock:
            now_s, ended = machine.monotonic(), []
            while self._queue and self._queue[0][0] <= now_s:
                ended.append(self._queue.popleft())
        if ended:
            started_us = machine.wall_us() - elapsed_us
            ends = tuple(TaskEnd(seq, started_us, elapsed_us, 0, payload, pickled=False) for _, seq, payload in ended)
            runner.clockwork.ran += len(ends)
            runner.emit([TasksEnded(self.slot, self, ends)])  # type: ignore[arg-type]


# -- requests to ZooKeeper ----------------------------------------------------------------------------------------------------------


class Counted:
    """A coordinator that counts multis by name and outcome, and lists of children by the part of the tree."""

    def __init__(self, inner: ZkCoordinator, counts: Counter[str]) -> None:
        self._inner = inner
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, multi: Multi, **options: Any) -> Future[Outcome]:
        """See `Coordinator`."""
        future = self._inner.commit(multi, **options)
        future.add_done_callback(lambda done: self._counts.update([f"{multi.name} {type(done.result()).__name__}"]))
        return future

    def children(self, path: str, **options: Any) -> Future[Any]:
        """See `Coordinator`."""
        parts = path.strip("/").split("/")  # of a queue: its name is left out
        self._counts[f"children queues/{parts[2]}" if parts[0] == "queues" and len(parts) > 2 else f"children {parts[0]}"] += 1
        return self._inner.children(path, **options)


# -- the process -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Running:
    """One Starter of the process."""

    starter: Starter
    coordinator: ZkCoordinator
    thread: threading.Thread


def start(spec: VirtualStartersSpec, clockwork: Clockwork, counts: Counter[str]) -> list[_Running]:
    """Starts all Starters of the process; they register by themselves. Raises: NotConnected."""
    cluster = ClusterConfig(zk=spec.zk, store=spec.store, session_timeout_s=spec.session_timeout_s)
    log = logs.setup(LogConfig(level="warning"), "starter")
    store = open_store(spec.store)
    started = []
    for number in range(spec.first, spec.first + spec.count):
        name = f"v{number}"
        config = Config(cluster=cluster, starter=StarterConfig(node=name, cores=spec.slots, memory_bytes=_MEMORY_BYTES, stop_grace_s=1.0))
        coordinator = open_zookeeper(config, None)
        coordinator.require_connected(_CONNECT_S)
        directory = Path(spec.directory) / name
        directory.mkdir(parents=True)
        meta = read_meta(coordinator)
        assert meta is not None, "the cluster is there: its nodes are told of it"
        starter = build(
            config, (name,), directory, Counted(coordinator, counts), store, meta, log, Registrant(endpoint="127.0.0.1:1"),
            make_runner=lambda **words: VirtualRunner(clockwork, spec.task_s, **words),  # type: ignore[arg-type]
        )  # fmt: skip
        thread = threading.Thread(target=starter.serve, args=(StallGuard(_STALL_S),), name=f"starter-{name}", daemon=True)
        thread.start()
        started.append(_Running(starter, coordinator, thread))
    return started


def wait_registered(started: list[_Running], spec: VirtualStartersSpec) -> None:
    """Waits until every node has a record. Raises: Unavailable."""
    end = machine.monotonic() + _CONNECT_S
    for number, running in zip(range(spec.first, spec.first + spec.count), started, strict=True):
        while running.coordinator.stat(paths.node(f"v{number}")).result(_CONNECT_S) is None:
            if machine.monotonic() > end:
                raise Unavailable(f"v{number} does not register")
            machine.sleep(0.05)


def main() -> None:
    """Runs the process; see the first lines of the file."""
    spec = msgspec.json.decode(sys.argv[1], type=VirtualStartersSpec)
    sys.setswitchinterval(_SWITCH_S)
    clockwork = Clockwork()
    counts: Counter[str] = Counter()
    started = start(spec, clockwork, counts)
    wait_registered(started, spec)
    say({"ready": spec.count})
    for _ in sys.stdin:
        say({"asked": counts})
    for running in started:
        running.starter.stop()
    for running in started:
        running.thread.join(10.0)
        running.coordinator.close(timeout_s=2.0)
        running.starter.close()
    say({"ran": clockwork.ran})


if __name__ == "__main__":
    main()
