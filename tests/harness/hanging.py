"""A file system whose server never answers: what touches it hangs, as on a hard mount of a file server that is away."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

_MNT_DETACH = 2
#: The device's number, in every kernel.
_FUSE = os.makedev(10, 229)


@contextmanager
def hanging(place: Path) -> Iterator[None]:
    """Mounts it at `place`, which is made. After the block the directory is an ordinary one, and what hung there has failed.

    Skips the test where there is no FUSE; fails it if CI=true.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    device = Path("/dev/fuse")
    try:
        if not device.exists():  # as in many containers, whose kernel knows FUSE all the same
            device = place.with_name(f"{place.name}.fuse")
            os.mknod(device, stat.S_IFCHR | 0o600, _FUSE)
        server = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        _give_up(f"there is no FUSE here: {error}")
    try:
        how = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"nobody", os.fsencode(place), b"fuse", 0, how):
            _give_up(f"a file system cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(place), _MNT_DETACH)
    finally:
        os.close(server)


def _give_up(why: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
