"""What the spawner says of a worker that died when its directory had been removed."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from rmgr.model.base.states import Reason
from rmgr.runner.host.board import Board, create_board
from rmgr.runner.python.workers import Watched, Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="spawners run on Linux only")
_PID = 4_000_000  # none that a kernel gives by default


def buried(directory: Path, status: int, killed_for: tuple[int, Reason] | None) -> tuple[Reason, int | None, int]:
    """(reason, exit code, signal) of a worker that ran nothing yet."""
    workers = Workers(directory=str(directory), node="n1", make_group=lambda _: None, poke_fd=-1, surprise=lambda _kind, _detail: None)
    board = Board(create_board())
    watched = Watched(1, _PID, board, str(directory / "w1"), None, 0, 0, killed_for=killed_for)
    workers._by_pid[_PID] = workers._by_number[1] = watched
    found = workers.bury(_PID, status, resource.getrusage(resource.RUSAGE_SELF))
    assert found is not None
    board.close()
    return found[1].reason, found[1].exit_code, found[1].signal


@pytest.mark.parametrize("killed_for", [None, (0, Reason.USER_CANCEL)])
def test_a_worker_that_dies_in_its_set_up_because_its_directory_is_gone_is_no_refusal(
    tmp_path: Path, killed_for: tuple[int, Reason] | None
) -> None:
    reason, code, signum = buried(tmp_path, 1 << 8, killed_for)
    assert (code, signum) == (None, 0)  # with an exit code its Starter would say that the set-up of the work is wrong
    assert reason is (Reason.NODE_LOST if killed_for is None else Reason.USER_CANCEL)


def test_a_worker_that_dies_in_a_directory_that_stands_is_told_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "w1").mkdir()
    assert buried(tmp_path, 1 << 8, None) == (Reason.WORKER_LOST, 1, 0)
    assert buried(tmp_path, 11, None) == (Reason.SIGNAL, None, 11)
