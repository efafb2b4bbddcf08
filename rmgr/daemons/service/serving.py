"""Opens the gRPC server of a daemon, which asks everybody who they are in a secured cluster."""

from __future__ import annotations

from rmgr.adapters.access.auth import Refused
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust
from rmgr.adapters.rpc.server import RpcServer
from rmgr.log import audit
from rmgr.model.cluster.identity import Identity
from rmgr.runtime.logger import Log


def open_server(
    listen: str, credentials: Credentials | None, trust: Trust | None, log: Log, *, threads: int = 96, bounds: Bounds | None = None
) -> RpcServer:
    """The gRPC server of a daemon: in a secured cluster everybody is asked who they are, and a revoked key is refused."""
    if credentials is None:
        return RpcServer(listen, threads=threads, bounds=bounds)
    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    return RpcServer(listen, threads=threads, credentials=credentials, is_revoked=is_revoked, refused=refused_calls(log), bounds=bounds)


def refused_calls(log: Log) -> Refused:
    """Writes every gRPC call that was turned away to the audit."""

    def refused(method: str, who: Identity | None, why: str) -> None:
        audit(log, who=who.name if who else "", role=who.role.value if who else "", what=method, allowed=False, why=why)

    return refused
