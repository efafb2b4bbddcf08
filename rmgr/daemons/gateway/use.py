"""Shows users their limits at a gateway, and asks the leader for what they have in the cluster."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.use import UseAnswer, UseClient, UserUse
from rmgr.daemons.gateway.limits import ClusterUse
from rmgr.daemons.gateway.routes import ClusterRoutes
from rmgr.daemons.leader.term.limits import wanted
from rmgr.errors import Throttled, Unavailable
from rmgr.model.cluster.identity import Role
from rmgr.runtime import machine

_ASK_S = 2.0
#: Answers at once; and how long one takes for who asks too much.
_AT_ONCE, _SLOW_S = 8, 0.2


class LeaderAsk:
    """Asks whoever leads, on one channel while it is the same. Thread-safe."""

    def __init__(self, routes: ClusterRoutes, credentials: Credentials | None) -> None:
        self._routes = routes
        self._credentials = credentials
        self._lock = threading.Lock()
        self._client: UseClient | None = None

    def __call__(self, fresh: bool) -> UseAnswer:
        """Of everybody. Raises Unavailable, PermissionDenied."""
        with self._lock:
            endpoint = self._routes.leader("")
            if self._client is None or self._client.endpoint != endpoint:
                self._drop()
                self._client = UseClient(endpoint, role=Role.WATCHDOG, credentials=self._credentials, timeout_s=_ASK_S)
            try:
                return self._client.use(fresh=fresh)
            except Unavailable:
                self._routes.lost(endpoint)
                self._drop()
                raise

    def close(self) -> None:
        """Ends the channel. Idempotent."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class GatewayUse:
    """`UseAnswers` of a gateway: its own numbers and, through `cluster`, the leader's."""

    def __init__(self, bounds: Bounds, cluster: ClusterUse, operators: Sequence[str] = ()) -> None:
        self._bounds = bounds
        self._cluster = cluster
        self._operators = tuple(operators)
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        """See `UseAnswers`."""
        with self._room:
            try:
                self._bounds.spend(caller.user)
            except Throttled:  # whoever is refused may see why, slowly
                machine.sleep(_SLOW_S)
            return self._told(users, fresh=fresh, caller=caller)

    def _told(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        names = wanted(users, caller, self._operators, lambda: sorted({*self._cluster.users(), *self._bounds.users()}))
        self._cluster.refresh(fresh=fresh)
        told = {
            user: UserUse(used={**self._bounds.used(user), **self._cluster.used(user)}, refused=self._bounds.refused(user))
            for user in names
        }
        return UseAnswer(users=told, limits=self._bounds.limits, problem=self._cluster.problem)
