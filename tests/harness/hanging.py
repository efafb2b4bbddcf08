"""A file system whose server never answers: what touches it hangs, as on a hard mount of a file server that is away."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MNT_DETACH = 2


@contextmanager
def hanging(place: Path) -> Iterator[None]:
    """Mounts it at `place`, which is made. After the block the directory is an ordinary one, and what hung there has failed."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"there is no FUSE here: {error}")
    try:
        how = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"nobody", os.fsencode(place), b"fuse", 0, how):
            pytest.skip(f"a file system cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(place), _MNT_DETACH)
    finally:
        os.close(server)
