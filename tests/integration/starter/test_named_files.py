"""Slots look at the files that users name, so a file server that does not answer stops no other work."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rmgr.daemons.starter.execution import ends
from rmgr.daemons.starter.staging import outputs
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.submission import Command
from rmgr.model.wire.frames import CommandEnd
from tests.harness.starter_rig import Rig
from tests.harness.waiting import eventually


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


def test_a_file_of_holes_is_as_large_as_it_says_also_where_work_has_the_starters_rights(rig: Rig) -> None:
    rig.start(work_cap_user_bytes=30 << 20)
    number = rig.submit(Command(argv=("truncate", "-s", "3600M", "a"), output_files=(("k", "a"),)))
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.reason is Reason.BAD_OUTPUT
    assert "bytes, holes counted), and one that is stored has at most 30M" in outcome.error
    fits = rig.submit(Command(argv=("truncate", "-s", "20M", "a"), output_files=(("k2", "a"),)))
    assert rig.outcomes(fits, 1)[0].state is State.COMPLETED


def test_an_end_that_cannot_be_taken_in_is_its_tasks_alone_and_cancels_go_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever nobody has thought of: here the end of a command with exit code 7."""
    running = rig.start()

    def of_command(end: CommandEnd) -> Ending:
        if end.exit_code == 7:
            raise PermissionError(13, "Permission denied")
        return real(end)

    real = ends.of_command
    monkeypatch.setattr(ends, "of_command", of_command)
    waits = rig.submit(Command(argv=("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 1")))
    bad = rig.submit(
        Command(argv=("sh", "-c", "exit $((RMGR_ARRAY_INDEX == 3 ? 7 : 0))"), out=str(tmp_path / "o-%a")), [b""] * 6, array="0-5"
    )
    found = rig.outcomes(bad, 6)
    assert [found[index].reason for index in range(6)] == [Reason.NONE] * 3 + [Reason.BAD_OUTPUT] + [Reason.NONE] * 2
    assert "node n1 could not take in how it ended: PermissionError" in found[3].error
    assert [list(running.agent().aside.told().values())] == [["PermissionError: [Errno 13] Permission denied"]]
    (tmp_path / "go").touch()
    assert rig.outcomes(waits, 1)[0].reason is Reason.EXIT_CODE, "what ran beside it was told"
    runs = rig.submit(Command(argv=("sleep", "600")), [b""] * 2, blocks=2)
    eventually(lambda: sum(block.live for block in list(running.agent().blocks.values())) == 2, "both cores are free for them")
    blocks = [block for block in list(running.agent().blocks.values()) if block.key.submission == runs]
    for block in blocks:
        running.parts.starter.ask(lambda block=block: running.agent().cancel(block, None, "enough", 0))
    assert {outcome.state for outcome in rig.outcomes(runs, 2).values()} == {State.CANCELLED}


def test_a_file_server_that_hangs_holds_up_neither_the_loop_nor_other_outputs(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), threading.Event()

    def hangs(name: str, *given: Any, **named: Any) -> int:
        if "served" in name:
            asked.set()
            assert answers.wait(120)
        return real(name, *given, **named)

    real = outputs.open_regular
    monkeypatch.setattr(outputs, "open_regular", hangs)
    rig.start()
    file = tmp_path / "served"
    far = [rig.submit(Command(argv=("sh", "-c", f"echo x > {file}"), output_files=((f"f{n}", str(file)),))) for n in range(6)]
    try:
        assert asked.wait(60)
        near = rig.submit(Command(argv=("sh", "-c", "echo y > o"), output_files=(("near", "o"),)))
        assert rig.outcomes(near, 1)[0].state is State.COMPLETED
    finally:
        answers.set()
    for number in far:
        assert rig.outcomes(number, 1)[0].state is State.COMPLETED
