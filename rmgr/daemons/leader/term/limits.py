"""Answers of the leader about what users hold: its memory of submissions, and what its own server gives them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.rpc.use import UseAnswer, UserUse
from rmgr.coord.decisions.rights import check_operator
from rmgr.daemons.leader.submissions.usage import CountedSubmission, UserTotals, usage
from rmgr.daemons.service.people import person_of
from rmgr.errors import Unavailable
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.queue import CORES, JOBS
from rmgr.runtime import machine

#: How old the numbers may be, and those that decide whether somebody is refused.
OLD_S, FRESH_S = 2.0, 0.25
_ANSWER_S = 4.0


def wanted(users: Sequence[str], caller: Caller, operators: Sequence[str], known: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Of whom is told: those that were named, none = the caller himself. Raises PermissionDenied.

    known: everybody, for a gateway that asks for itself and for an operator of whom nobody is asked.
    """
    if not caller.is_open and caller.who is not None and caller.who.role is Role.SUBMITTER:
        return users or known()
    person = person_of(caller, operators)
    if any(user != person.name for user in users) and not person.is_free:
        check_operator(person, "asking for the limits of others")
    return users or ((person.name,) if person.name else known())


class LeaderUse:
    """`UseAnswers` of a WatchDog. Thread-safe.

    Args:
        followed: submissions by number, None while it does not lead. call: runs a function in its loop.
        cores: in use by user, while somebody has a cap.
    """

    def __init__(
        self,
        followed: Callable[[], Mapping[int, CountedSubmission] | None],
        call: Callable[[Callable[[], Any]], Future[Any]],
        bounds: Bounds,
        operators: Sequence[str] = (),
        cores: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._followed = followed
        self._cores = cores
        self._call = call
        self._bounds = bounds
        self._operators = tuple(operators)
        self._lock = threading.Lock()
        self._read_s = -math.inf
        self._found: dict[str, UserTotals] = {}

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        """See `UseAnswers`."""
        found, read_s = self._read(FRESH_S if fresh else OLD_S)
        told, cores = {}, self._cores()
        for user in wanted(users, caller, self._operators, lambda: sorted({*found, *self._bounds.users()})):
            one = found.get(user, UserTotals())
            used = {
                **{name: count for name, count in self._bounds.used(user).items() if count},
                **({CORES: cores.get(user, 0)} if self._bounds.limits.of(CORES, user) else {}),
                JOBS: one.open_submissions,
                "open_submissions": one.open_submissions,
                "unfinished_tasks": one.unfinished_tasks,
                "zookeeper_bytes": one.zookeeper_bytes,
            }
            told[user] = UserUse(used=used, refused=self._bounds.refused(user))
        return UseAnswer(users=told, age_s=machine.monotonic() - read_s, limits=self._bounds.limits)

    def _read(self, age_s: float) -> tuple[dict[str, UserTotals], float]:
        """Counts again where the last count is older. One counts, the others wait for it. Raises Unavailable."""
        followed = self._followed()
        if followed is None:
            raise Unavailable("this WatchDog does not lead", hint="rmgr status finds the one that does")
        with self._lock:
            if machine.monotonic() - self._read_s > age_s:
                began_s = machine.monotonic()
                try:
                    self._found = self._call(lambda: usage(followed.values())).result(_ANSWER_S)
                except FutureTimeout:
                    raise Unavailable("the leader is busy", hint="ask again in a moment; rmgr doctor") from None
                self._read_s = began_s
            return self._found, self._read_s
