"""What users' work takes of a node's disk is counted without being led astray, and whose work ends is the one that takes most."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from rmgr.daemons.starter.core.uploads import NoRoom, StagingRoom
from rmgr.daemons.starter.node.trouble import MAX_DEPTH, MAX_THINGS, DiskCaps, Use, count, excess, given
from rmgr.errors import ValueTooLarge

MIB = 1024 * 1024
CAPS = DiskCaps(user_bytes=100, all_bytes=250)


def use(path: str, uid: int, size: int, things: int = 1, *, is_deep: bool = False) -> Use:
    return Use(path=path, uid=uid, size_bytes=size, things=things, is_deep=is_deep)


def test_files_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "work"
    (place / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 5 * MIB)
    (place / "file").write_bytes(b"x" * MIB)
    (place / "a" / "again").hardlink_to(place / "file")
    (place / "a" / "b" / "link").symlink_to(tmp_path)
    (place / "sparse").touch()
    os.truncate(place / "sparse", 10**9)
    found = count(str(place), 1, max_things=MAX_THINGS)
    assert MIB <= found.size_bytes < 2 * MIB
    assert (found.things, found.is_deep) == (6, False)
    assert count(str(tmp_path / "nothing"), 1, max_things=MAX_THINGS).things == 0
    assert count(str(place / "a" / "b" / "link"), 1, max_things=MAX_THINGS).things == 0, "what was put in the place of a directory"


def test_counting_ends_at_the_limits(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}").touch()
    assert count(str(tmp_path), 1, max_things=10).things == 11
    deep = tmp_path / "deep"
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=here)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    here = _sink(os.open(deep, os.O_RDONLY), here, MAX_DEPTH + 50)
    os.close(here)
    assert count(str(deep), 1, max_things=MAX_THINGS).is_deep
    if before:
        assert len(os.listdir("/proc/self/fd")) < before
    shutil.rmtree(deep)


def _sink(here: int, above: int, steps: int) -> int:
    for _ in range(steps):
        os.close(above)
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
    os.close(above)
    return here


def test_what_goes_while_it_is_counted_is_no_error(tmp_path: Path) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            (tmp_path / "d").mkdir()
            (tmp_path / "d" / "f").touch()
            shutil.rmtree(tmp_path / "d")
            (tmp_path / "d").symlink_to("/")
            (tmp_path / "d").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert max(count(str(tmp_path), 1, max_things=MAX_THINGS).things for _ in range(500)) <= 2
    finally:
        over.set()
        thread.join(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_only_directories_that_were_given_to_users_count(tmp_path: Path) -> None:
    for kind in ("run", "stage"):
        for name, uid in (("mine", 0), ("anna", 4711)):
            (tmp_path / kind / name).mkdir(parents=True)
            os.chown(tmp_path / kind / name, uid, uid)
    assert sorted(given(tmp_path)) == [(str(tmp_path / "run" / "anna"), 4711), (str(tmp_path / "stage" / "anna"), 4711)]


def test_the_largest_directories_of_who_takes_too_much_end() -> None:
    uses = [use("a1", 1, 60), use("a2", 1, 50), use("a3", 1, 40), use("b", 2, 90)]
    ended = excess(uses, CAPS, max_things=MAX_THINGS)
    assert [one.path for one, _ in ended] == ["a1"]
    assert "work_cap_user_bytes" in ended[0][1]
    assert excess(uses[1:], CAPS, max_things=MAX_THINGS) == []


def test_all_together_have_a_limit_and_who_takes_most_ends_first() -> None:
    ended = excess([use("a", 1, 95), use("b", 2, 90), use("c", 3, 80)], CAPS, max_things=MAX_THINGS)
    assert [one.path for one, _ in ended] == ["a"]
    assert "work_cap_bytes" in ended[0][1]


def test_names_are_limited_too() -> None:
    ended = excess([use("a1", 1, 1, 600), use("a2", 1, 2, 500), use("b", 2, 1, 999)], CAPS, max_things=1000)
    assert [one.path for one, _ in ended] == ["a1"]
    assert excess([use("a", 1, 1, is_deep=True), use("b", 2, 1)], CAPS, max_things=MAX_THINGS)[0][0].path == "a"


def test_a_user_has_a_share_of_the_room_for_staged_files() -> None:
    room = StagingRoom(1000, 600)
    room.take(500, "task 1_0", user="anna")
    with pytest.raises(NoRoom) as short:
        room.take(200, "task 1_1", user="anna")
    assert short.value.user == "anna"
    room.take(400, "task 2_0", user="ben")
    with pytest.raises(NoRoom) as short:
        room.take(200, "task 2_1", user="ben")
    assert short.value.user == "", "now it is that of all"
    with pytest.raises(ValueTooLarge, match=r"of one user is 600 .*staging_cap_user_bytes"):
        room.take(700, "task 3_0", user="eve")
    room.settle(500, 0, user="anna")
    room.take(550, "task 1_1", user="anna")
    assert room.used_bytes == 950
    whole = StagingRoom(1000)
    whole.take(900, "task", user="anna")
