"""Directories that are used again: of the same kind only, and gone when nobody wants them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmgr.daemons.starter.checkpoint import directories
from rmgr.daemons.starter.checkpoint.directories import DirectoryPool, Untouched
from rmgr.runtime import machine


def test_a_directory_is_for_its_kind_and_goes_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[Callable[[], None]] = []
    now_s = [100.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now_s[0])
    pool = DirectoryPool(lambda _delay_s, call: later.append(call), Path.rmdir)
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
        pool.give(1000, place)
    assert len(later) == 1
    assert pool.take(1001) is None
    assert pool.take(1000) == places[2]
    now_s[0] += 0.5
    later.pop()()
    assert len(later) == 1, "one was wanted half a second ago"
    (places[1] / "left").touch()  # by whoever may
    now_s[0] += 1.0
    later.pop()()
    assert [place.exists() for place in places] == [False, True, True]
    assert pool.take(1000) is None
    assert not later


def test_no_more_than_a_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MOST", 1)
    removed: list[Path] = []
    pool = DirectoryPool(lambda _delay_s, _call: None, removed.append)
    pool.give(0, tmp_path / "a")
    pool.give(0, tmp_path / "b")
    assert removed == [tmp_path / "b"]


def test_what_a_cleaner_has_removed_is_not_lent(tmp_path: Path) -> None:
    removed: list[Path] = []

    def remove(place: Path) -> None:
        removed.append(place)
        place.unlink()

    pool = DirectoryPool(lambda _delay_s, _call: None, remove)
    target = tmp_path / "target"
    target.mkdir()
    for name in ("stands", "gone", "dangling"):
        (tmp_path / name).symlink_to(tmp_path if name == "stands" else target)
        pool.give(1, tmp_path / name)
    (tmp_path / "gone").unlink()
    target.rmdir()
    assert pool.take(1) == tmp_path / "stands"
    assert removed == [tmp_path / "dangling", tmp_path / "gone"]
    assert not (tmp_path / "dangling").is_symlink()
    assert pool.take(1) is None
    pool.give(1, tmp_path / "gone")
    pool.forget_lost()
    assert removed[2:] == [tmp_path / "gone"], "its marks are forgotten, too"


@pytest.mark.parametrize("aged", [False, True])
def test_a_directory_that_somebody_has_changed_is_not_as_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aged: bool) -> None:
    monkeypatch.setattr(directories, "blind_ns", lambda _marks: 0 if aged else 10**12)
    untouched = Untouched()

    def lend(name: str) -> Path:
        place = tmp_path / name
        place.mkdir(mode=0o700)
        untouched.made(place)
        _wait_for_the_clock_of(place)
        untouched.lent(place)
        return place

    place = lend("untouched")
    assert untouched.is_as_made(place)
    (lend("left") / "file").touch()
    assert not untouched.is_as_made(tmp_path / "left")
    lend("opened").chmod(0o755)
    assert not untouched.is_as_made(tmp_path / "opened")
    gone = lend("gone")
    gone.rmdir()
    assert not untouched.is_as_made(gone)
    (place / "file").touch()
    (place / "file").unlink()
    assert untouched.is_as_made(place) is False
    untouched.forget(place)
    assert not untouched.is_as_made(place)


def _wait_for_the_clock_of(directory: Path) -> None:
    """Until what changes in the directory has another time stamp."""
    made_ns, probe = directory.lstat().st_ctime_ns, directory.with_name("probe")
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        probe.touch()
        if probe.lstat().st_ctime_ns > made_ns:
            return
