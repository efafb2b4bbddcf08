"""Files of staged work: names that lead nowhere else, and values that go from the data store into them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.room import StagingShare
from rmgr.daemons.starter.staging.inputs import Input
from rmgr.errors import NotFound, PermissionDenied, UsageError

#: Bytes of one step of a file's name, and of all (what is above it is ours).
_MAX_STEP, _MAX_NAME = 255, 3000


def inside(directory: Path, name: str) -> Path:
    """`name` below `directory`. Raises: PermissionDenied when it leads elsewhere."""
    target = Path(os.path.normpath(directory / name))
    if directory != target and directory not in target.parents:
        raise PermissionDenied(f"the file name {name!r} leads out of the work directory")
    return target


def make_way(directory: Path, target: Path, name: str) -> None:
    """Makes the directories on the way to a file. Raises: UsageError for a name that no file can have here."""
    steps = target.relative_to(directory).parts
    if not steps or "\0" in name or len(os.fsencode(name)) > _MAX_NAME or any(len(os.fsencode(step)) > _MAX_STEP for step in steps):
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"the input file {name[:80]!r} lies below another input file") from None
    if target.is_dir():
        raise UsageError(f"the input file {name[:80]!r} has the name of a directory with other input files")


def plain(name: str) -> str:
    """The name of an upload: one step below the work directory. Raises: PermissionDenied, UsageError."""
    if len(os.fsencode(name)) > _MAX_STEP:
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise PermissionDenied(f"the upload has the name {name!r}, which is no file name")
    return name


def to_file(store: Store, key: str, found_in: Input, path: str, share: StagingShare) -> None:
    """The value of an input as a file; its size has its room already. Raises: NotFound, NoRoom, ValueTooLarge, GivenUpError."""
    chunks = store.stream(found_in.row)
    if chunks is None:
        raise NotFound(f"{found_in.row} is not in the data store")
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for chunk in chunks:
            size += len(chunk)
            share.making(max(0, min(len(chunk), size - found_in.size)))  # one that is larger by now; raises once nobody waits for it
            file.write(chunk)
            if found_in.about is not None:
                digest.update(chunk)
    found_in.check(key, digest.digest())
