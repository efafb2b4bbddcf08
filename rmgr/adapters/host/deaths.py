"""Says how a process ended, and what its death means for the work that it ran."""

from __future__ import annotations

import signal

from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import WorkerGone


def death_words(code: int | None) -> str:
    """How a process ended, by its return code as `subprocess` has it (None: it still lives)."""
    if code is None or code >= 0:
        return "does not answer" if code is None else f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def lost_words(how: str) -> str:
    """What is said of work whose slot has died."""
    return f"rmgr's process that ran it {how}; work that kills that itself (kill $PPID, pkill -u) ends so"


def lost_worker(worker: int, detail: str) -> WorkerGone:
    """What its spawner would have said of it."""
    return WorkerGone(worker=worker, reason=Reason.WORKER_LOST, seq=0, detail=detail)
