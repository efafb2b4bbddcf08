"""A user's spawner can give a root Starter only the user's own things; and files are used with the rights of another user."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account, acting, find_account, open_regular, uid_of
from rmgr.adapters.host.distrust import (
    SURPRISES,
    Imposture,
    OrderedEnds,
    Talk,
    check_board,
    check_end,
    check_gone,
    check_process,
    check_surprise,
    check_up,
    stream_socket,
    taken,
)
from rmgr.model.frames import MAX_INLINE_OUTPUT, CommandEnd, Output, SpawnerUp, Surprise, TaskEnd, TaskExtra, WorkerGone
from rmgr.model.states import Reason
from rmgr.runner.host.board import SIZE, create_board

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


def test_what_accounts_for_work_is_heard_and_what_does_not_is_a_flood() -> None:
    talk = Talk()
    read = 0
    for _ in range(20_000):  # ends of tasks, one in a frame, with a surprise each
        read += 2000
        talk.heard(read, 2, 1)
    with pytest.raises(Imposture, match="floods"):
        for _ in range(20_000):
            read += 2000
            talk.heard(read, 1, 0)


def test_long_messages_that_nobody_waits_for_are_a_flood_soon() -> None:
    talk = Talk()
    talk.heard(60 << 20, 1, 1)  # a result
    with pytest.raises(Imposture):
        talk.heard(120 << 20, 1, 0)


def test_ends_that_no_process_has_and_words_that_there_are_not_are_not_believed() -> None:
    strange = (
        CommandEnd(seq=1, cpu_us=-1),
        CommandEnd(seq=1, elapsed_us=2**62),
        CommandEnd(seq=1, exit_code=2**40),
        CommandEnd(seq=1, signal=900),
        CommandEnd(seq=1, detail="x" * 100_000),
        TaskEnd(1, -1, 1, 1),
        TaskEnd(1, 1, 1, 1, b"", True, TaskExtra(max_rss_kib=-5)),
    )
    for end in strange:
        with pytest.raises(Imposture):
            check_end(end, ANNA)
        check_end(end, None)
    for gone in (WorkerGone(worker=1, reason=Reason.SIGNAL, signal=-4), WorkerGone(worker=1, reason=Reason.SIGNAL, cpu_us=-4)):
        with pytest.raises(Imposture):
            check_gone(gone, ANNA)
    for surprise in (Surprise("word"), Surprise("leftovers", "x" * 100_000)):
        with pytest.raises(Imposture):
            check_surprise(surprise, ANNA)
    check_surprise(Surprise("leftovers", "1 processes killed"), ANNA)
    for up in (SpawnerUp(pid=1, features=("fast",)), SpawnerUp(pid=1, features=("pids",) * 100)):
        with pytest.raises(Imposture):
            check_up(up, ANNA, again=False)
    with pytest.raises(Imposture):
        check_up(SpawnerUp(pid=1), ANNA, again=True)


def test_every_surprise_of_the_programs_that_run_work_is_known() -> None:
    from rmgr.runner import command as commands
    from rmgr.runner import spawner
    from rmgr.runner.host import contain, kernel
    from rmgr.runner.python import workers

    told = {kernel.DIRECTORY_GONE, "spawner_failed", "fork_failed"}
    for module in (commands, contain, spawner, workers):
        told |= set(re.findall(r'\b_?surprise\("(\w+)"', Path(module.__file__ or "").read_text()))
    assert told == SURPRISES


def test_descriptors_that_are_not_taken_are_closed() -> None:
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    kept = list(fds)
    with pytest.raises(OSError, match=r"."), taken(fds, 2) as given:
        stream_socket(given)
    assert fds == kept[2:]
    for fd in kept[:2]:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    os.close(kept[2])
    ours, theirs = socket.socketpair()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    given = [theirs.detach()]
    stream_socket(given).close()
    assert given == [-1]
    with pytest.raises(Imposture):
        stream_socket([udp.fileno()])
    udp.close()
    ours.close()


def test_no_process_of_a_users_speaks_for_the_node_or_the_system() -> None:
    stops = OrderedEnds()
    stops.order(7, Reason.MIGRATED)
    stops.order(7, Reason.DISK_LIMIT)
    seen = {Reason.NONE, Reason.EXIT_CODE, Reason.EXCEPTION, Reason.SIGNAL, Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY, Reason.BAD_OUTPUT}
    seen |= {Reason.START_FAILED, Reason.USER_CANCEL, Reason.DATA_LOST, Reason.LEASE_LOST, Reason.WORKER_LOST}
    for reason in Reason:
        of_call = stops.task(TaskEnd(6, 1, 1, 1, b"", True, TaskExtra(reason, b"error", "words")))
        assert of_call.extra == TaskExtra(reason if reason in seen else Reason.WORKER_LOST, b"error", "words")
        assert stops.command(CommandEnd(seq=6, reason=reason)).reason is (reason if reason in seen else Reason.WORKER_LOST)
        ordered = {Reason.MIGRATED, Reason.DISK_LIMIT}
        assert stops.believed(7, reason) is (reason if reason in seen | ordered else Reason.WORKER_LOST), "as it was ordered"
    stops.over([7])
    assert stops.believed(7, Reason.MIGRATED) is Reason.WORKER_LOST
