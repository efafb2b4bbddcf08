"""What a program that uses the API sees on its terminal and in its log, and the repr of its objects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmgr
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually

pytestmark = pytest.mark.usefixtures("live")

#: Configures logging as applications do, and forks while calls are under way: by itself and through `subprocess`.
PROGRAM = """
import logging, multiprocessing, os, subprocess, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)  # Python's own, since 3.12
logging.basicConfig(level=logging.INFO)
import rmgr

def nothing():
    pass

if __name__ == "__main__":
    with rmgr.connect() as connection, rmgr.TaskQueue(len) as queue:
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                connection.store.exists("quiet/nothing")

        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert queue.submit_call("abc").result(60) == 3
        for _ in range(10):
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            subprocess.run([sys.executable, "-S", "-c", ""], preexec_fn=nothing, check=True)
        process = multiprocessing.get_context("fork").Process(target=nothing)
        process.start()
        process.join()
        stop.set()
        for thread in threads:
            thread.join()
    logging.info("the end")
"""


@pytest.mark.parametrize("way", ["zookeeper", "gateway"])
def test_the_log_and_the_terminal_of_a_program_are_its_own(live: DevCluster, tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    mine = live.environment()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RMGR_", "GRPC_"))}
    with GatewayProcess(live.daemon_environment("submitter", "quiet"), tmp_path) as gateway:
        through = {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": mine["RMGR_SECURITY_DIR"]}
        environment = {**kept, "HOME": str(tmp_path), **(through if way == "gateway" else mine)}
        ended = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert ended.stderr == "INFO:root:the end\n"


def test_objects_name_their_cluster_their_id_and_their_state(live: DevCluster, connection: Connection) -> None:
    where = live.environment()["RMGR_ZK"]
    eventually(lambda: repr(connection) == f"<rmgr.Connection to {where}: connected>")
    with rmgr.TaskQueue(len, connection=connection) as queue:
        assert repr(queue) == f"<rmgr.TaskQueue len at {where}: unused>"
        future = queue.submit_call(b"abc")
        assert repr(future).startswith(f"<rmgr.Future {queue.id}_0 at {where}: ")
        future.result(timeout=60)
        assert repr(future) == f"<rmgr.Future {queue.id}_0 at {where}: finished>"
        assert repr(queue) == f"<rmgr.TaskQueue {queue.name} len at {where}: 1 of 1 task ended>"
    with rmgr.Executor(connection=connection) as executor:
        assert repr(executor) == f"<rmgr.Executor at {where}: unused>"
        executor.submit(len, b"abc").result(timeout=60)
        assert repr(executor) == f"<rmgr.Executor {executor.id} at {where}: 1 of 1 call ended>"
    assert repr(executor) == f"<rmgr.Executor {executor.id} at {where}: 1 of 1 call ended, shut down>"
    connection.close()
    assert repr(connection) == f"<rmgr.Connection to {where}: closed>"
