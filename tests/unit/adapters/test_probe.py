"""What a node says of itself is plausible on whatever machine the tests run."""

from __future__ import annotations

import os

import pytest

from rmgr.adapters.host import probe


def test_a_machine_has_cores_memory_and_names() -> None:
    machine = probe.machine()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory_bytes > 64 * 1024 * 1024
    assert machine.host
    assert machine.python.count(".") == 2


def test_only_cores_of_the_affinity_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert probe.usable_cores() == 2
