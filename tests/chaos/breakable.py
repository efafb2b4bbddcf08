"""A cluster to break: real processes, calls that submit work which records its own runs, and deaths that are noticed soon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Self

from ledger import BEAT_S, SHELL, Span, check, check_nothing_left, read_ledger

from rmgr.adapters.stores import open_store
from rmgr.client.connection import Connection, connect
from rmgr.config import Config
from rmgr.coord.protocol.ports import Store
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from rmgr.model.queue import ClusterSettings
from rmgr.model.views import TaskView
from rmgr.procedures.snapshot import read_tasks
from tests.harness.cluster_settings import changed_settings
from tests.harness.ended_sessions import AFTER_S, LONG_S, Expiry
from tests.harness.waiting import PATIENCE_S, eventually

#: T (s): how long a silent process counts as alive. `Expiry` ends its session after T; ZooKeeper does so within T and a tick.
#: The leader adds its grace of 1 s.
T = AFTER_S
#: T (s) for tests that restart ZooKeeper servers and may lose no session: on a busy machine a JVM takes longer to start than a short
#: lease lasts.
LONG_T = 20.0
TICK = 0.75
#: Pause of a rank between two beats (s).
RANK_BEAT_S = 0.25
GRACE = 1.0
#: Time (s) within which a dead node's work runs elsewhere, on a machine that is busy with the test itself.
RECOVERY_S = T + TICK + GRACE + 4.0


class Chaos:
    """A cluster and its ledger, with everything that tests do to them."""

    def __init__(
        self,
        directory: Path,
        *,
        store: str = "",
        guest_of: ZooKeeperServer | ZooKeeperEnsemble | None = None,
        session_timeout_s: float = 0.0,
    ) -> None:
        """session_timeout_s: after which ZooKeeper ends sessions; if 0, sessions are long, and `Expiry` ends those of silent processes."""
        self.directory = directory
        self.ledger = directory / "ledger"
        self.cluster = DevCluster(
            directory / "cluster",
            nodes=0,
            watchdogs=0,
            zookeeper_words=("srvr", "mntr"),
            store=store,
            session_timeout_s=session_timeout_s or LONG_S,
            environment={"LEDGER": str(self.ledger)},
            heap_mb=128,
            guest_of=guest_of,
        )
        self._expiry = None if session_timeout_s else Expiry(self.cluster)
        self.cores: dict[str, int] = {}
        self._started: dict[str, tuple[int, dict[str, str]]] = {}  # cores and variables with which each Starter was started last
        self.submissions: list[int] = []
        self.acknowledged = 0
        self.ranks: dict[int, int] = {}
        self._store: Store | None = None

    # -- parts

    def start(self, *, nodes: int = 3, cores: int = 2, watchdogs: int = 2) -> None:
        """Starts everything and waits until it is healthy."""
        self.cluster.start()
        if self._expiry is not None:
            self._expiry.start()
        for number in range(1, watchdogs + 1):
            self.cluster.start_watchdog(f"w{number}")
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}", cores=cores)
        self.cluster.wait_healthy(nodes=nodes, leader=watchdogs > 0, deadline_s=PATIENCE_S)

    def add_node(self, name: str, *, cores: int = 2, **environment: str) -> None:
        """Starts, or restarts, the Starter of a node."""
        self.cores[name], self._started[name] = cores, (cores, environment)
        self.cluster.start_starter(name, cores=cores, environment=environment)

    def succeed(self, **heirs: dict[str, str]) -> None:
        """Replaces all WatchDogs by new ones, each with its variables, that lead in this order. Returns when the first one leads."""
        others = self.watchdogs()
        for at, (name, environment) in enumerate(heirs.items(), start=1):
            self.cluster.start_watchdog(name, environment=environment)
            eventually(lambda at=at: self.snapshot().watchdogs >= len(others) + at, f"{name} stands by")  # type: ignore[misc]
        for other in others:
            self.cluster.kill(other, signal.SIGTERM)
        eventually(lambda: self.leader() not in {"", *others}, "the first one leads")

    def heal(self, **cores: int) -> None:
        """Prepares a used cluster for the next test: no work, a new ledger, and only these nodes, with so many cores, none drained."""
        for name in self.watchdogs("stopped"):
            self.cluster.kill(name)
        if not self.watchdogs():
            self.new_watchdog()
        eventually(self.leader, "somebody leads")
        self.rmgr("cancel", "--state", "INITIAL,HELD,STARTING,RUNNING,SUSPENDED")
        if drained := self.snapshot().drains:
            self.rmgr("resume", *drained)
        self.keep_only(*cores, how=signal.SIGTERM)
        self.submissions, self.acknowledged, self.ranks, self.cores = [], 0, {}, dict(cores)
        self.ledger = self.directory / f"ledger-{time.monotonic_ns()}"
        known, before = {process.id for process in self.cluster.state.processes}, self.snapshot().nodes
        anew = [name for name, wanted in cores.items() if name not in known or not self._is_well(name, wanted)]
        for name in anew:
            if name in known and self.cluster.process(name).state != "dead":
                self.cluster.kill(name)
            self.add_node(name, cores=cores[name])
        old = {name: before[name].incarnation for name in anew if name in before}

        def is_ready() -> bool:
            """Sessions of the killed have ended, and their nodes were cleared."""
            snapshot = self.snapshot()
            return self.up() == set(cores) and all(snapshot.nodes[name].incarnation > old[name] for name in old) and not snapshot.claimed

        eventually(is_ready, "only the nodes are up, and idle")

    def _is_well(self, name: str, cores: int) -> bool:
        """Whether a Starter runs, with so many cores and no variables of an earlier test."""
        return self.cluster.process(name).state == "running" and self._started[name] == (cores, {})

    def watchdogs(self, state: str = "running") -> list[str]:
        return [process.id for process in self.cluster.state.processes if process.role == "watchdog" and process.state == state]

    def with_two_watchdogs(self) -> Self:
        """Leaves two live WatchDogs; those that earlier tests have killed are replaced under new names."""
        living = self.watchdogs()
        for name in living[2:]:
            self.cluster.kill(name)
        for _ in range(2 - len(living)):
            self.new_watchdog()
        eventually(lambda: self.snapshot().watchdogs == 2 and self.leader(), "two WatchDogs stand for election")
        return self

    @contextlib.contextmanager
    def unexpired(self) -> Iterator[None]:
        """Meanwhile stopped processes keep their sessions, for `LONG_S`."""
        assert self._expiry is not None
        self._expiry.stop()
        try:
            yield
        finally:
            self._expiry = Expiry(self.cluster)
            self._expiry.start()

    def settings(self, change: Callable[[ClusterSettings], ClusterSettings]) -> AbstractContextManager[None]:
        """Meanwhile the cluster has other settings."""
        return changed_settings(self.cluster.coordinator, change)

    def new_watchdog(self) -> str:
        """Starts a WatchDog under a name that no other has had; returns the name."""
        names = {process.id for process in self.cluster.state.processes}
        name = next(name for number in count(1) if (name := f"w{number}") not in names)
        self.cluster.start_watchdog(name)
        return name

    def keep_only(self, *names: str, how: int = signal.SIGKILL) -> None:
        """Ends all other Starters; those that are stopped are killed in any case."""
        for name in {process.id for process in self.cluster.state.processes if process.role == "starter"} - set(names):
            if (state := self.cluster.process(name).state) != "dead":
                self.cluster.kill(name, how if state == "running" else signal.SIGKILL)

    def restart(self, name: str, *, cores: int = 2, **environment: str) -> None:
        """Kills a Starter and starts it again; returns when its node has a new incarnation."""
        before = self.snapshot().nodes[name].incarnation
        self.cluster.kill(name)
        self.add_node(name, cores=cores, **environment)
        eventually(lambda: self.snapshot().nodes[name].incarnation > before, f"{name} is back")

    def snapshot(self) -> ClusterSnapshot:
        """Reads the leader, the nodes and their claims. Does not read submissions, of which a shared cluster has hundreds."""
        return self.cluster.snapshot(submissions=False)

    def up(self) -> set[str]:
        """Returns the nodes whose Starter is registered and alive."""
        snapshot = self.snapshot()
        return {name for name, record in snapshot.nodes.items() if record.state == "up" and record.guid in snapshot.alive}

    def nodes_of(self, number: int) -> tuple[str, ...]:
        """Returns the nodes on which a job of one task runs now, its head first, or () if it does not run."""
        return next((block.nodes for block in self.snapshot().claimed if block.key.submission == number), ())

    def leader(self) -> str:
        """Returns the id of the WatchDog that leads now, or "" if none does."""
        snapshot = self.snapshot()
        if snapshot.epoch is None or not snapshot.leader_alive:
            return ""
        mine = next((process for process in self.cluster.state.processes if process.pid == snapshot.epoch.pid), None)
        return mine.id if mine is not None and mine.state != "dead" else ""  # a killed leader's session lasts for T

    def epoch(self) -> int:
        """Returns the present epoch, or 0 before the first leader."""
        record = self.snapshot().epoch
        return record.epoch if record else 0

    @property
    def store(self) -> Store:
        """The cluster's data store, opened at first use."""
        if self._store is None:
            self._store = open_store(self.cluster.state.store)
        return self._store

    def connection(self) -> Connection:
        """Returns a connection of the Python API to this cluster, as its owner."""
        return connect(config=self.config())

    def config(self) -> Config:
        """Returns the configuration of the cluster's owner."""
        config = self.cluster.admin_config()
        owner = self.cluster.security.owner if self.cluster.security is not None else ""
        return replace(config, security=replace(config.security, dir=str(owner)))

    # -- work

    def rmgr(self, *words: str, timeout: float = PATIENCE_S, **environment: str) -> subprocess.CompletedProcess[str]:
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
        """Submits an array of shell tasks that record their runs in the ledger; returns the submission."""
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
            "bash",
            "-c",
            SHELL,
        )
        assert done.returncode == 0, done.stderr
        number = int(done.stdout)
        self.submissions.append(number)
        self.acknowledged += tasks
        return number

    def let_end(self) -> None:
        """Makes all submitted tasks end at their next beat."""
        Path(f"{self.ledger}.stop").touch()

    def submit_job(self, processes: int, seconds: float, *options: str) -> int:
        """Submits a job whose script starts `processes` ranks that record their runs in the ledger; returns the submission."""
        rank, script = self.directory / "rank.sh", self.directory / "job.sh"
        rank.write_text(SHELL)
        script.write_text(f"#!/bin/sh\nexec rmgr run bash {rank}\n")
        beats = ("--env", f"BEATS={round(seconds / RANK_BEAT_S)}", "--env", f"BEAT={RANK_BEAT_S}", "--env", f"LEDGER={self.ledger}")
        done = self.rmgr("submit", "--parsable", "-n", str(processes), *beats, *options, str(script))
        assert done.returncode == 0, done.stderr
        number = int(done.stdout)
        self.submissions.append(number)
        self.acknowledged += 1
        self.ranks[number] = processes
        return number

    def spans(self, number: int, attempt: int = 0) -> list[Span]:
        """Returns the ledger's executions of a submission, of one attempt or (0) of all."""
        spans = [span for span in read_ledger(self.ledger) if span.task.startswith(f"{number}_")]
        return [span for span in spans if attempt in {0, span.attempt}]

    def tasks(self, number: int) -> list[TaskView]:
        """Returns the tasks of a submission as rmgr reports them."""
        return read_tasks(self.cluster.coordinator, self.store, number)[1]

    def started(self) -> int:
        """Returns the number of executions in the ledger."""
        return len(read_ledger(self.ledger))

    def ended(self) -> bool:
        """Whether every task of every submission is final."""
        return all(view.state.is_final for number in self.submissions for view in self.tasks(number))

    # -- the end

    def finish(self, *, results: dict[str, str] | None = None, exclusive: bool = False) -> dict[str, TaskView]:
        """Waits for the end of all work, then checks I1-I6 and I9; returns the tasks by id."""
        eventually(self.ended, "every task has ended", within_s=PATIENCE_S)
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
            ranks=self.ranks,
        )

        def clean() -> bool:
            try:
                check_nothing_left(coordinator, self.directory, self.cores)
            except AssertionError:
                return False
            return True

        with contextlib.suppress(AssertionError):  # the check below reports what is left
            eventually(clean, "nothing is left")
        check_nothing_left(coordinator, self.directory, self.cores)
        return tasks

    def stop(self) -> None:
        """Stops everything at once."""
        if self._store is not None:
            self._store.close()
        if self._expiry is not None:
            self._expiry.stop()
        self.cluster.stop(at_once=True)
