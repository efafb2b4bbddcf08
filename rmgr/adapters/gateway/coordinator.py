"""The Coordinator port through a gateway: for clients that cannot reach ZooKeeper. `rmgr submitter` is the other end.

Futures, order, deadlines, read-back and session states are the very code that runs on ZooKeeper (`zk_session`); only
the link differs. When a gateway dies, its client hears SUSPENDED, then LOST and CONNECTED: a new session, through it
again or through the next one; what had no answer is read back there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rmgr.adapters.gateway.link import GatewayLink
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.gateways import Gateways
from rmgr.adapters.zookeeper.bulk import gather
from rmgr.adapters.zookeeper.guard import PACE_S
from rmgr.adapters.zookeeper.ops import Watch, to_stamped
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import SessionState
from rmgr.errors import CoordinationUnavailable, NotConnected, Throttled
from rmgr.model.base.units import format_duration

_POLL_S = 0.05


class GatewayCoordinator(SessionCoordinator):
    """`coord.ports.Coordinator` through one of `gateways` ("HOST:PORT,..."). Connects in the background; `connect` waits.

    Args:
        session_timeout_s: asked for; `session_timeout_s` says what it became.
        window: most operations on the way at once.
        credentials: who we are, None in an open cluster.
    """

    _link: GatewayLink

    def __init__(
        self, gateways: str, *, session_timeout_s: float = 10.0, window: int = 256, credentials: Credentials | None = None
    ) -> None:
        self._gateways = Gateways(gateways, credentials)
        self._wanted_timeout_s = session_timeout_s
        super().__init__("", window=window)

    @classmethod
    def connect(
        cls, gateways: str, *, session_timeout_s: float = 10.0, connect_timeout_s: float = 5.0, credentials: Credentials | None = None
    ) -> GatewayCoordinator:
        """A connected coordinator.

        Raises: NotConnected when no gateway answers; CoordinationUnavailable when one does and ZooKeeper gives it no
            session within `connect_timeout_s`; what the gateway said when it turned this client away (PermissionDenied, ...).
        """
        coordinator = cls(gateways, session_timeout_s=session_timeout_s, credentials=credentials)
        try:
            coordinator.wait_ready(connect_timeout_s)
        except BaseException:
            coordinator.close(timeout_s=1.0)
            raise
        return coordinator

    def at_one_moment(
        self, paths: Sequence[str], lists: Sequence[str], *, timeout_s: float = 10.0  # noqa: ARG002 - as its base has it
    ) -> Future[list[Stamped | list[str] | None]]:
        """Leaders ask this, and they stand on ZooKeeper itself. Raises: CoordinationUnavailable always, and the session goes on."""
        raise CoordinationUnavailable("a gateway reads no znodes at one moment", hint="connect to ZooKeeper: --zk HOSTS")

    def wait_ready(self, timeout_s: float) -> None:
        """Waits for a session. Raises as `connect`."""
        end_s = time.monotonic() + timeout_s
        while not self.wait_connected(min(_POLL_S, max(0.0, end_s - time.monotonic()))):
            refusal = self._link.refusal
            if refusal is not None and (not isinstance(refusal, Throttled) or time.monotonic() >= end_s):
                raise refusal
            if time.monotonic() >= end_s:
                raise self._nobody(timeout_s)

    def _nobody(self, timeout_s: float) -> NotConnected | CoordinationUnavailable:
        if self._link.is_welcome:
            return CoordinationUnavailable(
                f"the gateway at {self._link.endpoint} answers, but ZooKeeper gave it no session within {format_duration(timeout_s)}",
                hint="is ZooKeeper up? ask who runs the gateway; its log says more",
            )
        why = f": {self._link.last_error}" if self._link.last_error else ""
        if "does not talk to us" in why:
            hint = "a secured one hangs up on who has no credentials: set RMGR_SECURITY_DIR to your bundle (rmgr admin add-user)"
            return NotConnected(f"no gateway answers at {self.hosts} within {format_duration(timeout_s)}{why}", hint=hint)
        return NotConnected(
            f"no gateway answers at {self.hosts} within {format_duration(timeout_s)}{why}",
            hint="is it running? start one with: rmgr submitter --listen HOST:PORT   (or name another: --gateway, RMGR_GATEWAY)",
        )

    @property
    def hosts(self) -> str:
        """The gateways, as they were named."""
        return str(self._gateways)

    @property
    def endpoint(self) -> str:
        """The gateway that has the session; one to try while there is none."""
        return self._link.endpoint or self._gateways.current

    # -- the port, where the gateway does in one step what takes two with ZooKeeper: to watch what is absent

    def get(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[Stamped | None]:
        request = self._link.get_request(self._absolute(path), Watch(watch) if watch else None)
        return self._read(request, to_stamped, timeout_s, path)

    def get_many(self, paths: Sequence[str], *, timeout_s: float = 10.0) -> Future[list[Stamped | None]]:
        return gather([self.get(path, timeout_s=timeout_s) for path in paths], list)  # in one message; there is no request of its own

    def children(self, path: str, *, watch: Callable[[], None] | None = None, timeout_s: float = 10.0) -> Future[list[str] | None]:
        request = self._link.children_request(self._absolute(path), Watch(watch) if watch else None)
        return self._read(request, lambda names: names, timeout_s, path)

    # -- inside

    def guard(self) -> float | None:
        """See `SessionCoordinator.guard`; also leaves a gateway that has fallen silent."""
        super().guard()
        self._link.check()
        return self._clock() + PACE_S

    def _open(self, session: tuple[int, bytes] | None) -> GatewayLink:
        del session  # a gateway's session ends with its stream
        self._link = GatewayLink(self, self._gateways, session_timeout_s=self._wanted_timeout_s, clock=self._clock)
        self._link.start()
        return self._link

    def _why(self) -> str:
        if self.state is SessionState.CONNECTED:
            return "connected, the server is slow"
        if self._usable.is_set():
            return f"the gateway at {self.endpoint} has lost ZooKeeper"
        return f"not connected: {self._link.last_error or 'no gateway answers'}"
