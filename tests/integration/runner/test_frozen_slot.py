"""A slot whose work is frozen as a whole (`Slot.freeze_file`): its spawner goes on, and work that begins meanwhile is not lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.slot import Slot
from rmgr.model.states import Reason
from rmgr.runner.host.contain import below, write_file
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkNode]:
    with WorkNode(tmp_path / "run") as node:
        yield node


@pytest.fixture
def slot(node: WorkNode) -> Slot:
    slot = node.slot()
    if not slot.freeze_file:
        pytest.skip("no control group of version 2 may be made here")
    write_file(slot.freeze_file, "1")
    return slot


def start(node: WorkNode, slot: Slot, *argv: str) -> int:
    """Starts an isolated command, which has a process afterwards."""
    seq = node.run(slot, *argv, isolate=True)
    eventually(lambda: len(below(slot.pid)) == 1)
    return seq


def open_files(pid: int) -> Iterator[str]:
    """What the descriptors of a process stand for; it may close one meanwhile."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(descriptor.readlink())


def test_a_spawner_waits_for_no_command_that_stands_still(node: WorkNode, slot: Slot) -> None:
    with FairTimer() as timer:
        for _ in range(12):
            seq = start(node, slot, "/bin/true")
            slot.stop(seq, grace_us=0)
            assert node.end_of(seq).reason is Reason.USER_CANCEL
    assert timer.elapsed_s < 4.0, "twelve waits of a moment each would show"


def test_a_command_that_could_not_be_run_says_why_in_its_turn(node: WorkNode, slot: Slot) -> None:
    seq = start(node, slot, "/no/such/program")
    write_file(slot.freeze_file, "0")
    end = node.end_of(seq)
    assert (end.reason, end.exit_code) == (Reason.START_FAILED, 127)
    assert "no such program: /no/such/program" in end.detail


def test_a_script_without_interpreter_runs_in_its_turn(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    script = tmp_path / "plain"
    script.write_text("exit 3\n")
    script.chmod(0o755)
    seq = start(node, slot, str(script))
    write_file(slot.freeze_file, "0")
    assert node.end_of(seq).exit_code == 3


def test_what_stands_still_before_it_is_executed_holds_nothing_of_the_spawners(node: WorkNode, slot: Slot) -> None:
    """Else nobody would hear of the death of a spawner before the next turn of what it had started."""
    start(node, slot, "/bin/true")
    (child,) = below(slot.pid)
    eventually(lambda: not any(target.startswith("socket:") for target in open_files(child)))
    assert os.readlink(f"/proc/{child}/exe") == os.readlink(f"/proc/{slot.pid}/exe"), "it is not executed yet"
