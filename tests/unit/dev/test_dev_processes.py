"""Processes of a local cluster: their ends under any parent, unique names, and ports that are reserved before they listen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmgr.dev import server
from rmgr.dev.cluster import DevCluster
from rmgr.dev.keeper import DevProcess, DevState, kill_processes, stop_processes
from rmgr.errors import StateConflict
from tests.harness.fair_time import FairTimer

#: A parent that never reaps its child, whose pid it prints. The child ignores what is named, and says when it does.
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.read(1)
print(child.pid, flush=True)
time.sleep(600)
"""
_CHILD = "import signal, time; {first}; print(end='.', flush=True); time.sleep(600)"


def of(child: str) -> Iterator[DevState]:
    with subprocess.Popen([sys.executable, "-c", _PARENT.format(child=child)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = DevProcess.of("starter", "n1", int(parent.stdout.readline()))
        yield DevState(directory="/nowhere", zookeeper="", store="", session_timeout_s=1.0, processes=(process,))
        parent.kill()


@pytest.fixture
def docile() -> Iterator[DevState]:
    yield from of(_CHILD.format(first="pass"))


@pytest.fixture
def deaf() -> Iterator[DevState]:
    yield from of(_CHILD.format(first="signal.signal(signal.SIGTERM, signal.SIG_IGN)"))


@pytest.mark.parametrize("end", [stop_processes, kill_processes])
def test_a_process_that_nobody_reaps_has_ended(docile, end):
    assert docile.is_running
    with FairTimer() as timer:
        assert not end(docile, timeout_s=30.0)
    assert not docile.is_running
    assert timer.elapsed_s < 15.0


def test_one_that_ignores_its_order_is_killed_and_named(deaf):
    assert stop_processes(deaf, timeout_s=0.1) == list(deaf.processes)
    assert not deaf.is_running


@pytest.mark.parametrize("end", [stop_processes, kill_processes])
@pytest.mark.parametrize("run", ["n1/run", "run"], ids=["Starter", "server"])
def test_control_groups_of_what_was_killed_are_removed(deaf, tmp_path, end, run):
    group, records = tmp_path / "group", tmp_path / "work" / "n1" / run / "records"
    (group / "slot" / "main").mkdir(parents=True)
    records.mkdir(parents=True)
    (records / "cgroups.json").write_text(json.dumps({"cgroups": [str(group)]}))
    end(replace(deaf, directory=str(tmp_path)), timeout_s=0.1)
    assert not group.exists()


def test_a_name_that_runs_is_not_started_again(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path, secured=False)  # nobody serves its ZooKeeper: the Starter waits for that
    try:
        pid = cluster.start_starter("n1")
        with pytest.raises(StateConflict, match=rf"starter n1 of the cluster in .* runs already \(pid {pid}\)"):
            cluster.start_starter("n1")
        assert [process.pid for process in cluster.state.processes] == [pid]
        cluster.kill("n1")
        assert cluster.start_starter("n1") != pid
    finally:
        kill_processes(cluster.state)


def test_a_port_is_not_named_twice_though_nobody_listens_on_it_yet():
    server.free_port()
    ports = [server.free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)


def test_a_draw_that_repeats_itself_is_drawn_again(monkeypatch):
    first, second = server.free_port(), server.free_port()
    draw, draws = server.random.randrange, iter([first, first, second, first])
    monkeypatch.setattr(server.random, "randrange", lambda low, high: next(draws, None) or draw(low, high))
    assert server.free_port() not in {first, second}
