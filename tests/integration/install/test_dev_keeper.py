"""`rmgr dev --detach` restarts dead processes with growing delay, but not those killed on purpose; `dev status` reports both."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmgr.dev import keeper
from rmgr.dev.keeper import DevProcess, DevState, Keeper, Recipe, keep_down, read_fates, read_state, write_recipes, write_state
from tests.harness.waiting import eventually
from tests.integration.commands import Shell


@pytest.fixture(scope="module")
def sh(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    made = Shell(tmp_path_factory.mktemp("kept"))
    try:
        up = made.ok("dev", "--nodes", "2", "--cores", "1", "--watchdogs", "1", "--detach")
        assert "what dies of it is started again" in up.out
        yield made
    finally:
        made("dev", "stop")


def processes(sh: Shell) -> dict[str, dict[str, Any]]:
    return {process["id"]: process for process in sh("dev", "status", "--json").json["processes"]}


def again(sh: Shell, name: str, old: dict[str, Any]) -> dict[str, Any]:
    """The process, once it has been restarted."""
    return eventually(lambda: (new := processes(sh)[name])["pid"] != old["pid"] and new["state"] == "running" and new, f"{name} is back")  # type: ignore[no-any-return]


def test_a_starter_and_zookeeper_that_died_come_back_and_status_says_when(sh: Shell) -> None:
    before = processes(sh)
    assert set(before) == {"zk1", "w1", "n1", "n2", "keeper"}
    assert all(process["restarts"] == 0 and process["died"] is None for process in before.values())
    os.kill(before["keeper"]["pid"], signal.SIGSTOP)  # else a slow command looks when they are back
    try:
        for name in ("n1", "zk1"):
            os.kill(before[name]["pid"], signal.SIGKILL)
        assert sh("dev", "status").code == 1
        died = processes(sh)
        assert [died[name]["state"] for name in ("n1", "zk1")] == ["dead", "dead"]
    finally:
        os.kill(before["keeper"]["pid"], signal.SIGCONT)
    for name in ("n1", "zk1"):
        found = again(sh, name, before[name])
        assert (found["restarts"], found["died"] is not None, found["next_try"]) == (1, True, None)
    assert sh.ok("submit", "--wait", "--timeout", "60", "--", "echo", "found").out == "found\n"  # without any option
    eventually(lambda: [node["state"] for node in sh.ok("nodes", "--json").json["nodes"]] == ["up", "up"], "both nodes are up")
    assert "RESTARTS" in sh.ok("dev", "status").out


def test_what_was_killed_on_purpose_stays_dead_until_it_is_started(sh: Shell) -> None:
    before = processes(sh)["n2"]
    assert "stays so: rmgr dev start n2" in sh.ok("dev", "kill", "n2").out
    assert sh.ok("dev", "kill", "n2", "--json").json["state"] == "dead"  # once more changes nothing
    kept = eventually(lambda: (found := processes(sh)["n2"])["died"] and found, "its keeper knows")
    assert (kept["state"], kept["kept_down"], kept["next_try"], kept["pid"]) == ("dead", True, None, before["pid"])
    assert "stays down: rmgr dev start n2" in sh("dev", "status").out
    started = sh.ok("dev", "start", "n2", "--json").json
    assert (started["state"], started["pid"] != before["pid"]) == ("running", True)
    assert (sh("dev", "kill", "n9").code, sh("dev", "start", "n9").code) == (3, 3)
    sh.ok("dev", "kill", "keeper")
    assert sh.ok("dev", "start", "keeper", "--json").json["state"] == "running"


def test_stop_ends_the_keeper_first_and_a_cluster_can_be_started_there_at_once(sh: Shell) -> None:
    pids = [process["pid"] for process in processes(sh).values()]
    os.kill(processes(sh)["n1"]["pid"], signal.SIGKILL)  # about to be restarted
    sh.ok("dev", "stop")
    home = sh.home / ".rmgr" / "dev"
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if str(home) in " ".join(process.info["cmdline"] or ())]
    assert left == []
    sh.ok("dev", "--nodes", "1", "--cores", "1", "--watchdogs", "1", "--detach", "--no-restart")
    now = processes(sh)
    assert {process["restarts"] for process in now.values()} == {0}, "that was another cluster"
    assert ("keeper" in now, {process["pid"] for process in now.values()} & set(pids)) == (False, set())
    sh.ok("dev", "kill", "n1")
    assert sh.ok("dev", "start", "n1", "--json").json["state"] == "running"  # by the command itself
    assert sh.ok("submit", "--wait", "--timeout", "60", "--", "true").code == 0


def test_a_cluster_that_was_killed_is_up_again_only_when_its_new_processes_serve(sh: Shell) -> None:
    state = read_state(sh.home / ".rmgr" / "dev")
    for process in sorted(state.processes, key=lambda process: process.role != "zookeeper"):  # sessions cannot be closed any more
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not state.is_running, "all are dead")
    sh.ok("dev", "--nodes", "1", "--cores", "1", "--watchdogs", "1", "--detach", "--no-restart")
    mine = processes(sh)
    assert sh("status", "--json").json["leader"]["pid"] == mine["w1"]["pid"]
    assert sh.ok("nodes", "--json").json["nodes"][0]["pid"] == mine["n1"]["pid"]


# -- the keeper alone ----------------------------------------------------------------------------------------------------------


class Kept:
    """A keeper whose time the test makes, of one process."""

    def __init__(self, directory: Path, *argv: str) -> None:
        self.directory, self.now_s = directory, 1000.0
        write_recipes(directory, {"n1": Recipe(argv=argv, cwd=str(directory), log=str(directory / "n1.log"))})
        dead = DevProcess(role="starter", id="n1", pid=2**22 - 3, started=1.0)
        write_state(DevState(directory=str(directory), zookeeper="", store="", session_timeout_s=1.0, processes=(dead,)))
        self.keeper = Keeper(directory, clock=lambda: self.now_s)

    def look(self, after_s: float = 0.0) -> int:
        """Looks once; how often it has been restarted."""
        self.now_s += after_s
        assert self.keeper.look()
        return read_fates(self.directory)["n1"].restarts

    def process(self) -> DevProcess:
        state = read_state(self.directory)
        return state.processes[0]


def test_what_dies_at_once_is_restarted_later_each_time_and_soon_after_a_long_life(tmp_path: Path) -> None:
    kept = Kept(tmp_path, sys.executable, "-c", "pass")
    for count, pause_s in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0)):
        eventually(lambda: kept.process().find() is None, "it is dead")
        assert kept.look() == count
        assert kept.look(pause_s - 0.1) == count
        assert kept.look(0.2) == count + 1
    write_recipes(tmp_path, {"n1": Recipe(argv=("sleep", "600"), cwd=str(tmp_path), log=str(tmp_path / "n1.log"))})
    eventually(lambda: kept.process().find() is None, "it is dead")
    kept.look()
    assert kept.look(60.0) == 9
    assert kept.look(keeper.SOUND_S + 1) == 9
    os.kill(kept.process().pid, signal.SIGKILL)
    eventually(lambda: kept.process().find() is None, "it is dead")
    kept.look()
    assert kept.look(1.1) == 10
    keep_down(tmp_path, "n1", is_down=True)
    os.kill(kept.process().pid, signal.SIGKILL)
    eventually(lambda: kept.process().find() is None, "it is dead")
    assert kept.look(100.0) == kept.look(100.0) == 10


def test_what_cannot_be_started_is_said_and_tried_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, str(tmp_path / "missing"))
    kept.look()
    assert kept.look(1.1) == 0
    assert "missing" in read_fates(tmp_path)["n1"].problem
    write_recipes(tmp_path, {"n1": Recipe(argv=("true",), cwd=str(tmp_path), log=str(tmp_path / "n1.log"))})
    kept.look()
    assert kept.look(2.1) == 1
    assert read_fates(tmp_path)["n1"].problem == ""


def test_a_process_is_known_again_although_the_clock_was_set(tmp_path: Path) -> None:
    me = DevProcess.of("starter", "n1", os.getpid())
    assert me.find() is not None
    assert replace(me, started=me.started - 3600).state == "running"
    assert replace(me, born=f"{me.born}0").state == "dead"


def test_a_full_disk_ends_no_keeper_and_starts_nothing_that_nobody_knows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"{tmp_path}/asleep"
    kept = Kept(tmp_path, sys.executable, "-c", "import time; time.sleep(600)", mark)

    def full(state: DevState) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def children() -> list[psutil.Process]:
        found = psutil.Process().children()
        return [child for child in found if child.status() != psutil.STATUS_ZOMBIE and mark in child.cmdline()]

    nowhere = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails, too
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", nowhere)
        patch.setattr(keeper, "write_state", full)
        assert [kept.look(after_s) for after_s in (0.0, 1.1, 60.0, 60.0)] == [0, 0, 0, 0]
        assert children() == []
        assert "No space left" in read_fates(tmp_path)["n1"].problem
    with contextlib.suppress(OSError):
        nowhere.close()
    eventually(lambda: kept.look(60.0) == 1, "it runs once there is room")
    assert [child.pid for child in children()] == [kept.process().pid]
    children()[0].kill()
