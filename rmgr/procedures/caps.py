"""Asks, before something is submitted, whether its user has open jobs left. Gateways ask again (`daemons/gateway/limits.py`)."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import LimitReached
from rmgr.model.cluster.limits import BOUND, JOBS, CappedUse, UserLimits
from rmgr.runtime import machine

#: Within this the leader has counted anew.
_COUNTED_S = 2.0


def check_jobs(coordinator: Coordinator, limits: UserLimits, user: str, *, new: int = 1, timeout_s: float = 10.0) -> None:
    """The same, at ZooKeeper."""

    def has() -> int:
        found = coordinator.get(paths.USAGE, timeout_s=timeout_s).result(timeout_s + 1.0)
        return decode_record(found.data, CappedUse, paths.USAGE).jobs.get(user, 0) if found is not None else 0

    check_cap(has, limits, user, new=new)


def check_cap(has_jobs: Callable[[], int], limits: UserLimits, user: str, *, new: int = 1) -> None:
    """`user` is about to submit so many jobs. Cost: nothing without a cap, else a reading; at the cap it waits for another count.

    The leader counts once a second: who submits many within it may pass the cap by these, and no gateway is asked.
    Raises: LimitReached naming the user, the cap, and what to do; Unavailable.
    """
    cap = limits.of(JOBS, user)
    if not cap or has_jobs() + new <= cap:
        return
    machine.sleep(_COUNTED_S)  # nobody is refused for what has ended meanwhile
    if (has := has_jobs()) + new > cap:
        more = "" if new == 1 else f", and {new} more are to be submitted"
        told = f"{user} has {has} of the {cap} open jobs that {user} may have at once ({JOBS}){more}"
        raise LimitReached(told, hint=f"{BOUND[JOBS].advice}; rmgr limits")
