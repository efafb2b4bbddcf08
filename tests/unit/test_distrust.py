"""What a user's spawner may tell a Starter that is root: only what is the user's to give. And how files are used as another user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rmgr.adapters.accounts import Account, acting, find_account, open_regular, uid_of
from rmgr.adapters.distrust import Imposture, check_board, check_end, check_process
from rmgr.model.frames import MAX_INLINE_OUTPUT, CommandEnd, Output, TaskEnd, TaskExtra
from rmgr.runner.board import SIZE, create_board

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")
ANNA = Account(name="anna", uid=54321, gid=54321, groups=(54321,))


def test_a_page_that_could_be_cut_short_is_not_mapped() -> None:
    sealed = create_board()
    loose = os.memfd_create("loose")
    plain = os.open("/dev/zero", os.O_RDONLY)
    try:
        check_board(sealed, ANNA)
        with pytest.raises(OSError, match=r"."):
            os.ftruncate(sealed, 0)
        os.ftruncate(loose, SIZE)
        for fd in (loose, plain):
            with pytest.raises((Imposture, OSError)):
                check_board(fd, ANNA)
        check_board(loose, None)  # of the Starter's own
    finally:
        for fd in (sealed, loose, plain):
            os.close(fd)


def test_processes_of_others_are_not_taken_for_the_users() -> None:
    assert uid_of(os.getpid()) == os.getuid()
    with pytest.raises(Imposture, match="not of anna"):
        check_process(1, ANNA)
    check_process(os.getpid(), None)
    check_process(4_000_000, ANNA)  # it is gone already


def test_more_output_than_a_message_has_room_for_is_not_believed() -> None:
    large = Output(size=1, data=b"x" * (MAX_INLINE_OUTPUT + 1))
    for end in (CommandEnd(seq=1, out=large), CommandEnd(seq=1, err=large), TaskEnd(1, 1, 1, 1, b"", True, TaskExtra(out=large))):
        with pytest.raises(Imposture):
            check_end(end, ANNA)
        check_end(end, None)
    check_end(TaskEnd(1, 1, 1, 1, b"x" * 100_000), ANNA)


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="not a plain file"):
            open_regular(str(path), None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_files_are_used_as_another_user_in_this_thread_only_and_for_so_long(tmp_path: Path) -> None:
    nobody = find_account("nobody")
    assert nobody is not None
    before = (os.getresuid(), os.getresgid(), os.getgroups())
    with pytest.raises(ValueError, match="inside"), acting(nobody):
        with pytest.raises(PermissionError):
            Path("/etc/shadow").read_bytes()
        assert os.getresuid() == before[0], "signals and limits stay root's"
        raise ValueError("inside")
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
    assert Path("/etc/shadow").read_bytes()
    mine = tmp_path / "mine"
    mine.write_text("x")
    mine.chmod(0o600)
    (tmp_path / "link").symlink_to(mine)
    for name in ("mine", "link"):
        with pytest.raises(OSError, match=r"."):
            open_regular(str(tmp_path / name), nobody)
    os.close(open_regular(str(mine), None))
