"""The example applications give right answers on a real cluster whose Starters are killed.

on `three_nodes`; each test that kills a Starter starts another one under the same name afterwards
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from breakable import Chaos

from rmgr.dev.cluster import DevCluster
from rmgr.errors import NotFound
from rmgr.model.states import State
from rmgr.runtime import machine
from tests.harness.waiting import eventually
from tests.places import PYTHON, ROOT

EXAMPLES = ROOT / "deploy" / "examples"

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

#: A task that began so lately will not have ended before its Starter is killed.
YOUNG_US = 1_000_000


def environment(cluster: DevCluster) -> dict[str, str]:
    mine = {k: v for k, v in os.environ.items() if not k.startswith("RMGR_") or k == "RMGR_ZOOKEEPER_LIB"}
    return mine | cluster.environment() | {"PYTHONUNBUFFERED": "1"}


class Application:
    """One example as a process of its own, its output in a file."""

    def __init__(self, cluster: DevCluster, output: Path, *words: str) -> None:
        self.output = output
        with output.open("wb") as sink:
            command = [PYTHON, *words]
            self.process = subprocess.Popen(command, cwd=EXAMPLES, env=environment(cluster), stdout=sink, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def end(self, deadline_s: float = 120.0) -> int:
        try:
            return self.process.wait(deadline_s)
        finally:
            self.process.kill()
            self.process.wait()


def kill_the_busiest_starter(cluster: DevCluster, record: Path, *, done: float, nth: int) -> str:
    """Runs deploy/lib/starter_loss.py against the n-th job from now; returns what it printed."""
    program = [PYTHON, str(ROOT / "deploy" / "lib" / "starter_loss.py")]
    options = ["kill", "--job", str(nth), "--done", str(done), "--record", str(record)]
    ended = subprocess.run([*program, *options], env=environment(cluster), capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def newest_job(cluster: DevCluster) -> int:
    program = [PYTHON, str(ROOT / "deploy" / "lib" / "starter_loss.py"), "newest"]
    return int(subprocess.run(program, env=environment(cluster), capture_output=True, text=True, timeout=60, check=True).stdout)


def kill_who_has_just_begun(chaos: Chaos, job: int) -> str:
    """Kills a Starter whose task of the job has just begun, once others have ended, so that it has work in its hands; returns its node."""

    def young() -> str:
        with contextlib.suppress(NotFound):
            tasks = chaos.tasks(job)
            since_us = machine.wall_us() - YOUNG_US if any(one.state is State.COMPLETED for one in tasks) else machine.wall_us()
            return next((one.node for one in tasks if one.state is State.RUNNING and one.started_us > since_us), "")
        return ""

    node = eventually(young, f"a task of {job} begins after others have ended")
    chaos.cluster.kill(node)
    return node


def revive(chaos: Chaos, node: str) -> None:
    """Starts a killed Starter again."""
    chaos.add_node(node)
    eventually(lambda: len(chaos.up()) == 3, "all nodes are up")


def test_the_fragments_add_up_although_a_starter_died(three_nodes: Chaos, tmp_path: Path) -> None:
    job = newest_job(three_nodes.cluster) + 2  # the pairs
    application = Application(three_nodes.cluster, tmp_path / "out", "fragments.py", "--progress", "--delay", "0.5")
    told = kill_the_busiest_starter(three_nodes.cluster, tmp_path / "fault", done=0.2, nth=job)
    ended = application.end()
    node = re.search(r"node (\S+) ", told)
    assert node, told
    revive(three_nodes, node[1])  # first of all: what fails here fails alone
    assert ended == 0, application.text
    assert "The cluster's answer equals the serial one." in application.text
    program = [PYTHON, str(ROOT / "deploy" / "lib" / "starter_loss.py"), "report", str(tmp_path / "fault")]
    report = subprocess.run(program, env=environment(three_nodes.cluster), capture_output=True, text=True, timeout=120, check=True).stdout
    assert "all run again elsewhere" in report


def test_the_eigenvalues_are_right_although_a_starter_died_and_points_are_missing(three_nodes: Chaos, tmp_path: Path) -> None:
    job = newest_job(three_nodes.cluster) + 1  # of four rounds
    application = Application(three_nodes.cluster, tmp_path / "out", "eigen.py", "--progress", "--delay", "3", "--cells", "24")
    node = kill_who_has_just_begun(three_nodes, job)
    ended = application.end()
    revive(three_nodes, node)
    assert ended == 0, application.text
    missing = re.search(r"24 tasks, (\d+) missing", application.text)
    assert missing, application.text
    assert 1 <= int(missing[1]) <= 4
    assert "All eigenvalues in the interval are right, without" in application.text


def test_the_sweep_runs(three_nodes: Chaos, tmp_path: Path) -> None:
    words = ("sweep.py", "--columns", "40", "--rows", "10", "--csv", str(tmp_path / "map.csv"))
    application = Application(three_nodes.cluster, tmp_path / "out", *words)
    assert application.end() == 0, application.text
    assert len((tmp_path / "map.csv").read_text(encoding="utf-8").splitlines()) == 401


def test_the_same_keys_again_are_refused_unless_overwritten(three_nodes: Chaos, tmp_path: Path) -> None:
    words = ("fragments.py", "--cutoff", "3.2", "--prefix", "twice")
    assert Application(three_nodes.cluster, tmp_path / "1", *words).end() == 0
    refused = Application(three_nodes.cluster, tmp_path / "2", *words)
    assert refused.end() != 0
    assert "twice/" in refused.text
    again = Application(three_nodes.cluster, tmp_path / "3", *words, "--overwrite")
    assert again.end() == 0, again.text


def processes_of(directory: Path) -> list[str]:
    """All processes that have a directory in their command line or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, variables = (
                    (entry / name).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace") for name in ("cmdline", "environ")
                )
            except OSError:  # it ended meanwhile, or is not ours
                continue
            if str(directory) in line or str(directory) in variables:
                found.append(line)
    return found


@pytest.mark.long
def test_the_quickstart_ends_well_beside_another_cluster_and_leaves_nothing_running(three_nodes: Chaos, tmp_path: Path) -> None:
    mine = {k: v for k, v in os.environ.items() if not k.startswith("RMGR_")}
    mine |= {"VENV": sys.prefix, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    mine.pop("XDG_RUNTIME_DIR", None)
    started = time.monotonic()
    ended = subprocess.run(
        ["bash", str(ROOT / "deploy" / "quickstart.sh")], env=mine, capture_output=True, text=True, timeout=170, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert time.monotonic() - started < 180
    for sentence in ("SIGKILL to the Starter of node", "The cluster's answer equals the serial one.", "Recovery", "Next, type"):
        assert sentence in ended.stdout, ended.stdout
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("rmgr-quickstart*")) == []
    assert three_nodes.cluster.state.is_running
