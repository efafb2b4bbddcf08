"""An interpreter and packages that every local account can read: for tests of work as its user, in a checkout closed to other users."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import msgspec
import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.daemons.starter.staging.accounts import Reach
from rmgr.runner.host import home

#: Packages that a client of a gateway imports.
CLIENT = ("grpc", "google", "cryptography", "cffi", "_cffi_backend", "structlog", "typing_extensions", "kazoo", "psutil")
#: An account without rights of its own, as those that tests make.
_ANYBODY = Account(name="anybody", uid=65534, gid=65534)


@contextmanager
def work_that_users_reach(*, also: Collection[str] = ()) -> Iterator[None]:
    """Lets work start as its user inside the block; if the checkout is closed to other users, from a copy in /var/tmp.

    also: further names in site-packages that this work imports (`CLIENT`: for work that submits work through a gateway).
    Needs root. Cost: 1 ms, or 0.3 s and 8 MiB for the copy, which is removed at the end.
    """
    if not Reach(python="", directory=Path("/var/tmp")).problem(_ANYBODY):
        yield
        return
    place = Path(tempfile.mkdtemp(prefix="rmgr-reach-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        python = _environment(place, also)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(home, "PYTHON", python)
            patch.setattr(home, "ROOT", place / "root")
            patch.setattr(home, "IS_OWN", False)
            patch.setattr(sys, "executable", python)
            yield
    finally:
        shutil.rmtree(place)


@contextmanager
def open_place(*, mode: int = 0o755) -> Iterator[Path]:
    """Yields a directory that all users can reach (pytest's own is closed to them)."""
    directory = Path(tempfile.mkdtemp(prefix="rmgr-users-", dir="/var/tmp"))
    directory.chmod(mode)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _environment(place: Path, also: Collection[str]) -> str:
    """Copies what work imports into `place`; returns the interpreter. Daemons, which are root, import the rest from its own place."""
    shutil.copytree(home.ROOT / "rmgr", place / "root" / "rmgr")  # with compiled files, or each process compiles all, for 0.4 s
    base = Path(sys.base_prefix)
    if not all(above.stat().st_mode & 0o001 for above in (base.resolve(), *base.resolve().parents)):
        shutil.copytree(base, place / "base", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        base = place / "base"
    real = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(real)
    (place / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    packages = place / "lib" / real.name / "site-packages"
    for module in (msgspec, cloudpickle):
        source = Path(module.__file__ or "").parent
        shutil.copytree(source, packages / source.name)
    for directory in dict.fromkeys(Path(sysconfig.get_paths()[kind]) for kind in ("purelib", "platlib")):
        for source in (found for name in also for found in directory.glob(f"{name}*")):
            if source.is_dir():
                shutil.copytree(source, packages / source.name, dirs_exist_ok=True)
            else:
                shutil.copy2(source, packages / source.name)
    others = dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
    (packages / "others.pth").write_text("\n".join([str(place / "root"), *others]) + "\n")
    for path in place.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    return str(place / "bin" / "python")

