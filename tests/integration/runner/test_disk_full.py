"""A Starter's disk is full when it records a process: no trace of the process is left, or the Starter goes on without the record."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import psutil
import pytest

from rmgr.adapters.host import leftovers
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_worker_forked_on_a_full_disk_works_and_the_starter_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkNode(tmp_path / "run") as node:
        slot = node.slot()
        monkeypatch.setattr(leftovers, "_record", _full)
        assert node.result(node.call(node.worker(slot), lambda: 42)) == 42


def test_of_a_slot_that_cannot_be_opened_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(psutil.Process().children())  # of this process, which runs other tests, too
    with WorkNode(tmp_path / "run") as node:
        before = {entry.name for entry in node.directory.iterdir()}
        groups = node.runner._cgroups.directories if node.runner._cgroups is not None else []
        with monkeypatch.context() as full:
            full.setattr(leftovers, "_record", _full)
            with pytest.raises(OSError, match="No space left"):
                node.runner.open_slot(0)
        assert {entry.name for entry in node.directory.iterdir()} == before
        assert not [found for group in groups for found in Path(group).iterdir() if found.is_dir()]
        eventually(lambda: not set(psutil.Process().children()) - others, "no spawner")
        assert node.end_of(node.shell(node.slot(), "echo hi")).out.data == b"hi\n"
