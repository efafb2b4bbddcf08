"""A whole cluster in one thread on a virtual clock: real WatchDogs, Starters and clients, on a tree and a store in memory.

`VirtualMachine` replaces `rmgr.runtime.machine`, and no other thread ever runs. It gives the owners of mailboxes their turns, one after
another, and moves the clock to the next instant at which something is due. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from rmgr.bench.load.virtual_starters import VirtualRunner
from rmgr.client.connection import Connection
from rmgr.client.submission.engine import engine_here
from rmgr.config import ClusterConfig, Config, StarterConfig
from rmgr.coord.protocol.ports import SessionState
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.leader.watchdog import Watchdog
from rmgr.daemons.starter.main import build
from rmgr.daemons.starter.node.loop import Registrant, Starter
from rmgr.model.queue import ClusterSettings
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime import machine
from rmgr.runtime.mailbox import Closed, LoopOwner
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree

#: Monotonic and wall time at the beginning (s).
_START_S, _START_WALL_S = 1_000.0, 1_800_000_000.0
SESSION_S = 6.0
#: Duration of a turn (s). More than _SPINS turns without a jump of the clock mean that a loop never waits.
_TURN_S, _SPINS = 1e-6, 10_000


class _TooLong(Exception):
    """A wait has passed its deadline."""


class _Thread:
    """A thread that never runs: its maker gets turns from the machine instead. A look at files is over as soon as it is begun."""

    def __init__(self, *_: Any, target: Callable[..., Any] | None = None, args: Sequence[Any] = (), name: str = "", **__: Any) -> None:
        self.daemon = True
        self._look = partial(target, *args) if name == "look" and target is not None else None

    def start(self) -> None:
        """Does nothing else."""
        if self._look is not None:
            self._look()

    def join(self, timeout: float | None = None) -> None:
        """Does nothing: no thread has started."""

    def is_alive(self) -> bool:
        return False


class _Pool(Executor):
    """An executor whose calls run when the machine gives it a turn."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append((future, lambda: call(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.clear()

    def step(self) -> bool:
        if not self._calls:
            return False
        future, call = self._calls.popleft()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return True


