"""Directories of work are removed whatever they hold; the report on a worker whose directory has vanished."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import acting, find_account
from rmgr.model.states import Reason
from rmgr.runner.command import REMOVE
from rmgr.runner.host.board import Board, create_board
from rmgr.runner.host.files import remove_all, remove_tree
from rmgr.runner.python.workers import Watched, Workers

NOBODY = find_account("nobody") if os.geteuid() == 0 else None


@pytest.fixture
def closed() -> Iterator[Path]:
    """A tree whose owner has closed it to himself, with names that are no UTF-8. As root another's: root gets through closed doors."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        home = Path(place, "home")
        (home / "a" / "b").mkdir(parents=True)
        odd = os.path.join(os.fsencode(home), b"\xff\xfe")
        os.mkdir(odd)
        for path in (home / "a" / "b" / "file", Path(os.fsdecode(os.path.join(odd, b"\x80")))):
            path.write_text("x")
        for path in (home / "a" / "b", home / "a", home):
            path.chmod(0)
        for root, directories, files in os.walk(os.fsencode(place)):
            for path in (root, *(os.path.join(root, name) for name in (*directories, *files))):
                if NOBODY is not None:
                    os.lchown(path, NOBODY.uid, NOBODY.gid)
        yield home
        remove_tree(home)


def test_what_its_owner_has_closed_is_removed(closed: Path) -> None:
    with acting(NOBODY):
        with pytest.raises(PermissionError):
            os.listdir(closed)
        remove_all(closed)
    assert not os.path.lexists(closed)


def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    fd = os.open(home, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove_all(home)
    assert not os.path.lexists(home)


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o750)
    (kept / "file").write_text("x")
    home = tmp_path / "home"
    (home / "a").mkdir(parents=True)
    (home / "link").symlink_to(kept)
    (home / "a" / "up").symlink_to("../..")
    remove_all(home)
    (tmp_path / "instead").symlink_to(kept)
    remove_all(tmp_path / "instead")
    remove_all(tmp_path / "there is none")
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert os.listdir(kept) == ["file"]
    assert kept.stat().st_mode & 0o777 == 0o750


def test_what_cannot_be_removed_is_told_once_the_rest_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "a").mkdir(parents=True)
    for name in ("keep", "go", "a/go"):
        (home / name).write_text("x")
    unlink = os.unlink

    def refuses(name: str, **where: int) -> None:
        if name == "keep":
            raise PermissionError(1, "immutable", name)
        unlink(name, **where)

    monkeypatch.setattr(os, "unlink", refuses)
    with pytest.raises(PermissionError):
        remove_all(home)
    remove_tree(home)
    assert os.listdir(home) == ["keep"]


def test_a_command_that_closes_its_directory_leaves_nothing(closed: Path) -> None:
    """The way of a spawner, which has its user's rights: a process of its own removes what is more than a few files."""
    user = {} if NOBODY is None else {"user": NOBODY.uid, "group": NOBODY.gid, "extra_groups": []}
    subprocess.run(["/bin/sh", "-c", REMOVE, "rm", str(closed)], cwd="/", timeout=60, check=True, **user)  # type: ignore[call-overload]
    assert not os.path.lexists(closed)


spawned = pytest.mark.skipif(sys.platform != "linux", reason="spawners run on Linux only")
_PID = 4_000_000  # none that a kernel gives by default


def buried(directory: Path, status: int, killed_for: tuple[int, Reason] | None) -> tuple[Reason, int | None, int]:
    """(reason, exit code, signal) of a worker that ran nothing yet."""
    workers = Workers(directory=str(directory), node="n1", make_group=lambda _: None, poke_fd=-1, surprise=lambda _kind, _detail: None)
    board = Board(create_board())
    watched = Watched(1, _PID, board, str(directory / "w1"), None, 0, 0, killed_for=killed_for)
    workers.by_pid[_PID] = workers.by_number[1] = watched
    found = workers.bury(_PID, status, resource.getrusage(resource.RUSAGE_SELF))
    assert found is not None
    board.close()
    return found[1].reason, found[1].exit_code, found[1].signal


@pytest.mark.parametrize("killed_for", [None, (0, Reason.USER_CANCEL)])
@spawned
def test_a_worker_that_dies_in_its_set_up_because_its_directory_is_gone_is_no_refusal(
    tmp_path: Path, killed_for: tuple[int, Reason] | None
) -> None:
    reason, code, signum = buried(tmp_path, 1 << 8, killed_for)
    assert (code, signum) == (None, 0)  # with an exit code its Starter would say that the set-up of the work is wrong
    assert reason is (Reason.NODE_LOST if killed_for is None else Reason.USER_CANCEL)


@spawned
def test_a_worker_that_dies_in_a_directory_that_stands_is_told_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "w1").mkdir()
    assert buried(tmp_path, 1 << 8, None) == (Reason.WORKER_LOST, 1, 0)
    assert buried(tmp_path, 11, None) == (Reason.SIGNAL, None, 11)
