"""Whether a directory is as it was made, by what its file system notes of it: a listing and its attributes would be six system calls."""

from __future__ import annotations

import os

#: The clock of a file system moves at least this often, by whether it counts below seconds.
_FINE_NS, _COARSE_NS = 50_000_000, 3_000_000_000


def marks_of(directory: str | os.PathLike[str]) -> tuple[int, ...]:
    """What changes when anything in or of a directory is changed, as finely as its time stamps tell. Raises: OSError."""
    found = os.lstat(directory)
    return (found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_ctime_ns, found.st_mtime_ns)


def blind_ns(marks: tuple[int, ...]) -> int:
    """How long after its making a change of a directory with these marks may leave them as they are."""
    return _FINE_NS if marks[-1] % 1_000_000_000 else _COARSE_NS
