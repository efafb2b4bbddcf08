"""A user who reaches only gateways of a real cluster: every command, the Python API, and killed gateways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmgr
from rmgr.adapters.rpc.channels import OwnClient
from rmgr.client.connection import Connection
from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from rmgr.errors import TaskFailed
from rmgr.model.identity import Role
from tests.harness.ended_sessions import expire, sessions
from tests.harness.gateway_process import GatewayProcess
from tests.harness.terminal import SHELL, Terminal
from tests.harness.waiting import eventually
from tests.integration.commands import Shell, wait_line

TASKS = 150


@pytest.fixture
def gateway(live: DevCluster, tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(live.daemon_environment("submitter", "g1"), tmp_path) as made:
        yield made


@pytest.fixture
def shell(live: DevCluster, gateway: GatewayProcess, tmp_path: Path) -> Shell:
    """Knows neither ZooKeeper nor the store."""
    mine = live.environment()["RMGR_SECURITY_DIR"]
    return Shell(tmp_path / "home", {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": mine})


@pytest.fixture
def connection(gateway: GatewayProcess) -> Iterator[Connection]:
    with rmgr.connect(gateway=gateway.endpoint) as made:
        assert made.config.cluster.zk == ""
        yield made


def noted(ledger: str, number: int, seconds: float) -> int:
    """A task that writes itself down."""
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{number}\n".encode())
    os.close(handle)
    time.sleep(seconds)
    return number * number


def runs_of(ledger: Path) -> Counter[int]:
    return Counter(int(line) for line in ledger.read_text().split()) if ledger.exists() else Counter()


# -- as if there were no gateway ------------------------------------------------------------------------------------------


def test_commands_work_as_with_zookeeper(shell: Shell) -> None:
    assert shell.ok("submit", "--wait", "--", "echo", "hello").out.endswith("hello\n")
    array = shell.submit("--array", "1-30", "--", "sh", "-c", "echo $RMGR_ARRAY_INDEX; test $RMGR_ARRAY_INDEX != 13")
    assert shell("wait", array).code == 1
    assert shell.ok("logs", f"{array}_7").out == "7\n"
    states = Counter(task["state"] for task in shell.ok("tasks", array, "--json").json["tasks"])
    assert states == {"COMPLETED": 29, "FAILED": 1}
    assert shell.ok("jobs", "-a", array, "--json").json["jobs"][0]["tasks"] == 30
    assert [node["state"] for node in shell.ok("nodes", "--json").json["nodes"]] == ["up"] * 3
    assert shell.ok("status", "--json").json["healthy"]
    shell.ok("queues")
    shell.ok("show", array)
    shell.ok("explain", array)
    shell.ok("history")
    ended = shell("doctor")
    assert "gateway:" in ended.out
    assert ended.code == 0, ended.out


def test_output_is_seen_while_the_task_runs(shell: Shell) -> None:
    with shell.running("run", "--", "sh", "-c", "echo first; sleep 300; echo last") as process:
        wait_line(process, "first")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "detached" in process.stderr.readline()  # two signals at once may arrive as one
        process.send_signal(signal.SIGINT)
        process.wait(60)
    number = shell.submit("--", "sh", "-c", "echo one; sleep 30")
    with shell.running("logs", "-f", number) as process:
        wait_line(process, "one")
    shell.ok("cancel", number)
    assert shell("wait", number).code != 0


def test_work_is_held_released_cancelled_and_nodes_drained(shell: Shell) -> None:
    number = shell.submit("--hold", "--", "true")
    assert shell.ok("jobs", number, "--json").json["jobs"][0]["state"] == "HELD"
    shell.ok("release", number)
    shell.ok("wait", number)
    long = shell.submit("--array", "1-3", "--", "sleep", "60")
    shell.ok("hold", long)
    shell.ok("cancel", f"{long}_2")
    shell.ok("cancel", long)
    assert shell("wait", long).code != 0
    shell.ok("drain", "n1", "--reason", "test")
    try:
        assert "drain" in shell.ok("nodes", "--json").json["nodes"][0]["state"]
    finally:
        shell.ok("resume", "n1")


def test_a_terminal_passes_until_the_gateway_is_gone(shell: Shell, gateway: GatewayProcess) -> None:
    terminal = Terminal(["-N", "2", "--pty", *SHELL], environment=shell.environment)
    try:
        terminal.wait(r"\$ ")
        terminal.type("stty size; echo nodes=$RMGR_NODELIST. pid=$$.\r")
        terminal.wait(r"\n31 97\r\n")
        pid = int(terminal.wait(r"nodes=(\w+),(\w+)\. pid=(\d+)\.")[3])
        terminal.resize(20, 60)
        terminal.type("while [ $(stty size | tr -d ' ') != 2060 ]; do sleep 0.05; done; echo re''sized\r")
        terminal.wait("resized")
        terminal.type("head -c 300000 /dev/zero | tr '\\0' x; echo all''shown\r")
        terminal.wait("allshown")
        terminal.type("sh -c 'echo sle\\eps; exec sleep 600'\r")
        terminal.wait("sleeps")
        terminal.type("\x03")  # it takes the sleep, not the shell and not rmgr
        terminal.wait(r"\$ ")
        gateway.kill()  # the terminal was a connection through it: the shell hears a hang-up, as after ssh
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        terminal.wait("has no terminal any more")
        gateway.start()
        assert terminal.process.wait(60) != 0
        assert terminal.is_as_before()
    finally:
        terminal.close()


def test_values_go_in_and_out(shell: Shell, connection: Connection) -> None:
    shell.file("large", "x" * 3_000_000)
    shell.ok("store", "put", "gate/large", "large")
    assert connection.store.get("gate/large") == b"x" * 3_000_000
    connection.store.put("gate/object", {"a": [1, 2]}, overwrite=True)
    assert connection.store.get("gate/object") == {"a": [1, 2]}
    assert set(connection.store.keys("gate/")) == {"gate/large", "gate/object"}
    for key in ("gate/large", "gate/object"):
        shell.ok("store", "rm", key)


def test_the_python_api_works_as_with_zookeeper(connection: Connection) -> None:
    with TaskQueue(pow, connection=connection) as queue:
        futures = [queue.submit_call(2, n) for n in range(50)]
        failed = queue.submit_call("x", 2)
        with pytest.raises(TaskFailed, match="TypeError"):
            queue.wait_all(timeout=60)
    assert [future.result(60) for future in futures] == [2**n for n in range(50)]
    with pytest.raises(TypeError):
        failed.result(60)
    with Executor(connection=connection) as pool:
        assert list(pool.map(abs, range(-20, 20), timeout=60)) == [abs(n) for n in range(-20, 20)]


# -- gateways that are killed ---------------------------------------------------------------------------------------------


def run_while(connection: Connection, ledger: Path, fault: object) -> None:
    """A TaskQueue under which `fault` happens in the middle, while tasks are still being added."""
    with TaskQueue(noted, connection=connection, resubmit=False) as queue:
        futures = []
        for number in range(TASKS):
            futures.append(queue.submit_call(str(ledger), number, 0.03))
            if number == TASKS // 3:
                eventually(lambda: len(runs_of(ledger)) >= 10)
                thread = threading.Thread(target=fault)  # type: ignore[arg-type]
                thread.start()
        thread.join(60)
        done = queue.wait_all(timeout=90)
    assert done.failed == []
    assert [future.result(60) for future in futures] == [number * number for number in range(TASKS)]
    assert runs_of(ledger) == Counter(range(TASKS))  # at most once, and each of them


def test_a_gateway_killed_in_mid_run_and_started_again_loses_nothing(
    connection: Connection, gateway: GatewayProcess, tmp_path: Path
) -> None:
    def fault() -> None:
        gateway.kill()
        gateway.start()

    run_while(connection, tmp_path / "ledger", fault)


def test_a_gateway_that_was_away_for_longer_than_the_session_loses_nothing(
    live: DevCluster, connection: Connection, gateway: GatewayProcess, tmp_path: Path
) -> None:
    guid = connection.submitter.guid

    def fault() -> None:
        owners = {owner for path, owner in sessions(live.coordinator).items() if paths.entry_guid(path.rpartition("/")[2]) == guid}
        gateway.kill()
        for owner in owners:
            expire(live.zookeeper.hosts, owner)
        # The cluster takes this Submitter for dead, and the leader acts for it.
        eventually(lambda: guid not in map(paths.entry_guid, live.coordinator.children(paths.SUBMITTERS).result(60) or []))
        gateway.start()

    run_while(connection, tmp_path / "ledger", fault)


def test_the_next_gateway_goes_on_where_one_was_killed(live: DevCluster, gateway: GatewayProcess, tmp_path: Path) -> None:
    with (
        GatewayProcess(live.daemon_environment("submitter", "g1"), tmp_path) as other,
        rmgr.connect(gateway=f"{gateway.endpoint},{other.endpoint}") as connection,
    ):
        used = gateway if connection.submitter.work.endpoint == gateway.endpoint else other
        run_while(connection, tmp_path / "ledger", used.kill)


def test_a_gateway_that_is_told_to_stop_hands_its_clients_over(live: DevCluster, gateway: GatewayProcess, tmp_path: Path) -> None:
    with (
        GatewayProcess(live.daemon_environment("submitter", "g1"), tmp_path) as other,
        rmgr.connect(gateway=f"{gateway.endpoint},{other.endpoint}") as connection,
    ):
        used = gateway if connection.submitter.work.endpoint == gateway.endpoint else other
        guid = connection.submitter.guid
        missed: list[float] = []
        stop = threading.Event()

        def look() -> None:
            """An owner whose entry is gone for a moment could lose its submissions to somebody who waits for them."""
            while not stop.wait(0.01):
                names = live.coordinator.children(paths.SUBMITTERS).result(60) or []
                if guid not in {paths.entry_guid(name) for name in names}:
                    missed.append(time.monotonic())

        def fault() -> None:
            watcher.start()
            used.signal(signal.SIGTERM)
            assert used.wait() == 0

        watcher = threading.Thread(target=look)
        run_while(connection, tmp_path / "ledger", fault)
        stop.set()
        watcher.join(60)
        assert missed == []
        assert "Traceback" not in used.log()


def test_a_frozen_gateway_is_left_for_the_next_one(live: DevCluster, gateway: GatewayProcess, tmp_path: Path) -> None:
    with (
        GatewayProcess(live.daemon_environment("submitter", "g1"), tmp_path) as other,
        rmgr.connect(gateway=f"{gateway.endpoint},{other.endpoint}") as connection,
    ):
        used = gateway if connection.submitter.work.endpoint == gateway.endpoint else other
        run_while(connection, tmp_path / "ledger", lambda: used.signal(signal.SIGSTOP))
        used.signal(signal.SIGCONT)


def test_a_command_that_waits_goes_on_through_a_restart(shell: Shell, gateway: GatewayProcess, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wait = "until [ -e {} ]; do sleep 0.1; done"
    script = f"echo begins; {wait.format(first)}; echo goes on; {wait.format(second)}; echo ends; exit 3"
    with shell.running("run", "--", "sh", "-c", script) as process:
        wait_line(process, "begins", deadline_s=60)
        gateway.kill()
        gateway.start()
        first.touch()
        assert wait_line(process, "goes on") == "goes on\n"  # while the task runs, and once
        second.touch()
        wait_line(process, "ends", deadline_s=60)
        assert process.wait(60) == 3


def test_work_of_a_client_that_was_killed_ends_without_it(live: DevCluster, gateway: GatewayProcess, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = (
        "import sys, os, time, rmgr\n"
        "def noted(ledger, number):\n"
        "    open(ledger, 'a').write(f'{number}\\n'); time.sleep(0.2)\n"
        "c = rmgr.connect(gateway=sys.argv[1]); q = rmgr.TaskQueue(noted, connection=c)\n"
        "for n in range(40): q.submit_call(sys.argv[2], n)\n"
        "q.flush(30); print(q.name, flush=True); time.sleep(60)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script, gateway.endpoint, str(ledger)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        client.kill()
        client.wait(60)
        eventually(lambda: set(runs_of(ledger)) == set(range(40)))
        with rmgr.connect(gateway=gateway.endpoint) as connection:
            assert len(TaskQueue.attach(name, connection=connection, timeout=30).futures()) == 40
    finally:
        if client.poll() is None:
            client.kill()
        client.communicate(timeout=60)


# -- the process itself ---------------------------------------------------------------------------------------------------


def test_it_tells_its_health_and_what_it_counts(gateway: GatewayProcess, connection: Connection) -> None:
    assert connection.submitter.nodes()
    with OwnClient(gateway.endpoint, credentials=connection.credentials, role=Role.SUBMITTER) as client:
        assert client.is_serving()
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert "rmgr_gateway_sessions 1.0" in text
    assert "rmgr_gateway_zookeeper_connected 1.0" in text
    assert 'rmgr_gateway_requests_total{kind="ReadNodes"}' in text


def test_it_does_not_listen_to_the_network_unasked(live: DevCluster, shell: Shell) -> None:
    direct = Shell(shell.home / "direct", {**live.environment(), "RMGR_SECURITY_DIR": ""})
    ended = direct("submitter", "--listen", "0.0.0.0:0")
    assert ended.code == 2
    assert "--insecure" in ended.err


def test_where_there_is_no_cluster_a_gateway_says_so(live: DevCluster, tmp_path: Path) -> None:
    wrong = {"RMGR_ZK": f"{live.zookeeper.hosts}/nowhere/at/all", "RMGR_CLUSTER_CONNECT_TIMEOUT_S": "2"}
    elsewhere = live.daemon_environment("submitter", "g1") | wrong
    ended = Shell(tmp_path / "home", elsewhere)("submitter", "--listen", "127.0.0.1:0")
    assert ended.code == 5
    assert "cluster" in ended.err
