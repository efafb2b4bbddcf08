"""Ctrl-C at a waiting command: once detaches, twice within 2 s cancels (cli.md section 7)."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmgr.cli.session.errors import INTERRUPTED, WorkEnded
from rmgr.errors import RmgrError

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session

AGAIN_S = 2.0


def detached(session: Session, ids: Sequence[str], *, attach: str) -> WorkEnded:
    """Handles a Ctrl-C that has just come; returns what the command ends with (exit code 130).

    Args:
        ids: what was waited for. attach: the command that waits again.
    """
    selected = " ".join(ids)
    try:
        session.note(f"detached from {selected}; it goes on (Ctrl-C again within 2 s cancels it)")
        time.sleep(AGAIN_S)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third one must not stop the cancel half-way
        _cancel(session, ids, selected)
        return WorkEnded(INTERRUPTED)
    session.note(f"attach again: {attach}")
    session.note(f"cancel:       rmgr cancel {selected}")
    return WorkEnded(INTERRUPTED)


def _cancel(session: Session, ids: Sequence[str], selected: str) -> None:
    from rmgr.cli.control.gate import cancel_ids

    session.note(f"cancelling {selected}")
    try:
        changes = cancel_ids(session, ids, reason="cancelled with Ctrl-C")
    except RmgrError as error:
        session.note(f"{error.message}; try: rmgr cancel {selected}")
        return
    for id_, why in changes.unchanged:
        session.note(f"{id_}: {why}")
    if changes.changed:
        session.note(f"cancelled {' '.join(changes.changed)}")
