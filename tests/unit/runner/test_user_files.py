"""Files that users name are opened with the right user's rights, and no name leads outside."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account, find_account, live_output, open_regular

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")


def read(path: str, account: Account | None = None, *, below: str = "", follow: bool = True) -> bytes:
    with open(open_regular(path, account, below=below, follow=follow), "rb") as file:
        return file.read()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "b" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (home / "near").symlink_to("a/b")
    (home / "far").symlink_to("..")
    (home / "whole").symlink_to(tmp_path)
    (home / "loop").symlink_to("loop/x")
    (home / "proc").symlink_to("/proc/self")
    return home


@pytest.mark.parametrize("name", ["a/b/file", "./a//b/file", "a/../near/file", "near/../b/file"])
def test_what_stays_below_the_directory_is_read(home: Path, name: str) -> None:
    assert read(name, below=str(home)) == b"inside"


@pytest.mark.parametrize("name", ["../secret", "far/secret", "whole/secret", "near/../../../secret", "proc/status"])
def test_nothing_leads_out_of_the_directory(home: Path, name: str) -> None:
    with pytest.raises(OSError, match="out of the work directory"):
        read(name, below=str(home))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("none", errno.ENOENT),
        ("a/b/file/x", errno.ENOTDIR),
        ("n" * 300, errno.ENAMETOOLONG),
        ("loop/x", errno.ELOOP),
        ("a/b", errno.EINVAL),
        ("", errno.EINVAL),
        ("/", errno.EINVAL),
        ("/dev/null", errno.EINVAL),
    ],
)
def test_what_cannot_be_opened_says_why(home: Path, name: str, number: int) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        read(name, below=str(home))
    assert caught.value.errno == number


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have_are_refused(home: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(name, below=str(home))


@pytest.mark.parametrize("name", ["/proc/self/maps", "/proc/self/environ", "/proc/self/cwd/file", "/sys/kernel/uevent_seqnum", "proc"])
def test_what_the_kernel_tells_of_this_process_is_no_users_file(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "a" / "b")
    for below in (str(home), "/"):
        with pytest.raises(OSError, match=r"."):
            read(name, below=below)
    with pytest.raises(OSError, match="tells of itself"):
        read("maps", below="/proc/self")


@ROOT
def test_a_user_gets_nothing_that_only_root_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the kernel lead past directories that are closed to the user: they are the Starter's there."""
    nobody = find_account("nobody")
    assert nobody is not None
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        os.chmod(made, 0o755)
        file = Path(made, "closed", "b", "file")
        file.parent.mkdir(parents=True)
        file.write_text("inside")
        assert read(str(file), nobody) == b"inside"
        monkeypatch.chdir(file.parent)
        file.parents[1].chmod(0o700)
        for name in (str(file), "/proc/self/cwd/file", "/proc/self/maps", "/proc/thread-self/maps"):
            with pytest.raises(PermissionError):
                read(name, nobody)
            assert live_output(name, nobody, 0, 100, 1000) is None


def test_live_output_is_none_of_the_kernels(home: Path) -> None:
    assert live_output("/proc/self/maps", None, 0, 100, 1000) is None
    assert live_output("a\0b", None, 0, 100, 1000) is None
    assert live_output(str(home / "a" / "b" / "file"), None, 2, 100, 1000) == (b"side", 6)


def test_a_pipe_is_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "pipe")
    with pytest.raises(OSError, match="not a plain file"):
        read("pipe", below=str(home))
