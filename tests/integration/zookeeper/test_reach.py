"""Clients find the answering half of an ensemble, and report the state of the other half."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmgr.adapters.zookeeper import server as zk_server
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, free_port
from rmgr.errors import CoordinationUnavailable, NotConnected
from tests.harness.fair_time import FairTimer, undisturbed
from tests.harness.proxy import Proxy
from tests.harness.waiting import stand_still


def test_a_mute_and_a_dead_server_cost_a_client_a_fraction_of_a_session(zookeeper: ZooKeeperServer, chroot: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel takes connections, nobody ever answers
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{mute.getsockname()[1]},{zookeeper.hosts}"
        took_s = []
        for _ in range(6):  # the order is drawn anew each time
            with FairTimer() as timer:
                ZkCoordinator.connect(hosts, chroot, session_timeout_s=5.0).close()
            took_s.append(timer.elapsed_s)
    assert max(took_s) < 1.5, took_s  # T / 10 at the mute one


def test_a_client_that_stood_still_while_it_connected_waits_on(zookeeper: ZooKeeperServer, chroot: str) -> None:
    with Proxy(zookeeper.hosts) as proxy:
        proxy.refuse()

        def late() -> None:
            stand_still(5)
            proxy.refuse(False)

        thread = threading.Timer(0.1, late)
        thread.start()
        ZkCoordinator.connect(proxy.hosts, chroot, connect_timeout_s=4.0).close()
        thread.join()


@undisturbed
def test_who_is_not_there_is_named_with_what_it_does() -> None:
    dead = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mute = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(CoordinationUnavailable) as half:
            ZkCoordinator.connect(f"{dead},{mute}", "/t", connect_timeout_s=0.5)
    assert f"{dead} refuses connections" in half.value.message
    assert f"{mute} does not answer" in half.value.message
    assert half.value.code == "UNAVAILABLE"
    with pytest.raises(NotConnected, match=f"{dead} refuses connections; nowhere.invalid:2181 has no address"):
        ZkCoordinator.connect(f"{dead},nowhere.invalid", "/t", connect_timeout_s=0.5)


def test_without_a_quorum_that_is_what_every_command_says(zookeeper_parts: None, tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path / "zk", tick_ms=500, heap_mb=64, die_with_parent=True)
    with ensemble:
        alive, *others = ensemble.servers
        for server in others:
            server.kill()
        said = f"{alive.hosts} answers, and has no quorum"
        with pytest.raises(CoordinationUnavailable, match="has no quorum") as lonely:
            ZkCoordinator.connect(ensemble.hosts, "/t", connect_timeout_s=1.0)
        assert said in lonely.value.message
        assert f"{others[0].hosts} refuses connections" in lonely.value.message
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        command = [sys.executable, "-m", "rmgr.cli.main", "--zk", ensemble.hosts, "--store", f"sqlite:{tmp_path}/none.db", "--timeout", "5"]
        jobs = subprocess.run([*command, "jobs"], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (jobs.returncode, said in jobs.stderr) == (6, True), jobs.stderr
        doctor = subprocess.run([*command, "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=60, check=False)
        failed = {check["name"]: check for check in json.loads(doctor.stdout)["checks"] if not check["ok"]}
        assert "quorum" in failed[f"zookeeper {alive.hosts}"]["fix"]
        assert "refuse" in failed[f"zookeeper {others[1].hosts}"]["detail"]
        assert "no quorum" in failed["zookeeper quorum"]["detail"]


@undisturbed
def test_names_that_do_not_resolve_in_time_cost_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(zk_server, "look", lambda *_, **__: over.wait(60))
    began_s = time.monotonic()
    found = zk_server.look_at_all(",".join(f"zk{number}:2181" for number in range(40)), timeout_s=0.1)
    over.set()
    assert time.monotonic() - began_s < 12
    assert {one.finding for one in found} == {zk_server.ServerFinding.SILENT}
