"""Files that users name are looked at by their slots: a file server that does not answer stops nobody else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base.states import State
from rmgr.model.tasks.submission import Command
from tests.harness.starter_rig import Rig


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path) as made:
        yield made


def test_the_loop_of_a_starter_looks_at_no_file_that_users_name(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def stat(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if "served" in str(path) and threading.current_thread().name == "starter-n1":
            looked.append(str(path))
        return real(path, *given, **named)

    real = os.stat
    monkeypatch.setattr(os, "stat", stat)
    (tmp_path / "served").mkdir()
    rig.start()
    served = tmp_path / "served"
    command = Command(argv=("echo", "a"), out=str(served / "o.txt"), err=str(served / "e.txt"), cwd=str(served))
    outcome = rig.outcomes(rig.submit(command), 1)[0]
    assert outcome.state is State.COMPLETED
    assert looked == []
