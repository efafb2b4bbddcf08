"""Removed directories of a Starter are made again with their modes, and links or files in their place are not followed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from rmgr.adapters.host.leftovers import hold
from rmgr.adapters.host.process import NodeRunner
from rmgr.config import StarterConfig
from rmgr.daemons.starter.core.home import DiskWatch, Home
from rmgr.daemons.starter.main import work_directory
from rmgr.errors import ConfigError, StateConflict

MODES = {"": 0o711, "n1": 0o711, "n1/run": 0o755, "blobs": 0o700}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "users may write here" / "rmgr"
    for name, mode in MODES.items():
        (root / name).mkdir(parents=True)
        (root / name).chmod(mode)
    root.parent.chmod(0o1777)
    return root


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def home(root: Path, told: list[str]) -> Home:
    made = Home(root, on_mended=lambda: told.append("mended"), log=structlog.get_logger())
    made.keep(*(root / name for name in MODES))
    return made


def stands(root: Path) -> None:
    found = {name: os.lstat(root / name) for name in MODES}
    assert {name: stat.S_IMODE(one.st_mode) for name, one in found.items()} == MODES
    assert all(stat.S_ISDIR(one.st_mode) and one.st_uid == os.geteuid() for one in found.values())


@pytest.mark.parametrize("name", MODES)
def test_what_was_removed_is_made_again_with_all_below_it(home: Home, root: Path, told: list[str], name: str) -> None:
    assert not home.mend()
    shutil.rmtree(root / name)
    assert home.mend()
    stands(root)
    assert (told, home.generation) == (["mended"], 1)
    assert not home.mend()


def test_directories_above_the_root_are_made_again_too(home: Home, root: Path) -> None:
    shutil.rmtree(root.parent)
    assert home.mend()
    stands(root)
    assert stat.S_IMODE(os.lstat(root.parent).st_mode) & 0o022 == 0


def test_directories_that_belonged_to_another_user_at_the_start_are_left_alone(root: Path, told: list[str]) -> None:
    """A work directory that the admin has made, or /tmp itself."""
    if os.geteuid() != 0:
        pytest.skip("another user's directory takes root")
    os.chown(root, 12345, 12345)
    home = Home(root, on_mended=lambda: told.append("mended"), log=structlog.get_logger())
    home.keep(root, root / "blobs")
    home.check()
    assert not home.mend()
    shutil.rmtree(root / "blobs")
    assert home.mend()
    assert os.lstat(root).st_uid == 12345
    assert not home.mend()


def link(root: Path, victim: Path) -> None:
    root.symlink_to(victim)


def pipe(root: Path, _victim: Path) -> None:
    os.mkfifo(root)


def file(root: Path, _victim: Path) -> None:
    root.write_text("mine")


def directory(root: Path, _victim: Path) -> None:
    """Of another user, with something like our tree in it, where this test may make one."""
    (root / "n1" / "run").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(root, 12345, 12345)


@pytest.mark.parametrize("trick", [link, pipe, file, directory])
@pytest.mark.parametrize("name", ["", "n1"])
def test_what_a_user_puts_in_its_place_is_not_followed(
    home: Home, root: Path, tmp_path: Path, trick: Callable[[Path, Path], Any], name: str
) -> None:
    if trick is directory and os.geteuid() != 0:
        pytest.skip("another user's directory takes root")
    victim = tmp_path / "victim"
    for part in MODES:
        (victim / part).mkdir(parents=True, mode=0o700)
    before = sorted(victim.rglob("*"))
    modes = [stat.S_IMODE(os.lstat(path).st_mode) for path in before]
    shutil.rmtree(root / name)
    trick(root / name, victim / name)
    home.check() if not name else home.mend()
    stands(root)
    assert sorted(victim.rglob("*")) == before
    assert [stat.S_IMODE(os.lstat(path).st_mode) for path in before] == modes, "nor is it changed"


def test_a_directory_above_it_that_has_become_somebody_elses_is_refused_and_said(home: Home, root: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's directory takes root")
    shutil.rmtree(root.parent)
    root.parent.mkdir()
    os.chown(root.parent, 12345, 12345)
    why = DiskWatch(root, home.mend).look()
    assert "belongs to uid 12345" in why
    assert "--work-dir" in why
    assert not home.look(), "and no file is looked for there"
    root.parent.rmdir()
    root.parent.symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        home.mend()
    assert not (tmp_path / "rmgr").exists()


def test_a_file_that_is_missing_for_another_reason_is_no_reason_to_try_again(home: Home) -> None:
    assert not home.retry(FileNotFoundError(), home.generation)
    assert not home.retry(PermissionError(), home.generation - 1)
    assert home.retry(FileNotFoundError(), home.generation - 1), "another thread has mended meanwhile"
    home.forget.append(lambda: True)
    assert home.retry(FileNotFoundError(), home.generation), "a kept file is gone"


@pytest.mark.parametrize("is_link", [True, False])
def test_a_starter_of_several_users_begins_in_no_directory_that_one_of_them_has_made(tmp_path: Path, is_link: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's directory takes root")
    place, victim = tmp_path / "rmgr", tmp_path / "victim"
    victim.mkdir()
    if is_link:
        place.symlink_to(victim)
    else:
        place.mkdir()
    os.lchown(place, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        work_directory(StarterConfig(work_dir=str(place)), "n1", shared=True)
    assert not list(victim.iterdir())
    assert work_directory(StarterConfig(work_dir=str(place)), "n1") == (victim if is_link else place), "work of one user is his business"
    os.lchown(place, 0, 0)
    assert work_directory(StarterConfig(work_dir=str(place)), "n1", shared=True) == (victim if is_link else place)


def test_a_node_whose_directory_goes_again_while_it_is_made_again_is_written_down_once_it_stands(tmp_path: Path) -> None:
    runner = NodeRunner(directory=str(tmp_path / "n1"), node="n1", on_events=lambda _: None)
    try:
        shutil.rmtree(tmp_path / "n1")
        runner.mended()  # called by whoever takes in what ended: nothing of that may be lost
        (tmp_path / "n1").mkdir()
        runner.mended()
        with pytest.raises(StateConflict):
            hold(tmp_path / "n1")
    finally:
        runner.close()
