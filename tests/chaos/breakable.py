"""A cluster to break: real processes, short sessions, one call to submit work that writes itself down."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ledger import BEAT_S, SHELL, check, check_nothing_left, read_ledger

from rmgr.adapters.stores import open_store
from rmgr.client.connection import Connection, connect
from rmgr.client.snapshot import read_tasks
from rmgr.config import Config
from rmgr.coord.ports import Store
from rmgr.dev.cluster import DevCluster
from rmgr.errors import CoordinationUnavailable
from rmgr.model.views import TaskView
from tests.harness.fair_time import PATIENCE_S, FairTimer

#: T: how long a silent process is believed alive. ZooKeeper notices within T and a tick, the leader adds its grace of 1 s.
T = 3.0
TICK = 0.75
GRACE = 1.0
#: A dead node's work runs elsewhere within this time, on a machine that is busy with the test itself.
RECOVERY_S = T + TICK + GRACE + 4.0


def eventually(what: str, condition: Callable[[], object], *, within: float) -> object:
    """Waits for a condition; returns its value. Fails naming `what` after `within` fair seconds (see `FairTimer`).

    The test looks at the cluster through ZooKeeper as well: while that is away, the answer is "not yet".
    """
    last_s = time.monotonic() + within + PATIENCE_S
    with FairTimer() as timer:
        while True:
            value: object = False
            with contextlib.suppress(CoordinationUnavailable):
                value = condition()
            if value:
                return value
            assert timer.elapsed_s < within, f"not within {within:.1f} s: {what}"
            assert time.monotonic() < last_s, f"not at all: {what}"
            time.sleep(0.1)  # a look reads the tree and the ledger: oftener costs more than the cluster


class Chaos:
    """A cluster, its ledger, and what tests do to both."""

    def __init__(self, directory: Path, *, store: str = "", zookeepers: int = 1) -> None:
        self.directory = directory
        self.ledger = directory / "ledger"
        self.cluster = DevCluster(
            directory / "cluster",
            nodes=0,
            watchdogs=0,
            zookeepers=zookeepers,
            store=store,
            session_timeout_s=T,
            environment={"LEDGER": str(self.ledger)},
            heap_mb=128,
        )
        self.cores: dict[str, int] = {}
        self.submissions: list[int] = []
        self.acknowledged = 0
        self._store: Store | None = None

    # -- parts

    def start(self, *, nodes: int = 3, cores: int = 2, watchdogs: int = 2, first: dict[str, str] | None = None) -> None:
        """Brings everything up. `first`: variables of the WatchDog w1, which then leads."""
        self.cluster.start()
        for number in range(1, watchdogs + 1):
            self.cluster.start_watchdog(f"w{number}", environment=first if number == 1 else None)
            if number == 1 and first:
                eventually("w1 leads", lambda: self.leader() == "w1", within=PATIENCE_S)
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}", cores=cores)
        self.cluster.wait_healthy(nodes=nodes, leader=watchdogs > 0, deadline_s=PATIENCE_S)

    def add_node(self, name: str, *, cores: int = 2, **environment: str) -> None:
        """Starts a Starter (again)."""
        self.cores[name] = cores
        self.cluster.start_starter(name, cores=cores, environment=environment)

    def leader(self) -> str:
        """Id of the WatchDog that leads now ("" while none does)."""
        snapshot = self.cluster.snapshot()
        if snapshot.epoch is None or not snapshot.leader_alive:
            return ""
        return next((process.id for process in self.cluster.state.processes if process.pid == snapshot.epoch.pid), "")

    def epoch(self) -> int:
        """The present epoch."""
        record = self.cluster.snapshot().epoch
        return record.epoch if record else 0

    @property
    def store(self) -> Store:
        """The data store."""
        if self._store is None:
            self._store = open_store(self.cluster.state.store)
        return self._store

    def connection(self) -> Connection:
        """The Python API's connection to this cluster, as who runs it."""
        return connect(config=self.config())

    def config(self) -> Config:
        """The configuration of who runs the cluster."""
        config = self.cluster.admin_config()
        owner = self.cluster.security.owner if self.cluster.security is not None else ""
        return replace(config, security=replace(config.security, dir=str(owner)))

    # -- work

    def rmgr(self, *words: str, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of rmgr against the cluster."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        return subprocess.run(
            [sys.executable, "-m", "rmgr.cli.main", *words],
            env={**inherited, **self.cluster.environment(), "LEDGER": str(self.ledger), **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def submit(self, tasks: int, seconds: float, *options: str) -> int:
        """An array of shell tasks that write themselves down; returns the submission."""
        beats = max(0, round(seconds / BEAT_S))
        done = self.rmgr(
            "submit",
            "--parsable",
            "--array",
            f"0-{tasks - 1}",
            "--env",
            f"BEATS={beats}",
            "--env",
            f"LEDGER={self.ledger}",
            *options,
            "--",
            "sh",
            "-c",
            SHELL,
        )
        assert done.returncode == 0, done.stderr
        number = int(done.stdout)
        self.submissions.append(number)
        self.acknowledged += tasks
        return number

    def tasks(self, number: int) -> list[TaskView]:
        """Its tasks as rmgr tells them."""
        return read_tasks(self.cluster.coordinator, self.store, number)[1]

    def started(self) -> int:
        """Executions that the ledger has seen start."""
        return len(read_ledger(self.ledger))

    def ended(self) -> bool:
        """Every task of every submission is final."""
        return all(view.state.is_final for number in self.submissions for view in self.tasks(number))

    # -- the end

    def finish(self, *, within: float, results: dict[str, str] | None = None, exclusive: bool = False) -> dict[str, TaskView]:
        """Waits for the end of all work, then checks I1-I6 and I9; returns the tasks by id."""
        eventually("every task has ended", self.ended, within=within)
        coordinator = self.cluster.coordinator
        tasks = check(
            coordinator,
            self.store,
            self.ledger,
            self.submissions,
            cores=self.cores,
            expected=self.acknowledged,
            results=results,
            exclusive=exclusive,
        )

        def clean() -> bool:
            try:
                check_nothing_left(coordinator, self.directory, self.cores)
            except AssertionError:
                return False
            return True

        with contextlib.suppress(AssertionError):  # the check below says what is left
            eventually("nothing is left", clean, within=PATIENCE_S)
        check_nothing_left(coordinator, self.directory, self.cores)
        return tasks

    def stop(self) -> None:
        """Ends everything."""
        if self._store is not None:
            self._store.close()
        self.cluster.stop()
