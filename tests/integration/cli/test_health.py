"""`status`, `nodes`, `explain` and `doctor` agree on each defect of a real cluster, one defect after another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S, expiring
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

NODES = ("n1", "n2", "n3", "n4")
#: How `status` begins the line of each level.
SIGNS = {"problem": "DO", "warning": "NOTE"}
#: One after the other; the tests go on from what the test before has left, which is a healthy cluster.
pytestmark = pytest.mark.xdist_group("health")


@dataclass(kw_only=True)
class Town:
    """A cluster whose work directories and store lie on small file systems of their own."""

    cluster: DevCluster
    sh: Shell
    disks: dict[str, Path] = field(default_factory=dict)

    def start_node(self, name: str, **environment: str) -> None:
        options = ["--features", name]
        if name in self.disks:
            options += ["--work-dir", str(self.disks[name])]
        self.cluster.start_starter(name, cores=1, options=options, environment=environment)

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        return eventually(condition, lambda: f"{what}: {self.sh('status').out}{self.sh('nodes').out}")

    def is_well(self) -> bool:
        return self.sh("status").code == 0

    def doctor_is_content(self) -> None:
        """What it measures on the way (how long ZooKeeper takes to answer) may be too much once."""
        eventually(lambda: self.sh("doctor").code == 0, lambda: f"doctor finds nothing wrong: {self.sh('doctor').out}")

    def heal(self) -> None:
        """What a test that has failed has left: the next one begins with a healthy cluster all the same."""
        for folder in self.disks.values():
            (folder / "filler").unlink(missing_ok=True)
        for name in ("w1", "w2"):
            if self.cluster.process(name).state == "dead":
                self.cluster.start_watchdog(name)
        for name in NODES:
            if self.cluster.process(name).state == "dead":
                self.start_node(name)
        self.sh("cancel", "all")
        self.sh("resume", *NODES)
        self.until("it is well", self.is_well)

    def part(self, kind: str, name: str = "") -> dict[str, str] | None:
        found = self.sh("status", "--json").json["parts"]
        return next((part for part in found if part["kind"] == kind and name in {"", part["id"]}), None)

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.sh.ok("nodes", "--json").json["nodes"] if node["id"] == name)

    def all_say(self, name: str, state: str, reason: str, fix: str, *, level: str = "problem", job: str) -> None:
        """The four answers about a node that does not take work, for which alone `job` waits."""
        part = self.until(f"{name} is {state}", lambda: (found := self.part("node", name)) and found["state"] == state and found)
        assert reason in part["reason"]
        assert fix in part["fix"]
        assert part["level"] == level
        shown = self.node(name)
        assert (shown["state"], shown["fix"], shown["level"]) == (state, part["fix"], level)
        assert reason in shown["reason"]
        assert fix in self.sh.ok("nodes", name, "-o", "node,fix").out
        why = " ".join(item["detail"] for item in self.sh.ok("explain", job, "--json").json["why"])
        assert f"{name} would, and is {state}" in why
        assert reason in why
        assert fix in why
        doctor = self.sh("doctor", "--json")
        check = next(check for check in doctor.json["checks"] if check["name"] == f"node {name}")
        assert (check["ok"], check["fix"]) == (level != "problem", part["fix"])
        assert reason in check["detail"]
        status = self.sh("status")
        assert f"{SIGNS[level]:<9}  node {name} is {state}" in status.out
        assert (status.code, doctor.code) == (1, 1), "a job waits that nothing here can run"

    def wait_for_node(self, name: str) -> str:
        """A job that only this node can run."""
        return self.sh.submit("--features", name, "--", "true")


def mount(folder: Path, size: str) -> bool:
    folder.mkdir(parents=True)
    with suppress(OSError):
        return (
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, check=False).returncode
            == 0
        )
    return False


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return filler


@pytest.fixture(scope="module")
def town(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    directory = tmp_path_factory.mktemp("town")
    mounted = {name: directory / f"disk-{name}" for name in ("n3", "store")}
    if sys.platform != "linux" or os.geteuid() != 0 or False in [mount(folder, "24m") for folder in mounted.values()]:
        pytest.skip("file systems that are filled must be mounted: needs root")
    try:
        store = f"sqlite:{mounted['store'] / 'store.db'}"
        made = DevCluster(directory / "dev", nodes=0, watchdogs=2, store=store, session_timeout_s=LONG_S, guest_of=zookeeper)
        with made as cluster, expiring(cluster):
            town = Town(cluster=cluster, sh=Shell(directory / "home", cluster.environment()), disks={"n3": mounted["n3"]})
            for name in NODES:
                town.start_node(name)
            cluster.wait_healthy(nodes=len(NODES), deadline_s=60)
            yield town
    finally:
        for folder in mounted.values():
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest, town: Town) -> Iterator[None]:
    yield
    if getattr(request.node, "has_failed", False):
        town.heal()


def test_a_cluster_whose_cores_are_all_busy_is_healthy(town: Town) -> None:
    busy = town.sh.submit("--array", "1-8", "--", "sleep", "600")
    town.until("four run", lambda: town.sh.ok("show", busy, "--json").json["counts"]["RUNNING"] == 4)
    assert town.sh.ok("status", "--json").json["parts"] == []
    town.doctor_is_content()
    town.sh.ok("cancel", busy)
    town.until("they have ended", lambda: town.sh("wait", busy, "--timeout", "60").code != 6)


def test_an_idle_node_that_was_killed_is_fenced_and_one_that_was_stopped_is_down(town: Town) -> None:
    town.cluster.kill("n1", signal.SIGTERM)
    town.until("it is down", lambda: town.node("n1")["state"] == "down")
    assert town.is_well()
    assert town.node("n1")["fix"].startswith("start its Starter on ")
    town.start_node("n1")
    town.until("it is up", lambda: town.node("n1")["state"] == "up")
    town.cluster.kill("n1")
    town.until("it is fenced", lambda: town.node("n1")["state"] == "fenced")
    assert not town.is_well()
    job = town.wait_for_node("n1")
    town.all_say("n1", "fenced", "session ended", "rmgr drain n1", job=job)
    assert town.part("partition", "default")["fix"] == f"rmgr explain {job}"  # type: ignore[index]
    town.sh.ok("cancel", job)
    town.sh.ok("drain", "n1", "--reason", "sold")  # that it does not come back is known
    town.until("a warning", town.is_well)
    assert "NOTE       node n1 is fenced" in town.sh.ok("status").out
    town.doctor_is_content()
    town.sh.ok("resume", "n1")
    town.start_node("n1")
    town.until("it is well", lambda: town.part("node", "n1") is None)


def test_a_drained_node_is_a_warning_until_work_waits_for_it(town: Town) -> None:
    town.sh.ok("drain", "n2", "--reason", "new fan")
    town.until("the warning", lambda: town.part("node", "n2"))
    assert "-> rmgr resume n2" in town.sh.ok("status").out
    town.doctor_is_content()
    job = town.wait_for_node("n2")
    town.all_say("n2", "drained", "new fan", "rmgr resume n2", level="warning", job=job)
    assert "stuck" in str(town.part("partition", "default"))
    town.sh.ok("resume", "n2")
    assert town.sh("wait", job, "--timeout", "60").code == 0
    town.until("it is well", town.is_well)


def test_a_full_disk_is_a_problem_until_there_is_room(town: Town) -> None:
    filler = fill(town.disks["n3"])
    town.until("it is told", lambda: town.part("node", "n3"))
    job = town.wait_for_node("n3")
    town.all_say("n3", "drained", f"the work directory {town.disks['n3']} is full", "free space there", job=job)
    filler.unlink()
    assert town.sh("wait", job, "--timeout", "60").code == 0
    town.until("it is well", town.is_well)


def test_a_node_whose_slots_cannot_be_opened_is_quarantined(town: Town, tmp_path: Path) -> None:
    flag = tmp_path / "no-more-slots"
    flaw = f"import os, sys\nif os.path.exists({str(flag)!r}) and 'rmgr.runner.spawner' in sys.orig_argv:\n    os._exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(flaw)
    town.cluster.kill("n4", signal.SIGTERM)
    town.until("it is down", lambda: town.node("n4")["state"] == "down")
    town.start_node("n4", PYTHONPATH=str(tmp_path))
    town.until("it is up", lambda: town.node("n4")["state"] == "up")
    flag.touch()
    killer = town.sh.submit("--no-resubmit", "--features", "n4", "--", "sh", "-c", "kill -9 $PPID; sleep 60")
    town.until("strikes enough", lambda: (part := town.part("node", "n4")) and part["state"] == "quarantined")
    waiting = town.wait_for_node("n4")
    town.all_say("n4", "quarantined", "too many failures of the node itself", "tries again by itself", job=waiting)
    town.sh("cancel", killer)
    town.cluster.kill("n4")
    flag.unlink()
    town.start_node("n4")
    assert town.sh("wait", waiting, "--timeout", "60").code == 0
    town.until("it is well", town.is_well)


def test_a_store_that_takes_nothing_is_told_by_all(town: Town) -> None:
    job = town.wait_for_node("n2")
    assert town.sh("wait", job, "--timeout", "60").code == 0
    town.sh.ok("drain", "n2")
    waiting = town.wait_for_node("n2")
    store = Path(town.cluster.state.store.removeprefix("sqlite:"))
    filler = fill(store.parent)
    town.until("the leader sees it", lambda: town.part("store"))

    def is_told_alike() -> bool:
        """By three commands; the leader may have come by other words between two of them."""
        if (part := town.part("store")) is None:
            return False
        status, why = town.sh("status"), town.sh.ok("explain", waiting, "--json").json["why"]
        assert (status.code, "NOT OK  sqlite:" in status.out) == (1, True), status
        told = [item["detail"] for item in why if item["what"] == "store" and part["reason"] in item["detail"]]
        return bool(told) and part["reason"].rpartition("Z: ")[2] in status.out

    town.until("all say the same of it", is_told_alike)
    checks = {check["name"]: check for check in town.sh("doctor", "--json").json["checks"]}
    assert not checks["store"]["ok"]
    assert not checks["store, as the leader sees it"]["ok"]
    town.until("the nodes see it", lambda: "data store away" in town.node("n1")["reason"])
    filler.unlink()
    town.sh.ok("resume", "n2")
    town.until("it is well", town.is_well)
    assert town.sh("wait", waiting, "--timeout", "60").code == 0


def test_without_a_leader_the_four_answers_are_the_same(town: Town) -> None:
    for name in ("w1", "w2"):
        if town.cluster.process(name).state != "dead":
            town.cluster.kill(name)
    try:
        town.until("nobody leads", lambda: (part := town.part("leader")) and part["state"] == "none")
        checks = {check["name"]: check for check in town.sh("doctor", "--json").json["checks"]}
        assert checks["leader"]["fix"] == "start one: rmgr watchdog"
        assert "DO         no WatchDog leads" in town.sh("status").out
        town.sh.ok("drain", "n2", "--reason", "new fan")
        job = town.wait_for_node("n2")
        town.all_say("n2", "drained", "new fan", "rmgr resume n2", level="warning", job=job)
    finally:
        town.cluster.start_watchdog("w1")
    town.sh.ok("resume", "n2")
    town.until("it is well", town.is_well)
    assert "one WatchDog alone" in town.sh.ok("status").out
