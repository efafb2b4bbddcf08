"""Real WatchDog processes on a real ZooKeeper: starts and signals them, reads their logs and records, and always ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import Unavailable
from rmgr.model.node import EpochRecord
from tests.harness import wall_clock
from tests.harness.ended_sessions import LONG_S, expire, expire_all, sessions
from tests.harness.fair_time import FairTimer
from tests.harness.leader_bench import Tree
from tests.harness.waiting import PATIENCE_S, eventually


class WatchdogProcess:
    """A WatchDog process, with a log of JSON lines."""

    def __init__(
        self, directory: Path, name: str, *, zk: str, store: str, session_timeout_s: float, failpoint: str = "", ahead_s: float = 0.0
    ) -> None:
        self.name = name
        self.session_timeout_s = session_timeout_s
        self.log_file = directory / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        environment |= {
            "RMGR_ZK": zk,
            "RMGR_STORE": store,
            "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(session_timeout_s),
            "RMGR_LOG_FORMAT": "json",
            "RMGR_STRICT_LOG": "1",
        }
        if failpoint:
            environment["RMGR_FAILPOINT"] = failpoint
        python = [sys.executable, wall_clock.__file__, str(ahead_s)] if ahead_s else [sys.executable]
        with self.log_file.open("ab") as sink:
            self._child = subprocess.Popen(
                [*python, "-m", "rmgr.cli.main", "watchdog"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, deadline_s: float) -> int:
        return self._child.wait(deadline_s)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the lines of the log with this event."""
        found = []
        for line in self.log_file.read_text().split("\n"):
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if document.get("event") == name:
                    found.append(document)
        return found

    def metric(self, name: str) -> float:
        """Returns a value from the metrics page."""
        address = self.events("watchdog_listens")[-1]["address"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def end(self) -> None:
        """Kills the process in any state."""
        self._child.kill()
        self._child.wait(PATIENCE_S)


class Watchdogs:
    """The WatchDogs of a cluster without Starters, which the tests of a file share one after another."""

    def __init__(self, directory: Path, hosts: str) -> None:
        self._session_timeout_s = LONG_S
        self._directory, self._hosts = directory, hosts
        self._processes: list[WatchdogProcess] = []
        self._move()

    def _move(self) -> None:
        """Begins with an empty tree."""
        self._chroot = f"/test/{uuid.uuid4().hex[:12]}"
        self.coordinator = self.visitor()

    def visitor(self) -> ZkCoordinator:
        """Returns another session, for a Starter that dies when it is closed."""
        return ZkCoordinator.connect(self._hosts, self._chroot, session_timeout_s=LONG_S)

    def start(self, failpoint: str = "", *, ahead_s: float = 0.0, session_timeout_s: float = 0.0) -> WatchdogProcess:
        """Starts a WatchDog and waits until it stands for election.

        ahead_s: how wrong its machine's clock is. session_timeout_s: 0 = that of the test.
        """
        name, store = f"w{len(self._processes) + 1}", f"sqlite:{self._directory / self._chroot.rpartition('/')[2]}.db"
        process = WatchdogProcess(
            self._directory, name, zk=f"{self._hosts}{self._chroot}", store=store,
            session_timeout_s=session_timeout_s or self._session_timeout_s, failpoint=failpoint, ahead_s=ahead_s,
        )  # fmt: skip
        self._processes.append(process)
        eventually(lambda: process.pid in self.standing() or not process.is_running, f"{process.name} stands for election")
        return process

    def lead(self) -> WatchdogProcess:
        """Returns the only WatchDog, which leads: the one that the test before has left, or a new one."""
        left = [process for process in self._processes if process.is_running]
        if [process.session_timeout_s for process in left] != [LONG_S] or self._is_busy():
            self.clear()
            left = [self.start()]
        self.wait_leader(left[0])
        return left[0]

    def depose(self) -> None:
        """Ends the session of the leader, which then stands again, behind all others."""
        expire(self._hosts, sessions(self.coordinator)[f"{paths.WATCHDOGS}/{self.epoch().candidate}"])

    def expire_when_dead(self, process: WatchdogProcess) -> None:
        """Ends the session of a WatchDog as soon as its process has died, so that the next one need not wait for an expiry."""
        entries = {f"{paths.WATCHDOGS}/{name}" for name in self.line()}
        pids = {path: decode_record(found.data, EpochRecord).pid for path in entries if (found := self.coordinator.get(path).result(60))}
        owners = [owner for path, owner in sessions(self.coordinator).items() if pids.get(path) == process.pid]

        def run() -> None:
            with contextlib.suppress(subprocess.TimeoutExpired, Unavailable):  # the session then expires by itself
                process.wait(PATIENCE_S)
                for owner in owners:
                    expire(self._hosts, owner)

        threading.Thread(target=run, name="expires", daemon=True).start()

    def line(self) -> list[str]:
        return sorted(self.coordinator.children(paths.WATCHDOGS).result(60) or [], key=paths.entry_sequence)

    def standing(self) -> set[int]:
        """Returns the pids of the candidates; candidates may leave the line while another enters it."""
        found = [self.coordinator.get(f"{paths.WATCHDOGS}/{name}").result(60) for name in self.line()]
        return {decode_record(entry.data, EpochRecord).pid for entry in found if entry is not None}

    def epoch(self) -> EpochRecord:
        """Returns the record of the epoch, which names the leader."""
        found = self.coordinator.get(paths.EPOCH).result(60)
        return EpochRecord() if found is None else decode_record(found.data, EpochRecord)

    def leads(self, process: WatchdogProcess) -> bool:
        """Whether a process leads, by the record."""
        return self.epoch().pid == process.pid

    def wait_leader(self, process: WatchdogProcess) -> float:
        """Waits until a process leads; returns how long that took (fair s)."""
        with FairTimer() as timer:
            eventually(lambda: self.leads(process), f"{process.name} leads\n{process.log_file.read_text()[-3000:]}")
        return timer.elapsed_s

    def clear(self, session_timeout_s: float = LONG_S) -> None:
        """Ends every process and its session. If work is left, by a test that failed, the next test has another tree.

        session_timeout_s: of WatchDogs to come.
        """
        self._session_timeout_s = session_timeout_s
        for process in self._processes:
            process.end()
        expire_all(self._hosts, self.coordinator)
        eventually(lambda: not self.line(), "nobody is in line")
        if self._is_busy():
            self.coordinator.close()
            self._move()

    def _is_busy(self) -> bool:
        look = Tree(self.coordinator)
        return bool(look.pending() or look.held() or any(look.names(paths.running_node(node)) for node in look.names(paths.NODES)))

    def close(self) -> None:
        self.clear()
        self.coordinator.close()
