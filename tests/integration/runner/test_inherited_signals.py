"""Work, daemons and tests start with default signal handling, even below `&` in a script, nohup or a service manager."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from rmgr.dev.cluster import DevCluster
from rmgr.model.states import State
from rmgr.model.submission import Command
from tests.harness import deaf
from tests.harness.starter_rig import Rig
from tests.integration.commands import Shell, wait_line
from tests.places import ROOT

#: Executes what follows it with all signals ignored and blocked.
_DEAF = (sys.executable, deaf.__file__)
#: Python ignores them, and gives them back to what it executes.
_PYTHONS = {signal.SIGPIPE, signal.SIGXFSZ}


def set_in(status: str, field: str) -> set[int]:
    """Signals of a field (SigIgn, SigBlk) of /proc/PID/status; without 32 and 33, which glibc's posix_spawn ignores."""
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    bits = int(line.split()[1], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1} - {32, 33}


def status_of(pid: int | str) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def test_work_and_its_starter_inherit_no_disposition(rig: Rig) -> None:
    starter = rig.spawn(before=_DEAF)
    rig.wait_registered()
    told = status_of(starter.pid)
    assert (set_in(told, "SigIgn"), set_in(told, "SigBlk")) == (_PYTHONS, set())

    outcome = rig.outcomes(rig.submit(Command(argv=("cat", "/proc/self/status"))), 1)[0]
    assert outcome.state is State.COMPLETED, outcome.error
    told = outcome.log[0].decode()
    assert (set_in(told, "SigIgn"), set_in(told, "SigBlk")) == (set(), set())

    def call() -> None:
        print(Path("/proc/self/status").read_text())
        subprocess.run(["cat", "/proc/self/status"], check=True)

    outcome = rig.outcomes(rig.submit(call), 1)[0]
    assert outcome.state is State.COMPLETED, outcome.error
    _, worker, child = outcome.log[0].decode().split("Name:")
    assert (set_in(worker, "SigIgn"), set_in(worker, "SigBlk")) == (_PYTHONS, set())
    assert (set_in(child, "SigIgn"), set_in(child, "SigBlk")) == (set(), set())

    starter.terminate()
    assert starter.wait(60) == 0, "SIGTERM was ignored"


def test_what_tests_start_inherits_no_disposition() -> None:
    script = "import subprocess, tests.conftest; subprocess.run(['cat', '/proc/self/status'], check=True)"
    ended = subprocess.run([*_DEAF, sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert (set_in(ended.stdout, "SigIgn"), set_in(ended.stdout, "SigBlk")) == (set(), set())


def test_a_command_under_nohup_outlives_its_terminal_and_its_work_does_not_know(live_cluster: DevCluster, tmp_path: Path) -> None:
    sh = Shell(tmp_path, live_cluster.environment())
    gate = sh.directory / sh.file("gate", "")
    script = f"grep SigIgn /proc/self/status; while [ -e {gate} ]; do sleep 0.05; done; echo done"
    with sh.running("run", "--", "sh", "-c", script, before=("nohup",)) as process:
        assert set_in(wait_line(process, "SigIgn"), "SigIgn") == set()
        process.send_signal(signal.SIGHUP)
        gate.unlink()
        assert wait_line(process, "done")
        assert process.wait(60) == 0


def test_dev_under_nohup_outlives_its_terminal(zookeeper_parts: None, tmp_path: Path) -> None:
    sh = Shell(tmp_path / "home")
    options = ("--dir", str(tmp_path / "cluster"), "--nodes", "0", "--watchdogs", "1")
    with sh.running("dev", *options, before=(*_DEAF, "nohup")) as process:
        wait_line(process, "Ctrl-C stops it")
        for process_of in (row["pid"] for row in sh("dev", "status", "--json").json["processes"]):
            told = status_of(process_of)
            assert not set_in(told, "SigIgn") & {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD}, told
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read().count("stopping the cluster") == 1
