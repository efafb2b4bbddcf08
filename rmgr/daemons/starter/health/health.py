"""Whether the work directory can take what work writes: free space and a write that reaches it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from rmgr.model.base.units import format_size

_EVERY_S = 2.0
#: Less free than this, or than this share of the file system, and the node takes no work; twice as much and it does again.
_LOW_BYTES, _LOW_SHARE = 64 * 1024 * 1024, 0.05


class DiskWatch:
    """Looks at one directory now and then. mend: makes again what was removed; may raise OSError."""

    def __init__(self, directory: Path, mend: Callable[[], object] = lambda: None) -> None:
        self._directory = directory
        self._mend = mend
        self._next_s = -math.inf
        self._why = ""

    @property
    def free_bytes(self) -> int:
        """Free for ordinary users, 0 when it cannot be told."""
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def look(self, now_s: float) -> str:
        """Why no work should be taken, "" when all is well. Cost: a small write every two seconds."""
        if now_s < self._next_s:
            return self._why
        self._next_s = now_s + _EVERY_S
        self._why = self._check(2 if self._why else 1)
        return self._why

    def _check(self, factor: int) -> str:
        try:
            self._mend()
            found = os.statvfs(self._directory)
            low = min(_LOW_BYTES, int(found.f_blocks * found.f_frsize * _LOW_SHARE)) * factor
            free = found.f_bavail * found.f_frsize
            if free < low:
                return f"the work directory {self._directory} is full ({format_size(free)} free)"
            probe = self._directory / ".probe"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except OSError as error:
            return f"the work directory {self._directory} cannot be written: {error.strerror or error}"
        return ""
