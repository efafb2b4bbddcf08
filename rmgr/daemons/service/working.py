"""Whether a daemon can work, as its `/healthz` says; read by threads that own nothing of the daemon."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.model.base.units import format_duration
from rmgr.runtime import machine
from rmgr.runtime.lease import LastAnswer
from rmgr.runtime.store_watch import WatchedStore
from rmgr.runtime.supervision import StallGuard

#: A loop comes round at least every 2.5 s.
_STALLED_S = 5.0
#: As `runtime/lease.py`: after this part of the session timeout without an answer nothing is acted upon.
_LEASE_SHARE = 2 / 3


class Working:
    """Looks at what a daemon stands on. Thread-safe.

    Args: unable: what else is asked why it cannot work; each answers "" while it can.
    """

    def __init__(self, coordinator: LastAnswer, store: WatchedStore, guard: StallGuard, *unable: Callable[[], str]) -> None:
        self._coordinator = coordinator
        self._store = store
        self._guard = guard
        self._unable = unable

    def trouble(self) -> str:
        """Every reason why the daemon cannot work now, "" while it can. Never waits."""
        return "; ".join(dict.fromkeys(why for why in self._reasons() if why))

    def _reasons(self) -> tuple[str, ...]:
        silent_s, unanswered_s = self._guard.silent_s, machine.monotonic() - self._coordinator.last_answer_s()
        is_over = unanswered_s > self._coordinator.session_timeout_s * _LEASE_SHARE
        return (
            f"its loop has not come round for {format_duration(silent_s)}" if silent_s > _STALLED_S else "",
            "the lease is over: ZooKeeper does not answer" if is_over else "",
            f"data store: {self._store.trouble}" if self._store.trouble else "",
            *(ask() for ask in self._unable),
        )
