"""The example of a solver service (deploy/examples/solvers) runs as its first lines say, and its answers are right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S
from tests.harness.waiting import eventually
from tests.places import ROOT

EXAMPLE = ROOT / "deploy" / "examples" / "solvers"


def test_the_client_of_the_solver_service_gets_right_answers_from_both_servers(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "cluster", nodes=0, watchdogs=1, heap_mb=128, guest_of=zookeeper, session_timeout_s=LONG_S)
    cluster.start()
    try:
        cluster.start_gateway("g1", environment={"RMGR_SUBMITTER_REFRESH": "1s"})
        for name, slots in (("big", "2"), ("small", "1")):
            options = ["--functions", str(EXAMPLE / "solvers.toml"), "--slots", slots]
            cluster.start_server(name, options=options)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        environment = {**plain, **cluster.environment()}

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, *words]
            return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=120, check=False)

        eventually(lambda: "big small" in run("-m", "rmgr.cli.main", "functions", "poisson").stdout, "both servers offer it")
        ended = run("client.py", "--points", "60", "--calls", "30")
    finally:
        cluster.stop(at_once=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("30 problems of 60 x 60 points in ")
    assert "big: " in lines[1]
    assert "small: " in lines[1]
    assert lines[2] == "the two lowest eigenvalues of diag(4, 1, 9): 1 and 4"
    assert lines[3].startswith("a function that raises: call ")
    assert lines[3].endswith("failed: ValueError: the matrix is not symmetric")