class VirtualMachine:
    """See the module. It offers the functions of `rmgr.runtime.machine` under the same names."""

    def __init__(self, seed: int = 0) -> None:
        self.now_s = _START_S
        self._chance = random.Random(seed)
        self._owners: dict[LoopOwner[Any], float] = {}  # -> time of its next turn without a message
        self._steps: list[Callable[[], bool]] = []
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._in_turn = False
        self.turns = 0
        self.ran = 0  # tasks run, counted for `Clockwork`

    def installed(self) -> AbstractContextManager[None]:
        """Makes this the machine of the calling thread during the block; threads left by earlier tests keep the real one."""
        mine = threading.get_ident()

        def for_me(virtual: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
            def ask(*args: Any, **words: Any) -> Any:
                return (virtual if threading.get_ident() == mine else real)(*args, **words)

            return ask

        return machine.replaced(SimpleNamespace(**{name: for_me(getattr(self, name), getattr(machine, name)) for name in machine.OFFERED}))

    # -- as machine.py

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic

    def wall_s(self) -> float:
        return _START_WALL_S + self.now_s - _START_S

    def wall_us(self) -> int:
        return round(self.wall_s() * 1e6)

    def boottime_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        """Moves the clock; all other owners are late then, as if they were slow."""
        self.now_s += seconds

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)

    def random_hex(self, count: int) -> str:
        return self._chance.randbytes(count).hex()

    def guid(self) -> str:
        return self.random_hex(16)

    Thread = Timer = _Thread

    def pool(self, _most: int, _name: str) -> Executor:
        made = _Pool()
        self._steps.append(made.step)
        return made

    steady_pool = pool

    def result(self, future: Future[Any], timeout_s: float | None) -> Any:
        self._wait(future.done, timeout_s)
        return future.result(0)

    def wait_for(self, condition: threading.Condition, holds: Callable[[], object], timeout_s: float | None) -> bool:
        condition.release()
        try:
            self._wait(holds, timeout_s)
        finally:
            condition.acquire()
        return bool(holds())

    def _wait(self, holds: Callable[[], object], timeout_s: float | None) -> None:
        """Waits in the user's thread, the only one that may; gives all owners their turns meanwhile."""
        end_s = math.inf if timeout_s is None else self.now_s + timeout_s
        with suppress(_TooLong):
            self._run(holds, end_s)

    # -- turns

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        """As `Clockwork.at`: calls `call` at `due_s`."""
        heapq.heappush(self._calls, (due_s, next(self._numbers), call))

    def every(self, pause_s: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.at(self.now_s + pause_s, again)

        self.at(self.now_s + pause_s, again)

    def add(self, owner: LoopOwner[Any], *steps: Callable[[], bool]) -> None:
        """Gives an owner turns from now on. steps: functions of its helpers; each does one thing, and returns False if there is none."""
        self._owners[owner] = self._due_s(owner)
        self._steps += steps

    def run_until(self, condition: Callable[[], object], what: str, *, within_s: float = 600.0) -> None:
        """Gives turns and moves the clock until the condition is true. Raises: AssertionError after `within_s` of virtual time."""
        try:
            self._run(condition, self.now_s + within_s)
        except _TooLong:
            raise AssertionError(f"not within {within_s} s of virtual time: {what}") from None

    def _run(self, condition: Callable[[], object], end_s: float) -> None:
        assert not self._in_turn, "an owner waits in its turn for what only the turn of another brings"
        jumped_at = self.turns
        while not condition():
            if self._turn():
                assert self.turns - jumped_at < _SPINS, f"somebody spins: so many turns at {self.now_s} s without a wait"
            else:
                jumped_at = self.turns
                next_s = max(self.now_s, self._next_s())
                if next_s > end_s or next_s == math.inf:
                    self.now_s = max(self.now_s, min(end_s, next_s))
                    raise _TooLong
                self.now_s = next_s

    def _turn(self) -> bool:
        """Lets each owner and helper with work do one thing. Returns False if none had work."""
        self._in_turn = True
        try:
            return self._turns()
        finally:
            self._in_turn = False

    def _turns(self) -> bool:
        moved = False
        while self._calls and self._calls[0][0] <= self.now_s:
            heapq.heappop(self._calls)[2]()
            moved = True
        for owner in list(self._owners):
            moved = self._give(owner) or moved
        for step in list(self._steps):
            while step():
                moved = True
        return moved

    def _give(self, owner: LoopOwner[Any]) -> bool:
        try:
            message = owner.mailbox.get(0)
        except Closed:
            del self._owners[owner]
            return True
        if message is None and self._owners[owner] > self.now_s:
            return False
        self.turns += 1
        is_on = owner.turn(message)
        self.now_s += _TURN_S
        if is_on:
            self._owners[owner] = self._due_s(owner)
        else:
            del self._owners[owner]
        return True

    def _due_s(self, owner: LoopOwner[Any]) -> float:
        wait_s = owner.wait_s()
        return math.inf if wait_s is None else self.now_s + wait_s

    def _next_s(self) -> float:
        timers = [due for owner in self._owners if (due := owner.mailbox.due_s()) is not None]
        return min([*self._owners.values(), *timers, *(call[0] for call in self._calls[:1])])


class VirtualCluster:
    """Daemons and clients of one cluster. Every line of their logs has the virtual time in `at_s`.

    Args:
        world: an installed machine. directory: for the Starters' files.
    """

    def __init__(self, world: VirtualMachine, directory: Path, *, settings: ClusterSettings | None = None) -> None:
        self.world = world
        self.directory = directory
        self.tree = MemoryTree(now_ms=lambda: machine.wall_us() // 1000)
        self.store = MemoryStore()
        self.log: list[dict[str, Any]] = []
        self._sessions: list[MemoryCoordinator] = []
        self.starters: list[Starter] = []
        self._heard_s: dict[MemoryCoordinator, float] = {}
        self.admin = self.session()
        self.meta = bootstrap(self.admin, settings=settings)
        self.store.bind_cluster(self.meta.cluster_id)
        world.every(SESSION_S / 6, self._keep_sessions)

    # -- ZooKeeper

    def session(self) -> MemoryCoordinator:
        made = MemoryCoordinator(self.tree, session_timeout_s=SESSION_S, clock=machine.monotonic, guarded=False)
        self._sessions.append(made)
        self._heard_s[made] = self.world.now_s
        return made

    def cut(self, coordinator: MemoryCoordinator) -> None:
        """Cuts the network between a client and ZooKeeper until `mend`."""
        coordinator.auto = False
        coordinator.cut()

    def mend(self, coordinator: MemoryCoordinator) -> None:
        """Restores the network."""
        coordinator.auto = True
        coordinator.reconnect()

    def _keep_sessions(self) -> None:
        """Sends pings of connected clients, ends sessions that were silent for their timeout, and ends requests past their deadline."""
        for coordinator in self._sessions:
            if coordinator.ping():
                self._heard_s[coordinator] = self.world.now_s
            elif self.world.now_s - self._heard_s[coordinator] >= SESSION_S and self.tree.is_alive(coordinator.session_id):
                coordinator.tell(self.tree.end_session(coordinator.session_id))
            coordinator.guard()

    # -- daemons and clients

    def watchdog(self, name: str) -> tuple[Watchdog, MemoryCoordinator]:
        coordinator = self.session()
        made = Watchdog(
            coordinator, self.store, self.meta, endpoint=f"{name}:1", resync_s=20.0, log=self._logger(name), metrics=LeaderMetrics()
        )
        made.begin()
        self.world.add(made)
        return made, coordinator

    def starter(self, node: str, *, task_s: float, slots: int = 1) -> tuple[Starter, MemoryCoordinator]:
        """Starts the Starter of a node on which each task takes `task_s`."""
        coordinator = self.session()
        own = StarterConfig(node=node, cores=slots, memory_bytes=1 << 34, stop_grace_s=1.0)
        config = Config(cluster=ClusterConfig(zk="memory", store="memory", session_timeout_s=SESSION_S), starter=own)
        directory = self.directory / node
        directory.mkdir()
        starter = build(
            config, (node,), directory, coordinator, self.store, self.meta, self._logger(node), Registrant(endpoint=f"{node}:1"),
            make_runner=lambda **words: VirtualRunner(self.world, task_s, **words),  # type: ignore[arg-type]
        )  # fmt: skip
        starter.begin()
        self.world.add(starter, starter.shared.io.step)
        self.starters.append(starter)
        return starter, coordinator

    def client(self) -> Connection:
        coordinator = self.session()
        engine = engine_here(coordinator, self.store)
        self.world.add(engine.thread)
        self.world.run_until(lambda: engine.session_state is SessionState.CONNECTED, "the client is connected")
        return Connection(engine, Config(), coordinator)

    # -- what was logged

    def _logger(self, who: str) -> Any:
        def keep(_logger: Any, level: str, event: dict[str, Any]) -> Any:
            self.log.append({"who": who, "level": level, "at_s": self.world.now_s, **event})
            raise structlog.DropEvent

        return structlog.wrap_logger(None, processors=[keep])

    def events(self, name: str, who: str = "") -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name and who in ("", line["who"])]
