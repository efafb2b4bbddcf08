"""`rmgr.v1.Join` over gRPC: how a machine enters a secured cluster, and how a daemon gets its role's new secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from rmgr.adapters.access.auth import caller_of, open_channel, rebuild, secure_channel, unary
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.invitation import TlsPair
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.errors import PermissionDenied, RmgrError, Unavailable
from rmgr.model.cluster.identity import Identity, Invitation, Role
from rmgr.v1 import join_pb2

_SERVICE = "rmgr.v1.Join"
_TIMEOUT_S = 15.0


class JoinAnswers(Protocol):
    """Implemented by the WatchDog; called on threads of the server."""

    def redeem(self, invitation: str, nonce: str) -> Invitation:
        """Returns an invitation's bundle. Raises PermissionDenied, CoordinationUnavailable."""

    def renew(self, who: Identity, generation: int) -> tuple[int, str]:
        """Returns (generation, "role:secret") for the role of `who`. Raises PermissionDenied, CoordinationUnavailable."""


def handler(answers: JoinAnswers) -> grpc.GenericRpcHandler:
    """Returns the service for `RpcServer.add_generic`. `rpc_auth` decides who may ask; in an open cluster nobody may."""

    def redeem(request: Any, context: grpc.ServicerContext) -> Any:
        identity = caller_of(context).identity
        if identity is None:
            raise PermissionDenied("this cluster is open: there is nothing to redeem")
        found = answers.redeem(identity.name, request.nonce)
        return join_pb2.RedeemReply(name=found.name, role=found.role, sealed=found.sealed.encode())

    def renew(request: Any, context: grpc.ServicerContext) -> Any:
        identity = caller_of(context).identity
        if identity is None:
            raise PermissionDenied("this cluster is open: there are no secrets")
        generation, secret = answers.renew(identity, request.generation)
        return join_pb2.RenewReply(generation=generation, secret=secret)

    methods = {
        "Redeem": unary(redeem, join_pb2.RedeemRequest, join_pb2.RedeemReply),
        "Renew": unary(renew, join_pb2.RenewRequest, join_pb2.RenewReply),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


def redeem(endpoints: Sequence[str], pair: TlsPair, nonce: str, *, timeout_s: float = _TIMEOUT_S) -> tuple[str, Role, str, str]:
    """Returns (name, role, sealed bundle, endpoint that answered) for the holder of a token's certificate; asks WatchDogs in turn.

    Raises: PermissionDenied (used, expired, withdrawn, no nonce); Unavailable, which names the endpoints asked.
    """

    def dial(endpoint: str) -> grpc.Channel:
        return secure_channel(endpoint, (pair.ca, pair.key, pair.certificate), Role.WATCHDOG, OPTIONS)

    reply, endpoint = _ask(endpoints, dial, "Redeem", join_pb2.RedeemRequest(nonce=nonce), join_pb2.RedeemReply, timeout_s)
    return reply.name, Role(reply.role), reply.sealed.decode(), endpoint


def renew(endpoints: Sequence[str], credentials: Credentials, generation: int) -> tuple[int, str]:
    """Returns (generation, "role:secret"), the newest secret of our own role. Raises PermissionDenied, Unavailable."""

    def dial(endpoint: str) -> grpc.Channel:
        return open_channel(endpoint, credentials, Role.WATCHDOG, OPTIONS)

    reply, _ = _ask(endpoints, dial, "Renew", join_pb2.RenewRequest(generation=generation), join_pb2.RenewReply, _TIMEOUT_S)
    return int(reply.generation), str(reply.secret)


def _ask(
    endpoints: Sequence[str], dial: Callable[[str], grpc.Channel], name: str, request: Any, reply: Any, timeout_s: float
) -> tuple[Any, str]:
    """Returns the first answer and its endpoint; after an endpoint that does not answer, asks the next."""
    trouble: RmgrError = Unavailable("no WatchDog is known to ask", hint="name one: --watchdog HOST:PORT")
    for endpoint in endpoints:
        with dial(endpoint) as channel:
            call = channel.unary_unary(f"/{_SERVICE}/{name}", type(request).SerializeToString, reply.FromString)
            try:
                return call(request, timeout=timeout_s / max(1, len(endpoints)), wait_for_ready=False), endpoint
            except grpc.RpcError as error:
                trouble = rebuild(error, endpoint)
        if not isinstance(trouble, Unavailable):
            break
    raise trouble
