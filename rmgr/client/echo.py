"""What calls of an Executor print, written to this process's own streams as they end (a process pool's workers share them)."""

from __future__ import annotations

import sys

from rmgr.coord import keys
from rmgr.coord.ports import Store
from rmgr.errors import RmgrError
from rmgr.model.outcome import Outcome

#: Most parts of one stream that are fetched (256 KiB each); `rmgr logs` has all of it.
_MAX_PARTS = 16


def write(store: Store, number: int, outcome: Outcome, attempt: int) -> None:
    """Writes the output of one attempt. Never raises: nobody waits for it."""
    for at, stream in enumerate((sys.stdout, sys.stderr)):
        try:
            text = _output(store, number, outcome, attempt, at).decode("utf-8", "replace")
            if text and stream is not None:
                stream.write(text)
                stream.flush()
        except (RmgrError, OSError, ValueError):
            continue


def _output(store: Store, number: int, outcome: Outcome, attempt: int, at: int) -> bytes:
    parts = outcome.log_parts[at]
    rows = [keys.log(number, outcome.index, attempt, keys.STREAMS[at], part) for part in range(min(parts, _MAX_PARTS))]
    found = store.get_many(rows) if rows else {}
    gap = f"\n[{parts - _MAX_PARTS} parts left out: rmgr logs {number}_{outcome.index}]\n".encode() if parts > _MAX_PARTS else b""
    return b"".join(found[row][0] for row in rows if row in found) + gap + outcome.log[at]
