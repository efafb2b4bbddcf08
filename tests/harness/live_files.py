"""Lists files below a directory that other processes change meanwhile: vanished files are skipped (Path.rglob raises)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def below(directory: Path) -> Iterator[Path]:
    """Yields all files and directories below a directory, at any depth; none if it does not exist."""
    for path, directories, files in os.walk(directory):
        yield from (Path(path, name) for name in (*directories, *files))


def size_of(path: Path) -> int:
    """Returns the size of a file in bytes, or 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
