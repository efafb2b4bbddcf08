"""Daemons under a service manager send READY=1 when they serve, beats only from their main loop, and STOPPING=1 at their end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S
from tests.harness.waiting import PATIENCE_S, eventually

#: The loop sleeps this long at a failpoint, well above the limit that the service manager sets.
STALL_S = 4.0
WATCHDOG_S = 1.6


class Service:
    """A daemon, started as systemd does it (Type=notify, WatchdogSec).

    Args:
        words: arguments of `rmgr`. watchdog_s: WatchdogSec. abstract: whether the socket has no name in the file system.
    """

    def __init__(
        self, directory: Path, *words: str, environment: Mapping[str, str], watchdog_s: float = 2.0, abstract: bool = False
    ) -> None:
        self.log = directory / f"{words[0]}.log"
        self.said: list[tuple[float, str]] = []  #: (monotonic time, one assignment such as READY=1)
        address = f"@rmgr-{uuid.uuid4().hex}" if abstract else str(directory / f"{words[0]}.notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if abstract else address)
        self._socket.settimeout(0.2)
        self._closed = threading.Event()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        own = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(watchdog_s * 1e6)), "RMGR_LOG_FORMAT": "json"}
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rmgr.cli.main", *words], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                env={**inherited, **own, **environment}, cwd=directory, start_new_session=True,
            )
        self._thread = threading.Thread(target=self._listen, name="notify", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                continue
            now_s = time.monotonic()
            self.said.extend((now_s, line) for line in data.decode().splitlines())

    def times(self, what: str) -> list[float]:
        """Returns the times at which the daemon sent `what` (monotonic, s)."""
        return [at for at, line in list(self.said) if line == what]

    def status(self) -> str:
        """Returns the status that `systemctl status` would show."""
        return next((line.removeprefix("STATUS=") for _, line in reversed(list(self.said)) if line.startswith("STATUS=")), "")

    def until(self, what: str, condition: Callable[[], object], *, within: float = PATIENCE_S) -> None:
        """Waits for a condition; fails with the end of the daemon's log."""
        eventually(condition, lambda: f"{what}\nsaid: {self.said[-12:]}\n{self.log.read_text()[-2000:]}", within_s=within)

    def silence_s(self) -> float:
        """Returns the time since the daemon's last beat (s)."""
        beats = self.times("WATCHDOG=1")
        return time.monotonic() - beats[-1] if beats else 0.0

    def stop(self, within: float = 60.0) -> int:
        """Sends SIGTERM and waits; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        self._closed.set()
        self._thread.join(60)
        self._socket.close()


def environment(zookeeper: ZooKeeperServer, chroot: str, directory: Path, failpoint: str) -> dict[str, str]:
    return {
        "RMGR_ZK": f"{zookeeper.hosts}{chroot}",
        "RMGR_STORE": f"sqlite:{directory / 'store.db'}",
        "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(LONG_S),
        "RMGR_FAILPOINT": failpoint,
    }


def metrics_answer(service: Service, event: str) -> bool:
    """Another thread of the daemon is alive and serves."""
    address = next(json.loads(line)["address"] for line in service.log.read_text().splitlines() if f'"{event}"' in line)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
        return page.status == 200


def check_stall(service: Service, event: str) -> None:
    """Beats stop while the loop sleeps although the process lives, and come again."""
    service.until("its beats stop", lambda: service.silence_s() > 1.3 * WATCHDOG_S, within=20)
    assert service.process.poll() is None
    assert metrics_answer(service, event), "the process is alive: a thread that beats would have gone on"
    before = len(service.times("WATCHDOG=1"))
    service.until("they come again", lambda: len(service.times("WATCHDOG=1")) > before)


def test_a_watchdog_and_a_starter_tell_systemd_the_truth(zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> None:
    stalls = f"leader.before_close=delay:{STALL_S},starter.before_claim=delay:{STALL_S}"
    variables = environment(zookeeper, chroot, tmp_path, stalls)
    words = ("starter", "--node", "n1", "--cores", "1", "--work-dir", str(tmp_path / "work"))
    with (
        Service(tmp_path, "watchdog", environment=variables, watchdog_s=WATCHDOG_S) as watchdog,
        Service(tmp_path, *words, environment=variables, watchdog_s=WATCHDOG_S, abstract=True) as starter,
    ):
        watchdog.until("it is ready", lambda: watchdog.times("READY=1"))
        watchdog.until("ready means that it stands for election", lambda: "leadership_began" in watchdog.log.read_text())
        watchdog.until("it says what it is", lambda: watchdog.status() == "leading, epoch 1")
        starter.until("it is ready", lambda: starter.times("READY=1"))
        assert '"registered"' in starter.log.read_text(), "ready means that its node is registered"
        starter.until("it says what it is", lambda: starter.status() == "serving n1")
        for service in (watchdog, starter):
            service.until("it beats", lambda service=service: len(service.times("WATCHDOG=1")) >= 3)
        # The Starter stalls when it claims the task, the leader when it closes the submission.
        submit = [sys.executable, "-m", "rmgr.cli.main", "submit", "--", "true"]
        subprocess.run(submit, env={**os.environ, **variables, "RMGR_FAILPOINT": ""}, check=True, capture_output=True, timeout=60)
        with ThreadPoolExecutor(2) as both:
            list(both.map(check_stall, (watchdog, starter), ("watchdog_listens", "starter_listens")))
        assert starter.stop() == 0
        starter.until("it says that it stops", lambda: starter.times("STOPPING=1"))
        extended = next(int(line.partition("=")[2]) for _, line in starter.said if line.startswith("EXTEND_TIMEOUT_USEC="))
        assert extended > 30e6, "as long as its grace"
        assert watchdog.stop() == 0
        watchdog.until("it says that it stops", lambda: watchdog.times("STOPPING=1"))
        for service in (watchdog, starter):
            assert len(service.times("READY=1")) == 1


def test_nobody_is_ready_before_there_is_a_cluster(zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> None:
    variables = environment(zookeeper, chroot, tmp_path, "") | {"RMGR_CLUSTER_CONNECT_TIMEOUT_S": "1"}
    with Service(tmp_path, "submitter", environment=variables) as gateway:
        gateway.process.wait(60)
        assert gateway.process.returncode != 0
        assert gateway.said == []


def test_a_gateway_is_ready_when_it_listens_and_beats(live_cluster: object, tmp_path: Path) -> None:
    from rmgr.dev.cluster import DevCluster

    assert isinstance(live_cluster, DevCluster)
    variables = live_cluster.daemon_environment("submitter", "notified")
    with Service(tmp_path, "submitter", environment=variables, watchdog_s=4.0) as gateway:
        gateway.until("it is ready", lambda: gateway.times("READY=1"))
        assert '"submitter_listens"' in gateway.log.read_text()
        gateway.until("it beats", lambda: len(gateway.times("WATCHDOG=1")) >= 2)
        assert gateway.status() == "serving 0 clients"
        assert gateway.stop() == 0
        assert gateway.times("STOPPING=1")


def test_a_server_of_calls_is_ready_without_a_gateway_beats_and_says_that_it_stops(tmp_path: Path) -> None:
    words = ("server", "--name", "s1", "--speed", "100", "--slots", "1", "--dial", "127.0.0.1:1", "--spool", str(tmp_path / "spool"))
    with Service(tmp_path, *words, environment={"HOME": str(tmp_path)}, watchdog_s=4.0) as server:
        server.until("it is ready", lambda: server.times("READY=1"))
        server.until("it says what it is", lambda: server.status() == "0 gateways; 0 running, 0 waiting")
        server.until("it beats", lambda: len(server.times("WATCHDOG=1")) >= 3)
        assert server.stop() == 0
        assert server.times("STOPPING=1")
