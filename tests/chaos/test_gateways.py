"""Gateways are killed, stopped and cut off while clients use them: no work is lost or runs twice, and clients go on.

    clients (two programs, a command that waits) ── proxies ── three gateways ── a cluster of two nodes, with the ledger of its tasks
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import ledger
import pytest
from breakable import Chaos

from rmgr.client.connection import Connection, connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig
from rmgr.coord.protocol.ports import SessionState
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

GATEWAYS, CLIENTS = 3, 2
#: How long each gateway is away, one after the other, and all of them at once.
AWAY_S, ALL_AWAY_S, LONGER_S = 2.5, 4.0, LONG_S + 10.0
#: A client has moved to another gateway after so long; of one that is stopped it has to notice first that it says nothing.
MOVES_S, NOTICES_S = 2.0, 2.25


class Ways:
    """The gateways, each behind a proxy."""

    def __init__(self, chaos: Chaos, directory: Path, stack: ExitStack) -> None:
        environment = chaos.cluster.daemon_environment("submitter", "g1")
        self.gateways = [stack.enter_context(GatewayProcess(environment, directory)) for _ in range(GATEWAYS)]
        self.proxies = [stack.enter_context(Proxy(one.endpoint, framed=False)) for one in self.gateways]
        self.names = ",".join(proxy.hosts for proxy in self.proxies)

    def leave(self, fault: str, at: int) -> None:
        """One is away."""
        if fault == "killed":
            self.gateways[at].kill()
        elif fault == "stopped":
            self.gateways[at].signal(signal.SIGSTOP)
        else:
            self.proxies[at].refuse()

    def back(self, fault: str, at: int) -> None:
        """It is there again."""
        if fault == "killed":
            self.gateways[at].start()
        elif fault == "stopped":
            self.gateways[at].signal(signal.SIGCONT)
        else:
            self.proxies[at].refuse(False)


class Client(threading.Thread):
    """A program that submits until it is told to end, one task after another, and waits for all of them."""

    def __init__(self, ways: Ways, chaos: Chaos) -> None:
        super().__init__(daemon=True)
        self.connection: Connection = connect(config=replace(chaos.config(), cluster=ClusterConfig(gateway=ways.names)))
        self.results: dict[str, str] = {}
        self.number = 0
        self.error: BaseException | None = None
        self.enough = threading.Event()
        self._ledger = str(chaos.ledger)
        self._work: Any = self.connection.submitter.work  # type: ignore[attr-defined]

    @property
    def where(self) -> int:
        """Port of the proxy through which it speaks."""
        return int(self._work.endpoint.rpartition(":")[2])

    def has_left(self, port: int) -> bool:
        """It works through another one."""
        return self.where != port and self._work.session_state is SessionState.CONNECTED

    def run(self) -> None:
        try:
            with TaskQueue(ledger.work, connection=self.connection, resubmit=False) as queue:
                futures = []
                while not self.enough.is_set():
                    futures.append(queue.submit_call(self._ledger, 0.05))
                    self.number = self.number or (queue.id or 0)
                    time.sleep(0.05)
                assert queue.wait_all(timeout=120).failed == []
                self.number = queue.id or 0
                self.results = {future.task_id: future.result(60) for future in futures}
        except BaseException as error:
            self.error = error


@pytest.fixture
def by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(ledger)
    yield
    cloudpickle.unregister_pickle_by_value(ledger)


@pytest.fixture
def ways(pair: Chaos, tmp_path: Path, by_value: None) -> Iterator[Ways]:
    with ExitStack() as stack:
        yield Ways(pair, tmp_path, stack)


def under_load(ways: Ways, chaos: Chaos, fault: Callable[[list[Client]], None]) -> None:
    """`fault` happens while clients submit and wait; afterwards everything has run once, and each has its results."""
    clients = [Client(ways, chaos) for _ in range(CLIENTS)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
    go = chaos.directory / f"go-{time.monotonic_ns()}"
    words = ["run", "--", "sh", "-c", f"echo waits; until [ -e {go} ]; do sleep 0.1; done; echo went on; exit 3"]
    command = subprocess.Popen(
        [sys.executable, "-m", "rmgr.cli.main", *words],
        env=kept | {"RMGR_GATEWAY": ways.names, "RMGR_SECURITY_DIR": chaos.config().security.dir},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for client in clients:
            client.start()
        eventually(lambda: chaos.started() > 10, "they work")
        assert command.stdout is not None
        assert command.stdout.readline() == "waits\n"
        before = chaos.started()
        fault(clients)
        eventually(lambda: chaos.started() > before + 10, "it goes on")
        go.touch()
        for client in clients:
            client.enough.set()
        for client in clients:
            client.join(180)
            assert client.error is None, client.error
        out, err = command.communicate(timeout=60)
        assert (command.returncode, out) == (3, "went on\n"), err
    finally:
        go.touch()
        for client in clients:
            client.enough.set()
            client.connection.close()
        if command.poll() is None:
            command.kill()
            command.communicate()
    results = {task: value for client in clients for task, value in client.results.items()}
    chaos.submissions, chaos.acknowledged = [client.number for client in clients], len(results)
    tasks = chaos.finish(results=results)
    assert {view.attempt for view in tasks.values()} == {1}
    assert chaos.started() == len(results), "each ran once"


def one_by_one(ways: Ways, fault: str, clients: list[Client]) -> None:
    for at, proxy in enumerate(ways.proxies):
        port = int(proxy.hosts.rpartition(":")[2])
        users = [client for client in clients if client.where == port]
        ways.leave(fault, at)
        limit_s = MOVES_S + (NOTICES_S if fault == "stopped" else 0.0)
        for client in users:
            eventually(partial(client.has_left, port), f"who used a gateway that was {fault} has another one", within_s=limit_s)
        time.sleep(AWAY_S)
        ways.back(fault, at)


def all_at_once(ways: Ways, fault: str, away_s: float) -> None:
    for at in range(GATEWAYS):
        ways.leave(fault, at)
    time.sleep(away_s)
    for at in range(GATEWAYS):
        ways.back(fault, at)


@pytest.mark.parametrize("fault", ["killed", "stopped", "cut off"])
def test_gateways_go_one_by_one_and_all_at_once_and_nothing_is_lost_or_doubled(pair: Chaos, ways: Ways, fault: str) -> None:
    def happens(clients: list[Client]) -> None:
        one_by_one(ways, fault, clients)
        all_at_once(ways, fault, ALL_AWAY_S)

    under_load(ways, pair, happens)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["killed", "stopped", "cut off"])
def test_all_gateways_are_away_for_longer_than_their_sessions(pair: Chaos, ways: Ways, fault: str) -> None:
    under_load(ways, pair, lambda _: all_at_once(ways, fault, LONGER_S))
