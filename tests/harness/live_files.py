"""Files below a directory in which others write and remove meanwhile: what vanishes is passed over (Path.rglob raises)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def below(directory: Path) -> Iterator[Path]:
    """All files and directories below it, however deep; none where it is not there."""
    for path, directories, files in os.walk(directory):
        yield from (Path(path, name) for name in (*directories, *files))


def size_of(path: Path) -> int:
    """Bytes; 0 where it is not there any more."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
